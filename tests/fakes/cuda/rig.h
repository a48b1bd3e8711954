/* SPDX-License-Identifier: Apache-2.0 */
/* Common start of the tests of the simulated driver: a device, its context, two
 * streams, and page-locked memory. */
#ifndef TERN_TESTS_FAKES_CUDA_RIG_H
#define TERN_TESTS_FAKES_CUDA_RIG_H

#include "tests/harness/cmocka.h"

#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"

#define RIG_BYTES 1000

struct rig {
	const struct tern_cuda_api *api;
	CUcontext context;
	CUstream a, b;
	CUdeviceptr x, y;        /* device memory, RIG_BYTES each */
	unsigned char *in, *out; /* page-locked, RIG_BYTES each */
};

#define OK(call) assert_int_equal(call, CUDA_SUCCESS)

static inline void rig_open(struct rig *rig, const struct fake_cuda_opts *opts)
{
	CUdevice device;

	fake_cuda_reset(opts);
	rig->api = fake_cuda_api();
	OK(rig->api->init(0));
	OK(rig->api->device_get(&device, 0));
	OK(rig->api->primary_ctx_retain(&rig->context, device));
	OK(rig->api->ctx_push_current(rig->context));
	OK(rig->api->stream_create_with_priority(&rig->a, CU_STREAM_NON_BLOCKING, 0));
	OK(rig->api->stream_create_with_priority(&rig->b, CU_STREAM_NON_BLOCKING, -1));
	OK(rig->api->mem_alloc(&rig->x, RIG_BYTES));
	OK(rig->api->mem_alloc(&rig->y, RIG_BYTES));
	OK(rig->api->mem_host_alloc((void **)&rig->in, RIG_BYTES, 0));
	OK(rig->api->mem_host_alloc((void **)&rig->out, RIG_BYTES, 0));
	memset(rig->in, 'i', RIG_BYTES);
	memset(rig->out, 'o', RIG_BYTES);
}

/* Closes everything, and asserts that the test has left no other object open. */
static inline void rig_close(struct rig *rig)
{
	OK(rig->api->stream_destroy(rig->a));
	OK(rig->api->stream_destroy(rig->b));
	fake_cuda_run();
	OK(rig->api->mem_free(rig->x));
	OK(rig->api->mem_free(rig->y));
	OK(rig->api->mem_free_host(rig->in));
	OK(rig->api->mem_free_host(rig->out));
	OK(rig->api->ctx_pop_current(NULL));
	OK(rig->api->primary_ctx_release(0));
	fake_cuda_reset(NULL);
}

/* Waits for stream `a`; true if every byte of `out` has this value. */
static inline bool rig_out_is(struct rig *rig, unsigned char value)
{
	OK(rig->api->stream_synchronize(rig->a));
	for (unsigned i = 0; i < RIG_BYTES; i++) {
		if (rig->out[i] != value)
			return false;
	}
	return true;
}

#endif
