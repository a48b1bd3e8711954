/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the simulated driver share. One world, one lock: every function of
 * the table takes it first (FAKE_ENTER) and everything below expects it to be held.
 *
 *     fake_world.c     the world, the table, faults, the count of what is open
 *     device.c   devices and contexts
 *     memory.c   memory of devices, page-locked memory
 *     share.c    memory for network cards and other processes
 *     stream.c   streams and events: when work happens
 *     work.c     copies, memsets, host functions: what work there is, and doing it
 *     kernel.c   modules, functions, launches
 *     graph.c    capture and graphs
 */
#ifndef TERN_TESTS_FAKE_CUDA_INTERNAL_H
#define TERN_TESTS_FAKE_CUDA_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/rng.h"
#include "tests/fake_cuda/fake_cuda.h"

/* With its primary context. */
struct fake_device {
	int index;
	uint64_t used_bytes, peak_bytes;
	unsigned retain_count;
	unsigned flags;
	CUresult sticky; /* CUDA_SUCCESS: the context is sound */
};

enum fake_mem_kind {
	FAKE_MEM_DEVICE,
	FAKE_MEM_OPENED, /* another process's, on a device */
	FAKE_MEM_HOST,
	FAKE_MEM_REGISTERED,
	FAKE_MEM_KINDS
};

struct fake_mem {
	struct tern_list link;
	enum fake_mem_kind kind;
	struct fake_device *device;
	char *base;
	size_t bytes;
	char *map; /* pages, the last of which is never accessible; NULL: the user's */
	size_t map_bytes;
	int fd;              /* what the pages are of; -1: none */
	unsigned open_count; /* OPENED */
	/* OPENED: whose it is, and where it is there */
	ino_t inode;
	pid_t owner;
	uint64_t owner_at;
	uint64_t id;
	bool sync_memops;
};

/* What an event between processes is to all of them: how often it was recorded, and which
 * of these was done last. */
struct fake_shared_page {
	_Atomic uint64_t recorded, done;
};

struct fake_shared {
	unsigned ref_count;
	int fd;
	struct fake_shared_page *page;
};

/* A place in a stream that an event was recorded at. */
struct fake_mark {
	unsigned ref_count;
	bool done;                  /* ask fake_mark_is_done() */
	struct fake_shared *shared; /* NULL: not between processes */
	uint64_t number;            /* of the record; those of others have no stream */
	uint64_t step;              /* when it was done */
	struct fake_stream *stream;
	struct fake_graph *capture; /* recorded into a graph instead: after these nodes */
	unsigned *tail, tail_count;
};

struct fake_event {
	struct tern_list link;
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
	struct tern_list link;
	enum fake_op_kind kind;
	/* COPY, SET */
	char *to;
	const char *from; /* `owned` if the source was not page-locked */
	size_t bytes;
	uint32_t value;
	unsigned unit; /* bytes of a value */
	/* KERNEL */
	const struct fake_kernel *kernel;
	struct fake_cuda_launch launch;
	void *params[FAKE_CUDA_MAX_PARAMS]; /* into `owned` */
	/* HOST */
	CUhostFn host;
	void *arg;
	/* RECORD, WAIT */
	struct fake_mark *mark;
	CUevent event; /* of a RECORD that is a graph's node: it has no mark */
	/* GRAPH */
	struct fake_run *run;
	void *owned;
};

struct fake_stream {
	struct tern_list link;
	struct fake_device *device;
	struct tern_list ops;
	unsigned flags;
	int priority;
	bool destroyed; /* ends when its work is done */
	/* While it is captured: after which nodes the next one comes. */
	struct fake_graph *capture;
	unsigned *tail, tail_count;
};

struct fake_kernel {
	struct tern_list link;
	char name[128];
	void (*run)(const struct fake_cuda_launch *launch);
	unsigned param_count;
	size_t param_bytes[FAKE_CUDA_MAX_PARAMS];
};

struct fake_module {
	struct tern_list link;
	struct fake_device *device;
	struct tern_list functions;
};

struct fake_function {
	struct tern_list link;
	struct fake_module *module;
	const struct fake_kernel *kernel;
	int shared_max_bytes;
};

struct fake_node {
	struct fake_op *op;
	unsigned *before, before_count;
};

/* A graph as captured, and what was instantiated from it: both hold it. */
struct fake_graph {
	unsigned ref_count;
	struct fake_stream *origin; /* being captured; NULL: no longer */
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool invalid; /* something forbidden was called */
	struct fake_node *nodes;
	unsigned node_count;
};

/* A launch of a graph. */
struct fake_run {
	struct fake_graph *graph;
	bool *done;               /* [nodes] */
	struct fake_mark **marks; /* [nodes]: of those that record */
	unsigned left;            /* nodes that are not done */
};

struct fake_graph_handle {
	struct tern_list link;
	struct fake_graph *graph;
	struct fake_device *device; /* of an instantiated one */
};

struct fake_world {
	pthread_mutex_t lock;
	bool ready;
	struct fake_cuda_opts opts;
	struct tern_cuda_api api;
	struct tern_rng rng;
	uint64_t step; /* pieces of work done */
	bool inited;   /* cuInit was called */
	bool held;
	bool unguarded_now; /* device memory is accessible until the lock is left */
	struct fake_pages {
		char *at; /* NULL: none */
		size_t bytes;
	} opened[2]; /* accessible for a piece of work */
	uint64_t next_mem_id;
	void *freed_at; /* given out again first, as drivers do */
	unsigned pageable_copy_count;
	struct fake_device devices[FAKE_CUDA_MAX_DEVICES];
	struct tern_list mems, streams, events, kernels, modules, graphs, graph_execs;
};

extern struct fake_world fake_world;

#define FAKE_LOCK()                                                                      \
	TERN_CLEANUP(fake_world_leave) struct fake_world *entered_ = fake_world_enter(); \
	(void)entered_
/* Counts the call of the table's function, and returns what a test wants of it. */
#define FAKE_ENTER(name)                                                                 \
	FAKE_LOCK();                                                                     \
	CUresult fault_ = fake_asked_fault(name);                                        \
	if (fault_)                                                                      \
	return fault_
/* And asks for a sound context: `device`. */
#define FAKE_ENTER_CTX(name)                                                             \
	FAKE_ENTER(name);                                                                \
	struct fake_device *device = NULL;                                               \
	CUresult current_ = fake_current(&device);                                       \
	if (current_)                                                                    \
	return current_
/* And that no capture forbids what may wait for the device. */
#define FAKE_ENTER_UNSAFE(name)                                                          \
	FAKE_ENTER_CTX(name);                                                            \
	CUresult capture_ = fake_capture_forbids();                                      \
	if (capture_)                                                                    \
	return capture_

/* fake_world.c */
struct fake_world *fake_world_enter(void);
void fake_rest(void);        /* without the lock: others may do anything meanwhile */
void fake_worker_need(void); /* opts.background: from now on */
void fake_worker_call(void); /* there is more to do */
void fake_world_leave(struct fake_world **world);
CUresult fake_asked_fault(const char *function);
CUresult fake_kernel_fault(const char *kernel); /* asked once per execution */
void fake_host_function(CUhostFn host, void *arg);

/* device.c */
void fake_gpus_open(void);
void fake_device_entries(struct tern_cuda_api *api);
/* The calling thread's context: of which device; an error if there is none, it is gone,
 * or it is spoilt. */
CUresult fake_current(struct fake_device **out);
void fake_device_spoil(struct fake_device *device, CUresult result);
void fake_contexts_forget(void); /* the calling thread's */

/* memory.c */
void fake_memory_entries(struct tern_cuda_api *api);
/* The memory of these kinds (bits 1 << kind) that holds the whole range; NULL: none. */
struct fake_mem *fake_mem_find(const void *at, size_t bytes, unsigned kinds);
/* At `hint` if there is room. */
struct fake_mem *fake_mem_map(
	int fd, size_t bytes, struct fake_device *device, void *hint);
void fake_mem_free(struct fake_mem *mem);
void fake_mems_drop(struct fake_device *device);
void fake_guard(bool closed);
/* The pages of a piece of work, if they are closed; either may be NULL. What an earlier
 * one had open is closed. */
void fake_guard_open(const void *to, const void *from, size_t bytes);
#define FAKE_ON_DEVICE (1u << FAKE_MEM_DEVICE | 1u << FAKE_MEM_OPENED)
#define FAKE_LOCKED    (1u << FAKE_MEM_HOST | 1u << FAKE_MEM_REGISTERED)

/* share.c */
void fake_share_entries(struct tern_cuda_api *api);
struct fake_shared *fake_shared_new(int fd); /* -1: a new one */
struct fake_shared *fake_shared_get(struct fake_shared *shared);
void fake_shared_put(struct fake_shared *shared);

/* stream.c */
void fake_stream_entries(struct tern_cuda_api *api);
struct fake_stream *fake_stream_of(CUstream handle);
/* Takes the op: queues it, or adds it to the graph that the stream is captured into. */
void fake_stream_put(struct fake_stream *stream, struct fake_op *op);
void fake_stream_run(struct fake_stream *stream); /* until nothing is left */
bool fake_streams_step(void);
void fake_streams_early(void);
void fake_streams_run(struct fake_device *device); /* NULL: all */
void fake_streams_drop(struct fake_device *device);
bool fake_streams_touch(const struct fake_mem *mem);
unsigned fake_streams_queued(void);
struct fake_event *fake_event_of(CUevent handle);
struct fake_event *fake_cuevent_new(struct fake_device *device, unsigned flags);
void fake_event_free(struct fake_event *event);
void fake_mark_put(struct fake_mark *mark);
struct fake_mark *fake_mark_get(struct fake_mark *mark);
/* Records the event: what waits for it from now on waits for the mark, which the caller
 * brings about with fake_mark_done(). */
struct fake_mark *fake_event_mark(CUevent event, struct fake_stream *stream);
void fake_mark_done(struct fake_mark *mark);

/* work.c */
void fake_work_entries(struct tern_cuda_api *api);
struct fake_op *fake_op_new(enum fake_op_kind kind);
void fake_op_free(struct fake_op *op);
CUresult fake_op_do(struct fake_op *op); /* of a COPY, SET, KERNEL, HOST or GRAPH */
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
/* Of a launch into the stream. The marks of what it leaves undone are done when it is
 * freed. */
struct fake_run *fake_run_new(struct fake_graph *graph, struct fake_stream *stream);
void fake_run_free(struct fake_run *run);
CUresult fake_run_step(struct fake_run *run); /* a node, if any is left */
bool fake_graph_touches(const struct fake_graph *graph, const struct fake_mem *mem);
void fake_graph_execs_drop(struct fake_device *device);

#endif
