/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a server is, for a worker whose job goes back: another process may be that server by now.
 * Besides the address at which it joins a server, a worker knows one other address of that server
 * (opts.places, which outlives the worker):
 *
 *     told by       message      the other address is
 *     the server    "follower"   that of its follower, which takes its place when it is lost
 *     other ones    "address"    that of a process which has come in the place of a lost server, if
 *                                the worker has been welcomed by a process with the first address:
 *                                perhaps that is the lost one, which has woken up
 *     nobody                     the former one, when the worker has turned to the other, or to a process
 *                                with a higher claim (below)
 *
 * To turn means that this worker ends with -EAGAIN, and the next one joins the server at the other
 * address. A worker turns as often as it takes, so it tries both addresses in turn, when
 *
 *     - the connection to the server ends, and somebody has told the other address;
 *     - the server refuses the worker for now, as a follower does until its server is lost;
 *     - the server has not welcomed the worker for some time: UNREACHED_NS without a connection,
 *       else SILENT_NS, and longer with each try, since the server may just be slow. A connected
 *       server is given twice as long each time, without a limit: it may read a large snapshot. A
 *       process that hangs accepts no connection, so the worker does not wait that long for it;
 *     - this host has no fabric for the address (after UNREACHED_NS, too);
 *     - other servers have the job in memory, and this one does not: a process at the other address may
 *       have it, too (places_look_for_memory);
 *     - another server cannot be reached, and no other address of it is known: the process at this
 *       server's other address may know where it is;
 *     - all servers have welcomed the worker, but the steps have not begun for 10 s (wait.c), and the
 *       other address was told as that of a process in the server's place. A turn does not change
 *       which of the two addresses that is (struct tern_worker_place).
 *
 * A worker that the others can tell a new address need not try: it turns at once (places_on_address). If
 * it has been welcomed at the address that it knows, it turns only to a process with which the steps have
 * begun ("serves" in "address"), or before that to one with a higher claim than the one that has welcomed
 * it ("claim" in "address" and in "welcome", server/members.c). So all workers turn to the same one.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define LOOK_NS      (50 * TERN_NS_PER_MS) /* between two looks at who has not welcomed */
#define UNREACHED_NS (250 * TERN_NS_PER_MS)
#define SILENT_NS    (2 * TERN_NS_PER_S)
/* Most doublings of the two times: to 2 s without a connection, else to 24 days, which is no limit. */
#define UNREACHED_DOUBLINGS 3u
#define SILENT_DOUBLINGS    20u

static struct tern_worker_place *place_of(const struct worker_server *s)
{
	const struct tern_worker *w = s->worker;

	return w->opts.places ? &w->opts.places[s->number] : NULL;
}

bool places_has_other(const struct worker_server *s)
{
	return s->worker->opts.goes_back && place_of(s) && *place_of(s)->address;
}

static void set_other(
	struct worker_server *s, const char *address, enum tern_place_kind kind)
{
	struct tern_worker_place *place = place_of(s);

	if (!place)
		return;
	snprintf(place->address, sizeof(place->address), "%s", address);
	place->kind = kind;
}

/* The next worker joins this server at `address`. */
static void move(struct worker_server *s, const char *address, enum tern_place_kind kind)
{
	struct tern_worker *w = s->worker;

	if (place_of(s))
		place_of(s)->here = kind;
	if (w->opts.moved)
		w->opts.moved(w->opts.arg, s->number, address);
}

static bool may_turn(const struct worker_server *s)
{
	return !s->worker->over && places_has_other(s);
}

static void turn(struct worker_server *s)
{
	struct tern_worker_place *place = place_of(s);
	const struct tern_worker_place other = *place;

	set_other(s, s->worker->job.servers[s->index], other.here);
	move(s, other.address, other.kind);
	place->turns++;
}

bool places_turn(struct worker_server *s)
{
	/* Nobody is likely to be at the former address. It is tried if the present one does not answer:
	 * otherwise each connection that breaks would cost a wait for a process that is gone. */
	if (!may_turn(s) || place_of(s)->kind == TERN_PLACE_OWN)
		return false;
	turn(s);
	return true;
}

bool places_look_elsewhere(struct worker_server *s)
{
	char text[320];
	const char *a = s->worker->job.servers[s->index], *b;
	bool swap;

	if (!may_turn(s))
		return false;
	b = place_of(s)->address;
	swap = strcmp(a, b) > 0;
	/* The order of the addresses does not depend on which one is tried, so the user is told once. */
	snprintf(text, sizeof(text), "server %u is looked for at %s and at %s", s->number,
		swap ? b : a, swap ? a : b);
	turn(s);
	worker_give_up(s->worker, -EAGAIN, "%s", text);
	return true;
}

bool places_turn_at_last(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count && w->state <= WORKER_RUNNING; i++) {
		struct worker_server *s = &w->servers[i];

		if (s->welcome && place_of(s) && place_of(s)->kind != TERN_PLACE_NEW)
			continue;
		if (places_look_elsewhere(s))
			return true;
	}
	return false;
}

bool places_look_for_memory(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count && w->state <= WORKER_RUNNING; i++) {
		struct worker_server *s = &w->servers[i];
		struct tern_worker_place *place = place_of(s);

		/* Nobody is likely to be at the former address of a lost server. But if its follower is at the
		 * present one, the server may live at the former. */
		if (!s->lacks_memory || !place || place->searched ||
			(place->kind == TERN_PLACE_OWN &&
				place->here != TERN_PLACE_FOLLOWER))
			continue;
		if (!places_look_elsewhere(s))
			continue;
		place->searched = true;
		return true;
	}
	return false;
}

bool places_ask_elsewhere(const struct worker_server *unreached)
{
	struct tern_worker *w = unreached->worker;
	struct worker_server *least = NULL;

	for (uint32_t i = 0; i < w->job.server_count && w->state <= WORKER_RUNNING; i++) {
		struct worker_server *s = &w->servers[i];

		if (may_turn(s) &&
			(!least || place_of(s)->turns < place_of(least)->turns))
			least = s;
	}
	if (!least)
		return false;
	turn(least);
	/* The text does not depend on which one is turned, so the user is told once. */
	worker_give_up(w, -EAGAIN,
		"server %u cannot be reached: another server is looked for elsewhere, "
		"which may know where it is",
		unreached->number);
	return true;
}

/* ---- a server that does not welcome the worker ---- */

static uint64_t patience_ns(const struct worker_server *s)
{
	const struct tern_worker_place *place = place_of(s);

	if (s->up)
		return SILENT_NS << TERN_MIN(place->silences, SILENT_DOUBLINGS);
	/* Both addresses are tried before the patience grows. */
	return UNREACHED_NS << TERN_MIN(place->turns / 2, UNREACHED_DOUBLINGS);
}

static void look(struct tern_timer *timer)
{
	struct tern_worker *w =
		tern_container_of(timer, struct tern_worker, places_timer);
	uint64_t now_ns = tern_now_ns(w->env);

	if (w->over || w->opts.ctx->ending)
		return;
	for (uint32_t i = 0; i < w->job.server_count; i++) {
		struct worker_server *s = &w->servers[i];

		if (!s->welcome && places_has_other(s) &&
			now_ns - w->joined_ns >= patience_ns(s)) {
			place_of(s)->silences += s->up;
			places_look_elsewhere(s);
			return;
		}
	}
	if (!w->begun)
		tern_timer_set(w->opts.ctx, &w->places_timer, now_ns + LOOK_NS);
}

void places_start(struct tern_worker *w)
{
	w->joined_ns = tern_now_ns(w->env);
	w->places_timer.fire = look;
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (places_has_other(&w->servers[i]))
			tern_timer_set(
				w->opts.ctx, &w->places_timer, w->joined_ns + LOOK_NS);
}

void places_end(struct tern_worker *w)
{
	tern_timer_clear(w->opts.ctx, &w->places_timer);
	/* The servers with which steps were made are the right ones. */
	for (uint32_t i = 0; w->begun && w->opts.places && i < w->job.server_count; i++) {
		struct tern_worker_place *place = place_of(&w->servers[i]);

		if (place->kind == TERN_PLACE_NEW)
			place->kind = TERN_PLACE_OWN;
		if (place->here == TERN_PLACE_NEW)
			place->here = TERN_PLACE_OWN;
		place->turns = place->silences = 0;
		place->claim = 0;
		place->searched = false;
	}
}

/* ---- what servers tell ---- */

/* Begins anew, if the worker can, with a server at another address. */
static void follow(struct worker_server *s, const char *address)
{
	struct tern_worker *w = s->worker;
	struct tern_worker_place *place = place_of(s);

	/* The process at that address may make room for the former server again. */
	if (place && strcmp(place->address, address) == 0)
		set_other(s, w->job.servers[s->index], place->here);
	move(s, address, TERN_PLACE_NEW);
	if (w->opts.goes_back && !w->begun && w->state <= WORKER_RUNNING)
		worker_give_up(w, -EAGAIN, "server %u is at %s now", s->number, address);
}

/* True if the worker is to turn to the process of this claim, which is rather the server than the one that has
 * welcomed the worker. It turns to a process once: if it cannot reach that, it comes back. */
static bool take_higher(struct worker_server *s, uint64_t claim)
{
	struct tern_worker_place *place = place_of(s);

	if (!place || claim <= TERN_MAX(s->claim, place->claim))
		return false;
	place->claim = claim;
	return true;
}

void places_on_address(struct worker_server *from, const json_t *message)
{
	struct tern_worker *w = from->worker;
	const char *address = json_string_value(json_object_get(message, "address"));
	const json_t *number = json_object_get(message, "server");
	uint64_t claim = tern_talk_claim(message);
	bool serves = json_is_true(json_object_get(message, "serves"));
	struct worker_server *s;
	uint32_t i = 0;

	while (i < w->job.server_count &&
		w->servers[i].number != json_integer_value(number))
		i++;
	if (!json_is_integer(number) || i == w->job.server_count || !address ||
		strlen(address) >= sizeof(w->job.servers[0]) ||
		strcmp(address, w->job.servers[i]) == 0)
		return;
	s = &w->servers[i];
	/* A server that tells another address for its own number makes room for its follower. */
	if (!s->welcome || s == from || serves) {
		follow(s, address);
	} else if (take_higher(s, claim)) {
		set_other(s, w->job.servers[i], place_of(s)->here);
		follow(s, address);
	} else if (claim != s->claim) {
		set_other(s, address, TERN_PLACE_NEW);
	}
}

void places_on_follower(struct worker_server *s, const json_t *message)
{
	const char *address = json_string_value(json_object_get(message, "address"));
	const json_t *number = json_object_get(message, "server");

	if (!json_is_integer(number) || json_integer_value(number) != s->number ||
		!address || strlen(address) >= sizeof(s->worker->job.servers[0]))
		return;
	/* Without a follower the server's former address may still be the right one. */
	if (*address || (place_of(s) && place_of(s)->kind == TERN_PLACE_FOLLOWER))
		set_other(s, address, TERN_PLACE_FOLLOWER);
}
