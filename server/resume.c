/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on from a snapshot (ps/snapshot.h). The server looks for it as soon as it is made, and
 * asks workers that come meanwhile to come again. The job that the first worker brings must be
 * that of the snapshot, but for the numbers of workers, servers and steps. When the chunks are
 * made, their values are read from the parts that have them, one part after the other. The
 * first version of the job is then the step of the snapshot. In async mode each worker begins with
 * its own step: the first one that is missing in at least one chunk of the job.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ps/safetensors.h"
#include "server/blobs.h"
#include "server/store.h"

struct resume {
	struct tern_server *server;
	struct tern_snapshot_search search;
	bool found;
	/* Loading: the part that is being read. */
	bool loading;
	uint32_t part, chunk; /* chunk: index of the next one in the part's list */
	char *path;
	struct tern_safetensors *file; /* the part, parsed */
	struct tern_file_op op;
};

/* ---- finding it ---- */

static void passed_over(struct tern_snapshot_search *search, const char *text)
{
	struct resume *r = tern_container_of(search, struct resume, search);

	server_warn(r->server, "%s", text);
}

/* The status of a failure to read: in a job that goes back it may be otherwise in a moment, as when
 * a file was removed since a newer snapshot was published. */
static int or_again(const struct tern_server *s, int status)
{
	return s->opts.goes_back && s->opts.returns ? -EAGAIN : status;
}

static void begin_with(struct resume *r)
{
	struct tern_snapshot_search *search = &r->search;
	struct tern_server *s = r->server;

	r->found = true;
	s->first_version = s->snapshot_step = search->found.id.step;
	s->first_number = search->found.id.number;
	blobs_add(s, &search->found.blob);
	server_note(s, "goes on from snapshot %s in %.300s",
		tern_snapshot_short_name(search->found.id).text, search->directory);
}

static void searched(struct tern_snapshot_search *search, int status)
{
	struct resume *r = tern_container_of(search, struct resume, search);
	struct tern_server *s = r->server;

	if (s->over)
		return;
	if (status == 0)
		begin_with(r);
	else if (status == -ENOENT && or_again(s, status) == -EAGAIN)
		server_fail(s, -EAGAIN,
			"%.400s, and the job has to go on from one: put it back, or end "
			"the job",
			search->why.text);
	else
		server_fail(s, or_again(s, status), "--resume: %s",
			*search->why.text ? search->why.text : strerror(-status));
}

static void end_part(struct resume *r)
{
	tern_safetensors_free(TERN_TAKE(r->file));
	free(TERN_TAKE(r->op.data));
	free(TERN_TAKE(r->path));
}

int resume_init(struct tern_server *s)
{
	bool asks = s->opts.snapshots.via && !s->from_memory;
	struct resume *r;

	if (!s->opts.resume && !asks)
		return 0;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	s->resume = r;
	r->server = s;
	if (asks)
		return remote_ask(s);
	r->search = (struct tern_snapshot_search){.env = s->env,
		.path = s->opts.resume,
		.passed_over = passed_over,
		.done = searched};
	return tern_snapshot_search_start(&r->search);
}

void resume_fini(struct tern_server *s)
{
	struct resume *r = s->resume;

	if (!r)
		return;
	tern_snapshot_fini(&r->search.found);
	tern_snapshot_search_fini(&r->search);
	end_part(r);
	free(r);
	s->resume = NULL;
}

const struct tern_snapshot *resume_found(const struct tern_server *s)
{
	return s->resume && s->resume->found ? &s->resume->search.found : NULL;
}

char *resume_path(const struct tern_server *s, uint32_t part)
{
	const struct tern_snapshot_search *search = &s->resume->search;

	return tern_snapshot_path(search->directory,
		part == TERN_SNAPSHOT_MANIFEST
			? tern_snapshot_manifest_name(search->found.id).text
			: tern_snapshot_part_name(search->found.id, part).text);
}

/* ---- finding it on server 0 (store.h) ---- */

void resume_unread(struct tern_server *s, int status, const char *why)
{
	s->stats.misused = status == -EINVAL;
	server_fail(s, status == -EINVAL ? status : or_again(s, status),
		"--snapshots-via %s: %s", remote_address(s), why);
}

void resume_told(struct tern_server *s, struct tern_snapshot_id id)
{
	if (id.step) {
		s->resume->search.found.id = id;
		remote_read(s, TERN_SNAPSHOT_MANIFEST, STORE_MANIFEST_MOST);
		return;
	}
	resume_fini(s);
	remote_rest(s);
}

/* The manifest is here. */
static void take_manifest(struct resume *r, const void *data, size_t bytes)
{
	struct tern_snapshot_search *search = &r->search;
	struct tern_snapshot_id wanted = search->found.id;
	int status;

	search->found = (struct tern_snapshot){.id = {0}};
	status = tern_snapshot_decode(data, bytes, &search->found, &search->why);
	if (status == 0 && tern_snapshot_compare(search->found.id, wanted) != 0) {
		snprintf(search->why.text, sizeof(search->why.text),
			"the manifest is that of another snapshot");
		status = -EPROTO;
	}
	search->directory = strdup(r->server->opts.snapshots.via);
	if (!search->directory)
		status = -ENOMEM;
	if (status < 0)
		resume_unread(r->server, status == -EINVAL ? -EPROTO : status,
			*search->why.text ? search->why.text : "no memory");
	else
		begin_with(r);
	remote_rest(r->server);
}

bool resume_is_searching(const struct tern_server *s)
{
	return s->resume && !s->resume->found;
}

bool resume_is_loading(const struct tern_server *s)
{
	return s->resume && s->resume->loading;
}

bool resume_differs(struct tern_server *s, const struct tern_ps_job *job, const char *who,
	struct tern_ps_text *why)
{
	const struct tern_snapshot *found;

	if (!s->resume)
		return false;
	found = &s->resume->search.found;
	if (tern_snapshot_differs(found, job, who, why))
		return true;
	if (job->mode == TERN_MODE_SYNC &&
		strcmp(found->job.arithmetic, job->arithmetic) != 0)
		server_warn(s,
			"the snapshot was made with the arithmetic \"%.120s\", and the "
			"job goes "
			"on with \"%.120s\": its bytes will not be those of a job "
			"without a "
			"break",
			found->job.arithmetic, job->arithmetic);
	return false;
}

bool resume_is_foreign(struct server_peer *worker, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	struct tern_server *s = worker->server;
	struct tern_ps_text differs;

	if (!s->opts.goes_back || !s->opts.returns || !resume_found(s) ||
		!tern_snapshot_differs(
			resume_found(s), job, tern_peer_name(worker->peer), &differs))
		return false;
	snprintf(why->text, sizeof(why->text),
		"%.210s: if it is another job's, remove it from %.100s", differs.text,
		s->resume->search.directory);
	return true;
}

uint64_t resume_step_of(const struct tern_server *s, uint32_t worker)
{
	if (s->job.mode == TERN_MODE_SYNC || !s->resume)
		return s->first_version;
	return s->resume->search.found.least[worker];
}

/* ---- loading it ---- */

static int compare(const void *number, const void *chunk)
{
	uint32_t a = *(const uint32_t *)number, b = ((const struct chunk *)chunk)->number;

	return a < b ? -1 : a > b;
}

/* The chunk with this number, if it is this server's; else NULL. */
static struct chunk *find_chunk(struct tern_server *s, uint32_t number)
{
	return bsearch(&number, s->chunks, s->chunk_count, sizeof(*s->chunks), compare);
}

/* True if a chunk of the part is this server's. */
static bool is_needed(struct tern_server *s, const struct tern_snapshot_part *part)
{
	for (uint32_t i = 0; i < part->chunk_count; i++)
		if (find_chunk(s, part->chunks[i]))
			return true;
	return false;
}

/* Copies a vector of the chunk, if the part has it, to memory from malloc(). */
static int take_vector(const struct tern_safetensors *file, const char *what,
	const struct chunk *c, enum tern_dtype dtype, uint64_t count, void *out)
{
	const struct tern_safetensor *t =
		tern_snapshot_vector(file, what, c->number, dtype, count);
	void *copy = t ? malloc(t->bytes + 1) : NULL;

	if (copy)
		tern_snapshot_copy_vector(copy, t);
	*(void **)out = copy;
	return t && !copy ? -ENOMEM : 0;
}

/* The vectors of a chunk, which the caller frees. */
struct loaded {
	float *w;
	struct tern_updater_state state;
	uint64_t *skipped;
	uint64_t *applied; /* async */
};

static int take(
	const struct tern_safetensors *file, const struct chunk *c, struct loaded *l)
{
	uint64_t count = c->plan->count;
	int r = take_vector(file, "w", c, TERN_F32, count, &l->w);

	if (r == 0)
		r = take_vector(file, "m", c, TERN_F32, count, &l->state.m);
	if (r == 0)
		r = take_vector(file, "v", c, TERN_F32, count, &l->state.v);
	if (r == 0)
		r = take_vector(
			file, "skipped", c, TERN_U64, skip_tensor_count(c), &l->skipped);
	if (r == 0 && c->server->job.mode == TERN_MODE_ASYNC)
		r = take_vector(file, "applied", c, TERN_U64, c->server->job.workers,
			&l->applied);
	return r;
}

/* Sets which version the chunk has. Returns where its parameters belong (chunk_w()). */
static uint64_t set_version(struct chunk *c, const uint64_t *applied)
{
	const struct tern_server *s = c->server;

	c->version = c->made = c->oldest = s->first_version;
	if (s->job.mode == TERN_MODE_SYNC)
		return c->version;
	c->version = 0;
	for (uint32_t i = 0; i < s->job.workers; i++) {
		c->streams[i].had = applied[i];
		c->version += applied[i];
	}
	return 0;
}

static int set(struct chunk *c, const struct loaded *l)
{
	struct tern_updater *u = c->server->opts.updater;
	uint64_t step = set_version(c, l->applied);
	int r;

	r = tern_updater_copy(u, c->kept, chunk_w(c, step), l->w);
	if (r == 0)
		r = tern_updater_set_state(u, c->kept, &l->state);
	if (r == 0 && l->skipped)
		r = skip_set(c, l->skipped);
	if (r == 0)
		chunk_round(c, step);
	return r;
}

static void load_chunk(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct loaded l = {.w = NULL};

	c->status = take(c->server->resume->file, c, &l);
	if (c->status == 0)
		c->status = set(c, &l);
	free(l.w);
	free(l.state.m);
	free(l.state.v);
	free(l.skipped);
	free(l.applied);
}

static void load_next(struct resume *r);
static void load_chunks(struct resume *r);

static void loaded_chunk(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct tern_server *s = c->server;

	if (s->over)
		return;
	if (c->status < 0)
		server_fail(s, c->status, "--resume: %s: chunk %u: %s", s->resume->path,
			c->number,
			*c->kept->error ? c->kept->error : tern_status_text(c->status));
	else
		load_chunks(s->resume);
}

/* Loads the next chunk of the part that is this server's, in a task: connections are served
 * meanwhile. */
static void load_chunks(struct resume *r)
{
	const struct tern_snapshot_part *part = &r->search.found.parts[r->part];
	struct chunk *c = NULL;

	while (!c && r->chunk < part->chunk_count)
		c = find_chunk(r->server, part->chunks[r->chunk++]);
	if (c) {
		chunk_submit(c, load_chunk, loaded_chunk);
		return;
	}
	end_part(r);
	r->part++;
	load_next(r);
}

/* Parses a part, and checks that it is as it was written and has all that is needed. */
static int check_part(struct resume *r, struct tern_ps_text *why)
{
	const struct tern_snapshot *found = &r->search.found;
	int status;

	if (!tern_snapshot_check_part(found, r->part, r->op.data, r->op.bytes, why))
		return -EINVAL;
	status = tern_safetensors_parse(r->path, r->op.data, r->op.bytes, &r->file, why);
	if (status < 0)
		return status;
	return tern_snapshot_check_vectors(found, &r->server->plan, r->part, r->file, why)
		       ? 0
		       : -EINVAL;
}

static void part_read(struct tern_file_op *op)
{
	struct resume *r = tern_container_of(op, struct resume, op);
	struct tern_server *s = r->server;
	struct tern_ps_text why = {"no memory"};
	int status = op->status;

	if (s->over)
		return;
	if (status < 0)
		snprintf(why.text, sizeof(why.text), "%.300s: %s", r->path,
			strerror(-status));
	else
		status = check_part(r, &why);
	r->chunk = 0;
	if (status < 0)
		server_fail(s, or_again(s, status), "--resume: %s", why.text);
	else
		load_chunks(r);
}

void resume_read(struct tern_server *s, uint32_t part, void *data, size_t bytes)
{
	struct resume *r = s->resume;

	if (part == TERN_SNAPSHOT_MANIFEST) {
		take_manifest(r, data, bytes);
		free(data);
		return;
	}
	r->op.status = 0;
	r->op.data = data;
	r->op.bytes = bytes;
	part_read(&r->op);
}

/* Starts to read the part. Negative errno. */
static int read_part(struct resume *r)
{
	struct tern_server *s = r->server;
	const struct tern_snapshot *found = &r->search.found;

	r->path = resume_path(s, r->part);
	if (!r->path)
		return -ENOMEM;
	if (s->remote) {
		remote_read(s, r->part, found->parts[r->part].bytes);
		return 0;
	}
	r->op = (struct tern_file_op){
		.kind = TERN_FILE_READ, .path = r->path, .done = part_read};
	return tern_env_file(s->env, &r->op);
}

/* Reads the next part that has chunks of this server. */
static void load_next(struct resume *r)
{
	const struct tern_snapshot *found = &r->search.found;
	int status;

	while (r->part < found->part_count &&
		!is_needed(r->server, &found->parts[r->part]))
		r->part++;
	if (r->part == found->part_count) {
		r->loading = false;
		remote_rest(r->server);
		shard_loaded(r->server);
		return;
	}
	status = read_part(r);
	if (status < 0)
		server_fail(r->server, or_again(r->server, status),
			"--resume: a part cannot be read: %s", strerror(-status));
}

bool resume_load(struct tern_server *s)
{
	struct resume *r = s->resume;

	if (!r)
		return false;
	omit_know(s, &r->search.found.omitted);
	r->loading = true;
	r->part = 0;
	load_next(r);
	return true;
}
