/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Domain and context.
 *
 * A domain is what a process has once: fabrics, memory registrations, pools. It is
 * thread-safe. A context is a set of connections, queues and timers, used by one thread
 * at a time; nothing in it locks. Only tern_context_wake() may be called from anywhere.
 *
 * Options and results are structures that may grow at their end. Zero what you do not set
 * ({0}, or designated initialisers). Programs call the inline functions here and in the
 * other headers, which tell the library the size that they were built with; a caller that
 * is not written in C calls NAME_sized itself. docs/compatibility.md.
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
struct tern_req;

enum tern_tcp_engine {
	TERN_TCP_AUTO = 0, /* epoll, which was faster asleep: docs/performance.md */
	TERN_TCP_URING = 1,
	TERN_TCP_EPOLL = 2,
};

struct tern_domain_opts {
	enum tern_tcp_engine tcp_engine;
	const char *tcp_congestion; /* NULL: "cubic" if the kernel has it */
	bool no_cma;                /* shm: behave as if process_vm_readv were refused */
	bool no_hugepages;          /* do not try 2 MiB pages, reserved or made */
	const char *verbs;     /* options of the verbs fabric, "NAME=VALUE,...", as in
				  docs/tuning.md; NULL: its defaults */
	uint64_t bounce_bytes; /* page-locked memory for tensors of GPUs that a fabric
				  cannot reach and cannot move in pieces: never more than
				  this; 0: 1 GiB. It is taken as it is needed */
};

/* opts may be NULL. -ENOMEM; TERN_TCP_URING asked for and refused: -ENOSYS or -EPERM;
 * tcp_congestion asked for and not there: -ENOENT; -E2BIG (as all that takes options):
 * the program sets an option that this library, an older one, does not have. */
TERN_API int tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out);
static inline int tern_domain_new(
	const struct tern_domain_opts *opts, struct tern_domain **out)
{
	return tern_domain_new_sized(opts, sizeof(*opts), out);
}

/*
 * Gives the domain up. What still lives in it (contexts, pools, wrapped memory) goes on
 * working, an error in the log says what and how many, and the domain is freed with the
 * last of them. NULL is allowed.
 */
TERN_API void tern_domain_free(struct tern_domain *domain);

struct tern_domain_stats {
	uint64_t
		registration_count; /* memory registrations ever made, over all fabrics */
	uint64_t registered_bytes;  /* registered now */
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
	TERN_GPU_DIRECT_UNTRIED, /* no memory of a GPU has been registered yet */
	TERN_GPU_DIRECT_WORKS,   /* the device reads and writes memory of GPUs itself */
	TERN_GPU_DIRECT_REFUSED, /* it does not: such tensors are staged */
};

/* A port of an RDMA device that this domain uses (its option device=). */
struct tern_rdma_device {
	char name[64];       /* "mlx5_0" */
	char pci[32];        /* PCI address, "0000:3b:00.0"; "": it has none */
	char address[64];    /* an IP address of the device, for listeners; "": none */
	uint64_t guid;       /* of the device, as ibstat writes it */
	uint64_t bits_per_s; /* 0: unknown */
	uint32_t port;       /* from 1 on */
	int32_t numa_node;   /* -1: unknown */
	enum tern_gpu_direct gpu_direct;
	bool active; /* the link is up */
};

/*
 * Describes up to `max` of them. How many there are, which may be more; 0 also where
 * there is no RDMA; -ENOMEM. May ask the system for addresses: not for the data path. One
 * is chosen by its name: behind an address ("verbs://HOST:PORT@mlx5_1", to listen or to
 * connect), for a context (rdma_device), or for the domain (`verbs`).
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
 * 0 means the default everywhere. What 0 would mean otherwise: a duration without end is
 * TERN_NEVER, the shortest is 1; no eager transfers: eager_bytes 1; no connections for
 * bulk: bulk_bytes UINT64_MAX; no spinning: no_spin.
 */
struct tern_context_opts {
	uint64_t suspect_ns;   /* silence after which a peer is suspect; 0: 1 s. Where
				  nothing has moved for a while, it is asked less often:
				  after half that while, up to 5 times this */
	uint64_t dead_ns;      /* silence of the peer's program after which it is dead,
				  though its host answers; 0: never. A program that
				  computes, is stopped or is debugged is silent, too.
				  So with 0 a lost session waits without end if another
				  program now listens at the peer's address, takes the
				  connection and says nothing */
	uint64_t reconnect_ns; /* how long a lost connection may take to return; 0: 500
				  ms. Where the path was lost, and for the end that dials
				  until it is told that nobody is there: unreachable_ns */
	uint64_t connect_ns;   /* how long tern_connect tries; 0: 5 s */
	uint32_t eager_bytes;  /* eager threshold; 0: the fabric's measured default, over
				  shm a lower one for tensors of pools */
	uint32_t record_count; /* unmatched messages that all peers share, beside 16 that
				  each has of its own; 0: 4096 */
	uint32_t rail_count;   /* connections (sockets) per peer that large tensors are
				  spread over, 1..8; 0: 1. Messages go over the first of
				  them; over tcp, over one more */
	uint64_t bulk_bytes; /* tcp: tensors of so many bytes and more go over connections
				of their own, made when the first one comes, so that
				messages need not wait for them; 0: 2 MiB */
	uint32_t spin_us;    /* tern_wait: most it spins before it sleeps; 0: 20 */
	bool no_spin;        /* never spin: more processes than cores, or power matters */
	const char *secret;  /* cluster secret both ends must know; NULL: none. Copied.
				Listeners and peers may have one of their own:
				struct tern_peer_opts, where more is said */
	uint64_t unreachable_ns; /* how long a peer's host may answer nothing, not even
				    its kernel or its NIC: a shorter cut of the network
				    is survived. A longer one is noticed, at the latest,
				    when docs/tuning.md says, which depends on the fabric.
				    0: 10 s, or dead_ns where that is less */
	const char *rdma_device; /* verbs: the only device that this context uses, by its
				    name in tern_rdma_devices(); NULL: that of each
				    address. Copied */
	/* Takes the lines about this context and its peers: log.h says when, and what it
	 * may do. NULL: they go where the process's go. */
	void (*log)(enum tern_log_level level, const char *text, void *arg);
	void *log_arg;
	enum tern_log_level log_level; /* the last that is logged; 0: the process's */
};

/* opts may be NULL. -ENOMEM, -EMFILE; -EINVAL: more than 8 rails, or an empty secret;
 * -ENOTSUP: a secret, and this library was built without OpenSSL. */
TERN_API int tern_context_new_sized(struct tern_domain *domain,
	const struct tern_context_opts *opts, size_t opts_bytes,
	struct tern_context **out);
static inline int tern_context_new(struct tern_domain *domain,
	const struct tern_context_opts *opts, struct tern_context **out)
{
	return tern_context_new_sized(domain, opts, sizeof(*opts), out);
}

/*
 * Cuts every connection, ends every request with -ECANCELED, and returns when no peer and
 * no device can touch the memory of any of them. What is read in place here is released;
 * a peer that reads in place (TERN_RECV_PEEK) keeps this call waiting until it releases
 * that, frees its context, or until its process ends; after a second a line in the log
 * names it. So a thread that has both ends releases what one of them reads, or frees that
 * end, before it frees the other: here it would wait for itself. NULL is allowed.
 */
TERN_API void tern_context_free(struct tern_context *ctx);

/*
 * Moves everything that can move now, without blocking: sends what was queued, receives,
 * runs the done() of requests that ended and timers that are due. How many events it
 * handled (0: nothing to do), or a negative status when the context itself is broken.
 * Callbacks run only in here. Not to be called from a callback.
 */
TERN_API int tern_progress(struct tern_context *ctx);

/*
 * Prepares for sleep: after 0, tern_context_fd() becomes readable when tern_progress()
 * has something to do, timers included. -EAGAIN: there is something to do already.
 */
TERN_API int tern_arm(struct tern_context *ctx);

/*
 * For poll(2) or epoll, to be asked for POLLIN. It means something after tern_arm() said
 * 0, and is then level-triggered: readable until tern_progress(). Edge-triggered epoll
 * works too if tern_progress() is called after each event until it handles 0, then
 * tern_arm(). Valid as long as the context, which keeps it: not to be read or closed.
 * After fork() it is the parent's, and the child may neither use nor free the context.
 */
TERN_API int tern_context_fd(struct tern_context *ctx);

/* From any thread: makes the context's fd readable, so that its owner calls progress. */
TERN_API void tern_context_wake(struct tern_context *ctx);

TERN_API struct tern_domain *tern_context_domain(struct tern_context *ctx);

/*
 * Blocking helpers for callers with nothing else to do: spin, then sleep, until the
 * request has ended or timeout_ns has passed (TERN_NEVER: waits for as long as it takes).
 * The request's status; -ETIMEDOUT: it is still going on, as if nobody had waited: wait
 * again, or tern_cancel it and wait, before its memory is used for anything else;
 * -ENOTSUP: in the simulator, where nobody can wait; or what tern_progress failed with.
 */
TERN_API int tern_wait(
	struct tern_context *ctx, struct tern_req *req, uint64_t timeout_ns);

/* The same until at least one event was handled: 0 then. */
TERN_API int tern_wait_any(struct tern_context *ctx, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
