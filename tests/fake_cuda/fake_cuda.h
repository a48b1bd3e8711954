/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated machine with GPUs: the CUDA driver behind `struct tern_cuda_api`, in this
 * process, with no driver and no device.
 *
 * Device memory is host memory that is mapped for work on the device only: whoever
 * touches it from the host dies at once (unless opts.unguarded). New memory holds
 * rubbish. A stream is a queue, and its work happens as late as CUDA allows: when
 * somebody waits for it, when other work that is waited for needs it, or a piece per
 * query. So whoever reads without waiting sees old bytes, and work of two streams with no
 * event between them happens in the wrong order. opts.early_percent mixes in work that
 * happens early; with one thread a seed reproduces a run.
 *
 * What the driver may refuse is refused as it does. What would corrupt memory there
 * asserts here: copies out of bounds, freeing memory that queued work will touch, handles
 * that are gone, the default stream, and calls of the driver from a host function.
 *
 * A process that waits for another one's event goes on when that one works: it should
 * have opts.background. Not simulated: who may access another device's memory.
 *
 * Thread-safe, except for fake_cuda_reset().
 */
#ifndef TERN_TESTS_FAKE_CUDA_H
#define TERN_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cuda.h"

#define FAKE_CUDA_MAX_DEVICES 8
#define FAKE_CUDA_MAX_PARAMS  16

struct fake_cuda_opts {
	bool alike;            /* all devices have the same name */
	unsigned device_count; /* 0: init says CUDA_ERROR_NO_DEVICE */
	int driver_version;    /* as cuDriverGetVersion counts */
	int major, minor;      /* compute capability */
	int numa_node;         /* -1: the driver does not know; device i is on node + i */
	int copy_engines;
	int compute_mode; /* CUcomputemode; prohibited: no context can be had */
	int rdma_flush;   /* CUflushGPUDirectRDMAWritesOptions */
	int rdma_order;   /* CUGPUDirectRDMAWritesOrdering */
	bool dma_buf, rdma, vmm, ipc, map_host;
	bool old_driver;    /* optional entries are NULL, newer attributes unknown */
	uint64_t mem_bytes; /* of a device: beyond it CUDA_ERROR_OUT_OF_MEMORY */
	uint64_t host_limit_bytes; /* page-locked; 0: none */
	bool unguarded;            /* device memory is open to the host, too */
	bool ipc_self;             /* handles may be opened in their own process */
	bool late_records;         /* external events of a graph are recorded when it gets
				      there, instead of when it is launched: until then
				      they are as they were before */

	uint64_t seed;
	unsigned early_percent; /* in each call, each stream does a piece of its work */
	bool background; /* a thread does a piece from time to time: for whole programs,
			    which may sleep until a host function wakes them. From
			    the first stream on; fork before that */
};

/* One device of capability 9.0 with 1 GiB, and all that Tern looks for: change what the
 * test is about. */
struct fake_cuda_opts fake_cuda_defaults(void);

/* The table, as of the last reset. */
const struct tern_cuda_api *fake_cuda_api(void);

/* A new machine. Asserts that nothing of the old one is open (and prints what is), and
 * withdraws all faults and kernels. NULL: the defaults, which also hold before the first
 * call. The calling thread has no context afterwards; others must not have one before. */
void fake_cuda_reset(const struct fake_cuda_opts *opts);

/* What is open now. */
struct fake_cuda_live {
	unsigned contexts; /* retains of primary ones */
	unsigned device_mems, host_mems, registered_mems, opened_mems;
	unsigned streams, events, modules, graphs, graph_execs;
};
struct fake_cuda_live fake_cuda_live(void);

/* ---- kernels ---- */

struct fake_cuda_launch {
	unsigned grid[3], block[3];
	unsigned shared_bytes;
	void *const *params; /* as they were at the launch */
};

/* What cuModuleGetFunction finds under `name`, in any module: a function that does the
 * work of the whole grid. The sizes of its `param_count` parameters are copied. */
void fake_cuda_kernel(const char *name,
	void (*run)(const struct fake_cuda_launch *launch), unsigned param_count,
	const size_t *param_bytes);

/* ---- time ---- */

/* One piece of work of any stream that has some; whether there was one. */
bool fake_cuda_step(void);
/* All that is queued. */
void fake_cuda_run(void);
/* Nothing happens that nobody waits for, until it is called with false. */
void fake_cuda_hold(bool hold);
/* Pieces of work that are queued in all streams. */
unsigned fake_cuda_queued(void);

/* ---- what goes wrong; all of it ends with the next reset, too ---- */

/* The nth call from now on (1: the next) of the table's `function` ("mem_alloc", as in
 * base/cuda_calls.h) gives `result` and does nothing. Up to 16 at a time. Sticky errors
 * are for fake_cuda_break. */
void fake_cuda_fail(const char *function, unsigned nth, CUresult result);
/* The nth launch from now on that is executed of `kernel` (NULL: any) spoils its context
 * with the sticky error `result`; queued work is lost. Up to 16 at a time. */
void fake_cuda_break(const char *kernel, unsigned nth, CUresult result);

/* ---- what happened ---- */

/* How often the table's function was called since the reset. */
unsigned fake_cuda_calls(const char *function);
/* Asynchronous copies from or to host memory that is not page-locked: they are slow, and
 * not asynchronous. */
unsigned fake_cuda_pageable_copies(void);
/* Allocated on a device now, and at most since the reset. */
uint64_t fake_cuda_used_bytes(unsigned device);
uint64_t fake_cuda_peak_bytes(unsigned device);

#endif
