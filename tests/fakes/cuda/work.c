/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of work of the simulated driver, and their execution. Address ranges are
 * checked when work is queued and again when it is executed: if memory was freed in
 * between, an assertion fails. Page-locked memory is read when the work is executed,
 * never when it is queued.
 */
#include "tests/fakes/cuda/cuda_world.h"

struct fake_op *fake_op_new(enum fake_op_kind kind)
{
	struct fake_op *op = calloc(1, sizeof(*op));

	tern_assert(op);
	tern_list_init(&op->node);
	op->kind = kind;
	return op;
}

void fake_op_free(struct fake_op *op)
{
	fake_mark_put(op->mark);
	fake_run_free(op->run);
	free(op->owned);
	free(op);
}

/* Asserts that work may access this memory: device memory, or page-locked memory. */
static void must_be_known(const void *at, size_t bytes)
{
	if (!fake_mem_find(at, bytes, FAKE_ON_DEVICE | FAKE_LOCKED))
		tern_never("fake cuda: a copy out of bounds, or of freed memory");
}

static void check_ranges(const struct fake_op *op)
{
	must_be_known(op->to, op->bytes);
	if (op->kind == FAKE_OP_COPY && op->from != op->owned)
		must_be_known(op->from, op->bytes);
}

static void set_values(const struct fake_op *op)
{
	char *to = fake_view(op->to, op->bytes);

	for (size_t i = 0; i < op->bytes; i += op->unit)
		memcpy(to + i, &op->value, op->unit);
}

CUresult fake_op_do(struct fake_op *op)
{
	CUresult result;

	switch (op->kind) {
	case FAKE_OP_COPY:
		check_ranges(op);
		memmove(fake_view(op->to, op->bytes), fake_view(op->from, op->bytes),
			op->bytes);
		break;
	case FAKE_OP_SET:
		check_ranges(op);
		set_values(op);
		break;
	case FAKE_OP_KERNEL:
		result = fake_kernel_fault(op->kernel->name);
		if (result)
			return result;
		fake_guard(false);
		op->kernel->run(&op->launch);
		break;
	case FAKE_OP_HOST:
		fake_host_function(op->host, op->arg);
		break;
	case FAKE_OP_GRAPH:
		return fake_run_step(op->run);
	case FAKE_OP_RECORD:
	case FAKE_OP_WAIT:
		tern_never("fake cuda: events are not executed as work");
	}
	return CUDA_SUCCESS;
}

static bool overlaps(const char *at, size_t bytes, const struct fake_mem *mem)
{
	uintptr_t a = (uintptr_t)at, base = (uintptr_t)mem->base;

	return a < base + mem->bytes && base < a + bytes;
}

bool fake_op_touches(const struct fake_op *op, const struct fake_mem *mem)
{
	switch (op->kind) {
	case FAKE_OP_COPY:
		return overlaps(op->to, op->bytes, mem) ||
		       overlaps(op->from, op->bytes, mem);
	case FAKE_OP_SET:
		return overlaps(op->to, op->bytes, mem);
	case FAKE_OP_GRAPH:
		return fake_graph_touches(op->run->graph, mem);
	/* Which memory a kernel or a host function accesses is not known, so freeing that
	 * memory is not noticed. */
	case FAKE_OP_KERNEL:
	case FAKE_OP_HOST:
	case FAKE_OP_RECORD:
	case FAKE_OP_WAIT:
		break;
	}
	return false;
}

/* ---- copies ---- */

static void must_be_on_device(const void *at, size_t bytes)
{
	if (!fake_mem_find(at, bytes, FAKE_ON_DEVICE))
		tern_never("fake cuda: a copy out of bounds, or not of device memory");
}

/* True if the range is page-locked. Asserts that it does not begin in page-locked memory
 * and end beyond it, since the real driver may fail for such a range. */
static bool is_locked(const char *at, size_t bytes)
{
	bool first = fake_mem_find(at, 1, FAKE_LOCKED), all;

	all = first && fake_mem_find(at, bytes, FAKE_LOCKED);
	if (first != all)
		tern_never("fake cuda: a copy beyond the end of page-locked memory");
	if (fake_mem_find(at, 1, FAKE_ON_DEVICE))
		tern_never("fake cuda: device memory, but host memory is expected");
	return all;
}

static struct fake_op *copy_new(void *to, const void *from, size_t bytes)
{
	struct fake_op *op = fake_op_new(FAKE_OP_COPY);

	op->to = to;
	op->from = from;
	op->bytes = bytes;
	return op;
}

static CUresult copy_up(
	void *to, const void *from, size_t bytes, struct fake_stream *stream)
{
	struct fake_op *op;

	must_be_on_device(to, bytes);
	op = copy_new(to, from, bytes);
	if (!is_locked(from, bytes)) {
		fake_world.pageable_copy_count++;
		op->owned = malloc(bytes);
		tern_assert(op->owned);
		op->from = memcpy(op->owned, from, bytes);
	}
	fake_stream_put(stream, op);
	return CUDA_SUCCESS;
}

static CUresult copy_down(
	void *to, const void *from, size_t bytes, struct fake_stream *stream)
{
	must_be_on_device(from, bytes);
	if (is_locked(to, bytes)) {
		fake_stream_put(stream, copy_new(to, from, bytes));
		return CUDA_SUCCESS;
	}
	fake_world.pageable_copy_count++;
	if (stream->capture) {
		fake_capture_spoil(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	fake_stream_run(stream);
	if (stream->device->sticky)
		return stream->device->sticky;
	memcpy(to, fake_view((void *)(uintptr_t)from, bytes), bytes);
	return CUDA_SUCCESS;
}

static CUresult copy_across(
	void *to, const void *from, size_t bytes, struct fake_stream *stream)
{
	must_be_on_device(to, bytes);
	must_be_on_device(from, bytes);
	if ((char *)to < (const char *)from + bytes &&
		(const char *)from < (char *)to + bytes)
		tern_never("fake cuda: a copy onto itself");
	fake_stream_put(stream, copy_new(to, from, bytes));
	return CUDA_SUCCESS;
}

static CUresult memcpy_htod_async(
	CUdeviceptr to, const void *from, size_t bytes, CUstream handle)
{
	FAKE_ENTER_CTX("memcpy_htod_async");
	(void)device;
	return bytes ? copy_up((void *)(uintptr_t)to, from, bytes, fake_stream_of(handle))
		     : CUDA_SUCCESS;
}

static CUresult memcpy_dtoh_async(
	void *to, CUdeviceptr from, size_t bytes, CUstream handle)
{
	FAKE_ENTER_CTX("memcpy_dtoh_async");
	(void)device;
	return bytes ? copy_down(
			       to, (void *)(uintptr_t)from, bytes, fake_stream_of(handle))
		     : CUDA_SUCCESS;
}

static CUresult memcpy_dtod_async(
	CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
	FAKE_ENTER_CTX("memcpy_dtod_async");
	(void)device;
	return bytes ? copy_across((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes,
			       fake_stream_of(handle))
		     : CUDA_SUCCESS;
}

/* Unified addressing: the addresses tell which memory is the device's. A copy between two
 * places of the host is not expected. */
static CUresult memcpy_async(
	CUdeviceptr to_address, CUdeviceptr from_address, size_t bytes, CUstream handle)
{
	FAKE_ENTER_CTX("memcpy_async");
	void *to = (void *)(uintptr_t)to_address, *from = (void *)(uintptr_t)from_address;
	struct fake_stream *stream = fake_stream_of(handle);
	(void)device;
	if (bytes == 0)
		return CUDA_SUCCESS;
	if (!fake_mem_find(to, 1, FAKE_ON_DEVICE))
		return copy_down(to, from, bytes, stream);
	if (!fake_mem_find(from, 1, FAKE_ON_DEVICE))
		return copy_up(to, from, bytes, stream);
	return copy_across(to, from, bytes, stream);
}

/* ---- values ---- */

static CUresult put_set(CUdeviceptr to, uint32_t value, unsigned unit, size_t count,
	struct fake_stream *stream)
{
	struct fake_op *op;

	if (to % unit || count > SIZE_MAX / unit)
		return CUDA_ERROR_INVALID_VALUE;
	if (count == 0)
		return CUDA_SUCCESS;
	must_be_on_device((void *)(uintptr_t)to, count * unit);
	op = fake_op_new(FAKE_OP_SET);
	op->to = (void *)(uintptr_t)to;
	op->bytes = count * unit;
	op->value = value;
	op->unit = unit;
	fake_stream_put(stream, op);
	return CUDA_SUCCESS;
}

static CUresult memset_d8_async(
	CUdeviceptr to, unsigned char value, size_t count, CUstream handle)
{
	FAKE_ENTER_CTX("memset_d8_async");
	(void)device;
	return put_set(to, value, 1, count, fake_stream_of(handle));
}

static CUresult memset_d32_async(
	CUdeviceptr to, unsigned value, size_t count, CUstream handle)
{
	FAKE_ENTER_CTX("memset_d32_async");
	(void)device;
	return put_set(to, value, 4, count, fake_stream_of(handle));
}

static CUresult launch_host_func(CUstream handle, CUhostFn host, void *arg)
{
	FAKE_ENTER_CTX("launch_host_func");
	struct fake_op *op = fake_op_new(FAKE_OP_HOST);
	(void)device;
	op->host = host;
	op->arg = arg;
	fake_stream_put(fake_stream_of(handle), op);
	return CUDA_SUCCESS;
}

void fake_work_entries(struct tern_cuda_api *api)
{
	api->memcpy_htod_async = memcpy_htod_async;
	api->memcpy_dtoh_async = memcpy_dtoh_async;
	api->memcpy_async = memcpy_async;
	api->memcpy_dtod_async = memcpy_dtod_async;
	api->memset_d8_async = memset_d8_async;
	api->memset_d32_async = memset_d32_async;
	api->launch_host_func = launch_host_func;
}
