/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers at new addresses. A server that comes in the place of a lost one is given the
 * addresses of some other servers of the job (opts.members), and tells them its own:
 *
 *     new server                  member                          worker
 *     "address", with its number  -->
 *                                 "again", while its own job still goes on with the former
 *                                 server of that number; if the job has no such server, it is
 *                                 added (view.c)
 *                           <--   "known"
 *                                                           <--   "join", anew after the loss
 *                                 "address"                 -->
 *                                                                 begins anew with it
 *
 * A member knows the address for as long as the connection lasts. So the new server keeps
 * a connection to each member, and makes it anew when it is lost: a member that goes back to a
 * snapshot (opts.goes_back) ends all of its connections.
 *
 * Two processes may come in one lost server's place, each with members that know it. Server 0 starts the
 * steps with one of them, which then tells its members the life of the job ("life"). A member that has
 * begun in the same life knows only this process from then on, and sends the other one away. A server that
 * was replaced and has woken up may name the same life, but takes no place of a process that has done so.
 * Before the steps members and workers turn to the process with the higher claim (members_claim()), so in
 * the end all of them know the same one.
 *
 * A server that was made with the memory of a follower (follower.h) asks the server whose follower it was,
 * too (opts.follows), and tells the members of itself only while it has no connection to that one. If that
 * one lives, this server ends, and its process follows it again. In a job of several servers, server 0
 * starts the steps with one server of each number. In a job of one server nobody else judges, so both
 * could go on, each with a part of the workers, and overwrite each other's snapshots. So such a
 * server begins with a part of the workers only if nothing listens at the followed server's address
 * (start.c).
 *
 * A server that was not lost, and goes back, does the same with server 0 (opts.zero) until the steps
 * begin, to hear if it is removed meanwhile, unless server 0 is a member. Its address is as before ("stays"), so server 0 tells
 * it to nobody.
 */
#include "server/membership.h"
#include "server/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/peer.h"

/* How often a server whose steps have begun asks a member that goes on with another process, one time in
 * 0.1 s. The member may hear a moment later that the steps have begun. */
#define ASKS_MOST 20u
/* The pause before a member is dialled again: it is twice as long each time that the member does not
 * take this server's word. */
#define PAUSE_NS     (10 * TERN_NS_PER_MS)
#define PAUSE_MAX_NS (200 * TERN_NS_PER_MS)

/* ---- the new server ---- */

struct member_link { /* connection to a member */
	struct tern_server *server;
	const char *address;
	struct tern_peer *peer;
	struct tern_talk talk;
	bool up, broken, gone;
	bool knows; /* the member has taken this server's word */
	bool done; /* the steps have begun with this server: the member need not know more */
	uint32_t asks; /* times that the member was asked since then (ASKS_MOST) */
	bool said_waiting, said_unreachable; /* noted already */
	bool is_followed;                    /* opts.follows: nothing is noted of it */
	/* The last attempt has found that no process listens there. Or, if is_followed: a process has
	 * answered that was started anew, and has no job to go on with. */
	bool refuses, is_new;
	uint64_t pause_ns; /* the last pause; 0: there was none since the member knows */
	struct tern_timer timer; /* for the next attempt */
};

int members_write_own(const struct tern_server *s, char *out, size_t bytes)
{
	char addresses[8][TERN_ADDRESS_BYTES];
	int n = tern_listener_addresses(
		s->listener, addresses, TERN_ARRAY_SIZE(addresses));
	size_t at = 0;

	for (int i = 0; i < TERN_MIN(n, (int)TERN_ARRAY_SIZE(addresses)); i++) {
		size_t more = strlen(addresses[i]) + (at > 0);

		if (at + more >= bytes)
			break;
		at += (size_t)snprintf(
			out + at, bytes - at, "%s%s", at ? "+" : "", addresses[i]);
	}
	return n < 0 ? n : 0;
}

bool members_has_begun(const struct tern_server *s)
{
	return s->opts.has_begun || s->opts.follows;
}

#define CLAIM_BEGUN  (1ull << 62)
#define CLAIM_MEMORY (1ull << 61)
/* Below these bits: the step that is in memory, and the lowest bits of the process's number. */
#define CLAIM_STEP_SHIFT 24
#define CLAIM_STEP_MAX   ((1ull << (61 - CLAIM_STEP_SHIFT)) - 1)

uint64_t members_claim(const struct tern_server *s)
{
	uint64_t claim = s->history->incarnation & ((1ull << CLAIM_STEP_SHIFT) - 1);

	if (members_has_begun(s))
		claim |= CLAIM_BEGUN;
	if (s->from_memory) {
		uint64_t step = s->from_memory->step;

		claim |= CLAIM_MEMORY | TERN_MIN(step, CLAIM_STEP_MAX)
						<< CLAIM_STEP_SHIFT;
	}
	return claim;
}

static void say_address(struct member_link *l)
{
	const struct tern_server *s = l->server;
	char address[TERN_ADDRESS_BYTES] = "";

	if (members_write_own(s, address, sizeof(address)) == 0)
		tern_talk_say(&l->talk,
			json_pack(
				"{s:s, s:I, s:s, s:b, s:b, s:I, s:b, s:b, s:I, s:b, s:I}",
				"type", "address", "server", (json_int_t)s->opts.index,
				"address", address, "begun", members_has_begun(s),
				"replaces", s->opts.replaces, "claim",
				(json_int_t)members_claim(s), "stays",
				!s->opts.member_count, "follows", l->is_followed, "step",
				(json_int_t)s->first_version, "serves", s->running,
				"life", (json_int_t)(s->running ? s->life : 0)));
}

/* Tries again in a moment. */
static void dial_later(struct member_link *l)
{
	struct tern_server *s = l->server;

	if (s->told || l->done)
		return;
	l->pause_ns = l->pause_ns ? TERN_MIN(2 * l->pause_ns, PAUSE_MAX_NS) : PAUSE_NS;
	tern_timer_set(s->opts.ctx, &l->timer, tern_now_ns(s->env) + l->pause_ns);
}

/* The member refuses: it ends, or cannot take this server, or not now. A server that has been in
 * the job goes on trying, since the member may have been removed meanwhile. */
static void refused(struct member_link *l, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	bool later = json_is_true(json_object_get(message, "later"));

	if (!text)
		text = "no reason given";
	if (l->server->running || l->server->over || l->is_followed)
		return;
	if (!later && !l->server->opts.has_begun)
		server_fail(l->server, -EINVAL, "--join: the server at %s refuses: %s",
			l->address, text);
	else if (!l->said_waiting)
		server_note(
			l->server, "the server at %s: %s: tried again", l->address, text);
	l->said_waiting = true;
}

/* The member goes on with another server of this number, or with this one: it is not told. */
static void told_later(struct member_link *l)
{
	struct tern_server *s = l->server;

	if (s->running && l->asks++ == ASKS_MOST) {
		l->done = true;
		tern_peer_close(l->peer);
		return;
	}
	if (!s->running && !l->said_waiting && !l->is_followed)
		server_note(s,
			"the server at %s has another server %u, or cannot take one "
			"now: waits until it can",
			l->address, s->opts.index);
	l->said_waiting = true;
	l->is_new = l->is_followed;
	say_address(l);
}

static void on_abort(struct member_link *l, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	struct tern_server *s = l->server;

	if (s->running || s->over)
		return;
	if (json_is_true(json_object_get(message, "final"))) {
		s->by_operator = true;
		server_fail(s, -ECANCELED, "%s", text ? text : "no reason given");
	} else if (view_on_abort(s, message)) {
		server_fail(s, -EAGAIN, "the servers of the job change");
	}
}

/* The server lives whose follower this process was. */
static void on_serves(struct member_link *l)
{
	struct tern_server *s = l->server;

	if (!l->is_followed || s->running || s->over)
		return;
	s->stats.follows_again = true;
	server_fail(s, -EAGAIN, "server %u lives, at %s: this process follows it again",
		s->opts.index, l->address);
}

/* The job has come to its end with another process as this server. */
static void on_complete(const struct member_link *l)
{
	struct tern_server *s = l->server;

	if (s->running || s->over)
		return;
	server_note(s, "the job is complete, says the server at %s", l->address);
	server_fail(s, 0, "the job is complete");
}

/* The member's newest list does not have this server. A process that knows no list of its own and was not in
 * the job cannot tell whether that one is old, so it believes server 0 only. */
static void on_removed(struct member_link *l, const json_t *message)
{
	struct tern_server *s = l->server;
	bool believes = s->view.number || members_has_begun(s) ||
			json_is_true(json_object_get(message, "zero"));

	if (s->running || (believes && view_on_removed(s, message)))
		return;
	if (!l->said_waiting && !l->is_followed)
		server_note(s,
			"the server at %s knows no server %u, but may know an old list "
			"of the servers: tried again",
			l->address, s->opts.index);
	l->said_waiting = true;
	tern_peer_close(l->peer);
}

static void link_heard(struct tern_talk *talk, const json_t *message)
{
	struct member_link *l = tern_container_of(talk, struct member_link, talk);
	const char *type = tern_talk_type(message);

	if (strcmp(type, "again") == 0) {
		told_later(l);
	} else if (strcmp(type, "removed") == 0) {
		on_removed(l, message);
	} else if (strcmp(type, "view") == 0) {
		view_hear(l->server, message);
	} else if (strcmp(type, "abort") == 0) {
		on_abort(l, message);
	} else if (strcmp(type, "known") == 0) {
		l->pause_ns = 0;
		l->knows = true;
		if (l->server->opts.member_count)
			server_note_coming(l->server,
				"the server at %s tells the workers this server's "
				"address",
				l->address);
	} else if (strcmp(type, "serves") == 0) {
		on_serves(l);
	} else if (strcmp(type, "complete") == 0) {
		on_complete(l);
	} else if (strcmp(type, "refused") == 0) {
		refused(l, message);
	}
}

static void link_broken(struct tern_talk *talk, int status)
{
	struct member_link *l = tern_container_of(talk, struct member_link, talk);

	(void)status;
	tern_peer_close(l->peer);
}

static void link_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct member_link *l = arg;
	char why[200];

	if (event == TERN_PEER_UP) {
		l->up = true;
		l->said_unreachable = l->refuses = false;
	}
	l->broken = event == TERN_PEER_SUSPECT;
	if (event != TERN_PEER_DOWN)
		return;
	l->refuses = !l->up && status == -ECONNREFUSED;
	l->is_new = false;
	if (status && !l->said_unreachable && !l->is_followed && !l->server->running)
		server_note(l->server,
			"the server at %s cannot be reached: %s: tried again", l->address,
			tern_peer_why(peer, status, why, sizeof(why)));
	l->said_unreachable = true;
	l->gone = true;
	tern_talk_close(&l->talk);
	dial_later(l);
	tern_defer(l->server->opts.ctx, &l->server->end_call);
}

static void dial(struct member_link *l)
{
	struct tern_server *s = l->server;
	char name[32];
	int r;

	snprintf(name, sizeof(name), "server %u", s->opts.index);
	l->up = l->broken = l->gone = l->knows = false;
	l->talk = (struct tern_talk){.pool = s->talk_pool,
		.ctx = s->opts.ctx,
		.heard = link_heard,
		.broken = link_broken};
	r = tern_connect(s->opts.ctx, l->address,
		&(struct tern_peer_opts){.event = link_event, .arg = l, .name = name},
		&l->peer);
	if (r == 0)
		r = tern_talk_open(&l->talk, l->peer);
	if (r == 0) {
		say_address(l);
		return;
	}
	l->gone = true;
	dial_later(l);
}

static const struct member_link *find_followed(const struct tern_server *s)
{
	for (uint32_t i = 0; s->opts.follows && i < s->member_link_count; i++)
		if (s->member_links[i].is_followed)
			return &s->member_links[i];
	return NULL;
}

/* True if this server is connected to the one whose follower its process was: that one decides, so
 * no member hears of this server. */
static bool reaches_followed(const struct tern_server *s)
{
	const struct member_link *l = find_followed(s);

	return l && l->up && !l->gone;
}

bool members_followed_may_live(const struct tern_server *s)
{
	const struct member_link *l = find_followed(s);

	return l && !l->refuses && !l->is_new;
}

static void dial_again(struct tern_timer *timer)
{
	struct member_link *l = tern_container_of(timer, struct member_link, timer);

	if (l->done || l->server->over || l->server->opts.ctx->ending)
		return;
	if ((l->peer && (!l->gone || !tern_talk_is_idle(&l->talk))) ||
		(!l->is_followed && reaches_followed(l->server))) {
		dial_later(l);
		return;
	}
	tern_peer_free(TERN_TAKE(l->peer));
	dial(l);
}

/* True if server 0 is known, and is none of the members, which are told anyway. */
static bool zero_is_extra(const struct tern_server *s)
{
	for (uint32_t i = 0; s->opts.zero && i < s->opts.member_count; i++)
		if (strcmp(s->opts.members[i], s->opts.zero) == 0)
			return false;
	return s->opts.zero != NULL;
}

int members_init(struct tern_server *s)
{
	uint32_t named = s->opts.member_count, others = named + zero_is_extra(s);
	uint32_t count = others + (s->opts.follows != NULL);

	if (!count)
		return 0;
	s->member_links = calloc(count, sizeof(*s->member_links));
	if (!s->member_links)
		return -ENOMEM;
	s->member_link_count = count;
	for (uint32_t i = 0; i < count; i++) {
		struct member_link *l = &s->member_links[i];

		l->server = s;
		l->is_followed = i == others;
		l->address = i < named    ? s->opts.members[i]
			     : i < others ? s->opts.zero
					  : s->opts.follows;
		l->timer.fire = dial_again;
		if (s->opts.follows && !l->is_followed)
			dial_later(l); /* the followed server is asked first */
		else
			dial(l);
	}
	return 0;
}

/* A connection that is broken is dropped: a goodbye would first try on to reach the address. */
static void leave(struct member_link *l)
{
	if (!l->peer || l->gone)
		return;
	if (!l->broken) {
		tern_peer_close(l->peer);
		return;
	}
	l->gone = true;
	tern_talk_close(&l->talk);
	tern_peer_free(TERN_TAKE(l->peer));
}

/* The links to members stay: workers that come later ask the members for this server's address, and
 * each member hears that it is the right one. Server 0 need not know more. A process that was started anew
 * in the followed server's place hears that it is not needed. */
void members_begun(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->opts.member_count; i++)
		if (s->member_links[i].peer && !s->member_links[i].gone)
			say_address(&s->member_links[i]);
	for (uint32_t i = s->opts.member_count; i < s->member_link_count; i++) {
		struct member_link *l = &s->member_links[i];

		l->done = true;
		if (l->is_new)
			say_address(l);
		else
			leave(l);
	}
}

void members_leave(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->member_link_count; i++)
		leave(&s->member_links[i]);
}

bool members_know(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->member_link_count; i++)
		if (s->member_links[i].knows && !s->member_links[i].gone)
			return true;
	return false;
}

bool members_are_gone(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->member_link_count; i++)
		if (s->member_links[i].up && !s->member_links[i].gone)
			return false;
	return true;
}

void members_end(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->member_link_count; i++)
		tern_timer_clear(s->opts.ctx, &s->member_links[i].timer);
}

void members_fini(struct tern_server *s)
{
	free(s->member_links);
	s->member_links = NULL;
	s->member_link_count = 0;
}

/* ---- the member ---- */

/* True if the steps have begun with the process that has told its address, and with this server. */
static bool makes_steps(const struct server_peer *p)
{
	return p->server->running && p->life && p->life == p->server->life;
}

/* True if the process may be the server that it says it is. During the steps that is only the one with
 * which they have begun. */
static bool may_be_right(const struct server_peer *p)
{
	return !p->server->running || makes_steps(p);
}

static bool may_be_told(const struct server_peer *p)
{
	return p->address && !p->stays && !p->gone && may_be_right(p);
}

static void tell(const struct server_peer *newcomer, struct server_peer *p)
{
	tern_talk_say(
		&p->talk, json_pack("{s:s, s:I, s:s, s:I, s:b}", "type", "address",
				  "server", (json_int_t)newcomer->index, "address",
				  newcomer->address, "claim", (json_int_t)newcomer->claim,
				  "serves", makes_steps(newcomer)));
}

void members_tell(struct server_peer *worker)
{
	tern_list_for_each (n, &worker->server->peers) {
		const struct server_peer *p =
			tern_list_entry(n, struct server_peer, node);

		if (may_be_told(p))
			tell(p, worker);
	}
}

static void tell_all(const struct server_peer *newcomer)
{
	tern_list_for_each (n, &newcomer->server->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if ((p->is_worker || p->returning) && !p->gone)
			tell(newcomer, p);
	}
}

/* The server that has said that it is this one; NULL: none has. */
static struct server_peer *find_newcomer(const struct tern_server *s, uint32_t number)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->address && p->index == number && !p->gone)
			return p;
	}
	return NULL;
}

/* The process that has said that it is server 0. NULL: none has, or the steps have begun with another one,
 * which is not lost. */
static const struct server_peer *find_new_zero(const struct tern_server *s)
{
	const struct server_peer *p = find_newcomer(s, 0);
	bool has_other = s->running && s->to_zero && !s->to_zero->gone;

	return p && has_other && !makes_steps(p) ? NULL : p;
}

const char *members_find_zero(const struct tern_server *s)
{
	const struct server_peer *p = find_new_zero(s);

	return p ? p->address : start_find_present(s)->zero;
}

const char *tern_server_zero(const struct tern_server *s)
{
	const struct server_peer *p = find_new_zero(s);

	if (p)
		return p->address;
	if (s->to_zero)
		return s->to_zero->zero;
	return *s->heard_zero ? s->heard_zero : NULL;
}

const char *members_address_of(const struct tern_server *s, uint32_t index)
{
	const struct server_peer *p = find_newcomer(s, view_number(s, index));

	if (index == 0)
		return members_find_zero(s);
	return p && may_be_right(p) ? p->address : s->job.servers[index];
}

/* Another process has come with the number of `first`, and has a higher claim or makes the job's steps: it
 * takes the place of `first`, so that all members know the same one of the two. */
static void displace(struct server_peer *first)
{
	first->refused = true;
	view_newcomer_left(first);
	free(TERN_TAKE(first->address));
	tern_talk_deafen(&first->talk);
	tern_talk_say(&first->talk, json_pack("{s:s}", "type", "again"));
	tern_peer_close(first->peer);
	guests_refused(first);
}

/* True if the server is not lost, as far as this one knows: another one has said that it is that
 * server, or the steps have begun. Only server 0 knows of the others then. */
static bool has_server(const struct tern_server *s, uint32_t number)
{
	if (find_newcomer(s, number))
		return true;
	if (!s->running)
		return false;
	if (s->index == 0)
		return others_find_number(s, number);
	return number > 0 || !s->to_zero->gone;
}

/* A process without the job in memory has come as server `number`, after the connection to that server had
 * broken. So that server was killed, and the job goes back at once, rather than when the connection is given up
 * (0.5 s). "abort" says "forget", since the job can go on from a snapshot only: no server keeps what it has
 * in memory (tern_server_keep()). Not if the server has a follower, which has the job in memory and takes its
 * place. Nor if the new process was here before the connection broke: then the break does not show that the
 * server was killed. */
static void maybe_lost(const struct server_peer *newcomer, uint32_t number)
{
	struct tern_server *s = newcomer->server;
	struct server_peer *p = s->index == 0 ? others_find_number(s, number)
				: number == 0 ? s->to_zero
					      : NULL;

	if (!s->running || !p || p->gone || !p->unlinked || p->is_followed ||
		newcomer->came_ns < p->broken_ns || !back_is_possible(s) ||
		s->bye_count > 0)
		return;
	s->forgets = true;
	s->replaced = number;
	server_drop(p);
	back_or_fail(s, -EPIPE,
		"server %u is gone: its connection is broken, and another process has "
		"come "
		"in its place",
		number);
}

bool members_is_address(const char *text)
{
	size_t bytes = strlen(text);

	for (size_t i = 0; i < bytes; i++)
		if (text[i] <= ' ' || text[i] > '~')
			return false;
	return bytes > 0 && bytes < TERN_ADDRESS_BYTES;
}

/* Keeps the newcomer's address. False: there is no memory, and it is refused. */
static bool know(struct server_peer *p, uint32_t number, const char *address, bool stays)
{
	p->address = strdup(address);
	if (!p->address) {
		server_refuse(p, "there is no memory for its address");
		return false;
	}
	p->index = number;
	p->stays = stays;
	if (!stays)
		view_moved(p->server, number, address);
	guests_leave(p);
	tern_talk_say(&p->talk, json_pack("{s:s}", "type", "known"));
	if (p->server->view.number)
		view_say(p);
	return true;
}

/* A follower of this server waits to take its place, and has version `step` in memory. If this process
 * was started anew, in a job that goes back, with an older snapshot or none, the follower has more of
 * the job: this one tells its workers, and makes room. It also does if the follower serves already. */
static void on_follower_waits(
	struct server_peer *follower, const char *address, const json_t *message)
{
	struct tern_server *s = follower->server;
	json_int_t step = json_integer_value(json_object_get(message, "step"));
	bool serves = json_is_true(json_object_get(message, "serves"));
	bool is_whole = s->has_job && shard_is_made(s);

	if (s->running || s->opts.has_begun || s->from_memory ||
		(!serves && is_whole && step < (json_int_t)s->first_version)) {
		tern_talk_say(&follower->talk, json_pack("{s:s}", "type", "serves"));
	} else if (serves || (s->opts.returns && is_whole && start_find_present(s))) {
		if (!know(follower, view_own_number(s), address, false))
			return;
		tell_all(follower);
		s->stats.replaced = true;
		server_fail(s, -EAGAIN,
			"server %u's follower, at %s, has the job in memory, and comes "
			"in "
			"its place",
			view_own_number(s), address);
	} else {
		follower->follower_waits = true;
		guests_ask_later(follower);
	}
}

bool members_follower_waits(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		const struct server_peer *p =
			tern_list_entry(n, struct server_peer, node);

		if (p->follower_waits && !p->gone)
			return true;
	}
	return false;
}

/* A process comes as another server of the job: as a new one in its place, or, if it `stays`, as the
 * one that it was. */
static void take_place(
	struct server_peer *p, uint32_t number, const char *address, bool stays)
{
	struct tern_server *s = p->server;
	struct server_peer *first = find_newcomer(s, number);
	bool is_right = first && makes_steps(p) && !makes_steps(first);

	if (is_right || (first && !stays && p->claim > first->claim && !s->running))
		displace(first);
	if (!is_right && has_server(s, number)) {
		guests_ask_later(p);
		if (!p->has_begun && !p->life)
			maybe_lost(p, number);
		return;
	}
	if (!know(p, number, address, stays) || stays)
		return;
	if (guests_may_note(s))
		server_note_coming(s, "server %u is at %s now", p->index, p->address);
	tell_all(p);
	if (number == 0 && s->to_zero && !s->running &&
		strcmp(s->to_zero->zero, p->address) != 0) {
		start_again(s);
		s->tries_workers_zero = false;
	}
}

/* The steps have begun with a process that this server knows already. */
static void on_life(const struct server_peer *newcomer)
{
	if (may_be_told(newcomer) && makes_steps(newcomer))
		tell_all(newcomer);
}

void members_on_address(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const json_t *number = json_object_get(message, "server");
	const char *address = json_string_value(json_object_get(message, "address"));
	json_int_t index = json_integer_value(number);
	bool begun = json_is_true(json_object_get(message, "begun"));

	if (!json_is_integer(number) || index < 0 || index >= TERN_SERVERS_MAX ||
		!address || !members_is_address(address)) {
		server_refuse(p,
			"its message \"address\" is wrong: expected a server from 0 to "
			"%u, and an address of at most %u printable characters",
			TERN_SERVERS_MAX - 1, TERN_ADDRESS_BYTES - 1);
		return;
	}
	p->life = (uint64_t)json_integer_value(json_object_get(message, "life"));
	p->claim = tern_talk_claim(message);
	if (p->address) {
		on_life(p);
		return;
	}
	if (!s->opts.goes_back || (s->has_job && s->job.mode != TERN_MODE_SYNC)) {
		server_refuse(p,
			"its job does not go back to snapshots, so no server can come to "
			"it");
		return;
	}
	if (!view_has(s, (uint32_t)index) &&
		(begun || json_is_true(json_object_get(message, "replaces")))) {
		view_say_removed(p);
		return;
	}
	if (index == (json_int_t)view_own_number(s) &&
		json_is_true(json_object_get(message, "follows"))) {
		on_follower_waits(p, address, message);
		return;
	}
	/* The sender may mean to replace this server itself. */
	if (index == (json_int_t)view_own_number(s)) {
		server_refuse(p,
			"this is server %u itself: --join has the addresses of others",
			(unsigned)index);
		return;
	}
	if (!find_newcomer(s, (uint32_t)index) && !view_has(s, (uint32_t)index)) {
		if (view_may_add(p, (uint32_t)index) &&
			know(p, (uint32_t)index, address, false))
			view_add(p);
		return;
	}
	p->has_begun = begun;
	take_place(p, (uint32_t)index, address,
		json_is_true(json_object_get(message, "stays")));
}

void members_left(struct server_peer *p)
{
	struct tern_server *s = p->server;

	/* During the steps server 0 has another connection to each server of the job, which shows a loss. This one
	 * also ends when it is no longer needed, and at the end of the job. A server that is to be added has
	 * no other. */
	if (!p->stays && !s->over && !(s->running && view_has(s, p->index)) &&
		guests_may_note(s))
		server_note_coming(
			s, "server %u, which was at %s, is gone", p->index, p->address);
	view_newcomer_left(p);
	free(TERN_TAKE(p->address));
}
