/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device that is used for computation: its primary context, the host memory that
 * is page-locked for its copies, and a line about the last failure, which always names
 * the device. Used by one thread at a time.
 */
#ifndef TERN_BASE_CUDA_CONTEXT_H
#define TERN_BASE_CUDA_CONTEXT_H

#include "base/cuda_devices.h"

struct tern_cuda_pin {
	void *base;
	uint64_t bytes;
	/* false: another library of this process has locked it, or it was refused. */
	bool ours;
	int status; /* 0: page-locked; else the error */
};

struct tern_cuda_context {
	const struct tern_cuda_api *api;
	unsigned ordinal;
	struct tern_cuda_device device;
	CUcontext handle; /* NULL: none */
	struct tern_cuda_pin *pins;
	unsigned pin_count;
	char error[400];
};

/*
 * Checks that our kernels run on device `ordinal`. -ENODEV: there is no such device;
 * -ENOEXEC: it or the driver is too old; other errors are the driver's. `why` (of `bytes`
 * bytes) gets a line about the failure: "cuda:2 is not there: ...". Needs no context.
 */
int tern_cuda_check_device(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_cuda_device *out, char *why, size_t bytes);

/* Checks the device and retains its context. On failure c->error has a line about it,
 * and nothing needs to be closed. */
int tern_cuda_context_open(
	struct tern_cuda_context *c, const struct tern_cuda_api *api, unsigned ordinal);
/* Releases the context and unpins all memory. A second call does nothing. */
void tern_cuda_context_close(struct tern_cuda_context *c);

/* Makes the context current on this thread, until tern_cuda_context_leave(). */
int tern_cuda_context_enter(struct tern_cuda_context *c);
void tern_cuda_context_leave(struct tern_cuda_context *c);

/* Converts the result of a driver call to a status. `what` names what the call was to
 * do, for the line in c->error. */
int tern_cuda_check(struct tern_cuda_context *c, CUresult result, const char *what);

/* Allocates device memory. -ENOMEM: the line says how much was wanted for `what`, and
 * how much is free. The context must be entered. */
int tern_cuda_context_alloc(
	struct tern_cuda_context *c, CUdeviceptr *out, uint64_t bytes, const char *what);
/* Text for lines about memory: ": 12.0 MiB of 1.0 GiB are free". The context must be
 * entered. */
void tern_cuda_context_free_text(struct tern_cuda_context *c, char *out, size_t bytes);

/*
 * Page-locks host memory (whole mappings) until tern_cuda_context_unpin(). If it is
 * refused (RLIMIT_MEMLOCK, memory that the driver cannot lock), returns a status and sets
 * the line; -ENOTRECOVERABLE as for every call. For the same memory again, the same
 * status is returned without asking the driver. The context must be entered.
 */
int tern_cuda_context_pin(struct tern_cuda_context *c, void *base, uint64_t bytes);
void tern_cuda_context_unpin(struct tern_cuda_context *c);

#endif
