/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the fabric conformance list: two ends of one fabric in one process, A
 * (which connects) and B (which listens), each with a domain and a port of its own. It
 * always checks the general rules of transport/fabric.h: event handlers and the done() of
 * operations are called in poll() only, `closed` is called once and last, every operation
 * ends once and before `closed`, and numbered messages arrive whole, in order and once.
 *
 * A test opens links (a link is a conn as seen from one end), sends numbered messages on
 * them, and pumps (polls both ends in turn) until a condition holds. A pump whose
 * condition does not come to hold within a time limit (20 s, or longer: patience_new())
 * fails the test, so a lost event is a failure and not a hang.
 */
#ifndef TERN_TESTS_HARNESS_BED_H
#define TERN_TESTS_HARNESS_BED_H

#include "tests/harness/cmocka.h"

#include <tern/context.h>
#include <tern/memory.h>

#include "base/env.h"
#include "base/list.h"
#include "tests/harness/instance.h"
#include "tests/harness/pattern.h"
#include "transport/domain.h"
#include "transport/fabric.h"

#define MESSAGE_BYTES  8192u
#define SAY_HEAD_BYTES 16u
#define SAY_MOST_BYTES (MESSAGE_BYTES - SAY_HEAD_BYTES)

/*
 * If `name` is the name of an instance with a suffix for a simulated GPU ("-gpu": the
 * memory of both ends is in it, "-gpu-a": only A's, "-gpu-b": only B's; more in
 * instance_gpu.c), returns that instance. NULL: `name` is no such name. Exists only in
 * builds with GPU support.
 */
const struct instance *conformance_with_gpus(const char *name);

enum side_name { A, B };

struct link;

/* An environment that keeps the last 8 log lines. */
struct log_env {
	struct tern_env env;
	char lines[8][256];
	unsigned count;
};

/* Functions with which tests access GPU memory. */
struct device_memory {
	const void *api; /* a struct tern_cuda_api */
	/* Replaces the simulated GPU by a new one, which does its work at other moments
	 * than the one before. background: a thread also does that work. */
	void (*reset)(bool background);
	uint64_t (*take)(uint64_t bytes);
	void (*give)(uint64_t address);
	void (*write)(uint64_t address, const void *from, uint64_t bytes);
	void (*read)(void *to, uint64_t address, uint64_t bytes);
};
/* NULL: the instance (fabric and options under test) has no GPU. */
extern const struct device_memory *device_memory;

/* Buffers allocated in one domain, which box_free() frees all at once. */
struct memory_box {
	struct tern_domain *domain;
	bool gpu; /* the buffers are in GPU memory */
	/* Pools for small and for large buffers: created with their first buffer. */
	struct tern_pool *pools[2];
	struct tern_list wraps;
};

struct side {
	struct bed *bed;
	struct tern_domain *domain;
	struct tern_fabric *fabric;
	struct tern_port *port;
	struct memory_box box;
	/* Regions that link_expose() has exposed, and whose revocation has not been started
	 * yet. */
	struct tern_region regions[64];
	unsigned region_count;
	/* All links of this side since it was opened, closed ones too. */
	struct tern_list links;
	struct log_env log;
	bool polling;
	bool asleep; /* bed_turn() does not poll this side */
	void (*on_accepted)(struct link *link);
	unsigned accepted_count;
};

struct bed {
	const struct instance *instance;
	void *world;
	struct side sides[2];
	struct tern_lsn *lsn; /* B's listener, at the instance's address number 0 */
	void *arg;            /* for use by the test */
	unsigned idle_turns;
};

/* One end of a conn, kept until the bed is freed. */
struct link {
	struct tern_list node;
	struct side *side;
	struct tern_conn *conn; /* NULL after it is closed */
	/* NULL: the conn was made by connecting, not accepted by a listener. */
	struct tern_lsn *lsn;
	bool up;
	unsigned closed_count;
	int status;
	unsigned writable_count;
	/* How many numbered messages this end has sent and received. */
	uint64_t said, heard;
	uint64_t heard_bytes;
	unsigned ops_out;
	/* In tests with a child process: the region that the child has sent. */
	struct tern_region region;
	/* If set, it is called for each message, and the bed does not check the message's
	 * number and contents. */
	int (*on_message)(struct link *link, const void *data, size_t bytes);
	/* Called after each numbered message that was right. */
	void (*on_heard)(struct link *link);
	void (*on_up)(struct link *link);
	void (*on_writable)(struct link *link);
	void (*on_closed)(struct link *link);
	void *arg;
};

/* A put, a get, a peek, or the revocation of a region, and how it ended. */
struct work {
	struct tern_op op;
	/* NULL: this is the revocation of a region. */
	struct link *link;
	struct side *side;
	unsigned done_count;
	int status;
	void (*then)(struct work *work);
	void *arg;
};

void log_env_init(struct log_env *log);
/* True if one of the kept log lines contains `text`. */
bool log_env_has(const struct log_env *log, const char *text);

/* NULL if the instance can run on this machine, else the reason why it cannot. */
const char *bed_unavailable(const struct instance *instance);

/* The domain of side A or B: a new one, or, if there is a `world`, the one that the world
 * has for this side. */
struct tern_domain *instance_domain(
	const struct instance *instance, void *world, unsigned side);

/* Creates a bed with a listener at B; fails the test on an error. */
struct bed *bed_new(const struct instance *instance);
/* As bed_new(), but limits messages to `a_bytes` at A and to `b_bytes` at B. */
struct bed *bed_new_sized(
	const struct instance *instance, uint32_t a_bytes, uint32_t b_bytes);
/* Closes all links, checks that every operation and conn has ended, and frees the bed. */
void bed_free(struct bed *bed);

/* Polls each side once that is not asleep; in a simulated world also lets time pass. */
void bed_turn(struct bed *bed);
/* Polls one side; returns what the port's poll() returned. */
int side_poll(struct side *side, int budget);

/* Repeats `turn` until `cond` holds; fails the test if that takes too long. */
#define PUMP_WITH(turn, name, cond)                                                      \
	do {                                                                             \
		struct patience patience_ = patience_new();                              \
		while (!(cond)) {                                                        \
			turn;                                                            \
			if (!patience_left(&patience_))                                  \
				fail_msg("%s: never happened: %s", name, #cond);         \
		}                                                                        \
	} while (0)
#define PUMP(bed_, cond) PUMP_WITH(bed_turn(bed_), (bed_)->instance->name, cond)

/* The limits of a pump: a time, and a number of turns. */
struct patience {
	uint64_t until_ns;
	unsigned turns;
};
struct patience patience_new(void);
bool patience_left(struct patience *patience);

/* Polls often enough for everything in flight to arrive, where no event reports the
 * arrival. */
void bed_settle(struct bed *bed);

/* Starts to connect from A to B's listener; returns A's link. */
struct link *bed_dial(struct bed *bed);
struct link *bed_dial_at(struct bed *bed, enum side_name side, const char *address);
/* Connects A to B, and waits until both ends are up. */
void bed_pair(struct bed *bed, struct link **a, struct link **b);
/* Sends the next numbered message, of SAY_HEAD_BYTES + `bytes`; returns the result of the
 * fabric's send(). */
int link_say(struct link *link, size_t bytes);
/* As link_say(), but while the fabric refuses the message for lack of space, polls and
 * retries. */
void link_say_surely(struct link *link, size_t bytes);
void link_close(struct link *link, bool flush);
static inline uint32_t link_caps(const struct link *link)
{
	return link->conn->caps;
}

/* SLAB: from a pool of Tern (in a GPU, buffers above 2 MiB are as USER); USER: allocated
 * by the bed, and wrapped; BRIEF: wrapped with tern_mem_wrap_brief() (in a GPU as USER). */
enum memory { SLAB, USER, BRIEF };

void box_init(struct memory_box *box, struct tern_domain *domain);
struct tern_buf box_take(struct memory_box *box, enum memory kind, uint64_t bytes);
void box_free(struct memory_box *box);
/* Takes memory of one side; the bed frees it. */
static inline struct tern_buf side_memory(
	struct side *side, enum memory kind, uint64_t bytes)
{
	return box_take(&side->box, kind, bytes);
}

int link_put(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset);
int link_get(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset);
/* Starts a put; while the fabric refuses it for lack of space, polls and retries. */
void link_put_surely(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset);
void link_get_surely(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset);
/* Lets the peer access all of `buf`; fails the test if the fabric refuses. */
struct tern_region link_expose(
	struct link *link, const struct tern_buf *buf, enum tern_access access);
/* Withdraws the region, and polls until the fabric has ended that. From then on no more
 * bytes can arrive in it, unless the conn has TERN_CAP_UNGUARDED: such a peer is only
 * trusted not to write. */
void side_withdraw(struct side *side, const struct tern_region *region);
/* Starts to revoke the peer's access to the region. True: done() will be called when it
 * is revoked; false: it is revoked already, and done() is not called. */
bool side_withdraw_start(
	struct side *side, struct work *work, const struct tern_region *region);
/* Calls the fabric's peek() (access to the peer's memory without a copy), again while it
 * returns -EAGAIN or, in the simulator, -ENOTSUP. Returns 0 and sets *out; or returns the
 * error of peek(); or, if the conn ends meanwhile, the conn's status. */
int link_peek(struct link *link, const struct tern_region *region, uint64_t remote_offset,
	uint64_t bytes, const void **out);

/* As pattern_fill() and pattern_holds(), for a buffer, which may be in GPU memory. */
void buf_fill_from(const struct tern_buf *buf, uint64_t seed, uint64_t start);
bool buf_holds_from(const struct tern_buf *buf, uint64_t seed, uint64_t start);
static inline void buf_fill(const struct tern_buf *buf, uint64_t seed)
{
	buf_fill_from(buf, seed, 0);
}
static inline bool buf_holds(const struct tern_buf *buf, uint64_t seed)
{
	return buf_holds_from(buf, seed, 0);
}
struct tern_buf buf_part(const struct tern_buf *buf, uint64_t offset, uint64_t bytes);

/* Ends the test as skipped, and prints the reason. */
#define SKIP(bed_, reason)                                                               \
	do {                                                                             \
		print_message("skipped: %s\n", reason);                                  \
		bed_free(bed_);                                                          \
		skip();                                                                  \
	} while (0)

/* ---- the lists ---- */

enum needs {
	NEEDS_NOTHING = 0,
	NEEDS_PUT = 1 << 0,
	NEEDS_GET = 1 << 1,
	NEEDS_PEEK = 1 << 2,
	NEEDS_SLEEP = 1 << 3, /* the instance has can_sleep */
	/* The test makes an end violate the protocol, and the fabric must refuse that. */
	NEEDS_LIES = 1 << 5,
	/* Conns are TCP sockets that a test can cut, and there are rails. */
	NEEDS_TCP = 1 << 4,
	NEEDS_PROCESS = 1 << 7, /* the peer can be a second process */
	/* A sends small tensors inside a message (EAGER), since its memory is not in a
	 * GPU. */
	NEEDS_EAGER = 1 << 8,
	/* B sends small tensors inside a message (EAGER), since its memory is not in a
	 * GPU. */
	NEEDS_EAGER_B = 1 << 10,
	/* A copies its GPU tensors to bounce buffers (host memory), from which B reads. */
	NEEDS_BOUNCE = 1 << 9,
	/* The fabric itself checks accesses to regions: no TERN_CAP_UNGUARDED. */
	NEEDS_GUARD = 1 << 6,
};

struct conformance_test {
	const char *name;
	void (*run)(const struct instance *instance);
	unsigned needs;
};

#define CONFORMANCE(test, needs_)                                                        \
	{                                                                                \
#test, test, needs_                                                      \
	}

/*
 * Runs lists of tests (each list ends with a NULL name) with cmocka, on the instance that
 * the arguments name: PROGRAM INSTANCE [FILTER|PART/PARTS]. Returns the number of failed
 * tests; 2 if there is no such instance or test; 77 if this machine or this build does not have
 * the fabric. If missing() returns a reason for a test, the test is skipped, with a line
 * that gives the reason.
 */
int conformance_main(int argc, char **argv, const struct conformance_test *const lists[],
	size_t list_count,
	const char *(*missing)(const struct instance *instance, unsigned needs));

/*
 * Starts this program again as a second process, in which conformance_child() is called
 * with the descriptors `in` and `out`. A mere fork would not work, since RDMA and GPU
 * devices that a process has opened cannot be used in its forked child. Returns the
 * child's process id.
 */
pid_t conformance_spawn(const struct instance *instance, int in, int out);
/* Main function of the second process; each program defines its own. */
_Noreturn void conformance_child(const struct instance *instance, int in, int out);

extern const struct conformance_test conformance_messages[];
extern const struct conformance_test conformance_ends[];
extern const struct conformance_test conformance_memory[];
extern const struct conformance_test conformance_regions[];
extern const struct conformance_test conformance_sleep[];
extern const struct conformance_test conformance_death[];

#endif
