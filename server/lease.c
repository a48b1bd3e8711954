/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which worker computes which slot (one of the R gradients of a step), and what happens
 * when a worker is lost.
 *
 * A job begins with slot i at worker i mod N. A server that loses a worker (its
 * connection ended without a goodbye, it said that it failed, it made no progress, and so
 * on) tells server 0. Server 0 decides, once for each process: the worker is lost, its
 * slots go to the live workers with the fewest slots, and if it was the worker that
 * evaluates and saves, the lowest live worker does that from now on. All servers and all
 * live workers are told, in the order of the decisions. (After the first goodbye no slot is left to be given, and only the servers
 * are told.)
 *
 * A worker that was given a slot takes it on each server when it begins to compute it,
 * and says for which version (message "take"); from that version on it sends every chunk
 * of the slot's gradient once per version. The server then cuts off the old holder, if
 * that is still connected, receives from the new holder what is missing (sync.c), and
 * refuses what is already here: for such an extra gradient it posts a receive with an
 * empty buffer, so that the receive ends with -EMSGSIZE, and so does the send before a
 * byte moves (a small send may have ended with 0 before).
 *
 * The new holder may be lost, too, at any point of this. So decisions are numbered, and a
 * "take" whose number is not above that of the slot's last "take" has no effect.
 */
#include "server/membership.h"
#include "server/snapshots.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ps/marks.h"

/* ---- extra gradients ---- */

static void extra_free(struct extra *e)
{
	tern_list_remove(&e->node);
	free(e);
}

static uint64_t step_of(const struct extra *e)
{
	return e->version * e->chunk->server->job.slots + e->slot;
}

static void extra_refused(struct tern_req *req);

static void extra_post(struct extra *e)
{
	static const struct tern_buf nowhere;

	e->req.done = extra_refused;
	e->req.arg = e;
	tern_recv(e->from->data, &e->req, e->chunk->plan->gradient_key, step_of(e),
		&nowhere, NULL, 0);
}

static void extra_refused(struct tern_req *req)
{
	struct extra *e = req->arg;
	struct tern_server *s = e->chunk->server;

	if (req->status != -EMSGSIZE) {
		tern_talk_failed(&e->from->talk, req->status);
		extra_free(e); /* the worker that was to send the gradient is lost */
		return;
	}
	s->stats.gradients_refused++;
	if (tern_marks_follow(&req->shape))
		skip_receive(e->chunk, e->from, step_of(e), NULL, NULL);
	if (e->version++ == e->last || e->from->gone || s->over)
		extra_free(e);
	else
		extra_post(e);
}

void lease_refuse_extra(struct chunk *c, struct server_peer *from, uint32_t slot,
	uint64_t first, uint64_t last)
{
	struct tern_server *s = c->server;
	struct extra *e = calloc(1, sizeof(*e));

	if (!e) {
		server_fail(s, -ENOMEM,
			"no memory to refuse a second copy of a gradient that has "
			"arrived");
		return;
	}
	e->chunk = c;
	e->from = from;
	e->slot = slot;
	e->version = first;
	e->last = last;
	tern_list_push(&s->extras, &e->node);
	extra_post(e);
}

/* ---- deciding: server 0 ---- */

bool lease_is_live(const struct server_peer *worker)
{
	return !worker->lost && !worker->said_bye;
}

/* The live worker with the fewest slots. */
static uint32_t least_loaded(const struct tern_server *s, const uint32_t *load)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]) &&
			(best == UINT32_MAX || load[i] < load[best]))
			best = i;
	return best;
}

/* Gives the slots of worker `lost` to others. given[i] gets the slots that worker i
 * gets. */
static int spread(struct tern_server *s, uint32_t lost, json_t **given)
{
	uint32_t *load = calloc(s->job.workers, sizeof(*load));

	if (!load)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->job.slots; i++)
		load[s->leases[i].owner->index]++;
	for (uint32_t i = 0; i < s->job.slots; i++) {
		uint32_t to;

		if (s->leases[i].owner->index != lost)
			continue;
		to = least_loaded(s, load);
		s->leases[i].owner = s->workers[to];
		load[to]++;
		json_array_append_new(given[to], json_integer(i));
	}
	free(load);
	return 0;
}

uint32_t lease_finisher(struct tern_server *s)
{
	uint32_t i = 0;

	if (lease_is_live(s->workers[s->finisher_now]))
		return s->finisher_now;
	while (!lease_is_live(s->workers[i]))
		i++;
	s->finisher_now = i;
	return i;
}

static void tell_workers(
	struct tern_server *s, uint32_t lost, const char *text, json_t *const *given)
{
	for (uint32_t i = 0; i < s->job.workers; i++) {
		if (!lease_is_live(s->workers[i]))
			continue;
		tern_talk_say(&s->workers[i]->talk,
			json_pack("{s:s, s:I, s:o, s:I, s:I, s:O}", "type", "lost",
				"worker", (json_int_t)lost, "text", tern_talk_text(text),
				"generation", (json_int_t)s->generation, "finisher",
				(json_int_t)lease_finisher(s), "slots", given[i]));
	}
}

void lease_tell_lost(
	struct server_peer *p, const struct server_peer *lost, const char *text)
{
	tern_talk_say(&p->talk,
		json_pack("{s:s, s:I, s:I, s:o}", "type", "lost", "worker",
			(json_int_t)lost->index, "incarnation",
			(json_int_t)lost->incarnation, "text", tern_talk_text(text)));
}

/* Tells the other servers that a worker is lost, and the new owners of its slots: these
 * servers, too, wait for the new owners (late.c). */
static void tell_servers(
	struct tern_server *s, uint32_t lost, const char *text, json_t *const *given)
{
	json_t *all = json_array();

	for (uint32_t i = 0; i < s->job.workers; i++)
		json_array_append(all, given[i]);
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (others_find(s, i))
			tern_talk_say(&others_find(s, i)->talk,
				json_pack("{s:s, s:I, s:o, s:I, s:O}", "type", "lost",
					"worker", (json_int_t)lost, "text",
					tern_talk_text(text), "generation",
					(json_int_t)s->generation, "slots", all));
	json_decref(all);
}

static void decide(struct tern_server *s, uint32_t lost, const char *text)
{
	json_t **given = calloc(s->job.workers, sizeof(json_t *));
	/* Once a worker has said goodbye, nothing is left to be computed. */
	bool goes_on = s->bye_count == 0 && s->lost_count < s->job.workers;
	int r = given ? 0 : -ENOMEM;

	s->generation++;
	for (uint32_t i = 0; r == 0 && i < s->job.workers; i++)
		given[i] = json_array();
	if (r == 0 && s->leases && goes_on)
		r = spread(s, lost, given);
	if (r < 0)
		server_fail(
			s, r, "no memory to give the slots of worker %u to others", lost);
	if (r == 0)
		tell_servers(s, lost, text, given);
	if (r == 0 && goes_on)
		tell_workers(s, lost, text, given);
	if (r == 0 && s->leases && goes_on)
		sync_owners_changed(s);
	for (uint32_t i = 0; given && i < s->job.workers; i++)
		json_decref(given[i]);
	free(given);
	s->history->lost_count++;
	if (s->opts.lost)
		s->opts.lost(s->opts.arg, lost, text);
}

/* ---- the end of an async job: server 0 ---- */

/* Tells the remaining workers when all of them have taken their last steps: then one of
 * them finishes the job. */
void lease_maybe_done(struct tern_server *s)
{
	if (s->index != 0 || s->job.mode != TERN_MODE_ASYNC || !s->running || s->over ||
		s->all_done)
		return;
	/* A job without workers ends at once: a last snapshot could not be finished. */
	if (s->bye_count == 0 && s->lost_count == s->job.workers)
		return;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]) && !s->workers[i]->done)
			return;
	s->all_done = true;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]) && !s->workers[i]->gone)
			tern_talk_say(
				&s->workers[i]->talk, json_pack("{s:s}", "type", "done"));
	snapshots_all_done(s);
}

void lease_on_done(struct server_peer *p)
{
	p->done = true;
	lease_maybe_done(p->server);
}

/* ---- losing a worker: every server ---- */

/* Cuts off a worker. Requests with the worker end when nothing can access their memory any
 * more. If its process is still alive, it learns the reason from the message "lost", or,
 * if that does not get through, only that the connection was lost. */
static void cut(struct server_peer *p, const char *text)
{
	if (p->gone)
		return;
	lease_tell_lost(p, p, text);
	server_drop(p);
}

/* Handles the loss of a worker. `known`: server 0 has decided about this loss already, so
 * it need not be told. */
void lease_lost(struct server_peer *p, bool known, const char *fmt, ...)
{
	struct tern_server *s = p->server;
	char text[sizeof(s->first_loss)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (p->returning)
		change_left(p, text);
	if (s->over || !p->is_worker || p->lost || p->said_bye)
		return;
	if (!s->running) {
		cut(p, text);
		start_left(p, text);
		return;
	}
	p->lost = true;
	s->failed_last = p->failed;
	if (s->lost_count++ == 0)
		snprintf(s->first_loss, sizeof(s->first_loss), "%s", text);
	cut(p, text);
	for (uint32_t i = 0; s->leases && i < s->job.slots; i++)
		if (s->leases[i].holder == p)
			s->leases[i].holder = NULL;
	async_worker_lost(s);
	if (s->index == 0) {
		decide(s, p->index, text);
		lease_maybe_done(s); /* the others may have waited only for this worker */
	} else if (!known && !s->to_zero->gone) {
		lease_tell_lost(s->to_zero, p, text);
	}
	server_maybe_end(s);
	given_on_lost(p);
}

/* Notes the new owner of slots, except of a slot that a worker has taken already by this
 * decision or by a later one. False: a number is not a slot. */
static bool note_owner(struct tern_server *s, const json_t *slots, uint64_t generation,
	struct server_peer *owner)
{
	for (size_t i = 0; i < json_array_size(slots); i++) {
		const json_t *number = json_array_get(slots, i);
		json_int_t slot = json_integer_value(number);

		if (!json_is_integer(number) || slot < 0 || slot >= s->job.slots)
			return false;
		if (s->leases && generation > s->leases[slot].generation)
			s->leases[slot].owner = owner;
	}
	return true;
}

/* Notes the owners that server 0 has decided. */
static void note_owners(struct tern_server *s, const json_t *message)
{
	const json_t *given = json_object_get(message, "slots");
	json_int_t generation =
		json_integer_value(json_object_get(message, "generation"));
	bool good = generation >= 1 && json_array_size(given) == s->job.workers;

	for (uint32_t k = 0; good && k < s->job.workers; k++)
		good = note_owner(
			s, json_array_get(given, k), (uint64_t)generation, s->workers[k]);
	if (!good)
		server_fail(s, -EPROTO,
			"server 0 sent a wrong list of who has which slots: expected a "
			"generation of 1 or more, and for each of %u workers a list of "
			"slots from 0 to %u",
			s->job.workers, s->job.slots - 1);
	else
		s->generation = (uint64_t)generation;
	if (good && s->leases)
		sync_owners_changed(s);
	/* A worker may have taken one of the slots before this server heard of the decision. While the
	 * servers stop for a change, its message waits for the decision. */
	if (good)
		change_hear_kept(s);
}

void lease_on_failed(struct server_peer *p, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	struct tern_server *s = p->server;

	/* Before the steps server 0 does not know where this server is, and cannot tell it. But if the server
	 * is about to be added, the worker's view is the one before. */
	if (!s->running && !s->over && !members_know(s) && view_on_removed(s, message))
		return;
	if (back_on_other_snapshot(p, message))
		return;
	p->failed = !json_is_true(json_object_get(message, "asked")) &&
		    !json_is_true(json_object_get(message, "back"));
	lease_lost(
		p, false, "%s: %s", tern_peer_name(p->peer), text ? text : "it gave up");
}

/* Reads which worker is lost. False: the message has no valid number, and the job was
 * ended. */
static bool read_loss(
	struct server_peer *p, const json_t *message, uint32_t *worker, const char **text)
{
	const json_t *number = json_object_get(message, "worker");
	json_int_t k = json_integer_value(number);

	*worker = (uint32_t)k;
	*text = json_string_value(json_object_get(message, "text"));
	if (!*text)
		*text = "no reason given";
	if (json_is_integer(number) && k >= 0 && k < TERN_WORKERS_MAX)
		return true;
	server_fail(p->server, -EPROTO,
		"%s said that a worker is lost: expected its number, from 0 to %u",
		tern_peer_name(p->peer), p->server->job.workers - 1);
	return false;
}

/* On server 0: handles the report of server p that p has lost a worker. */
void lease_on_report(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const char *text;
	uint32_t k;

	if (!read_loss(p, message, &k, &text))
		return;
	if (!s->running)
		start_on_lost(p, k, message, text);
	else if (k < s->job.workers)
		lease_lost(s->workers[k], false, "%s", text);
}

/* On another server: handles the decision of server 0 about a lost worker. */
void lease_on_decision(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const char *text;
	uint32_t k;

	if (!read_loss(p, message, &k, &text))
		return;
	if (!s->running) {
		server_fail(s, -EPROTO,
			"server 0 gave slots of worker %u to others before the steps "
			"began",
			k);
		return;
	}
	if (k < s->job.workers)
		lease_lost(s->workers[k], true, "%s", text);
	note_owners(s, message);
}

/* After the first goodbye the results are safe: tells the other workers that they may
 * leave when they are done. */
void lease_on_bye(struct tern_server *s)
{
	if (s->index != 0 || s->bye_count != 1 || s->over)
		return;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (s->workers[i] && !s->workers[i]->gone && lease_is_live(s->workers[i]))
			tern_talk_say(&s->workers[i]->talk,
				json_pack("{s:s}", "type", "finished"));
}

/* ---- taking ---- */

static bool is_made(const struct tern_server *s, uint64_t version)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (version > s->chunks[i].version)
			return false;
	return true;
}

/* The worker takes a slot that was given to another one since. If the worker is lost, its
 * sends end with it. Otherwise the slot was moved away from it (change.c): refuses the
 * gradients for versions before that, which are all here. About the later ones the worker is
 * asked. */
static void refuse_older(struct server_peer *p, uint32_t slot, uint64_t version)
{
	struct tern_server *s = p->server;
	struct lease *lease = &s->leases[slot];

	if (!lease->awaits_take || lease->moved_from != p->index)
		return;
	lease->awaits_take = false;
	for (uint32_t i = 0; version < lease->moved_at && i < s->chunk_count; i++)
		lease_refuse_extra(&s->chunks[i], p, slot, version, lease->moved_at - 1);
}

static void take(
	struct server_peer *p, uint32_t slot, uint64_t version, uint64_t generation)
{
	struct tern_server *s = p->server;
	struct lease *lease = &s->leases[slot];

	if (generation <= lease->generation) {
		refuse_older(p, slot, version);
		return;
	}
	/* Only slots of a lost worker are taken. This server may not know of the loss. */
	if (lease->holder)
		lease_lost(lease->holder, true, "its slots were given to %s",
			tern_peer_name(p->peer));
	lease->holder = lease->owner = p;
	lease->generation = generation;
	sync_taken(s, slot, version);
}

/* Only server 0 knows who was given which slot. */
static bool may_take(const struct server_peer *p, uint32_t slot, uint64_t generation)
{
	const struct tern_server *s = p->server;
	const struct lease *lease = &s->leases[slot];

	return lease->holder != p &&
	       (s->index != 0 || generation <= lease->generation ||
		       (lease->owner == p && generation <= s->generation));
}

void lease_on_take(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	json_int_t slot = -1, version = -1, generation = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I}", "slot", &slot,
		    "version", &version, "generation", &generation) < 0 ||
		slot < 0 || slot >= s->job.slots || version < 0 || generation < 1)
		server_refuse(p,
			"its message \"take\" has slot %lld, version %lld and generation "
			"%lld: expected a slot from 0 to %u, a version from 0 and a "
			"generation from 1",
			(long long)slot, (long long)version, (long long)generation,
			s->job.slots - 1);
	else if (!s->running)
		return; /* a server without chunks receives no gradients */
	else if (!is_made(s, (uint64_t)version))
		server_refuse(p,
			"it takes slot %lld from version %lld on, which is not made yet",
			(long long)slot, (long long)version);
	else if (!may_take(p, (uint32_t)slot, (uint64_t)generation))
		server_refuse(
			p, "it takes slot %lld, which it was not given", (long long)slot);
	else
		take(p, (uint32_t)slot, (uint64_t)version, (uint64_t)generation);
}

/* Worker p has gradients in all its buffers, and must compute a slot that comes before
 * one of them. The message names this later slot. It is ignored if another worker holds
 * that slot: then p is lost and about to be cut off, or the slot was moved, which p is asked
 * about (change.c). */
void lease_on_holds(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	json_int_t slot = -1, version = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I}", "slot", &slot,
		    "version", &version) < 0 ||
		slot < 0 || slot >= s->job.slots || version < 0)
		server_refuse(p,
			"its message \"holds\" has slot %lld and version %lld: expected "
			"a slot from 0 to %u and a version from 0",
			(long long)slot, (long long)version, s->job.slots - 1);
	else if (s->running && s->leases[slot].holder == p)
		sync_wanted(s, (uint32_t)slot, (uint64_t)version);
}

/* ---- birth and death ---- */

int lease_init(struct tern_server *s)
{
	if (s->job.mode != TERN_MODE_SYNC)
		return 0;
	s->change.version = UINT64_MAX;
	s->leases = calloc(s->job.slots, sizeof(*s->leases));
	return s->leases ? 0 : -ENOMEM;
}

void lease_start(struct tern_server *s)
{
	for (uint32_t i = 0; s->leases && i < s->job.slots; i++)
		s->leases[i].holder = s->leases[i].owner =
			s->workers[tern_slot_owner(&s->job, i)];
}

void lease_fini(struct tern_server *s)
{
	while (!tern_list_empty(&s->extras))
		extra_free(tern_list_first(&s->extras, struct extra, node));
	free(s->leases);
	s->leases = NULL;
}
