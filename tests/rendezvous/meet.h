/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the rendezvous conformance list: two contexts in one process, A (which
 * connects) and B (which listens), over the fabric of an instance. Each turn calls
 * tern_progress() on both.
 *
 * It always checks that done() is called only in tern_progress() or tern_context_free(),
 * and once per request; that the events of a peer come in a possible order; and that no
 * event comes after DOWN.
 */
#ifndef TERN_TESTS_RENDEZVOUS_MEET_H
#define TERN_TESTS_RENDEZVOUS_MEET_H

#include <tern/tern.h>

#include "tests/harness/bed.h"

#define MEET_CHANNEL 1u
/* eager_bytes of meet_opts(): larger tensors do not travel inside a message. */
#define MEET_EAGER 4096u
/* Slab size (memory is allocated a slab at a time) of the pools for TERN_RECV_ALLOC,
 * which may have four slabs. Small, because the simulated CUDA driver fills each slab
 * when it allocates it. */
#define MEET_SLAB_BYTES (4u << 20)

struct meet;

struct end {
	struct meet *meet;
	unsigned number; /* which end: A or B */
	struct tern_domain *domain;
	struct tern_context *ctx; /* NULL after it was freed */
	struct memory_box box;    /* memory that the tests send from and receive into */
	struct tern_pool *pool;   /* memory of receives with TERN_RECV_ALLOC */
	struct log_env log;
	struct tern_peer *peer; /* NULL: not connected yet, or freed */
	struct tern_channel *channel;
	bool working; /* a call is running that may call done() and events */
	bool asleep;  /* meet_turn() does not progress this end */
	unsigned up_count, suspect_count, recovered_count, down_count, accepted_count;
	int down_status, suspect_status;
	void (*on_event)(struct end *end, enum tern_peer_event event);
	/* Called for each notification of the peer. */
	void (*on_note)(struct end *end, const void *data, size_t bytes);
	void *arg; /* for use by the test */
};

struct meet {
	const struct instance *instance;
	void *world;
	struct end ends[2];
	struct tern_listener *listener; /* the listener, at end B only */
	unsigned idle_turns;
};

/* A request of a test, and how it ended. */
struct call {
	struct tern_req req;
	struct end *end;
	unsigned done_count;
	unsigned order; /* how many calls of this process ended before this one */
	struct tern_buf buf;
	void (*then)(struct call *call);
	void *arg;
};

/* Creates both ends with these options. B listens; A does not connect. */
struct meet *meet_new_apart(const struct instance *instance,
	const struct tern_context_opts *a, const struct tern_context_opts *b);
/* Creates both ends, connects A to B, and opens MEET_CHANNEL at both. Options NULL:
 * meet_opts(). */
struct meet *meet_new_with(const struct instance *instance,
	const struct tern_context_opts *a, const struct tern_context_opts *b);
struct meet *meet_new(const struct instance *instance);
void meet_free(struct meet *meet);
struct tern_context_opts meet_opts(void);

/* Makes B listen at `url`, also after an earlier listener was freed. */
void meet_listen(struct meet *meet, const char *url);
/* Start to connect A, to B or to `address`, and open MEET_CHANNEL at A. */
void meet_dial(struct meet *meet);
void meet_dial_at(struct meet *meet, const char *address);
/* Writes a URL: the instance's scheme ("tcp://") followed by `rest`. */
void meet_url(const struct instance *instance, const char *rest, char *out);

void meet_turn(struct meet *meet);
/* Makes enough turns for everything in flight to arrive. */
void meet_settle(struct meet *meet);
#define MEET_PUMP(meet_, cond) PUMP_WITH(meet_turn(meet_), (meet_)->instance->name, cond)

/* Start a send or a receive, and return the result of tern_send() or tern_recv(). */
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
/* Checks the result of a call that starts a request, and returns it. */
int call_started(struct call *call, int r);
static inline bool call_over(const struct call *call)
{
	return call->done_count > 0;
}
/* True if each of the calls has ended. */
bool calls_over(const struct call *calls, size_t count);
/* Checks that a receive succeeded, with `bytes` bytes of the pattern `seed`. */
void call_check(const struct call *call, uint64_t bytes, uint64_t seed);

struct tern_buf end_memory(struct end *end, enum memory kind, uint64_t bytes);
/* As end_memory(), and fills the memory with the pattern `seed`. */
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
extern const struct conformance_test meet_any[];
extern const struct conformance_test meet_links[];
extern const struct conformance_test meet_windows[];
extern const struct conformance_test meet_notes[];
extern const struct conformance_test meet_window_strangers[];
extern const struct conformance_test meet_window_turns[];

#endif
