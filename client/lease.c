/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When another worker is lost, server 0 decides which of its slots (shares of each step's
 * records) this worker computes from now on, and which worker finishes the job. When this
 * worker begins to compute such a slot for the first time, it sends "take" to every
 * server, with the version of its parameters. No server has a chunk that is older than
 * that, because this worker has received all chunks of that version.
 *
 * If this worker is silent while other processes may wait for it, a server asks it
 * whether it is busy (server/late.c).
 */
#include "client/worker_state.h"

#include <errno.h>
#include <stdio.h>

void worker_take(struct tern_worker *w, struct slot *slot)
{
	slot->taken = true;
	for (uint32_t i = 0; i < w->job.server_count; i++)
		tern_talk_say(&w->servers[i].talk,
			json_pack("{s:s, s:I, s:I, s:I}", "type", "take", "slot",
				(json_int_t)slot->number, "version",
				(json_int_t)w->version, "generation",
				(json_int_t)slot->generation));
}

/* Reports the loss if this worker has something to compute because of it: the servers
 * report every loss. After the last step nothing is left to be computed. */
static void tell_lost(
	struct tern_worker *w, uint32_t lost, size_t slot_count, const char *text)
{
	char line[600];

	if (!w->opts.lost || slot_count == 0 || w->version >= w->my_steps)
		return;
	snprintf(line, sizeof(line), "%s: %zu of its slots %s computed here", text,
		slot_count, slot_count == 1 ? "is" : "are");
	w->opts.lost(w->opts.arg, lost, line);
}

/* Adds slots of a lost worker, unless they were moved away since. -EPROTO: a number is not
 * a slot of the job, or this worker has the slot already; -ENOMEM. */
static int add_slots(struct tern_worker *w, const json_t *slots, uint64_t generation)
{
	for (size_t i = 0; i < json_array_size(slots); i++) {
		json_int_t number = json_integer_value(json_array_get(slots, i));
		int r;

		if (!json_is_integer(json_array_get(slots, i)) || number < 0 ||
			number >= w->job.slots || slots_find(w, (uint32_t)number))
			return -EPROTO;
		if (change_is_gone(w, (uint32_t)number, generation))
			continue;
		r = slots_add(w, (uint32_t)number, generation);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_worker(const struct tern_worker *w, const json_t *number)
{
	json_int_t i = json_integer_value(number);

	return json_is_integer(number) && i >= 0 && i < w->job.workers;
}

/* The servers have cut this worker off. If it has begun no step with them, it has only to join anew. */
static void cut_off(struct worker_server *s, const char *text)
{
	struct tern_worker *w = s->worker;

	w->results.cut = w->back_is_possible;
	if (!w->begun && worker_may_go_back(w))
		worker_give_up(w, -EAGAIN, "server %u has cut this worker off: %s",
			s->number, text);
	else
		worker_give_up(w, -ECONNABORTED,
			"the job goes on without this worker: %s", text);
}

void worker_on_lost(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	const json_t *slots = json_object_get(message, "slots");
	const char *text = json_string_value(json_object_get(message, "text"));
	const json_t *worker = json_object_get(message, "worker");
	json_int_t lost = json_integer_value(worker);
	const json_t *finisher = json_object_get(message, "finisher");
	json_int_t generation =
		json_integer_value(json_object_get(message, "generation"));
	int r = -EPROTO;

	text = text ? text : "no reason given";
	if (json_is_integer(worker) && lost == w->opts.index) {
		cut_off(s, text);
		return;
	}
	if (s->index == 0 && is_worker(w, worker) && generation > 0 &&
		is_worker(w, finisher) && json_is_array(slots))
		r = add_slots(w, slots, (uint64_t)generation);
	if (r == -EPROTO) {
		worker_fail(w, r,
			"server %u gave slots to this worker in a message that cannot be "
			"right: expected it from server 0, workers from 0 to %u, a "
			"generation from 1, and slots from 0 to %u that are new to this "
			"worker",
			s->number, w->job.workers - 1, w->job.slots - 1);
	} else if (r < 0) {
		worker_give_up(w, r, "no memory for the gradient of one more slot: %s",
			tern_status_text(r));
	} else {
		tell_lost(w, (uint32_t)lost, json_array_size(slots), text);
		w->finisher = (uint32_t)json_integer_value(finisher);
		finish_next(w);
		if (json_array_size(slots) > 0)
			spare_follow(w);
		slots_run(w);
	}
}

void worker_on_done(struct worker_server *s)
{
	s->worker->all_done = true;
	finish_next(s->worker);
}

void worker_on_finished(struct worker_server *s)
{
	s->worker->finished = true;
	finish_next(s->worker);
}

/* ---- what this worker is doing ---- */

static bool is_from(const struct tern_worker *w, uint32_t chunk,
	const struct tern_req *req, uint32_t but)
{
	return req->status == -EINPROGRESS && w->plan.chunks[chunk].server != but;
}

static bool is_sent(const struct tern_worker *w, uint32_t chunk, uint32_t but)
{
	for (uint32_t i = 0; i < w->room_count; i++)
		if (is_from(w, chunk, &w->rooms[i].parts[chunk].req, but))
			return true;
	return false;
}

/* Returns a server other than `but` for which this worker waits: for "kept", "finished" or "done"
 * from server 0, for the answer to "where" or "pull", for a part of a version, or for the
 * end of sending a gradient whose buffer may be needed. -1: none. */
static int waits_for(const struct tern_worker *w, uint32_t but)
{
	if (w->keep.awaited && but != 0)
		return 0;
	if (w->state == WORKER_FINISHING && !w->results.finisher && but != 0)
		return 0;
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (i != but && ((w->unplaced_count && !w->servers[i].placed) ||
					(w->uncounted_count && !w->servers[i].counted)))
			return (int)i;
	for (uint32_t i = 0; !w->computing && i < w->plan.chunk_count; i++)
		if (is_from(w, i, &w->parts[0][i].req, but) ||
			is_from(w, i, &w->parts[1][i].req, but) || is_sent(w, i, but))
			return (int)w->plan.chunks[i].server;
	return -1;
}

/*
 * A server has seen no progress of this worker for `silent_ns`, and other workers may
 * wait for it. It answers "busy" only if that is true: it has computed something
 * meanwhile, is saving, or waits for another server. Otherwise it does not answer.
 */
void worker_on_late(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	const json_t *silent = json_object_get(message, "silent_ns");
	json_int_t silent_ns = json_integer_value(silent);
	bool worked = w->keep.awaited ||
		      tern_now_ns(w->env) - w->worked_ns < (uint64_t)silent_ns;
	/* A worker that waits for its next attempt to save counts as saving: another
	 * worker would perhaps not be able to save either. */
	bool saves = w->saving || w->save_timer.place;
	int server = waits_for(w, s->index);

	if (!json_is_integer(silent) || silent_ns < 0) {
		worker_fail(w, -EPROTO,
			"server %u asked why this worker is silent: expected the time in "
			"ns, 0 or more",
			s->number);
		return;
	}
	if (!worked && !saves && server < 0)
		return;
	tern_talk_say(&s->talk,
		server < 0 ? json_pack("{s:s}", "type", "busy")
			   : json_pack("{s:s, s:i}", "type", "busy", "server", server));
}
