/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who computes what, and what happens when a worker is lost.
 *
 * A job begins with slot i at worker i mod N. Whichever server misses a worker (its
 * connection ended without a goodbye, or it said that it failed) tells server 0, which
 * decides, once for each worker: it is lost, its slots go to the live workers that have
 * the fewest, and the lowest live worker is the one that evaluates and saves. All servers
 * and all live workers are told, in the order of the decisions.
 *
 * A worker that was given a slot takes it on each server when it begins to compute it,
 * and says for which version; from that one on it sends every chunk of the slot's
 * gradient once for every version. The server then cuts off the old holder, if it can
 * still see it, receives from the new one what it has not got (sync.c), and refuses what
 * it has: such an extra gradient meets a receive without room, which ends both halves
 * before a byte of it moves.
 *
 * A slot may be lost again at any moment of this. Decisions are numbered, and a taking
 * that is older than the slot's last one changes nothing.
 */
#include "server/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- extra gradients ---- */

static void extra_free(struct extra *e)
{
	tern_list_remove(&e->node);
	free(e);
}

static void extra_refused(struct tern_req *req);

static void extra_post(struct extra *e)
{
	static const struct tern_buf nowhere;
	struct tern_server *s = e->chunk->server;

	e->req.done = extra_refused;
	e->req.arg = e;
	tern_recv(e->from->data, &e->req, e->chunk->plan->gradient_key,
		e->version * s->job.slots + e->slot, &nowhere, NULL, 0);
}

static void extra_refused(struct tern_req *req)
{
	struct extra *e = req->arg;
	struct tern_server *s = e->chunk->server;

	if (req->status != -EMSGSIZE) {
		tern_talk_failed(&e->from->talk, req->status);
		extra_free(e); /* whoever was to send it is gone */
		return;
	}
	s->stats.gradients_refused++;
	if (e->version++ == e->last || e->from->gone || s->over)
		extra_free(e);
	else
		extra_post(e);
}

void lease_refuse_extra(struct chunk *c, uint32_t slot, uint64_t first, uint64_t last)
{
	struct tern_server *s = c->server;
	struct extra *e = calloc(1, sizeof(*e));

	if (!e) {
		server_fail(s, -ENOMEM, "no memory to refuse gradients");
		return;
	}
	e->chunk = c;
	e->from = s->leases[slot].holder;
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

/* The live worker with the least to do. */
static uint32_t least_loaded(const struct tern_server *s, const uint32_t *load)
{
	uint32_t best = UINT32_MAX;

	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]) &&
			(best == UINT32_MAX || load[i] < load[best]))
			best = i;
	return best;
}

/* Gives the slots of `lost` to others; [workers] lists of who got which. */
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

uint32_t lease_finisher(const struct tern_server *s)
{
	uint32_t i = 0;

	while (!lease_is_live(s->workers[i]))
		i++;
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

/* That a worker is missed here, or that it is cut off. */
void lease_tell_lost(struct server_peer *p, uint32_t lost, const char *text)
{
	tern_talk_say(&p->talk, json_pack("{s:s, s:I, s:o}", "type", "lost", "worker",
					(json_int_t)lost, "text", tern_talk_text(text)));
}

/* Who has its slots now: the other servers wait for them, too (late.c). */
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
	/* Once somebody has said goodbye nothing is left to be computed. */
	bool goes_on = s->bye_count == 0 && s->lost_count < s->job.workers;
	int r = given ? 0 : -ENOMEM;

	s->generation++;
	for (uint32_t i = 0; r == 0 && i < s->job.workers; i++)
		given[i] = json_array();
	if (r == 0 && s->leases && goes_on)
		r = spread(s, lost, given);
	if (r < 0)
		server_fail(s, r, "no memory to lease slots again");
	if (r == 0)
		tell_servers(s, lost, text, given);
	if (r == 0 && goes_on)
		tell_workers(s, lost, text, given);
	for (uint32_t i = 0; given && i < s->job.workers; i++)
		json_decref(given[i]);
	free(given);
	if (s->opts.lost)
		s->opts.lost(s->opts.arg, lost, text);
}

/* ---- the end of an async job: server 0 ---- */

/* All that are left have taken their last steps: one of them finishes. */
void lease_maybe_done(struct tern_server *s)
{
	if (s->index != 0 || s->job.mode != TERN_MODE_ASYNC || !s->running || s->over ||
		s->all_done)
		return;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]) && !s->workers[i]->done)
			return;
	s->all_done = true;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]) && !s->workers[i]->gone)
			tern_talk_say(
				&s->workers[i]->talk, json_pack("{s:s}", "type", "done"));
}

void lease_on_done(struct server_peer *p)
{
	p->done = true;
	lease_maybe_done(p->server);
}

/* ---- losing a worker: every server ---- */

/* Its requests end, when nothing can touch their memory any more. Should it be there
 * after all, it hears why if this still gets through, and else that the connection is
 * gone. */
static void cut(struct server_peer *p, const char *text)
{
	if (p->gone)
		return;
	lease_tell_lost(p, p->index, text);
	server_drop(p);
}

/* `known`: server 0 has said so. */
void lease_lost(struct server_peer *p, bool known, const char *fmt, ...)
{
	struct tern_server *s = p->server;
	char text[400];
	va_list ap;

	if (s->over || !p->is_worker || p->lost || p->said_bye)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!s->running) {
		cut(p, text);
		start_left(p, text);
		return;
	}
	p->lost = true;
	if (s->lost_count++ == 0)
		snprintf(s->first_loss, sizeof(s->first_loss), "%s", text);
	cut(p, text);
	for (uint32_t i = 0; s->leases && i < s->job.slots; i++)
		if (s->leases[i].holder == p)
			s->leases[i].holder = NULL;
	if (s->index == 0) {
		decide(s, p->index, text);
		lease_maybe_done(s); /* perhaps it was the one that was waited for */
	} else if (!known && !s->to_zero->gone) {
		lease_tell_lost(s->to_zero, p->index, text);
	}
	server_maybe_end(s);
}

/* Each decision is about one worker, which does not come back. */
static bool is_generation(const struct tern_server *s, json_int_t generation)
{
	return generation >= 1 && generation <= s->job.workers;
}

/* A slot whose new holder was quicker, or that was given away again meanwhile, has a
 * later generation. False: there is no such slot. */
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

/* What server 0 has decided. */
static void note_owners(struct tern_server *s, const json_t *message)
{
	const json_t *given = json_object_get(message, "slots");
	json_int_t generation =
		json_integer_value(json_object_get(message, "generation"));
	bool good =
		is_generation(s, generation) && json_array_size(given) == s->job.workers;

	for (uint32_t k = 0; good && k < s->job.workers; k++)
		good = note_owner(
			s, json_array_get(given, k), (uint64_t)generation, s->workers[k]);
	if (!good)
		server_fail(s, -EPROTO, "server 0 leases slots that cannot be leased");
}

/* From server 0, or to it. */
void lease_on_lost(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const json_t *worker = json_object_get(message, "worker");
	const char *text = json_string_value(json_object_get(message, "text"));
	json_int_t k = json_integer_value(worker);

	text = text ? text : "no reason given";
	/* Whoever calls itself a server of a job that is not here is a guest. */
	if (!s->has_job)
		start_on_lost(p, 0, text);
	else if (!json_is_integer(worker) || k < 0 || k >= TERN_WORKERS_MAX)
		server_fail(s, -EPROTO, "%s says that a worker is lost, and not which",
			tern_peer_name(p->peer));
	else if (!s->running && s->index == 0)
		start_on_lost(p, (uint32_t)k, text);
	else if (!s->running)
		server_fail(s, -EPROTO, "%s loses a worker before the start",
			tern_peer_name(p->peer));
	else if (k < s->job.workers)
		lease_lost(s->workers[k], p == s->to_zero, "%s", text);
	if (s->running && p == s->to_zero)
		note_owners(s, message);
}

/* The first one: the results are safe, and the others may leave when they are done. */
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

static void take(
	struct server_peer *p, uint32_t slot, uint64_t version, uint64_t generation)
{
	struct tern_server *s = p->server;
	struct lease *lease = &s->leases[slot];

	if (generation <= lease->generation)
		return; /* it has been given to another one since */
	/* Nobody but server 0 gives slots away, and only those of a lost worker. */
	if (lease->holder)
		lease_lost(lease->holder, true, "%s has its slots now",
			tern_peer_name(p->peer));
	lease->holder = lease->owner = p;
	lease->generation = generation;
	sync_taken(s, slot, version);
}

/* Without a chunk it is waited for by nobody: the steps may be under way before it has
 * heard of the start. Who has which slot is nothing to it. */
static bool has_no_part(const struct tern_server *s)
{
	return s->leases && !s->running && s->chunk_count == 0;
}

void lease_on_take(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	json_int_t slot = -1, version = -1, generation = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I}", "slot", &slot,
		    "version", &version, "generation", &generation) < 0 ||
		slot < 0 || slot >= s->job.slots || version < 0 ||
		!is_generation(s, generation))
		server_refuse(p, "it takes a slot and does not say which, or since when");
	else if (has_no_part(s))
		return;
	else if (!s->leases || !s->running || !is_made(s, (uint64_t)version))
		server_refuse(p, "it takes a slot of a version that is not made yet");
	else if (s->leases[slot].holder == p ||
		 (s->index == 0 && (s->leases[slot].owner != p ||
					   (uint64_t)generation > s->generation)))
		server_refuse(p, "it takes a slot that it was not given");
	else if (!s->over)
		take(p, (uint32_t)slot, (uint64_t)version, (uint64_t)generation);
}

/* A worker has gradients of two slots in its buffers, and must compute one that comes
 * before them. If the slot has another holder here, this worker is about to be lost. */
void lease_on_holds(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	json_int_t slot = -1, version = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I}", "slot", &slot,
		    "version", &version) < 0 ||
		slot < 0 || slot >= s->job.slots || version < 0)
		server_refuse(p, "it holds a gradient and does not say which");
	else if (has_no_part(s))
		return;
	else if (!s->leases || !s->running)
		server_refuse(p, "it holds a gradient before the start");
	else if (s->leases[slot].holder == p && !s->over)
		sync_wanted(s, (uint32_t)slot, (uint64_t)version);
}

/* ---- birth and death ---- */

int lease_init(struct tern_server *s)
{
	if (s->job.mode != TERN_MODE_SYNC)
		return 0;
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
