/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests: peers that have connected but have not joined as a worker or a server of the
 * job. Any process that may connect can be a guest, so whatever a guest does ends only
 * that guest, and leaves nothing behind.
 *
 * Bounds: a guest has GUEST_NS to join, anew after each "again", and is cut LEAVING_NS
 * after it was refused. A guest that reads a snapshot (store.c) has GUEST_NS from each
 * piece on that is sent to it, and as long as the disk takes to read one. No message of it
 * renews them, nor does "again", so it cannot hold pieces that it does not take. A guest
 * that asks what the job does has GUEST_NS from its first question, and "again" does not
 * renew them. There are at most opts.guests_max guests: one more replaces the oldest.
 *
 * Only the first join may be as long as the longest job (TERN_PS_JOB_TEXT_MAX), since
 * parsing it holds up the server. When the server has a job, a message may have little
 * more than the first join had, or TERN_PS_TEXT_MAX: nobody can slow down the training of a
 * small model by sending large jobs.
 *
 * The received part of a guest's message takes memory until the message is complete, at
 * most TEXT_MAX for all guests. When that is used up, the received part of the oldest
 * guest's message is dropped. So a guest that holds back the end of a message makes room
 * for later guests. A guest that goes on and completes its message is asked to send it
 * again, so many workers may join together, in turns. (What counts is the size of the buffers. The buffer of a message doubles as it grows, so the
 * limit may be reached when half of TEXT_MAX bytes have been received; with many short
 * messages, even earlier.)
 */
#include "server/membership.h"

#include "base/clock.h"
#include "base/util.h"
#include "server/store.h"

#define GUESTS_MAX 512u
#define GUEST_NS   (30 * TERN_NS_PER_S)
#define LEAVING_NS (5 * TERN_NS_PER_S)
#define AGAIN_NS   (100 * TERN_NS_PER_MS)
#define NOTES_NS   (10 * TERN_NS_PER_S)
#define NOTES_MAX  16u
#define TEXT_MAX   (2ull * TERN_PS_JOB_TEXT_MAX)
/* By how much a join or "peer" may be longer than the first join: the addresses of 256 servers, in
 * other words, and the processes of all workers. */
#define MORE_BYTES (256u << 10)
#define MORE_PARTS (1024u + TERN_WORKERS_MAX)

/* Logs how many notes were dropped in the interval that has ended. */
static void tell_dropped(struct tern_timer *timer)
{
	struct tern_server *s = tern_container_of(timer, struct tern_server, notes_timer);

	server_note(s, "%u more notes about peers outside the job were left out",
		s->notes_dropped);
	s->notes_dropped = 0;
}

bool guests_may_note(struct tern_server *s)
{
	uint64_t now_ns = tern_now_ns(s->env);

	if (now_ns >= s->notes_ns) {
		s->notes_ns = now_ns + NOTES_NS;
		s->notes_left = NOTES_MAX;
	}
	if (s->notes_left) {
		s->notes_left--;
		return true;
	}
	if (s->notes_dropped++ == 0)
		tern_timer_set(s->opts.ctx, &s->notes_timer, s->notes_ns);
	return false;
}

void guests_end(struct tern_server *s)
{
	tern_timer_clear(s->opts.ctx, &s->notes_timer);
	if (s->notes_dropped)
		tell_dropped(&s->notes_timer);
}

static void guest_free(struct server_peer *p)
{
	store_left(p);
	free(p->pull);
	free(p->address);
	json_decref(p->kept);
	json_decref(p->incarnations);
	if (!p->freed)
		tern_peer_free(p->peer);
	tern_timer_clear(p->server->opts.ctx, &p->guest_timer);
	tern_list_remove(&p->node);
	free(p);
}

void guests_reap(struct tern_server *s)
{
	tern_list_for_each_safe (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->gone && !server_has_joined(p) && tern_talk_is_idle(&p->talk) &&
			!(p->replaced && change_needs(p)))
			guest_free(p);
	}
}

static void time_is_up(struct tern_timer *timer);

static void set_timer(struct server_peer *p, uint64_t in_ns)
{
	struct tern_server *s = p->server;

	/* `fire` is set each time, because a former connection to server 0 can become a
	 * guest without guests_enter(). */
	p->guest_timer.fire = time_is_up;
	tern_timer_set(s->opts.ctx, &p->guest_timer, tern_now_ns(s->env) + in_ns);
}

static uint64_t time_left(const struct server_peer *p)
{
	uint64_t now_ns = tern_now_ns(p->server->env);

	if (!p->question_until_ns)
		return GUEST_NS;
	return p->question_until_ns > now_ns ? p->question_until_ns - now_ns : 0;
}

/* Asks a guest to send its message again, and gives it GUEST_NS for that, or what is left of
 * the time for its question or its piece. */
static void say_again(struct server_peer *p)
{
	p->asks_again = false;
	tern_talk_say(&p->talk, json_pack("{s:s}", "type", "again"));
	set_timer(p, time_left(p));
}

void guests_asked(struct server_peer *p)
{
	if (!p->question_until_ns)
		p->question_until_ns = tern_now_ns(p->server->env) + GUEST_NS;
	set_timer(p, time_left(p));
}

void guests_stay(struct server_peer *p)
{
	p->takes_pieces = true;
	p->question_until_ns = tern_now_ns(p->server->env) + GUEST_NS;
	set_timer(p, GUEST_NS);
}

void guests_ask_later(struct server_peer *p)
{
	p->asks_again = true;
	set_timer(p, AGAIN_NS);
}

static void time_is_up(struct tern_timer *timer)
{
	struct server_peer *p = tern_container_of(timer, struct server_peer, guest_timer);

	if (p->gone || p->server->opts.ctx->ending)
		return;
	if (p->refused)
		server_drop(p);
	else if (store_reads(p))
		set_timer(p, GUEST_NS); /* the disk is slow, not the guest */
	else if (p->asks_again && time_left(p))
		say_again(p);
	else if (p->takes_pieces)
		server_refuse_for_now(p,
			"it has asked for no more of the snapshot within %llu s",
			GUEST_NS / TERN_NS_PER_S);
	else if (p->question_until_ns)
		server_refuse(p,
			"it is still connected %llu s after its question: expected the "
			"end of the connection",
			GUEST_NS / TERN_NS_PER_S);
	else
		server_refuse(p,
			"it has not said within %llu s which worker or server it is",
			GUEST_NS / TERN_NS_PER_S);
}

/* Cuts off the oldest guest if there are already opts.guests_max guests. */
static void make_place(struct tern_server *s)
{
	struct server_peer *oldest = NULL;
	uint32_t count = 0;

	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->gone || server_has_joined(p))
			continue;
		if (!oldest)
			oldest = p;
		count++;
	}
	if (count >= s->opts.guests_max)
		server_drop(oldest);
}

static void drop_oldest_text(struct tern_talk_budget *budget, uint64_t bytes)
{
	struct tern_server *s = tern_container_of(budget, struct tern_server, guest_text);

	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (budget->bytes_left >= bytes)
			return;
		if (p->talk.budget == budget && p->talk.text && !p->gone)
			tern_talk_skip(&p->talk);
	}
}

/* Asks a guest whose message was dropped to send it again: the loss is not its fault. */
static void ask_again(struct tern_talk *talk)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);

	if (p->gone || p->refused || p->server->over)
		return;
	if (guests_may_note(p->server))
		server_note(p->server,
			"%s is asked to send its message again: peers that have not "
			"joined fill the memory for such messages",
			tern_peer_name(p->peer));
	say_again(p);
}

void guests_know_job(struct tern_server *s, const struct server_peer *p)
{
	struct tern_talk_limits *limits = &s->guest_text.message;

	*limits = (struct tern_talk_limits){TERN_PS_JOB_TEXT_MAX, TERN_PS_JOB_PARTS_MAX};
	if (!p)
		return;
	limits->bytes = TERN_MAX(p->talk.last.bytes + MORE_BYTES, TERN_PS_TEXT_MAX);
	limits->parts = TERN_MAX(p->talk.last.parts + MORE_PARTS, TERN_PS_PARTS_MAX);
}

void guests_init(struct tern_server *s)
{
	if (!s->opts.guests_max)
		s->opts.guests_max = GUESTS_MAX;
	s->guest_text = (struct tern_talk_budget){.bytes_left = TEXT_MAX,
		.short_of = drop_oldest_text,
		.skipped = ask_again};
	guests_know_job(s, NULL);
	s->notes_timer.fire = tell_dropped;
}

void guests_enter(struct server_peer *p)
{
	struct tern_server *s = p->server;

	guests_reap(s);
	make_place(s);
	p->talk.budget = &s->guest_text;
	p->came_ns = tern_now_ns(s->env);
	set_timer(p, GUEST_NS);
}

void guests_leave(struct server_peer *p)
{
	p->talk.budget = NULL;
	p->asks_again = false;
	tern_timer_clear(p->server->opts.ctx, &p->guest_timer);
}

void guests_refused(struct server_peer *p)
{
	if (!server_has_joined(p))
		set_timer(p, LEAVING_NS);
}
