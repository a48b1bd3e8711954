/* SPDX-License-Identifier: Apache-2.0 */
/* A server's part of a snapshot: copies of its chunks, and the file that they go to. */
#include "server/membership.h"
#include "server/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "ps/safetensors.h"

#define DIGEST_BYTES ((size_t)4 << 20) /* of one task */

/* ---- copies ---- */

static void copy_free(struct chunk_copy *copy)
{
	if (!copy)
		return;
	free(copy->w);
	free(copy->state.m);
	free(copy->state.v);
	free(copy->skipped);
	free(copy->applied);
	free(copy);
}

void snapshot_drop_copies(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		copy_free(s->chunks[i].copy);
		s->chunks[i].copy = NULL;
	}
}

/* Bits of the absolute value of infinity, and of the smallest NaN. */
#define INFINITE_BITS 0x7f800000u
#define NAN_BITS      0x7f800001u

/* True if no absolute value has `limit` bits or more; NULL has none. */
static bool are_below(const float *values, size_t count, uint32_t limit)
{
	uint32_t most = 0;

	for (size_t i = 0; values && i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &values[i], sizeof(bits));
		bits &= 0x7fffffff;
		most = TERN_MAX(most, bits);
	}
	return most < limit;
}

/* True if training can go on from the copy. Squares of large gradients may be infinite in v, which
 * stops the update of an element only. */
static bool is_finite(const struct chunk_copy *copy, size_t count)
{
	return are_below(copy->w, count, INFINITE_BITS) &&
	       are_below(copy->state.m, count, INFINITE_BITS) &&
	       are_below(copy->state.v, count, NAN_BITS);
}

/* Copies version `version` of the chunk, which is the newest. Called in a task. -EDOM: it has
 * values that are no finite numbers. */
static int make_copy(struct chunk *c, uint64_t version)
{
	struct tern_updater *u = c->server->opts.updater;
	struct chunk_copy *copy = c->copy;
	size_t bytes = c->plan->count * sizeof(float);
	bool has_m = tern_updater_has_m(&c->kept->opts);
	bool has_v = tern_updater_has_v(&c->kept->opts);
	int r;

	copy->w = malloc(bytes);
	copy->state.m = has_m ? malloc(bytes) : NULL;
	copy->state.v = has_v ? malloc(bytes) : NULL;
	if (!copy->w || (has_m && !copy->state.m) || (has_v && !copy->state.v))
		return -ENOMEM;
	r = tern_updater_copy(u, c->kept, copy->w,
		chunk_w(c, c->server->job.mode == TERN_MODE_SYNC ? version : 0));
	if (r == 0)
		r = tern_updater_get_state(u, c->kept, &copy->state);
	if (r == 0 && !is_finite(copy, c->plan->count))
		r = -EDOM;
	return r == 0 ? skip_copy(c, &copy->skipped, &copy->tensor_count) : r;
}

void snapshot_before_update(struct chunk *c)
{
	const struct snapshots *n = c->server->snapshots;

	c->copies_next = n && n->taking && c->copy && c->version + 1 == n->id.step;
}

void snapshot_in_update(struct chunk *c)
{
	if (c->copies_next && c->status == 0)
		c->copy->status = make_copy(c, c->version + 1);
}

/* ---- the file ---- */

static void report(struct tern_server *s, const char *why, bool late)
{
	const struct snapshots *n = s->snapshots;
	const struct snapshot_report report = {.id = n->id,
		.bytes = n->bytes,
		.digest = n->digest,
		.least = n->cut.least,
		.late = late,
		.why = why};
	char digest[20];
	json_t *message;

	if (s->index == 0) {
		snapshots_report(s, &report);
		return;
	}
	snprintf(digest, sizeof(digest), "%016" PRIx64, n->digest);
	message = json_pack("{s:s, s:I, s:I, s:I, s:s, s:b}", "type", "snapshot", "step",
		(json_int_t)n->id.step, "number", (json_int_t)n->id.number, "bytes",
		(json_int_t)n->bytes, "digest", digest, "late", late);
	if (why)
		json_object_set_new(message, "text", tern_talk_text(why));
	if (n->cut.least)
		json_object_set_new(message, "least", cut_list(s, n->cut.least));
	if (!s->to_zero->gone)
		tern_talk_say(&s->to_zero->talk, message);
	else
		json_decref(message);
}

/* This server's part has ended; why NULL: it is written. */
static void finish(struct tern_server *s, const char *why, bool late)
{
	struct snapshots *n = s->snapshots;

	n->taking = false;
	snapshot_drop_copies(s);
	cut_open(s);
	if (n->iov)
		free(n->iov[0].iov_base);
	free(n->iov);
	free(n->path);
	n->iov = NULL;
	n->path = NULL;
	report(s, why, late);
	server_maybe_end(s);
}

static void fail(struct tern_server *s, const char *what, int status)
{
	char why[300];

	snprintf(why, sizeof(why), "server %u: %.160s: %s", view_own_number(s), what,
		status == -ENOMEM ? "no memory" : strerror(-status));
	finish(s, why, false);
}

static void written(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, op);

	if (n->server->over)
		return;
	if (op->status < 0)
		fail(n->server, op->path, op->status);
	else
		finish(n->server, NULL, false);
}

void snapshot_kept(struct tern_server *s, const char *why)
{
	char text[300];

	snprintf(text, sizeof(text), "server %u: %.260s", view_own_number(s),
		why ? why : "");
	finish(s, why ? text : NULL, false);
}

/* Writes the part, or sends it to server 0. Negative errno. */
static int put(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (s->opts.snapshots.via)
		return remote_send(s);
	n->op = (struct tern_file_op){.kind = TERN_FILE_WRITE,
		.path = n->path,
		.parts = n->iov,
		.part_count = (int)n->vector_count + 1,
		.done = written};
	return tern_env_file(s->env, &n->op);
}

/* The digest is computed in many tasks, so that updates get their turn in between. */
static void digest(struct tern_task *task)
{
	struct snapshots *n = tern_container_of(task, struct snapshots, task);
	size_t bytes = 0;

	while (n->digested_count <= n->vector_count && bytes < DIGEST_BYTES) {
		const struct iovec *v = &n->iov[n->digested_count++];

		tern_digest_add(&n->stream, v->iov_base, v->iov_len);
		bytes += v->iov_len;
	}
}

static void digested(struct tern_task *task)
{
	struct snapshots *n = tern_container_of(task, struct snapshots, task);
	struct tern_server *s = n->server;
	int r;

	if (s->over)
		return;
	if (n->digested_count <= n->vector_count) {
		r = tern_env_submit(s->env, &n->task);
		if (r < 0)
			fail(s, "the digest", r);
		return;
	}
	n->bytes = n->stream.bytes;
	n->digest = tern_digest_end(&n->stream);
	r = put(s);
	if (r < 0)
		fail(s, n->path, r);
}

struct builder { /* the tensors of a part */
	struct tern_safetensor *tensors;
	char (*names)[32];
	uint32_t count;
};

static void add(struct builder *b, const char *what, const struct chunk *c,
	enum tern_dtype dtype, uint64_t count, const void *data)
{
	if (!data)
		return;
	snprintf(b->names[b->count], sizeof(b->names[0]), "%s.%u", what, c->number);
	b->tensors[b->count] = (struct tern_safetensor){.name = b->names[b->count],
		.shape = tern_shape_1d(dtype, count),
		.data = data};
	b->count++;
}

static int build(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	size_t most = 5ull * s->chunk_count + 1;
	struct builder b = {.tensors = calloc(most, sizeof(*b.tensors)),
		.names = calloc(most, sizeof(*b.names))};
	int r = -ENOMEM;

	n->iov = calloc(most + 1, sizeof(*n->iov));
	for (uint32_t i = 0; b.tensors && b.names && i < s->chunk_count; i++) {
		const struct chunk *c = &s->chunks[i];
		uint64_t count = c->plan->count;

		add(&b, "w", c, TERN_F32, count, c->copy->w);
		add(&b, "m", c, TERN_F32, count, c->copy->state.m);
		add(&b, "v", c, TERN_F32, count, c->copy->state.v);
		add(&b, "skipped", c, TERN_U64, c->copy->tensor_count, c->copy->skipped);
		add(&b, "applied", c, TERN_U64, s->job.workers, c->copy->applied);
	}
	n->vector_count = b.count;
	if (b.tensors && b.names && n->iov)
		r = tern_safetensors_build(b.tensors, b.count, NULL, 0, n->iov);
	free(b.tensors);
	free(b.names);
	return r;
}

/* A snapshot of a model that has diverged would replace a good one, and nothing that the job still
 * computes is of use. So the job ends. The part is not reported as one that has failed: if the job
 * has waited only for its last snapshot, it would end well then, before server 0 hears of this. */
static void diverged(struct tern_server *s)
{
	server_fail(s, -EDOM,
		"after step %llu the parameters, or the optimizer's state, are no longer "
		"finite numbers: a lower learning rate may help",
		(unsigned long long)s->snapshots->id.step);
}

/* Where the part is to be, or on server 0 its name only; NULL: no memory. */
static char *part_path(const struct tern_server *s)
{
	const struct tern_snapshot_name name =
		tern_snapshot_part_name(s->snapshots->id, s->index);

	return s->opts.snapshots.via
		       ? strdup(name.text)
		       : tern_snapshot_path(s->opts.snapshots.directory, name.text);
}

/* All chunks are copied: writes the part. */
static void write_part(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	int r = 0;

	for (uint32_t i = 0; i < s->chunk_count && r == 0; i++)
		r = s->chunks[i].copy->status;
	if (r == -EDOM) {
		diverged(s);
		return;
	}
	n->path = part_path(s);
	if (r == 0)
		r = n->path ? build(s) : -ENOMEM;
	tern_digest_begin(&n->stream);
	n->digested_count = 0;
	n->task.run = digest;
	n->task.done = digested;
	n->task.cost_ns = TERN_NS_PER_US;
	if (r == 0)
		r = tern_env_submit(s->env, &n->task);
	if (r < 0)
		fail(s, "a copy of the parameters", r);
}

static void all_copied(struct tern_server *s)
{
	cut_open(s);
	write_part(s);
}

static void chunk_copied(struct tern_server *s)
{
	if (--s->snapshots->left_count == 0)
		all_copied(s);
}

/* ---- a chunk that has the step already: the last one of the job; and in async mode ---- */

static void copy_now(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	c->copy->status = make_copy(c, c->version);
}

static void copied_now(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	if (!c->server->over)
		chunk_copied(c->server);
}

static void copied_between(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	c->computing = false;
	if (c->server->over)
		return;
	async_go_on(c);
	chunk_copied(c->server);
}

void snapshot_copy_between(struct chunk *c)
{
	c->copy->begun = c->computing = true;
	chunk_submit(c, copy_now, copied_between);
}

/* True if the chunk's step is over, or its update has begun. At the last step of the job
 * a chunk stays what it is. */
static bool is_late(const struct chunk *c, uint64_t step)
{
	return c->server->job.mode == TERN_MODE_SYNC && step < c->server->job.steps &&
	       (c->version >= step || (c->version + 1 == step &&
					      c->state == CHUNK_APPLYING && !c->waits));
}

static void copy_at_end(struct chunk *c)
{
	if (c->server->job.mode == TERN_MODE_SYNC && c->version == c->server->job.steps)
		chunk_submit(c, copy_now, copied_now);
}

void snapshot_after_update(struct chunk *c)
{
	const struct snapshots *n = c->server->snapshots;

	if (TERN_TAKE(c->copies_next))
		chunk_copied(c->server);
	else if (n && n->taking && c->copy && c->version == n->id.step)
		copy_at_end(c); /* the snapshot was begun during the last update */
}

static int new_copy(struct chunk *c)
{
	c->copy = calloc(1, sizeof(*c->copy));
	if (!c->copy)
		return -ENOMEM;
	if (c->server->job.mode == TERN_MODE_SYNC)
		return 0;
	c->copy->applied = calloc(c->server->job.workers, sizeof(*c->copy->applied));
	return c->copy->applied ? 0 : -ENOMEM;
}

void snapshot_take(struct tern_server *s, struct tern_snapshot_id id)
{
	struct snapshots *n = s->snapshots;
	bool late = false, no_memory = false;

	n->id = id;
	n->taking = true;
	n->bytes = n->digest = 0;
	n->left_count = s->chunk_count;
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		struct chunk *c = &s->chunks[i];

		late = late || is_late(c, id.step);
		no_memory = new_copy(c) < 0 || no_memory;
	}
	if (late || no_memory) {
		finish(s, late ? "the step was over" : "no memory for copies", late);
		return;
	}
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++)
		copy_at_end(&s->chunks[i]);
	if (s->job.mode == TERN_MODE_ASYNC)
		cut_drain(s);
	if (n->left_count == 0)
		all_copied(s);
}
