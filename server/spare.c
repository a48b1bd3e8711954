/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers without a slot. They compute nothing, so they are sent no version but the last:
 * one that stands still would else keep the buffer of an old version from being used
 * again, and with it all others from going on.
 *
 *     spare --"where"--> each server says its oldest version --"follow" the oldest of
 *     all--> follows: gets that version and all later ones
 *
 * That happens when a spare is given a slot of a worker that was lost. Let m be the
 * oldest version of a chunk on any server after the loss. The lost worker never had the
 * whole version m+1, so its gradient for m+1 exists nowhere, and no chunk gets beyond m+1
 * before the spare has computed it from m. So each chunk is at m or m+1, and still has m.
 */
#include "server/internal.h"

static void begin(struct server_peer *worker)
{
	tern_talk_say(&worker->talk, json_pack("{s:s}", "type", "begun"));
}

/* The last step is done: spares need room for the parameters now. */
void spare_say_last(struct tern_server *s)
{
	if (s->index != 0 || s->said_last)
		return;
	s->said_last = true;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (!s->workers[i]->follows && !s->workers[i]->gone)
			tern_talk_say(
				&s->workers[i]->talk, json_pack("{s:s}", "type", "last"));
}

void spare_start(struct tern_server *s)
{
	for (uint32_t i = 0; s->leases && i < s->job.slots; i++)
		s->leases[i].holder->follows = true;
	for (uint32_t i = 0; s->leases && s->index == 0 && i < s->job.workers; i++)
		if (!s->workers[i]->follows && !s->workers[i]->gone)
			begin(s->workers[i]);
}

static bool may_follow(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	if (!s->leases || p->follows)
		return false;
	if (!s->running)
		return s->chunk_count == 0; /* it has not heard of the start yet */
	for (uint32_t i = 0; s->index == 0 && i < s->job.slots; i++)
		if (s->leases[i].owner == p)
			return true;
	return s->index != 0; /* others may hear of the loss only later */
}

/* A server without chunks is nowhere behind. */
static uint64_t oldest(const struct tern_server *s)
{
	uint64_t version = s->job.steps;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		version = TERN_MIN(version, s->chunks[i].version);
	return version;
}

void spare_on_where(struct server_peer *p)
{
	late_progress(p);
	if (!may_follow(p))
		server_refuse(p, "it asks for versions, and has no slot to compute");
	else
		tern_talk_say(&p->talk, json_pack("{s:s, s:I}", "type", "at", "version",
						(json_int_t)oldest(p->server)));
}

static bool has_version(const struct tern_server *s, uint64_t version)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].version != version &&
			s->chunks[i].version != version + 1)
			return false;
	return true;
}

/* The last version went to everybody when it was made. */
void spare_on_follow(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const json_t *from = json_object_get(message, "version");
	json_int_t version = json_integer_value(from);

	late_progress(p);
	if (!may_follow(p) || !json_is_integer(from) || version < 0 ||
		!has_version(s, (uint64_t)version)) {
		server_refuse(p, "it asks for versions that it cannot have");
		return;
	}
	p->follows = true;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint64_t v = (uint64_t)version; v <= s->chunks[i].version; v++)
			if (v < s->job.steps)
				chunk_publish_to(&s->chunks[i], v, p);
}
