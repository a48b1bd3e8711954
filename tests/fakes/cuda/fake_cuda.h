/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated machine with GPUs: the CUDA driver behind `struct tern_cuda_api`, in this
 * process, without a driver or a device.
 *
 * Device memory is host memory that is accessible only during work on the device: host
 * code that touches it dies at once (unless opts.unguarded is set). New memory has random
 * contents. A stream is a queue, and its work happens as late as CUDA allows: when a call
 * waits for it, when other work that is waited for needs it, or one piece per query. So
 * code that reads without waiting sees old bytes, and work of two streams without an
 * event between them happens in the wrong order. opts.early_percent makes some work
 * happen early; with one thread a seed reproduces a run.
 *
 * The simulated driver returns the errors that the real driver returns. Where the real
 * one would corrupt memory, this one asserts: copies out of bounds, freeing memory that
 * queued work will access, stale handles, the default stream, and calls of the driver
 * from a host function.
 *
 * A process that waits for an event of another process continues when that process works,
 * so the other process should have opts.background. Not simulated: permission to access
 * the memory of another device.
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
	unsigned device_count; /* 0: init returns CUDA_ERROR_NO_DEVICE */
	int driver_version;    /* as cuDriverGetVersion counts */
	int major, minor;      /* compute capability */
	/* -1: the driver does not know it; device i is on node numa_node + i. */
	int numa_node;
	int copy_engines;
	int compute_mode; /* CUcomputemode; prohibited: no context can be made */
	int rdma_flush;   /* CUflushGPUDirectRDMAWritesOptions */
	int rdma_order;   /* CUGPUDirectRDMAWritesOrdering */
	bool dma_buf, rdma, vmm, ipc, map_host;
	bool old_driver;    /* optional functions are NULL, newer attributes unknown */
	uint64_t mem_bytes; /* memory of a device; beyond it CUDA_ERROR_OUT_OF_MEMORY */
	uint64_t host_limit_bytes; /* limit of page-locked memory; 0: none */
	bool unguarded;            /* device memory is accessible to the host, too */
	bool ipc_self;             /* handles may be opened in their own process */
	/* External events of a graph are recorded when its execution gets there, not
	 * at the launch: until then they keep their old state. */
	bool late_records;

	uint64_t seed;
	/* In each call, the percentage of streams that do a piece of work. */
	unsigned early_percent;
	/* A thread does a piece of work from time to time, for whole programs, which
	 * may sleep until a host function wakes them. It starts with the first stream:
	 * fork before that. */
	bool background;
};

/* One device of capability 9.0 with 1 GiB, and everything that Tern uses: a test
 * changes what it is about. */
struct fake_cuda_opts fake_cuda_defaults(void);

/* The table of functions, as the last reset has set it. */
const struct tern_cuda_api *fake_cuda_api(void);

/* Makes a new machine. Asserts that nothing of the old one is open (and prints what
 * is), and removes all faults and kernels. NULL: the defaults, which also hold before
 * the first call. The calling thread has no context afterwards; other threads must not
 * have one before. */
void fake_cuda_reset(const struct fake_cuda_opts *opts);

/* Numbers of open objects. */
struct fake_cuda_live {
	unsigned contexts; /* retains of primary contexts */
	unsigned device_mems, host_mems, registered_mems, opened_mems;
	unsigned streams, events, modules, graphs, graph_execs;
};
struct fake_cuda_live fake_cuda_live(void);

/* ---- kernels ---- */

struct fake_cuda_launch {
	unsigned grid[3], block[3];
	unsigned shared_bytes;
	void *const *params; /* values at the time of the launch */
};

/* Registers what cuModuleGetFunction finds under `name`, in any module: a function
 * that does the work of the whole grid. The sizes of its `param_count` parameters are
 * copied. */
void fake_cuda_kernel(const char *name,
	void (*run)(const struct fake_cuda_launch *launch), unsigned param_count,
	const size_t *param_bytes);

/* ---- time ---- */

/* Does one piece of work of any stream; false if there is none. */
bool fake_cuda_step(void);
/* Does all queued work. */
void fake_cuda_run(void);
/* While held, only work that a call waits for is done. */
void fake_cuda_hold(bool hold);
/* Number of pieces of work queued in all streams. */
unsigned fake_cuda_queued(void);

/* ---- faults; all of them end with the next reset ---- */

/* The nth call from now on (1: the next) of the table's `function` ("mem_alloc", as in
 * base/cuda_calls.h) returns `result` and does nothing. Up to 16 at a time. For sticky
 * errors use fake_cuda_break(). */
void fake_cuda_fail(const char *function, unsigned nth, CUresult result);
/* The nth execution from now on of `kernel` (NULL: any) corrupts its context with the
 * sticky error `result`; queued work is lost. Up to 16 at a time. */
void fake_cuda_break(const char *kernel, unsigned nth, CUresult result);

/* ---- what happened ---- */

/* Number of calls of the table's function since the reset. */
unsigned fake_cuda_calls(const char *function);
/* Number of asynchronous copies from or to host memory that is not page-locked: these
 * are slow, and not asynchronous. */
unsigned fake_cuda_pageable_copies(void);
/* Bytes allocated on a device now, and the largest number since the reset. */
uint64_t fake_cuda_used_bytes(unsigned device);
uint64_t fake_cuda_peak_bytes(unsigned device);

#endif
