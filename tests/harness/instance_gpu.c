/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variants of any instance with the memory of one end, or of both, in a simulated GPU:
 * all memory that a test takes, and the pools of receives that allocate their memory
 * (ALLOC). Each bed gets a new device, whose timing depends on the number of devices
 * before it. On fabrics that can sleep, a thread also does the device's work, so that the
 * device can wake a sleeping end. Every second device does not order the writes of network
 * cards by itself. The CPU can never access the GPU's memory.
 *
 * The suffix of the name also says which others can access GPU memory. "-gpu": network
 * cards, if the fabric uses them. "-gpu-staged": none. "-ipc": other processes, by CUDA
 * IPC (and handles can be opened in their own process, unlike those of a real GPU).
 * "-address": as "-ipc", but the two ends, which are one process, use addresses instead
 * of handles.
 */
#include "tests/harness/bed.h"

#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"

static const struct kind {
	const char *end;
	unsigned gpus;
	bool uses_gpu, ipc, ipc_self, staged;
} kinds[] = {
	{"-gpu", 3, false, false, false, false},
	{"-gpu-a", 1 << A, false, false, false, false},
	{"-gpu-b", 1 << B, false, false, false, false},
	{"-gpu-staged", 3, false, false, false, true},
	{"-ipc", 3, false, true, true, false},
	{"-ipc-a", 1 << A, true, true, true, false},
	{"-ipc-host", 1 << A, false, true, true,
		false}, /* only A uses the device, so B refuses A's GPU memory */
	{"-address", 3, false, true, false, false},
};

static const struct kind *kind;
static const struct tern_cuda_api *api;
/* True: take() allocates whole pages, since network cards can access only whole pages. */
static bool whole_pages;
/* Context in which the tests themselves call the current simulated driver. */
static CUcontext context;

static void retain(void)
{
	CUdevice device;

	if (context)
		return;
	assert_int_equal(api->init(0), 0);
	assert_int_equal(api->device_get(&device, 0), 0);
	assert_int_equal(api->primary_ctx_retain(&context, device), 0);
}

static void release(void)
{
	if (!context)
		return;
	api->primary_ctx_release(0);
	context = NULL;
}

static void reset(bool background)
{
	static uint64_t seed;
	struct fake_cuda_opts opts = fake_cuda_defaults();

	release();
	opts.seed = ++seed;
	opts.early_percent = (unsigned)(seed % 3) * 30;
	opts.background = background;
	opts.ipc = kind->ipc;
	opts.ipc_self = kind->ipc_self;
	opts.dma_buf = !kind->staged;
	if (seed % 2)
		opts.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	fake_cuda_reset(&opts);
	retain();
}

/* enter() makes the CUDA context current for this thread, leave() undoes it. Between
 * tests' calls the thread has no context, as the threads of a program may have none. */
static void enter(void)
{
	assert_int_equal(api->ctx_push_current(context), 0);
}

static void leave(void)
{
	assert_int_equal(api->ctx_pop_current(NULL), 0);
}

static uint64_t take(uint64_t bytes)
{
	CUdeviceptr at;

	enter();
	assert_int_equal(
		api->mem_alloc(&at, whole_pages ? tern_align_up(bytes, 4096) : bytes), 0);
	leave();
	return at;
}

static void give(uint64_t address)
{
	enter();
	assert_int_equal(api->mem_free(address), 0);
	leave();
}

/* `from` need not be page-locked: the simulated driver copies pageable memory during the
 * call. */
static void write_bytes(uint64_t address, const void *from, uint64_t bytes)
{
	CUstream stream;

	enter();
	assert_int_equal(
		api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(api->memcpy_htod_async(address, from, bytes, stream), 0);
	assert_int_equal(api->stream_synchronize(stream), 0);
	assert_int_equal(api->stream_destroy(stream), 0);
	leave();
}

static void read_bytes(void *to, uint64_t address, uint64_t bytes)
{
	CUstream stream;

	enter();
	assert_int_equal(
		api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0), 0);
	assert_int_equal(api->memcpy_dtoh_async(to, address, bytes, stream), 0);
	assert_int_equal(api->stream_synchronize(stream), 0);
	assert_int_equal(api->stream_destroy(stream), 0);
	leave();
}

static struct device_memory fake = {
	.reset = reset,
	.take = take,
	.give = give,
	.write = write_bytes,
	.read = read_bytes,
};

/* True if the fabric's network cards can access GPU memory directly. With guard=on they do
 * not: there puts of the peer arrive as messages, which the CPU copies. */
static bool reaches_gpus(const struct instance *instance)
{
	return strcmp(instance->fabric, "verbs") == 0 &&
	       !strstr(instance->opts.verbs, "guard=on");
}

static const struct kind *kind_of(const char *name, size_t *base_bytes)
{
	size_t bytes = strlen(name);

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(kinds); i++) {
		size_t end_bytes = strlen(kinds[i].end);

		*base_bytes = bytes - end_bytes;
		if (bytes > end_bytes && strcmp(name + *base_bytes, kinds[i].end) == 0)
			return &kinds[i];
	}
	return NULL;
}

const struct instance *conformance_with_gpus(const char *name)
{
	static struct instance instance;
	const struct instance *base;
	size_t bytes;

	kind = kind_of(name, &bytes);
	if (!kind)
		return NULL;
	base = instance_find(name, bytes);
	if (!base)
		return NULL;
	instance = *base;
	instance.name = name;
	instance.gpus = kind->gpus;
	instance.uses_gpu = kind->uses_gpu;
	instance.ipc = kind->ipc;
	/* Huge pages are tested by instances without a GPU. In these variants they
	 * would take longer than the tests themselves, since the kernel collects the
	 * pages for each pool. */
	instance.opts.no_hugepages = true;
	instance.direct = reaches_gpus(base) && !kind->staged;
	whole_pages = instance.direct;
	api = fake_cuda_api();
	instance.hooks.cuda_api = fake.api = api;
	instance.hooks.cuda_ipc_self = kind->ipc_self;
	device_memory = &fake;
	return &instance;
}
