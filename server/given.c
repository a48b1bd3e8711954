/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values that workers have (TERN_INIT_GIVEN). The lowest live worker gives them,
 * when all processes are connected and before version 0 is sent to anybody. Server 0 names
 * this worker, so that all servers take the values of the same one:
 *
 *     server 0                     each server                  the giver
 *     "giver", worker g       -->
 *                                  "give"                  -->
 *                                                          <--  the given ranges of each
 *                                                               chunk (ps/given.h)
 *                             <--  "given", worker g
 *     "given", when all
 *     have said so            -->  the steps begin
 *
 * If the giver is lost before server 0 has said "given", server 0 names the next one, and
 * every server receives all values anew. So version 0 never has values of two workers.
 * A server that loses the giver after it has said "given" keeps its values: either server
 * 0 has begun the steps with them, or it names another giver.
 *
 * The values are received at their places in version 0 of each chunk, and take no memory
 * besides. Another giver is asked only when all receives of the former one have ended: no
 * fabric writes for it any more then. Values must be finite numbers, as those of a version
 * that is saved must be. A giver that sends something else is lost, and so is one that
 * others wait for and that sends nothing for as long as a late worker may (late.c).
 *
 * A server without given values in its chunks begins its steps at once.
 */
#include "server/membership.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the end ---- */

static void begin(struct tern_server *s)
{
	struct given *g = &s->given;

	if (!g->awaited)
		return;
	g->awaited = false;
	free(TERN_TAKE(g->parts));
	g->part_count = 0;
	start_steps(s);
}

/* Server 0: begins the steps on all servers, if all have the values of the giver. */
static void begin_if_all_have(struct tern_server *s)
{
	struct given *g = &s->given;

	for (uint32_t i = 0; i < s->job.server_count; i++)
		if (!g->has[i])
			return;
	g->begun = true;
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (others_find(s, i))
			tern_talk_say(&others_find(s, i)->talk,
				json_pack("{s:s}", "type", "given"));
	begin(s);
}

/* This server has all values of the giver. */
static void have_all(struct tern_server *s)
{
	struct given *g = &s->given;

	g->state = GIVEN_HERE;
	if (s->index == 0) {
		g->has[0] = true;
		begin_if_all_have(s);
	} else if (!s->to_zero->gone) {
		tern_talk_say(&s->to_zero->talk,
			json_pack("{s:s, s:I}", "type", "given", "worker",
				(json_int_t)g->giver->index));
	}
}

/* ---- checking ---- */

static void check(struct tern_server *s);
static void ask(struct tern_server *s);

/* Copies the chunk from GPU memory to host memory; NULL: that has failed, see
 * c->status. */
static float *fetch(struct chunk *c)
{
	float *values = calloc(c->plan->count, sizeof(*values));

	c->status = -ENOMEM;
	if (values)
		c->status = tern_updater_copy(
			c->server->opts.updater, c->kept, values, chunk_w(c, 0));
	if (c->status < 0)
		free(TERN_TAKE(values));
	return values;
}

/* Looks in each given range of the chunk for values that are no numbers. */
static void look(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct given *g = &c->server->given;
	bool on_device = shard_is_on_device(c->server);
	float *values = on_device ? fetch(c) : chunk_w(c, 0);

	if (on_device && !values)
		return;
	for (uint32_t i = g->checked; i < g->part_count; i++) {
		const struct tern_given_range *range = &g->parts[i].range;
		uint64_t at;

		if (g->parts[i].chunk != c)
			break;
		at = tern_given_first_wrong(
			values + (range->first - c->plan->first), range->count);
		if (at < range->count && g->wrong == UINT64_MAX)
			g->wrong = range->first + at;
	}
	if (on_device)
		free(values);
	else
		chunk_round(c, 0);
}

static void lose_for_wrong_value(struct tern_server *s)
{
	const struct tern_param *p =
		&s->job.params[tern_ps_job_tensor_at(&s->job, s->given.wrong)];

	lease_lost(s->given.giver, false,
		"%s gives initial values that are no numbers: value %llu of tensor "
		"%.120s",
		tern_peer_name(s->given.giver->peer),
		(unsigned long long)(s->given.wrong - p->first), p->name);
}

static void looked(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct tern_server *s = c->server;
	struct given *g = &s->given;

	g->checking = false;
	if (s->over)
		return;
	if (c->status < 0) {
		server_fail(s, c->status, "cannot check the given initial values: %s",
			*c->kept->error ? c->kept->error : tern_status_text(c->status));
	} else if (g->state != GIVEN_CHECKING) {
		ask(s); /* the giver was lost while its values were checked */
	} else if (g->wrong != UINT64_MAX) {
		lose_for_wrong_value(s);
	} else {
		while (g->checked < g->part_count && g->parts[g->checked].chunk == c)
			g->checked++;
		check(s);
	}
}

/* Checks the next chunk, in a task. */
static void check(struct tern_server *s)
{
	struct given *g = &s->given;

	if (g->checked == g->part_count) {
		have_all(s);
		return;
	}
	g->checking = true;
	g->wrong = UINT64_MAX;
	g->parts[g->checked].chunk->status = 0;
	chunk_submit(g->parts[g->checked].chunk, look, looked);
}

/* ---- receiving ---- */

static bool is_whole(const struct given_part *part)
{
	return part->req.status == 0 && part->req.shape.dtype == TERN_F32 &&
	       part->req.bytes == part->range.count * sizeof(float);
}

static void lose_for_wrong_size(const struct given_part *part, struct server_peer *giver)
{
	lease_lost(giver, false,
		"%s gave %llu bytes of initial values, %s, for chunk %u: expected %llu "
		"bytes, %s",
		tern_peer_name(giver->peer), (unsigned long long)part->req.bytes,
		tern_dtype_name(part->req.shape.dtype), part->chunk->number,
		(unsigned long long)(part->range.count * sizeof(float)),
		tern_dtype_name(TERN_F32));
}

static void arrived(struct tern_req *req)
{
	struct given_part *part = req->arg;
	struct tern_server *s = part->chunk->server;
	struct given *g = &s->given;

	g->out_count--;
	if (s->over)
		return;
	if (g->state != GIVEN_ARRIVING) {
		ask(s); /* the giver was lost while it sent */
	} else if (is_whole(part)) {
		late_progress(g->giver);
		if (--g->missing_count == 0) {
			g->state = GIVEN_CHECKING;
			g->checked = 0;
			check(s);
		}
	} else if (req->status == 0 || req->status == -EMSGSIZE) {
		lose_for_wrong_size(part, g->giver);
	} else {
		tern_talk_failed(&g->giver->talk, req->status);
	}
}

static void receive(struct given_part *part, struct server_peer *giver)
{
	struct chunk *c = part->chunk;
	struct tern_buf room = c->w[0];
	int r;

	room.offset += (part->range.first - c->plan->first) * sizeof(float);
	room.bytes = part->range.count * sizeof(float);
	part->req.done = arrived;
	part->req.arg = part;
	c->server->given.out_count++;
	r = tern_recv(giver->data, &part->req, tern_given_key(), part->range.first, &room,
		NULL, 0);
	if (r < 0)
		server_fail(c->server, r, "cannot receive initial values: %s",
			tern_status_text(r));
}

/* Asks the giver for the values, as soon as nothing is received from the former one. */
static void ask(struct tern_server *s)
{
	struct given *g = &s->given;

	if (g->state != GIVEN_UNASKED || !g->giver || g->out_count || g->checking)
		return;
	if (g->part_count == 0) {
		have_all(s);
		return;
	}
	server_note(s, "%s gives the initial values", tern_peer_name(g->giver->peer));
	g->state = GIVEN_ARRIVING;
	g->missing_count = g->part_count;
	for (uint32_t i = 0; i < g->part_count && !s->over; i++)
		receive(&g->parts[i], g->giver);
	late_progress(g->giver);
	tern_talk_say(&g->giver->talk, json_pack("{s:s}", "type", "give"));
}

/* ---- the giver ---- */

static void take_from(struct tern_server *s, struct server_peer *giver)
{
	/* If this server has lost the worker already, it has told server 0, which will
	 * name another one. */
	s->given.giver = giver->lost || giver->gone ? NULL : giver;
	s->given.state = GIVEN_UNASKED;
	ask(s);
}

/* Server 0: names the lowest live worker. */
static void choose(struct tern_server *s)
{
	struct given *g = &s->given;

	g->chosen = lease_finisher(s);
	for (uint32_t i = 0; i < s->job.server_count; i++)
		g->has[i] = false;
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (others_find(s, i))
			tern_talk_say(&others_find(s, i)->talk,
				json_pack("{s:s, s:I}", "type", "giver", "worker",
					(json_int_t)g->chosen));
	take_from(s, s->workers[g->chosen]);
}

void given_start(struct tern_server *s)
{
	s->given.awaited = s->given.part_count > 0;
	if (s->index == 0 && s->given.has)
		choose(s);
}

void given_on_lost(struct server_peer *worker)
{
	struct tern_server *s = worker->server;
	struct given *g = &s->given;

	if (s->over || !g->has || g->begun)
		return;
	if (g->giver == worker && g->state != GIVEN_HERE) {
		g->giver = NULL;
		g->state = GIVEN_UNASKED;
	}
	if (s->index == 0 && g->chosen == worker->index)
		choose(s);
}

/* Reads the number of the giver from a message of another server. False: the message is
 * wrong, and the job was ended. */
static bool read_giver(struct server_peer *p, const json_t *message, uint32_t *giver)
{
	struct tern_server *s = p->server;
	const json_t *number = json_object_get(message, "worker");
	json_int_t k = json_integer_value(number);

	*giver = (uint32_t)k;
	if (s->running && s->given.has && json_is_integer(number) && k >= 0 &&
		k < s->job.workers)
		return true;
	server_fail(s, -EPROTO,
		"%s sent a message \"%s\" about initial values: expected it of a job "
		"that has given values and has begun, with a worker from 0 to %u",
		tern_peer_name(p->peer), tern_talk_type(message), s->job.workers - 1);
	return false;
}

void given_on_giver(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	uint32_t giver;

	if (!read_giver(zero, message, &giver))
		return;
	if (s->given.begun)
		server_fail(s, -EPROTO,
			"server 0 named a worker that gives initial values after the "
			"steps began");
	else
		take_from(s, s->workers[giver]);
}

/* A report about a giver that is lost by now is of no use: the server receives the values
 * of the next one, and reports again. */
void given_on_report(struct server_peer *server, const json_t *message)
{
	struct tern_server *s = server->server;
	uint32_t giver;

	if (!read_giver(server, message, &giver) || s->given.begun)
		return;
	if (giver != s->given.chosen)
		return; /* server 0 has named another worker since */
	s->given.has[server->index] = true;
	begin_if_all_have(s);
}

void given_on_begin(struct server_peer *zero)
{
	struct tern_server *s = zero->server;

	if (!s->running || s->given.state != GIVEN_HERE) {
		server_fail(s, -EPROTO,
			"server 0 began the steps, but this server has not got the given "
			"initial values");
		return;
	}
	s->given.begun = true;
	begin(s);
}

/* ---- what others need to know ---- */

bool given_is_awaited(const struct tern_server *s)
{
	return s->given.awaited;
}

bool steps_have_begun(const struct tern_server *s)
{
	return s->running && !given_is_awaited(s);
}

struct server_peer *given_owing(const struct tern_server *s)
{
	return s->given.state == GIVEN_ARRIVING ? s->given.giver : NULL;
}

/* ---- birth and death ---- */

/* Lists the given ranges of this server's chunks. With parts NULL only counts them. */
static uint32_t list_parts(const struct tern_server *s, struct given_part *parts)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++) {
		struct chunk *c = &s->chunks[i];
		struct tern_given_range range = {c->plan->first, 0};

		while (tern_given_next(
			&s->job, c->plan, range.first + range.count, &range)) {
			if (parts)
				parts[count] =
					(struct given_part){.chunk = c, .range = range};
			count++;
		}
	}
	return count;
}

int given_init(struct tern_server *s)
{
	struct given *g = &s->given;

	if (!tern_given_any(&s->job) || s->resume || s->from_memory)
		return 0; /* the first version is that of the snapshot, or of the memory */
	g->chosen = UINT32_MAX;
	g->has = calloc(s->job.server_count, sizeof(*g->has));
	g->part_count = list_parts(s, NULL);
	g->parts = calloc(g->part_count + 1u, sizeof(*g->parts));
	if (!g->has || !g->parts)
		return -ENOMEM;
	list_parts(s, g->parts);
	return 0;
}

void given_fini(struct tern_server *s)
{
	free(s->given.has);
	free(s->given.parts);
	s->given = (struct given){.has = NULL};
}
