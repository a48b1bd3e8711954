/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other besides data, in notes that have a key of their own: while an
 * operation is slow, keep-alives with the number of operations called and of rounds ended;
 * why the group has failed; that a rank has left.
 *
 * A timer runs while there are calls. From it the deadlines follow, too, so that an
 * operation that is fast costs no timer.
 *
 * Each rank sends its note LEFT once, as its last one. A rank that has left itself keeps its
 * receive posted until the note LEFT of the other rank comes or the peer is gone, so no note
 * is left behind in the peer's session. A rank that has not left always has a receive posted
 * for each peer: its end is how the group learns that the peer is gone and may be freed.
 */
#include "group/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/escape.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

#define NOTE_KEY    1u
#define TICK_MIN_NS (10 * TERN_NS_PER_MS)
#define TICK_MAX_NS TERN_NS_PER_S
/* A rank from which nothing has come for so many ticks is silent. */
#define SILENT_TICKS 3u

_Static_assert(sizeof(struct group_note) == 232, "the note has no padding");

static void on_said(struct tern_req *req);

/* Sends the most important note that is due, if the last one has left. */
static void say(struct group_link *link)
{
	struct tern_group *g = link->group;
	struct group_note *note = tern_buf_ptr(&link->send_buf);
	struct tern_tensor tensor = {
		.buf = link->send_buf, .shape = tern_shape_1d(TERN_U8, sizeof(*note))};

	if (link->sending || link->gone ||
		!(link->want_abort || link->want_left || link->want_alive))
		return;
	*note = (struct group_note){.called = g->called, .moved = g->moved};
	if (link->want_abort) {
		note->kind = GROUP_ABORT;
		note->status = g->status;
		memcpy(note->text, g->text, sizeof(note->text));
		link->want_abort = false;
	} else if (link->want_left) {
		note->kind = GROUP_LEFT;
		link->want_left = false;
	} else {
		note->kind = GROUP_ALIVE;
		if (g->op_count > 0)
			note->ask_ms = (uint32_t)(g->tick_ns / TERN_NS_PER_MS);
	}
	link->want_alive = false;
	link->send.done = on_said;
	link->send.arg = link;
	if (tern_send(link->channel, &link->send, NOTE_KEY, 0, &tensor, NULL, 0) < 0)
		return;
	link->sending = true;
	g->notes++;
}

static void on_said(struct tern_req *req)
{
	struct group_link *link = req->arg;

	link->sending = false;
	link->group->notes--;
	if (req->status == 0)
		say(link);
	group_settle(link->group);
}

/* ---- what comes ---- */

static void alive(struct group_link *link, const struct group_note *note)
{
	struct tern_group *g = link->group;
	uint64_t now_ns = tern_now_ns(g->env);

	link->called = TERN_MAX(link->called, note->called);
	link->moved = note->moved;
	link->alive_ns = now_ns;
	/* A waiting rank is answered here: this rank may have no timer, or one with a longer
	 * interval. */
	if (note->ask_ms && !g->freed &&
		now_ns - link->said_ns >= note->ask_ms * TERN_NS_PER_MS / 2) {
		link->said_ns = now_ns;
		link->want_alive = true;
		say(link);
	}
}

static void aborted(struct group_link *link, const struct group_note *note)
{
	struct tern_group *g = link->group;
	char text[GROUP_TEXT_MAX];
	bool possible =
		note->status < 0 && note->status > -4096 && note->status != -EINPROGRESS;
	int status = possible ? note->status : -EPROTO;

	link->told = true;
	/* A group that was freed has ended all its calls, and has sent its last notes. */
	if (g->freed)
		return;
	tern_escape(text, sizeof(text), note->text, strnlen(note->text, GROUP_TEXT_MAX));
	group_fail(g, status, "%s", text);
}

/* The rank has left: operations from number `called` on fail the group. */
static void left(struct group_link *link, uint64_t called)
{
	struct tern_group *g = link->group;

	g->left_count += !link->left;
	link->left = true;
	link->called = called;
	for (unsigned i = 0; i < GROUP_OPS && g->status == 0; i++)
		if (g->ops[i].call && g->ops[i].call->sig.number >= called)
			group_fail_with(g, link->rank, -ESHUTDOWN);
}

static void on_note(struct tern_req *req);

static int listen_to(struct group_link *link)
{
	int status;

	link->recv.done = on_note;
	link->recv.arg = link;
	status = tern_recv(
		link->channel, &link->recv, NOTE_KEY, 0, &link->recv_buf, NULL, 0);
	if (status < 0)
		return status;
	link->receiving = true;
	link->group->notes++;
	return 0;
}

/* True if no note can come any more. Otherwise the rank has sent one that cannot be
 * received, and is still connected. */
static bool is_over(const struct group_link *link, int status)
{
	return status == -ESHUTDOWN || link->peer->state == TERN_PEER_STATE_DOWN ||
	       (link->group->freed && link->left);
}

static void gone(struct group_link *link, int status)
{
	struct tern_group *g = link->group;

	snprintf(link->name, sizeof(link->name), "%s", tern_peer_name(link->peer));
	link->gone = true;
	/* A rank that has left, and ended all that it called, has nothing to blame others for. */
	if (g->freed && g->op_count == 0)
		return;
	if (!link->left && (status != -ESHUTDOWN || g->op_count > 0))
		group_fail_with(g, link->rank, status);
	else if (!link->left)
		left(link, g->called);
}

static void on_note(struct tern_req *req)
{
	struct group_link *link = req->arg;
	struct tern_group *g = link->group;
	const struct group_note *note = tern_buf_ptr(&link->recv_buf);

	link->receiving = false;
	link->stirred = true;
	g->notes--;
	if (req->status && is_over(link, req->status)) {
		gone(link, req->status);
		group_settle(g);
		return;
	}
	if (req->status)
		group_fail_with(g, link->rank, req->status);
	else if (req->bytes != sizeof(*note))
		group_fail(g, -EPROTO, "rank %u sent a note of %llu bytes", link->rank,
			(unsigned long long)req->bytes);
	else if (note->kind == GROUP_ALIVE)
		alive(link, note);
	else if (note->kind == GROUP_ABORT)
		aborted(link, note);
	else if (note->kind == GROUP_LEFT)
		left(link, note->called);
	if (!(g->freed && link->left) && listen_to(link) < 0)
		group_fail(g, -ENOMEM, "rank %u cannot listen to rank %u", g->rank,
			link->rank);
	group_settle(g);
}

/* ---- time ---- */

/* The next deadline, and the shortest time limit, of the calls that have not ended. */
struct limits {
	uint64_t due_ns, limit_ns;
};

static void consider(struct limits *limits, const struct group_call *call)
{
	limits->due_ns = TERN_MIN(limits->due_ns, call->due_ns);
	limits->limit_ns = TERN_MIN(limits->limit_ns, call->due_ns - call->began_ns);
}

static struct limits limits_of(const struct tern_group *g)
{
	struct limits limits = {TERN_NEVER, TERN_NEVER};

	for (unsigned i = 0; i < GROUP_OPS; i++)
		if (g->ops[i].call)
			consider(&limits, g->ops[i].call);
	tern_list_for_each (n, &g->waiting)
		consider(&limits, tern_list_entry(n, struct group_call, node));
	return limits;
}

static const struct group_call *oldest(const struct tern_group *g)
{
	const struct group_call *call = NULL;

	for (unsigned i = 0; i < GROUP_OPS; i++)
		if (g->ops[i].call &&
			(!call || g->ops[i].call->sig.number < call->sig.number))
			call = g->ops[i].call;
	return call;
}

/* True if nothing has come for a while, or no keep-alive since the call: then it is not
 * known how many operations the rank has called by now. */
static bool is_silent(const struct group_link *link, const struct group_call *call)
{
	const struct tern_group *g = link->group;

	return link->alive_ns < call->began_ns ||
	       tern_now_ns(g->env) - link->heard_ns > SILENT_TICKS * g->tick_ns;
}

/* True if `a` is further behind than `b`: it is silent, and has been for longer; or has
 * called fewer operations up to this one; or has ended fewer rounds. A rank that has left
 * did its part before. */
static bool is_behind(const struct group_link *a, const struct group_link *b,
	const struct group_call *call)
{
	uint64_t a_called = TERN_MIN(a->called, call->sig.number + 1);
	uint64_t b_called = TERN_MIN(b->called, call->sig.number + 1);
	bool a_silent = is_silent(a, call), b_silent = is_silent(b, call);

	if (a->left != b->left)
		return b->left;
	if (a_silent != b_silent)
		return a_silent;
	if (a_silent && a->heard_ns != b->heard_ns)
		return a->heard_ns < b->heard_ns;
	return a_called != b_called ? a_called < b_called : a->moved < b->moved;
}

static void time_is_up(struct tern_group *g, const struct group_call *call)
{
	const struct group_link *worst = NULL;
	uint64_t number = call->sig.number;
	double took_s = (double)(tern_now_ns(g->env) - call->began_ns) / 1e9;
	char what[72], who[GROUP_WHO_MAX];

	for (uint32_t i = 0; i < g->size; i++)
		if (i != g->rank && (!worst || is_behind(&g->links[i], worst, call)))
			worst = &g->links[i];
	group_describe(&call->sig, what, sizeof(what));
	if (!worst)
		return;
	group_who(g, worst->rank, who);
	if (is_silent(worst, call))
		group_fail(g, -ETIMEDOUT,
			"operation %llu (%s) has not ended in %.3g s: %s does not answer",
			(unsigned long long)number, what, took_s, who);
	else if (worst->called <= number)
		group_fail(g, -ETIMEDOUT,
			"operation %llu (%s) has not ended in %.3g s: %s has called only "
			"%llu operations",
			(unsigned long long)number, what, took_s, who,
			(unsigned long long)worst->called);
	else
		group_fail(g, -ETIMEDOUT,
			"operation %llu (%s) has not ended in %.3g s: %s is furthest "
			"behind",
			(unsigned long long)number, what, took_s, who);
}

static void set_timer(struct tern_group *g, uint64_t due_ns)
{
	if (tern_timer_set(g->ctx, &g->tick, due_ns) == 0)
		g->ticking = true;
	else if (g->status == 0)
		group_fail(g, -ENOMEM, "rank %u has no memory for a timer", g->rank);
}

static uint64_t tick_of(uint64_t limit_ns)
{
	return TERN_MAX(TICK_MIN_NS, TERN_MIN(TICK_MAX_NS, limit_ns / 8));
}

/* Sets the timer to the next tick, or to the next deadline, if that is sooner. */
static void set_tick(struct tern_group *g, uint64_t now_ns)
{
	struct limits limits = limits_of(g);
	uint64_t due_ns = TERN_MAX(limits.due_ns, g->patient_until_ns);

	g->tick_ns = tick_of(limits.limit_ns);
	due_ns = TERN_MAX(due_ns, now_ns + 1);
	set_timer(g, TERN_MIN(tern_ns_add(now_ns, g->tick_ns), due_ns));
}

/* Cuts the connection to a rank whose requests do not end. */
static void cut(struct group_link *link)
{
	if (link->gone || link->cut)
		return;
	link->cut = true;
	tern_log(link->group->env, TERN_LOG_WARN,
		"group: %s does not answer: its connection is cut",
		tern_peer_name(link->peer));
	tern_peer_down(link->peer, -ETIMEDOUT);
}

static void cut_all(struct tern_group *g)
{
	for (unsigned i = 0; i < g->lane_count; i++) {
		struct group_lane *lane = &g->lanes[i];

		if (lane->sending)
			cut(&g->links[lane->rounds[lane->round].send_to]);
		if (lane->receiving)
			cut(&g->links[lane->rounds[lane->round].recv_from]);
	}
	for (unsigned i = 0; i < GROUP_OPS; i++) {
		if (tern_test(&g->ops[i].sig_send) == -EINPROGRESS)
			cut(&g->links[(g->rank + 1) % g->size]);
		if (tern_test(&g->ops[i].sig_recv) == -EINPROGRESS)
			cut(&g->links[(g->rank + g->size - 1) % g->size]);
	}
}

/* Notes who was heard since the last tick. A rank that was stopped itself, which a late
 * tick shows, judges nobody before it has listened long enough to tell who is silent. If
 * the next ticks are late, too, the program polls rarely, and is not waited for. */
static void listen_back(struct tern_group *g, uint64_t now_ns, uint64_t due_ns)
{
	bool late = now_ns - due_ns > 2 * g->tick_ns;
	bool stopped = late && !g->late;

	g->late = late;
	for (uint32_t i = 0; i < g->size; i++) {
		struct group_link *link = &g->links[i];

		if (link->stirred || stopped)
			link->heard_ns = now_ns;
		link->stirred = false;
	}
	if (stopped)
		g->patient_until_ns =
			tern_ns_add(now_ns, (SILENT_TICKS + 1) * g->tick_ns);
}

static void keep_alive(struct tern_group *g, uint64_t now_ns)
{
	const struct group_call *call = oldest(g);

	if (!call || now_ns - call->began_ns < g->tick_ns)
		return;
	for (uint32_t i = 0; i < g->size; i++) {
		if (i == g->rank)
			continue;
		g->links[i].want_alive = true;
		g->links[i].said_ns = now_ns;
		say(&g->links[i]);
	}
}

static void on_tick(struct tern_timer *timer)
{
	struct tern_group *g = tern_container_of(timer, struct tern_group, tick);
	uint64_t now_ns = tern_now_ns(g->env), due_ns = timer->due_ns;
	const struct group_call *call = oldest(g);

	g->ticking = false;
	if (g->ctx->ending)
		return;
	if (g->status) {
		cut_all(g);
		return;
	}
	if (!call)
		return;
	listen_back(g, now_ns, due_ns);
	if (limits_of(g).due_ns <= now_ns && now_ns >= g->patient_until_ns) {
		time_is_up(g, call);
		return;
	}
	keep_alive(g, now_ns);
	set_tick(g, now_ns);
}

void group_watch_called(struct tern_group *g, const struct group_call *call)
{
	uint64_t now_ns = call->began_ns;

	if (g->size == 1)
		return;
	if (g->ticking) {
		if (call->due_ns < g->tick.due_ns ||
			tick_of(call->due_ns - now_ns) < g->tick_ns)
			set_tick(g, now_ns);
		return;
	}
	for (uint32_t i = 0; i < g->size; i++)
		g->links[i].heard_ns = now_ns;
	g->late = false;
	g->tick.fire = on_tick;
	set_tick(g, now_ns);
}

void group_watch_failed(struct tern_group *g)
{
	uint64_t grace_ns = TERN_MIN(g->timeout_ns / 4, TERN_NS_PER_S);

	for (uint32_t i = 0; i < g->size; i++) {
		struct group_link *link = &g->links[i];

		if (i == g->rank || link->told || link->left)
			continue;
		link->told = true;
		link->want_abort = true;
		say(link);
	}
	if (g->ctx->ending)
		return;
	g->tick.fire = on_tick;
	set_timer(g, tern_ns_add(tern_now_ns(g->env), grace_ns));
}

void group_watch_leave(struct tern_group *g)
{
	for (uint32_t i = 0; i < g->size; i++) {
		if (i == g->rank)
			continue;
		g->links[i].want_left = true;
		say(&g->links[i]);
		/* LEFT was the last note. */
		if (g->links[i].left && g->links[i].receiving)
			tern_cancel(&g->links[i].recv);
	}
}

int group_watch_start(struct tern_group *g)
{
	int r = 0;

	for (uint32_t i = 0; i < g->size && r == 0; i++)
		if (i != g->rank)
			r = listen_to(&g->links[i]);
	return r;
}
