/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of struct tern_context: ports, timers, deferred calls, the event fd. The
 * rendezvous layer hangs its sessions on it; server and client use its timers.
 */
#ifndef TERN_TRANSPORT_CONTEXT_H
#define TERN_TRANSPORT_CONTEXT_H

#include <tern/context.h>

#include "base/env.h"
#include "base/list.h"
#include "transport/domain.h"
#include "transport/fabric.h"

/*
 * tern_context_new() in another environment than the system's, such as the tools' or the
 * simulator's: one context's at a time, which it must outlive. Lines go to its log.
 * -EBUSY: another context has it.
 */
int tern_context_new_in(struct tern_domain *domain, const struct tern_context_opts *opts,
	struct tern_env *env, struct tern_context **out);

struct tern_env *tern_context_env(struct tern_context *ctx);

/*
 * Timers: a pairing-free binary heap, since a context has a handful per peer. The owner
 * keeps the timer in place while it is set.
 */
struct tern_timer {
	void (*fire)(
		struct tern_timer *timer); /* in tern_progress; it is no longer set */
	uint64_t due_ns;
	uint32_t slot; /* index in the heap + 1; 0: not set */
};

/* Sets or moves it. At TERN_NEVER it is set and does not fire. -ENOMEM. */
int tern_timer_set(struct tern_context *ctx, struct tern_timer *timer, uint64_t due_ns);
void tern_timer_clear(struct tern_context *ctx, struct tern_timer *timer);

/* A call to be made once, in this tern_progress behind its ports or at its end, or in the
 * next. `link` starts zeroed or as tern_list_init() leaves it; taking it out of its
 * list takes the call back. Deferring what is deferred already changes nothing. */
struct tern_deferred {
	void (*call)(struct tern_deferred *deferred);
	struct tern_list link;
};
void tern_defer(struct tern_context *ctx, struct tern_deferred *deferred);

/* The port of a fabric, opened at first use. -ENODEV and the like: see fabric open. */
int tern_context_port(
	struct tern_context *ctx, struct tern_fabric *fabric, struct tern_port **out);

/* Next instant a timer is due; TERN_NEVER: none. (The simulator schedules by it.) */
uint64_t tern_context_next_ns(struct tern_context *ctx);

/* What sits above and handles the ports' events: set once by the rendezvous layer. */
struct tern_context_user {
	const struct tern_port_handler *handler;
	void *arg;
	uint32_t message_bytes;
	void (*free)(
		void *arg); /* cuts everything; ports are drained until conn_count is 0 */
	bool (*drained)(void *arg);
};

struct tern_context {
	struct tern_domain *domain;
	struct tern_env *env;
	struct tern_env own_env; /* used when the caller gave none */
	struct tern_env_ops own_ops;
	struct tern_context_opts opts;
	uint32_t first_seq; /* where sequence and credit counters start: tests set it */
	struct tern_port
		*ports[TERN_FABRICS_MAX]; /* by tern_fabric.index; NULL: not in use */
	struct tern_timer **heap;
	uint32_t timer_count, heap_capacity;
	uint64_t timers_ticks; /* when run_timers() last read the clock: env.h */
	struct tern_list deferred;
	struct tern_list stagers; /* stager.h: one for each GPU in use */
	bool in_progress;
	bool ending; /* tern_context_free(): a timer must not touch peers any more */
	bool armed;
	int epoll_fd, wake_fd, timer_fd; /* -1 with the simulator's environment */
	uint64_t timer_fd_ns; /* what timer_fd is set to; TERN_NEVER: nothing */
	/* Both between the owner and tern_context_wake(): see context.c. */
	atomic_bool sleeping, woken;
	uint64_t wakes_owed; /* the owner's account of wake_fd: see context.c */
	uint64_t spin_ns,
		spin_max_ns; /* tern_wait's budget now, and its bound: see wait.c */
	struct tern_context_user user;
};

/* Implemented by the rendezvous layer: fills ctx->user. -ENOMEM. */
int tern_rendezvous_init(struct tern_context *ctx);

#endif
