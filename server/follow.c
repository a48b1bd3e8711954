/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side of the server that has a follower (server/follower.h). Chunk by chunk:
 *
 *     ALONE --room--> COPYING --the update has copied it--> FOLLOWED
 *
 * The task of an update copies the chunk's state, as for a snapshot, so that the state is that
 * between two updates. From the next update on the mean gradient is made first, in memory of its
 * own, and sent; the server makes its own update from it meanwhile. An update with the mean gives the
 * same bytes as one with the gradients (ps/updater.h), so a job has the same result with and without
 * followers.
 *
 * A version of a FOLLOWED chunk is published only when the follower has said that the update's tensor
 * is in its memory. That its send has ended says less: a small tensor may still be on its way. So
 * whatever a worker has received can be made again from the follower's memory:
 *
 *     Let the follower have chunk c at version a(c), and let p(c) be the version that workers have:
 *     p(c) <= a(c). An update a(c) needs all gradients of step a(c) - 1, which workers compute when they
 *     have a(c) - 1 of all chunks. So a(c) is at most one step beyond the lowest version of any
 *     chunk on any server, which is what memory.c needs.
 *
 * A follower must not stop the job: it is dropped when its connection is down, or when it has not
 * acknowledged an update or a blob for the time limit of a worker. The versions that have waited are published
 * then.
 */
#include "server/follow.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "ps/marks.h"
#include "server/blobs.h"
#include "server/membership.h"

/* Bytes of states that are copied or on their way; one state is allowed in any case. */
#define STATES_MOST ((uint64_t)64 << 20)
#define POOL_SLAB   ((uint64_t)16 << 20)

enum follow_state {
	FOLLOW_ALONE,
	FOLLOW_COPYING,
	FOLLOW_FOLLOWED,
};

struct follow_chunk {
	struct chunk *chunk;
	enum follow_state state;
	struct tern_buf copy, update, ack;
	struct tern_req copy_req, update_req, ack_req;
	int copy_status;
	uint64_t sent, acked; /* versions; 0: none */
	uint64_t sent_ns;
	bool sending; /* `update` is on its way */
	bool holds;   /* the version `sent` is made, and waits to be published */
};

struct follow {
	struct tern_server *server;
	struct server_peer *peer; /* NULL: it is lost, and what it has left is not over */
	char address[TERN_ADDRESS_BYTES];
	struct tern_pool *pool;
	struct follow_chunk *chunks;
	uint32_t request_count; /* requests that have not ended */
	uint32_t
		updating_count; /* chunks whose `follow` is set: a task may use this memory */
	uint32_t complete_count; /* chunks that have acknowledged an update */
	uint64_t state_bytes;    /* of STATES_MOST */
	bool complete;
	/* Versions of the blobs that were sent, and acknowledged; 0: none. */
	uint64_t blob_sent, blob_acked;
	uint64_t
		blob_ns; /* when the follower began to owe a blob, or acknowledged one since */
	/* The newest blob whose worker was answered before the follower had it. */
	uint64_t blob_unawaited;
	struct tern_timer timer;
	uint64_t due_ns; /* when the timer is to fire */
};

/* ---- the tensors ---- */

static uint64_t vector_bytes(const struct chunk *c)
{
	return c->plan->count * sizeof(float);
}

static uint64_t state_head_bytes(const struct chunk *c)
{
	return sizeof(struct follow_head) + skip_tensor_count(c) * sizeof(uint64_t);
}

/* True if an optimizer of the chunk's tensors has the vector that `has` asks for. */
static bool keeps(const struct chunk *c, bool (*has)(enum tern_optimizer_kind kind))
{
	const struct tern_ps_job *job = &c->server->job;
	struct tern_marks_span tensors = tern_marks_span(job, c->plan);

	for (uint32_t i = 0; i < tensors.count; i++)
		if (has(tern_ps_job_rule(job, &job->params[tensors.first + i])->kind))
			return true;
	return false;
}

bool follow_has_m(const struct chunk *c)
{
	return keeps(c, tern_optimizer_has_m);
}

bool follow_has_v(const struct chunk *c)
{
	return keeps(c, tern_optimizer_has_v);
}

uint64_t follow_state_bytes(const struct chunk *c)
{
	return state_head_bytes(c) +
	       (1ull + follow_has_m(c) + follow_has_v(c)) * vector_bytes(c);
}

static uint64_t update_head_bytes(const struct chunk *c)
{
	return sizeof(struct follow_head) + tern_align_up(skip_marks_bytes(c), 4);
}

uint64_t follow_update_bytes(const struct chunk *c)
{
	return update_head_bytes(c) + vector_bytes(c);
}

float *follow_state_vectors(const struct chunk *c, void *state)
{
	return (float *)(void *)((char *)state + state_head_bytes(c));
}

float *follow_update_mean(const struct chunk *c, void *update)
{
	return (float *)(void *)((char *)update + update_head_bytes(c));
}

/* ---- the follower leaves ---- */

static struct follow_chunk *find(const struct chunk *c)
{
	const struct follow *f = c->server->follow;

	return f ? &f->chunks[c - c->server->chunks] : NULL;
}

static void put_buffers(struct follow *f)
{
	for (uint32_t i = 0; i < f->server->chunk_count; i++) {
		tern_pool_put(f->pool, &f->chunks[i].copy);
		tern_pool_put(f->pool, &f->chunks[i].update);
		tern_pool_put(f->pool, &f->chunks[i].ack);
	}
}

static void release(struct follow *f)
{
	put_buffers(f);
	tern_pool_free(f->pool);
	free(f->chunks);
	free(f);
}

void follow_end(struct tern_server *s)
{
	if (s->follow)
		tern_timer_clear(s->opts.ctx, &s->follow->timer);
}

void follow_fini(struct tern_server *s)
{
	if (s->follow)
		release(TERN_TAKE(s->follow));
}

/* Frees what a follower that was lost has left, if no request and no task uses it any more. Another one
 * may come then. */
static void maybe_free(struct follow *f)
{
	if (!f->peer && !f->request_count && !f->updating_count)
		follow_fini(f->server);
}

static void tell(const struct follow *f, struct server_peer *worker)
{
	tern_talk_say(
		&worker->talk, json_pack("{s:s, s:I, s:s}", "type", "follower", "server",
				       (json_int_t)view_own_number(f->server), "address",
				       f->complete ? f->address : ""));
}

static void report(const struct tern_server *s, const char *address)
{
	if (s->opts.followed)
		s->opts.followed(s->opts.arg, address);
}

/* Server 0 knows which servers have a follower, and the others whether server 0 has (members.c). */
static void tell_servers(const struct follow *f)
{
	tern_list_for_each (n, &f->server->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if ((p->is_server || p == f->server->to_zero) && !p->gone)
			tern_talk_say(
				&p->talk, json_pack("{s:s, s:b}", "type", "followed",
						  "complete", f->complete));
	}
}

void follow_on_followed(struct server_peer *server, const json_t *message)
{
	server->is_followed = json_is_true(json_object_get(message, "complete"));
}

static void tell_all(const struct follow *f)
{
	for (uint32_t i = 0; i < f->server->job.workers; i++) {
		struct server_peer *p = f->server->workers[i];

		if (p && !p->gone && !p->absent)
			tell(f, p);
	}
	report(f->server, f->complete ? f->address : "");
	tell_servers(f);
}

bool follow_is_complete(const struct tern_server *s)
{
	return s->follow && s->follow->complete;
}

void follow_tell(struct server_peer *worker)
{
	if (follow_is_complete(worker->server))
		tell(worker->server->follow, worker);
}

/* Publishes what has waited for a follower that is lost. */
static void publish_all(struct tern_server *s)
{
	for (uint32_t i = 0; s->follow && i < s->chunk_count && !s->over; i++)
		if (TERN_TAKE(s->follow->chunks[i].holds))
			sync_publish(&s->chunks[i]);
}

void follow_left(struct server_peer *p, const char *why)
{
	struct tern_server *s = p->server;
	struct follow *f = s->follow;

	p->is_follower = false;
	f->peer = NULL;
	tern_timer_clear(s->opts.ctx, &f->timer);
	if (!s->over)
		server_note(s, "server %u goes on without its follower at %s: %s",
			view_own_number(s), f->address, why);
	if (TERN_TAKE(f->complete) && !s->over)
		tell_all(f);
	publish_all(s);
	blobs_followed(s, UINT64_MAX);
	maybe_free(f);
}

/* Cuts off a follower that cannot go on. */
static void drop(struct follow *f, const char *why)
{
	struct server_peer *p = f->peer;

	follow_left(p, why);
	server_drop(p);
}

/* ---- requests ---- */

/* A request of the chunk has ended. True: it has succeeded, and the follower is still there. */
static bool ended(struct follow_chunk *k, const struct tern_req *req)
{
	struct follow *f = k->chunk->server->follow;

	f->request_count--;
	if (req->status < 0 && f->peer)
		tern_talk_failed(&f->peer->talk, req->status);
	if (req->status == 0 && f->peer)
		return true;
	maybe_free(f);
	return false;
}

/* Counts a request that was posted, or reports that it could not be. */
static void posted(struct follow *f, int status)
{
	if (status == 0)
		f->request_count++;
	else
		tern_talk_failed(&f->peer->talk, status);
}

static void send(struct follow_chunk *k, struct tern_req *req, const struct tern_buf *buf,
	uint64_t bytes, uint64_t key, uint64_t step)
{
	struct follow *f = k->chunk->server->follow;
	struct tern_tensor tensor = {.buf = *buf, .shape = tern_shape_1d(TERN_U8, bytes)};

	tensor.buf.bytes = bytes;
	req->arg = k;
	posted(f, tern_send(f->peer->data, req, key, step, &tensor, NULL, 0));
}

/* ---- the state of a chunk ---- */

static void free_copy(struct follow_chunk *k)
{
	struct follow *f = k->chunk->server->follow;

	tern_pool_put(f->pool, &k->copy);
	f->state_bytes -= follow_state_bytes(k->chunk);
}

static void copy_sent(struct tern_req *req)
{
	struct follow_chunk *k = req->arg;

	free_copy(k);
	ended(k, req);
}

/* Lets the next update copy the state, if there is room for it and the job has another update. If there
 * is no room although no other state is copied, the follower is dropped, which may free its records. */
static bool may_copy(struct follow_chunk *k)
{
	struct follow *f = k->chunk->server->follow;
	uint64_t bytes = follow_state_bytes(k->chunk);

	if (k->chunk->version + 1 >= k->chunk->server->job.steps ||
		(f->state_bytes && f->state_bytes + bytes > STATES_MOST))
		return false;
	if (tern_pool_get(f->pool, bytes, &k->copy) < 0) {
		if (!f->state_bytes)
			drop(f, "no memory to copy the parameters");
		return false;
	}
	f->state_bytes += bytes;
	k->state = FOLLOW_COPYING;
	return true;
}

/* Called in a task. */
static int copy_state(struct chunk *c, void *state)
{
	struct follow_head *head = state;
	uint64_t *skipped = NULL, *to = (uint64_t *)(void *)(head + 1);
	float *w = follow_state_vectors(c, state), *m = w + c->plan->count;
	const struct tern_updater_state at = {
		.m = m, .v = follow_has_m(c) ? m + c->plan->count : m};
	struct tern_updater *u = c->server->opts.updater;
	uint32_t count;
	int r = skip_copy(c, &skipped, &count);

	if (r < 0)
		return r;
	*head = (struct follow_head){.version = c->made, .has_skips = skipped != NULL};
	memset(to, 0, skip_tensor_count(c) * sizeof(*to));
	if (skipped)
		memcpy(to, skipped, count * sizeof(*to));
	free(skipped);
	r = tern_updater_copy(u, c->kept, w, chunk_w(c, c->made));
	return r == 0 ? tern_updater_get_state(u, c->kept, &at) : r;
}

void follow_in_update(struct chunk *c)
{
	struct follow_chunk *k = c->follow;

	if (k && k->state == FOLLOW_COPYING && c->status == 0)
		k->copy_status = copy_state(c, tern_buf_ptr(&k->copy));
}

/* The state is copied: sends it, if the follower is still there. */
static void send_state(struct follow_chunk *k)
{
	struct follow *f = k->chunk->server->follow;

	if (!f->peer || k->chunk->status < 0 || k->copy_status < 0) {
		free_copy(k);
		if (f->peer && k->copy_status < 0)
			drop(f, "no memory to copy the parameters");
		return;
	}
	k->state = FOLLOW_FOLLOWED;
	k->copy_req.done = copy_sent;
	send(k, &k->copy_req, &k->copy, follow_state_bytes(k->chunk),
		k->chunk->plan->parameter_key, 0);
}

/* ---- updates ---- */

bool follow_begin(struct chunk *c)
{
	struct follow_chunk *k = find(c);
	struct follow *f = c->server->follow;

	if (!k || !f->peer || (k->state == FOLLOW_ALONE && !may_copy(k)))
		return false;
	if (k->state == FOLLOW_FOLLOWED && !k->update.mem &&
		(tern_pool_get(f->pool, follow_update_bytes(c), &k->update) < 0 ||
			tern_pool_get(f->pool, sizeof(uint64_t), &k->ack) < 0)) {
		drop(f, "no memory for the updates that it needs");
		return false;
	}
	c->follow = k;
	f->updating_count++;
	return k->state == FOLLOW_FOLLOWED;
}

float *follow_mean(const struct chunk *c)
{
	struct follow_chunk *k = c->follow;

	return k && k->state == FOLLOW_FOLLOWED
		       ? follow_update_mean(c, tern_buf_ptr(&k->update))
		       : NULL;
}

/* True if the follower has the state of all chunks and an update of each. */
static bool is_filled(const struct follow *f)
{
	return f->complete_count == f->server->chunk_count;
}

/* A follower that is complete can come in the place of this server. It must have those blobs, too, for
 * which no worker has waited until it had them. */
static void maybe_complete(struct follow *f)
{
	if (f->complete || !is_filled(f) || f->blob_acked < f->blob_unawaited)
		return;
	f->complete = true;
	tell_all(f);
}

/* Publishes the version that the follower has, if nothing of it is under way any more: the next update
 * uses the same memory and requests. */
static void maybe_publish(struct follow_chunk *k)
{
	struct chunk *c = k->chunk;

	if (k->holds && k->acked == k->sent && !k->sending && !c->server->over) {
		k->holds = false;
		sync_publish(c);
	}
}

static void update_sent(struct tern_req *req)
{
	struct follow_chunk *k = req->arg;

	k->sending = false;
	if (ended(k, req))
		maybe_publish(k);
}

static void acknowledged(struct tern_req *req)
{
	struct follow_chunk *k = req->arg;
	struct follow *f = k->chunk->server->follow;
	bool is_first = k->acked == 0;

	if (!ended(k, req))
		return;
	if (req->bytes != sizeof(uint64_t) || *(const uint64_t *)req->data != k->sent) {
		drop(f, "it acknowledged an update that it was not sent");
		return;
	}
	k->acked = k->sent;
	f->complete_count += is_first;
	maybe_complete(f);
	maybe_publish(k);
}

static void watch(struct follow *f, uint64_t since_ns)
{
	struct tern_server *s = f->server;

	f->due_ns = tern_ns_add(since_ns, s->opts.worker_timeout_ns);
	tern_timer_set(s->opts.ctx, &f->timer, f->due_ns);
}

/* The timer has fired. Drops the follower if its oldest update or blob is overdue, else sets the timer
 * for that. If the timer fires late, this server itself was stopped or had no processor, so the follower
 * gets the time anew. */
static void is_late(struct tern_timer *timer)
{
	struct follow *f = tern_container_of(timer, struct follow, timer);
	struct tern_server *s = f->server;
	uint64_t now_ns = tern_now_ns(s->env), oldest_ns = UINT64_MAX;
	const char *what = "an update";
	char why[100];

	if (s->over || s->opts.ctx->ending || !f->peer)
		return;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (f->chunks[i].sent != f->chunks[i].acked || f->chunks[i].sending)
			oldest_ns = TERN_MIN(oldest_ns, f->chunks[i].sent_ns);
	if (f->blob_sent != f->blob_acked && f->blob_ns < oldest_ns) {
		oldest_ns = f->blob_ns;
		what = "a blob of the job";
	}
	if (oldest_ns == UINT64_MAX)
		return;
	if (now_ns - f->due_ns > s->tick_ns) {
		watch(f, now_ns);
		return;
	}
	if (now_ns < tern_ns_add(oldest_ns, s->opts.worker_timeout_ns)) {
		watch(f, oldest_ns);
		return;
	}
	snprintf(why, sizeof(why), "it has not acknowledged %s for %.3g s", what,
		(double)s->opts.worker_timeout_ns / 1e9);
	drop(f, why);
}

bool follow_send_blob(struct tern_server *s)
{
	struct follow *f = s->follow;

	if (!f || !f->peer)
		return false;
	if (f->blob_sent == f->blob_acked)
		f->blob_ns = tern_now_ns(s->env);
	f->blob_sent = s->blobs[0].step;
	tern_talk_say(&f->peer->talk, json_pack("{s:s, s:o}", "type", "blob", "blob",
					      tern_blob_json(&s->blobs[0])));
	if (!f->timer.place)
		watch(f, f->blob_ns);
	if (!is_filled(f))
		f->blob_unawaited = f->blob_sent;
	return is_filled(f);
}

bool follow_owes_blob(const struct tern_server *s)
{
	const struct follow *f = s->follow;

	return f && f->peer && is_filled(f) && f->blob_sent != f->blob_acked;
}

void follow_on_blob(struct server_peer *follower, const json_t *message)
{
	struct follow *f = follower->server->follow;
	json_int_t step = json_integer_value(json_object_get(message, "step"));

	if (step < 1 || (uint64_t)step > f->blob_sent) {
		server_refuse(follower, "it acknowledges a blob that it was not sent");
		return;
	}
	f->blob_acked = (uint64_t)step;
	f->blob_ns = tern_now_ns(follower->server->env);
	blobs_followed(follower->server, f->blob_acked);
	maybe_complete(f);
}

void follow_send(struct chunk *c)
{
	struct follow_chunk *k = c->follow;
	struct follow *f = c->server->follow;
	struct follow_head *head = tern_buf_ptr(&k->update);

	if (!f->peer)
		return;
	*head = (struct follow_head){.version = c->version + 1,
		.clip = (float)c->clip,
		.snapshot = back_newest(c->server),
		.blob = f->blob_unawaited};
	memset(head + 1, 0, update_head_bytes(c) - sizeof(*head));
	skip_describe(c, head, (uint8_t *)(head + 1));
	k->sent = c->version + 1;
	k->sent_ns = tern_now_ns(c->server->env);
	k->sending = true;
	k->update_req.done = update_sent;
	k->ack_req.done = acknowledged;
	k->ack_req.arg = k;
	send(k, &k->update_req, &k->update, follow_update_bytes(c), c->plan->gradient_key,
		k->sent);
	posted(f, tern_recv(f->peer->data, &k->ack_req, c->plan->marks_key, k->sent,
			  &k->ack, NULL, 0));
	if (!f->timer.place)
		watch(f, k->sent_ns);
}

void follow_updated(struct chunk *c)
{
	struct follow_chunk *k = TERN_TAKE(c->follow);
	struct follow *f = c->server->follow;

	if (!k)
		return;
	f->updating_count--;
	if (k->state == FOLLOW_COPYING)
		send_state(k);
	if (c->server->follow)
		maybe_free(f);
}

bool follow_holds(struct chunk *c)
{
	struct follow_chunk *k = find(c);

	if (!k || !c->server->follow->peer || k->sent != c->version + 1 ||
		(k->acked == k->sent && !k->sending))
		return false;
	k->holds = true;
	return true;
}

/* ---- a follower comes ---- */

static int make(struct tern_server *s, struct server_peer *p, const char *address)
{
	const struct tern_pool_opts opts = {
		.slab_bytes = POOL_SLAB, .max_bytes = TERN_POOL_BYTES_MAX};
	struct follow *f = calloc(1, sizeof(*f));
	int r = -ENOMEM;

	if (!f)
		return r;
	f->server = s;
	f->timer.fire = is_late;
	snprintf(f->address, sizeof(f->address), "%s", address);
	f->chunks = calloc(s->chunk_count + 1u, sizeof(*f->chunks));
	if (f->chunks)
		r = tern_pool_new(s->opts.domain, &opts, &f->pool);
	if (r < 0) {
		free(f->chunks);
		free(f);
		return r;
	}
	for (uint32_t i = 0; i < s->chunk_count; i++)
		f->chunks[i].chunk = &s->chunks[i];
	f->peer = p;
	s->follow = f;
	return 0;
}

/* The job, with the newest addresses of its servers; NULL: no memory. */
static json_t *job_of(const struct tern_server *s)
{
	json_t *job = tern_ps_job_json(&s->job), *list = json_array();

	for (uint32_t i = 0; i < s->job.server_count; i++)
		json_array_append_new(list, json_string(members_address_of(s, i)));
	json_object_set_new(job, "servers", list);
	return job;
}

/* Says why this server cannot be followed, or not by this follower. False: it can. */
static bool is_refused(
	const struct tern_server *s, const json_t *message, char *text, size_t bytes)
{
	const char *address = json_string_value(json_object_get(message, "address"));
	const char *arithmetic =
		json_string_value(json_object_get(message, "arithmetic"));
	const char *mine = s->opts.updater->fingerprint;
	bool omits = json_is_true(json_object_get(message, "omits"));
	bool via = json_is_true(json_object_get(message, "via"));

	if (!address || !members_is_address(address) || !arithmetic)
		snprintf(text, bytes,
			"its message \"follow\" is wrong: expected an address of at most "
			"%u "
			"printable characters, and the arithmetic",
			TERN_ADDRESS_BYTES - 1);
	else if (s->has_job && s->job.mode != TERN_MODE_SYNC)
		snprintf(text, bytes,
			"the job is in %s mode: a server is followed in sync mode only",
			tern_mode_text(s->job.mode, s->job.ssp).text);
	else if (!s->opts.goes_back || (s->has_job && !s->snapshots))
		snprintf(text, bytes,
			"a server is followed in jobs that go back to snapshots: all "
			"servers "
			"need --snapshots, and nobody --server-wait 0");
	else if (via && view_own_number(s) == 0)
		snprintf(text, bytes,
			"a follower of server 0 needs --snapshots, with the directory of "
			"server 0, in place of --snapshots-via");
	else if (!tern_updater_gives_mean(s->opts.updater))
		snprintf(text, bytes,
			"server %u updates on %s: a server is followed only with "
			"--server-device cpu yet",
			view_own_number(s), s->opts.updater->name);
	else if (strcmp(arithmetic, mine) != 0)
		snprintf(text, bytes,
			"it computes with \"%.120s\", and server %u with \"%s\": both "
			"must be "
			"the same, since the bytes are",
			arithmetic, view_own_number(s), mine);
	else if (omits != s->opts.omits)
		snprintf(text, bytes,
			"it was started with --on-nan %s, and server %u with --on-nan "
			"%s: give a follower the option of its server",
			omits ? "skip" : "stop", view_own_number(s),
			s->opts.omits ? "skip" : "stop");
	else
		return false;
	return true;
}

/* Upper limit of the bytes of states that are copied or on their way at a time (may_copy()). */
static uint64_t states_most(const struct tern_server *s)
{
	uint64_t all = 0, largest = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++) {
		all += follow_state_bytes(&s->chunks[i]);
		largest = TERN_MAX(largest, follow_state_bytes(&s->chunks[i]));
	}
	return TERN_MIN(all, TERN_MAX(STATES_MOST, largest));
}

static void accept(struct server_peer *p, const char *address)
{
	struct tern_server *s = p->server;
	struct tern_ps_text why;
	json_t *job;

	if (shard_check_followed(s, states_most(s), &why) < 0) {
		server_refuse(p, "%s", why.text);
		return;
	}
	job = job_of(s);
	if (!job || make(s, p, address) < 0) {
		json_decref(job);
		server_refuse(p, "no memory for a follower");
		return;
	}
	p->is_follower = true;
	guests_leave(p);
	server_note(s, "server %u is followed by %s, which gets its %u chunks now",
		view_own_number(s), tern_peer_name(p->peer), s->chunk_count);
	report(s, "");
	tern_talk_say(
		&p->talk, json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:o}", "type",
				  "followed", "blobs", blobs_json(s, UINT64_MAX),
				  "number", (json_int_t)view_own_number(s), "server",
				  (json_int_t)s->index, "life", (json_int_t)s->life,
				  "snapshot", (json_int_t)back_newest(s), "job", job));
	maybe_complete(s->follow);
}

void follow_on_follow(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	char text[400];

	if (is_refused(s, message, text, sizeof(text)))
		server_refuse(p, "%s", text);
	else if (s->follow && s->follow->peer)
		server_refuse_for_now(p, "server %u has a follower already, at %s",
			view_own_number(s), s->follow->address);
	else if (!s->running || s->follow)
		guests_ask_later(p);
	else
		accept(p, json_string_value(json_object_get(message, "address")));
}

/* ---- what others are told ---- */

void follow_write_status(const struct tern_server *s, json_t *object)
{
	const struct follow *f = s->follow;

	if (f && f->peer)
		json_object_set_new(object, "follower",
			json_pack("{s:s, s:b, s:I, s:I}", "address", f->address,
				"complete", f->complete, "filled",
				(json_int_t)f->complete_count, "chunks",
				(json_int_t)s->chunk_count));
}

bool follow_is_awaited(const struct tern_server *s)
{
	for (uint32_t i = 0; s->follow && i < s->chunk_count; i++)
		if (s->follow->chunks[i].holds)
			return true;
	return false;
}

size_t follow_name_owing(const struct tern_server *s, char *text, size_t bytes)
{
	return follow_is_awaited(s)
		       ? (size_t)snprintf(text, bytes, "server %u's follower at %s",
				 view_own_number(s), s->follow->address)
		       : 0;
}
