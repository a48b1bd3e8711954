/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of struct tern_context: ports, timers, deferred calls, the event fd. The
 * rendezvous layer keeps its sessions in it; server and client use its timers.
 */
#ifndef TERN_TRANSPORT_CONTEXT_H
#define TERN_TRANSPORT_CONTEXT_H

#include <tern/context.h>

#include "base/env.h"
#include "base/list.h"
#include "transport/domain.h"
#include "transport/fabric.h"

/*
 * As tern_context_new(), in an environment other than the system's, such as the tools' or
 * the simulator's. The environment must outlive the context, serves one context at a
 * time, and receives its log lines. -EBUSY: another context uses the environment.
 */
int tern_context_new_in(struct tern_domain *domain, const struct tern_context_opts *opts,
	struct tern_env *env, struct tern_context **out);

struct tern_env *tern_context_env(struct tern_context *ctx);

/*
 * Timers: a plain binary heap suffices, since a context has only a handful per peer. The
 * owner keeps the timer in place while it is set.
 */
struct tern_timer {
	/* Called in tern_progress, when the timer is no longer set. */
	void (*fire)(struct tern_timer *timer);
	uint64_t due_ns;
	uint32_t place; /* index in the heap + 1; 0: not set */
};

/* Sets the timer, or moves it to another time. With TERN_NEVER it is set but does not
 * fire. -ENOMEM. */
int tern_timer_set(struct tern_context *ctx, struct tern_timer *timer, uint64_t due_ns);
void tern_timer_clear(struct tern_context *ctx, struct tern_timer *timer);

/* A call to be made once: in the current tern_progress, after its ports were polled or
 * at its end, or else in the next one. `node` starts zeroed or as tern_list_init()
 * leaves it. Removing it from its list cancels the call. Deferring it again while it
 * is deferred changes nothing. */
struct tern_deferred {
	void (*call)(struct tern_deferred *deferred);
	struct tern_list node;
};
void tern_defer(struct tern_context *ctx, struct tern_deferred *deferred);

/* The context's port of a fabric, opened at the first use. Errors as
 * tern_fabric_ops.open(). */
int tern_context_port(
	struct tern_context *ctx, struct tern_fabric *fabric, struct tern_port **out);

/* Time at which the next timer is due; TERN_NEVER: none is set. (The simulator
 * schedules by it.) */
uint64_t tern_context_next_ns(struct tern_context *ctx);

/* The layer above, which handles the ports' events; set once, by the rendezvous layer. */
struct tern_context_user {
	const struct tern_port_handler *handler;
	void *arg;
	uint32_t message_bytes;
	/* Cuts all connections; the ports are then polled until conn_count is 0. */
	void (*free)(void *arg);
	bool (*drained)(void *arg);
};

struct tern_context {
	struct tern_domain *domain;
	struct tern_env *env;
	struct tern_env own_env; /* used when the caller passed no environment */
	struct tern_env_ops own_ops;
	struct tern_context_opts opts;
	/* Start of sequence and credit counters; tests set it near a wrap. */
	uint32_t first_seq;
	struct tern_timer **heap;
	uint32_t timer_count, heap_capacity;
	/* Clock ticks at the last reading of the clock by run_timers(): env.h. */
	uint64_t timers_ticks;
	struct tern_list deferred;
	struct tern_list stagers; /* stager.h: one for each GPU in use */
	bool in_progress;
	/* tern_context_free() has begun: timers must not touch peers any more. */
	bool ending;
	bool armed;
	int epoll_fd, wake_fd, timer_fd; /* -1 with the simulator's environment */
	uint64_t file_max;    /* descriptors that the process may have (RLIMIT_NOFILE) */
	uint64_t timer_fd_ns; /* time that timer_fd is set to; TERN_NEVER: it is off */
	/* Shared by the owner and tern_context_wake(): see context.c. */
	atomic_bool sleeping, woken;
	/* Writes to wake_fd that the owner has still to read: see context.c. */
	uint64_t wakes_owed;
	/* Present spin time of tern_wait(), and its upper limit: see wait.c. */
	uint64_t spin_ns, spin_max_ns;
	struct tern_context_user user;
	unsigned port_count;
	struct tern_port *ports[]; /* by tern_fabric.index; NULL: not in use */
};

/* Implemented by the rendezvous layer: fills ctx->user. -ENOMEM. */
int tern_rendezvous_init(struct tern_context *ctx);

#endif
