/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of struct tern_context: ports (one for each fabric in use), timers, deferred
 * calls, the event fd. The rendezvous layer keeps its sessions in the context; server and
 * client use its timers. */
#ifndef TERN_TRANSPORT_CONTEXT_H
#define TERN_TRANSPORT_CONTEXT_H

#include <tern/context.h>

#include "base/env.h"
#include "base/list.h"
#include "transport/domain.h"
#include "transport/fabric.h"
#include "transport/fork.h"

/*
 * As tern_context_new(), but in the environment `env` (clock, randomness, log) instead of
 * the system's; for the tools and the simulator. `env` must outlive the context, serves
 * one context at a time, and receives its log lines. -EBUSY: another context uses `env`.
 */
int tern_context_new_in(struct tern_domain *domain, const struct tern_context_opts *opts,
	struct tern_env *env, struct tern_context **out);

struct tern_env *tern_context_env(struct tern_context *ctx);

/* A timer. A context keeps its timers in a plain binary heap, which is fast enough
 * because there are only a few timers per peer. The owner must not move or free the
 * structure while the timer is set. */
struct tern_timer {
	/* Called in tern_progress() after the timer has expired and was removed. */
	void (*fire)(struct tern_timer *timer);
	uint64_t due_ns;
	uint32_t place; /* index in the heap + 1; 0: not set */
};

/* Sets the timer, or moves it to another time. A timer set to TERN_NEVER is in the heap,
 * so that setting it again cannot fail, but never fires. -ENOMEM. */
int tern_timer_set(struct tern_context *ctx, struct tern_timer *timer, uint64_t due_ns);
void tern_timer_clear(struct tern_context *ctx, struct tern_timer *timer);

/*
 * A call to be made once, later. tern_progress() makes the deferred calls in rounds: at
 * its start, after it has polled the ports, and at its end. A call that is deferred
 * during a round is made in the next round. `node` starts zeroed or initialised by
 * tern_list_init(). Removing `node` from its list cancels the call. Deferring a call that
 * is already deferred changes nothing.
 */
struct tern_deferred {
	void (*call)(struct tern_deferred *deferred);
	struct tern_list node;
};
void tern_defer(struct tern_context *ctx, struct tern_deferred *deferred);

/* Returns in *out the context's port for `fabric`, which the first call makes. Errors:
 * those of port_new() (fabric.h) and of epoll_ctl(2). */
int tern_context_port(
	struct tern_context *ctx, struct tern_fabric *fabric, struct tern_port **out);

/* Time at which the next timer is due; TERN_NEVER: none is set, or only to TERN_NEVER.
 * (The simulator schedules by it.) */
uint64_t tern_context_next_ns(struct tern_context *ctx);

/* The layer above the transport, which handles the ports' events; set once, by the
 * rendezvous layer. */
struct tern_context_user {
	const struct tern_port_handler *handler;
	void *arg;
	uint32_t message_bytes;
	/* Ends all connections. tern_context_free() calls it, and then tern_progress()
	 * until drained() returns true: all connections have ended, and this layer's
	 * memory is freed. */
	void (*free)(void *arg);
	bool (*drained)(void *arg);
};

struct tern_context {
	struct tern_domain *domain;
	struct tern_env *env;
	/* Environment of this context if the caller passed none. */
	struct tern_env own_env;
	struct tern_env_ops own_ops;
	struct tern_forkable forkable;
	struct tern_context_opts opts;
	/* First sequence number and first credit count of a session; tests set a value
	 * close to 2^32, to test the wrap. */
	uint32_t first_seq;
	struct tern_timer **heap;
	uint32_t timer_count, heap_capacity;
	/* CPU ticks (base/env.h) when run_timers() last read the clock. */
	uint64_t timers_ticks;
	struct tern_list deferred;
	/* List of struct tern_stager (stager.h), one for each GPU in use. */
	struct tern_list stagers;
	bool in_progress;
	/* tern_context_free() has begun: timers must not touch peers any more. */
	bool ending;
	bool armed;
	/* -1 in the simulator, which has no descriptors */
	int epoll_fd, wake_fd, timer_fd;
	/* Largest number of descriptors that the process may have open
	 * (RLIMIT_NOFILE). */
	uint64_t file_max;
	uint64_t timer_fd_ns; /* time that timer_fd is set to; TERN_NEVER: it is off */
	/* Flags shared by the context's own thread and tern_context_wake() on other
	 * threads: see context.c. */
	atomic_bool sleeping, woken;
	/* Number of writes to wake_fd that the context's own thread has still to read:
	 * see context.c. */
	uint64_t wakes_owed;
	/* Time for which tern_wait() spins before it sleeps, and its upper limit: see
	 * wait.c. */
	uint64_t spin_ns, spin_max_ns;
	struct tern_context_user user;
	unsigned port_count;
	/* Indexed by tern_fabric.index; NULL: the fabric is not in use. */
	struct tern_port *ports[];
};

/*
 * Wakes a thread that waits for the context's fd while the caller is the context's thread.
 * tern_context_wake() is for a context whose own thread sleeps, and has no effect on the fd
 * of one that is not armed.
 */
void tern_context_rouse(struct tern_context *ctx);

/* Implemented by the rendezvous layer: fills ctx->user. -EINVAL, -ENOTSUP: the secret
 * cannot be used; -ENOMEM. */
int tern_rendezvous_init(struct tern_context *ctx);

#endif
