/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that is asked to end (SIGTERM) says "leave" to server 0 and works on until
 * server 0 has decided about it. The decision waits a second, because a system that ends
 * a whole job (Slurm, Kubernetes) asks all its processes within a moment. Meanwhile
 * server 0 calls the roll: it asks all workers, and each one whose process runs answers
 * immediately.
 *
 *     other workers stay, and one of them answers and makes progress
 *                      the leaving workers may go: each ends as one that fails alone, and
 *                      its slots go to the others (lease.c)
 *     a worker has said goodbye (the results are safe)
 *                      the leaving workers may go
 *     no worker stays  the job is interrupted. But a job by hand that may go back waits for
 *                      other workers, with what the servers have in memory (back.c): one of
 *                      the leaving workers saves its parameters first
 *     others stay, but none of them answers and makes progress
 *                      undecided for some more roll calls; then the leaving workers may
 *                      go, and one of them saves its parameters first. The others are
 *                      lost if they do not go on by their deadline (late.c)
 *
 * A job is also interrupted if a server is asked to end. A server other than 0 tells
 * server 0, since only one process may decide who saves. Server 0 chooses the worker with
 * the lowest number that answers the roll call and has parameters. If server 0 does not
 * answer, the other server decides, by a roll call of its own.
 */
#include "server/membership.h"

#include <stdio.h>

#include "base/clock.h"

#define LEAVE_NS TERN_NS_PER_S
/* Number of times that the roll call is repeated. After that the leaving workers may go,
 * although no other worker was seen to make progress. */
#define ROLLS_MAX 3u

static bool is_here(const struct server_peer *worker)
{
	return !worker->lost && !worker->said_bye && !worker->gone && !worker->may_go;
}

static uint64_t leave_ns(const struct tern_server *s)
{
	return s->opts.leave_ns ? s->opts.leave_ns : LEAVE_NS;
}

/* ---- the roll ---- */

static void call_roll(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++) {
		struct server_peer *p = s->workers[i];

		p->answered = p->has_parameters = false;
		if (is_here(p))
			tern_talk_say(&p->talk, json_pack("{s:s}", "type", "there"));
	}
}

/* Chooses the worker that saves, of all workers or (`leaving`) of those that were asked to
 * leave: the first one that has said that it has parameters, else the first one that has
 * answered, else the first one. NULL: no such worker is still here. */
static struct server_peer *saver(const struct tern_server *s, bool leaving)
{
	struct server_peer *found = NULL;

	for (uint32_t i = 0; i < s->job.workers; i++) {
		struct server_peer *p = s->workers[i];

		if (!is_here(p) || (leaving && !p->leaving))
			continue;
		if (p->has_parameters)
			return p;
		if (!found || (p->answered && !found->answered))
			found = p;
	}
	return found;
}

/* True if no further answer can change which worker saves. */
static bool saver_is_known(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++) {
		const struct server_peer *p = s->workers[i];

		if (is_here(p) && (!p->answered || p->has_parameters))
			return p->answered;
	}
	return true;
}

int64_t leaving_finisher(const struct tern_server *s)
{
	const struct server_peer *p = start_may_have_begun(s) ? saver(s, false) : NULL;

	return p ? (int64_t)p->index : -1;
}

/* ---- the job is interrupted ---- */

static void set_timer(struct tern_server *s, uint64_t in_ns);

void leaving_interrupt(struct tern_server *s, const char *why)
{
	struct server_peer *zero = s->to_zero;

	if (s->over || s->interrupting)
		return;
	if (s->index == 0 ? !s->running : !zero || zero->gone) {
		server_interrupt(s, why);
		return;
	}
	s->interrupting = true;
	snprintf(s->interrupt_text, sizeof(s->interrupt_text), "%s", why);
	if (start_may_have_begun(s))
		call_roll(s);
	if (s->index == 0) {
		set_timer(s, leave_ns(s) / 2);
	} else {
		tern_talk_say(
			&zero->talk, json_pack("{s:s, s:o, s:b, s:b}", "type", "abort",
					     "text", tern_talk_text(why), "save", true,
					     "final", s->by_operator));
		/* If server 0 has not ended the job when the timer fires, it hangs:
		 * leave_timer() then decides here. */
		set_timer(s, 2 * leave_ns(s));
	}
}

void leaving_on_here(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;

	p->answered = true;
	p->has_parameters = json_integer_value(json_object_get(message, "version")) > 0;
	if (s->interrupting && s->index == 0 && saver_is_known(s))
		server_interrupt(s, s->interrupt_text);
}

/* ---- workers leave ---- */

/* True if every worker leaves, or every worker that the launcher has started, and none has said goodbye, so the
 * results are not safe. A launcher asks all of its own workers when it ends the job, and knows no others
 * (grow.c), for which the job ends, too. */
static bool all_leave(const struct tern_server *s)
{
	uint32_t count = s->opts.workers ? s->opts.workers : s->job.workers;
	bool some = false;

	if (s->bye_count > 0)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		const struct server_peer *p = s->workers[i];

		if (is_here(p) && !p->leaving)
			return false;
		some = some || is_here(p);
	}
	return some || count == s->job.workers;
}

/* True if a worker that was not asked to leave has answered and makes progress. One that
 * is silent may hang, and the job would not go on with it alone. */
static bool somebody_goes_on(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++) {
		const struct server_peer *p = s->workers[i];

		if (is_here(p) && !p->leaving && p->answered && !(p->owes && p->late_ns))
			return true;
	}
	return false;
}

/* `last`: the job waits for other workers then. */
static void let_go(struct tern_server *s, const struct server_peer *saves, bool last)
{
	if (saves && !last)
		server_note(s,
			"the workers that were not asked to end make no progress, so "
			"those that were leave now: worker %u %s",
			saves->index,
			saves->has_parameters ? "saves the parameters first"
					      : "has no parameters to save");
	s->roll_count = 0;
	for (uint32_t i = 0; i < s->job.workers; i++) {
		struct server_peer *p = s->workers[i];

		if (!is_here(p) || !p->leaving)
			continue;
		p->may_go = true;
		tern_talk_say(&p->talk, json_pack("{s:s, s:b, s:b, s:I}", "type", "leave",
						"save", p == saves, "last", last,
						"snapshot", (json_int_t)back_newest(s)));
	}
}

/* True if the job can wait without any worker. The servers of a launcher have opts.workers: it ends
 * the job by asking all of its processes. */
static bool may_wait(const struct tern_server *s)
{
	return back_is_possible(s) && !s->opts.workers && !s->by_operator;
}

static void decide(struct tern_server *s)
{
	char why[400];

	if (all_leave(s) && may_wait(s)) {
		let_go(s, saver(s, true), true);
	} else if (all_leave(s)) {
		snprintf(why, sizeof(why), "every worker leaves: %s", s->leave_text);
		leaving_interrupt(s, why);
	} else if (s->bye_count > 0 || somebody_goes_on(s)) {
		let_go(s, NULL, false);
	} else if (s->roll_count < ROLLS_MAX) {
		s->roll_count++;
		call_roll(s);
		set_timer(s, leave_ns(s));
	} else {
		let_go(s, saver(s, true), false);
	}
}

static void leave_timer(struct tern_timer *timer)
{
	struct tern_server *s = tern_container_of(timer, struct tern_server, leave_timer);

	if (s->over || s->opts.ctx->ending)
		return;
	if (s->interrupting) {
		s->finisher = leaving_finisher(s);
		server_interrupt(s, s->interrupt_text);
	} else {
		decide(s);
	}
}

static void set_timer(struct tern_server *s, uint64_t in_ns)
{
	s->leave_timer.fire = leave_timer;
	tern_timer_set(s->opts.ctx, &s->leave_timer, tern_now_ns(s->env) + in_ns);
}

void leaving_on_leave(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const char *text = json_string_value(json_object_get(message, "text"));

	if (p->leaving)
		return;
	/* Only server 0 decides, and only once the steps have begun. */
	if (!s->running || s->index != 0) {
		lease_lost(p, false, "%s: %s", tern_peer_name(p->peer),
			text ? text : "it leaves");
		return;
	}
	p->leaving = true;
	snprintf(s->leave_text, sizeof(s->leave_text), "%s",
		text ? text : "no reason given");
	if (s->interrupting)
		return;
	if (all_leave(s)) {
		decide(s);
		return;
	}
	/* If a decision about other leaving workers is pending already, it will be made
	 * for this one, too. */
	if (!s->leave_timer.place) {
		call_roll(s);
		set_timer(s, leave_ns(s));
	}
}
