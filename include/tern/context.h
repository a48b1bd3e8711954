/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Domain and context.
 *
 * A domain holds what a process needs once: fabrics (transports), memory registrations,
 * pools. It is thread-safe. A context is a set of connections, queues and timers. Only
 * one thread may use a context at a time, since it takes no locks; the exception is
 * tern_context_wake(), which any thread may call.
 *
 * Structures for options and results may grow at their end in later versions. Zero the
 * fields that you do not set ({0}, or designated initialisers). C programs call the
 * inline functions of these headers, which pass the size of the structure that the
 * program was built with; other languages call NAME_sized and pass the size themselves.
 * See docs/compatibility.md.
 */
#ifndef TERN_CONTEXT_H
#define TERN_CONTEXT_H

#include <tern/log.h>
#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_domain;
struct tern_context;
struct tern_mem;
struct tern_req;

enum tern_tcp_engine {
	/* Uses epoll, which was faster with idle connections: docs/log/performance.md. */
	TERN_TCP_AUTO = 0,
	TERN_TCP_URING = 1,
	TERN_TCP_EPOLL = 2,
};

struct tern_domain_opts {
	enum tern_tcp_engine tcp_engine;
	/* TCP congestion control; NULL: "cubic" if the kernel has it */
	const char *tcp_congestion;
	/* shm: do not use process_vm_readv and process_vm_writev, as if the kernel refused
	 * them */
	bool no_cma;
	bool no_hugepages; /* do not try 2 MiB pages, neither reserved nor transparent */
	/* Options of the verbs fabric, "NAME=VALUE,...", listed in docs/tuning.md;
	 * NULL: defaults. */
	const char *verbs;
	/* Largest amount of page-locked memory for GPU tensors that the fabric can
	 * neither access directly nor move in pieces, in bytes; 0: 1 GiB. It is
	 * allocated when it is needed. */
	uint64_t bounce_bytes;
};

/*
 * Makes a domain. opts may be NULL.
 *
 * - -ENOSYS, -EPERM: TERN_TCP_URING was asked for, and the kernel refuses it, or this
 *   library was built without it;
 * - -ENOENT: the kernel does not have, or does not allow, tcp_congestion;
 * - -EINVAL: `verbs` is malformed;
 * - -E2BIG: the program sets an option that this older library does not have. Every
 *   function that takes options returns this;
 * - -ENOMEM.
 */
TERN_API int tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out);
static inline int tern_domain_new(
	const struct tern_domain_opts *opts, struct tern_domain **out)
{
	return tern_domain_new_sized(opts, sizeof(*opts), out);
}

/*
 * Releases the domain. Contexts, pools and wrapped memory that still use the domain go on
 * working: the domain is freed with the last of them, and a log line of level error says
 * which and how many there are. NULL is allowed.
 */
TERN_API void tern_domain_free(struct tern_domain *domain);

struct tern_domain_stats {
	/* Memory registrations made so far, over all fabrics. */
	uint64_t registration_count;
	uint64_t registered_bytes; /* bytes registered now */
};
TERN_API void tern_domain_stats_sized(
	struct tern_domain *domain, struct tern_domain_stats *out, size_t out_bytes);
static inline void tern_domain_stats(
	struct tern_domain *domain, struct tern_domain_stats *out)
{
	tern_domain_stats_sized(domain, out, sizeof(*out));
}

/* ---- RDMA devices ---- */

enum tern_gpu_direct {
	TERN_GPU_DIRECT_UNTRIED, /* no GPU memory has been registered yet */
	TERN_GPU_DIRECT_WORKS,   /* the device reads and writes GPU memory directly */
	/* The device refused to register GPU memory, so tensors in GPU memory are staged
	 * (copied through host memory). */
	TERN_GPU_DIRECT_REFUSED,
};

/* Ways in which an RDMA device can get GPU memory: bits of tern_rdma_device.gpu_ways. */
enum tern_gpu_way {
	TERN_GPU_BY_DMA_BUF = 1,
	TERN_GPU_BY_PEERMEM = 2, /* the kernel module nvidia-peermem is loaded */
};

/* One port of an RDMA device that this domain uses (option "device=" in struct
 * tern_domain_opts, `verbs`). */
struct tern_rdma_device {
	char name[64];       /* "mlx5_0" */
	char pci[32];        /* PCI address, "0000:3b:00.0"; "": the device has none */
	char address[64];    /* an IP address of the device, to listen on; "": none */
	uint64_t guid;       /* GUID of the device, as ibstat prints it */
	uint64_t bits_per_s; /* 0: unknown */
	uint32_t port;       /* port number, counted from 1 */
	int32_t numa_node;   /* -1: unknown */
	enum tern_gpu_direct gpu_direct;
	bool active; /* the port's link is up */
	/* Ways that the device's driver offers (enum tern_gpu_way), before any GPU memory
	 * is registered; 0 if this library was built without CUDA. A GPU, or a piece of
	 * its memory, may still be refused. */
	uint32_t gpu_ways;
	/* Why the device refused the GPU memory that was registered last, as text for
	 * people; "": it did not. */
	char gpu_refusal[164];
};

/*
 * Describes at most `max` RDMA ports in out[]. Returns how many ports there are, which
 * may be more than `max`; 0 if there is no RDMA device; -ENOMEM. The call may ask the
 * system for addresses, so do not use it where speed matters.
 *
 * A device is chosen by its name: in an address ("verbs://HOST:PORT@mlx5_1", to listen or
 * to connect), for a context (rdma_device), or for the domain (`verbs`).
 */
TERN_API int tern_rdma_devices_sized(struct tern_domain *domain,
	struct tern_rdma_device *out, size_t out_bytes, unsigned max);
static inline int tern_rdma_devices(
	struct tern_domain *domain, struct tern_rdma_device *out, unsigned max)
{
	return tern_rdma_devices_sized(domain, out, sizeof(*out), max);
}

/* ---- contexts ---- */

/*
 * Options of a context. 0 is the default for every field. Where 0 itself would be a
 * useful value, use instead: TERN_NEVER for a duration without limit, 1 for the shortest
 * duration, eager_bytes 1 for no eager transfers of more than one byte, bulk_bytes
 * UINT64_MAX for no bulk connections, no_spin for no spinning.
 */
struct tern_context_opts {
	/* Time without a message from the peer after which it is reported SUSPECT; 0: 1
	 * s. An idle peer is probed less often, so it is reported later: by about half of
	 * the time for which it was idle, and by at most about 6 times suspect_ns. */
	uint64_t suspect_ns;
	/* Time without a message from the peer's program after which the peer is dead
	 * although its host still answers; 0: never. A program that computes, is stopped
	 * or is in a debugger sends nothing either. With 0, a lost session waits without
	 * limit if another program now listens at the peer's address, accepts the
	 * connection and sends nothing. */
	uint64_t dead_ns;
	/* Time within which a lost connection must be restored; 0: 500 ms. If
	 * unreachable_ns is longer, it applies instead when the network path was lost,
	 * and always at the end that dials, until that end learns that no program listens
	 * at the peer's address. The end that accepted waits for at least 4 s (or
	 * unreachable_ns, if less) if the peer had been silent for suspect_ns, and longer
	 * while the peer is connecting. */
	uint64_t reconnect_ns;
	uint64_t connect_ns; /* time within which tern_connect() must succeed; 0: 5 s */
	/* Tensors in host memory up to this size (at most 64 KiB; the smaller value of
	 * the two ends) are sent eagerly, inside the first message. 0: the fabric's
	 * default, which was chosen by measurement; over shm it is lower for tensors in
	 * pools. */
	uint32_t eager_bytes;
	/* Records (preallocated structures) that store messages for which no matching
	 * request is posted yet. All peers share them, besides 16 that each peer has of
	 * its own; 0: 4096. */
	uint32_t record_count;
	/* Connections (sockets) for each peer over which large tensors are spread, 1
	 * to 8; 0: 1. Messages use the first of these connections; over tcp, messages
	 * have a further connection of their own. */
	uint32_t rail_count;
	/* tcp: tensors of at least this size use connections of their own, so that
	 * messages need not wait until the tensor is sent. These connections are opened
	 * for the first such tensor. 0: 2 MiB. */
	uint64_t bulk_bytes;
	uint32_t spin_us; /* tern_wait: longest time to spin before sleeping; 0: 20 µs */
	/* Never spin before sleeping: for machines with more processes than cores, or to
	 * save power. */
	bool no_spin;
	/* Secret of the cluster that both ends must know; NULL: none. It is copied. A
	 * listener or a peer may have a secret of its own: see struct tern_peer_opts. */
	const char *secret;
	/* Time for which a peer's host (its kernel or its NIC) may leave everything
	 * unanswered; 0: 10 s, or dead_ns if that is less. The connection survives a
	 * shorter outage of the network. The fabric determines how much later than this a
	 * longer outage is noticed: docs/tuning.md. */
	uint64_t unreachable_ns;
	/* verbs: name of the only RDMA device that this context uses, as in
	 * tern_rdma_devices(); NULL: the device that has the address. It is copied. */
	const char *rdma_device;
	/* Receives the log lines of this context and its peers; log.h says on which
	 * thread and what it may do. NULL: they go to the log function of the process. */
	void (*log)(enum tern_log_level level, const char *text, void *arg);
	void *log_arg;
	/* Highest level that is logged; 0: the level of the process. */
	enum tern_log_level log_level;
};

/* Makes a context. opts may be NULL. -EINVAL: more than 8 rails, or an empty secret;
 * -ENOTSUP: a secret is set, but this library was built without OpenSSL; -ENOMEM;
 * -EMFILE. */
TERN_API int tern_context_new_sized(struct tern_domain *domain,
	const struct tern_context_opts *opts, size_t opts_bytes,
	struct tern_context **out);
static inline int tern_context_new(struct tern_domain *domain,
	const struct tern_context_opts *opts, struct tern_context **out)
{
	return tern_context_new_sized(domain, opts, sizeof(*opts), out);
}

/*
 * Frees the context: closes every connection, ends every request with -ECANCELED, and
 * returns when neither a peer nor a device can access the memory of a request any more.
 * Memory of peers that this context reads in place is released.
 *
 * If a peer reads memory of this context in place (TERN_RECV_PEEK), the call waits until
 * the peer has released it, has freed its own context, or its process has ended; after
 * one second a log line names that peer. A thread that owns both ends must therefore
 * release what one end reads, or free that end, before it frees the other: otherwise the
 * call waits for its own thread for ever. NULL is allowed.
 */
TERN_API void tern_context_free(struct tern_context *ctx);

/*
 * Makes all progress that is possible now, without blocking: sends queued messages,
 * receives, calls done() of requests that have ended, and runs timers that are due.
 * Callbacks other than the log function run only inside this function and those that
 * call it (tern_wait, tern_wait_any, tern_context_free); it must not be called from a
 * callback. Returns the number of events handled (0: nothing to do), or a negative status
 * if the context itself is broken.
 */
TERN_API int tern_progress(struct tern_context *ctx);

/*
 * Prepares the context for sleeping. After it has returned 0, tern_context_fd() becomes
 * readable when tern_progress() has something to do, timers included. -EAGAIN:
 * tern_progress() already has something to do.
 */
TERN_API int tern_arm(struct tern_context *ctx);

/*
 * File descriptor to wait on with poll(2) (POLLIN) or epoll. Wait on it only after
 * tern_arm() has returned 0. It is level-triggered: it stays readable until
 * tern_progress() is called. With edge-triggered epoll, call tern_progress() after each
 * event until it returns 0, then tern_arm().
 *
 * The context owns the descriptor: do not read or close it. It is valid until the context
 * is freed. After fork() it belongs to the parent: the child may neither use nor free the
 * context, and has closed its descriptors already, except with the io_uring engine, over
 * verbs, and of connections that are being made or ended at that moment. So a child that
 * outlives its parent does not keep the parent's peers waiting.
 */
TERN_API int tern_context_fd(struct tern_context *ctx);

/* Makes the context's file descriptor readable, so that its thread calls
 * tern_progress(). May be called from any thread. */
TERN_API void tern_context_wake(struct tern_context *ctx);

TERN_API struct tern_domain *tern_context_domain(struct tern_context *ctx);

/*
 * Makes now what the first transfer of this GPU memory in the context would make
 * otherwise: CUDA streams, and 16 MiB of page-locked host memory. That takes milliseconds.
 * It is for programs in which the CUDA driver should allocate nothing while kernels run
 * that wait for a transfer. For host memory it does nothing. -ENOMEM, -EIO, ...: the
 * status with which that transfer would fail.
 */
TERN_API int tern_context_prepare(struct tern_context *ctx, const struct tern_mem *mem);

/*
 * Waits until the request has ended or timeout_ns has passed (TERN_NEVER: no limit). It
 * calls tern_progress(), spins first and then sleeps. It is meant for threads with
 * nothing else to do.
 *
 * Returns the status of the request (-EINVAL: it was never posted), or
 *
 * - -ETIMEDOUT: the request has not ended and continues. Wait again, or call
 *   tern_cancel() and wait, before its memory is used for anything else;
 * - -ENOTSUP: the context runs in the simulator, where a thread cannot wait;
 * - the error of tern_progress() or tern_arm().
 */
TERN_API int tern_wait(
	struct tern_context *ctx, struct tern_req *req, uint64_t timeout_ns);

/* Waits as tern_wait() does, but until tern_progress() has handled at least one event.
 * Then it returns 0. */
TERN_API int tern_wait_any(struct tern_context *ctx, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
