/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers to guests that ask what the job does (`tern status`). The question changes nothing
 * in the job: it reads what other files keep.
 *
 * Bounds: an answer describes at most PAGE workers, and names the first one of the next page.
 * A server gives QUESTIONS_BURST answers in a row, and then one every QUESTION_NS; a guest that
 * asks when none is left is told "again". A connection gets one answer, and ends at most 35 s
 * after its first question (guests.c). So at most 382 answers wait for guests that do not read,
 * and they take at most some 90 MB.
 *
 * Steps per second need a look at the past: the tick of late.c, at most one a second, calls
 * status_mark(). Nothing is counted on the data path.
 *
 * What must outlive a server whose job goes back is in the caller's struct
 * tern_server_history: the next server in its place goes on with it.
 */
#include "server/follow.h"
#include "server/membership.h"
#include "server/snapshot_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"

#define PAGE            512u
#define QUESTION_NS     (100 * TERN_NS_PER_MS)
#define QUESTIONS_BURST 32u
#define MARK_NS         (500 * TERN_NS_PER_MS)

/* ---- history ---- */

void status_init(struct tern_server *s)
{
	struct tern_server_history *h =
		s->opts.history ? s->opts.history : &s->own_history;
	uint64_t now_ns = tern_now_ns(s->env);

	s->history = h;
	if (h->begun_ns)
		return;
	h->begun_ns = now_ns;
	h->incarnation = (tern_random(s->env) >> 4) + 1;
	h->back_count = s->opts.returns;
	h->back_since_ns = s->opts.returns ? now_ns : 0;
}

void status_steps_begin(struct tern_server *s)
{
	struct tern_server_history *h = s->history;
	uint64_t now_ns = tern_now_ns(s->env);

	if (h->back_since_ns)
		h->back_ns = now_ns - h->back_since_ns;
	h->back_since_ns = 0;
	if (!h->snapshot_tried_ns)
		h->snapshot_tried_ns = now_ns;
	s->marks = (struct status_marks){.moved_ns = now_ns};
	status_mark(s);
}

void status_goes_back(struct tern_server *s)
{
	struct tern_server_history *h = s->history;

	if (h->back_since_ns)
		return;
	h->back_since_ns = tern_now_ns(s->env);
	h->back_count++;
}

void status_snapshot_ended(
	struct tern_server *s, const struct tern_server_snapshot *snapshot)
{
	struct tern_server_history *h = s->history;

	h->snapshot_tried_ns = tern_now_ns(s->env);
	if (!snapshot->path) {
		h->failed_count++;
		snprintf(h->failed_why, sizeof(h->failed_why), "%s", snapshot->why);
		return;
	}
	h->snapshot = *snapshot;
	h->snapshot.path = NULL;
	h->snapshot_ended_ns = h->snapshot_tried_ns;
	h->failed_count = 0;
	snprintf(h->snapshot_path, sizeof(h->snapshot_path), "%s", snapshot->path);
}

/* ---- speed ---- */

static uint64_t step_of(const struct tern_server *s)
{
	struct tern_server_stats stats;

	tern_server_stats(s, &stats);
	return stats.steps;
}

void status_mark(struct tern_server *s)
{
	struct status_marks *m = &s->marks;
	uint64_t now_ns = tern_now_ns(s->env);
	const struct status_mark *last = &m->ring[(m->count - 1) % STATUS_MARKS];
	uint64_t step = step_of(s);

	if (m->count && step > m->step)
		m->step_s =
			(double)(now_ns - m->step_ns) / 1e9 / (double)(step - m->step);
	if (!m->count || step > m->step) {
		m->step = step;
		m->step_ns = now_ns;
	}
	if (s->stats.gradients_added != m->gradients) {
		m->gradients = s->stats.gradients_added;
		m->moved_ns = now_ns;
	}
	if (m->count && now_ns - last->ns < MARK_NS)
		return;
	m->ring[m->count++ % STATUS_MARKS] = (struct status_mark){now_ns, step};
}

/* Steps per second since the oldest mark; NAN: not known yet. */
static double rate_of(const struct tern_server *s, uint64_t step)
{
	const struct status_marks *m = &s->marks;
	const struct status_mark *oldest =
		&m->ring[m->count < STATUS_MARKS ? 0 : m->count % STATUS_MARKS];
	uint64_t now_ns = tern_now_ns(s->env);

	if (m->count == 0 || now_ns - oldest->ns < MARK_NS)
		return (double)NAN;
	return (double)(step - oldest->step) * 1e9 / (double)(now_ns - oldest->ns);
}

/* ---- what an answer has ---- */

static json_t *integer(uint64_t value)
{
	return json_integer((json_int_t)value);
}

static void set(json_t *object, const char *name, json_t *value)
{
	json_object_set_new(object, name, value);
}

static void set_text(json_t *object, const char *name, const char *text)
{
	set(object, name, tern_talk_text(text));
}

/* Sets a number that may be unknown. JSON has no NaN. */
static void set_known(json_t *object, const char *name, double value)
{
	if (isfinite(value))
		set(object, name, json_real(value));
}

static double seconds_since(const struct tern_server *s, uint64_t ns)
{
	return (double)(tern_now_ns(s->env) - ns) / 1e9;
}

static const char *state_of(const struct tern_server *s)
{
	if (s->running && (s->bye_count || s->held))
		return "finishes";
	if (s->running)
		return given_is_awaited(s) ? "starts" : "steps";
	if (s->opts.returns)
		return "back";
	return s->has_job ? "starts" : "no_job";
}

static json_t *job_of(const struct tern_server *s)
{
	const struct tern_ps_job *job = &s->job;
	json_t *object = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s}", "mode",
		tern_mode_text(job->mode, job->ssp).text, "steps", (json_int_t)job->steps,
		"workers", (json_int_t)job->workers, "servers",
		(json_int_t)job->server_count, "tensors", (json_int_t)job->param_count,
		"elements", (json_int_t)job->element_count, "optimizer",
		tern_optimizer_name(job->optimizer.kind));

	if (job->mode == TERN_MODE_SYNC)
		set(object, "slots", integer(job->slots));
	if (job->records)
		set(object, "batch", integer(job->batch));
	if (s->first_version)
		set(object, "first_step", integer(s->first_version));
	return object;
}

/* Names who is waited for; "": nobody. */
static void name_awaited(struct tern_server *s, char *names, size_t bytes)
{
	*names = '\0';
	if (!s->has_job)
		snprintf(names, bytes, "a worker");
	else if (!s->running)
		start_name_missing(s, names, bytes);
	else
		late_name_owing(s, names, bytes);
}

static void set_progress(struct tern_server *s, json_t *object)
{
	uint64_t step = step_of(s);
	double rate = rate_of(s, step);
	bool sync = s->job.mode == TERN_MODE_SYNC;

	if (!s->running || !s->chunk_count)
		return;
	status_mark(s);
	set(object, "step", integer(step));
	set_known(object, "steps_per_s", rate);
	if (s->job.records)
		set_known(object, "samples_per_s",
			rate * s->job.batch * (sync ? s->job.slots : 1));
	set_known(object, "quiet_s", seconds_since(s, s->marks.moved_ns));
	if (s->marks.step_s > 0)
		set_known(object, "step_s", s->marks.step_s);
	if (s->index == 0) {
		set_known(object, "loss", progress_loss(s));
		set_known(object, "lr", progress_lr(s, step));
		set(object, "metrics", tern_metrics_json(&s->metrics));
	}
	if (!sync && s->stats.gradients_added)
		set(object, "staleness",
			json_pack("{s:f, s:I}", "mean",
				(double)s->stats.staleness_sum /
					(double)s->stats.gradients_added,
				"max", (json_int_t)s->stats.staleness_max));
}

static json_t *snapshot_of(const struct tern_server *s)
{
	const struct tern_server_history *h = s->history;
	const struct snapshots *n = s->snapshots;
	json_t *object = json_pack("{s:I}", "failures", (json_int_t)h->failed_count);

	if (h->failed_count)
		set_text(object, "why", h->failed_why);
	if (n && (n->taking || n->state != SNAPSHOTS_IDLE))
		set(object, "taking", integer(n->id.step));
	if (!h->snapshot_ended_ns)
		return object;
	set(object, "step", integer(h->snapshot.step));
	set(object, "bytes", integer(h->snapshot.bytes));
	set(object, "seconds", json_real((double)h->snapshot.ns / 1e9));
	set(object, "age_s", json_real(seconds_since(s, h->snapshot_ended_ns)));
	set_text(object, "path", h->snapshot_path);
	return object;
}

static json_t *recoveries_of(const struct tern_server *s)
{
	const struct tern_server_history *h = s->history;
	json_t *object = json_pack("{s:I, s:I, s:I}", "workers_lost",
		(json_int_t)h->lost_count, "workers_came", (json_int_t)h->came_count,
		"back", (json_int_t)h->back_count);

	if (h->back_since_ns)
		set(object, "back_for_s", json_real(seconds_since(s, h->back_since_ns)));
	if (h->back_ns)
		set(object, "last_back_s", json_real((double)h->back_ns / 1e9));
	return object;
}

/* ---- the processes ---- */

static const char *worker_state(const struct tern_server *s, const struct server_peer *w)
{
	if (!w)
		return "missing";
	if (w->absent)
		return "absent";
	if (w->lost)
		return "lost";
	if (w->said_bye)
		return "finished";
	if (w->leaving)
		return "leaves";
	if (w->unlinked || (w->gone && s->running))
		return "silent";
	return "joined";
}

/* Steps of an async worker that every chunk of this server has applied. */
static uint64_t async_steps_of(const struct tern_server *s, uint32_t worker)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		least = TERN_MIN(least, async_steps_begun(&s->chunks[i], worker));
	return least;
}

static void set_work(const struct tern_server *s, const struct server_peer *w,
	uint32_t slot_count, json_t *one)
{
	char what[64];

	if (s->job.mode == TERN_MODE_SYNC)
		set(one, "slots", integer(slot_count));
	else if (s->chunk_count)
		set(one, "step", integer(async_steps_of(s, w->index)));
	if (w->loss_weight > 0)
		set_known(one, "loss", w->loss);
	if (!late_describe_owed(w, what, sizeof(what)))
		return;
	set_text(one, "owes", what);
	set(one, "silent_s", json_real((double)w->silent_ns / 1e9));
}

static json_t *worker_of(const struct tern_server *s, uint32_t index, uint32_t slot_count)
{
	const struct server_peer *w = s->workers[index];
	json_t *one = json_pack(
		"{s:I, s:s}", "worker", (json_int_t)index, "state", worker_state(s, w));
	char text[140];

	/* A worker that was cut off has no connection any more. */
	if (w && !w->freed) {
		snprintf(text, sizeof(text), "%.120s", tern_peer_name(w->peer));
		set_text(one, "name", text);
		snprintf(text, sizeof(text), "%s", tern_peer_address(w->peer));
		set_text(one, "address", text);
	}
	if (w && s->running && lease_is_live(w))
		set_work(s, w, slot_count, one);
	return one;
}

/* How many slots each worker from `from` on has. NULL: no memory. */
static uint32_t *count_slots(const struct tern_server *s, uint32_t from)
{
	uint32_t *counts = calloc(PAGE, sizeof(*counts));

	for (uint32_t i = 0; counts && s->running && s->leases && i < s->job.slots; i++) {
		uint32_t owner = s->leases[i].owner->index;

		if (owner >= from && owner - from < PAGE)
			counts[owner - from]++;
	}
	return counts;
}

static void set_workers(const struct tern_server *s, json_t *object, uint32_t from)
{
	uint32_t *counts = count_slots(s, from), end = from + PAGE;
	json_t *workers = json_array();

	for (uint32_t i = from; counts && i < TERN_MIN(end, s->job.workers); i++)
		json_array_append_new(workers, worker_of(s, i, counts[i - from]));
	free(counts);
	set(object, "workers", workers);
	if (end < s->job.workers)
		set(object, "next", integer(end));
}

static const char *server_state(
	const struct tern_server *s, uint32_t index, const struct server_peer *p)
{
	if (index == s->index)
		return "joined";
	if (!p)
		return s->running ? "lost" : "missing";
	return p->unlinked ? "silent" : "joined";
}

/* Server 0: all servers of the job. Another one knows of server 0 only. */
static json_t *servers_of(const struct tern_server *s)
{
	json_t *servers = json_array();

	for (uint32_t i = 0; i < s->job.server_count; i++) {
		const struct server_peer *p = s->index == 0 ? others_find(s, i)
					      : i == 0 && s->to_zero && !s->to_zero->gone
						      ? s->to_zero
						      : NULL;
		json_t *one;

		if (s->index != 0 && i != 0 && i != s->index)
			continue;
		one = json_pack("{s:I, s:s}", "server", (json_int_t)view_number(s, i),
			"state", server_state(s, i, p));
		if (start_find_present(s))
			set_text(one, "address", members_address_of(s, i));
		json_array_append_new(servers, one);
	}
	return servers;
}

/* ---- the answer ---- */

static void set_job(struct tern_server *s, json_t *object, uint32_t from)
{
	char names[300];

	set(object, "job", job_of(s));
	set(object, "joined", integer(s->joined_count));
	set(object, "lost", integer(s->lost_count));
	if (s->history->moved_count)
		set(object, "slots_moved", integer(s->history->moved_count));
	set_progress(s, object);
	name_awaited(s, names, sizeof(names));
	if (*names)
		set_text(object, "waits_for", names);
	set_workers(s, object, from);
	set(object, "servers", servers_of(s));
	follow_write_status(s, object);
}

json_t *status_answer(struct tern_server *s, uint32_t from)
{
	char address[TERN_ADDRESS_BYTES] = "";
	json_t *object = json_pack("{s:s, s:I, s:s, s:f}", "type", "status", "server",
		(json_int_t)view_own_number(s), "state", state_of(s), "uptime_s",
		seconds_since(s, s->history->begun_ns));

	if (members_write_own(s, address, sizeof(address)) == 0)
		set_text(object, "address", address);
	if (s->has_job)
		set_job(s, object, from);
	else
		set_text(object, "waits_for", "a worker");
	if (snapshots_are_taken(s))
		set(object, "snapshot", snapshot_of(s));
	set(object, "recoveries", recoveries_of(s));
	return object;
}

/* True if a question may be answered now. The time `questions_ns` is when the server has made
 * up for the answers that it gave. */
static bool may_answer(struct tern_server *s)
{
	uint64_t now_ns = tern_now_ns(s->env);

	if (s->questions_ns > now_ns + (QUESTIONS_BURST - 1) * QUESTION_NS)
		return false;
	s->questions_ns = TERN_MAX(s->questions_ns, now_ns) + QUESTION_NS;
	return true;
}

void status_on_status(struct server_peer *p, const json_t *message)
{
	const json_t *from = json_object_get(message, "from");
	json_int_t first = json_integer_value(from);

	if (from && (!json_is_integer(from) || first < 0 || first >= TERN_WORKERS_MAX)) {
		server_refuse(p,
			"its message \"status\" is wrong: expected no \"from\", or a "
			"worker from 0 to %u",
			TERN_WORKERS_MAX - 1);
	} else if (p->has_status) {
		server_refuse(p,
			"it has had an answer to \"status\": expected one question for "
			"each connection");
	} else if (p->asks_again) {
		server_refuse(p,
			"it has repeated \"status\": expected it after \"again\" only");
	} else if (may_answer(p->server)) {
		guests_asked(p);
		p->has_status = true;
		tern_talk_say(&p->talk, status_answer(p->server, (uint32_t)first));
	} else {
		guests_asked(p);
		guests_ask_later(p);
	}
}
