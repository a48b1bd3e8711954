/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory in the plug-in for NIXL, on simulated RDMA devices and a simulated GPU, which
 * only the sources of the plug-in can be given: this program contains them, and its domains
 * use the simulated drivers. The CPU cannot access the GPU's memory. At the end of each
 * test no simulated object may be open.
 */
#include "tests/harness/cmocka.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/context.h>

#include "base/clock.h"
#include "base/util.h"
#include "plugins/nixl/core.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/verbs/fake_verbs.h"
#include "tests/harness/pattern.h"
#include "transport/domain.h"

#define LIMIT_NS (60 * TERN_NS_PER_S)
#define BYTES    ((size_t)5 << 20)
#define OK(call) assert_int_equal(call, 0)

static const struct tern_cuda_api *api;
static CUcontext context;

/* The linker makes all calls of tern_domain_new_sized() go to this function. */
int __wrap_tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out);
int __wrap_tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out)
{
	const struct tern_domain_hooks hooks = {
		.cuda_api = fake_cuda_api(), .verbs_api = fake_verbs_api()};

	assert_true(!opts || opts_bytes == sizeof(*opts));
	return tern_domain_new_hooked(opts, &hooks, out);
}

/* An agent with memory of a GPU and of the host. */
struct side {
	struct engine *engine;
	CUdeviceptr at;
	uint8_t *host;
	struct memory *memory[2];
};

enum { GPU, HOST };

/* ---- the machine ---- */

static void machine_open(void)
{
	const struct fake_cuda_opts cuda = fake_cuda_defaults();
	const struct fake_verbs_opts verbs = fake_verbs_defaults();

	fake_verbs_reset(&verbs);
	fake_cuda_reset(&cuda);
	api = fake_cuda_api();
	OK(api->init(0));
	OK(api->primary_ctx_retain(&context, 0));
}

static void machine_close(void)
{
	OK(api->primary_ctx_release(0));
	fake_cuda_reset(NULL);
	fake_verbs_reset(NULL);
}

static void gpu_copy(CUdeviceptr at, void *host, bool up)
{
	CUstream stream;

	OK(api->ctx_push_current(context));
	OK(api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0));
	OK(up ? api->memcpy_htod_async(at, host, BYTES, stream)
	      : api->memcpy_dtoh_async(host, at, BYTES, stream));
	OK(api->stream_synchronize(stream));
	OK(api->stream_destroy(stream));
	OK(api->ctx_pop_current(NULL));
}

static void gpu_fill(CUdeviceptr at, uint64_t seed)
{
	uint8_t *bytes = malloc(BYTES);

	assert_non_null(bytes);
	pattern_fill(bytes, BYTES, seed, 0);
	gpu_copy(at, bytes, true);
	free(bytes);
}

static bool gpu_holds(CUdeviceptr at, uint64_t seed)
{
	uint8_t *bytes = malloc(BYTES);
	bool holds;

	assert_non_null(bytes);
	gpu_copy(at, bytes, false);
	holds = pattern_holds(bytes, BYTES, seed, 0);
	free(bytes);
	return holds;
}

/* ---- agents ---- */

static uintptr_t address_of(const struct side *s, unsigned kind)
{
	return kind == GPU ? (uintptr_t)s->at : (uintptr_t)s->host;
}

static void side_open(struct side *s, const char *name)
{
	s->engine = engine_new(name);
	assert_non_null(s->engine);
	OK(api->ctx_push_current(context));
	OK(api->mem_alloc(&s->at, BYTES));
	OK(api->ctx_pop_current(NULL));
	s->host = malloc(BYTES);
	assert_non_null(s->host);
	for (unsigned kind = GPU; kind <= HOST; kind++)
		OK(memory_register(s->engine, kind == GPU, address_of(s, kind), BYTES,
			&s->memory[kind]));
}

static void side_close(struct side *s)
{
	for (unsigned kind = GPU; kind <= HOST; kind++)
		OK(memory_deregister(s->engine, s->memory[kind]));
	engine_free(s->engine);
	OK(api->ctx_push_current(context));
	OK(api->mem_free(s->at));
	OK(api->ctx_pop_current(NULL));
	free(s->host);
}

static void take(void *arg, const char *agent, const void *data, size_t bytes)
{
	unsigned *count = arg;

	assert_string_equal(agent, "I");
	assert_int_equal(bytes, 4);
	assert_memory_equal(data, "note", 4);
	++*count;
}

/* Moves all bytes between the memories of these kinds, with a notification. */
static void move(struct side *i, struct side *t, bool write, unsigned from, unsigned to)
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;
	struct target *target;
	struct request *request;
	struct span span = {.local = i->memory[from],
		.local_address = address_of(i, from),
		.remote_address = address_of(t, to),
		.bytes = BYTES,
		.gpu = from == GPU || to == GPU};
	unsigned notes = 0;
	int r;

	OK(target_load(i->engine, "T", memory_text(t->memory[to]), &target));
	span.target = target;
	OK(request_new(i->engine, "T", write, &span, 1, &request));
	r = request_post(request, "note", 4);
	while (r == RESULT_IN_PROGRESS && tern_clock_ns() < limit_ns)
		r = request_check(request);
	OK(r);
	while (!notes && tern_clock_ns() < limit_ns)
		OK(notes_take(t->engine, take, &notes));
	assert_int_equal(notes, 1);
	OK(request_release(request));
	OK(target_unload(i->engine, target));
}

/* ---- tests ---- */

/* way: a function of the CUDA driver that is called if Tern takes the expected way, and
 * otherwise is not. */
static void all_kinds(const char *fabric, const char *way)
{
	const char *const ways[] = {
		"memcpy_dtod_async", "mem_get_handle_for_address_range"};
	struct side i, t;

	setenv("TERN_FABRICS", fabric, 1);
	setenv("TERN_NET_IFNAME", "lo", 1); /* which has the simulated devices' address */
	machine_open();
	side_open(&i, "I");
	side_open(&t, "T");
	OK(engine_load(i.engine, "T", engine_info(t.engine)));
	gpu_fill(i.at, 1);
	gpu_fill(t.at, 2);
	move(&i, &t, true, GPU, GPU);
	assert_true(gpu_holds(t.at, 1));
	pattern_fill(i.host, BYTES, 3, 0);
	move(&i, &t, true, HOST, GPU);
	assert_true(gpu_holds(t.at, 3));
	move(&i, &t, true, GPU, HOST);
	assert_true(pattern_holds(t.host, BYTES, 1, 0));
	move(&i, &t, false, GPU, GPU);
	assert_true(gpu_holds(i.at, 3));
	gpu_fill(t.at, 4);
	move(&i, &t, false, HOST, GPU);
	assert_true(pattern_holds(i.host, BYTES, 4, 0));
	for (unsigned w = 0; w < TERN_ARRAY_SIZE(ways); w++)
		assert_true((fake_cuda_calls(ways[w]) > 0) ==
			    (way && strcmp(ways[w], way) == 0));
	OK(engine_disconnect(i.engine, "T"));
	side_close(&i);
	side_close(&t);
	machine_close();
}

static void test_tcp(void **state)
{
	(void)state;
	all_kinds("tcp", NULL);
}

static void test_shm(void **state)
{
	(void)state;
	all_kinds("auto", "memcpy_dtod_async"); /* CUDA IPC */
}

static void test_verbs(void **state)
{
	(void)state;
	all_kinds("verbs", "mem_get_handle_for_address_range"); /* a dma-buf */
}

static void test_refusals(void **state)
{
	struct request *request;
	struct memory *memory;
	struct span span;
	struct side s;

	(void)state;
	setenv("TERN_FABRICS", "tcp", 1);
	machine_open();
	side_open(&s, "I");
	/* Memory of the host is not that of a GPU, and a part must be of one allocation. */
	assert_int_equal(memory_register(s.engine, true, (uintptr_t)s.host, 64, &memory),
		RESULT_INVALID);
	assert_int_equal(
		memory_register(s.engine, true, (uintptr_t)s.at, BYTES + 4096, &memory),
		RESULT_INVALID);
	span = (struct span){.local = s.memory[GPU],
		.local_address = (uintptr_t)s.at,
		.remote_address = (uintptr_t)s.host,
		.bytes = 64,
		.gpu = true};
	assert_int_equal(
		request_new(s.engine, NULL, true, &span, 1, &request), RESULT_INVALID);
	side_close(&s);
	machine_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tcp),
		cmocka_unit_test(test_shm),
		cmocka_unit_test(test_verbs),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
