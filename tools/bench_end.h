/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One end of a measurement: the sender or the receiver. Each end has `inflight` bench
 * slots (buffers and requests for one message); message n uses slot n % inflight at both
 * ends, so a slot's buffers are used by one message at a time. The receiver posts the
 * next receive of a slot before it answers. So with reply_each, from message number
 * `inflight` on, a message is sent only after its receive was posted, as in the steady
 * state of training.
 *
 * bench_pair.c runs both ends on this host, bench_hosts.c the ends on two hosts.
 */
#ifndef TERN_TOOLS_BENCH_END_H
#define TERN_TOOLS_BENCH_END_H

#include <sys/types.h>

#include <tern/tern.h>

#include "tools/bench_pair.h"

/* What one end reports when the measurement is over. */
struct bench_usage {
	int status;
	uint64_t cpu_ns, registrations;
	struct bench_error error;
};

struct bench_slot;
struct bench_group_slot;
struct bench_window;

struct bench_end {
	const struct bench_config *config;
	bool sender;
	uint64_t total; /* number of messages, including the warm-up */
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_listener *listener;
	struct tern_peer *peer;
	struct tern_channel *channel;
	bool up, down;
	uint64_t data_key, reply_key;
	struct bench_slot *slots;
	/* with config->collective, instead of `slots` */
	struct bench_group_slot *group_slots;
	struct tern_group *group;
	struct bench_window *window; /* with config->window; else NULL */
	uint64_t moved;              /* puts and gets that are complete */
	/* trips[] of each operation, and how long their batches took, by bench_end_clock() */
	uint64_t *op_trips[BENCH_OPS], op_took[BENCH_OPS];
	uint64_t next;       /* sender: number of the next message to send */
	uint64_t send_limit; /* sender: number of the first message that has to wait */
	uint64_t done_count; /* messages that are complete at this end */
	/* sender, with reply_each: round trip of each measured message, by bench_end_clock() */
	uint64_t *trips;
	bool ticks; /* bench_end_clock() counts ticks, and not ns */
	uint64_t start_ns, end_ns, start_ticks, end_ticks;
	uint64_t start_cpu_ns, start_registrations;
	struct bench_usage usage;
};

/* Functions that return int return 0 or a negative status; the first failure is kept in
 * e->usage, with its text. */

/* Records a failure, if it is the first: later ones are consequences of it. Returns
 * `status`. */
int bench_end_fail(struct bench_end *e, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Creates the domain and the context. */
int bench_end_open(struct bench_end *e);
/* Number of buffers of config->size for each one in flight, at the end that has more. */
uint64_t bench_memory_parts(const struct bench_config *config);
/* Creates the pool and the slots for e->config. */
int bench_end_prepare(struct bench_end *e);
/* Frees the listener and the context. Freeing the context ends all requests. */
void bench_end_cut(struct bench_end *e);
/* Frees all that the functions above have created. */
void bench_end_close(struct bench_end *e);

/* Starts to listen at e->config->listen for one peer; further ones are disconnected. */
int bench_end_listen(struct bench_end *e);
/* Connects to the peer, and waits until the connection is up. */
int bench_end_connect(struct bench_end *e, const char *address);

/* Receiver: posts the first receives. The peer must be up. */
int bench_end_start_receiving(struct bench_end *e);
/* Sender: sends the first messages. Later ones are sent as slots become free. */
int bench_end_start_sending(struct bench_end *e);
/* True if all messages and answers are complete. */
bool bench_end_is_idle(const struct bench_end *e);
bool bench_end_is_up(const struct bench_end *e);
bool bench_end_is_down(const struct bench_end *e);

/* Drives the context until until(e) is true or a failure occurs; it is a failure
 * (-ETIMEDOUT) if no message has completed for 20 s. `what` is for the error text: what
 * the end is doing, such as "connecting". */
int bench_end_drive(
	struct bench_end *e, bool (*until)(const struct bench_end *e), const char *what);

/* Closes the connection and waits until it is down. */
int bench_end_say_goodbye(struct bench_end *e);

/* Sender: computes the result from the numbers of both ends; `other` has the receiver's.
 * Does not set result->fabric and result->pinned: the caller does. */
void bench_end_summarise(const struct bench_end *e, const struct bench_usage *other,
	struct bench_result *result);

/* Counts a message or an operation that is complete at this end, and takes the times of the
 * measurement's begin and end. */
void bench_end_count(struct bench_end *e);
/* The time from which, and to which, a round trip counts: with e->ticks in ticks of the
 * processor, whose counter takes less than half the time of the system's clock, else in ns.
 * The shortest round trips take 200 ns, and two readings of the clock 60. */
uint64_t bench_end_clock(const struct bench_end *e);

/* bench_group.c: collective operations, see there. prepare: makes the slots in e->pool;
 * start: makes the group of the two ends, and calls the first operations; close: frees the
 * slots. */
int bench_group_prepare(struct bench_end *e);
int bench_group_start(struct bench_end *e);
void bench_group_close(struct bench_end *e);

/* bench_window.c: puts and gets between the messages. prepare: takes memory of e->pool; start:
 * makes the window, or opens it and begins; sent: a message is complete; close: frees all. */
int bench_window_prepare(struct bench_end *e);
int bench_window_start(struct bench_end *e);
void bench_window_sent(struct bench_end *e);
void bench_window_close(struct bench_end *e);
/* Sender: sends further messages, up to the limit. */
void bench_end_send_more(struct bench_end *e);

/* For a forked child: lets the kernel kill it when its parent dies. `parent`: the
 * parent's process id, taken before the fork. */
void bench_end_with_parent(pid_t parent);

/* Pins the process to the n-th core, from 0, of those that it may use; false if it has
 * fewer, or if the system refuses. */
bool bench_pin(unsigned n);
/* Returns the number of cores that the process may use. */
unsigned bench_core_count(void);

#endif
