/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that joins during the steps, and the others, of whose slots (shares of each
 * step's records) it gets some; and a worker that gets a slot of one that is slow. server/change.c
 * has the exchange of messages.
 *
 * Between two steps a slot becomes another worker's. The worker that had it may be in the
 * middle of its gradient, or have sent it. Each server asks for the version with which this
 * worker stops, since it has to refuse what is sent before that. All are answered the same.
 */
#include "client/worker_state.h"

#include <errno.h>

#include "ps/view.h"

/* ---- this worker comes, or gets more slots ---- */

void change_ready(struct tern_worker *w)
{
	tern_talk_say(&w->servers[0].talk, json_pack("{s:s}", "type", "ready"));
}

/* Adds the slots that this worker has from a version on. They are to be computed now if the version
 * is here, and else when it has come. -EPROTO, -ENOMEM. */
static int add_slots(
	struct tern_worker *w, const json_t *slots, uint64_t generation, bool is_here)
{
	for (size_t i = 0; i < json_array_size(slots); i++) {
		const json_t *number = json_array_get(slots, i);
		json_int_t slot = json_integer_value(number);
		struct slot *added;
		int r;

		if (!json_is_integer(number) || slot < 0 || slot >= w->job.slots ||
			slots_find(w, (uint32_t)slot))
			return -EPROTO;
		r = slots_add(w, (uint32_t)slot, generation);
		if (r < 0)
			return r;
		added = &w->slots[w->slot_count - 1];
		added->taken = true; /* the servers know who has it */
		added->pending = is_here;
	}
	return 0;
}

/* Begins to receive versions. */
static void follow(struct tern_worker *w, uint64_t version)
{
	w->follows = true;
	w->follow_from = version;
	versions_receive(w, version);
}

/* Takes part in the job from the version on. */
static void begin(struct tern_worker *w, uint64_t version)
{
	w->own_version = version;
	w->begun = true;
	keep_begin(w, version);
	if (w->opts.begun)
		w->opts.begun(w->opts.arg, version);
	report_say(w);
	if (w->slot_count > 0 && !w->over)
		follow(w, version);
}

/* Has more slots from the version on: this worker had none yet, or is at that version or the one
 * before. */
static void get_more(struct tern_worker *w, uint64_t version)
{
	if (w->spare) {
		follow(w, version);
		return;
	}
	early_cancel(w); /* a new slot may come before the one that was announced */
	slots_run(w);
}

static bool may_get(const struct tern_worker *w, uint64_t version)
{
	if (!w->begun)
		return w->joined_late;
	if (w->spare)
		return !w->follows;
	return version == w->version || version == w->version + 1;
}

static void take_over(struct tern_worker *w, uint64_t version, uint32_t finisher)
{
	w->finisher = finisher;
	if (w->begun)
		get_more(w, version);
	else
		begin(w, version);
}

void change_on_yours(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	json_int_t version = -1, generation = 0, finisher = -1;
	json_t *slots = NULL;
	int r = -EPROTO;

	if (s->index == 0 &&
		json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I, s:o}",
			"version", &version, "generation", &generation, "finisher",
			&finisher, "slots", &slots) == 0 &&
		version > 0 && (uint64_t)version < w->job.steps && generation > 0 &&
		finisher >= 0 && finisher < w->job.workers &&
		may_get(w, (uint64_t)version))
		r = add_slots(w, slots, (uint64_t)generation,
			w->begun && !w->spare && (uint64_t)version == w->version);
	if (r == -EPROTO)
		worker_fail(w, r,
			"server %u gave this worker slots in a message that cannot be "
			"right: expected it from server 0, with the next version, from 1 "
			"to "
			"%llu, "
			"workers from 0 to %u and slots from 0 to %u",
			s->number, (unsigned long long)w->job.steps - 1,
			w->job.workers - 1, w->job.slots - 1);
	else if (r < 0)
		worker_give_up(w, r, "no memory for the gradient of one more slot: %s",
			tern_status_text(r));
	else if (w->begun || keep_hear(s, message))
		take_over(w, (uint64_t)version, (uint32_t)finisher);
}

/* ---- another worker comes, of a number that the job did not have ---- */

void change_on_grown(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	struct tern_view view;

	if (s->index != 0 || !tern_view_read(message, &view) ||
		view.workers <= w->opts.index ||
		!tern_view_has_servers_of(&view, &w->job)) {
		worker_fail(w, -EPROTO,
			"server %u has sent a wrong view: expected it from server 0, "
			"with "
			"the job's servers and more than %u workers",
			s->number, w->opts.index);
		return;
	}
	if (view.number > w->job.view && w->opts.viewed)
		w->opts.viewed(w->opts.arg, &view);
	tern_view_set_job(&view, &w->job);
}

/* ---- slots that go ---- */

static struct moved *find(const struct tern_worker *w, uint32_t slot, uint64_t generation)
{
	for (uint32_t i = 0; i < w->moved_count; i++)
		if (w->moved[i].slot == slot && w->moved[i].generation == generation)
			return &w->moved[i];
	return NULL;
}

bool change_is_gone(const struct tern_worker *w, uint32_t slot, uint64_t generation)
{
	for (uint32_t i = 0; i < w->moved_count; i++)
		if (w->moved[i].slot == slot && w->moved[i].generation > generation)
			return true;
	return false;
}

/* Returns the version from which on this worker sends no gradient of the slot, which it
 * begins no more. */
static uint64_t stop_of(const struct tern_worker *w, const struct slot *slot)
{
	bool computes = w->computing && w->slot == slot;

	if (w->spare || !slot->taken)
		return 0; /* it has sent none */
	return slot->pending && !computes ? w->version : w->version + 1;
}

/* Gives the slot up. Returns what the servers are told; NULL: no memory. */
static struct moved *give_up(struct tern_worker *w, uint32_t number, uint64_t generation)
{
	struct slot *slot = slots_find(w, number);
	struct moved *moved;

	if (w->moved_count == w->moved_room) {
		uint32_t room = 2 * w->moved_room + 8;

		moved = realloc(w->moved, room * sizeof(*moved));
		if (!moved)
			return NULL;
		w->moved = moved;
		w->moved_room = room;
	}
	moved = &w->moved[w->moved_count++];
	*moved = (struct moved){.slot = number,
		.generation = generation,
		.stop = slot ? stop_of(w, slot) : 0};
	if (slot)
		slots_remove(w, slot);
	/* Perhaps no slot is left that would be begun in its place, which would cancel it. */
	if (w->is_announced && w->announced.slot == number)
		early_cancel(w);
	return moved;
}

/* A server asks for the slot's `stop`. False: the message is wrong, or there is no memory, and
 * the worker has failed. */
static bool answer(struct worker_server *s, const json_t *number, uint64_t generation,
	json_t *answers)
{
	struct tern_worker *w = s->worker;
	json_int_t slot = json_integer_value(number);
	struct moved *moved;

	if (!json_is_integer(number) || slot < 0 || slot >= w->job.slots) {
		worker_fail(w, -EPROTO,
			"server %u moved a slot to another worker: expected slots from 0 "
			"to %u",
			s->number, w->job.slots - 1);
		return false;
	}
	moved = find(w, (uint32_t)slot, generation);
	if (!moved)
		moved = give_up(w, (uint32_t)slot, generation);
	if (!moved) {
		worker_give_up(w, -ENOMEM, "no memory to give up a slot");
		return false;
	}
	json_array_append_new(
		answers, json_pack("[I, I]", slot, (json_int_t)moved->stop));
	if (++moved->asked == w->job.server_count)
		*moved = w->moved[--w->moved_count];
	return true;
}

void change_on_moved(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	const json_t *slots = json_object_get(message, "slots");
	json_t *version = json_object_get(message, "version"), *answers = json_array();
	json_int_t generation =
		json_integer_value(json_object_get(message, "generation"));

	for (size_t i = 0; i < json_array_size(slots); i++)
		if (!answer(s, json_array_get(slots, i), (uint64_t)generation, answers)) {
			json_decref(answers);
			return;
		}
	tern_talk_say(&s->talk, json_pack("{s:s, s:O?, s:o}", "type", "gave", "version",
					version, "slots", answers));
	/* The slots that are left may all have been computed. */
	if (w->begun && !w->spare && w->missing[w->version & 1] == 0 &&
		w->state == WORKER_RUNNING && !slots_complete_step(w))
		slots_run(w);
}

void change_fini(struct tern_worker *w)
{
	free(w->moved);
}
