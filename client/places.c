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
 *     nobody                     the former one, when the worker has turned to the other
 *
 * To turn means that this worker ends with -EAGAIN, and the next one joins the server at the other
 * address. A worker turns as often as it takes, so it tries both addresses in turn, when
 *
 *     - the connection to the server ends;
 *     - the server refuses the worker for now, as a follower does until its server is lost;
 *     - the server has not welcomed the worker for some time: UNREACHED_NS without a connection,
 *       else SILENT_NS, and longer with each try, since the server may just be slow;
 *     - all servers have welcomed the worker, but the steps have not begun for 10 s (wait.c), and the
 *       address is not a mere fallback.
 *
 * A worker that the others can tell a new address need not try: it turns at once (places_on_address).
 */
#include "client/worker_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define LOOK_NS      (50 * TERN_NS_PER_MS) /* between two looks at who has not welcomed */
#define UNREACHED_NS (250 * TERN_NS_PER_MS)
#define SILENT_NS    (2 * TERN_NS_PER_S)
#define DOUBLINGS    3u /* the longest patience is 2^3 times the first one */

static struct tern_worker_place *place_of(const struct worker_server *s)
{
	const struct tern_worker *w = s->worker;

	return w->opts.places ? &w->opts.places[s->number] : NULL;
}

static bool has_other(const struct worker_server *s)
{
	return s->worker->opts.goes_back && place_of(s) && *place_of(s)->address;
}

static void set_other(struct worker_server *s, const char *address, bool is_fallback)
{
	struct tern_worker_place *place = place_of(s);

	if (!place)
		return;
	snprintf(place->address, sizeof(place->address), "%s", address);
	place->is_fallback = is_fallback;
}

static void tell_moved(struct worker_server *s, const char *address)
{
	if (s->worker->opts.moved)
		s->worker->opts.moved(s->worker->opts.arg, s->number, address);
}

bool places_turn(struct worker_server *s)
{
	struct tern_worker_place *place = place_of(s);
	char former[sizeof(place->address)];

	if (s->worker->over || !has_other(s))
		return false;
	snprintf(former, sizeof(former), "%s", s->worker->job.servers[s->index]);
	tell_moved(s, place->address);
	set_other(s, former, !place->is_fallback);
	place->turns++;
	return true;
}

bool places_look_elsewhere(struct worker_server *s)
{
	char text[320];
	const char *a = s->worker->job.servers[s->index], *b;
	bool swap;

	if (!has_other(s))
		return false;
	b = place_of(s)->address;
	swap = strcmp(a, b) > 0;
	/* In an order that does not depend on which one is tried: users are told once. */
	snprintf(text, sizeof(text), "server %u is looked for at %s and at %s", s->number,
		swap ? b : a, swap ? a : b);
	if (!places_turn(s))
		return false;
	worker_give_up(s->worker, -EAGAIN, "%s", text);
	return true;
}

bool places_turn_at_last(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count && w->state <= WORKER_RUNNING; i++) {
		struct worker_server *s = &w->servers[i];

		if (!(s->welcome && place_of(s) && place_of(s)->is_fallback) &&
			places_look_elsewhere(s))
			return true;
	}
	return false;
}

/* ---- a server that does not welcome the worker ---- */

static uint64_t patience_ns(const struct worker_server *s)
{
	/* Both addresses are tried before the patience grows. */
	uint32_t doublings = TERN_MIN(place_of(s)->turns / 2, DOUBLINGS);

	return (s->up ? SILENT_NS : UNREACHED_NS) << doublings;
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

		if (!s->welcome && has_other(s) &&
			now_ns - w->joined_ns >= patience_ns(s)) {
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
		if (has_other(&w->servers[i]))
			tern_timer_set(
				w->opts.ctx, &w->places_timer, w->joined_ns + LOOK_NS);
}

void places_end(struct tern_worker *w)
{
	tern_timer_clear(w->opts.ctx, &w->places_timer);
	/* The servers with which steps were made are the right ones. */
	for (uint32_t i = 0; w->begun && w->opts.places && i < w->job.server_count; i++) {
		place_of(&w->servers[i])->is_fallback = true;
		place_of(&w->servers[i])->turns = 0;
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
		set_other(s, w->job.servers[s->index], !place->is_fallback);
	tell_moved(s, address);
	if (w->opts.goes_back && !w->begun && w->state <= WORKER_RUNNING)
		worker_give_up(w, -EAGAIN, "server %u is at %s now", s->number, address);
}

void places_on_address(struct tern_worker *w, const json_t *message)
{
	const char *address = json_string_value(json_object_get(message, "address"));
	const json_t *number = json_object_get(message, "server");
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
	/* This may be the same server by another address, or the one that has welcomed this worker
	 * is a former one that has woken up: then the steps do not begin. */
	if (s->welcome)
		set_other(s, address, false);
	else
		follow(s, address);
}

void places_on_follower(struct worker_server *s, const json_t *message)
{
	const char *address = json_string_value(json_object_get(message, "address"));
	const json_t *number = json_object_get(message, "server");

	if (!json_is_integer(number) || json_integer_value(number) != s->number ||
		!address || strlen(address) >= sizeof(s->worker->job.servers[0]))
		return;
	/* Without a follower the server's former address may still be the right one. */
	if (*address || (place_of(s) && place_of(s)->is_fallback))
		set_other(s, address, true);
}
