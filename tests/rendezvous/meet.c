/* SPDX-License-Identifier: Apache-2.0 */
/* See meet.h: the test bed with two contexts. */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"
#include "transport/gpu/gpu.h"

static unsigned ended_count;

/* ---- events ---- */

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *end = arg;

	assert_true(end->working);
	assert_ptr_equal(peer, end->peer);
	assert_int_equal(end->down_count, 0);
	switch (event) {
	case TERN_PEER_UP:
		assert_int_equal(end->up_count + end->suspect_count, 0);
		end->up_count++;
		break;
	case TERN_PEER_SUSPECT:
		assert_int_equal(end->up_count + end->accepted_count, 1);
		assert_int_equal(end->suspect_count, end->recovered_count);
		end->suspect_count++;
		end->suspect_status = status;
		break;
	case TERN_PEER_RECOVERED:
		end->recovered_count++;
		assert_int_equal(end->suspect_count, end->recovered_count);
		break;
	case TERN_PEER_DOWN:
		end->down_count++;
		end->down_status = status;
		break;
	}
	if (end->on_event)
		end->on_event(end, event);
}

static void on_note(struct tern_peer *peer, const void *data, size_t bytes, void *arg)
{
	struct end *end = arg;

	assert_true(end->working);
	assert_ptr_equal(peer, end->peer);
	assert_int_equal(end->down_count, 0);
	assert_non_null(end->on_note);
	end->on_note(end, data, bytes);
}

static void end_peer_opts(struct end *end, struct tern_peer_opts *opts)
{
	*opts = (struct tern_peer_opts){
		.event = on_event,
		.arg = end,
		.name = end->number == A ? "end A" : "end B",
		.pool = end->pool,
		.notified = on_note,
	};
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *end = arg;
	struct tern_peer_opts opts;

	assert_true(end->working);
	end->accepted_count++;
	if (end->peer)
		/* A test with two peers sets the options of the second one itself. */
		return;
	end->peer = peer;
	end_peer_opts(end, &opts);
	tern_peer_set_opts(peer, &opts);
	assert_int_equal(tern_channel_open(peer, MEET_CHANNEL, &end->channel), 0);
}

/* ---- setup ---- */

struct tern_context_opts meet_opts(void)
{
	return (struct tern_context_opts){.eager_bytes = MEET_EAGER, .no_spin = true};
}

static void end_init(struct end *end, struct meet *meet, unsigned number,
	const struct tern_context_opts *like)
{
	bool gpu = meet->instance->gpus & 1u << number;
	struct tern_pool_opts pool_opts = {
		.slab_bytes = MEET_SLAB_BYTES,
		.max_bytes = 4 * MEET_SLAB_BYTES,
		.kind = gpu ? TERN_MEM_CUDA : TERN_MEM_HOST,
	};
	struct tern_env *env;
	struct tern_gpu *in_use;

	end->meet = meet;
	end->number = number;
	log_env_init(&end->log);
	env = meet->world ? meet->instance->world_env(meet->world, number)
			  : &end->log.env;
	end->domain = instance_domain(meet->instance, meet->world, number);
	if (meet->instance->uses_gpu)
		assert_int_equal(tern_gpu_by_number(end->domain, 0, &in_use), 0);
	assert_int_equal(tern_pool_new(end->domain, &pool_opts, &end->pool), 0);
	assert_int_equal(tern_context_new_in(end->domain, like, env, &end->ctx), 0);
	assert_ptr_equal(tern_context_domain(end->ctx), end->domain);
	assert_ptr_equal(tern_context_env(end->ctx), env);
	box_init(&end->box, end->domain);
	end->box.gpu = gpu;
}

void meet_url(const struct instance *instance, const char *rest, char *out)
{
	snprintf(out, BED_ADDRESS_MAX, "%s://%.100s", instance->fabric, rest);
}

void meet_listen(struct meet *meet, const char *url)
{
	struct end *end = &meet->ends[B];
	struct tern_peer_opts opts;

	end_peer_opts(end, &opts);
	assert_int_equal(
		tern_listen(end->ctx, url, &opts, on_accept, end, &meet->listener), 0);
}

struct meet *meet_new_apart(const struct instance *instance,
	const struct tern_context_opts *a, const struct tern_context_opts *b)
{
	struct meet *meet = calloc(1, sizeof(*meet));
	char rest[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX];

	assert_non_null(meet);
	meet->instance = instance;
	if (instance->gpus)
		device_memory->reset(instance->can_sleep);
	if (instance->world_new)
		meet->world = instance->world_new();
	end_init(&meet->ends[A], meet, A, a);
	end_init(&meet->ends[B], meet, B, b);
	instance->address(rest, 0);
	meet_url(instance, rest, url);
	meet_listen(meet, url);
	return meet;
}

void meet_dial_at(struct meet *meet, const char *address)
{
	struct end *end = &meet->ends[A];
	struct tern_peer_opts opts;

	assert_null(end->peer);
	end_peer_opts(end, &opts);
	assert_int_equal(tern_connect(end->ctx, address, &opts, &end->peer), 0);
	assert_int_equal(tern_channel_open(end->peer, MEET_CHANNEL, &end->channel), 0);
}

void meet_dial(struct meet *meet)
{
	meet_dial_at(meet, tern_listener_address(meet->listener));
}

struct meet *meet_new_with(const struct instance *instance,
	const struct tern_context_opts *a, const struct tern_context_opts *b)
{
	struct tern_context_opts normal = meet_opts();
	struct meet *meet = meet_new_apart(instance, a ? a : &normal, b ? b : &normal);

	meet_dial(meet);
	MEET_PUMP(meet, meet->ends[A].up_count && meet->ends[B].accepted_count);
	return meet;
}

struct meet *meet_new(const struct instance *instance)
{
	return meet_new_with(instance, NULL, NULL);
}

static void end_fini(struct end *end)
{
	if (end->peer)
		tern_peer_free(end->peer);
	end->peer = NULL;
	end->working = true;
	tern_context_free(end->ctx);
	end->working = false;
	box_free(&end->box);
	tern_pool_free(end->pool);
	if (!end->meet->world)
		tern_domain_free(end->domain);
}

void meet_free(struct meet *meet)
{
	if (meet->ends[B].ctx)
		tern_listener_free(meet->listener);
	end_fini(&meet->ends[A]);
	end_fini(&meet->ends[B]);
	if (meet->world)
		meet->instance->world_free(meet->world);
	free(meet);
}

/* ---- turns ---- */

/* Sleeps for 20 us, or for up to 1.3 ms if nothing has happened for a long time: then the
 * test waits for a timer, and polling would only take CPU time from other processes. */
static void pause_a_little(unsigned idle_pauses)
{
	struct timespec pause = {.tv_nsec = 20000L << TERN_MIN(idle_pauses / 8, 6u)};

	nanosleep(&pause, NULL);
}

static int turn(struct meet *meet)
{
	int events = 0;

	for (unsigned i = 0; i < 2; i++) {
		struct end *end = &meet->ends[i];
		int r;

		if (end->asleep || !end->ctx)
			continue;
		end->working = true;
		r = tern_progress(end->ctx);
		end->working = false;
		assert_true(r >= 0);
		events += r;
	}
	if (meet->world)
		meet->instance->world_step(meet->world);
	return events;
}

void meet_turn(struct meet *meet)
{
	if (turn(meet) > 0 || meet->world)
		meet->idle_turns = 0;
	else if (++meet->idle_turns % 64 == 0)
		/* Gives the kernel time to deliver. */
		pause_a_little(meet->idle_turns / 64);
}

void meet_settle(struct meet *meet)
{
	for (int i = 0; i < 60; i++) {
		turn(meet);
		if (!meet->world)
			pause_a_little(0);
	}
}

/* ---- calls ---- */

static void on_done(struct tern_req *req)
{
	struct call *call = tern_container_of(req, struct call, req);

	assert_true(call->end->working);
	assert_int_equal(call->done_count, 0);
	assert_int_not_equal(tern_test(req), -EINPROGRESS);
	assert_true(req->status <= 0);
	call->done_count++;
	call->order = ended_count++;
	if (call->then)
		call->then(call);
}

void call_init(struct call *call, struct end *end)
{
	call->end = end;
	call->done_count = 0;
	/* Nonzero bytes in the fields that the library must set. */
	memset(&call->req, 0x5a, sizeof(call->req));
	call->req.done = on_done;
	call->req.arg = call;
}

int call_started(struct call *call, int r)
{
	assert_true(r <= 0);
	/* tern_send() and tern_recv() must not call done(). */
	if (r == 0)
		assert_int_equal(call->done_count, 0);
	return r;
}

int call_send_as(struct call *call, struct tern_channel *channel, uint64_t key,
	uint64_t step, const struct tern_tensor *tensor, const char *name, unsigned flags)
{
	call->buf = tensor->buf;
	return call_started(
		call, tern_send(channel, &call->req, key, step, tensor, name, flags));
}

int call_send(struct call *call, struct end *end, uint64_t key, uint64_t step,
	const struct tern_buf *buf, unsigned flags)
{
	struct tern_tensor tensor = {*buf, tern_shape_1d(TERN_U8, buf->bytes)};

	call_init(call, end);
	return call_send_as(call, end->channel, key, step, &tensor, NULL, flags);
}

int call_recv_as(struct call *call, struct tern_channel *channel, uint64_t key,
	uint64_t step, const struct tern_buf *room, const char *name, unsigned flags)
{
	if (room)
		call->buf = *room;
	return call_started(
		call, tern_recv(channel, &call->req, key, step, room, name, flags));
}

int call_recv(struct call *call, struct end *end, uint64_t key, uint64_t step,
	const struct tern_buf *room, unsigned flags)
{
	call_init(call, end);
	return call_recv_as(call, end->channel, key, step, room, NULL, flags);
}

bool calls_over(const struct call *calls, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!call_over(&calls[i]))
			return false;
	return true;
}

void call_check(const struct call *call, uint64_t bytes, uint64_t seed)
{
	struct tern_shape shape = tern_shape_1d(TERN_U8, bytes);

	assert_int_equal(call->done_count, 1);
	assert_int_equal(call->req.status, 0);
	assert_int_equal(call->req.bytes, bytes);
	assert_true(tern_shape_equal(&call->req.shape, &shape));
	if (bytes == 0)
		return;
	if (call->req.peeked || tern_mem_kind(call->req.buf.mem) == TERN_MEM_HOST) {
		assert_true(pattern_holds(call->req.data, bytes, seed, 0));
	} else {
		struct tern_buf part = buf_part(&call->req.buf, 0, bytes);

		assert_null(call->req.data);
		assert_true(buf_holds(&part, seed));
	}
}

struct tern_buf end_memory(struct end *end, enum memory kind, uint64_t bytes)
{
	return box_take(&end->box, kind, bytes);
}

struct tern_buf end_data(struct end *end, enum memory kind, uint64_t bytes, uint64_t seed)
{
	struct tern_buf buf = end_memory(end, kind, bytes);

	buf_fill(&buf, seed);
	return buf;
}
