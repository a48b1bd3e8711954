/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: core.h. A request has one group for each target, since a list of Tern has
 * one window. The notification follows the last group; if there is one group and it fits
 * into a part, it travels with the group.
 *
 *     IDLE --post--> MOVING --groups ended--> NOTIFYING --parts ended--> IDLE
 *                       +----------no notification, or an error-----------^
 */
#include "plugins/nixl/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Rounds of progress in one check, as long as each one moves something: over shared memory, 64
 * of them copy 16 MiB. A program that gives its processor away between two checks would
 * otherwise wait for others after each 256 KiB. */
#define ROUNDS_MAX 64u
/* Longest time for which memory that is deregistered waits for transfers with an agent that
 * does not answer, and how often it looks. */
#define LEAVE_NS 10000000000ull
#define PAUSE_NS 100000

enum state { IDLE, MOVING, NOTIFYING };

/* The pieces with one target. */
struct group {
	struct target *target;
	size_t first, count;
	struct tern_req req;
};

struct request {
	struct engine *engine;
	struct agent *agent;           /* NULL: within this agent */
	struct request *next, **place; /* in engine->requests */
	bool write;
	size_t count;              /* pieces */
	struct tern_piece *pieces; /* in the order of groups */
	struct span *spans;        /* within this agent */
	size_t group_count;
	struct group *groups;
	struct note note;
	enum state state;
	unsigned left; /* groups, or parts of the notification, that have not ended */
	bool posted, noted, cancelled;
	bool abandoned; /* is freed when it has ended */
	bool is_void;   /* memory of this agent that it uses was deregistered */
	int status;     /* of Tern */
	/* False while the request is under way: read without the lock. */
	_Atomic bool over;
};

/* ---- making and freeing ---- */

/* The context is locked, or gone. */
static void request_free(struct request *r)
{
	*r->place = r->next;
	if (r->next)
		r->next->place = r->place;
	for (size_t i = 0; i < r->group_count; i++)
		target_put(r->groups[i].target);
	if (r->agent)
		agent_put(r->agent);
	note_fini(&r->note);
	free(r->groups);
	free(r->pieces);
	free(r->spans);
	free(r);
}

static int find_group(struct request *r, struct target *t, size_t *hint)
{
	if (*hint < r->group_count && r->groups[*hint].target == t)
		return 0;
	for (*hint = 0; *hint < r->group_count; ++*hint)
		if (r->groups[*hint].target == t)
			return 0;
	/* Powers of two: the room grows when it is full. */
	if ((r->group_count & (r->group_count - 1)) == 0) {
		size_t room = r->group_count ? 2 * r->group_count : 1;
		struct group *groups = realloc(r->groups, room * sizeof(*groups));

		if (!groups)
			return -ENOMEM;
		r->groups = groups;
	}
	r->groups[r->group_count++] = (struct group){.target = t};
	t->users++;
	return 0;
}

static bool is_inside(const struct span *s)
{
	uintptr_t base = s->local->base;

	return s->local_address >= base && s->local_address - base <= s->local->bytes &&
	       s->bytes <= s->local->bytes - (s->local_address - base) &&
	       s->remote_address >= s->target->base &&
	       s->remote_address - s->target->base <= s->target->desc.bytes &&
	       s->bytes <= s->target->desc.bytes - (s->remote_address - s->target->base);
}

static int add_spans(struct request *r, const struct span *spans, size_t count)
{
	size_t hint = 0, first = 0;

	r->pieces = calloc(count ? count : 1, sizeof(*r->pieces));
	if (!r->pieces)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		if (!is_inside(&spans[i]))
			return -ERANGE;
		if (find_group(r, spans[i].target, &hint) < 0)
			return -ENOMEM;
		if (spans[i].bytes)
			r->groups[hint].count++;
	}
	for (size_t i = 0; i < r->group_count; i++) {
		r->groups[i].first = first;
		first += r->groups[i].count;
		r->groups[i].count = 0;
	}
	for (size_t i = 0; i < count; i++) {
		const struct span *s = &spans[i];
		struct group *g;

		if (!s->bytes)
			continue;
		find_group(r, s->target, &hint);
		g = &r->groups[hint];
		r->pieces[g->first + g->count++] = (struct tern_piece){
			.local = {.mem = s->local->mem,
				.offset = s->local_address - s->local->base,
				.bytes = s->bytes},
			.remote_offset = s->remote_address - s->target->base};
	}
	r->count = first;
	return 0;
}

static int copy_spans(struct request *r, const struct span *spans, size_t count)
{
	r->spans = calloc(count ? count : 1, sizeof(*spans));
	if (!r->spans)
		return -ENOMEM;
	if (count)
		memcpy(r->spans, spans, count * sizeof(*spans));
	r->count = count;
	return 0;
}

static int fill_local(struct request *r, const struct span *spans, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (spans[i].gpu) {
			nixl_warn("agent %s: a transfer within the agent has memory of a "
				  "GPU: only host memory is copied so",
				r->engine->name);
			return RESULT_INVALID;
		}
	return copy_spans(r, spans, count) < 0 ? RESULT_BACKEND : RESULT_OK;
}

/* The context is locked. */
static int fill(
	struct request *r, const char *name, const struct span *spans, size_t count)
{
	int status;

	if (!name)
		return fill_local(r, spans, count);
	r->agent = agent_find(r->engine, name);
	if (!r->agent) {
		nixl_warn("agent %s: agent %s is unknown: load its metadata first",
			r->engine->name, name);
		return RESULT_NOT_FOUND;
	}
	r->agent->users++;
	status = add_spans(r, spans, count);
	if (status == -ERANGE)
		nixl_warn("agent %s: a transfer with agent %s is outside of registered "
			  "memory",
			r->engine->name, name);
	if (status < 0)
		return status == -ERANGE ? RESULT_INVALID : RESULT_BACKEND;
	for (size_t i = 0; i < r->group_count; i++)
		if (r->groups[i].target->agent != r->agent) {
			nixl_warn("agent %s: memory of agent %s is of a process that has "
				  "ended: load its metadata again",
				r->engine->name, name);
			return RESULT_NOT_FOUND;
		}
	return agent_dial(r->agent);
}

int request_new(struct engine *e, const char *agent, bool write, const struct span *spans,
	size_t count, struct request **out)
{
	struct request *r = calloc(1, sizeof(*r));
	int result;

	*out = NULL;
	if (!r || !engine_lock(e)) {
		free(r);
		return RESULT_BACKEND;
	}
	r->engine = e;
	r->write = write;
	atomic_init(&r->over, true);
	r->next = e->requests;
	r->place = &e->requests;
	if (r->next)
		r->next->place = &r->next;
	e->requests = r;
	result = fill(r, agent, spans, count);
	if (result == RESULT_OK)
		*out = r;
	else
		request_free(r);
	tern_shared_unlock(e->shared);
	return result;
}

/* ---- moving: the context is locked ---- */

static void end(struct request *r)
{
	r->state = IDLE;
	if (r->abandoned)
		request_free(r);
	else /* Release: the status was written before. */
		atomic_store_explicit(&r->over, true, memory_order_release);
}

static void fail(struct request *r, int status)
{
	if (status < 0 && r->status == 0)
		r->status = status;
}

static void part_ended(struct tern_req *req)
{
	struct request *r = req->arg;

	fail(r, req->status);
	if (--r->left == 0)
		end(r);
}

/* The bytes have landed. */
static void notify(struct request *r)
{
	struct note *n = &r->note;

	r->state = NOTIFYING;
	for (unsigned i = 0; i < n->count && r->status == 0; i++) {
		n->reqs[i] = (struct tern_req){.done = part_ended, .arg = r};
		fail(r, r->agent->down
				? -ECONNRESET
				: tern_notify(r->agent->peer, &n->reqs[i], &n->parts[i]));
		if (r->status == 0)
			r->left = n->posted = i + 1;
	}
	if (r->left == 0)
		end(r);
}

static void group_ended(struct tern_req *req)
{
	struct request *r = req->arg;

	fail(r, req->status);
	if (--r->left > 0)
		return;
	if (r->noted && r->status == 0 && !r->cancelled)
		notify(r);
	else
		end(r);
}

static void move(struct request *r)
{
	/* The only part of a notification behind the only group. */
	bool carried = r->noted && r->write && r->group_count == 1 &&
		       r->groups[0].count > 0 && r->note.count == 1;

	r->state = MOVING;
	if (carried)
		r->noted = false;
	for (size_t i = 0; i < r->group_count && r->status == 0; i++) {
		struct group *g = &r->groups[i];
		const struct tern_piece *pieces = r->pieces + g->first;
		int status = 0;

		if (g->count == 0)
			continue;
		g->req.done = group_ended;
		g->req.arg = r;
		if (r->write)
			status = tern_put_list(g->target->remote, &g->req, pieces,
				g->count, carried ? r->note.parts : NULL);
		else
			status = tern_get_list(
				g->target->remote, &g->req, pieces, g->count);
		fail(r, status);
		if (status == 0)
			r->left++;
	}
	if (r->left > 0)
		return;
	if (r->noted && r->status == 0)
		notify(r);
	else
		end(r);
}

static void cancel(struct request *r)
{
	r->cancelled = true;
	for (size_t i = 0; i < r->group_count && r->state == MOVING; i++)
		tern_cancel(&r->groups[i].req);
	/* The last part first: parts that leave meanwhile are those before it. */
	for (unsigned i = r->note.posted; i-- > 0 && r->state == NOTIFYING;)
		tern_cancel(&r->note.reqs[i]);
}

/* ---- the functions of core.h ---- */

static int check_memory(const struct request *r)
{
	if (!r->is_void)
		return RESULT_OK;
	nixl_warn("agent %s: a transfer with agent %s uses memory that was deregistered "
		  "after it was prepared",
		r->engine->name, r->agent ? r->agent->name : r->engine->name);
	return RESULT_INVALID;
}

/* A transfer within the agent. */
static int copy(struct request *r, const void *note, size_t note_bytes)
{
	int result = RESULT_OK;

	if (check_memory(r) != RESULT_OK)
		return RESULT_INVALID;
	for (size_t i = 0; i < r->count; i++) {
		const struct span *s = &r->spans[i];
		void *local = (void *)s->local_address,
		     *remote = (void *)s->remote_address;

		memmove(r->write ? remote : local, r->write ? local : remote, s->bytes);
	}
	if (!note)
		return RESULT_OK;
	if (!engine_lock(r->engine))
		return RESULT_BACKEND;
	result = notes_deliver(r->engine, note, note_bytes);
	tern_shared_unlock(r->engine->shared);
	return result;
}

/* The context is locked. Returns RESULT_OK if the request can be posted. */
static int may_post(struct request *r)
{
	struct agent *a = r->agent;

	if (!atomic_load(&r->over))
		return RESULT_ACTIVE;
	if (check_memory(r) != RESULT_OK)
		return RESULT_INVALID;
	if (a->forgotten) {
		nixl_warn("agent %s: a transfer with agent %s was prepared before that "
			  "agent was disconnected: prepare it again",
			r->engine->name, a->name);
		return RESULT_NOT_FOUND;
	}
	if (a->down)
		return RESULT_DISCONNECTED;
	for (size_t i = 0; i < r->group_count; i++) {
		int result = target_open(r->groups[i].target);

		if (result != RESULT_OK)
			return result;
	}
	return RESULT_OK;
}

static int result_of(const struct request *r)
{
	if (r->status == 0)
		return RESULT_OK;
	return agent_result(r->agent, r->write ? "a write to" : "a read from", r->status);
}

int request_post(struct request *r, const void *note, size_t note_bytes)
{
	struct engine *e = r->engine;
	int result, status = 0;

	if (!r->agent) {
		r->posted = true;
		return copy(r, note, note_bytes);
	}
	if (!engine_lock(e))
		return RESULT_BACKEND;
	result = may_post(r);
	if (result == RESULT_OK && note)
		status = note_write(&r->note, e, note, note_bytes);
	if (status < 0)
		result = status == -EMSGSIZE ? RESULT_INVALID : RESULT_BACKEND;
	if (result == RESULT_OK) {
		r->posted = true;
		r->noted = note;
		r->cancelled = false;
		r->status = 0;
		r->left = 0;
		atomic_store(&r->over, false);
		move(r);
	}
	tern_shared_unlock(e->shared);
	return result == RESULT_OK ? request_check(r) : result;
}

static bool is_over(const struct request *r)
{
	/* Acquire: the status is read after it (end()). */
	return atomic_load_explicit(&r->over, memory_order_acquire);
}

int request_check(struct request *r)
{
	int result, events = 1;

	if (!r->posted)
		return RESULT_NOT_POSTED;
	for (unsigned i = 0; i < ROUNDS_MAX && events > 0 && !is_over(r); i++)
		events = engine_progress(r->engine);
	if (events < 0)
		return RESULT_BACKEND;
	if (!is_over(r))
		return RESULT_IN_PROGRESS;
	if (r->status == 0)
		return RESULT_OK;
	if (!engine_lock(r->engine))
		return RESULT_BACKEND;
	result = result_of(r);
	tern_shared_unlock(r->engine->shared);
	return result;
}

int request_release(struct request *r)
{
	struct engine *e = r->engine;
	bool again, over;

	if (!engine_lock(e))
		return RESULT_BACKEND;
	again = r->cancelled;
	if (!atomic_load(&r->over) && !again) {
		cancel(r);
		tern_shared_unlock(e->shared); /* a round of progress */
		if (!engine_lock(e))
			return RESULT_BACKEND;
	}
	over = atomic_load(&r->over);
	if (over)
		request_free(r);
	else if (again)
		r->abandoned = true;
	tern_shared_unlock(e->shared);
	return over || again ? RESULT_OK : RESULT_ACTIVE;
}

bool requests_are_moving(const struct agent *a)
{
	for (const struct request *r = a->engine->requests; r; r = r->next)
		if (r->agent == a && r->state != IDLE)
			return true;
	return false;
}

/* A request within the agent that is void already may name memory that was freed. */
static bool uses(const struct request *r, const struct tern_mem *mem)
{
	for (size_t i = 0; i < r->count; i++)
		if (r->agent ? r->pieces[i].local.mem == mem
			     : !r->is_void && r->spans[i].local->mem == mem)
			return true;
	return false;
}

/* Ends what uses the memory. Returns true if something has not ended yet. */
static bool leave(struct engine *e, const struct tern_mem *mem, bool cut)
{
	bool moving = false;

	for (struct request *r = e->requests; r; r = r->next) {
		if (!uses(r, mem))
			continue;
		r->is_void = true;
		if (r->state != MOVING)
			continue;
		if (!r->cancelled)
			cancel(r);
		if (cut)
			agent_cut(r->agent);
		moving = true;
	}
	return moving;
}

void requests_leave(struct engine *e, const struct tern_mem *mem)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t limit_ns = engine_now_ns() + LEAVE_NS;
	bool moving = true;

	while (moving) {
		if (!engine_lock(e))
			return;
		moving = leave(e, mem, engine_now_ns() >= limit_ns);
		tern_shared_unlock(e->shared); /* a round of progress */
		if (moving)
			nanosleep(&pause, NULL);
	}
}

void requests_free(struct engine *e)
{
	while (e->requests)
		request_free(e->requests);
}
