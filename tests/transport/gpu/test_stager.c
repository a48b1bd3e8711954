/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the stager (copies between GPU and pinned host buffers) alone, on the
 * simulated driver: copies, staging slots (the pinned buffers of its ring), and errors of
 * the driver. Invariant: a copy ends once, in tern_progress(), in order, and
 * afterwards no work of it is queued on the device.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include <tern/context.h>
#include <tern/memory.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "transport/context.h"
#include "transport/gpu/stager.h"

#define OK(call) assert_int_equal(call, CUDA_SUCCESS)
#define BYTES    5000u

struct rig {
	const struct tern_cuda_api *api;
	CUcontext context;
	CUdeviceptr at;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_mem *mem;
	struct tern_stager *stager;
	unsigned ended; /* number of copies that have ended */
	bool working;
};

struct copy {
	struct tern_copy copy;
	struct rig *rig;
	unsigned done_count, order;
	int status;
};

static void rig_open_with(struct rig *rig, const struct fake_cuda_opts *opts)
{
	struct tern_domain_hooks hooks = {0};
	struct tern_context_opts ctx_opts = {.no_spin = true};

	*rig = (struct rig){0};
	fake_cuda_reset(opts);
	rig->api = fake_cuda_api();
	OK(rig->api->init(0));
	OK(rig->api->primary_ctx_retain(&rig->context, 0));
	OK(rig->api->ctx_push_current(rig->context));
	OK(rig->api->mem_alloc(&rig->at, 4u << 20));
	OK(rig->api->ctx_pop_current(NULL));
	hooks.cuda_api = rig->api;
	assert_int_equal(tern_domain_new_hooked(NULL, &hooks, &rig->domain), 0);
	assert_int_equal(tern_context_new(rig->domain, &ctx_opts, &rig->ctx), 0);
	assert_int_equal(
		tern_mem_wrap_cuda(rig->domain, rig->at, 4u << 20, &rig->mem), 0);
}

static void rig_open(struct rig *rig, const struct fake_cuda_opts *opts)
{
	rig_open_with(rig, opts);
	assert_int_equal(tern_context_stager(rig->ctx, rig->mem->gpu, &rig->stager), 0);
}

static void rig_close(struct rig *rig)
{
	tern_context_free(rig->ctx);
	tern_mem_put(rig->mem);
	tern_domain_free(rig->domain);
	OK(rig->api->ctx_push_current(rig->context));
	rig->api->mem_free(rig->at); /* this fails in a corrupted context */
	OK(rig->api->ctx_pop_current(NULL));
	OK(rig->api->primary_ctx_release(0));
	fake_cuda_reset(NULL);
}

static int progress(struct rig *rig)
{
	int r;

	rig->working = true;
	r = tern_progress(rig->ctx);
	rig->working = false;
	assert_true(r >= 0);
	return r;
}

static void on_copied(struct tern_copy *copy, int status)
{
	struct copy *c = tern_container_of(copy, struct copy, copy);

	assert_true(c->rig->working);
	assert_true(status <= 0 && status != -EAGAIN);
	c->done_count++;
	c->status = status;
	c->order = c->rig->ended++;
}

static void start(struct rig *rig, struct copy *c, enum tern_stage_way way,
	uint64_t offset, struct tern_stage_slot *slot, uint64_t bytes)
{
	*c = (struct copy){.rig = rig, .copy.done = on_copied};
	tern_stager_copy(rig->stager, &c->copy, way, rig->mem, offset,
		tern_stage_slot_data(slot), bytes);
	assert_int_equal(c->done_count, 0);
}

static void finish(struct rig *rig, struct copy *copies, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		for (unsigned turns = 0; !copies[i].done_count; turns++) {
			progress(rig);
			assert_true(turns < 100000);
		}
		assert_int_equal(copies[i].done_count, 1);
	}
}

static struct tern_stage_slot *slot_of(struct rig *rig, enum tern_stage_way way)
{
	struct tern_stage_slot *slot = tern_stager_take(rig->stager, way);

	assert_non_null(slot);
	assert_int_equal(slot->way, way);
	return slot;
}

static void test_bytes_go_up_and_come_down(void **state)
{
	struct rig rig;
	struct tern_stage_slot *up, *down;
	struct copy copies[2];

	(void)state;
	rig_open(&rig, NULL);
	up = slot_of(&rig, TERN_STAGE_UP);
	down = slot_of(&rig, TERN_STAGE_DOWN);
	for (unsigned i = 0; i < 50; i++) {
		uint64_t bytes = i % 7 ? BYTES + i : TERN_STAGE_BYTES;

		memset(tern_stage_slot_data(up), (int)i + 1, bytes);
		memset(tern_stage_slot_data(down), 0, bytes);
		start(&rig, &copies[0], TERN_STAGE_UP, 3 * i, up, bytes);
		finish(&rig, &copies[0], 1);
		assert_int_equal(copies[0].status, 0);
		/* The copy has ended, so its staging slot may be overwritten. */
		memset(tern_stage_slot_data(up), 0xee, bytes);
		start(&rig, &copies[1], TERN_STAGE_DOWN, 3 * i, down, bytes);
		finish(&rig, &copies[1], 1);
		assert_int_equal(copies[1].status, 0);
		for (uint64_t b = 0; b < bytes; b++)
			assert_int_equal(tern_stage_slot_data(down)[b], i + 1);
	}
	assert_int_equal(fake_cuda_pageable_copies(), 0);
	tern_stager_give(up);
	tern_stager_give(down);
	rig_close(&rig);
}

static void test_more_copies_than_events_end_in_order(void **state)
{
	enum { COUNT = 40 };
	static struct copy copies[COUNT];
	struct tern_stage_slot *slot;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	slot = slot_of(&rig, TERN_STAGE_DOWN);
	fake_cuda_hold(true);
	for (unsigned i = 0; i < COUNT; i++)
		start(&rig, &copies[i], TERN_STAGE_DOWN, i, slot, BYTES);
	for (unsigned i = 0; i < 20; i++)
		progress(&rig);
	/* The device has done no work yet: fake_cuda_hold() stops it. */
	assert_int_equal(rig.ended, 0);
	fake_cuda_hold(false);
	finish(&rig, copies, COUNT);
	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(copies[i].status, 0);
		assert_int_equal(copies[i].order, i);
	}
	tern_stager_give(slot);
	rig_close(&rig);
}

static void test_a_context_has_one_stager_for_a_device(void **state)
{
	struct tern_stager *again;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	assert_int_equal(tern_context_stager(rig.ctx, rig.mem->gpu, &again), 0);
	assert_ptr_equal(again, rig.stager);
	rig_close(&rig);
}

/* ---- staging slots ---- */

struct waiter {
	struct tern_stage_wait wait;
	struct tern_stage_slot *slot;
	unsigned order, *count;
};

static void on_ready(struct tern_stage_wait *wait, struct tern_stage_slot *slot)
{
	struct waiter *w = tern_container_of(wait, struct waiter, wait);

	assert_null(w->slot);
	w->slot = slot;
	w->order = (*w->count)++;
}

static void test_slots_go_to_those_who_waited_longest(void **state)
{
	struct tern_stage_slot *slots[TERN_STAGE_SLOTS];
	struct waiter waiters[6];
	unsigned count = 0;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	for (unsigned i = 0; i < TERN_STAGE_SLOTS; i++)
		slots[i] = slot_of(&rig, TERN_STAGE_UP);
	assert_null(tern_stager_take(rig.stager, TERN_STAGE_UP));
	for (unsigned i = 0; i < 6; i++) {
		waiters[i] = (struct waiter){.wait.ready = on_ready, .count = &count};
		tern_list_init(&waiters[i].wait.node);
		/* The fifth waiter is urgent. */
		tern_stager_wait(rig.stager, TERN_STAGE_UP, &waiters[i].wait, i == 4);
		tern_stager_wait(rig.stager, TERN_STAGE_UP, &waiters[i].wait, false);
	}
	tern_stager_give(slots[0]);
	/* The free staging slot goes to a waiter, not to a later caller of take(). */
	assert_null(tern_stager_take(rig.stager, TERN_STAGE_UP));
	assert_int_equal(tern_arm(rig.ctx), -EAGAIN);
	progress(&rig);
	assert_int_equal(count, 1);
	assert_ptr_equal(waiters[4].slot, slots[0]);
	tern_list_remove(&waiters[1].wait.node); /* waiter 1 does not wait any more */
	for (unsigned i = 1; i < TERN_STAGE_SLOTS; i++)
		tern_stager_give(slots[i]);
	progress(&rig);
	assert_int_equal(count, 4);
	assert_int_equal(waiters[0].order, 1);
	assert_int_equal(waiters[2].order, 2);
	assert_int_equal(waiters[3].order, 3);
	assert_null(waiters[1].slot);
	assert_null(waiters[5].slot);
	tern_stager_give(waiters[0].slot);
	progress(&rig);
	assert_non_null(waiters[5].slot);
	for (unsigned i = 2; i < 6; i++)
		tern_stager_give(waiters[i].slot);
	assert_non_null(tern_stager_take(rig.stager, TERN_STAGE_UP));
	rig_close(&rig);
}

/* ---- waking ---- */

static void *let_go(void *arg)
{
	(void)arg;
	fake_cuda_hold(false);
	fake_cuda_run();
	return NULL;
}

static void test_the_end_of_a_copy_wakes_a_context_that_sleeps(void **state)
{
	struct tern_stage_slot *slot;
	struct copy copies[3];
	struct pollfd pfd;
	pthread_t thread;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	slot = slot_of(&rig, TERN_STAGE_DOWN);
	for (unsigned round = 0; round < 20; round++) {
		fake_cuda_hold(true);
		for (unsigned i = 0; i < 3; i++)
			start(&rig, &copies[i], TERN_STAGE_DOWN, i, slot, BYTES);
		progress(&rig);
		assert_int_equal(tern_arm(rig.ctx), 0);
		/* One callback after all three copies in the stream wakes the context; no
		 * second one is added for them. */
		assert_int_equal(fake_cuda_calls("launch_host_func"), round + 1);
		progress(&rig);
		assert_int_equal(tern_arm(rig.ctx), 0);
		assert_int_equal(fake_cuda_calls("launch_host_func"), round + 1);
		assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
		pfd = (struct pollfd){.fd = tern_context_fd(rig.ctx), .events = POLLIN};
		while (!copies[2].done_count) {
			assert_int_equal(poll(&pfd, 1, 20000), 1);
			progress(&rig);
			if (!copies[2].done_count)
				while (tern_arm(rig.ctx) == -EAGAIN)
					progress(&rig);
		}
		pthread_join(thread, NULL);
		finish(&rig, copies, 3);
	}
	tern_stager_give(slot);
	rig_close(&rig);
}

/* If the driver refuses the callback that would wake the context, a timer of the context
 * must wake it, so that it sees the end of the copy. */
static void test_a_copy_is_seen_without_the_wake(void **state)
{
	struct tern_stage_slot *slot;
	struct pollfd pfd;
	struct copy copy;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	slot = slot_of(&rig, TERN_STAGE_DOWN);
	fake_cuda_hold(true);
	start(&rig, &copy, TERN_STAGE_DOWN, 0, slot, BYTES);
	fake_cuda_fail("launch_host_func", 1, CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(tern_arm(rig.ctx), 0);
	fake_cuda_hold(false);
	fake_cuda_run();
	pfd = (struct pollfd){.fd = tern_context_fd(rig.ctx), .events = POLLIN};
	assert_int_equal(poll(&pfd, 1, 20000), 1);
	finish(&rig, &copy, 1);
	assert_int_equal(copy.status, 0);
	tern_stager_give(slot);
	rig_close(&rig);
}

/* The driver refuses a copy that is started outside of tern_progress(). Since only
 * tern_progress() may report the copy's end, a timer of the context must be due soon. */
static void test_a_copy_that_was_refused_is_told_soon(void **state)
{
	struct tern_stage_slot *slot;
	struct copy copy;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	slot = slot_of(&rig, TERN_STAGE_DOWN);
	fake_cuda_fail("memcpy_dtoh_async", 1, CUDA_ERROR_UNKNOWN);
	start(&rig, &copy, TERN_STAGE_DOWN, 0, slot, BYTES);
	assert_int_equal(tern_arm(rig.ctx), 0);
	assert_true(tern_context_next_ns(rig.ctx) <=
		    tern_now_ns(rig.ctx->env) + 10 * TERN_NS_PER_MS);
	finish(&rig, &copy, 1);
	assert_int_equal(copy.status, -EIO);
	tern_stager_give(slot);
	rig_close(&rig);
}

/* A callback that the stager has put into its stream uses the context. So freeing the
 * context must wait until the callback has run. */
static void test_the_end_waits_for_wakes(void **state)
{
	struct tern_stage_slot *slot;
	struct copy copy;
	struct rig rig;

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		rig_open(&rig, NULL);
		slot = slot_of(&rig, TERN_STAGE_UP);
		start(&rig, &copy, TERN_STAGE_UP, 0, slot, BYTES);
		assert_int_equal(tern_arm(rig.ctx), 0);
		/* The copy has ended, but the callback after it may not have run yet. */
		while (!copy.done_count)
			progress(&rig);
		tern_stager_give(slot);
		rig_close(&rig);
	}
}

/* ---- what the driver refuses ---- */

/* Each of the driver calls that copies make fails in turn: a copy may fail, but it must
 * end, and later copies must work. */
static void test_every_call_may_fail(void **state)
{
	static const struct {
		const char *call;
		unsigned at_most;
		bool fails; /* true: one of the copies must fail; false: none may */
	} cases[] = {
		{"ctx_push_current", 3, true},
		{"memcpy_dtoh_async", 1, true},
		{"memcpy_htod_async", 1, true},
		{"event_record", 1, false}, /* its event is recorded again */
		{"event_query", 2, true},
	};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		for (unsigned nth = 1; nth <= cases[i].at_most; nth++) {
			struct tern_stage_slot *slots[2];
			struct copy copies[4];
			unsigned failed = 0;
			struct rig rig;

			rig_open(&rig, NULL);
			slots[0] = slot_of(&rig, TERN_STAGE_DOWN);
			slots[1] = slot_of(&rig, TERN_STAGE_UP);
			fake_cuda_fail(cases[i].call, nth, CUDA_ERROR_UNKNOWN);
			for (unsigned c = 0; c < 4; c++)
				start(&rig, &copies[c], c % 2, c * 100, slots[c % 2],
					BYTES);
			for (unsigned c = 0; c < 4; c++) {
				finish(&rig, &copies[c], 1);
				failed += copies[c].status != 0;
				if (copies[c].status)
					assert_int_equal(copies[c].status, -EIO);
			}
			assert_int_equal(failed, cases[i].fails);
			/* The device has no more queued work that uses the memory. */
			assert_int_equal(fake_cuda_queued(), 0);
			start(&rig, &copies[0], TERN_STAGE_UP, 0, slots[1], BYTES);
			finish(&rig, &copies[0], 1);
			assert_int_equal(copies[0].status, 0);
			tern_stager_give(slots[0]);
			tern_stager_give(slots[1]);
			rig_close(&rig);
		}
	}
}

/* The copy is queued, and no event can be recorded after it: it must not end before the
 * device has done it. */
static void test_a_copy_without_its_event_is_waited_for(void **state)
{
	struct tern_stage_slot *slot;
	struct copy copy;
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	slot = slot_of(&rig, TERN_STAGE_DOWN);
	fake_cuda_hold(true);
	for (unsigned nth = 1; nth < 8; nth++)
		fake_cuda_fail("event_record", nth, CUDA_ERROR_UNKNOWN);
	start(&rig, &copy, TERN_STAGE_DOWN, 0, slot, BYTES);
	for (unsigned i = 0; i < 20; i++)
		progress(&rig);
	assert_int_equal(copy.done_count, 0);
	fake_cuda_hold(false);
	finish(&rig, &copy, 1);
	assert_int_equal(copy.status, -EIO);
	tern_stager_give(slot);
	rig_close(&rig);
}

static void nothing(const struct fake_cuda_launch *launch)
{
	(void)launch;
}

/* Lets a kernel of the program fail, which corrupts the device's context and everything
 * in it. */
static void spoil(struct rig *rig)
{
	CUfunction function;
	CUmodule module;
	CUstream stream;

	fake_cuda_kernel("nothing", nothing, 0, NULL);
	OK(rig->api->ctx_push_current(rig->context));
	OK(rig->api->module_load_data_ex(&module, "", 0, NULL, NULL));
	OK(rig->api->module_get_function(&function, module, "nothing"));
	OK(rig->api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0));
	fake_cuda_break("nothing", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(rig->api->launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
	fake_cuda_hold(false);
	rig->api->stream_synchronize(stream);
	OK(rig->api->ctx_pop_current(NULL));
}

static void test_a_sticky_error_ends_every_copy(void **state)
{
	enum { COUNT = 30 };
	static struct copy copies[COUNT];
	struct tern_stage_slot *slots[2];
	struct rig rig;

	(void)state;
	rig_open(&rig, NULL);
	slots[0] = slot_of(&rig, TERN_STAGE_DOWN);
	slots[1] = slot_of(&rig, TERN_STAGE_UP);
	fake_cuda_hold(true);
	for (unsigned i = 0; i < COUNT; i++)
		start(&rig, &copies[i], i % 2, i, slots[i % 2], BYTES);
	spoil(&rig);
	finish(&rig, copies, COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(copies[i].status, -ENOTRECOVERABLE);
	start(&rig, &copies[0], TERN_STAGE_UP, 0, slots[1], BYTES);
	finish(&rig, copies, 1);
	assert_int_equal(copies[0].status, -ENOTRECOVERABLE);
	tern_stager_give(slots[0]);
	tern_stager_give(slots[1]);
	rig_close(&rig);
}

static void test_a_stager_that_cannot_be_made_leaves_nothing(void **state)
{
	static const struct {
		const char *call;
		unsigned at_most;
	} cases[] = {{"mem_host_register", 1}, {"stream_create_with_priority", 2},
		{"event_create", 16}, {"ctx_push_current", 2}};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		for (unsigned nth = 1; nth <= cases[i].at_most; nth++) {
			struct rig rig;

			rig_open_with(&rig, NULL);
			fake_cuda_fail(cases[i].call, nth, CUDA_ERROR_OUT_OF_MEMORY);
			assert_int_equal(
				tern_context_stager(rig.ctx, rig.mem->gpu, &rig.stager),
				-ENOMEM);
			assert_int_equal(fake_cuda_live().registered_mems, 0);
			assert_int_equal(fake_cuda_live().streams, 0);
			assert_int_equal(fake_cuda_live().events, 0);
			assert_int_equal(
				tern_context_stager(rig.ctx, rig.mem->gpu, &rig.stager),
				0);
			rig_close(&rig);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_go_up_and_come_down),
		cmocka_unit_test(test_more_copies_than_events_end_in_order),
		cmocka_unit_test(test_a_context_has_one_stager_for_a_device),
		cmocka_unit_test(test_slots_go_to_those_who_waited_longest),
		cmocka_unit_test(test_the_end_of_a_copy_wakes_a_context_that_sleeps),
		cmocka_unit_test(test_a_copy_is_seen_without_the_wake),
		cmocka_unit_test(test_a_copy_that_was_refused_is_told_soon),
		cmocka_unit_test(test_the_end_waits_for_wakes),
		cmocka_unit_test(test_every_call_may_fail),
		cmocka_unit_test(test_a_copy_without_its_event_is_waited_for),
		cmocka_unit_test(test_a_sticky_error_ends_every_copy),
		cmocka_unit_test(test_a_stager_that_cannot_be_made_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
