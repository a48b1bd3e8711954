/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on from a snapshot (ps/snapshot.h). The server looks for it as soon as it is made, and
 * asks workers that come meanwhile to come again. The job that the first worker brings must be
 * that of the snapshot, but for the numbers of workers, servers and steps. When the chunks are
 * made, their values are read from the parts that have them, one part after the other. The
 * first version of the job is then the step of the snapshot.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ps/safetensors.h"
#include "server/snapshot_state.h"

struct resume {
	struct tern_server *server;
	struct tern_snapshot_search search;
	bool found;
	/* Loading: the part that is being read. */
	bool loading;
	uint32_t part;
	char *path;
	struct tern_file_op op;
};

/* ---- finding it ---- */

static void passed_over(struct tern_snapshot_search *search, const char *text)
{
	struct resume *r = tern_container_of(search, struct resume, search);

	server_warn(r->server, "%s: an older one is taken if there is one", text);
}

static void searched(struct tern_snapshot_search *search, int status)
{
	struct resume *r = tern_container_of(search, struct resume, search);
	struct tern_server *s = r->server;

	if (s->over)
		return;
	if (status < 0) {
		server_fail(s, status, "--resume: %s",
			*search->why.text ? search->why.text : strerror(-status));
		return;
	}
	r->found = true;
	s->first_version = search->found.id.step;
	server_note(s, "goes on from snapshot %s in %.300s",
		tern_snapshot_short_name(search->found.id).text, search->directory);
}

int resume_init(struct tern_server *s)
{
	struct resume *r;

	if (!s->opts.resume)
		return 0;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	s->resume = r;
	r->server = s;
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
	free(r->op.data);
	free(r->path);
	free(r);
	s->resume = NULL;
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
	if (strcmp(found->job.arithmetic, job->arithmetic) != 0)
		server_warn(s,
			"the snapshot was made with the arithmetic \"%.120s\", and the "
			"job goes "
			"on with \"%.120s\": its bytes will not be those of a job "
			"without a "
			"break",
			found->job.arithmetic, job->arithmetic);
	return false;
}

/* ---- loading it ---- */

static struct chunk *find_chunk(struct tern_server *s, uint32_t number)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].number == number)
			return &s->chunks[i];
	return NULL;
}

/* True if a chunk of the part is this server's. */
static bool is_needed(struct tern_server *s, const struct tern_snapshot_part *part)
{
	for (uint32_t i = 0; i < part->chunk_count; i++)
		if (find_chunk(s, part->chunks[i]))
			return true;
	return false;
}

/* A vector of the chunk, copied to memory from malloc(). NULL: there is none of this type and
 * size, or no memory. */
static void *take_vector(const struct tern_safetensors *file, const char *what,
	const struct chunk *c, enum tern_dtype dtype, uint64_t count)
{
	const struct tern_safetensor *t =
		tern_snapshot_vector(file, what, c->number, dtype, count);
	void *copy = t ? malloc(t->bytes + 1) : NULL;

	if (copy)
		tern_snapshot_copy_vector(copy, t);
	return copy;
}

/* The vectors of a chunk, which the caller frees. */
struct loaded {
	float *w;
	struct tern_updater_state state;
	uint64_t *skipped;
};

static int set_chunk(struct chunk *c, const struct loaded *l)
{
	struct tern_updater *u = c->server->opts.updater;
	uint64_t step = c->server->first_version;
	int r;

	if (!l->w || (tern_updater_has_m(&c->kept->opts) && !l->state.m) ||
		(tern_updater_has_v(&c->kept->opts) && !l->state.v))
		return -EINVAL;
	c->version = step;
	r = tern_updater_copy(u, c->kept, chunk_w(c, step), l->w);
	if (r == 0)
		r = tern_updater_set_state(u, c->kept, &l->state);
	if (r == 0 && l->skipped)
		r = skip_set(c, l->skipped);
	if (r == 0)
		chunk_round(c, step);
	return r;
}

static int load_chunk(const struct tern_safetensors *file, struct chunk *c)
{
	uint64_t count = c->plan->count;
	struct loaded l = {
		.w = take_vector(file, "w", c, TERN_F32, count),
		.state = {.m = take_vector(file, "m", c, TERN_F32, count),
			.v = take_vector(file, "v", c, TERN_F32, count)},
		.skipped =
			take_vector(file, "skipped", c, TERN_U64, skip_tensor_count(c)),
	};
	int r = set_chunk(c, &l);

	free(l.w);
	free(l.state.m);
	free(l.state.v);
	free(l.skipped);
	return r;
}

static int load_part(struct resume *r, struct tern_ps_text *why)
{
	const struct tern_snapshot *found = &r->search.found;
	const struct tern_snapshot_part *part = &found->parts[r->part];
	struct tern_safetensors *file = NULL;
	int status;

	if (!tern_snapshot_check_part(found, r->part, r->op.data, r->op.bytes, why))
		return -EINVAL;
	status = tern_safetensors_parse(r->path, r->op.data, r->op.bytes, &file, why);
	for (uint32_t i = 0; i < part->chunk_count && status == 0; i++) {
		struct chunk *c = find_chunk(r->server, part->chunks[i]);

		if (c)
			status = load_chunk(file, c);
		if (status < 0)
			snprintf(why->text, sizeof(why->text), "%.200s: chunk %u: %s",
				r->path, part->chunks[i],
				status == -EINVAL ? "its values are not in the file"
						  : strerror(-status));
	}
	tern_safetensors_free(file);
	return status;
}

static void load_next(struct resume *r);

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
		status = load_part(r, &why);
	free(TERN_TAKE(op->data));
	if (status < 0) {
		server_fail(s, status, "--resume: %s", why.text);
		return;
	}
	r->part++;
	load_next(r);
}

/* Reads the next part that has chunks of this server. */
static void load_next(struct resume *r)
{
	const struct tern_snapshot *found = &r->search.found;
	int status = -ENOMEM;

	while (r->part < found->part_count &&
		!is_needed(r->server, &found->parts[r->part]))
		r->part++;
	free(TERN_TAKE(r->path));
	if (r->part == found->part_count) {
		r->loading = false;
		shard_loaded(r->server);
		return;
	}
	r->path = tern_snapshot_path(
		r->search.directory, tern_snapshot_part_name(found->id, r->part).text);
	r->op = (struct tern_file_op){
		.kind = TERN_FILE_READ, .path = r->path, .done = part_read};
	if (r->path)
		status = tern_env_file(r->server->env, &r->op);
	if (status < 0)
		server_fail(r->server, status, "--resume: a part cannot be read: %s",
			strerror(-status));
}

bool resume_load(struct tern_server *s)
{
	struct resume *r = s->resume;

	if (!r)
		return false;
	r->loading = true;
	r->part = 0;
	load_next(r);
	return true;
}
