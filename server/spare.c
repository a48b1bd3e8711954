/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers without a slot (spares). They compute nothing, so they are sent only the last
 * version: otherwise a worker that stands still would block the buffer of an old version,
 * and with it all other workers.
 *
 *     spare                                  each server
 *     "where"                       -->
 *                                   <--      "at": the oldest version of its chunks
 *     "follow" from the oldest      -->
 *     version of all answers on              sends that version and all later ones
 *
 * These messages are sent when a spare is given a slot of a lost worker. Let m be the
 * oldest version of a chunk on any server after the loss. The lost worker never had the
 * whole version m+1, so its gradient for m+1 exists nowhere, and no chunk gets beyond m+1
 * before the spare has computed it from m. So each chunk is at m or m+1, and still has m.
 */
#include "server/server_state.h"

static void begin(struct server_peer *worker)
{
	tern_talk_say(&worker->talk, json_pack("{s:s}", "type", "begun"));
}

/* Called when the last step of a chunk is done, which has an effect on server 0 only:
 * tells the spares that the last version follows, so that they post receives for it. */
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

	if (p->follows)
		return false;
	for (uint32_t i = 0; s->index == 0 && i < s->job.slots; i++)
		if (s->leases[i].owner == p)
			return true;
	/* A server other than 0 cannot check which slots p was given: it may not know of
	 * the loss yet, or even that the steps have begun. */
	return s->index != 0;
}

/* The oldest version of this server's chunks. A server without chunks returns the job's
 * last version, so that the minimum over all servers is that of the others. */
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
		server_refuse(p, "it asks which version is here, and %s",
			p->follows ? "is sent all versions already"
				   : "was given no slot to compute from one");
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

/* Sends all versions from the requested one on, except the last one, which every worker
 * is sent when it is made. */
void spare_on_follow(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const json_t *from = json_object_get(message, "version");
	json_int_t version = json_integer_value(from);

	late_progress(p);
	if (!may_follow(p) || !json_is_integer(from) || version < 0 ||
		!has_version(s, (uint64_t)version)) {
		server_refuse(p,
			"it asks for all versions from %lld on: expected a worker that "
			"was given its first slot, and a version that is here (the "
			"oldest chunk is at %llu)",
			(long long)version, (unsigned long long)oldest(s));
		return;
	}
	p->follows = true;
	/* Before version 0 is complete nothing is sent: then it goes to every worker whose
	 * `follows` is set. */
	for (uint32_t i = 0; steps_have_begun(s) && i < s->chunk_count; i++)
		for (uint64_t v = (uint64_t)version; v <= s->chunks[i].version; v++)
			if (v < s->job.steps)
				chunk_publish_to(&s->chunks[i], v, p);
}
