/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device that is computed on: its primary context, the host memory that is
 * page-locked for its copies, and the line to the last failure, which always names the
 * device. Used by one thread at a time.
 */
#ifndef TERN_BASE_CUDA_CONTEXT_H
#define TERN_BASE_CUDA_CONTEXT_H

#include "base/cuda_devices.h"

struct tern_cuda_pin {
	void *base;
	uint64_t bytes;
	bool ours;  /* else somebody else's in this process, or refused */
	int status; /* why it was refused; 0: it is page-locked */
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
 * Is there a device `ordinal` that our kernels run on? -ENODEV: there is none; -ENOEXEC:
 * it is too old, or the driver is; else what the driver says. `why` (of `bytes` bytes)
 * has the line: "cuda:2 is not there: ...". Needs no context.
 */
int tern_cuda_check_device(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_cuda_device *out, char *why, size_t bytes);

/* Checks the device and retains its context. On failure c->error has the line, and there
 * is nothing to close. */
int tern_cuda_context_open(
	struct tern_cuda_context *c, const struct tern_cuda_api *api, unsigned ordinal);
/* Unpins what is pinned. Twice is harmless. */
void tern_cuda_context_close(struct tern_cuda_context *c);

/* Makes it this thread's until tern_cuda_context_leave(). */
int tern_cuda_context_enter(struct tern_cuda_context *c);
void tern_cuda_context_leave(struct tern_cuda_context *c);

/* 0, or the status of a driver's call that was to do `what`, with the line in c->error.
 */
int tern_cuda_check(struct tern_cuda_context *c, CUresult result, const char *what);

/* -ENOMEM: the line says how much was wanted for `what` and how much is free. Entered. */
int tern_cuda_context_alloc(
	struct tern_cuda_context *c, CUdeviceptr *out, uint64_t bytes, const char *what);
/* ": 12.0 MiB of 1.0 GiB are free", for lines about memory. Entered. */
void tern_cuda_context_free_text(struct tern_cuda_context *c, char *out, size_t bytes);

/*
 * Page-locks host memory (whole mappings) until it is unpinned with all others. Refused
 * (RLIMIT_MEMLOCK, memory that the driver cannot take): a status and the line;
 * -ENOTRECOVERABLE as ever. The same memory again gets the same status, and the driver is
 * not asked. Entered.
 */
int tern_cuda_context_pin(struct tern_cuda_context *c, void *base, uint64_t bytes);
void tern_cuda_context_unpin(struct tern_cuda_context *c);

#endif
