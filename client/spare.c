/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker without a slot (a share of each step's records), in sync mode. It receives no
 * version except the last one (server/spare.c says why), so it has no parameters when it
 * is given a slot. Then it asks each server for the oldest version of its chunks. From
 * the oldest answer on, it receives all versions; every server still has them.
 */
#include "client/worker_state.h"

#include <errno.h>

void spare_init(struct tern_worker *w)
{
	w->spare = w->job.mode == TERN_MODE_SYNC && w->slot_count == 0;
}

/* Reports the begin of the steps, once server 0 has said "begun" and the first version is known:
 * server 0 may say it before the welcome of another server has arrived. */
void spare_maybe_begin(struct tern_worker *w)
{
	if (w->begun || !w->heard_begun || !w->welcomed)
		return;
	w->begun = true;
	report_say(w);
	keep_begin(w, w->first_version);
	if (w->opts.begun)
		w->opts.begun(w->opts.arg, w->first_version);
}

/* Handles "begun": all processes are connected, and the steps begin. */
void spare_on_begun(struct worker_server *s)
{
	s->worker->heard_begun = true;
	spare_maybe_begin(s->worker);
}

void spare_on_last(struct worker_server *s)
{
	struct tern_worker *w = s->worker;

	if (w->spare && !w->last_posted)
		versions_receive(w, w->job.steps);
}

bool spare_is_behind(const struct tern_worker *w, uint64_t version)
{
	return w->spare && w->follows && version > w->follow_from;
}

void spare_follow(struct tern_worker *w)
{
	if (!w->spare || w->unplaced_count || w->follows)
		return;
	w->unplaced_count = w->job.server_count;
	w->follow_from = w->job.steps;
	for (uint32_t i = 0; i < w->job.server_count; i++) {
		w->servers[i].placed = false;
		tern_talk_say(&w->servers[i].talk, json_pack("{s:s}", "type", "where"));
	}
}

/* Called when all servers have answered "where": asks for all versions from the oldest
 * one on. If the last step is done, the last version arrives without being asked for, or
 * has arrived, and the worker need not compute its slot any more. */
static void follow(struct tern_worker *w)
{
	if (!w->spare || w->follow_from == w->job.steps)
		return;
	w->follows = true;
	for (uint32_t i = 0; i < w->job.server_count; i++)
		tern_talk_say(&w->servers[i].talk,
			json_pack("{s:s, s:I}", "type", "follow", "version",
				(json_int_t)w->follow_from));
	versions_receive(w, w->follow_from);
}

void spare_on_at(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	const json_t *at = json_object_get(message, "version");
	json_int_t version = json_integer_value(at);

	if (s->placed || !w->unplaced_count || !json_is_integer(at) || version < 0 ||
		(uint64_t)version > w->job.steps) {
		worker_fail(w, -EPROTO,
			"server %u said that its oldest version is %lld: expected 0 to "
			"%llu, once, when it is asked",
			s->number, (long long)version, (unsigned long long)w->job.steps);
		return;
	}
	s->placed = true;
	w->follow_from = TERN_MIN(w->follow_from, (uint64_t)version);
	if (--w->unplaced_count == 0)
		follow(w);
}
