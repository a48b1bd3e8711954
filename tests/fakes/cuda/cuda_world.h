/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of the simulated driver share. All state is in one struct
 * (the world) with one lock. Every function of the driver's table takes the lock first
 * (FAKE_ENTER), except for those that describe an error; the functions declared in this
 * file expect that it is held.
 *
 *     fake.c     the world, the table, faults, the count of open objects
 *     device.c   devices and contexts
 *     memory.c   memory of devices, page-locked memory
 *     share.c    memory for network cards and other processes
 *     stream.c   streams and events: they decide when work is done
 *     work.c     the kinds of work (copies, memsets, host functions), and their execution
 *     kernel.c   modules, functions, launches
 *     graph.c    capture and graphs
 */
#ifndef TERN_TESTS_FAKES_CUDA_CUDA_WORLD_H
#define TERN_TESTS_FAKES_CUDA_CUDA_WORLD_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/rng.h"
#include "tests/fakes/cuda/fake_cuda.h"

/* A device with its primary context. */
struct fake_device {
	int index;
	uint64_t used_bytes, peak_bytes;
	unsigned retain_count;
	unsigned flags;
	/* error that every call in the corrupted context returns; CUDA_SUCCESS: it is
	 * usable */
	CUresult sticky;
};

enum fake_mem_kind {
	FAKE_MEM_DEVICE,
	/* Device memory of another process (with opts.ipc_self also of this one), which
	 * this process has opened through an IPC handle. */
	FAKE_MEM_OPENED,
	FAKE_MEM_HOST,
	FAKE_MEM_REGISTERED,
	FAKE_MEM_KINDS
};

struct fake_mem {
	struct tern_list node;
	enum fake_mem_kind kind;
	struct fake_device *device;
	char *base;
	size_t bytes;
	/* Mapping of the memory plus a guard page at its end that is never accessible;
	 * NULL: host memory. */
	char *map;
	size_t map_bytes;
	/* Second mapping of the same device memory. The host can access it at any time;
	 * the driver's own copies use it. */
	char *view;
	int fd;              /* file that the memory is a mapping of; -1: none */
	unsigned open_count; /* for FAKE_MEM_OPENED: how often the user has opened it */
	/* For FAKE_MEM_OPENED: the process that has allocated the memory, the address of
	 * the memory in that process, and the inode of the file that is mapped. */
	ino_t inode;
	pid_t owner;
	uint64_t owner_at;
	uint64_t id;
	bool sync_memops;
	bool pooled; /* allocated from a memory pool, as by cuMemAllocAsync() */
};

/* State of an event that several processes use, in memory that they share: how often the
 * event was recorded, and the number of the last record that is done. */
struct fake_shared_page {
	_Atomic uint64_t recorded, done;
};

struct fake_shared {
	unsigned ref_count;
	int fd;
	struct fake_shared_page *page;
};

/* A mark: the place in a stream at which an event was recorded. */
struct fake_mark {
	unsigned ref_count;
	/* The work before the mark is done; see is_done() in stream.c. */
	bool done;
	/* NULL: the event is not shared with another process. */
	struct fake_shared *shared;
	/* For a shared event: number of this record, counted from 1 over all processes.
	 * If another process made the record, `stream` is NULL. */
	uint64_t number;
	uint64_t step; /* value of fake_world.step when the record was done */
	struct fake_stream *stream;
	/* If the record was captured into a graph: that graph, and the nodes that come
	 * before the record. */
	struct fake_graph *capture;
	unsigned *tail, tail_count;
};

struct fake_event {
	struct tern_list node;
	struct fake_device *device;
	unsigned flags;
	struct fake_mark *mark; /* mark of the last record; NULL: never recorded */
	struct fake_shared *shared;
};

enum fake_op_kind {
	FAKE_OP_COPY,
	FAKE_OP_SET,
	FAKE_OP_KERNEL,
	FAKE_OP_HOST,
	FAKE_OP_RECORD,
	FAKE_OP_WAIT,
	FAKE_OP_GRAPH
};

struct fake_op {
	struct tern_list node;
	enum fake_op_kind kind;
	/* For the kinds COPY and SET: */
	char *to;
	/* Source; it points to `owned` if the caller's memory is not page-locked. */
	const char *from;
	size_t bytes;
	uint32_t value;
	unsigned unit; /* bytes of the value that SET repeats */
	/* For the kind KERNEL: */
	const struct fake_kernel *kernel;
	struct fake_cuda_launch launch;
	void *params[FAKE_CUDA_MAX_PARAMS]; /* copies of the parameters, in `owned` */
	/* For the kind HOST (call of a host function): */
	CUhostFn host;
	void *arg;
	/* For the kinds RECORD and WAIT (of an event): */
	struct fake_mark *mark;
	/* A RECORD in a graph: it gets its mark when the graph is launched. */
	CUevent event;
	/* For the kind GRAPH (launch of a graph): */
	struct fake_run *run;
	void *owned;
};

struct fake_stream {
	struct tern_list node;
	struct fake_device *device;
	struct tern_list ops;
	unsigned flags;
	int priority;
	/* Destroyed by the user; it is freed when its queued work is done. */
	bool destroyed;
	/* While the stream is captured: the graph, and the nodes that come before the
	 * next node. */
	struct fake_graph *capture;
	unsigned *tail, tail_count;
};

struct fake_kernel {
	struct tern_list node;
	char name[128];
	void (*run)(const struct fake_cuda_launch *launch);
	unsigned param_count;
	size_t param_bytes[FAKE_CUDA_MAX_PARAMS];
};

struct fake_module {
	struct tern_list node;
	struct fake_device *device;
	struct tern_list functions;
};

struct fake_function {
	struct tern_list node;
	struct fake_module *module;
	const struct fake_kernel *kernel;
	int shared_max_bytes;
};

struct fake_node {
	struct fake_op *op;
	unsigned *before, before_count;
};

/* A captured graph, shared by the executable graphs that are made from it. */
struct fake_graph {
	unsigned ref_count;
	/* Stream with which the capture began; NULL: the capture has ended, or this
	 * stream was destroyed. */
	struct fake_stream *origin;
	CUstreamCaptureMode mode;
	pthread_t thread;
	/* The capture failed: a function was called that a capture forbids. */
	bool invalid;
	struct fake_node *nodes;
	unsigned node_count;
};

/* One launch of a graph. */
struct fake_run {
	struct fake_graph *graph;
	bool *done;               /* for each node: was it executed? */
	struct fake_mark **marks; /* for each node that records an event: its mark */
	unsigned left;            /* nodes that are not executed yet */
};

struct fake_graph_handle {
	struct tern_list node;
	struct fake_graph *graph;
	struct fake_device *device; /* device of an executable graph; NULL: a graph */
};

struct fake_world {
	pthread_mutex_t lock;
	bool ready;
	struct fake_cuda_opts opts;
	struct tern_cuda_api api;
	struct tern_rng rng;
	uint64_t step; /* pieces of work done since the reset */
	bool inited;   /* cuInit was called */
	bool held;
	/* Device memory is accessible to the host until the lock is released. */
	bool unguarded_now;
	uint64_t next_mem_id;
	/* Address of the last freed memory: the next allocation gets it again, as real
	 * drivers do. */
	void *freed_at;
	unsigned pageable_copy_count;
	struct fake_device devices[FAKE_CUDA_MAX_DEVICES];
	struct tern_list mems, streams, events, kernels, modules, graphs, graph_execs;
};

extern struct fake_world fake_world;

#define FAKE_LOCK()                                                                      \
	TERN_CLEANUP(fake_world_leave) struct fake_world *entered_ = fake_world_enter(); \
	(void)entered_
/* For the start of a function of the driver's table: takes the lock and counts the call
 * of `name`. If a test has injected an error for this call, the function returns it. */
#define FAKE_ENTER(name)                                                                 \
	FAKE_LOCK();                                                                     \
	CUresult fault_ = fake_asked_fault(name);                                        \
	if (fault_)                                                                      \
	return fault_
/* FAKE_ENTER for functions that need a usable CUDA context. It declares `device`, the
 * device of the calling thread's context; without such a context the function returns an
 * error. */
#define FAKE_ENTER_CTX(name)                                                             \
	FAKE_ENTER(name);                                                                \
	struct fake_device *device = NULL;                                               \
	CUresult current_ = fake_current(&device);                                       \
	if (current_)                                                                    \
	return current_
/* FAKE_ENTER_CTX for functions that may wait for the device: if a stream capture forbids
 * such calls, the function returns an error. */
#define FAKE_ENTER_UNSAFE(name)                                                          \
	FAKE_ENTER_CTX(name);                                                            \
	CUresult capture_ = fake_capture_forbids();                                      \
	if (capture_)                                                                    \
	return capture_

/* Defined in fake.c: */
struct fake_world *fake_world_enter(void);
/* Releases the lock for a short time, so that other threads can run. Any state may have
 * changed afterwards. */
void fake_rest(void);
void fake_worker_need(void); /* starts the worker thread if opts.background is set */
void fake_worker_call(void); /* wakes the worker thread */
void fake_world_leave(struct fake_world **world);
CUresult fake_asked_fault(const char *function);
/* Result that a test has injected for this execution of the kernel; call it once for each
 * execution. */
CUresult fake_kernel_fault(const char *kernel);
void fake_host_function(CUhostFn host, void *arg);

/* Defined in device.c: */
void fake_gpus_open(void);
void fake_device_entries(struct tern_cuda_api *api);
/* Sets *out to the device of the calling thread's context. Fails if the thread has no
 * context, or the context was destroyed or is corrupted. */
CUresult fake_current(struct fake_device **out);
void fake_device_spoil(struct fake_device *device, CUresult result);
void fake_contexts_forget(void); /* drops the contexts of the calling thread */

/* Defined in memory.c: */
void fake_memory_entries(struct tern_cuda_api *api);
/* Finds memory of one of these kinds (bits 1 << kind) that contains the whole range;
 * NULL: there is none. */
struct fake_mem *fake_mem_find(const void *at, size_t bytes, unsigned kinds);
/* Maps the file `fd` as device memory of `bytes` bytes, at the address `hint` if that
 * range is free. */
struct fake_mem *fake_mem_map(
	int fd, size_t bytes, struct fake_device *device, void *hint);
void fake_mem_free(struct fake_mem *mem);
void fake_mems_drop(struct fake_device *device);
void fake_guard(bool closed);
/* Address at which the driver itself may access the bytes at `at`: for device memory,
 * their address in the second mapping (mem->view); for host memory, `at`. */
void *fake_view(const void *at, size_t bytes);
#define FAKE_ON_DEVICE (1u << FAKE_MEM_DEVICE | 1u << FAKE_MEM_OPENED)
#define FAKE_LOCKED    (1u << FAKE_MEM_HOST | 1u << FAKE_MEM_REGISTERED)

/* Defined in share.c: */
void fake_share_entries(struct tern_cuda_api *api);
struct fake_shared *fake_shared_new(int fd); /* fd -1: creates a new one */
struct fake_shared *fake_shared_get(struct fake_shared *shared);
void fake_shared_put(struct fake_shared *shared);

/* Defined in stream.c: */
void fake_stream_entries(struct tern_cuda_api *api);
struct fake_stream *fake_stream_of(CUstream handle);
/* Takes ownership of `op`: queues it in the stream, or adds it to the graph if the stream
 * is being captured. */
void fake_stream_put(struct fake_stream *stream, struct fake_op *op);
/* Does the stream's work until none is left. */
void fake_stream_run(struct fake_stream *stream);
bool fake_streams_step(void);
void fake_streams_early(void);
/* Does the work of all streams of the device; NULL: of all devices. */
void fake_streams_run(struct fake_device *device);
void fake_streams_drop(struct fake_device *device);
bool fake_streams_touch(const struct fake_mem *mem);
unsigned fake_streams_queued(void);
struct fake_event *fake_event_of(CUevent handle);
struct fake_event *fake_cuevent_new(struct fake_device *device, unsigned flags);
void fake_event_free(struct fake_event *event);
void fake_mark_put(struct fake_mark *mark);
struct fake_mark *fake_mark_get(struct fake_mark *mark);
/* Records the event: from now on, calls that wait for the event wait for the returned
 * mark. The caller completes the mark with fake_mark_done(). */
struct fake_mark *fake_event_mark(CUevent event, struct fake_stream *stream);
void fake_mark_done(struct fake_mark *mark);

/* Defined in work.c: */
void fake_work_entries(struct tern_cuda_api *api);
struct fake_op *fake_op_new(enum fake_op_kind kind);
void fake_op_free(struct fake_op *op);
/* Does an op of the kind COPY, SET, KERNEL or HOST, or one node of a GRAPH. */
CUresult fake_op_do(struct fake_op *op);
bool fake_op_touches(const struct fake_op *op, const struct fake_mem *mem);

/* Defined in kernel.c: */
void fake_kernel_entries(struct tern_cuda_api *api);
void fake_kernels_forget(void);
void fake_modules_drop(struct fake_device *device);

/* Defined in graph.c: */
void fake_graph_entries(struct tern_cuda_api *api);
CUresult fake_capture_forbids(void);
void fake_capture_spoil(struct fake_graph *capture);
void fake_capture_add(struct fake_stream *stream, struct fake_op *op);
void fake_capture_join(struct fake_stream *stream, const struct fake_mark *mark);
void fake_capture_leave(struct fake_stream *stream);
struct fake_graph *fake_graph_get(struct fake_graph *graph);
void fake_graph_put(struct fake_graph *graph);
/* Prepares a launch of the graph in the stream. If fake_run_free() frees the launch
 * before its end, the events that its remaining nodes would record count as done, so that
 * nothing waits for them. */
struct fake_run *fake_run_new(struct fake_graph *graph, struct fake_stream *stream);
void fake_run_free(struct fake_run *run);
/* Executes one of the nodes that are left, if there is one. */
CUresult fake_run_step(struct fake_run *run);
bool fake_graph_touches(const struct fake_graph *graph, const struct fake_mem *mem);
void fake_graph_execs_drop(struct fake_device *device);

#endif
