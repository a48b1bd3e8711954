/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that join during the steps of sync mode, in the place of a lost one, or in a new one that is
 * made for them (grow.c); and slots that move from a slow worker to another one (balance.c).
 *
 * Who is in the job, and who has which slot, changes between two steps. For that all
 * servers stop at one version, which server 0 chooses:
 *
 *     worker                server 0                            other server
 *     "join" to all    -->
 *                      <--  "welcome" of all, with "running"
 *     "ready"          -->
 *                           "pause" at version V           -->
 *                                                          <--  "pausing": it will stop
 *                           makes V - 1 only after that
 *                                                          <--  "paused": all its chunks
 *                                                               are at V
 *                           "change": who comes, and which
 *                           slots move from whom to whom   -->
 *                      <--  "yours": slots, from V on
 *
 * A slot that moves to a worker of the job is "yours", too, and there is no "join" and no "ready".
 *
 * No server is at V before it knows of it: a chunk is at version u only if all workers have
 * had the whole version u - 1, and server 0's chunks with it. So while a chunk of server 0 is
 * at m, no chunk of any server is beyond m + 1. V is m + 3, so that server 0 rarely has to
 * wait before it makes m + 2.
 *
 * When all have stopped, every gradient for an older version has been added, and none for V
 * has been received. So a slot that moves changes its holder at each server, and the new
 * holder is sent V. The old holder may have computed the slot for V, or even for later
 * versions, before it hears of it. Each server asks it ("moved"), and it answers with the
 * version from which on it sends no more ("gave"). What it has sent before is refused, as
 * gradients are that come twice (lease.c).
 */
#include "server/blobs.h"
#include "server/follow.h"
#include "server/membership.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define NONE UINT64_MAX
/* Bytes of messages that are kept of a worker. It says a few while the servers stand. */
#define KEPT_BYTES_MAX (1u << 20)

struct move {
	uint32_t slot, from, to;
};

bool change_holds(const struct tern_server *s, uint64_t version)
{
	return s->change.unheard > 0 && version == s->change.version - 1;
}

bool change_stops(const struct tern_server *s, uint64_t version)
{
	return version == s->change.version;
}

/* ---- a worker comes ---- */

/* True if this server still sends a version to the worker, whose place another one wants. */
static bool is_sending_to(const struct tern_server *s, uint32_t worker)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint32_t parity = 0; parity < 2; parity++)
			if (s->chunks[i].publications[worker][parity].req.status ==
				-EINPROGRESS)
				return true;
	return false;
}

static struct server_peer *find_returning(const struct tern_server *s, uint32_t index)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->returning && p->index == index)
			return p;
	}
	return NULL;
}

/* The job is done, or about to be: there is nothing to be computed any more. */
static void refuse_late(struct server_peer *p)
{
	p->returning = false;
	server_refuse(p, "the job is about to end: no worker is needed any more");
}

static void welcome(
	struct server_peer *p, uint32_t index, json_int_t incarnation, bool back)
{
	p->returning = true;
	p->goes_back = back;
	p->index = index;
	p->incarnation = (uint64_t)incarnation;
	guests_leave(p);
	join_say_welcome(p, true);
}

/* True if the process was perhaps killed, which this server will then know soon. */
static bool may_be_lost_soon(const struct server_peer *p)
{
	return !p->lost && (p->unlinked || p->gone);
}

void change_on_join(struct server_peer *p, uint32_t index, const json_t *message)
{
	struct tern_server *s = p->server;
	const struct server_peer *other = find_returning(s, index);
	const struct server_peer *holder =
		index < s->job.workers ? s->workers[index] : NULL;
	const json_t *incarnation = json_object_get(message, "incarnation");

	if (s->bye_count > 0 || (s->chunk_count > 0 && sync_is_done(s)))
		refuse_late(p);
	else if (s->job.mode != TERN_MODE_SYNC)
		server_refuse(p,
			holder && holder->lost
				? "worker %u of this job was lost: in %s mode the "
				  "job goes on without it, and no new worker can "
				  "take its place"
				: "worker %u has joined already",
			index, tern_mode_text(s->job.mode, s->job.ssp).text);
	else if (!steps_have_begun(s) || (other && may_be_lost_soon(other)) ||
		 (holder && (may_be_lost_soon(holder) || is_sending_to(s, index))))
		guests_ask_later(p);
	else if (other || (holder && !holder->lost))
		server_refuse_for_now(p, "worker %u has joined already", index);
	else if (!json_is_integer(incarnation))
		server_refuse(p, "incarnation: expected an integer");
	else
		welcome(p, index, json_integer_value(incarnation),
			json_is_true(json_object_get(message, "back")));
}

bool change_is_awaited(const struct tern_server *s)
{
	if (s->index == 0 || !s->to_zero || s->to_zero->gone)
		return false;
	tern_list_for_each (n, &s->peers)
		if (tern_list_entry(n, struct server_peer, node)->returning)
			return true;
	return false;
}

void change_left(struct server_peer *p, const char *text)
{
	struct tern_server *s = p->server;

	server_note(s, "%s, before it was let in", text);
	p->returning = p->ready = p->chosen = false;
	if (!p->gone)
		server_drop(p);
	tern_defer(s->opts.ctx, &s->end_call); /* end_call() frees p */
	server_maybe_end(s);
}

/* ---- stopping ---- */

static uint64_t oldest(const struct tern_server *s)
{
	uint64_t version = UINT64_MAX;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		version = TERN_MIN(version, s->chunks[i].version);
	return version;
}

/* Returns a worker that is ready, or (`chosen`) that the change under way lets in; NULL: there
 * is none. */
static struct server_peer *find_ready(const struct tern_server *s, bool chosen)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->returning && (chosen ? p->chosen : p->ready))
			return p;
	}
	return NULL;
}

/* Begins to count answers. The change lets in those that are ready now: what another server
 * has to say of the workers in whose places they come, it says before "pausing". */
static void choose(struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		p->chosen = p->returning && p->ready;
		p->pausing = p->paused = false;
	}
}

static void tell_servers(const struct tern_server *s, json_t *message)
{
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (others_find(s, i))
			tern_talk_say(&others_find(s, i)->talk, json_incref(message));
	json_decref(message);
}

/* Begins a change, for which the servers stop at this version. */
static void begin(struct tern_server *s, uint64_t version)
{
	choose(s);
	s->change = (struct change){.version = version,
		.unheard = s->job.server_count - 1,
		.unpaused = s->job.server_count};
	tell_servers(s,
		json_pack("{s:s, s:I}", "type", "pause", "version", (json_int_t)version));
}

/* Lets workers in that want to come, unless a change is under way. */
static void maybe_let_in(struct tern_server *s)
{
	uint64_t version = oldest(s) + 3;
	struct server_peer *p;

	if (s->over || s->change.version != NONE)
		return;
	while (version >= s->job.steps && (p = find_ready(s, false)))
		refuse_late(p);
	if (find_ready(s, false))
		begin(s, version);
}

void change_on_ready(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;

	(void)message;
	if (s->index != 0) {
		server_refuse(p, "it is ready: only server 0 is told that");
		return;
	}
	p->ready = true;
	maybe_let_in(s);
}

/* True if a worker holds the others up, and another one should have a slot of it. */
static bool is_unbalanced(const struct tern_server *s)
{
	uint32_t *loads = calloc(s->job.workers, sizeof(*loads)), from, to;
	bool found;

	for (uint32_t i = 0; loads && i < s->job.slots; i++)
		loads[s->leases[i].owner->index]++;
	found = loads && balance_find_move(s, loads, &from, &to);
	free(loads);
	return found;
}

void change_maybe_balance(struct tern_server *s)
{
	if (s->over || !s->leases || s->change.version != NONE || s->bye_count > 0 ||
		!steps_have_begun(s))
		return;
	if (oldest(s) + 3 < s->job.steps && is_unbalanced(s))
		begin(s, oldest(s) + 3);
}

void change_on_pause(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	json_int_t version = json_integer_value(json_object_get(message, "version"));
	bool good = version > 0 && (uint64_t)version < s->job.steps &&
		    s->change.version == NONE;

	for (uint32_t i = 0; good && i < s->chunk_count; i++)
		good = s->chunks[i].version < (uint64_t)version;
	if (!good) {
		server_fail(s, -EPROTO,
			"server 0 stops the steps at version %lld: expected one that is "
			"not made here, and below %llu",
			(long long)version, (unsigned long long)s->job.steps);
		return;
	}
	s->change = (struct change){.version = (uint64_t)version};
	tern_talk_say(&zero->talk, json_pack("{s:s}", "type", "pausing"));
	change_step_made(s);
}

void change_on_pausing(struct server_peer *server, const json_t *message)
{
	struct tern_server *s = server->server;

	(void)message;
	if (s->change.unheard == 0 || server->pausing)
		return;
	server->pausing = true;
	if (--s->change.unheard > 0)
		return;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		sync_maybe_apply(&s->chunks[i]);
}

/* ---- who gets which slots: server 0 ---- */

/* Slots that move to workers that have come. */
struct plan {
	struct move *moves;
	uint32_t count;
	uint32_t *owners; /* [slots] */
	uint32_t *loads;  /* [workers] */
};

static void move(struct plan *plan, uint32_t slot, uint32_t to)
{
	uint32_t from = plan->owners[slot];

	plan->moves[plan->count++] = (struct move){.slot = slot, .from = from, .to = to};
	plan->owners[slot] = to;
	plan->loads[from]--;
	plan->loads[to]++;
}

/* Gives the worker its share of the slots, of workers that have more: if possible those that
 * it would have from the start. */
static void fill(const struct tern_server *s, struct plan *plan, uint32_t to)
{
	uint32_t share = TERN_MAX(s->job.slots / (s->job.workers - s->lost_count), 1u);

	for (int pass = 0; pass < 2; pass++)
		for (uint32_t i = s->job.slots; i-- > 0 && plan->loads[to] < share;)
			if (plan->loads[plan->owners[i]] > share &&
				(pass || tern_slot_owner(&s->job, i) == to))
				move(plan, i, to);
}

/* Moves a slot from a worker that is slow to one that is not, if possible one that this worker would
 * have from the start: it may be read in place then. */
static void balance(struct tern_server *s, struct plan *plan)
{
	uint32_t from, to, slot = s->job.slots;

	if (!balance_find_move(s, plan->loads, &from, &to))
		return;
	for (uint32_t i = 0; i < s->job.slots; i++)
		if (plan->owners[i] == from &&
			(slot == s->job.slots || tern_slot_owner(&s->job, i) == to))
			slot = i;
	server_note(s, "slot %u moves from %s, which is slow, to %s", slot,
		tern_peer_name(s->workers[from]->peer),
		tern_peer_name(s->workers[to]->peer));
	move(plan, slot, to);
	s->history->moved_count++;
	/* A worker that has no slot left stays known to be slow. */
	if (plan->loads[from] > 0)
		balance_forget(&s->workers[from]->times);
	balance_forget(&s->workers[to]->times);
}

static void plan_free(struct plan *plan)
{
	free(plan->moves);
	free(plan->owners);
	free(plan->loads);
}

static int plan_make(struct tern_server *s, struct plan *plan)
{
	*plan = (struct plan){.moves = calloc(s->job.slots, sizeof(*plan->moves)),
		.owners = calloc(s->job.slots, sizeof(*plan->owners)),
		.loads = calloc(s->job.workers, sizeof(*plan->loads))};
	if (!plan->moves || !plan->owners || !plan->loads)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->job.slots; i++) {
		plan->owners[i] = s->leases[i].owner->index;
		plan->loads[plan->owners[i]]++;
	}
	return 0;
}

/* ---- the change: every server ---- */

/* Puts the worker that has come in the place of the lost one. */
static void let_in(struct server_peer *p)
{
	struct tern_server *s = p->server;
	struct server_peer *old = s->workers[p->index];

	p->returning = p->ready = p->chosen = false;
	p->is_worker = p->welcome = p->is_new = true;
	p->slot_since_ns = tern_now_ns(s->env);
	s->workers[p->index] = p;
	s->lost_count--;
	old->is_worker = false;
	old->replaced = true;
	tern_defer(s->opts.ctx, &s->end_call); /* end_call() frees it */
}

static void publish(struct server_peer *p, uint64_t version)
{
	struct tern_server *s = p->server;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		chunk_publish_to(&s->chunks[i], version, p);
}

/* Changes the holder of a slot, and sends the version to a worker that had no slot. If the new holder
 * has left this server already, the slot has none: server 0 will decide about that loss. */
static void move_slot(struct tern_server *s, const struct move *m, uint64_t generation)
{
	struct lease *lease = &s->leases[m->slot];
	struct server_peer *to = s->workers[m->to];

	lease->awaits_take = lease->holder != s->workers[m->from];
	lease->moved_at = s->change.version;
	lease->moved_from = m->from;
	lease->holder = to->lost ? NULL : to;
	lease->owner = to;
	lease->generation = generation;
	if (to->follows || to->lost)
		return;
	to->follows = true;
	publish(to, s->change.version);
}

/* Asks the worker with which version it stops to send its slots that were moved away. */
static void ask(struct server_peer *p, const struct move *moves, uint32_t count,
	uint64_t generation)
{
	struct tern_server *s = p->server;
	json_t *slots = json_array();

	for (uint32_t i = 0; i < count; i++)
		if (moves[i].from == p->index)
			json_array_append_new(slots, json_integer(moves[i].slot));
	p->moved_count += (uint32_t)json_array_size(slots);
	if (json_array_size(slots) > 0 && !p->gone)
		tern_talk_say(&p->talk,
			json_pack("{s:s, s:I, s:I, s:O}", "type", "moved", "version",
				(json_int_t)s->change.version, "generation",
				(json_int_t)generation, "slots", slots));
	json_decref(slots);
}

/*
 * Server 0 may have decided more than another server has heard. A worker that comes may have
 * been let in, and have got slots of a loss. And a worker may take a slot, from the version on
 * at which the servers stand, that was moved to one which was lost at once. Or it takes a slot for
 * the version before that, which it has had itself already: the slot was moved away from it, and
 * came back to it by a loss, before it got the new version. (If it takes a slot for an older version
 * by a decision that this server knows, some server does not stand yet, and that one may need the
 * slot.)
 */
bool change_delays(const struct server_peer *p, const json_t *message)
{
	const struct change *change = &p->server->change;
	const char *type = tern_talk_type(message);
	json_int_t version = json_integer_value(json_object_get(message, "version"));
	json_int_t generation =
		json_integer_value(json_object_get(message, "generation"));

	if (p->server->index == 0)
		return false;
	if (p->returning)
		return strcmp(type, "failed") != 0 && strcmp(type, "abort") != 0;
	return p->is_worker && change->reached &&
	       (p->kept ||
		       (strcmp(type, "take") == 0 &&
			       (version >= (json_int_t)change->version ||
				       generation > (json_int_t)p->server->generation)));
}

void change_keep(struct server_peer *p, const json_t *message)
{
	p->kept_bytes += p->talk.last.bytes;
	p->kept = p->kept ? p->kept : json_array();
	if (p->kept_bytes > KEPT_BYTES_MAX ||
		json_array_append(p->kept, (json_t *)(uintptr_t)message) < 0)
		server_refuse(p, "it says too much while the servers stand");
}

/* Handles the messages that were kept, up to the first one that must still wait. That one and those
 * behind it stay kept, in their order. */
static void hear_kept(struct server_peer *p)
{
	json_t *kept = TERN_TAKE(p->kept);

	while (json_array_size(kept) > 0 && !change_delays(p, json_array_get(kept, 0))) {
		json_t *message = json_incref(json_array_get(kept, 0));

		json_array_remove(kept, 0);
		server_heard(&p->talk, message);
		json_decref(message);
	}
	if (json_array_size(kept) > 0) {
		p->kept = kept;
		return;
	}
	p->kept_bytes = 0;
	json_decref(kept);
}

void change_hear_kept(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (s->workers[i]->kept)
			hear_kept(s->workers[i]);
}

/* Carries the change out, and goes on. */
static void carry_out(struct tern_server *s, const struct move *moves,
	uint32_t move_count, uint64_t generation)
{
	for (uint32_t i = 0; i < move_count; i++)
		move_slot(s, &moves[i], generation);
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (lease_is_live(s->workers[i]))
			ask(s->workers[i], moves, move_count, generation);
	s->change = (struct change){.version = NONE};
	sync_owners_changed(s);
	sync_next(s);
	change_hear_kept(s);
	server_maybe_end(s);
}

/* ---- the change: server 0 ---- */

static void tell_change(const struct tern_server *s, const uint32_t *came,
	uint32_t came_count, const struct plan *plan, bool grown)
{
	json_t *view = grown ? tern_view_json(&s->view, "view") : NULL;
	json_t *all = json_array(), *moved = json_array();

	for (uint32_t i = 0; i < came_count; i++)
		json_array_append_new(
			all, json_pack("[I, I]", (json_int_t)came[i],
				     (json_int_t)s->workers[came[i]]->incarnation));
	for (uint32_t i = 0; i < plan->count; i++)
		json_array_append_new(
			moved, json_pack("[I, I, I]", (json_int_t)plan->moves[i].slot,
				       (json_int_t)plan->moves[i].from,
				       (json_int_t)plan->moves[i].to));
	tell_servers(s, json_pack("{s:s, s:I, s:o, s:o, s:o*}", "type", "change",
				"generation", (json_int_t)s->generation, "came", all,
				"moved", moved, "view", view));
}

/* Tells the worker which slots are its from the version on. Returns their number. */
static size_t tell_slots(struct server_peer *p, const struct plan *plan, uint64_t version)
{
	struct tern_server *s = p->server;
	json_t *slots = json_array();
	size_t count;

	for (uint32_t i = 0; i < plan->count; i++)
		if (plan->moves[i].to == p->index)
			json_array_append_new(slots, json_integer(plan->moves[i].slot));
	count = json_array_size(slots);
	tern_talk_say(&p->talk,
		json_pack("{s:s, s:I, s:I, s:I, s:o, s:o}", "type", "yours", "version",
			(json_int_t)version, "generation", (json_int_t)s->generation,
			"finisher", (json_int_t)lease_finisher(s), "slots", slots,
			"blobs", blobs_json(s, version)));
	return count;
}

/* Tells the worker that it takes part now, and whoever watches the job. */
static void tell_come(struct server_peer *p, const struct plan *plan, uint64_t version)
{
	struct tern_server *s = p->server;
	char text[300];
	size_t count = tell_slots(p, plan, version);

	snprintf(text, sizeof(text),
		"%.200s has come: from step %llu on %zu of %u slots are its",
		tern_peer_name(p->peer), (unsigned long long)version + 1, count,
		s->job.slots);
	s->history->came_count++;
	if (s->opts.came)
		s->opts.came(s->opts.arg, p->index, text);
}

/* Makes the places that the job does not have yet for those whom the change lets in. -ENOMEM. */
static int make_places(struct tern_server *s)
{
	int r = 0;

	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (r == 0 && p->returning && p->chosen)
			r = grow_for(s, p);
	}
	return r;
}

/* All servers have stopped at the version: decides, tells all, and goes on. */
static void decide(struct tern_server *s)
{
	uint64_t version = s->change.version;
	uint32_t before = s->job.workers;
	int r = make_places(s);
	uint32_t *came = calloc(s->job.workers, sizeof(*came)), count = 0;
	struct server_peer *p;
	struct plan plan;

	r = plan_make(s, &plan) < 0 ? -ENOMEM : r;
	if (!came || r < 0) {
		server_fail(s, -ENOMEM, "no memory to let a worker in");
	} else {
		while ((p = find_ready(s, true))) {
			came[count++] = p->index;
			let_in(p);
		}
		for (uint32_t i = 0; i < count; i++)
			fill(s, &plan, came[i]);
		if (count == 0)
			balance(s, &plan);
		s->generation++;
		tell_change(s, came, count, &plan, s->job.workers > before);
		carry_out(s, plan.moves, plan.count, s->generation);
		for (uint32_t i = 0; i < count; i++)
			tell_come(s->workers[came[i]], &plan, version);
		for (uint32_t i = 0; count == 0 && i < plan.count; i++)
			tell_slots(s->workers[plan.moves[i].to], &plan, version);
		maybe_let_in(s);
	}
	plan_free(&plan);
	free(came);
}

static void stopped(struct tern_server *s)
{
	if (s->change.unpaused > 0 && --s->change.unpaused == 0)
		decide(s);
}

void change_on_paused(struct server_peer *server, const json_t *message)
{
	(void)message;
	if (!server->pausing || server->paused)
		return;
	server->paused = true;
	stopped(server->server);
}

void change_step_made(struct tern_server *s)
{
	if (s->change.version == NONE || s->change.reached || s->over)
		return;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].version != s->change.version)
			return;
	s->change.reached = true;
	if (s->index == 0)
		stopped(s);
	else
		tern_talk_say(&s->to_zero->talk, json_pack("{s:s}", "type", "paused"));
}

/* ---- the change: another server ---- */

/* Reads number i of a list of numbers below `end`. */
static bool read_number(const json_t *list, size_t i, uint32_t end, uint32_t *out)
{
	const json_t *number = json_array_get(list, i);
	json_int_t value = json_integer_value(number);

	*out = (uint32_t)value;
	return json_is_integer(number) && value >= 0 && value < end;
}

/* Reads who has come, and which processes these are. */
static bool read_came(const struct tern_server *s, const json_t *list, uint32_t *came,
	uint64_t *incarnations)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *one = json_array_get(list, i);

		incarnations[i] = (uint64_t)json_integer_value(json_array_get(one, 1));
		if (!read_number(one, 0, s->job.workers, &came[i]) ||
			!s->workers[came[i]]->lost)
			return false;
	}
	return true;
}

/* Lets in those who have come. One that has left this server meanwhile, or another process
 * of its number, is lost: server 0 is told later. */
static void let_all_in(struct tern_server *s, const uint32_t *came,
	const uint64_t *incarnations, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct server_peer *p = find_returning(s, came[i]);

		if (p && p->incarnation == incarnations[i])
			let_in(p);
	}
}

static bool read_moves(
	const struct tern_server *s, const json_t *list, struct move *moves)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *one = json_array_get(list, i);

		if (!read_number(one, 0, s->job.slots, &moves[i].slot) ||
			!read_number(one, 1, s->job.workers, &moves[i].from) ||
			!read_number(one, 2, s->job.workers, &moves[i].to))
			return false;
	}
	return true;
}

static void read_change(struct tern_server *s, const json_t *message, uint32_t *came,
	uint64_t *incarnations, struct move *moves)
{
	const json_t *all = json_object_get(message, "came"),
		     *moved = json_object_get(message, "moved");
	uint32_t count = (uint32_t)json_array_size(all);
	json_int_t generation =
		json_integer_value(json_object_get(message, "generation"));

	if (!s->change.reached || generation < 1 || count > s->job.workers ||
		json_array_size(moved) > s->job.slots ||
		!read_came(s, all, came, incarnations) || !read_moves(s, moved, moves)) {
		server_fail(s, -EPROTO,
			"server 0 sent a wrong list of workers that have come, or of "
			"slots "
			"that move: expected it once all chunks here have stopped, lost "
			"workers from 0 to %u, and slots from 0 to %u",
			s->job.workers - 1, s->job.slots - 1);
		return;
	}
	s->generation = (uint64_t)generation;
	let_all_in(s, came, incarnations, count);
	carry_out(s, moves, (uint32_t)json_array_size(moved), (uint64_t)generation);
	for (uint32_t i = 0; i < count && !s->to_zero->gone; i++)
		if (s->workers[came[i]]->lost)
			lease_tell_lost(
				s->to_zero, s->workers[came[i]], "it has left meanwhile");
}

void change_on_change(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	int r = grow_on_change(s, message);
	uint32_t *came = calloc(s->job.workers, sizeof(*came));
	uint64_t *incarnations = calloc(s->job.workers, sizeof(*incarnations));
	struct move *moves = calloc(s->job.slots, sizeof(*moves));

	if (r == -EPROTO)
		server_fail(s, r,
			"server 0 sent a wrong view with a change of workers: expected "
			"the same servers and %u workers, once all chunks here have "
			"stopped",
			s->job.workers + 1);
	else if (r == 0 && came && incarnations && moves)
		read_change(s, message, came, incarnations, moves);
	else
		server_fail(s, -ENOMEM, "no memory to let a worker in");
	free(came);
	free(incarnations);
	free(moves);
}

/* ---- the old holder of a slot ---- */

static bool is_made(const struct tern_server *s, json_int_t version)
{
	return s->chunk_count == 0 || version <= (json_int_t)oldest(s);
}

/* A slot was moved at version `first`, and its old holder sends no gradient of it from
 * version `stop` on: refuses those between. */
static void refuse_between(
	struct server_peer *p, uint32_t slot, json_int_t first, json_int_t stop)
{
	struct tern_server *s = p->server;

	for (uint32_t i = 0; first < stop && i < s->chunk_count; i++)
		lease_refuse_extra(
			&s->chunks[i], p, slot, (uint64_t)first, (uint64_t)stop - 1);
}

void change_on_gave(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	json_int_t first = json_integer_value(json_object_get(message, "version"));
	const json_t *slots = json_object_get(message, "slots");

	for (size_t i = 0; i < json_array_size(slots); i++) {
		const json_t *one = json_array_get(slots, i);
		json_int_t stop = json_integer_value(json_array_get(one, 1));
		uint32_t slot;

		if (p->moved_count == 0 || first < 1 || stop < 0 ||
			!read_number(one, 0, s->job.slots, &slot) ||
			!is_made(s, stop - 1)) {
			server_refuse(p, "it gives a slot back which was not moved, or "
					 "from a version "
					 "on that it cannot have");
			return;
		}
		p->moved_count--;
		refuse_between(p, slot, first, stop);
	}
}

bool change_needs(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	if (p->marks_count > 0)
		return true;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint32_t k = 0; k < s->job.slots; k++)
			if (s->chunks[i].gradients[k].from == p ||
				s->chunks[i].gradients[k].in_place == p)
				return true;
	tern_list_for_each (n, &s->extras)
		if (tern_list_entry(n, struct extra, node)->from == p)
			return true;
	return false;
}
