/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications: core.h. A notification of NIXL has any number of bytes, and one of Tern
 * up to TERN_NOTE_MAX, so it leaves in parts; mostly there is one. Tern gives a part to the
 * other program once, also if the connection was lost meanwhile.
 *
 * The parts of a notification arrive in their order, and no part of another one that has
 * several parts arrives between them. A sender that cancels leaves out the last parts. So
 * each connection has at most one notification of which parts are missing: the first part
 * of another one ends it. A notification of one part may arrive at any time, behind a put.
 *
 * Tern acknowledges a notification when it was queued here, so a sender does not wait for
 * the program to take it. A peer whose notification would go over WAITING_MAX has its
 * connection cut, and learns that the notification was not taken.
 */
#include "plugins/nixl/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PART_MAGIC 0x544e4958u /* "TNIX" */
#define BYTES_MAX  (16u << 20) /* of a notification */
/* Notifications of an engine that the program has not taken, or of which parts are missing:
 * their bytes, and those of a struct arrived for each. */
#define WAITING_MAX (256u << 20)
/* Why a notification is not taken. */
#define FULL      "256 MiB of notifications wait, which the program does not take"
#define NO_MEMORY "there is no memory for its notification"
#define WRONG     "its notification is not of this version of Tern"

struct part {
	uint32_t magic;
	uint32_t name_bytes;
	uint64_t number; /* of the notification, on this connection */
	uint32_t bytes;  /* of the whole notification */
	uint32_t offset; /* of this part */
			 /* The name and the bytes follow. */
};
_Static_assert(sizeof(struct part) == 24, "the same for all compilers");

/* A notification that has arrived. */
struct arrived {
	struct arrived *next;
	char name[NAME_MAX_BYTES + 1];
	size_t bytes;
	char data[];
};

/* A notification of which parts are missing. */
struct partial {
	uint64_t number;
	size_t bytes, here;
	char data[];
};

/* An agent that has connected to this one. */
struct inbound {
	struct engine *engine;
	struct tern_peer *peer;
	struct inbound *next, **place; /* in engine->inbound */
	struct partial *partial;
};

/* ---- sending ---- */

static int make_room(struct note *n, unsigned count, size_t bytes)
{
	if (n->room < bytes) {
		char *data = realloc(n->data, bytes);

		if (!data)
			return -ENOMEM;
		n->data = data;
		n->room = bytes;
	}
	if (n->room_count < count) {
		struct tern_note *parts = realloc(n->parts, count * sizeof(*parts));
		struct tern_req *reqs;

		if (!parts)
			return -ENOMEM;
		n->parts = parts;
		reqs = realloc(n->reqs, count * sizeof(*reqs));
		if (!reqs)
			return -ENOMEM;
		n->reqs = reqs;
		n->room_count = count;
	}
	return 0;
}

int note_write(struct note *n, struct engine *e, const void *data, size_t bytes)
{
	size_t name_bytes = strlen(e->name);
	size_t head = sizeof(struct part) + name_bytes, fit = TERN_NOTE_MAX - head;
	struct part part = {.magic = PART_MAGIC,
		.name_bytes = (uint32_t)name_bytes,
		.bytes = (uint32_t)bytes};
	unsigned count = bytes ? (unsigned)((bytes + fit - 1) / fit) : 1;
	char *to;

	if (bytes > BYTES_MAX) {
		nixl_warn("agent %s: a notification has up to %u bytes, not %zu", e->name,
			BYTES_MAX, bytes);
		return -EMSGSIZE;
	}
	if (make_room(n, count, bytes + count * head) < 0)
		return -ENOMEM;
	part.number = ++e->note_count;
	n->count = count;
	n->posted = 0;
	n->status = 0;
	to = n->data;
	for (unsigned i = 0; i < count; i++) {
		size_t left = bytes - part.offset, now = left < fit ? left : fit;

		memcpy(to, &part, sizeof(part));
		memcpy(to + sizeof(part), e->name, name_bytes);
		if (now)
			memcpy(to + head, (const char *)data + part.offset, now);
		n->parts[i] = (struct tern_note){.data = to, .bytes = head + now};
		to += head + now;
		part.offset += (uint32_t)now;
	}
	return 0;
}

void note_fini(struct note *n)
{
	free(n->data);
	free(n->parts);
	free(n->reqs);
}

static void note_free(struct note *n)
{
	*n->place = n->next;
	if (n->next)
		n->next->place = n->place;
	agent_put(n->agent);
	note_fini(n);
	free(n);
}

static void part_ended(struct tern_req *req)
{
	struct note *n = req->arg;

	if (req->status < 0 && n->status == 0)
		n->status = req->status;
	if (--n->left > 0)
		return;
	if (n->status < 0)
		nixl_warn("agent %s: a notification to agent %s (%s): %s",
			n->agent->engine->name, n->agent->name, n->agent->where,
			tern_status_text(n->status));
	note_free(n);
}

/* The context is locked. */
static int send_to(struct agent *a, const void *data, size_t bytes)
{
	struct engine *e = a->engine;
	struct note *n = calloc(1, sizeof(*n));
	int r = n ? note_write(n, e, data, bytes) : -ENOMEM;

	if (r < 0) {
		if (n)
			note_fini(n);
		free(n);
		return r == -EMSGSIZE ? RESULT_INVALID : RESULT_BACKEND;
	}
	n->agent = a;
	a->users++;
	n->next = e->notes;
	n->place = &e->notes;
	if (n->next)
		n->next->place = &n->next;
	e->notes = n;
	for (unsigned i = 0; i < n->count && r == 0; i++) {
		n->reqs[i] = (struct tern_req){.done = part_ended, .arg = n};
		r = tern_notify(a->peer, &n->reqs[i], &n->parts[i]);
		if (r == 0)
			n->left++;
	}
	if (r == 0)
		return RESULT_OK;
	n->status = r;
	if (n->left == 0)
		note_free(n);
	return agent_result(a, "a notification to", r);
}

int notes_send(struct engine *e, const char *name, const void *data, size_t bytes)
{
	bool self = strcmp(name, e->name) == 0;
	struct agent *a;
	int r;

	if (!engine_lock(e))
		return RESULT_BACKEND;
	a = self ? NULL : agent_find(e, name);
	if (self)
		r = notes_deliver(e, data, bytes);
	else if (!a)
		r = RESULT_NOT_FOUND;
	else
		r = agent_dial(a);
	if (a && r == RESULT_OK)
		r = send_to(a, data, bytes);
	tern_shared_unlock(e->shared);
	if (r == RESULT_NOT_FOUND)
		nixl_warn("agent %s: agent %s is unknown: load its metadata first",
			e->name, name);
	return r;
}

/* ---- receiving ---- */

static bool has_room(const struct engine *e, size_t bytes)
{
	return e->waiting_bytes + e->partial_bytes + bytes + sizeof(struct arrived) <=
	       WAITING_MAX;
}

/* Queues a notification for the program. Returns NULL, or why not. */
static const char *queue(struct engine *e, const char *agent, size_t name_bytes,
	const void *data, size_t bytes)
{
	struct arrived *n;

	if (!has_room(e, bytes))
		return FULL;
	n = malloc(sizeof(*n) + bytes);
	if (!n)
		return NO_MEMORY;
	memcpy(n->name, agent, name_bytes);
	n->name[name_bytes] = '\0';
	n->bytes = bytes;
	if (bytes)
		memcpy(n->data, data, bytes);
	n->next = NULL;
	*e->last_arrived = n;
	e->last_arrived = &n->next;
	e->waiting_bytes += sizeof(*n) + bytes;
	return NULL;
}

int notes_deliver(struct engine *e, const void *data, size_t bytes)
{
	const char *why = queue(e, e->name, strlen(e->name), data, bytes);

	if (!why)
		return RESULT_OK;
	nixl_warn("agent %s: a notification to itself: %s", e->name, why);
	return RESULT_BACKEND;
}

static void drop_partial(struct inbound *in)
{
	if (in->partial)
		in->engine->partial_bytes -= in->partial->bytes;
	free(in->partial);
	in->partial = NULL;
}

static const char *begin_partial(struct inbound *in, const struct part *part)
{
	drop_partial(in);
	if (!has_room(in->engine, part->bytes))
		return FULL;
	in->partial = malloc(sizeof(*in->partial) + part->bytes);
	if (!in->partial)
		return NO_MEMORY;
	*in->partial = (struct partial){.number = part->number, .bytes = part->bytes};
	in->engine->partial_bytes += part->bytes;
	return NULL;
}

/* Adds a part to those of its notification, which has several. */
static const char *add_part(struct inbound *in, const struct part *part, const char *name,
	const char *data, size_t bytes)
{
	const char *why = part->offset == 0 ? begin_partial(in, part) : NULL;
	struct partial *p = in->partial;

	if (why)
		return why;
	if (!p || p->number != part->number || p->bytes != part->bytes ||
		p->here != part->offset)
		return WRONG;
	memcpy(p->data + p->here, data, bytes);
	p->here += bytes;
	if (p->here < p->bytes)
		return NULL;
	in->partial = NULL;
	in->engine->partial_bytes -= p->bytes;
	why = queue(in->engine, name, part->name_bytes, p->data, p->bytes);
	free(p);
	return why;
}

/* Returns NULL, or why the part is not taken. */
static const char *take_part(struct inbound *in, const char *data, size_t bytes)
{
	struct part part;
	const char *name = data + sizeof(part);

	if (bytes < sizeof(part))
		return WRONG;
	memcpy(&part, data, sizeof(part));
	if (part.magic != PART_MAGIC || part.name_bytes > NAME_MAX_BYTES ||
		part.name_bytes > bytes - sizeof(part) || part.bytes > BYTES_MAX)
		return WRONG;
	data = name + part.name_bytes;
	bytes -= sizeof(part) + part.name_bytes;
	if (part.offset > part.bytes || bytes > part.bytes - part.offset ||
		(bytes == 0 && part.bytes > 0))
		return WRONG;
	if (bytes == part.bytes)
		return queue(in->engine, name, part.name_bytes, data, bytes);
	return add_part(in, &part, name, data, bytes);
}

void notes_notified(struct tern_peer *peer, const void *data, size_t bytes, void *inbound)
{
	struct inbound *in = inbound;
	const char *why = take_part(in, data, bytes);

	if (!why)
		return;
	nixl_warn("agent %s: the connection of %s is cut: %s", in->engine->name,
		tern_peer_name(peer), why);
	inbound_free(in);
}

int notes_take(struct engine *e,
	void (*take)(void *arg, const char *agent, const void *data, size_t bytes),
	void *arg)
{
	struct arrived *n, *next;

	if (engine_progress(e) < 0 || !engine_lock(e))
		return RESULT_BACKEND;
	n = e->arrived;
	e->arrived = NULL;
	e->last_arrived = &e->arrived;
	e->waiting_bytes = 0;
	tern_shared_unlock(e->shared);
	for (; n; n = next) {
		next = n->next;
		take(arg, n->name, n->data, n->bytes);
		free(n);
	}
	return RESULT_OK;
}

/* ---- agents that have connected ---- */

struct inbound *inbound_new(struct engine *e, struct tern_peer *peer)
{
	struct inbound *in = calloc(1, sizeof(*in));

	if (!in)
		return NULL;
	in->engine = e;
	in->peer = peer;
	in->next = e->inbound;
	in->place = &e->inbound;
	if (in->next)
		in->next->place = &in->next;
	e->inbound = in;
	return in;
}

void inbound_free(struct inbound *in)
{
	tern_peer_free(in->peer);
	*in->place = in->next;
	if (in->next)
		in->next->place = in->place;
	drop_partial(in);
	free(in);
}

void inbound_close(struct engine *e)
{
	for (struct inbound *in = e->inbound; in; in = in->next)
		tern_peer_close(in->peer);
}

void notes_free(struct engine *e)
{
	while (e->notes)
		note_free(e->notes);
	while (e->arrived) {
		struct arrived *n = e->arrived;

		e->arrived = n->next;
		free(n);
	}
}
