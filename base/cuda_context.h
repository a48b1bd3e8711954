/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device that is used for computation: its primary context, the host memory that
 * is page-locked for copies, and a message about the last failure, which always names the
 * device. One thread at a time may change the structure. Several threads may be between
 * tern_cuda_context_enter() and tern_cuda_context_leave() at once, since entering makes
 * the context current only on the calling thread.
 */
#ifndef TERN_BASE_CUDA_CONTEXT_H
#define TERN_BASE_CUDA_CONTEXT_H

#include "base/clock.h"
#include "base/cuda_devices.h"

struct tern_cuda_pin {
	void *base;
	uint64_t bytes;
	/* True if Tern page-locked the memory, and so must unlock it; false if another
	 * library of this process had locked it, or the driver refused. */
	bool ours;
	int status; /* 0: the memory is page-locked; negative: the error */
};

struct tern_cuda_context {
	const struct tern_cuda_api *api;
	unsigned ordinal;
	struct tern_cuda_device device;
	CUcontext handle; /* NULL: the context is not open */
	struct tern_cuda_pin *pins;
	unsigned pin_count;
	char error[400];
};

/*
 * Checks that Tern's kernels run on device `ordinal`. -ENODEV: there is no such device;
 * -ENOEXEC: the device or the driver is too old; other errors are the driver's. On
 * failure `why` (of `bytes` bytes) gets a message, as "there is no cuda:2: ...". Needs no
 * context.
 */
int tern_cuda_check_device(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_cuda_device *out, char *why, size_t bytes);

/* Checks the device and retains its primary context. On failure c->error has a message,
 * and the caller need not close the context. */
int tern_cuda_context_open(
	struct tern_cuda_context *c, const struct tern_cuda_api *api, unsigned ordinal);
/* Unpins all memory and releases the context. A second call does nothing. */
void tern_cuda_context_close(struct tern_cuda_context *c);

/* Makes the context current on this thread, until tern_cuda_context_leave(). */
int tern_cuda_context_enter(struct tern_cuda_context *c);
void tern_cuda_context_leave(struct tern_cuda_context *c);

/* Converts the result of a driver call to a status. `what` says what the call was meant
 * to do, such as "making a context"; on failure it becomes part of the message in
 * c->error. */
int tern_cuda_check(struct tern_cuda_context *c, CUresult result, const char *what);
/* As tern_cuda_check(), but writes the message to `error` (of `bytes` bytes) and not to
 * c->error, so that several threads may call it at once. */
int tern_cuda_check_into(const struct tern_cuda_context *c, CUresult result,
	const char *what, char *error, size_t bytes);

/*
 * Time for which a thread polls for something that is about to happen before it sleeps.
 * It is about what sleeping and being woken costs, so polling at most doubles the cost of
 * a wait. On an H200 in a virtual machine, a thread that sleeps until an event (blocking
 * event) learns of the end of a copy later than one that polls: 11 us later for a copy of
 * 8 us, 55 us for one of 160 us, and 136 us for one of 1.2 ms.
 */
#define TERN_CUDA_POLL_NS (50 * TERN_NS_PER_US)

/* Waits until an event made with CU_EVENT_BLOCKING_SYNC is complete: polls it 64 times,
 * which takes about TERN_CUDA_POLL_NS or less, then sleeps. The context must be entered.
 * Several threads may wait at once. */
CUresult tern_cuda_wait(const struct tern_cuda_api *api, CUevent event);

/* Allocates device memory. -ENOMEM: the message in c->error says how much memory `what`
 * needs, and how much is free. The context must be entered. */
int tern_cuda_context_alloc(
	struct tern_cuda_context *c, CUdeviceptr *out, uint64_t bytes, const char *what);
/* Writes the end of a message about lack of memory, as ": 12.0 MiB of 1.0 GiB are free";
 * "" if the driver cannot tell. The context must be entered. */
void tern_cuda_context_free_text(struct tern_cuda_context *c, char *out, size_t bytes);

/*
 * Page-locks host memory (the range must be a whole mapping) until
 * tern_cuda_context_unpin(). If the driver refuses (RLIMIT_MEMLOCK, memory that it cannot
 * lock), returns the tern_cuda_status() of its error and writes a message into c->error;
 * -ENOMEM: also if malloc() fails. A second call for the same memory returns the same
 * status without asking the driver, and writes no message. The context must be entered.
 */
int tern_cuda_context_pin(struct tern_cuda_context *c, void *base, uint64_t bytes);
void tern_cuda_context_unpin(struct tern_cuda_context *c);

#endif
