/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server 0 decides which steps are saved, tells the other servers, and hears from them when
 * their parts are written. snapshots_publish.c goes on from there.
 *
 * A step is named that is `margin` ahead. No server is more than one step ahead of another,
 * since a gradient is computed from the parameters of all servers; but another server may pass
 * more steps while the message is on its way. Then the snapshot is given up, and the margin
 * grows.
 *
 * When the last step is done, it is saved, too. The servers end after that.
 *
 * In async mode the servers first agree which steps of each worker a snapshot has (cut.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/blobs.h"
#include "server/membership.h"
#include "server/store.h"

#define MARGIN_FIRST 2u
#define MARGIN_MOST  4096u
#define EVERY_NS     (600 * TERN_NS_PER_S)
#define SLOW_NS      (60 * TERN_NS_PER_S)

static bool is_by_steps(const struct tern_server *s)
{
	return s->opts.snapshots.every_steps > 0;
}

void snapshots_enter(struct snapshots *n, enum snapshots_state next)
{
	static const uint8_t edges[] = {
		[SNAPSHOTS_IDLE] = 1 << SNAPSHOTS_TAKING,
		[SNAPSHOTS_TAKING] = 1 << SNAPSHOTS_PUBLISHING | 1 << SNAPSHOTS_CLEANING,
		[SNAPSHOTS_PUBLISHING] = 1 << SNAPSHOTS_CLEANING,
		[SNAPSHOTS_CLEANING] = 1 << SNAPSHOTS_IDLE,
	};

	tern_assert(edges[n->state] >> next & 1);
	n->state = next;
}

void snapshots_tell(struct tern_server *s)
{
	const struct snapshots *n = s->snapshots;
	struct tern_server_snapshot result = {.step = n->id.step,
		.path = n->failed ? NULL : n->manifest_path,
		.why = n->failed ? n->why : NULL,
		.ns = tern_now_ns(s->env) - n->begun_ns};

	for (uint32_t i = 0; !n->failed && i < s->job.server_count; i++)
		result.bytes += n->parts[i].bytes;
	status_snapshot_ended(s, &result);
	if (s->opts.snapshot)
		s->opts.snapshot(s->opts.arg, &result);
}

static void next_due(struct tern_server *s);

void snapshots_cleaned(struct tern_server *s)
{
	snapshots_enter(s->snapshots, SNAPSHOTS_IDLE);
	tern_timer_clear(s->opts.ctx, &s->snapshots->slow_timer);
	back_maybe(s);
	if (s->over)
		return;
	next_due(s);
	server_maybe_end(s);
}

/* ---- taking ---- */

static void all_reported(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n->failed) {
		snapshots_publish(s);
		return;
	}
	if (n->late && n->margin < MARGIN_MOST) {
		n->margin *= 2;
		server_note(s,
			"no snapshot of step %llu: another server was further when it "
			"heard of it; the next one is announced %llu steps ahead",
			(unsigned long long)n->id.step, (unsigned long long)n->margin);
		n->asked = n->on_request || !is_by_steps(s);
	} else {
		snapshots_tell(s);
	}
	snapshots_clean(s);
}

bool snapshots_is_announced(const struct snapshots *n)
{
	return n->state == SNAPSHOTS_TAKING && n->cut.state != CUT_CLOSED;
}

static void part_ended(struct tern_server *s, uint32_t server)
{
	struct snapshots *n = s->snapshots;

	n->reported[server] = true;
	if (--n->missing_count == 0)
		all_reported(s);
}

static void fail_part(struct snapshots *n, const char *why, bool late)
{
	n->late = n->late || late;
	if (!n->failed)
		snprintf(n->why, sizeof(n->why), "%s", why);
	n->failed = true;
}

/* Async: a server has told how many steps of each worker all of its chunks have. */
static void take_least(struct tern_server *s, const uint64_t *least)
{
	struct cut *cut = &s->snapshots->cut;

	for (uint32_t i = 0; least && i < s->job.workers; i++)
		cut->least[i] = TERN_MIN(cut->least[i], least[i]);
}

void snapshots_report(struct tern_server *s, const struct snapshot_report *report)
{
	struct snapshots *n = s->snapshots;

	n->parts[0].bytes = report->bytes;
	n->parts[0].digest = report->digest;
	if (report->why)
		fail_part(n, report->why, report->late);
	take_least(s, report->least);
	part_ended(s, 0);
}

static bool read_report(const json_t *message, struct snapshot_report *report)
{
	json_int_t step = 0, number = 0, bytes = 0;
	const char *digest = NULL, *why = NULL;
	int late = 0;
	char end;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I, s:s, s:b, s?s}",
		    "step", &step, "number", &number, "bytes", &bytes, "digest", &digest,
		    "late", &late, "text", &why) < 0 ||
		step < 0 || number < 0 || number > UINT32_MAX || bytes < 0 ||
		(!why && bytes == 0))
		return false;
	*report = (struct snapshot_report){
		.id = {.step = (uint64_t)step, .number = (uint32_t)number},
		.bytes = (uint64_t)bytes,
		.late = late,
		.why = why};
	return sscanf(digest, "%16" SCNx64 "%c", &report->digest, &end) == 1;
}

/* Takes the list of another server. False: it is none. */
static bool take_list(struct tern_server *s, const json_t *list)
{
	uint64_t *least;
	bool good;

	if (s->job.mode == TERN_MODE_SYNC)
		return true;
	least = calloc(s->job.workers, sizeof(*least));
	if (!least) {
		server_fail(s, -ENOMEM, "no memory to read which steps were applied");
		return true;
	}
	good = cut_read(s, list, least);
	if (good)
		take_least(s, least);
	free(least);
	return good;
}

/* Server 0: another server's part has ended. */
void snapshots_on_report(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	struct snapshots *n = s->snapshots;
	struct snapshot_report report;

	if (!read_report(message, &report) || !n || !snapshots_is_announced(n) ||
		tern_snapshot_compare(report.id, n->id) != 0 || n->reported[p->index] ||
		!store_has(s, p->index, &report) ||
		!take_list(s, json_object_get(message, "least"))) {
		server_refuse(p,
			"its message \"snapshot\" tells of a part that it was not asked "
			"for");
		return;
	}
	if (s->over)
		return; /* no memory for the list */
	n->parts[p->index].bytes = report.bytes;
	n->parts[p->index].digest = report.digest;
	if (report.why)
		fail_part(n, report.why, report.late);
	part_ended(s, p->index);
}

void snapshots_on_lost(struct tern_server *s, uint32_t server)
{
	struct snapshots *n = s->snapshots;

	if (!n || s->index != 0 || n->state != SNAPSHOTS_TAKING || n->reported[server])
		return;
	fail_part(n, "a server was lost", false);
	if (n->cut.state == CUT_CLOSED)
		cut_on_lost(s, server);
	else
		part_ended(s, server);
}

/* Another server, async: takes the cut. False: it is not that of this snapshot. */
static bool is_of_cut(
	struct tern_server *s, const json_t *message, json_int_t step, json_int_t number)
{
	struct cut *cut = &s->snapshots->cut;

	return cut->state == CUT_CLOSED && cut->number == number &&
	       cut_read(s, json_object_get(message, "cut"), cut->steps) &&
	       cut_sum(s) == (uint64_t)step;
}

/* Another server: takes part in what server 0 has begun. */
void snapshots_on_begin(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	json_int_t step = 0, number = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I}", "step", &step,
		    "number", &number) < 0 ||
		step < (s->job.mode == TERN_MODE_SYNC) || (uint64_t)step > s->job.steps ||
		number < 0 || number > UINT32_MAX) {
		server_fail(s, -EPROTO,
			"server 0 began a snapshot of step %lld, number %lld: expected a "
			"step up to %llu and a number of 32 bits",
			(long long)step, (long long)number,
			(unsigned long long)s->job.steps);
		return;
	}
	if (!s->running) {
		server_fail(s, -EPROTO, "server 0 began a snapshot before the steps");
		return;
	}
	if (!s->snapshots) {
		server_fail(s, -EPROTO, "server 0 began a snapshot, and takes none");
		return;
	}
	if (s->snapshots->taking) {
		server_fail(
			s, -EPROTO, "server 0 began a snapshot before the last ended");
		return;
	}
	if (s->job.mode == TERN_MODE_ASYNC && !is_of_cut(s, message, step, number)) {
		server_fail(s, -EPROTO,
			"server 0 began snapshot %lld-%08llx: expected the one whose cut "
			"it has asked for, with the steps of %u workers that add up to "
			"it",
			(long long)step, (unsigned long long)number, s->job.workers);
		return;
	}
	s->snapshots->final = s->job.mode == TERN_MODE_SYNC
				      ? (uint64_t)step == s->job.steps
				      : json_is_true(json_object_get(message, "final"));
	snapshot_take(s, (struct tern_snapshot_id){(uint64_t)step, (uint32_t)number});
}

/* Writes what the snapshot waits for. */
static void name_awaited(const struct tern_server *s, char *text, size_t bytes)
{
	const struct snapshots *n = s->snapshots;
	bool closed = n->cut.state == CUT_CLOSED;
	const bool *told = closed ? n->cut.heard : n->reported;
	uint32_t i = 0;

	if (n->state == SNAPSHOTS_CLEANING) {
		snprintf(text, bytes, "the removal of older ones");
	} else if (n->state == SNAPSHOTS_PUBLISHING) {
		snprintf(text, bytes, "its manifest");
	} else if (n->cut.state == CUT_DRAINING) {
		snprintf(text, bytes, "gradients of steps before the snapshot");
	} else {
		while (i + 1 < s->job.server_count && told[i])
			i++;
		snprintf(text, bytes, "the %s of server %u",
			closed ? "numbers of steps" : "part", view_number(s, i));
	}
}

/* A snapshot takes long, perhaps since a disk does not answer. Says for what it waits. */
static void say_slow(struct tern_timer *timer)
{
	struct snapshots *n = tern_container_of(timer, struct snapshots, slow_timer);
	struct tern_server *s = n->server;
	char awaited[60];

	if (s->over || s->opts.ctx->ending)
		return;
	name_awaited(s, awaited, sizeof(awaited));
	server_warn(s,
		"the snapshot of step %llu is being taken for %llu s, and waits for %s",
		(unsigned long long)n->id.step,
		(unsigned long long)((tern_now_ns(s->env) - n->begun_ns) / TERN_NS_PER_S),
		awaited);
	tern_timer_set(s->opts.ctx, timer, tern_now_ns(s->env) + 10 * SLOW_NS);
}

void snapshots_take_blob(struct tern_server *s, const struct tern_blob *blob)
{
	struct snapshots *n = s->snapshots;

	if (n && n->state == SNAPSHOTS_TAKING && blob->step <= n->id.step &&
		tern_blob_copy(&n->blob, blob) < 0)
		fail_part(n, "no memory for the blob of the job", false);
}

/* True if all steps are made that will be. */
static bool is_done(const struct tern_server *s)
{
	return s->job.mode == TERN_MODE_SYNC ? s->snapshots->done_count == s->chunk_count
					     : s->all_done;
}

/* Tells all servers to take the snapshot, whose step and number are known now. */
static void announce(struct tern_server *s, struct tern_snapshot_id id)
{
	struct snapshots *n = s->snapshots;

	n->last_step = id.step;
	for (uint32_t i = 1; i < s->job.server_count; i++) {
		struct server_peer *p = others_find(s, i);
		json_t *message = json_pack("{s:s, s:I, s:I}", "type", "snapshot", "step",
			(json_int_t)id.step, "number", (json_int_t)id.number);

		if (s->job.mode == TERN_MODE_ASYNC) {
			json_object_set_new(message, "cut", cut_list(s, n->cut.steps));
			json_object_set_new(message, "final", json_boolean(n->final));
		}
		if (p)
			tern_talk_say(&p->talk, json_incref(message));
		json_decref(message);
	}
	snapshot_take(s, id);
	/* After a loss of a server this one ends, but for the time after the last step. */
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (!others_find(s, i))
			snapshots_on_lost(s, i);
}

void cut_known(struct tern_server *s)
{
	uint64_t step = cut_sum(s);

	/* All workers that had a step were lost: the other servers wait for a last snapshot. */
	if (step == 0)
		fail_part(s->snapshots, "no step was made", false);
	announce(s, (struct tern_snapshot_id){step, s->snapshots->cut.number});
}

/* In async mode `step` is only what a warning names until the cut is known. */
static void begin(struct tern_server *s, uint64_t step)
{
	struct snapshots *n = s->snapshots;
	struct tern_snapshot_id id = {step, (uint32_t)tern_random(s->env)};
	const struct tern_blob *blob = blobs_find(s, step);

	snapshots_enter(n, SNAPSHOTS_TAKING);
	n->slow_timer.fire = say_slow;
	tern_timer_set(s->opts.ctx, &n->slow_timer, tern_now_ns(s->env) + SLOW_NS);
	n->begun_ns = tern_now_ns(s->env);
	n->on_request = n->asked;
	n->asked = n->failed = n->late = false;
	n->final = is_done(s);
	n->id = id; /* snapshots_take_blob() compares with it */
	tern_blob_fini(&n->blob);
	if (blob)
		snapshots_take_blob(s, blob);
	n->missing_count = s->job.server_count;
	memset(n->reported, 0, s->job.server_count * sizeof(*n->reported));
	if (s->job.mode == TERN_MODE_SYNC) {
		announce(s, id);
		return;
	}
	cut_begin(s, id.number);
}

/* ---- when ---- */

/* True if this step is one to be saved; in async mode, if such a step was made since the last
 * snapshot. */
static bool is_due(const struct tern_server *s, uint64_t step)
{
	uint64_t every = s->opts.snapshots.every_steps;

	if (s->job.mode == TERN_MODE_ASYNC)
		return is_by_steps(s) && step / every > s->snapshots->last_step / every;
	return is_by_steps(s) && step % s->opts.snapshots.every_steps == 0 &&
	       step > s->snapshots->last_step;
}

/* Notes the steps between the last snapshot and this one that should have been saved. */
static void note_skipped(struct tern_server *s, uint64_t step)
{
	uint64_t every = s->opts.snapshots.every_steps, last = s->snapshots->last_step;

	if (step > last / every * every + every)
		server_note(s,
			"no snapshot of step %llu: it came too soon, or while the one "
			"before was being written",
			(unsigned long long)(last / every * every + every));
}

static void set_timer(struct tern_server *s, uint64_t since_ns);

static void fire(struct tern_timer *timer)
{
	struct snapshots *n = tern_container_of(timer, struct snapshots, timer);
	struct tern_server *s = n->server;

	if (s->over || s->opts.ctx->ending)
		return;
	if (n->state != SNAPSHOTS_IDLE)
		server_note(s, "no snapshot now: the one before is being written");
	n->asked = n->asked || n->state == SNAPSHOTS_IDLE;
	set_timer(s, tern_now_ns(s->env));
	next_due(s);
}

/* Sets the timer to `every_ns` after since_ns, or to now if that is over. */
static void set_timer(struct tern_server *s, uint64_t since_ns)
{
	uint64_t every =
		s->opts.snapshots.every_ns ? s->opts.snapshots.every_ns : EVERY_NS;

	s->snapshots->timer.fire = fire;
	tern_timer_set(s->opts.ctx, &s->snapshots->timer,
		TERN_MAX(tern_now_ns(s->env), tern_ns_add(since_ns, every)));
}

/* Begins the next snapshot if it is time, and none is being taken. */
static void next_due(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	uint64_t step;

	if (n->state != SNAPSHOTS_IDLE || n->final)
		return;
	if (is_done(s)) {
		begin(s, s->job.steps);
		return;
	}
	if (s->job.mode == TERN_MODE_ASYNC) {
		step = n->newest;
		if (step <= n->last_step || step >= s->job.steps ||
			(!n->asked && !is_due(s, step)))
			return;
	} else {
		step = n->newest + n->margin;
		if (step >= s->job.steps || (!n->asked && !is_due(s, step)))
			return;
		if (!n->asked)
			note_skipped(s, step);
	}
	begin(s, step);
}

/* True if the job was done when it was resumed. */
static bool had_all(const struct tern_server *s)
{
	bool all = true;

	if (s->job.mode == TERN_MODE_SYNC)
		return s->first_version == s->job.steps;
	for (uint32_t i = 0; i < s->job.workers; i++)
		all = all && resume_step_of(s, i) == tern_ps_job_steps_of(&s->job, i);
	return all;
}

void snapshots_start(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n || s->over)
		return;
	n->last_step = n->newest = s->first_version;
	/* A job that was done when it was resumed has nothing new to save. */
	n->final = had_all(s) && !s->goes_on;
	if (had_all(s))
		n->done_count = s->chunk_count;
	if (s->index != 0)
		return;
	/* The time goes on when the job goes back, or one that goes back often had no snapshot. */
	if (!is_by_steps(s))
		set_timer(s, s->history->snapshot_tried_ns);
	next_due(s);
}

void snapshots_step_made(const struct chunk *c)
{
	struct tern_server *s = c->server;
	struct snapshots *n = s->snapshots;

	if (!n || s->index != 0)
		return;
	n->newest = TERN_MAX(n->newest, c->version);
	n->done_count += c->version == s->job.steps;
	next_due(s);
}

void snapshots_all_done(struct tern_server *s)
{
	if (s->snapshots)
		next_due(s);
}

void snapshots_ask(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n || !s->running || s->over)
		return;
	if (s->index != 0) {
		if (!s->to_zero->gone)
			tern_talk_say(&s->to_zero->talk,
				json_pack("{s:s}", "type", "snapshot_wanted"));
		return;
	}
	if (n->state != SNAPSHOTS_IDLE)
		return; /* one is being taken */
	n->asked = true;
	next_due(s);
}

void snapshots_ask_anew(struct tern_server *s)
{
	s->snapshots->asked = true;
	if (s->snapshots->state == SNAPSHOTS_IDLE)
		next_due(s);
}

uint64_t snapshots_last_begun_ns(const struct tern_server *s)
{
	return s->snapshots->failed ? 0 : s->snapshots->begun_ns;
}

bool snapshots_hold_end(const struct tern_server *s)
{
	const struct snapshots *n = s->snapshots;

	if (!n)
		return false;
	if (s->index != 0)
		return !s->to_zero->gone && (n->taking || !n->final);
	return n->state != SNAPSHOTS_IDLE || !n->final;
}

/* ---- birth and death ---- */

int snapshots_init(struct tern_server *s)
{
	struct snapshots *n;

	if (!snapshots_are_taken(s))
		return 0;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	s->snapshots = n;
	n->server = s;
	n->margin = MARGIN_FIRST;
	n->parts = calloc(s->job.server_count, sizeof(*n->parts));
	n->reported = calloc(s->job.server_count, sizeof(*n->reported));
	n->arriving = calloc(s->job.server_count, sizeof(struct store_part *));
	return n->parts && n->reported && n->arriving ? cut_init(s) : -ENOMEM;
}

void snapshots_end(struct tern_server *s)
{
	if (!s->snapshots)
		return;
	tern_timer_clear(s->opts.ctx, &s->snapshots->timer);
	tern_timer_clear(s->opts.ctx, &s->snapshots->slow_timer);
}

void snapshots_fini(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n)
		return;
	snapshot_drop_copies(s);
	remote_part_fini(n);
	store_parts_fini(n);
	if (n->iov)
		free(n->iov[0].iov_base);
	while (n->stale_count)
		free(n->stale[--n->stale_count]);
	tern_blob_fini(&n->blob);
	free(n->manifest);
	free(n->manifest_path);
	free(n->zero_path);
	free(n->iov);
	free(n->path);
	free(n->stale);
	free(n->zero_op.data);
	free(n->parts);
	free(n->reported);
	cut_fini(&n->cut);
	free(n);
	s->snapshots = NULL;
}
