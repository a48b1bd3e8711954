/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated machine with GPUs: the CUDA driver behind `struct tern_cuda_api`, in this
 * process, without a driver or a device.
 *
 * Device memory is host memory that is accessible only during work on the device: host
 * code that touches it crashes (unless opts.unguarded is set). New memory is filled with
 * a random byte (a large one only in part). A stream is a queue, and its work is done as
 * late as CUDA allows: when a call waits for it, or when other work that is waited for
 * depends on it. Besides, each query of a stream or event does one piece of work of some
 * stream. So code that reads without waiting gets old bytes, and work of two streams
 * without an event between them is done in the wrong order. opts.early_percent makes some
 * work happen early; in a program with one thread, the same seed gives the same order.
 *
 * The simulated driver returns the errors that the real driver returns. It asserts where
 * the real one could corrupt memory (copies out of bounds, freeing memory that a queued
 * copy or memset will access, stale handles), and where its user breaks a rule of CUDA or
 * of Tern (calls of the driver from a host function, use of the default stream).
 *
 * If a process waits for an event of another process, only the other process can do the
 * work before the event. So the other process should set opts.background. Not simulated:
 * permission to access the memory of another device.
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
	unsigned device_count; /* 0: cuInit() returns CUDA_ERROR_NO_DEVICE */
	/* As cuDriverGetVersion() returns it: 1000 * major + 10 * minor. */
	int driver_version;
	int major, minor; /* compute capability */
	/* NUMA node of device 0; device i is on node numa_node + i. -1: the driver does
	 * not know it. */
	int numa_node;
	int copy_engines;
	/* A CUcomputemode; with CU_COMPUTEMODE_PROHIBITED no context can be created. */
	int compute_mode;
	int rdma_flush; /* CUflushGPUDirectRDMAWritesOptions */
	int rdma_order; /* CUGPUDirectRDMAWritesOrdering */
	bool dma_buf, rdma, vmm, ipc, map_host;
	/* Functions that Tern treats as optional are NULL, and newer attributes
	 * unknown. */
	bool old_driver;
	/* Memory of each device; allocations beyond it return
	 * CUDA_ERROR_OUT_OF_MEMORY. */
	uint64_t mem_bytes;
	uint64_t host_limit_bytes; /* limit of page-locked memory; 0: none */
	bool unguarded;            /* the host can access device memory at any time */
	/* IPC handles may be opened in the process that made them. */
	bool ipc_self;
	/* A launched graph does not record its external events, so a call that waits for
	 * such an event does not wait for the launch, as with a driver that records the
	 * event only when the graph's execution reaches it. If false, the launch records
	 * these events. */
	bool late_records;

	uint64_t seed;
	/* Probability, in percent, with which each stream does a piece of work in each
	 * call of the driver, although nothing waits for it. */
	unsigned early_percent;
	/* A thread of the simulated driver does work from time to time. Whole programs
	 * need it, since they may sleep until a host function wakes them. The thread
	 * starts when the first stream is created; a program that forks must do so
	 * before. */
	bool background;
};

/* The default options: one device of compute capability 9.0 with 1 GiB and every feature
 * that Tern uses. A test changes the options that matter to it. */
struct fake_cuda_opts fake_cuda_defaults(void);

/* The driver's table of functions, with the options of the last reset. */
const struct tern_cuda_api *fake_cuda_api(void);

/* Replaces the machine by a new one with these options. Asserts that no object of the old
 * machine is open (and prints those that are), and removes all faults and registered
 * kernels. NULL: the default options, which also hold before the first call. Afterwards
 * the calling thread has no current context; other threads must not have one before the
 * call. */
void fake_cuda_reset(const struct fake_cuda_opts *opts);

/* Numbers of objects that are open. */
struct fake_cuda_live {
	unsigned contexts; /* primary contexts, each as often as it is retained */
	unsigned device_mems, host_mems, registered_mems, opened_mems;
	unsigned streams, events, modules, graphs, graph_execs;
};
struct fake_cuda_live fake_cuda_live(void);

/* ---- memory ---- */

/* Turns an allocation into one of a memory pool, as by cuMemAllocAsync(): it belongs to
 * no context, and cannot be shared with network cards or other processes. */
void fake_cuda_make_pooled(CUdeviceptr at);

/* ---- kernels ---- */

struct fake_cuda_launch {
	unsigned grid[3], block[3];
	unsigned shared_bytes;
	void *const *params; /* parameters: their values at the time of the launch */
};

/* Registers a kernel. cuModuleGetFunction() then finds `name` in every module. run() does
 * the work of the whole grid. `param_count` parameters are passed; their sizes are
 * copied. */
void fake_cuda_kernel(const char *name,
	void (*run)(const struct fake_cuda_launch *launch), unsigned param_count,
	const size_t *param_bytes);

/* ---- time ---- */

/* Does one piece of work of any stream; false if none is ready. */
bool fake_cuda_step(void);
/* Does all queued work. */
void fake_cuda_run(void);
/* While `hold` is set, the driver does only work that a call waits for. */
void fake_cuda_hold(bool hold);
/* Number of operations queued in all streams. The launch of a graph counts as one, though
 * each of its nodes is a piece of work. */
unsigned fake_cuda_queued(void);

/* ---- faults; all of them end with the next reset ---- */

/* Makes the nth call from now on (1: the next) of `function` return `result` and do
 * nothing. Functions are named as in base/cuda_calls.h ("mem_alloc"). Up to 16 such
 * faults at a time. For sticky errors use fake_cuda_break(). */
void fake_cuda_fail(const char *function, unsigned nth, CUresult result);
/* Makes the nth execution from now on of `kernel` (NULL: of any kernel) corrupt its
 * context with the sticky error `result`; queued work is lost. Up to 16 such faults at a
 * time. */
void fake_cuda_break(const char *kernel, unsigned nth, CUresult result);

/* ---- what happened ---- */

/* Number of calls of this function of the driver since the reset. */
unsigned fake_cuda_calls(const char *function);
/* Number of asynchronous copies from or to host memory that is not page-locked. The real
 * driver makes such copies slow and synchronous. */
unsigned fake_cuda_pageable_copies(void);
/* Bytes allocated on a device now, and the largest number of bytes since the reset. */
uint64_t fake_cuda_used_bytes(unsigned device);
uint64_t fake_cuda_peak_bytes(unsigned device);

#endif
