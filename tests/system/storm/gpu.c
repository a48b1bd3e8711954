/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated GPU for the storm: implements struct storm_memory. */
#include "tests/system/storm/gpu.h"

#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"

static const struct tern_cuda_api *api;
static CUcontext context;
static bool has_ipc;

/* Makes a copy for the test itself. Repeats it until it works, since a fault that the
 * storm has injected may hit it. */
static void surely(CUresult (*copy)(void *arg, CUstream stream), void *arg)
{
	CUstream stream;

	tern_assert(api->ctx_push_current(context) == CUDA_SUCCESS);
	while (api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0))
		;
	while (copy(arg, stream))
		;
	while (api->stream_synchronize(stream))
		;
	api->stream_destroy(stream);
	api->ctx_pop_current(NULL);
}

struct bytes {
	CUdeviceptr address;
	void *to;
	const void *from;
	uint64_t count;
};

static CUresult up(void *arg, CUstream stream)
{
	const struct bytes *b = arg;

	return api->memcpy_htod_async(b->address, b->from, b->count, stream);
}

static CUresult down(void *arg, CUstream stream)
{
	const struct bytes *b = arg;

	return api->memcpy_dtoh_async(b->to, b->address, b->count, stream);
}

static void write_bytes(uint64_t address, const void *from, uint64_t bytes)
{
	surely(up, &(struct bytes){address, NULL, from, bytes});
}

static void read_bytes(void *to, uint64_t address, uint64_t bytes)
{
	surely(down, &(struct bytes){address, to, NULL, bytes});
}

/* For each function: the number of the call at which its last injected fault comes. */
static unsigned asked[5];

static void refuse(unsigned which)
{
	const char *const calls[] = {"memcpy_dtoh_async",
		has_ipc ? "memcpy_dtod_async" : "memcpy_htod_async", "event_query",
		"event_record", "flush_gpu_direct_rdma_writes"};

	_Static_assert(TERN_ARRAY_SIZE(calls) == TERN_ARRAY_SIZE(asked), "one each");
	which %= TERN_ARRAY_SIZE(calls);

	/* The simulated driver can keep only few faults: inject no other one before the
	 * last one has come. */
	if (asked[which] && fake_cuda_calls(calls[which]) < asked[which])
		return;
	fake_cuda_fail(calls[which], 1, CUDA_ERROR_UNKNOWN);
	asked[which] = fake_cuda_calls(calls[which]) + 1;
}

static const struct storm_memory memory = {
	.write = write_bytes, .read = read_bytes, .refuse = refuse};

const struct storm_memory *storm_gpu_open(uint64_t seed, bool ipc)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();

	opts.seed = seed;
	opts.early_percent = (unsigned)(seed % 4) * 20;
	opts.ipc = has_ipc = ipc;
	/* ipc_self false: the reading end uses the address itself, since both ends are in
	 * this process. */
	opts.ipc_self = seed % 3;
	opts.dma_buf = seed % 4 != 2;
	if (seed / 2 % 2)
		opts.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	fake_cuda_reset(&opts);
	memset(asked, 0, sizeof(asked));
	api = fake_cuda_api();
	tern_assert(api->init(0) == CUDA_SUCCESS);
	tern_assert(api->primary_ctx_retain(&context, 0) == CUDA_SUCCESS);
	return &memory;
}

const void *storm_gpu_api(void)
{
	return fake_cuda_api();
}

void storm_gpu_close(void)
{
	api->primary_ctx_release(0);
	fake_cuda_reset(NULL); /* asserts that no object of the driver is open */
}
