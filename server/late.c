/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that make no progress.
 *
 * A worker owes the gradient of one of its slots if the oldest step that is gathered here
 * lacks it, and all chunks here receive that slot (sync.c). Others wait for the owing
 * worker if a live worker owes nothing, or if workers were lost before. From then on, the
 * time counts in which this server receives nothing from the owing worker and nothing
 * reaches that worker. When the time reaches the deadline, the worker has stalled. Unless
 * opts.on_stall says otherwise, it is lost then like one that died (lease.c): its slots go to
 * others, and its connection is cut, so that nothing more is received from it.
 *
 * The deadline is `worker_timeout_ns`, or ten times the median time of a slot if that is
 * longer. Before the first slot is complete the time of a slot is unknown, and there is
 * no deadline; for the exceptions see deadline_ns().
 *
 * A connection that answers does not count as progress, since the worker may hang. But a
 * worker may be silent because it waits for another server. So this server asks it
 * ("late"), and the worker answers "busy" if it waits for another server, is saving, or
 * has computed something since this server last received something from it. This answer
 * counts as progress.
 *
 * Time is counted in ticks, and a late tick counts as one: a server that was stopped, or
 * had no processor, does not count that time.
 *
 * A version that is made may wait for the server's follower (follow.c). Meanwhile no worker's
 * time counts, since each may wait for that version; follow.c limits the time of the follower.
 *
 * Before the steps a worker owes the initial values that it gives (given.c). To send them
 * takes no computation, so `worker_timeout_ns` counts from the start.
 *
 * In async mode no worker waits for another before the end, but with ssp: there a worker
 * owes as long as it has steps left and its copies are not held (async.c), and workers
 * that owe nothing wait for it. In both modes, when all slots are done, every process
 * waits for the worker that finishes the job, and then the servers wait for the goodbye
 * of each worker.
 */
#include "server/follow.h"
#include "server/membership.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define TIMEOUT_NS  (30 * TERN_NS_PER_S)
#define TICK_MAX_NS TERN_NS_PER_S
/* Time without a step after which a note is logged. */
#define QUIET_NS (10 * TERN_NS_PER_S)
/* The deadline is at least this many times the median time of a slot. */
#define MEDIANS 10u
/* In place of a step that is owed: initial values (given.c). */
#define INITIAL (UINT64_MAX - 1)

/* ---- what happens ---- */

void late_progress(struct server_peer *worker)
{
	worker->silent_ns = worker->late_ns = 0;
	worker->waits_for_server = 0;
	worker->stalled = false;
}

/* The built-in engines finish the gradient of a slot from the last layer to the first. So
 * the part for this server's first chunk is usually sent last and ends the slot, and only
 * this chunk is timed. */
void late_slot_begins(struct chunk *c, struct server_peer *worker)
{
	late_progress(worker);
	if (c == c->server->chunks)
		worker->slot_since_ns = tern_now_ns(c->server->env);
}

void late_slot_ended(struct chunk *c, struct server_peer *worker)
{
	struct tern_server *s = c->server;
	uint64_t now_ns;

	late_progress(worker);
	worker->is_new = false;
	if (c != s->chunks)
		return;
	now_ns = tern_now_ns(s->env);
	s->slot_ns[s->slot_count++ % LATE_SLOTS] = now_ns - worker->slot_since_ns;
	worker->slot_since_ns = now_ns;
}

static bool all_computed(const struct tern_server *s)
{
	return s->job.mode == TERN_MODE_ASYNC ? s->all_done : sync_is_done(s);
}

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Time without progress, while others wait, after which a worker is lost. UINT64_MAX: no
 * limit yet. */
static uint64_t deadline_ns(const struct tern_server *s)
{
	uint64_t sorted[LATE_SLOTS];
	size_t n = TERN_MIN(s->slot_count, (uint64_t)LATE_SLOTS);

	if (n == 0 && (s->bye_count || all_computed(s) || given_is_awaited(s)))
		return s->opts.worker_timeout_ns;
	/* No slot is complete, so nobody knows how long one takes. But after a loss, a
	 * worker that hangs in its first slot may be the only one left, and the job has
	 * to end. */
	if (n == 0)
		return s->lost_count ? MEDIANS * s->opts.worker_timeout_ns : UINT64_MAX;
	memcpy(sorted, s->slot_ns, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare);
	return TERN_MAX(s->opts.worker_timeout_ns, MEDIANS * sorted[n / 2]);
}

/* ---- who owes what ---- */

static void owe(struct server_peer *worker, uint64_t step, uint32_t slot)
{
	if (!worker || worker->owes || !lease_is_live(worker))
		return;
	worker->owes = true;
	worker->owed_step = step;
	worker->owed_slot = slot;
}

static bool gathers(const struct chunk *c, uint64_t version)
{
	return c->state == CHUNK_GATHERING && c->version == version;
}

/* Number of slots, counted from slot 0, whose gradients all chunks of this server accept
 * (sync.c). A worker is not late with the gradient of a later slot: it may be unable to
 * send it, because a chunk that waits for another worker does not accept it yet. */
static uint32_t turns_end(const struct tern_server *s, uint64_t version)
{
	uint32_t folded = s->job.slots;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (gathers(&s->chunks[i], version))
			folded = TERN_MIN(folded, s->chunks[i].folded);
	return TERN_MIN(folded + s->window, s->job.slots);
}

static void find_owing_sync(struct tern_server *s)
{
	uint64_t oldest = UINT64_MAX;
	uint32_t end;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].state == CHUNK_GATHERING)
			oldest = TERN_MIN(oldest, s->chunks[i].version);
	end = turns_end(s, oldest);
	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint32_t k = 0; gathers(&s->chunks[i], oldest) && k < end; k++)
			if (!s->chunks[i].gradients[k].arrived)
				owe(s->leases[k].owner, oldest, k);
}

static void find_owing_async(struct tern_server *s)
{
	for (uint32_t k = 0; k < s->job.workers; k++) {
		uint64_t last = tern_ps_job_steps_of(&s->job, k);
		uint64_t held_at = async_held_at(s, k);

		/* A worker whose copy is held may still owe another chunk its last step. */
		for (uint32_t i = 0; i < s->chunk_count; i++)
			if (s->chunks[i].streams[k].step < TERN_MIN(last, held_at))
				owe(s->workers[k], s->chunks[i].streams[k].step, k);
		if (s->index == 0 && !s->workers[k]->done && held_at == UINT64_MAX)
			owe(s->workers[k], last, k);
	}
}

/* Marks the workers that owe something (`owes`). True if a worker, or in the end this
 * server, waits for them. In sync mode also true after a worker was lost or has left:
 * then there may be no worker that could wait, and a job whose last worker hangs has to
 * end. (In async mode a worker owes until its last step, so perhaps none waits: see
 * is_stuck().) */
static bool find_owing(struct tern_server *s)
{
	unsigned waiting = 0;

	for (uint32_t i = 0; i < s->job.workers; i++)
		s->workers[i]->owes = false;
	if (s->bye_count > 0) {
		for (uint32_t i = 0; i < s->job.workers; i++)
			owe(s->workers[i], UINT64_MAX, 0);
		return true;
	}
	if (given_is_awaited(s))
		owe(given_owing(s), INITIAL, 0);
	else if (s->job.mode == TERN_MODE_SYNC)
		find_owing_sync(s);
	else
		find_owing_async(s);
	if (s->index == 0 && all_computed(s) && !given_is_awaited(s))
		owe(s->workers[lease_finisher(s)], UINT64_MAX, 0);
	for (uint32_t i = 0; i < s->job.workers; i++)
		waiting += lease_is_live(s->workers[i]) && !s->workers[i]->owes;
	return waiting > 0 || (s->job.mode == TERN_MODE_SYNC && s->lost_count > 0);
}

/* async: True if no gradient was added for limit_ns after a worker was lost: there may be
 * no worker left that could wait for the others. */
static bool is_stuck(const struct tern_server *s, uint64_t limit_ns)
{
	return s->job.mode == TERN_MODE_ASYNC && s->lost_count > 0 &&
	       s->quiet_ns >= limit_ns;
}

static void describe(const struct server_peer *w, char *text, size_t bytes)
{
	if (w->owed_step == INITIAL)
		snprintf(text, bytes, "the initial values that it gives");
	else if (w->owed_step == UINT64_MAX)
		snprintf(text, bytes, "%s",
			w->server->bye_count ? "its goodbye" : "the end of the job");
	else if (w->server->job.mode == TERN_MODE_ASYNC)
		snprintf(text, bytes, "its step %llu",
			(unsigned long long)w->owed_step + 1);
	else
		snprintf(text, bytes, "slot %u of step %llu", w->owed_slot,
			(unsigned long long)w->owed_step + 1);
}

/* ---- the ticks ---- */

/* Asks the worker whether it is busy (message "late"), if it has been silent for 4 ticks
 * or more (half of worker_timeout_ns, or 4 s if that is less). Asks every second tick, so
 * that an answer arrives before the next question. */
static void ask(struct server_peer *w)
{
	const struct tern_server *s = w->server;

	if (!w->gone && w->silent_ns >= 4 * s->tick_ns && s->tick_count % 2 == 0)
		tern_talk_say(&w->talk, json_pack("{s:s, s:I}", "type", "late",
						"silent_ns", (json_int_t)w->silent_ns));
}

static void write_why(
	const struct server_peer *w, uint64_t limit_ns, char *text, size_t bytes)
{
	bool finishes = w->owed_step == UINT64_MAX && !w->server->bye_count;
	char what[64];

	describe(w, what, sizeof(what));
	snprintf(text, bytes,
		"%s has made no progress for %.1f s%s, and others wait for %s%s",
		tern_peer_name(w->peer), (double)limit_ns / 1e9,
		limit_ns == w->server->opts.worker_timeout_ns ? " (--worker-timeout)"
							      : "",
		what,
		finishes ? ": a program that evaluates or saves for longer must call "
			   "goes_on() every few seconds"
			 : "");
}

/* opts.on_stall: the job waits for this worker, however long it takes. */
static void wait_for(struct server_peer *w, const char *why)
{
	if (!w->stalled)
		server_warn(w->server, "%s: the job waits (--on-stall wait)", why);
	w->stalled = true;
	ask(w);
}

static void stall(struct server_peer *w, uint64_t limit_ns)
{
	struct tern_server *s = w->server;
	char why[400];

	write_why(w, limit_ns, why, sizeof(why));
	/* After the first goodbye the results are safe, and nobody else computes anything. */
	if (s->opts.on_stall == TERN_STALL_REASSIGN || s->bye_count > 0)
		lease_lost(w, false, "%s", why);
	else if (s->opts.on_stall == TERN_STALL_END)
		server_fail(s, -ETIMEDOUT, "%s: the job ends (--on-stall end)", why);
	else
		wait_for(w, why);
}

static void count(struct tern_server *s, uint64_t passed_ns)
{
	bool waiting = find_owing(s), is_held = follow_is_awaited(s);
	uint64_t all_ns = deadline_ns(s), limit_ns;

	for (uint32_t i = 0; i < s->job.workers && !s->over; i++) {
		struct server_peer *w = s->workers[i];

		/* While a version waits for the follower, workers may wait for that version. */
		if (!w->owes || is_held) {
			late_progress(w);
			continue;
		}
		w->silent_ns += passed_ns;
		/* Once late_ns is above 0, it grows also while no process waits: the
		 * worker that waited for w may have left. */
		w->late_ns += waiting || w->late_ns ? passed_ns : 0;
		/* Nobody knows how long the first slot of a new process takes. */
		limit_ns = w->is_new
				   ? TERN_MAX(all_ns, MEDIANS * s->opts.worker_timeout_ns)
				   : all_ns;
		if (w->late_ns >= limit_ns ||
			(w->silent_ns >= limit_ns && is_stuck(s, limit_ns)))
			stall(w, limit_ns);
		else
			ask(w);
	}
}

/* Writes the names of the workers that owe something and do not wait for a server; if
 * there are none, the server that an owing worker waits for. Returns the number of bytes;
 * 0: no worker owes anything. */
static size_t name_owing(const struct tern_server *s, char *names, size_t bytes)
{
	char what[64];
	size_t n = 0;

	for (uint32_t i = 0; i < s->job.workers && n < bytes; i++) {
		const struct server_peer *w = s->workers[i];

		if (!w->owes || w->waits_for_server)
			continue;
		describe(w, what, sizeof(what));
		n += (size_t)snprintf(names + n, bytes - n, "%s%.100s for %s",
			n ? ", " : "", tern_peer_name(w->peer), what);
	}
	for (uint32_t i = 0; n == 0 && i < s->job.workers; i++)
		if (s->workers[i]->owes)
			n = (size_t)snprintf(names, bytes, "server %u",
				view_number(s, s->workers[i]->waits_for_server - 1));
	return n;
}

size_t late_name_owing(struct tern_server *s, char *names, size_t bytes)
{
	size_t n = follow_name_owing(s, names, bytes);

	find_owing(s);
	return n ? n : name_owing(s, names, bytes);
}

bool late_describe_owed(const struct server_peer *worker, char *text, size_t bytes)
{
	if (worker->owes)
		describe(worker, text, bytes);
	return worker->owes;
}

/* Says for what the server waits if no worker owes it anything. */
static const char *unowed(const struct tern_server *s)
{
	if (given_is_awaited(s) && s->given.state == GIVEN_UNASKED)
		return "a worker to give the initial values";
	if (given_is_awaited(s) && s->given.state == GIVEN_HERE)
		return "other servers to have the initial values";
	if (s->running && s->chunk_count == 0)
		return "the end of the job: the model is small, and no part of it is "
		       "here";
	return "its own computation";
}

void tern_server_describe(struct tern_server *s, char *text, size_t bytes)
{
	struct tern_server_stats stats;
	char names[300];

	snprintf(names, sizeof(names), "%s", unowed(s));
	if (!s->has_job) {
		snprintf(text, bytes, "no job yet, this server waits for a worker");
		return;
	}
	if (!s->running) {
		start_name_missing(s, names, sizeof(names));
		snprintf(text, bytes,
			"%u of %u workers are here, this server waits for %s",
			s->joined_count, s->job.workers, names);
		return;
	}
	if (s->over) {
		snprintf(text, bytes,
			"the job has ended, this server waits for its peers to close");
		return;
	}
	tern_server_stats(s, &stats);
	late_name_owing(s, names, sizeof(names));
	snprintf(text, bytes, "step %llu of %llu, this server waits for %s",
		(unsigned long long)stats.steps, (unsigned long long)s->job.steps, names);
}

/* Logs which processes this server waits for, once in each standstill. */
static void note_quiet(struct tern_server *s, uint64_t passed_ns)
{
	char names[300] = "";

	if (s->quiet_gradients != s->stats.gradients_added) {
		s->quiet_gradients = s->stats.gradients_added;
		s->quiet_ns = 0;
	}
	s->quiet_ns += passed_ns;
	if (s->quiet_ns < QUIET_NS || s->quiet_ns - passed_ns >= QUIET_NS)
		return;
	if (late_name_owing(s, names, sizeof(names)))
		server_note(s, "no step for %.0f s, waiting for %s",
			(double)QUIET_NS / 1e9, names);
}

static void set_tick(struct tern_server *s)
{
	tern_timer_set(s->opts.ctx, &s->late_timer, s->ticked_ns + s->tick_ns);
}

static void tick(struct tern_timer *timer)
{
	struct tern_server *s = tern_container_of(timer, struct tern_server, late_timer);

	if (s->over || s->opts.ctx->ending)
		return;
	s->ticked_ns = tern_now_ns(s->env);
	s->tick_count++;
	status_mark(s);
	count(s, s->tick_ns);
	if (s->over)
		return;
	note_quiet(s, s->tick_ns);
	set_tick(s);
}

void late_start(struct tern_server *s)
{
	if (!s->opts.worker_timeout_ns)
		s->opts.worker_timeout_ns = TIMEOUT_NS;
	s->tick_ns = TERN_MAX(
		TERN_MIN(s->opts.worker_timeout_ns / 8, TICK_MAX_NS), TERN_NS_PER_MS);
	s->ticked_ns = tern_now_ns(s->env);
	s->late_timer.fire = tick;
	for (uint32_t i = 0; i < s->job.workers; i++)
		s->workers[i]->slot_since_ns = s->ticked_ns;
	set_tick(s);
}

/* Handles the answer to ask(). */
void late_on_busy(struct server_peer *worker, const json_t *message)
{
	const json_t *server = json_object_get(message, "server");
	json_int_t i = json_integer_value(server);

	/* Nobody has to be waited for to give initial values: not even by a worker that
	 * waits for another server's version 0. */
	if (!worker->owes || worker->owed_step != INITIAL)
		late_progress(worker);
	worker->waits_for_server =
		json_is_integer(server) && i >= 0 && i < worker->server->job.server_count
			? (uint32_t)i + 1
			: 0;
}
