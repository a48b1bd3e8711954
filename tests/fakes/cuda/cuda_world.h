/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of the simulated driver share. There is one world with one
 * lock: every function of the table takes it first (FAKE_ENTER), and everything below
 * expects it to be held.
 *
 *     fake.c     the world, the table, faults, the count of open objects
 *     device.c   devices and contexts
 *     memory.c   memory of devices, page-locked memory
 *     share.c    memory for network cards and other processes
 *     stream.c   streams and events: when work happens
 *     work.c     copies, memsets, host functions: the kinds of work, and doing it
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
	CUresult sticky; /* CUDA_SUCCESS: the context is usable */
};

enum fake_mem_kind {
	FAKE_MEM_DEVICE,
	FAKE_MEM_OPENED, /* memory of another process, on a device */
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
	/* Pages, the last of which is never accessible; NULL: the user's memory. */
	char *map;
	size_t map_bytes;
	int fd;              /* file of the pages; -1: none */
	unsigned open_count; /* OPENED: number of opens */
	/* OPENED: identifies the memory in its own process. */
	ino_t inode;
	pid_t owner;
	uint64_t owner_at;
	uint64_t id;
	bool sync_memops;
};

/* State of an event between processes, shared by all of them: how often it was
 * recorded, and which record was done last. */
struct fake_shared_page {
	_Atomic uint64_t recorded, done;
};

struct fake_shared {
	unsigned ref_count;
	int fd;
	struct fake_shared_page *page;
};

/* A place in a stream at which an event was recorded. */
struct fake_mark {
	unsigned ref_count;
	bool done;                  /* use fake_mark_is_done() */
	struct fake_shared *shared; /* NULL: not between processes */
	/* Number of the record; records of other processes have no stream. */
	uint64_t number;
	uint64_t step; /* step at which it was done */
	struct fake_stream *stream;
	/* The record is part of a graph: it comes after these nodes. */
	struct fake_graph *capture;
	unsigned *tail, tail_count;
};

struct fake_event {
	struct tern_list node;
	struct fake_device *device;
	unsigned flags;
	struct fake_mark *mark; /* NULL: never recorded */
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
	/* For COPY and SET: */
	char *to;
	const char *from; /* `owned` if the source is not page-locked */
	size_t bytes;
	uint32_t value;
	unsigned unit; /* bytes of a value */
	/* For KERNEL: */
	const struct fake_kernel *kernel;
	struct fake_cuda_launch launch;
	void *params[FAKE_CUDA_MAX_PARAMS]; /* pointers into `owned` */
	/* For HOST: */
	CUhostFn host;
	void *arg;
	/* For RECORD and WAIT: */
	struct fake_mark *mark;
	CUevent event; /* RECORD in a graph, which has no mark */
	/* For GRAPH: */
	struct fake_run *run;
	void *owned;
};

struct fake_stream {
	struct tern_list node;
	struct fake_device *device;
	struct tern_list ops;
	unsigned flags;
	int priority;
	bool destroyed; /* freed when its work is done */
	/* While it is captured: the nodes after which the next one comes. */
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

/* A captured graph. It is shared with the executables made from it. */
struct fake_graph {
	unsigned ref_count;
	/* Stream of the capture; NULL: the capture has ended. */
	struct fake_stream *origin;
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool invalid; /* a forbidden function was called */
	struct fake_node *nodes;
	unsigned node_count;
};

/* A launch of a graph. */
struct fake_run {
	struct fake_graph *graph;
	bool *done;               /* by node */
	struct fake_mark **marks; /* by node: marks of nodes that record */
	unsigned left;            /* nodes that are not done */
};

struct fake_graph_handle {
	struct tern_list node;
	struct fake_graph *graph;
	struct fake_device *device; /* for an executable */
};

struct fake_world {
	pthread_mutex_t lock;
	bool ready;
	struct fake_cuda_opts opts;
	struct tern_cuda_api api;
	struct tern_rng rng;
	uint64_t step; /* number of pieces of work done */
	bool inited;   /* cuInit was called */
	bool held;
	bool unguarded_now; /* device memory is accessible until the lock is released */
	struct fake_pages {
		char *at; /* NULL: none */
		size_t bytes;
	} opened[2]; /* pages accessible for the present piece of work */
	uint64_t next_mem_id;
	void *freed_at; /* address that is allocated first again, as by real drivers */
	unsigned pageable_copy_count;
	struct fake_device devices[FAKE_CUDA_MAX_DEVICES];
	struct tern_list mems, streams, events, kernels, modules, graphs, graph_execs;
};

extern struct fake_world fake_world;

#define FAKE_LOCK()                                                                      \
	TERN_CLEANUP(fake_world_leave) struct fake_world *entered_ = fake_world_enter(); \
	(void)entered_
/* Takes the lock, counts the call, and returns the result that a test injects. */
#define FAKE_ENTER(name)                                                                 \
	FAKE_LOCK();                                                                     \
	CUresult fault_ = fake_asked_fault(name);                                        \
	if (fault_)                                                                      \
	return fault_
/* FAKE_ENTER for functions that need a usable context: sets `device`. */
#define FAKE_ENTER_CTX(name)                                                             \
	FAKE_ENTER(name);                                                                \
	struct fake_device *device = NULL;                                               \
	CUresult current_ = fake_current(&device);                                       \
	if (current_)                                                                    \
	return current_
/* FAKE_ENTER_CTX for functions that may wait for the device: fails if a capture
 * forbids that. */
#define FAKE_ENTER_UNSAFE(name)                                                          \
	FAKE_ENTER_CTX(name);                                                            \
	CUresult capture_ = fake_capture_forbids();                                      \
	if (capture_)                                                                    \
	return capture_

/* fake.c */
struct fake_world *fake_world_enter(void);
/* Waits a little without the lock, so that other threads may change anything. */
void fake_rest(void);
void fake_worker_need(void); /* with opts.background: starts the worker thread */
void fake_worker_call(void); /* wakes the worker thread */
void fake_world_leave(struct fake_world **world);
CUresult fake_asked_fault(const char *function);
CUresult fake_kernel_fault(const char *kernel); /* called once per execution */
void fake_host_function(CUhostFn host, void *arg);

/* device.c */
void fake_gpus_open(void);
void fake_device_entries(struct tern_cuda_api *api);
/* Device of the calling thread's context. An error if it has no context, or the
 * context was destroyed or is corrupted. */
CUresult fake_current(struct fake_device **out);
void fake_device_spoil(struct fake_device *device, CUresult result);
void fake_contexts_forget(void); /* drops the contexts of the calling thread */

/* memory.c */
void fake_memory_entries(struct tern_cuda_api *api);
/* Memory of these kinds (bits 1 << kind) that includes the whole range; NULL: none. */
struct fake_mem *fake_mem_find(const void *at, size_t bytes, unsigned kinds);
/* At the address `hint` if that is free. */
struct fake_mem *fake_mem_map(
	int fd, size_t bytes, struct fake_device *device, void *hint);
void fake_mem_free(struct fake_mem *mem);
void fake_mems_drop(struct fake_device *device);
void fake_guard(bool closed);
/* Makes the pages of a piece of work accessible, and closes those of the previous
 * piece. `to` or `from` may be NULL. */
void fake_guard_open(const void *to, const void *from, size_t bytes);
#define FAKE_ON_DEVICE (1u << FAKE_MEM_DEVICE | 1u << FAKE_MEM_OPENED)
#define FAKE_LOCKED    (1u << FAKE_MEM_HOST | 1u << FAKE_MEM_REGISTERED)

/* share.c */
void fake_share_entries(struct tern_cuda_api *api);
struct fake_shared *fake_shared_new(int fd); /* -1: makes a new one */
struct fake_shared *fake_shared_get(struct fake_shared *shared);
void fake_shared_put(struct fake_shared *shared);

/* stream.c */
void fake_stream_entries(struct tern_cuda_api *api);
struct fake_stream *fake_stream_of(CUstream handle);
/* Takes the op: queues it, or adds it to the graph that is being captured on the
 * stream. */
void fake_stream_put(struct fake_stream *stream, struct fake_op *op);
void fake_stream_run(struct fake_stream *stream); /* until nothing is left */
bool fake_streams_step(void);
void fake_streams_early(void);
void fake_streams_run(struct fake_device *device); /* NULL: those of all devices */
void fake_streams_drop(struct fake_device *device);
bool fake_streams_touch(const struct fake_mem *mem);
unsigned fake_streams_queued(void);
struct fake_event *fake_event_of(CUevent handle);
struct fake_event *fake_cuevent_new(struct fake_device *device, unsigned flags);
void fake_event_free(struct fake_event *event);
void fake_mark_put(struct fake_mark *mark);
struct fake_mark *fake_mark_get(struct fake_mark *mark);
/* Records the event: from now on waits for it wait for this mark, which the caller
 * completes with fake_mark_done(). */
struct fake_mark *fake_event_mark(CUevent event, struct fake_stream *stream);
void fake_mark_done(struct fake_mark *mark);

/* work.c */
void fake_work_entries(struct tern_cuda_api *api);
struct fake_op *fake_op_new(enum fake_op_kind kind);
void fake_op_free(struct fake_op *op);
CUresult fake_op_do(struct fake_op *op); /* does a COPY, SET, KERNEL, HOST or GRAPH */
bool fake_op_touches(const struct fake_op *op, const struct fake_mem *mem);

/* kernel.c */
void fake_kernel_entries(struct tern_cuda_api *api);
void fake_kernels_forget(void);
void fake_modules_drop(struct fake_device *device);

/* graph.c */
void fake_graph_entries(struct tern_cuda_api *api);
CUresult fake_capture_forbids(void);
void fake_capture_spoil(struct fake_graph *capture);
void fake_capture_add(struct fake_stream *stream, struct fake_op *op);
void fake_capture_join(struct fake_stream *stream, const struct fake_mark *mark);
void fake_capture_leave(struct fake_stream *stream);
struct fake_graph *fake_graph_get(struct fake_graph *graph);
void fake_graph_put(struct fake_graph *graph);
/* A launch into the stream. If it is freed early, the events of its nodes that have not
 * run count as recorded. */
struct fake_run *fake_run_new(struct fake_graph *graph, struct fake_stream *stream);
void fake_run_free(struct fake_run *run);
CUresult fake_run_step(struct fake_run *run); /* does one node, if any is left */
bool fake_graph_touches(const struct fake_graph *graph, const struct fake_mem *mem);
void fake_graph_execs_drop(struct fake_device *device);

#endif
