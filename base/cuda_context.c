/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cuda_context.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

/* ---- checking the device ---- */

static int refuse_code(const struct tern_cuda_api *api, unsigned ordinal,
	const struct tern_cuda_device *d, char *why, size_t bytes)
{
	int version = 0;

	if (d->code == TERN_CUDA_CODE_OLD_DEVICE) {
		snprintf(why, bytes,
			"cuda:%u (%s) has compute capability %d.%d; 8.0 or later is "
			"needed",
			ordinal, d->name, d->major, d->minor);
		return -ENOEXEC;
	}
	api->driver_get_version(&version);
	snprintf(why, bytes,
		"cuda:%u (%s): its driver is for CUDA %d.%d; the kernels need %d.%d or "
		"later",
		ordinal, d->name, version / 1000, version % 1000 / 10,
		CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
	return -ENOEXEC;
}

int tern_cuda_check_device(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_cuda_device *out, char *why, size_t bytes)
{
	char text[160];
	unsigned count;
	CUresult result = tern_cuda_device_count(api, &count);

	if (!result && ordinal >= count) {
		snprintf(why, bytes,
			"there is no cuda:%u: the driver has %u device%s, counted from "
			"0",
			ordinal, count, count == 1 ? "" : "s");
		return -ENODEV;
	}
	if (!result)
		result = tern_cuda_device_get(api, ordinal, out);
	if (result) {
		snprintf(why, bytes, "cuda:%u: %s", ordinal,
			tern_cuda_text(api, result, text, sizeof(text)));
		return tern_cuda_status(result);
	}
	if (out->code == TERN_CUDA_CODE_NATIVE || out->code == TERN_CUDA_CODE_PTX)
		return 0;
	return refuse_code(api, ordinal, out, why, bytes);
}

/* ---- the context ---- */

int tern_cuda_check_into(const struct tern_cuda_context *c, CUresult result,
	const char *what, char *error, size_t bytes)
{
	char text[160];

	if (result == CUDA_SUCCESS)
		return 0;
	snprintf(error, bytes, "cuda:%u: %s: %s", c->ordinal, what,
		tern_cuda_text(c->api, result, text, sizeof(text)));
	return tern_cuda_status(result);
}

int tern_cuda_check(struct tern_cuda_context *c, CUresult result, const char *what)
{
	return tern_cuda_check_into(c, result, what, c->error, sizeof(c->error));
}

int tern_cuda_context_open(
	struct tern_cuda_context *c, const struct tern_cuda_api *api, unsigned ordinal)
{
	int r;

	*c = (struct tern_cuda_context){.api = api, .ordinal = ordinal};
	r = tern_cuda_check_device(api, ordinal, &c->device, c->error, sizeof(c->error));
	if (r == 0)
		r = tern_cuda_check(c,
			api->primary_ctx_retain(&c->handle, c->device.handle),
			"making a context");
	if (r < 0)
		c->handle = NULL;
	return r;
}

void tern_cuda_context_close(struct tern_cuda_context *c)
{
	if (!c->handle)
		return;
	if (tern_cuda_context_enter(c) == 0) {
		tern_cuda_context_unpin(c);
		tern_cuda_context_leave(c);
	}
	free(TERN_TAKE(c->pins));
	c->pin_count = 0;
	c->handle = NULL;
	c->api->primary_ctx_release(c->device.handle);
}

int tern_cuda_context_enter(struct tern_cuda_context *c)
{
	return tern_cuda_check(
		c, c->api->ctx_push_current(c->handle), "entering the context");
}

void tern_cuda_context_leave(struct tern_cuda_context *c)
{
	c->api->ctx_pop_current(NULL);
}

/* Number of queries that tern_cuda_wait() makes before it sleeps: some 37 us on an H200,
 * where a query takes 0.58 us. A number, and not a time, so that tests with the simulated
 * driver make the same calls in each run. */
#define EVENT_QUERIES 64u

CUresult tern_cuda_wait(const struct tern_cuda_api *api, CUevent event)
{
	CUresult result = CUDA_ERROR_NOT_READY;

	for (unsigned i = 0; i < EVENT_QUERIES && result == CUDA_ERROR_NOT_READY; i++)
		result = api->event_query(event);
	return result == CUDA_ERROR_NOT_READY ? api->event_synchronize(event) : result;
}

/* ---- memory ---- */

static const char *size_text(uint64_t size, char *out, size_t bytes)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
	double value = (double)size / 1024;
	unsigned unit = 0;

	while (value >= 1024 && unit + 1 < TERN_ARRAY_SIZE(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(out, bytes, "%.1f %s", value, units[unit]);
	return out;
}

void tern_cuda_context_free_text(struct tern_cuda_context *c, char *out, size_t bytes)
{
	char free_text[32], total_text[32];
	size_t free_bytes, total_bytes;

	*out = '\0';
	if (c->api->mem_get_info(&free_bytes, &total_bytes) == CUDA_SUCCESS)
		snprintf(out, bytes, ": %s of %s are free",
			size_text(free_bytes, free_text, sizeof(free_text)),
			size_text(total_bytes, total_text, sizeof(total_text)));
}

int tern_cuda_context_alloc(
	struct tern_cuda_context *c, CUdeviceptr *out, uint64_t bytes, const char *what)
{
	CUresult result = c->api->mem_alloc(out, bytes);
	char wanted[32], left[96];

	if (result == CUDA_SUCCESS)
		return 0;
	*out = 0;
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return tern_cuda_check(c, result, what);
	tern_cuda_context_free_text(c, left, sizeof(left));
	snprintf(c->error, sizeof(c->error),
		"cuda:%u: out of device memory: %s needs %s%s", c->ordinal, what,
		size_text(bytes, wanted, sizeof(wanted)), left);
	return -ENOMEM;
}

/* Finds the earlier attempt to pin this range. A pinned range serves every part of
 * itself. A refused one is found only for exactly the same range, since the driver may
 * accept a part of it. */
static const struct tern_cuda_pin *find_pin(
	const struct tern_cuda_context *c, const char *base, uint64_t bytes)
{
	for (unsigned i = 0; i < c->pin_count; i++) {
		const struct tern_cuda_pin *pin = &c->pins[i];
		const char *pinned = pin->base;

		if (pin->status ? base == pinned && bytes == pin->bytes
				: base >= pinned && base + bytes <= pinned + pin->bytes)
			return pin;
	}
	return NULL;
}

/* True if the driver reports the byte as page-locked memory. */
static bool is_locked(const struct tern_cuda_context *c, const void *at)
{
	unsigned type = 0;

	return c->api->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		       (CUdeviceptr)(uintptr_t)at) == CUDA_SUCCESS &&
	       type == CU_MEMORYTYPE_HOST;
}

int tern_cuda_context_pin(struct tern_cuda_context *c, void *base, uint64_t bytes)
{
	const struct tern_cuda_pin *known = find_pin(c, base, bytes);
	struct tern_cuda_pin pin = {.base = base, .bytes = bytes};
	struct tern_cuda_pin *pins;
	CUresult result;

	if (known)
		return known->status;
	pins = reallocarray(c->pins, c->pin_count + 1u, sizeof(*pins));
	if (!pins) {
		snprintf(
			c->error, sizeof(c->error), "cuda:%u: out of memory", c->ordinal);
		return -ENOMEM;
	}
	c->pins = pins;
	result = c->api->mem_host_register(base, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	pin.ours = result == CUDA_SUCCESS;
	/* Another library of this process may have page-locked the memory already. That
	 * serves as well, if the first and the last byte of the range are locked. */
	if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED || !is_locked(c, base) ||
		!is_locked(c, (char *)base + bytes - 1))
		pin.status = tern_cuda_check(c, result, "page-locking memory for copies");
	c->pins[c->pin_count++] = pin;
	return pin.status;
}

void tern_cuda_context_unpin(struct tern_cuda_context *c)
{
	while (c->pin_count > 0) {
		const struct tern_cuda_pin *pin = &c->pins[--c->pin_count];

		if (pin->ours)
			c->api->mem_host_unregister(pin->base);
	}
}
