/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time until the steps begin. If a worker leaves before that, for any reason, only
 * that worker ends: its place is free again. While the connection of a worker is lost, the
 * steps do not begin, because the worker was perhaps killed. A job whose last worker has
 * left is forgotten, so that a user's wrong option is an error of that user alone.
 *
 * The steps begin on all servers or on none. Each other server tells server 0 that all
 * workers have joined it ("peer", others.c). When all servers have said so, and all
 * workers have joined server 0 too, server 0 tells all servers to start. If another server
 * loses a worker between these two messages, it tells server 0 ("lost"). If server 0 has
 * said "start" before, the worker is lost like any other. Otherwise server 0 answers
 * "again": then the other server frees the places of the workers that left, and connects
 * again when all workers have joined anew. Server 0 also says "again" while it has no job
 * to compare a server's with: it stores nothing for a process that merely claims to be a
 * server.
 *
 * A job that goes on from a snapshot need not wait for workers that do not come any more
 * (opts.absent_ns), unless the other ones may be with the server whose place this one takes
 * (members.c). Each server by itself puts a peer without a connection in the place of such a
 * worker, as if it had come and left. So it is lost when the steps begin, and may come later
 * (change.c).
 */
#include "server/membership.h"
#include "server/snapshots.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define ZERO_AGAIN_NS    TERN_NS_PER_S
#define WAITING_NS       (10 * TERN_NS_PER_S)
#define WAITING_AGAIN_NS (60 * TERN_NS_PER_S)
/* How long a job of a launcher that goes back waits for workers that a user has added, at most, after the
 * last of the others has come: nobody starts them again. */
#define ADDED_NS TERN_NS_PER_S

const struct server_peer *start_find_present(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (s->workers[i] && !s->workers[i]->absent)
			return s->workers[i];
	return NULL;
}

/* ---- a worker leaves ---- */

static void free_place(struct server_peer *p)
{
	struct tern_server *s = p->server;

	s->workers[p->index] = NULL;
	s->again_count = 0;
	s->joined_count -= p->welcome;
	p->is_worker = p->welcome = false;
	server_tell_joined(s);
	start_count_absent(s);
	tern_defer(s->opts.ctx, &s->end_call); /* end_call() frees p */
}

void start_send_away(struct server_peer *p)
{
	p->is_server = false;
	p->refused = true;
	tern_talk_deafen(&p->talk);
	tern_talk_say(&p->talk, json_pack("{s:s}", "type", "again"));
	tern_peer_close(p->peer);
	guests_refused(p);
}

/* Forgets the job, and sends the other servers away: they were compared with this job,
 * not with the next one. */
void start_forget(struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->is_server && !p->gone)
			start_send_away(p);
	}
	server_note_coming(s, "the job is forgotten: all its workers have left");
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (s->workers[i]) /* it is `absent` */
			free_place(s->workers[i]);
	tern_timer_clear(s->opts.ctx, &s->absent_timer);
	join_forget_job(s);
}

static void maybe_forget(struct tern_server *s)
{
	/* While a task is making a chunk, the shard cannot be freed: made() in shard.c
	 * forgets the job after the task. */
	if (s->has_job && !start_find_present(s) && shard_is_made(s))
		start_forget(s);
}

void start_left(struct server_peer *p, const char *text)
{
	struct tern_server *s = p->server;

	if (p->left)
		return;
	p->left = true;
	if (s->index != 0 && s->to_zero) {
		/* The place is not freed yet: server 0 may have said "start" meanwhile,
		 * and then the worker counts as lost. */
		lease_tell_lost(s->to_zero, p, text);
		return;
	}
	free_place(p);
	server_note_coming(s,
		"%s, before the steps began: its place is free again, and %u of %u "
		"workers have joined",
		text, s->joined_count, s->job.workers);
	maybe_forget(s);
}

/* ---- server 0 and another one ---- */

void start_on_lost(
	struct server_peer *p, uint32_t worker, const json_t *message, const char *text)
{
	json_int_t incarnation =
		json_integer_value(json_object_get(message, "incarnation"));
	struct tern_server *s = p->server;

	start_send_away(p);
	if (worker < s->job.workers && s->workers[worker] &&
		s->workers[worker]->incarnation == (uint64_t)incarnation)
		lease_lost(s->workers[worker], false, "%s", text);
}

static void come_again(struct tern_timer *timer)
{
	struct tern_server *s = tern_container_of(timer, struct tern_server, zero_timer);

	if (!s->over && !s->opts.ctx->ending && !s->to_zero && start_all_here(s))
		join_meet_zero(s);
}

void start_again(struct tern_server *s)
{
	struct server_peer *zero = TERN_TAKE(s->to_zero);

	s->tries_workers_zero = !s->tries_workers_zero;
	zero->refused = true;
	tern_talk_deafen(&zero->talk);
	if (!zero->gone && zero->up)
		tern_peer_close(zero->peer);
	else if (!zero->gone)
		server_drop(zero); /* closing would first try on to reach the address */
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (s->workers[i] && s->workers[i]->left && !s->workers[i]->absent) {
			server_note_coming(s, "worker %u has left before the start", i);
			free_place(s->workers[i]);
		}
	maybe_forget(s);
	s->zero_timer.fire = come_again;
	tern_timer_set(s->opts.ctx, &s->zero_timer, tern_now_ns(s->env) + ZERO_AGAIN_NS);
}

/* Handles server 0's answer "again": it has no job, or a worker is missing, or it had no
 * memory for the message. If it answers so for too long although all workers have joined
 * this server, the address probably does not lead to server 0. */
void start_on_again(struct tern_server *s)
{
	if (++s->again_count < START_AGAIN_MAX || s->opts.returns)
		start_again(s);
	else
		server_fail(s, -EPROTO,
			"server 0 at %s has had no job for %u s, though all workers have "
			"joined server %u: the first of --join must lead to server 0 on "
			"every host, and the workers must reach it",
			s->to_zero->zero, START_AGAIN_MAX, view_own_number(s));
}

/* ---- who is waited for ---- */

size_t start_name_missing(const struct tern_server *s, char *text, size_t bytes)
{
	size_t n = 0;

	for (uint32_t i = 0; i < s->job.workers && n + 20 < bytes; i++)
		if (!s->workers[i] || !s->workers[i]->welcome || s->workers[i]->unlinked)
			n += (size_t)snprintf(
				text + n, bytes - n, "%sworker %u", n ? ", " : "", i);
	if (n == 0 && s->index != 0 && start_find_present(s))
		return (size_t)snprintf(text, bytes, "server 0 at %s to begin the steps",
			start_find_present(s)->zero);
	for (uint32_t i = 1; n == 0 && i < s->job.server_count; i++)
		if (!others_find(s, i))
			n = (size_t)snprintf(text, bytes, "server %u", view_number(s, i));
	if (n == 0 && start_find_present(s) && !others_have_same_workers(s))
		n = (size_t)snprintf(text, bytes,
			"all servers to have the same process of each worker");
	return n;
}

static void say_who(struct tern_timer *timer)
{
	struct tern_server *s = tern_container_of(timer, struct tern_server, start_timer);
	char names[200];

	if (s->over || s->running || !s->has_job || s->opts.ctx->ending)
		return;
	if (start_name_missing(s, names, sizeof(names)))
		server_note(s, "%u of %u workers are here, waiting for %s",
			s->joined_count, s->job.workers, names);
	tern_timer_set(
		s->opts.ctx, &s->start_timer, tern_now_ns(s->env) + WAITING_AGAIN_NS);
}

void start_wait(struct tern_server *s)
{
	s->start_timer.fire = say_who;
	tern_timer_set(s->opts.ctx, &s->start_timer, tern_now_ns(s->env) + WAITING_NS);
}

/* ---- workers that do not come ---- */

int start_set_absent(struct tern_server *s, uint32_t index)
{
	const struct server_peer *present = start_find_present(s);
	struct server_peer *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->server = s;
	p->index = index;
	p->is_worker = p->welcome = p->absent = p->left = p->gone = p->freed = true;
	p->talk.closed = true;
	memcpy(p->zero, present->zero, sizeof(p->zero));
	tern_list_push(&s->peers, &p->node);
	s->workers[index] = p;
	s->joined_count++;
	return 0;
}

/* True if the workers that have not come may make steps with the server whose follower this process
 * was: then this server begins only with all workers. */
static bool waits_for_all(struct tern_server *s, const char *names)
{
	if (s->job.server_count > 1 || !members_followed_may_live(s))
		return false;
	if (!s->said_may_live)
		server_note(s,
			"waits for %s: they may be with server %u at %s, which this "
			"process has followed, and which cannot be reached but may live",
			names, view_own_number(s), s->opts.follows);
	s->said_may_live = true;
	return true;
}

static void begin_without(struct tern_timer *timer)
{
	struct tern_server *s =
		tern_container_of(timer, struct tern_server, absent_timer);
	char names[200] = "";
	size_t n = 0;
	int r = 0;

	if (s->over || s->running || !s->has_job || s->opts.ctx->ending)
		return;
	/* A follower that waits has more of the job, and this server is about to make room for it. */
	if (!shard_is_made(s) || members_follower_waits(s)) {
		start_count_absent(s);
		return;
	}
	if (!start_find_present(s) || s->joined_count == s->job.workers)
		return;
	for (uint32_t i = 0; i < s->job.workers && n + 20 < sizeof(names); i++)
		if (!s->workers[i])
			n += (size_t)snprintf(names + n, sizeof(names) - n, "%sworker %u",
				n ? ", " : "", i);
	if (waits_for_all(s, names)) {
		start_count_absent(s);
		return;
	}
	server_note(
		s, "begins without %s: slots of absent workers go to the others", names);
	for (uint32_t i = 0; r == 0 && i < s->job.workers; i++)
		if (!s->workers[i])
			r = start_set_absent(s, i);
	if (r < 0) {
		server_fail(s, r, "no memory to begin without a worker");
		return;
	}
	if (start_all_here(s))
		join_meet_zero(s);
	start_maybe(s);
}

/* True if only workers are missing that a user has added to those of a launcher (grow.c). */
static bool lacks_added_only(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->opts.workers; i++)
		if (!s->workers[i])
			return false;
	return s->opts.workers > 0;
}

void start_count_absent(struct tern_server *s)
{
	uint64_t now_ns = tern_now_ns(s->env), until_ns;

	if (!s->opts.returns || !s->opts.absent_ns)
		return;
	if (!s->absent_timer.place)
		s->absent_since_ns = now_ns;
	until_ns = tern_ns_add(s->absent_since_ns, s->opts.absent_ns);
	if (lacks_added_only(s))
		until_ns = TERN_MIN(until_ns, now_ns + ADDED_NS);
	s->absent_timer.fire = begin_without;
	tern_timer_set(s->opts.ctx, &s->absent_timer, until_ns);
}

/* ---- the start ---- */

bool start_all_here(const struct tern_server *s)
{
	if (!s->has_job || s->joined_count < s->job.workers || !start_find_present(s))
		return false;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (s->workers[i]->unlinked)
			return false;
	return true;
}

void start_on_recovered(struct tern_server *s)
{
	if (s->running || s->over || !start_all_here(s))
		return;
	join_meet_zero(s);
	start_maybe(s);
}

void start_steps(struct tern_server *s)
{
	if (s->job.mode == TERN_MODE_SYNC) {
		sync_start(s);
	} else {
		async_start(s);
	}
	snapshots_start(s);
}

static void start(struct tern_server *s)
{
	s->running = true;
	status_steps_begin(s);
	members_begun(s);
	if (s->opts.begun)
		s->opts.begun(s->opts.arg);
	lease_start(s);
	spare_start(s);
	for (uint32_t i = 0; i < s->job.workers && !s->over; i++)
		if (s->workers[i]->left)
			lease_lost(s->workers[i], false, "worker %u has %s", i,
				s->workers[i]->absent ? "not come" : "left");
	if (s->over)
		return;
	given_start(s);
	if (!given_is_awaited(s))
		start_steps(s);
	late_start(s);
	progress_start(s);
	lease_maybe_done(s);
	/* A short job may be over before a server without chunks receives "start". */
	server_maybe_end(s);
}

bool start_may_have_begun(const struct tern_server *s)
{
	return s->running ||
	       (s->index != 0 && s->has_job && s->joined_count == s->job.workers);
}

void start_on_start(struct tern_server *s, const json_t *message)
{
	json_int_t version = json_integer_value(json_object_get(message, "version"));
	json_int_t life = json_integer_value(json_object_get(message, "life"));

	if (s->running || !s->has_job || s->joined_count < s->job.workers) {
		server_fail(s, -EPROTO,
			"server 0 began the steps, but only %u of %u workers have joined "
			"server %u",
			s->joined_count, s->job.workers, view_own_number(s));
		return;
	}
	if (s->from_memory && (uint64_t)life != s->life) {
		memory_forget(
			s, "server 0 does not go on with what this server has in memory");
		return;
	}
	if (s->from_memory && !memory_begin(s, (uint64_t)version))
		return;
	s->life = (uint64_t)life;
	start(s);
}

void start_maybe(struct tern_server *s)
{
	uint64_t version;

	if (s->index != 0 || s->running || s->over || !start_all_here(s) ||
		!others_are_connected(s) || !others_have_same_workers(s))
		return;
	version = memory_lowest(s);
	if (s->from_memory && !memory_begin(s, version))
		return;
	if (!s->life)
		s->life =
			(tern_random(s->env) >> 1) | 1; /* fits into an integer of JSON */
	for (uint32_t i = 1; i < s->job.server_count; i++)
		tern_talk_say(&others_find(s, i)->talk,
			json_pack("{s:s, s:I, s:I}", "type", "start", "version",
				(json_int_t)version, "life", (json_int_t)s->life));
	start(s);
}
