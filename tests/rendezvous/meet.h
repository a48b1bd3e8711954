/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the rendezvous conformance list: two contexts in one process, A (which
 * connects) and B (which listens), progressed in turn, over the fabric of an instance.
 *
 * It always checks that done() runs only in tern_progress or tern_context_free, and once
 * per request; that events of a peer come in a possible order; and that none comes after
 * DOWN.
 */
#ifndef TERN_TESTS_RENDEZVOUS_MEET_H
#define TERN_TESTS_RENDEZVOUS_MEET_H

#include <tern/tern.h>

#include "tests/harness/bed.h"

#define MEET_CHANNEL 1u
#define MEET_EAGER   4096u /* eager threshold of both ends */
/* Slab size of the pools of TERN_RECV_ALLOC, which have four slabs. It is small
 * because a simulated device writes all of each. */
#define MEET_SLAB_BYTES (4u << 20)

struct meet;

struct end {
	struct meet *meet;
	unsigned number; /* A or B */
	struct tern_domain *domain;
	struct tern_context *ctx; /* NULL after it was freed */
	struct memory_box box;    /* memory to send from and receive into */
	struct tern_pool *pool;   /* for TERN_RECV_ALLOC */
	struct log_env log;
	struct tern_peer *peer; /* NULL: none yet, or freed */
	struct tern_channel *channel;
	bool working; /* inside tern_progress or tern_context_free */
	bool asleep;  /* the pump does not progress it */
	unsigned up_count, suspect_count, recovered_count, down_count, accepted_count;
	int down_status, suspect_status;
	void (*on_event)(struct end *end, enum tern_peer_event event);
};

struct meet {
	const struct instance *instance;
	void *world;
	struct end ends[2];
	struct tern_listener *listener; /* listener of B */
	unsigned idle_turns;
};

/* A request, and how it ended. */
struct call {
	struct tern_req req;
	struct end *end;
	unsigned done_count;
	unsigned order; /* number of calls in this process that ended before it */
	struct tern_buf buf;
	void (*then)(struct call *call);
	void *arg;
};

/* Makes both ends with these options (their env is replaced). B listens; A does not
 * connect. */
struct meet *meet_new_apart(const struct instance *instance,
	const struct tern_context_opts *a, const struct tern_context_opts *b);
/* The same, connected, with MEET_CHANNEL open at both ends. NULL: the defaults of the
 * tests. */
struct meet *meet_new_with(const struct instance *instance,
	const struct tern_context_opts *a, const struct tern_context_opts *b);
struct meet *meet_new(const struct instance *instance);
void meet_free(struct meet *meet);
struct tern_context_opts meet_opts(void);

/* Lets B listen (again), at `url`. */
void meet_listen(struct meet *meet, const char *url);
/* Starts to connect A to B, or to another address; opens MEET_CHANNEL. */
void meet_dial(struct meet *meet);
void meet_dial_at(struct meet *meet, const char *address);
/* Writes the URL of an address of the instance: adds "tcp://" and so on. */
void meet_url(const struct instance *instance, const char *rest, char *out);

void meet_turn(struct meet *meet);
void meet_settle(struct meet *meet);
#define MEET_PUMP(meet_, cond) PUMP_WITH(meet_turn(meet_), (meet_)->instance->name, cond)

/* call_send() and the others return the result of tern_send() and so on. */
int call_send(struct call *call, struct end *end, uint64_t key, uint64_t step,
	const struct tern_buf *buf, unsigned flags);
int call_send_as(struct call *call, struct tern_channel *channel, uint64_t key,
	uint64_t step, const struct tern_tensor *tensor, const char *name,
	unsigned flags);
int call_recv(struct call *call, struct end *end, uint64_t key, uint64_t step,
	const struct tern_buf *room, unsigned flags);
int call_recv_as(struct call *call, struct tern_channel *channel, uint64_t key,
	uint64_t step, const struct tern_buf *room, const char *name, unsigned flags);
void call_init(struct call *call, struct end *end);
static inline bool call_over(const struct call *call)
{
	return call->done_count > 0;
}
/* True if all calls have ended. */
bool calls_over(const struct call *calls, size_t count);
/* Checks a receive that succeeded with `bytes` bytes of the stream `seed`. */
void call_check(const struct call *call, uint64_t bytes, uint64_t seed);

struct tern_buf end_memory(struct end *end, enum memory kind, uint64_t bytes);
/* The same memory, filled with the stream `seed`. */
struct tern_buf end_data(
	struct end *end, enum memory kind, uint64_t bytes, uint64_t seed);

#define MEET_SKIP(meet_, reason)                                                         \
	do {                                                                             \
		print_message("skipped: %s\n", reason);                                  \
		meet_free(meet_);                                                        \
		skip();                                                                  \
	} while (0)

extern const struct conformance_test meet_paths[];
extern const struct conformance_test meet_pairing[];
extern const struct conformance_test meet_order[];
extern const struct conformance_test meet_cancel[];
extern const struct conformance_test meet_ends[];
extern const struct conformance_test meet_strangers[];
extern const struct conformance_test meet_flow[];
extern const struct conformance_test meet_death[];
extern const struct conformance_test meet_age[];
extern const struct conformance_test meet_links[];

#endif
