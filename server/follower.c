/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A follower (follower.h). It keeps the share of its server as a server does: `shard` is a struct
 * tern_server of which only the job, the plan and the chunks are used (shard.c, skip.c, memory.c), so
 * that the same code makes the same bytes. `shard` never listens, and has no worker.
 *
 * A chunk:
 *
 *     state comes --> the task makes the chunk --> update comes --> acknowledged; the task makes it
 *                                                      ^                        |
 *                                                      +------------------------+
 *
 * Each chunk has memory for one update. What was acknowledged is in it, or made already: if the server is
 * lost in between, tern_follower_keep() makes it.
 *
 * Whoever connects to a follower is told to come again: the address is where a server will be,
 * perhaps.
 */
#include "server/follower.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/peer.h"
#include "server/blobs.h"
#include "server/follow.h"
#include "server/follower_state.h"
#include "server/membership.h"
#include "server/memory.h"

#define DIAL_AGAIN_NS (200 * TERN_NS_PER_MS)
#define LEAVING_NS    (1 * TERN_NS_PER_S)
#define GUESTS_MAX    64u
#define POOL_SLAB     ((uint64_t)16 << 20)
/* Limit of the pool for control messages. */
#define TALK_BYTES (64ull << 20)

static void say_note(struct tern_follower *f, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void say_note(struct tern_follower *f, const char *fmt, ...)
{
	char text[500];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (f->opts.note)
		f->opts.note(f->opts.arg, text);
}

/* ---- the end ---- */

static void tell_end(struct tern_follower *f)
{
	if (f->told)
		return;
	f->told = true;
	tern_timer_clear(f->opts.ctx, &f->timer);
	f->opts.ended(f->opts.arg, f->status, f->text);
}

static void timer_fires(struct tern_timer *timer);

static void set_timer(struct tern_follower *f, uint64_t in_ns)
{
	f->timer.fire = timer_fires;
	tern_timer_set(f->opts.ctx, &f->timer, tern_now_ns(f->env) + in_ns);
}

static void end(struct tern_follower *f, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ended() is called when the server has answered the goodbye, or in a moment. */
static void end(struct tern_follower *f, int status, const char *fmt, ...)
{
	bool connected = f->peer && !f->gone;
	va_list ap;

	if (f->over)
		return;
	f->over = true;
	f->status = status;
	va_start(ap, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
	tern_listener_refuse_new(f->listener);
	if (connected)
		tern_peer_close(f->peer);
	set_timer(f, connected ? LEAVING_NS : 0);
}

/* ---- chunks ---- */

static struct follower_chunk *chunk_of(struct tern_task *task)
{
	return tern_container_of(task, struct follower_chunk, task);
}

/* Called when a request or a task of the chunk has ended. True: the follower goes on. */
static bool goes_on(struct follower_chunk *k, int status, const char *what)
{
	struct tern_follower *f = k->follower;

	if (f->over)
		return false;
	if (status == 0)
		return true;
	if (status == -ENOMEM)
		end(f, status, "no memory for %s of chunk %u", what, k->chunk->number);
	else
		tern_talk_failed(&f->talk, status);
	return false;
}

static void submit(struct follower_chunk *k, void (*run)(struct tern_task *),
	void (*done)(struct tern_task *))
{
	k->task.run = run;
	k->task.done = done;
	/* Virtual time in the simulator, as in chunk_submit(). */
	k->task.cost_ns = 1000 + k->chunk->plan->count;
	if (tern_env_submit(k->follower->env, &k->task) == 0)
		k->busy = true;
	else
		end(k->follower, -ECANCELED, "no thread for computation");
}

static bool is_complete(const struct tern_follower *f)
{
	return f->follows && f->updated_count == f->shard.chunk_count &&
	       f->shard.blobs[0].step >= f->blob_needed;
}

static void maybe_complete(struct tern_follower *f)
{
	if (!is_complete(f) || f->complete)
		return;
	f->complete = true;
	say_note(f, "has all %u chunks of server %u, and can take its place",
		f->shard.chunk_count, view_own_number(&f->shard));
}

static void update_came(struct tern_req *req);

/* Receives the next update, if nothing uses the memory for it any more. */
static void maybe_receive(struct follower_chunk *k)
{
	struct tern_follower *f = k->follower;

	if (f->over || k->busy || k->acknowledging ||
		k->chunk->made >= f->shard.job.steps)
		return;
	k->req.done = update_came;
	goes_on(k,
		tern_recv(f->data, &k->req, k->chunk->plan->gradient_key,
			k->chunk->made + 1, &k->update, NULL, 0),
		"an update");
}

/* ---- an update ---- */

/* Makes the version that the update leads to. */
static int apply(struct follower_chunk *k)
{
	const struct follow_head *head = tern_buf_ptr(&k->update);
	struct chunk *c = k->chunk;

	c->version = c->made;
	c->status = skip_take_over(c, head, (const uint8_t *)(head + 1));
	if (c->status == 0)
		chunk_apply_mean(
			c, follow_update_mean(c, tern_buf_ptr(&k->update)), head->clip);
	return c->status;
}

static void apply_task(struct tern_task *task)
{
	apply(chunk_of(task));
}

static void applied(struct tern_task *task)
{
	struct follower_chunk *k = chunk_of(task);

	k->busy = false;
	if (goes_on(k, k->chunk->status, "an update"))
		maybe_receive(k);
}

static void acknowledged(struct tern_req *req)
{
	struct follower_chunk *k = req->arg;

	k->acknowledging = false;
	if (goes_on(k, req->status, "an acknowledgement"))
		maybe_receive(k);
}

static void acknowledge(struct follower_chunk *k)
{
	struct tern_tensor tensor = {
		.buf = k->ack, .shape = tern_shape_1d(TERN_U8, sizeof(k->version))};

	tensor.buf.bytes = sizeof(k->version);
	memcpy(tern_buf_ptr(&k->ack), &k->version, sizeof(k->version));
	k->ack_req.done = acknowledged;
	k->ack_req.arg = k;
	k->acknowledging = true;
	goes_on(k,
		tern_send(k->follower->data, &k->ack_req, k->chunk->plan->marks_key,
			k->version, &tensor, NULL, TERN_URGENT),
		"an acknowledgement");
}

static void update_came(struct tern_req *req)
{
	struct follower_chunk *k = req->arg;
	struct tern_follower *f = k->follower;
	const struct follow_head *head = tern_buf_ptr(&k->update);

	if (!goes_on(k, req->status == -EMSGSIZE ? 0 : req->status, "an update"))
		return;
	if (req->status < 0 || req->bytes != follow_update_bytes(k->chunk) ||
		head->version != k->chunk->made + 1 ||
		head->snapshot > f->shard.job.steps) {
		end(f, -EPROTO,
			"server %u sent a wrong update of chunk %u: %llu bytes, expected "
			"%llu, the next version and the step of a snapshot",
			view_own_number(&f->shard), k->chunk->number,
			(unsigned long long)req->bytes,
			(unsigned long long)follow_update_bytes(k->chunk));
		return;
	}
	k->version = head->version;
	f->shard.snapshot_step = TERN_MAX(f->shard.snapshot_step, head->snapshot);
	f->blob_needed = TERN_MAX(f->blob_needed, head->blob);
	f->updated_count += !k->updated;
	k->updated = true;
	acknowledge(k);
	if (!f->over)
		submit(k, apply_task, applied);
	maybe_complete(f);
}

/* ---- the state of a chunk ---- */

/* Describes the state as what a server has in memory, without a copy. */
static struct tern_chunk_memory read_state(const struct chunk *c, void *state)
{
	const struct follow_head *head = state;
	float *w = follow_state_vectors(c, state), *m = w + c->plan->count;

	return (struct tern_chunk_memory){.version = head->version,
		.w = w,
		.state = {.m = m, .v = follow_has_m(c) ? m + c->plan->count : m},
		.skipped = head->has_skips ? (uint64_t *)(uintptr_t)(head + 1) : NULL};
}

static void make(struct tern_task *task)
{
	struct follower_chunk *k = chunk_of(task);
	struct chunk *c = k->chunk;
	struct tern_chunk_memory *kept =
		&c->server->from_memory->chunks[c - c->server->chunks];

	*kept = read_state(c, tern_buf_ptr(&k->req.buf));
	c->status = chunk_make(c);
	*kept = (struct tern_chunk_memory){.version = 0};
}

static void made(struct tern_task *task)
{
	struct follower_chunk *k = chunk_of(task);
	struct tern_follower *f = k->follower;
	int r = k->chunk->status;

	k->busy = false;
	tern_release(&k->req);
	if (r == 0)
		r = tern_pool_get(f->pool, follow_update_bytes(k->chunk), &k->update);
	if (r == 0)
		r = tern_pool_get(f->pool, sizeof(uint64_t), &k->ack);
	if (!goes_on(k, r ? -ENOMEM : 0, "the parameters"))
		return;
	k->filled = true;
	maybe_receive(k);
}

static void state_came(struct tern_req *req)
{
	struct follower_chunk *k = req->arg;
	struct tern_follower *f = k->follower;
	const struct follow_head *head = req->data;

	if (f->over && req->status == 0)
		tern_release(req);
	if (!goes_on(k, req->status, "the parameters"))
		return;
	if (req->bytes != follow_state_bytes(k->chunk) || head->version == 0 ||
		head->version > f->shard.job.steps) {
		end(f, -EPROTO,
			"server %u sent a wrong state of chunk %u: %llu bytes, expected "
			"%llu, and a version from 1 to %llu",
			view_own_number(&f->shard), k->chunk->number,
			(unsigned long long)req->bytes,
			(unsigned long long)follow_state_bytes(k->chunk),
			(unsigned long long)f->shard.job.steps);
		tern_release(req);
		return;
	}
	tern_server_memory_free(TERN_TAKE(f->opts.from_memory));
	submit(k, make, made);
}

/* ---- the job of the server ---- */

static int list_chunks(struct tern_follower *f)
{
	struct tern_server *s = &f->shard;

	f->chunks = calloc(s->chunk_count + 1u, sizeof(*f->chunks));
	s->from_memory = calloc(1, sizeof(*s->from_memory));
	if (s->from_memory)
		s->from_memory->chunks =
			calloc(s->chunk_count + 1u, sizeof(*s->from_memory->chunks));
	if (!f->chunks || !s->from_memory || !s->from_memory->chunks)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		struct follower_chunk *k = &f->chunks[i];

		k->follower = f;
		k->chunk = &s->chunks[i];
	}
	return 0;
}

static int adopt(struct tern_follower *f, const json_t *message, struct tern_ps_text *why)
{
	json_int_t index = json_integer_value(json_object_get(message, "server"));
	json_int_t life = json_integer_value(json_object_get(message, "life"));
	json_int_t snapshot = json_integer_value(json_object_get(message, "snapshot"));
	struct tern_server *s = &f->shard;
	int r = tern_ps_job_read(json_object_get(message, "job"), &s->job, why);

	if (r < 0)
		return r;
	s->has_job = true;
	if (s->job.mode != TERN_MODE_SYNC || index < 0 || index >= s->job.server_count ||
		life <= 0 || snapshot < 0 || (uint64_t)snapshot > s->job.steps) {
		snprintf(why->text, sizeof(why->text),
			"expected a job in sync mode, the index of one of its servers, a "
			"life above 0 and a step of the job");
		return -EPROTO;
	}
	s->index = (uint32_t)index;
	s->life = (uint64_t)life;
	s->snapshot_step = (uint64_t)snapshot;
	s->view.number = s->job.view;
	r = shard_check(s, &s->job, s->index, why);
	if (r == 0)
		r = tern_plan_init(&s->plan, &s->job);
	if (r == 0)
		r = shard_check_followed(s, 0, why);
	if (r == 0)
		r = shard_init(s);
	if (r == 0)
		r = blobs_read(s, json_object_get(message, "blobs"));
	if (r == -EPROTO && !*why->text)
		snprintf(why->text, sizeof(why->text), "its blobs cannot be right");
	return r == 0 ? list_chunks(f) : r;
}

static void receive_states(struct tern_follower *f)
{
	for (uint32_t i = 0; i < f->shard.chunk_count && !f->over; i++) {
		struct follower_chunk *k = &f->chunks[i];

		k->req.done = state_came;
		k->req.arg = k;
		goes_on(k,
			tern_recv(f->data, &k->req, k->chunk->plan->parameter_key, 0,
				NULL, NULL, TERN_RECV_ALLOC),
			"the parameters");
	}
}

static void on_followed(struct tern_follower *f, const json_t *message)
{
	struct tern_ps_text why = {""};
	int r;

	if (f->follows)
		return;
	r = adopt(f, message, &why);
	if (r < 0) {
		end(f, r, "the job of the server at %s cannot be followed: %s",
			f->opts.server, *why.text ? why.text : tern_status_text(r));
		return;
	}
	f->follows = true;
	say_note(
		f, "follows server %u at %s", view_own_number(&f->shard), f->opts.server);
	receive_states(f);
	maybe_complete(f);
}

/* ---- the connection ---- */

static void say_follow(struct tern_follower *f)
{
	char address[TERN_ADDRESS_BYTES] = "";

	if (members_write_own(&f->shard, address, sizeof(address)) == 0)
		tern_talk_say(
			&f->talk, json_pack("{s:s, s:s, s:s, s:b, s:b}", "type", "follow",
					  "address", address, "arithmetic",
					  f->opts.updater->fingerprint, "omits",
					  f->opts.omits, "via", f->opts.via));
}

/* Notes why the follower waits. The same reason is noted only once in a row, since the follower connects
 * several times a second. */
static void say_waits(struct tern_follower *f, const char *why)
{
	if (strncmp(why, f->said_waiting, sizeof(f->said_waiting) - 1) == 0)
		return;
	say_note(f, "the server at %s: %s: tried again", f->opts.server, why);
	snprintf(f->said_waiting, sizeof(f->said_waiting), "%s", why);
}

/* The server has answered. A follower with memory waits for it without a limit then: it comes in the
 * server's place only when that cannot be reached. */
static void server_answers(struct tern_follower *f)
{
	if (f->opts.from_memory)
		f->until_ns = tern_ns_add(tern_now_ns(f->env), f->opts.wait_ns);
}

/* True if the follower has tried for too long; it ends then. */
static bool is_too_late(struct tern_follower *f, const char *why)
{
	if (!f->opts.wait_ns || tern_now_ns(f->env) < f->until_ns)
		return false;
	end(f, -EAGAIN, "the server at %s: %s", f->opts.server, why);
	return true;
}

static void on_refused(struct tern_follower *f, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));

	if (!text)
		text = "no reason given";
	f->server_lives = f->follows && json_is_true(json_object_get(message, "later"));
	if (f->server_lives)
		end(f, -EAGAIN, "server %u: %s: follows it again",
			view_own_number(&f->shard), text);
	else if (!json_is_true(json_object_get(message, "later")))
		end(f, -EINVAL, "the server at %s refuses its follower: %s",
			f->opts.server, text);
	else if (!is_too_late(f, text))
		say_waits(f, text);
}

/* True if the job goes on without the server: an operator has removed it (view.c). */
static bool is_removed(const struct tern_follower *f, const json_t *message)
{
	struct tern_view view;

	return f->follows && tern_view_read(json_object_get(message, "view"), &view) &&
	       view.number > f->shard.view.number &&
	       tern_view_find(&view, view_own_number(&f->shard)) == UINT32_MAX;
}

static void on_abort(struct tern_follower *f, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	bool back = json_is_true(json_object_get(message, "back")) &&
		    !json_is_true(json_object_get(message, "final"));

	if (!text)
		text = "no reason given";
	f->removed = is_removed(f, message);
	if (f->removed) {
		end(f, -ECANCELED,
			"server %u was removed from the job, so it has no follower",
			view_own_number(&f->shard));
		return;
	}
	/* If the server's process ends, this one comes in its place at once. */
	f->server_lives = back && !json_is_true(json_object_get(message, "ends"));
	end(f, back ? -EAGAIN : -ECANCELED, "server %u: %s", view_own_number(&f->shard),
		text);
}

static void on_blob(struct tern_follower *f, const json_t *message)
{
	struct tern_blob blob;
	int r = tern_blob_read(
		json_object_get(message, "blob"), f->shard.job.steps, &blob);
	uint64_t step = blob.step;

	if (r < 0) {
		end(f, r == -ENOMEM ? r : -EPROTO, "the blob of the job: %s",
			r == -ENOMEM ? "no memory" : "it cannot be right");
		return;
	}
	blobs_add(&f->shard, &blob);
	tern_talk_say(&f->talk,
		json_pack("{s:s, s:I}", "type", "blob", "step", (json_int_t)step));
	maybe_complete(f);
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct tern_follower *f = tern_container_of(talk, struct tern_follower, talk);
	const char *type = tern_talk_type(message);

	if (f->over)
		return;
	server_answers(f);
	if (strcmp(type, "followed") == 0)
		on_followed(f, message);
	else if (strcmp(type, "again") == 0) {
		if (!is_too_late(f, "the steps have not begun"))
			say_follow(f);
	} else if (strcmp(type, "refused") == 0)
		on_refused(f, message);
	else if (strcmp(type, "abort") == 0)
		on_abort(f, message);
	else if (strcmp(type, "blob") == 0 && f->follows)
		on_blob(f, message);
	else if (strcmp(type, "complete") == 0)
		end(f, 0, "the job is complete");
	else
		end(f, -EPROTO,
			"the server at %s sent a message that no server sends: %s",
			f->opts.server, message ? type : talk->fault);
}

/* A request with the server has failed, and its connection has not ended: the server is of no use. */
static void broken(struct tern_talk *talk, int status)
{
	struct tern_follower *f = tern_container_of(talk, struct tern_follower, talk);

	if (f->follows)
		end(f, -EAGAIN, "server %u: a tensor did not come through: %s",
			view_own_number(&f->shard), tern_status_text(status));
	else if (!f->gone)
		tern_peer_close(f->peer);
}

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct tern_follower *f = arg;
	char why[200] = "it has closed the connection";

	if (event != TERN_PEER_DOWN)
		return;
	f->gone = true;
	tern_talk_close(&f->talk);
	if (status)
		tern_peer_why(peer, status, why, sizeof(why));
	if (f->over) {
		set_timer(f, 0);
	} else if (f->follows) {
		end(f, -EAGAIN, "server %u is gone: %s", view_own_number(&f->shard), why);
	} else if (!is_too_late(f, why)) {
		if (status)
			say_waits(f, why);
		set_timer(f, DIAL_AGAIN_NS);
	}
}

/* Only a message with a job may be as long as the budget allows, so nothing can be dropped. */
static void short_of(struct tern_talk_budget *budget, uint64_t bytes)
{
	(void)budget;
	(void)bytes;
}

/* Connects to the server. Errors of tern_connect(); later ones end the follower. */
static int dial(struct tern_follower *f)
{
	int r;

	f->gone = false;
	f->budget = (struct tern_talk_budget){.bytes_left = 2ull * TERN_PS_JOB_TEXT_MAX,
		.message = {TERN_PS_JOB_TEXT_MAX, TERN_PS_JOB_PARTS_MAX},
		.short_of = short_of};
	f->talk = (struct tern_talk){.pool = f->talk_pool,
		.ctx = f->opts.ctx,
		.heard = heard,
		.broken = broken,
		.budget = &f->budget};
	r = tern_connect(f->opts.ctx, f->opts.server,
		&(struct tern_peer_opts){
			.event = event, .arg = f, .name = "follower", .pool = f->pool},
		&f->peer);
	if (r < 0)
		return r;
	r = tern_channel_open(f->peer, TERN_PS_CHANNEL_DATA, &f->data);
	if (r == 0)
		r = tern_talk_open(&f->talk, f->peer);
	if (r < 0)
		end(f, r, "the server at %s: %s", f->opts.server, tern_status_text(r));
	else
		say_follow(f);
	return 0;
}

static void timer_fires(struct tern_timer *timer)
{
	struct tern_follower *f = tern_container_of(timer, struct tern_follower, timer);
	int r;

	if (f->opts.ctx->ending)
		return;
	if (f->over) {
		tell_end(f);
		return;
	}
	if (!tern_talk_is_idle(&f->talk)) {
		set_timer(f, DIAL_AGAIN_NS);
		return;
	}
	tern_peer_free(TERN_TAKE(f->peer));
	r = dial(f);
	if (r < 0)
		end(f, r, "the server at %s: %s", f->opts.server, tern_status_text(r));
}

/* ---- whoever connects to the follower ---- */

static void guest_heard(struct tern_talk *talk, const json_t *message)
{
	struct guest *g = tern_container_of(talk, struct guest, talk);

	(void)message;
	tern_talk_deafen(talk);
	tern_talk_say(talk, json_pack("{s:s, s:s, s:b}", "type", "refused", "text",
				    "this is a follower, which does not serve as long as "
				    "its server does",
				    "later", 1));
	tern_peer_close(g->peer);
}

static void guest_broken(struct tern_talk *talk, int status)
{
	(void)status;
	tern_peer_close(tern_container_of(talk, struct guest, talk)->peer);
}

static void guest_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct guest *g = arg;

	(void)peer;
	(void)status;
	if (event != TERN_PEER_DOWN)
		return;
	g->gone = true;
	tern_talk_close(&g->talk);
}

static void cut_off(struct guest *g)
{
	g->gone = true;
	tern_talk_close(&g->talk);
	tern_peer_free(TERN_TAKE(g->peer));
}

/* Frees the guests that are gone, and cuts off the oldest one if there are too many. */
static void reap(struct tern_follower *f)
{
	bool is_full = f->guest_count >= GUESTS_MAX;

	tern_list_for_each_safe (n, &f->guests) {
		struct guest *g = tern_list_entry(n, struct guest, node);

		if (is_full && !g->gone) {
			cut_off(g);
			is_full = false;
		}
		if (!g->gone || !tern_talk_is_idle(&g->talk))
			continue;
		tern_peer_free(g->peer);
		tern_list_remove(&g->node);
		free(g);
		f->guest_count--;
	}
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct tern_follower *f = arg;
	struct guest *g = calloc(1, sizeof(*g));

	reap(f);
	if (!g) {
		tern_peer_free(peer);
		return;
	}
	*g = (struct guest){.follower = f,
		.peer = peer,
		.talk = {.ctx = f->opts.ctx,
			.pool = f->talk_pool,
			.heard = guest_heard,
			.broken = guest_broken}};
	tern_peer_set_opts(
		peer, &(struct tern_peer_opts){
			      .event = guest_event, .arg = g, .name = "follower"});
	tern_list_push(&f->guests, &g->node);
	f->guest_count++;
	if (tern_talk_open(&g->talk, peer) < 0)
		tern_peer_close(peer);
}

/* ---- birth and death ---- */

static int open_all(struct tern_follower *f)
{
	const struct tern_pool_opts talk = {
		.slab_bytes = 1u << 20, .max_bytes = TALK_BYTES};
	const struct tern_pool_opts pool = {
		.slab_bytes = POOL_SLAB, .max_bytes = TERN_POOL_BYTES_MAX};
	int r = tern_pool_new(f->opts.domain, &talk, &f->talk_pool);

	if (r == 0)
		r = tern_pool_new(f->opts.domain, &pool, &f->pool);
	if (r == 0)
		r = tern_listen(f->opts.ctx, f->opts.listen,
			&(struct tern_peer_opts){.name = "follower"}, on_accept, f,
			&f->listener);
	f->shard.listener = f->listener;
	return r == 0 ? dial(f) : r;
}

/* Sets those fields of a server that shard.c needs. */
static void init_shard(struct tern_follower *f)
{
	struct tern_server *s = &f->shard;

	s->opts = (struct tern_server_opts){.domain = f->opts.domain,
		.ctx = f->opts.ctx,
		.updater = f->opts.updater,
		.memory_bytes = f->opts.memory_bytes};
	s->env = f->env;
	tern_list_init(&s->peers);
	tern_list_init(&s->holding);
	tern_list_init(&s->extras);
}

static void free_all(struct tern_follower *f)
{
	tern_pool_free(f->pool);
	tern_pool_free(f->talk_pool);
	free(f);
}

int tern_follower_new(const struct tern_follower_opts *opts, struct tern_follower **out)
{
	struct tern_follower *f = calloc(1, sizeof(*f));
	int r;

	if (!f)
		return -ENOMEM;
	f->opts = *opts;
	f->env = tern_context_env(opts->ctx);
	f->until_ns = tern_ns_add(tern_now_ns(f->env), opts->wait_ns);
	tern_list_init(&f->guests);
	init_shard(f);
	r = open_all(f);
	if (r < 0) {
		tern_peer_free(f->peer);
		tern_listener_free(f->listener);
		free_all(f);
		return r;
	}
	*out = f;
	return 0;
}

const char *tern_follower_address(const struct tern_follower *f)
{
	return tern_listener_address(f->listener);
}

void tern_follower_stats(const struct tern_follower *f, struct tern_follower_stats *out)
{
	*out = (struct tern_follower_stats){.follows = f->follows,
		.number = f->follows ? view_own_number(&f->shard) : 0,
		.index = f->shard.index,
		.chunk_count = f->shard.chunk_count,
		.filled_count = f->updated_count,
		.complete = is_complete(f),
		.steps = f->shard.chunk_count ? UINT64_MAX : 0,
		.server_lives = f->server_lives,
		.removed = f->removed};
	for (uint32_t i = 0; i < f->shard.chunk_count; i++)
		out->steps = TERN_MIN(out->steps, f->chunks[i].version);
}

void tern_follower_stop(struct tern_follower *f, const char *why)
{
	end(f, -ECANCELED, "%s", why);
}

/* Makes the versions whose updates were acknowledged, and which no task has made. */
static int catch_up(struct tern_follower *f)
{
	int r = 0;

	for (uint32_t i = 0; i < f->shard.chunk_count && r == 0; i++)
		if (f->chunks[i].version > f->chunks[i].chunk->made)
			r = apply(&f->chunks[i]);
	return r;
}

int tern_follower_keep(struct tern_follower *f, struct tern_server_memory **out)
{
	int r;

	if (!is_complete(f)) {
		*out = TERN_TAKE(f->opts.from_memory);
		return 0;
	}
	*out = NULL;
	r = catch_up(f);
	f->shard.running = true;
	return r == 0 ? tern_server_keep(&f->shard, out) : r;
}

void tern_follower_free(struct tern_follower *f)
{
	struct tern_server *s;
	struct tern_list *n;

	if (!f)
		return;
	s = &f->shard;
	while ((n = tern_list_pop(&f->guests)))
		free(tern_list_entry(n, struct guest, node));
	for (uint32_t i = 0; f->chunks && i < s->chunk_count; i++) {
		tern_release(&f->chunks[i].req);
		tern_pool_put(f->pool, &f->chunks[i].update);
		tern_pool_put(f->pool, &f->chunks[i].ack);
	}
	shard_fini(s);
	tern_plan_fini(&s->plan);
	tern_ps_job_fini(&s->job);
	tern_server_memory_free(s->from_memory);
	tern_server_memory_free(f->opts.from_memory);
	blobs_fini(s);
	free(f->chunks);
	free_all(f);
}
