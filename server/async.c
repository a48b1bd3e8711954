/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Async mode: each worker has its own stream with each chunk. Its gradients are applied
 * as they arrive, one at a time, and the worker gets a copy of the chunk as it is then: a
 * copy, because the next gradient may be applied while it is still being sent.
 *
 * A stream's steps are those of the worker, with one receive for each, so no gradient
 * counts twice. The staleness of a gradient is the number of versions by which the chunk
 * has moved on since it was sent to the worker. A stream's first turn at the chunk
 * applies no gradient and only makes the first copy, in a task: for a large model and
 * many workers, the first copies take longer than a connection may be silent.
 *
 * When a worker is lost, its streams end where they are: the others continue with their
 * own steps, and no worker makes up for the lost steps.
 *
 * In mode ssp:K the copy for a worker that has taken c steps is held until the chunk has
 * the first c - K steps of every live worker. Its gradient is applied at once. The worker
 * that is furthest behind is never held, so the others always go on.
 *
 * When all remaining workers have taken their last steps (lease.c), the finisher (the
 * worker that evaluates and saves) sends "pull": each of its streams waits for its turn
 * at the chunk once more, without a gradient, and gets a last copy. The server also tells
 * it which steps these copies contain: of a lost worker, some chunks may have a gradient
 * that others will never get. A chunk applies a worker's gradients in the order of its
 * steps, so two numbers for each worker suffice: the steps that every chunk here has, and
 * the steps that any chunk has.
 *
 * While a snapshot is taken, gradients may be deferred until the chunk was copied (cut.h).
 */
#include "server/cut.h"
#include "server/snapshots.h"

#include <errno.h>
#include <string.h>

#include "ps/marks.h"

#define BEFORE_FIRST UINT64_MAX /* step of a stream until its first copy is made */

int async_init(struct chunk *c)
{
	struct tern_server *s = c->server;
	uint64_t bytes = c->plan->count * sizeof(float);

	tern_list_init(&c->held);
	tern_list_init(&c->deferred);
	c->streams = calloc(s->job.workers, sizeof(*c->streams));
	if (!c->streams)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->job.workers; i++) {
		struct stream *t = &c->streams[i];
		int r;

		t->chunk = c;
		t->worker = i;
		tern_list_init(&t->node);
		r = tern_pool_get(s->store, bytes, &t->gradient);
		if (r == 0)
			r = tern_pool_get(s->store, bytes, &t->copy);
		if (r < 0)
			return r == -EAGAIN ? -ENOMEM : r;
		chunk_pin(c, &t->gradient);
	}
	return 0;
}

void async_fini(struct chunk *c)
{
	for (uint32_t i = 0; c->streams && i < c->server->job.workers; i++) {
		tern_pool_put(c->server->store, &c->streams[i].gradient);
		tern_pool_put(c->server->store, &c->streams[i].copy);
		free(c->streams[i].marks);
	}
	free(c->streams);
}

static void receive(struct stream *t);
static void run_next(struct chunk *c);
static uint64_t steps_applied(const struct stream *t);

static void failed(struct stream *t, int status)
{
	tern_talk_failed(&t->chunk->server->workers[t->worker]->talk, status);
}

static void queue(struct stream *t)
{
	/* This is safe while the chunk's task runs: the task reads the head of the list,
	 * and only the tail is changed here. */
	tern_list_push(&t->chunk->ready, &t->node);
	run_next(t->chunk);
}

/* ---- ssp: workers that are ahead ---- */

/* The fewest steps that the chunk has of a live worker that has steps left, `but` that of
 * one stream. */
static uint64_t slowest(const struct chunk *c, const struct stream *but)
{
	const struct tern_server *s = c->server;
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < s->job.workers; i++) {
		uint64_t steps = steps_applied(&c->streams[i]);

		if (&c->streams[i] != but && lease_is_live(s->workers[i]) &&
			steps < tern_ps_job_steps_of(&s->job, i))
			least = TERN_MIN(least, steps);
	}
	return least;
}

/* True if a worker that has taken `taken` steps must not get a copy yet. */
static bool is_ahead(const struct chunk *c, uint64_t taken, uint64_t slowest_has)
{
	uint64_t ssp = c->server->job.ssp;

	return ssp && taken >= ssp && slowest_has < taken - ssp + 1;
}

static void hold(struct stream *t)
{
	t->held = true;
	tern_list_push(&t->chunk->held, &t->node);
}

/* Lets streams that are no longer ahead have their copies. A stream that is held has all
 * steps of its worker, so it is not the slowest to itself. */
static void release(struct chunk *c)
{
	struct tern_list *node = c->held.next, *next;
	uint64_t slowest_has = tern_list_empty(&c->held) ? 0 : slowest(c, NULL);

	for (; node != &c->held; node = next) {
		struct stream *t = tern_list_entry(node, struct stream, node);

		next = node->next;
		if (is_ahead(c, t->step, slowest_has))
			continue;
		tern_list_remove(node);
		t->pulled = true;
		queue(t);
	}
}

void async_worker_lost(struct tern_server *s)
{
	if (s->job.mode != TERN_MODE_ASYNC)
		return;
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++) {
		struct chunk *c = &s->chunks[i];

		release(c);
		async_go_on(c); /* a snapshot may have waited for the worker's gradient */
	}
}

uint64_t async_held_at(const struct tern_server *s, uint32_t worker)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < s->chunk_count; i++) {
		const struct stream *t = &s->chunks[i].streams[worker];

		if (t->held || t->deferred)
			least = TERN_MIN(least, t->step);
	}
	return least;
}

/* ---- copies ---- */

static void copy_sent(struct tern_req *req)
{
	struct stream *t = req->arg;
	struct server_peer *worker = t->chunk->server->workers[t->worker];

	t->sending = false;
	if (req->status == 0)
		late_slot_begins(t->chunk, worker);
	if (req->status < 0)
		failed(t, req->status);
	else if (t->chunk->server->over)
		return;
	else if (t->pulled)
		queue(t);
	else
		receive(t);
}

static void send_copy(struct stream *t)
{
	struct chunk *c = t->chunk;
	struct tern_tensor tensor =
		chunk_tensor(c, &t->copy, chunk_pulls_bf16(c, t->step, t->worker));

	if (c->server->workers[t->worker]->gone)
		return;
	t->sending = true;
	t->seen = c->version;
	t->parameter_req.done = copy_sent;
	t->parameter_req.arg = t;
	tern_send(c->server->workers[t->worker]->data, &t->parameter_req,
		c->plan->parameter_key, t->step, &tensor, NULL, 0);
}

/* The worker's step whose parameters the stream's present turn makes. */
static uint64_t next_step(const struct stream *t)
{
	if (t->held)
		return t->step;
	return t->step == BEFORE_FIRST ? resume_step_of(t->chunk->server, t->worker)
				       : t->step + 1;
}

/* True if the stream's present turn brings a gradient that the chunk does not have. */
static bool is_new(const struct stream *t)
{
	return !t->pulled && t->step >= t->had;
}

/* Copies the chunk for the stream's worker, as bf16 if it is sent so. */
static void copy(struct chunk *c, const struct stream *t)
{
	struct tern_updater *u = c->server->opts.updater;

	if (chunk_pulls_bf16(c, next_step(t), t->worker))
		tern_updater_narrow(u, c->kept, tern_buf_ptr(&t->copy), chunk_w(c, 0));
	else
		c->status = tern_updater_copy(
			u, c->kept, tern_vector(&t->copy), chunk_w(c, 0));
}

/* Takes the first ready stream: applies its gradient to the chunk in place, unless this
 * turn applies none (`pulled`), and copies the result for its worker, unless that is held
 * (`copies`). */
static void apply_one(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct stream *t = tern_list_first(&c->ready, struct stream, node);
	const float *gradient = tern_vector(&t->gradient);

	if (is_new(t))
		chunk_apply(c, 0, 0, &gradient, 1, 1.0f, 1.0f);
	if (c->status == 0 && c->copies)
		copy(c, t);
}

/* Number of the worker's steps that were applied to the chunk. t->step is larger after a
 * pull, whose turn follows the last step and applies no gradient. */
static uint64_t steps_applied(const struct stream *t)
{
	uint64_t last = tern_ps_job_steps_of(&t->chunk->server->job, t->worker);

	return t->step == BEFORE_FIRST ? t->had
				       : TERN_MAX(t->had, TERN_MIN(t->step, last));
}

uint64_t async_steps_begun(const struct chunk *c, uint32_t worker)
{
	const struct stream *t = &c->streams[worker];
	bool applies = c->computing && !tern_list_empty(&c->ready) && !t->pulled &&
		       tern_list_first(&c->ready, struct stream, node) == t;

	return TERN_MAX(steps_applied(t), applies ? t->step + 1 : 0);
}

void async_go_on(struct chunk *c)
{
	while (!tern_list_empty(&c->deferred)) {
		struct stream *t =
			tern_list_entry(tern_list_pop(&c->deferred), struct stream, node);

		t->deferred = false;
		tern_list_push(&c->ready, &t->node);
	}
	run_next(c);
}

/* Sends "applied" to p, with the numbers of applied steps (ps/talk.h) of those workers
 * whose steps were not all applied to every chunk. */
static void say_applied(struct server_peer *p)
{
	const struct tern_server *s = p->server;
	json_t *parts = json_array();

	for (uint32_t i = 0; i < s->job.workers && s->chunk_count; i++)
		if (p->pull->least[i] < tern_ps_job_steps_of(&s->job, i))
			json_array_append_new(
				parts, json_pack("[I, I, I]", (json_int_t)i,
					       (json_int_t)p->pull->least[i],
					       (json_int_t)p->pull->most[i]));
	tern_talk_say(
		&p->talk, json_pack("{s:s, s:o}", "type", "applied", "parts", parts));
	free(TERN_TAKE(p->pull));
}

/* The last copy of chunk `c` for worker p was made: counts the steps that it contains. */
static void count_applied(struct chunk *c, struct server_peer *p)
{
	struct tern_server *s = c->server;

	for (uint32_t i = 0; i < s->job.workers; i++) {
		uint64_t steps = steps_applied(&c->streams[i]);

		p->pull->least[i] = TERN_MIN(p->pull->least[i], steps);
		p->pull->most[i] = TERN_MAX(p->pull->most[i], steps);
	}
	if (--p->pull->chunks_left == 0)
		say_applied(p);
}

static int start_counting(struct server_peer *p)
{
	const struct tern_server *s = p->server;

	p->pull = calloc(1, sizeof(*p->pull) + 2 * s->job.workers * sizeof(uint64_t));
	if (!p->pull)
		return -ENOMEM;
	p->pull->chunks_left = s->chunk_count;
	p->pull->least = p->pull->counts;
	p->pull->most = p->pull->counts + s->job.workers;
	for (uint32_t i = 0; i < s->job.workers; i++)
		p->pull->least[i] = UINT64_MAX;
	if (s->chunk_count == 0)
		say_applied(p);
	return 0;
}

static void one_applied(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct tern_server *s = c->server;
	struct stream *t = tern_list_entry(tern_list_pop(&c->ready), struct stream, node);
	uint64_t staleness = c->version - t->seen;

	c->computing = false;
	if (chunk_failed(c))
		return;
	if (is_new(t)) {
		c->version++;
		s->stats.gradients_added++;
		s->stats.staleness_sum += staleness;
		s->stats.staleness_max = TERN_MAX(s->stats.staleness_max, staleness);
		s->stats.staleness[TERN_MIN(
			staleness, (uint64_t)TERN_STALENESS_BINS - 1)]++;
	} else if (!t->pulled) {
		s->stats.gradients_refused++;
	}
	if (t->pulled && !t->held && t->step != BEFORE_FIRST)
		count_applied(c, s->workers[t->worker]);
	if (s->over)
		return;
	t->step = next_step(t);
	t->pulled = t->held = t->marked = false;
	if (c->copies)
		send_copy(t);
	else
		hold(t);
	release(c);
	run_next(c);
	snapshots_step_made(c);
}

/* Moves the streams at the head of the list whose gradients must not be applied yet. */
static void defer(struct chunk *c)
{
	while (!tern_list_empty(&c->ready)) {
		struct stream *t = tern_list_first(&c->ready, struct stream, node);

		if (t->pulled || !cut_defers(c, t->worker, t->step))
			return;
		tern_list_remove(&t->node);
		tern_list_push(&c->deferred, &t->node);
		t->deferred = true;
	}
}

static void run_next(struct chunk *c)
{
	const struct stream *t;

	if (c->computing)
		return;
	defer(c);
	if (tern_list_empty(&c->ready)) {
		cut_maybe_copy(c);
		return;
	}
	t = tern_list_first(&c->ready, struct stream, node);
	c->computing = true;
	skip_begin(c);
	if (t->marked)
		skip_add(c, t->marks);
	c->copies = t->pulled || !c->server->job.ssp ||
		    !is_ahead(c, t->step + 1, slowest(c, t));
	chunk_submit(c, apply_one, one_applied);
}

/* The marks of the stream's gradient are here, or its worker was lost before. */
static void marked(void *arg, int status, const uint8_t *marks)
{
	struct stream *t = arg;
	struct chunk *c = t->chunk;

	if (c->server->over)
		return;
	if (status < 0) {
		failed(t, status);
		return;
	}
	if (!t->marks)
		t->marks = malloc(skip_marks_bytes(c));
	if (!t->marks) {
		server_fail(c->server, -ENOMEM, "no memory for the marks of a gradient");
		return;
	}
	memcpy(t->marks, marks, skip_marks_bytes(c));
	t->marked = true;
	queue(t);
}

static void gradient_arrived(struct tern_req *req)
{
	struct stream *t = req->arg;
	struct chunk *c = t->chunk;

	if (req->status == 0 || req->status == -EMSGSIZE) {
		if (!chunk_takes(c, t->worker, req))
			return;
	} else {
		failed(t, req->status);
		return;
	}
	if (c->server->over)
		return;
	late_slot_ended(c, c->server->workers[t->worker]);
	if (tern_marks_follow(&req->shape))
		skip_receive(c, c->server->workers[t->worker], t->step, marked, t);
	else
		queue(t);
}

static void receive(struct stream *t)
{
	struct chunk *c = t->chunk;
	struct tern_server *s = c->server;
	struct tern_buf room = t->gradient;

	if (t->step >= tern_ps_job_steps_of(&s->job, t->worker) ||
		s->workers[t->worker]->gone)
		return;
	room.bytes = chunk_gradient_bytes(c);
	t->gradient_req.done = gradient_arrived;
	t->gradient_req.arg = t;
	tern_recv(s->workers[t->worker]->data, &t->gradient_req, c->plan->gradient_key,
		t->step, &room, NULL, 0);
}

void async_start(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint32_t j = 0; j < s->job.workers; j++) {
			struct stream *t = &s->chunks[i].streams[j];

			t->step = BEFORE_FIRST;
			t->pulled = true;
			queue(t);
		}
}

bool async_is_done(const struct server_peer *p)
{
	const struct tern_server *s = p->server;
	uint64_t last = tern_ps_job_steps_of(&s->job, p->index);

	if (!s->running)
		return s->chunk_count == 0;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (steps_applied(&s->chunks[i].streams[p->index]) < last)
			return false;
	return true;
}

/* A worker may pull only once, after its last step on all chunks. */
static bool may_pull(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	if (p->pull)
		return false;
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		const struct stream *t = &s->chunks[i].streams[p->index];

		if (t->pulled || t->held ||
			t->step != tern_ps_job_steps_of(&s->job, p->index))
			return false;
	}
	return true;
}

void async_on_pull(struct server_peer *p)
{
	struct tern_server *s = p->server;

	if (!may_pull(p)) {
		server_refuse(p,
			"its message \"pull\" came before its last step (%llu) was "
			"applied, or for the second time",
			(unsigned long long)tern_ps_job_steps_of(&s->job, p->index));
		return;
	}
	if (start_counting(p) < 0) {
		server_fail(s, -ENOMEM, "no memory to count the steps that were applied");
		return;
	}
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		struct stream *t = &s->chunks[i].streams[p->index];

		t->pulled = true;
		/* While a copy is being sent to the worker, copy_sent() queues the stream
		 * when that has ended. */
		if (!t->sending)
			queue(t);
	}
}
