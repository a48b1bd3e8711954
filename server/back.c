/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going back (opts.goes_back). A job in sync mode that takes snapshots does not end when it
 * loses a server, or its last worker, if its workers can go back, too: all of its processes leave
 * ("abort" with "back"), and meet again as at the start, each made anew: with what it has in memory
 * (memory.c), or with the newest snapshot. Who was lost is started again, perhaps elsewhere
 * (members.c).
 *
 * A server that is asked to end lets a snapshot be taken first, so that few steps are made twice:
 *
 *     server that is asked       server 0
 *     "leaving"             -->
 *                                takes a snapshot
 *                           <--  "abort" with "back", to all
 *
 * Servers may find different snapshots, if one searches before server 0 has published its
 * last one. Server 0 decides: whoever sees the difference, a worker that both have welcomed or
 * server 0 itself, tells the other server with which one server 0 begins, and that server is made
 * anew with this one. But a server 0 that has found none searches again, and so does one whose
 * snapshot the others cannot use.
 *
 * Servers that have lived begin with what they have in memory instead, if all have (memory.c). If
 * not, they forget it: whoever sees that one lacks it, a worker or server 0, tells the others.
 */
#include "server/membership.h"
#include "server/snapshots.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"

#define DRAIN_NS (5 * TERN_NS_PER_S) /* if opts.drain_ns is 0 */
/* How long server 0 insists on the snapshot that it has found. */
#define SEARCH_AGAIN_NS (5 * TERN_NS_PER_S)

bool back_is_allowed(const struct tern_server *s)
{
	if (!s->opts.goes_back || !s->has_job || !s->snapshots ||
		s->job.mode != TERN_MODE_SYNC)
		return false;
	for (uint32_t i = 0; i < s->job.workers; i++) {
		const struct server_peer *p = s->workers[i];

		if (p && !p->absent && !p->goes_back)
			return false;
	}
	return true;
}

bool back_is_possible(const struct tern_server *s)
{
	return back_is_allowed(s) && (start_may_have_begun(s) || s->opts.returns) &&
	       !s->over;
}

void back_or_fail(struct tern_server *s, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	server_fail_args(s, back_is_allowed(s) ? -EAGAIN : status, fmt, ap);
	va_end(ap);
}

static void forget(struct tern_server *s, const json_t *replaced, const char *why)
{
	if (s->from_memory) {
		memory_forget(s, why);
		return;
	}
	s->forgets = true;
	s->replaced = json_is_integer(replaced) ? (uint32_t)json_integer_value(replaced)
						: UINT32_MAX;
}

void back_on_abort(struct tern_server *s, const json_t *message, const char *why)
{
	json_int_t step = 0, number = 0;

	/* After the first goodbye the results are safe, and the job is about to end. */
	if (s->bye_count > 0)
		return;
	if (json_unpack((json_t *)(uintptr_t)message, "{s:[I, I]}", "begins", &step,
		    &number) == 0 &&
		step > 0)
		back_begin_with(s, step, number);
	view_on_abort(s, message);
	s->no_workers =
		s->no_workers || json_is_true(json_object_get(message, "no_workers"));
	if (json_is_true(json_object_get(message, "forget")))
		forget(s, json_object_get(message, "replaced"), why);
	back_or_fail(s, -ECANCELED, "%s", why);
}

void back_without_workers(struct tern_server *s)
{
	s->no_workers = true;
	if (s->failed_last)
		server_fail(s, -EPIPE, "no worker is left: %s", s->first_loss);
	else
		back_or_fail(s, -EPIPE, "no worker is left: %s", s->first_loss);
}

/* ---- a server is asked to end ---- */

/* The last step is done: the job is about to end. */
static bool is_done(const struct tern_server *s)
{
	return s->chunk_count > 0 && sync_is_done(s);
}

static uint64_t drain_ns(const struct tern_server *s)
{
	return s->opts.drain_ns ? s->opts.drain_ns : DRAIN_NS;
}

uint64_t back_newest(const struct tern_server *s)
{
	return TERN_MAX(s->history->snapshot.step, s->snapshot_step);
}

void back_hear_newest(struct tern_server *s, const json_t *message)
{
	json_int_t step = json_integer_value(json_object_get(message, "snapshot"));

	if (step > 0 && (uint64_t)step <= s->job.steps)
		s->snapshot_step = TERN_MAX(s->snapshot_step, (uint64_t)step);
}

static void warn_of_loss(struct tern_server *s)
{
	uint64_t step = back_newest(s);
	char since[60] = "since the newest snapshot";

	if (s->index == 0 && step)
		snprintf(since, sizeof(since), "since the snapshot of step %llu",
			(unsigned long long)step);
	else if (s->index == 0)
		snprintf(since, sizeof(since), "of this job");
	server_warn(s,
		"no snapshot within %.3g s: the steps %s are lost here, and are made "
		"again "
		"when the job goes on",
		(double)drain_ns(s) / 1e9, since);
}

static void time_is_up(struct tern_timer *timer)
{
	struct tern_server *s = tern_container_of(timer, struct tern_server, back_timer);

	if (s->opts.ctx->ending || is_done(s))
		return;
	warn_of_loss(s);
	back_or_fail(s, -ECANCELED, "%s", s->back_text);
}

void back_when_saved(struct tern_server *s, const char *why)
{
	if (!*s->back_text)
		s->back_ns = tern_now_ns(s->env);
	snprintf(s->back_text, sizeof(s->back_text), "%s", why);
	snapshots_ask_anew(s);
}

void back_stay(struct tern_server *s)
{
	*s->back_text = '\0';
	view_drop(s);
}

void back_leave(struct tern_server *s, const char *why)
{
	if (s->over || s->back_timer.place || s->bye_count > 0)
		return;
	if (!s->running) {
		back_or_fail(s, -ECANCELED, "%s", why);
		return;
	}
	s->back_timer.fire = time_is_up;
	tern_timer_set(s->opts.ctx, &s->back_timer,
		tern_ns_add(tern_now_ns(s->env), drain_ns(s)));
	if (s->index == 0) {
		back_when_saved(s, why);
		return;
	}
	snprintf(s->back_text, sizeof(s->back_text), "%s", why);
	if (!s->to_zero->gone)
		tern_talk_say(
			&s->to_zero->talk, json_pack("{s:s, s:o}", "type", "leaving",
						   "text", tern_talk_text(why)));
}

void back_on_leaving(struct server_peer *server, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	char why[300];

	snprintf(why, sizeof(why), "%s: %.200s", tern_peer_name(server->peer),
		text ? text : "it leaves");
	if (back_is_possible(server->server))
		back_leave(server->server, why);
}

void back_maybe(struct tern_server *s)
{
	if (*s->back_text && !s->back_timer.place && !back_is_allowed(s)) {
		server_warn(s, "%s: not so, since a process has come that cannot go back",
			s->back_text);
		back_stay(s);
	}
	if (*s->back_text && s->index == 0 && snapshots_last_begun_ns(s) >= s->back_ns &&
		!is_done(s))
		back_or_fail(s, -ECANCELED, "%s", s->back_text);
}

/* ---- different snapshots ---- */

void back_begin_with(struct tern_server *s, json_int_t step, json_int_t number)
{
	if (step < 0 || number < 0 || number > UINT32_MAX)
		return;
	s->stats.told_step = (uint64_t)step;
	s->stats.told_number = (uint32_t)number;
}

/* True if this server 0, with whose snapshot others are to begin, should search again: it has found
 * none, or the others have not used it for so long that it has perhaps been damaged since. */
static bool is_to_search_again(const struct tern_server *s)
{
	return s->first_version == 0 ||
	       tern_now_ns(s->env) - s->made_ns >= SEARCH_AGAIN_NS;
}

/* Another server has found this snapshot, and server 0 another one, or none. */
static void search_again(struct tern_server *s, json_int_t step, json_int_t number)
{
	char found[80] = "no snapshot";

	if (s->first_version)
		snprintf(found, sizeof(found), "snapshot %llu-%08x",
			(unsigned long long)s->first_version, s->first_number);
	back_or_fail(s, -EINVAL,
		"server 0 has found %s, and another server has found %lld-%08llx: does "
		"--snapshots of server 0 lead to the same directory?",
		found, (long long)step, (unsigned long long)number);
}

/* Sends the message to a server that has not been let in yet, and closes the connection. */
static void send_away(struct server_peer *server, json_t *message)
{
	server->refused = true;
	tern_talk_deafen(&server->talk);
	tern_talk_say(&server->talk, message);
	tern_peer_close(server->peer);
	guests_refused(server);
}

void back_send_away(struct server_peer *server, const json_t *peer)
{
	struct tern_server *s = server->server;
	char text[100];

	if (s->from_memory) {
		snprintf(text, sizeof(text), "%s does not have the job in memory",
			tern_peer_name(server->peer));
		memory_forget(s, text);
	} else if (json_integer_value(json_object_get(peer, "life"))) {
		send_away(server, json_pack("{s:s, s:s, s:b, s:b}", "type", "abort",
					  "text", "it does not have the job in memory",
					  "back", 1, "forget", 1));
	} else if (is_to_search_again(s)) {
		search_again(s, json_integer_value(json_object_get(peer, "version")),
			json_integer_value(json_object_get(peer, "number")));
	} else {
		snprintf(text, sizeof(text), "server 0 begins with snapshot %llu-%08x",
			(unsigned long long)s->first_version, s->first_number);
		send_away(server,
			json_pack("{s:s, s:s, s:b, s:[I, I]}", "type", "abort", "text",
				text, "back", 1, "begins", (json_int_t)s->first_version,
				(json_int_t)s->first_number));
	}
}

bool back_on_other_snapshot(struct server_peer *worker, const json_t *message)
{
	struct tern_server *s = worker->server;
	json_int_t step = 0, number = 0;

	if (s->running || !s->opts.returns || !back_is_allowed(s))
		return false;
	if (s->from_memory && json_is_true(json_object_get(message, "forget"))) {
		memory_forget(s, "another server does not have the job in memory");
		return true;
	}
	if (s->index == 0 && is_to_search_again(s) &&
		json_unpack((json_t *)(uintptr_t)message, "{s:[I, I]}", "found", &step,
			&number) == 0 &&
		step > 0) {
		search_again(s, step, number);
		return true;
	}
	if (s->index == 0 ||
		json_unpack((json_t *)(uintptr_t)message, "{s:[I, I]}", "begins", &step,
			&number) < 0 ||
		step == 0 ||
		(step == (json_int_t)s->first_version &&
			number == (json_int_t)s->first_number))
		return false;
	back_begin_with(s, step, number);
	back_or_fail(s, -EINVAL,
		"server 0 begins with snapshot %lld-%08llx, and server %u with "
		"%llu-%08x",
		(long long)step, (unsigned long long)number, view_own_number(s),
		(unsigned long long)s->first_version, s->first_number);
	return true;
}
