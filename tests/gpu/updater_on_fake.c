/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of the CUDA updater (optimizer steps) on the simulated driver; each call of
 * most functions of the driver also fails once. */
#include "tests/gpu/updater.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/gpu/blocks.h"

#define COUNT 100u
#define SLOTS 10u

static int machine_open(void **state)
{
	(void)state;
	fake_cuda_reset(NULL);
	gpu_register_blocks();
	updater_api = fake_cuda_api();
	assert_int_equal(updater_api->init(0), CUDA_SUCCESS);
	return 0;
}

/* The reset asserts that no object of the driver is open. */
static int machine_close(void **state)
{
	(void)state;
	fake_cuda_reset(NULL);
	return 0;
}

static float w[COUNT], gradient[COUNT];

static int use_chunk(struct tern_updater *u, struct tern_updater_chunk *c)
{
	const float *g[SLOTS];
	double squares;
	int r;

	for (unsigned i = 0; i < SLOTS; i++)
		g[i] = gradient;
	r = tern_updater_sum(u, c, g, SLOTS, 0.1f, &squares);
	for (uint64_t step = 1; step <= 2 && r == 0; step++) {
		const struct tern_updater_step s = {.step = step,
			.w_in = w,
			.w_out = w,
			.gradients = step == 1 ? NULL : g,
			.gradient_count = SLOTS,
			.scale = 0.1f,
			.clip = 1};

		r = tern_updater_update(u, c, &s);
	}
	assert_true(r == 0 || strncmp(c->error, "cuda:0: ", 8) == 0);
	return r;
}

static int use(struct tern_updater *u, const char *function, unsigned *calls)
{
	struct tern_optimizer o;
	const struct tern_updater_opts opts = {.optimizer = &o,
		.count = COUNT,
		.gradient_count = SLOTS,
		.two_phase = true};
	struct tern_updater_chunk *c;
	int r;

	assert_int_equal(tern_optimizer_parse("adagrad", &o), 0);
	r = tern_updater_chunk_new(u, &opts, &c);
	if (r < 0) {
		assert_true(strncmp(u->error, "cuda:0: ", 8) == 0);
		*calls = fake_cuda_calls(function);
		return r;
	}
	r = use_chunk(u, c);
	*calls = fake_cuda_calls(function);
	tern_updater_chunk_free(u, c);
	return r;
}

/* Creates and uses an updater while the nth call of `function` fails (0: no call fails).
 * Returns the number of calls of `function`. */
static unsigned try_life(const char *function, unsigned nth, bool expected)
{
	struct tern_updater *u;
	char why[400] = "";
	unsigned calls, before;
	int r;

	machine_open(NULL);
	before = fake_cuda_calls(function);
	if (nth)
		fake_cuda_fail(function, nth, CUDA_ERROR_UNKNOWN);
	r = tern_updater_cuda_new(updater_api, 0, &u, why, sizeof(why));
	calls = fake_cuda_calls(function);
	if (r < 0) {
		assert_true(strlen(why) > 10);
	} else {
		r = use(u, function, &calls);
		tern_updater_free(u);
	}
	assert_true((r < 0) == expected);
	machine_close(NULL);
	return calls - before;
}

static void test_each_call_may_fail(void **state)
{
	static const char *const functions[] = {"device_get", "primary_ctx_retain",
		"ctx_push_current", "stream_create_with_priority", "event_create",
		"mem_alloc", "mem_host_alloc", "module_load_data_ex", "memset_d32_async",
		"memcpy_async", "launch_kernel", "event_record", "event_query",
		"stream_synchronize"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(functions); i++) {
		unsigned calls = try_life(functions[i], 0, false);

		assert_true(calls > 0);
		for (unsigned nth = 1; nth <= calls; nth++)
			try_life(functions[i], nth, true);
	}
}

static void test_a_broken_device_is_a_status_and_a_line(void **state)
{
	struct tern_updater *u;
	char why[400];
	unsigned calls;

	(void)state;
	assert_int_equal(tern_updater_cuda_new(updater_api, 0, &u, why, sizeof(why)), 0);
	fake_cuda_break("tern_cuda_adagrad_slots", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(use(u, "launch_kernel", &calls), -ENOTRECOVERABLE);
	tern_updater_free(u);
}

static void test_a_chunk_without_memory_leaves_the_others_theirs(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_optimizer o;
	struct tern_updater_opts want = {.optimizer = &o,
		.count = COUNT,
		.gradient_count = SLOTS,
		.two_phase = true};
	struct tern_updater_chunk *c, *large = NULL;
	struct tern_updater *u;
	char why[400];
	uint64_t held;

	(void)state;
	opts.mem_bytes = 8u << 20;
	fake_cuda_reset(&opts);
	gpu_register_blocks();
	assert_int_equal(updater_api->init(0), CUDA_SUCCESS);
	assert_int_equal(tern_optimizer_parse("adagrad", &o), 0);
	assert_int_equal(tern_updater_cuda_new(updater_api, 0, &u, why, sizeof(why)), 0);
	assert_int_equal(tern_updater_chunk_new(u, &want, &c), 0);
	held = tern_updater_held_bytes(u);
	want.count = 1u << 20;
	assert_int_equal(tern_updater_chunk_new(u, &want, &large), -ENOMEM);
	assert_non_null(strstr(u->error, "room for gradients"));
	assert_int_equal(tern_updater_held_bytes(u), held);
	assert_int_equal(use_chunk(u, c), 0);
	tern_updater_chunk_free(u, c);
	tern_updater_free(u);
}

static void test_memory_that_cannot_be_locked_is_told_once(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_updater *u;
	char why[400], note[400];
	void *memory = mmap(NULL, 1u << 16, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned calls;

	(void)state;
	opts.host_limit_bytes = 10000;
	fake_cuda_reset(&opts);
	gpu_register_blocks();
	assert_int_equal(updater_api->init(0), CUDA_SUCCESS);
	assert_int_equal(tern_updater_cuda_new(updater_api, 0, &u, why, sizeof(why)), 0);
	tern_updater_pin(u, memory, 1u << 16);
	assert_true(tern_updater_held_bytes(u) > 0);
	tern_updater_take_note(u, note, sizeof(note));
	assert_non_null(strstr(note, "copies go through other memory"));
	tern_updater_pin(u, (char *)memory + (1u << 15), 1u << 15);
	tern_updater_take_note(u, note, sizeof(note));
	assert_string_equal(note, "");
	/* After the driver has refused, the updater must not ask it again in each
	 * step. */
	calls = fake_cuda_calls("mem_host_register");
	tern_updater_pin(u, memory, 1u << 16);
	assert_int_equal(fake_cuda_calls("mem_host_register"), calls);
	tern_updater_pin(u, memory, 8192);
	assert_int_equal(fake_cuda_live().registered_mems, 1);
	assert_int_equal(use(u, "launch_kernel", &calls), 0);
	tern_updater_unpin(u);
	tern_updater_free(u);
	munmap(memory, 1u << 16);
}

/* Gives the updater memory of 65,536 bytes of which another library has page-locked
 * `locked` bytes. Returns the updater's note. */
static const char *pinned_beside(size_t locked)
{
	static char note[400];
	struct tern_updater *u;
	CUcontext context;
	char why[400];
	void *memory = mmap(NULL, 1u << 16, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	note[0] = 0;
	assert_int_equal(updater_api->primary_ctx_retain(&context, 0), 0);
	assert_int_equal(updater_api->ctx_push_current(context), 0);
	assert_int_equal(updater_api->mem_host_register(
				 memory, locked, CU_MEMHOSTREGISTER_PORTABLE),
		0);
	assert_int_equal(tern_updater_cuda_new(updater_api, 0, &u, why, sizeof(why)), 0);
	for (unsigned i = 0; i < 3; i++)
		tern_updater_pin(u, memory, 1u << 16);
	assert_int_equal(fake_cuda_calls("mem_host_register"), 2);
	tern_updater_take_note(u, note, sizeof(note));
	tern_updater_unpin(u);
	tern_updater_free(u);
	assert_int_equal(fake_cuda_live().registered_mems, 1);
	assert_int_equal(updater_api->mem_host_unregister(memory), 0);
	assert_int_equal(updater_api->ctx_pop_current(NULL), 0);
	assert_int_equal(updater_api->primary_ctx_release(0), 0);
	munmap(memory, 1u << 16);
	return note;
}

static void test_what_others_have_locked_stays_locked(void **state)
{
	(void)state;
	assert_string_equal(pinned_beside(1u << 16), "");
}

static void test_memory_of_which_others_have_locked_a_part_is_not_locked(void **state)
{
	(void)state;
	assert_non_null(
		strstr(pinned_beside(1u << 15), "copies go through other memory"));
}

/* If parameters and gradients are in the GPU's memory, an update copies nothing, and the
 * updater takes no memory for gradients. */
static void test_nothing_is_copied_where_all_is_in_the_gpus_memory(void **state)
{
	struct tern_optimizer sgd;
	struct tern_updater_opts opts = {.optimizer = &sgd,
		.count = COUNT,
		.gradient_count = 8,
		.on_device = true};
	struct tern_updater_chunk *c;
	const float *g[8];
	struct tern_updater_step step = {.step = 1,
		.gradients = g,
		.gradient_count = TERN_ARRAY_SIZE(g),
		.scale = 1,
		.clip = 1};
	struct tern_updater *u;
	CUdeviceptr memory;
	CUcontext context;
	char why[400];
	unsigned copies;
	uint64_t held;

	(void)state;
	assert_int_equal(tern_optimizer_parse("sgd", &sgd), 0);
	assert_int_equal(tern_updater_cuda_new(updater_api, 0, &u, why, sizeof(why)), 0);
	assert_int_equal(updater_api->primary_ctx_retain(&context, 0), CUDA_SUCCESS);
	updater_api->ctx_push_current(context);
	assert_int_equal(updater_api->mem_alloc(&memory, 2 * sizeof(w)), CUDA_SUCCESS);
	held = tern_updater_held_bytes(u);
	assert_int_equal(tern_updater_chunk_new(u, &opts, &c), 0);
	assert_true(tern_updater_held_bytes(u) == held);
	step.w_out = (float *)(uintptr_t)memory;
	step.w_in = step.w_out;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(g); i++)
		g[i] = step.w_in + COUNT;
	assert_int_equal(tern_updater_copy(u, c, step.w_out, w), 0);
	assert_int_equal(tern_updater_copy(u, c, step.w_out + COUNT, gradient), 0);
	copies = fake_cuda_calls("memcpy_async");
	assert_int_equal(tern_updater_update(u, c, &step), 0);
	assert_int_equal(fake_cuda_calls("memcpy_async"), copies);
	updater_api->mem_free(memory);
	updater_api->ctx_pop_current(NULL);
	updater_api->primary_ctx_release(0);
	tern_updater_chunk_free(u, c);
	tern_updater_free(u);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test(test_each_call_may_fail),
		cmocka_unit_test_setup_teardown(
			test_a_broken_device_is_a_status_and_a_line, machine_open,
			machine_close),
		cmocka_unit_test_setup_teardown(
			test_a_chunk_without_memory_leaves_the_others_theirs,
			machine_open, machine_close),
		cmocka_unit_test_setup_teardown(
			test_memory_that_cannot_be_locked_is_told_once, machine_open,
			machine_close),
		cmocka_unit_test_setup_teardown(test_what_others_have_locked_stays_locked,
			machine_open, machine_close),
		cmocka_unit_test_setup_teardown(
			test_memory_of_which_others_have_locked_a_part_is_not_locked,
			machine_open, machine_close),
		cmocka_unit_test_setup_teardown(
			test_nothing_is_copied_where_all_is_in_the_gpus_memory,
			machine_open, machine_close),
	};

	return updater_run_cases(machine_open, machine_close) +
	       updater_run_resident(machine_open, machine_close) +
	       cmocka_run_group_tests_name("on a simulated driver", cases, NULL, NULL) +
	       updater_run_batches(machine_open, machine_close);
}
