/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the fabric conformance list: two ends of one fabric in one process, A
 * (which connects) and B (which listens), each with a domain and a port of its own. It
 * always checks the general rules of transport/fabric.h: handlers and done() run in
 * poll() only, `closed` comes once and last, every op ends once and before it, and
 * messages arrive whole, aligned, in order and once.
 *
 * A test opens links (a link is a conn as seen from one end), sends numbered messages on
 * them, and pumps until a condition holds. Nothing here measures time. A pump that makes
 * no progress for long fails the test, so that a lost event is a failure and not a hang.
 */
#ifndef TERN_TESTS_HARNESS_BED_H
#define TERN_TESTS_HARNESS_BED_H

#include "tests/harness/cmocka.h"

#include <tern/context.h>
#include <tern/memory.h>

#include "base/env.h"
#include "base/list.h"
#include "tests/harness/instance.h"
#include "transport/domain.h"
#include "transport/fabric.h"

#define MESSAGE_BYTES  8192u
#define SAY_HEAD_BYTES 16u
#define SAY_MOST_BYTES (MESSAGE_BYTES - SAY_HEAD_BYTES)

/*
 * If `name` is the name of an instance with a suffix ("-gpu", "-gpu-a", "-gpu-b", or
 * another one in instance_gpu.c), returns that instance with the memory of both ends, of
 * A or of B in a simulated GPU. NULL: it is not, or this build has no GPU support.
 */
const struct instance *conformance_with_gpus(const char *name);

enum side_name { A, B };

struct link;

/* An environment that keeps the last log lines. */
struct log_env {
	struct tern_env env;
	char lines[8][256];
	unsigned count;
};

/* How tests access GPU memory; NULL until a test uses a GPU. */
struct device_memory {
	const void *api;                /* a struct tern_cuda_api */
	void (*reset)(bool background); /* makes a new GPU, with a different timing */
	uint64_t (*take)(uint64_t bytes);
	void (*give)(uint64_t address);
	void (*write)(uint64_t address, const void *from, uint64_t bytes);
	void (*read)(void *to, uint64_t address, uint64_t bytes);
};
extern const struct device_memory *device_memory;

/* Memory of one domain, freed all at once. */
struct memory_box {
	struct tern_domain *domain;
	bool gpu;               /* all of it is GPU memory */
	struct tern_pool *pool; /* made at first use */
	struct tern_list wraps;
};

struct side {
	struct bed *bed;
	struct tern_domain *domain;
	struct tern_fabric *fabric;
	struct tern_port *port;
	struct memory_box box;
	/* Regions exposed by link_expose() and not withdrawn yet. */
	struct tern_region regions[64];
	unsigned region_count;
	struct tern_list links; /* all links that were ever made */
	struct log_env log;
	bool polling;
	bool asleep; /* the pump does not poll it */
	void (*on_accepted)(struct link *link);
	unsigned accepted_count;
};

struct bed {
	const struct instance *instance;
	void *world;
	struct side sides[2];
	struct tern_lsn *lsn; /* listener of B, at address 0 */
	void *arg;            /* for the test */
	unsigned idle_turns;
};

/* One end of a conn, kept until the bed is freed. */
struct link {
	struct tern_list node;
	struct side *side;
	struct tern_conn *conn; /* NULL after it is closed */
	struct tern_lsn *lsn;   /* NULL: it was made with connect */
	bool up;
	unsigned closed_count;
	int status;
	unsigned writable_count;
	uint64_t said, heard; /* numbered messages sent and received */
	uint64_t heard_bytes;
	unsigned ops_out;
	struct tern_region region; /* region that the child of a fork test passes on */
	/* Replaces the check of numbered messages. */
	int (*on_message)(struct link *link, const void *data, size_t bytes);
	/* Called after a numbered message was checked. */
	void (*on_heard)(struct link *link);
	void (*on_up)(struct link *link);
	void (*on_writable)(struct link *link);
	void (*on_closed)(struct link *link);
	void *arg;
};

struct work {
	struct tern_op op;
	struct link *link; /* NULL: this is a withdrawal */
	struct side *side;
	unsigned done_count;
	int status;
	void (*then)(struct work *work);
	void *arg;
};

void log_env_init(struct log_env *log);
/* True if `text` is in one of the last lines. */
bool log_env_has(const struct log_env *log, const char *text);

/* NULL if the instance can be opened here, else the reason. */
const char *bed_unavailable(const struct instance *instance);

/* The domain of one side: a new one, or one of the world. */
struct tern_domain *instance_domain(
	const struct instance *instance, void *world, unsigned side);

/* Makes a bed in which B listens; fails the test on an error. */
struct bed *bed_new(const struct instance *instance);
/* The same with another limit of messages at each end. */
struct bed *bed_new_sized(
	const struct instance *instance, uint32_t a_bytes, uint32_t b_bytes);
/* Closes all links, and checks that everything has ended. */
void bed_free(struct bed *bed);

/* Polls each end once. */
void bed_turn(struct bed *bed);
/* Polls one side and returns the result of poll(). */
int side_poll(struct side *side, int budget);

/* Repeats `turn` until `cond` holds; fails the test if it never does. */
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

struct patience {
	uint64_t until_ns;
	unsigned turns;
};
struct patience patience_new(void);
bool patience_left(struct patience *patience);

/* Runs turns until everything in flight has arrived, for cases without an event that
 * tells. */
void bed_settle(struct bed *bed);

/* Starts to connect A to B's listener. */
struct link *bed_dial(struct bed *bed);
struct link *bed_dial_at(struct bed *bed, enum side_name side, const char *address);
/* Makes a conn, and waits until both ends are up. */
void bed_pair(struct bed *bed, struct link **a, struct link **b);
/* Sends the next numbered message, of SAY_HEAD_BYTES + `bytes`; returns the status of
 * send. */
int link_say(struct link *link, size_t bytes);
/* The same, but pumps while there is no room. */
void link_say_surely(struct link *link, size_t bytes);
void link_close(struct link *link, bool flush);
static inline uint32_t link_caps(const struct link *link)
{
	return link->conn->caps;
}

enum memory { SLAB, USER };

void box_init(struct memory_box *box, struct tern_domain *domain);
struct tern_buf box_take(struct memory_box *box, enum memory kind, uint64_t bytes);
void box_free(struct memory_box *box);
/* Memory of one side, freed with the bed. */
static inline struct tern_buf side_memory(
	struct side *side, enum memory kind, uint64_t bytes)
{
	return box_take(&side->box, kind, bytes);
}

int link_put(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset);
int link_get(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset);
/* Puts, and pumps while there is no room. */
void link_put_surely(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset);
void link_get_surely(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset);
/* Exposes all of `buf`; fails the test if that is refused. */
struct tern_region link_expose(
	struct link *link, const struct tern_buf *buf, enum tern_access access);
/* Withdraws, and pumps until no bytes land any more. */
void side_withdraw(struct side *side, const struct tern_region *region);
/* Starts to withdraw; true: done() will tell the end. */
bool side_withdraw_start(
	struct side *side, struct work *work, const struct tern_region *region);
/* Runs peek() to its end: 0 with *out, or -ENOTSUP. */
int link_peek(struct link *link, const struct tern_region *region, uint64_t remote_offset,
	uint64_t bytes, const void **out);

/* Fills memory with bytes `start` and on of the stream `seed`, and checks it. */
void pattern_fill(void *to, uint64_t bytes, uint64_t seed, uint64_t start);
bool pattern_holds(const void *at, uint64_t bytes, uint64_t seed, uint64_t start);
/* The same for a buffer, also in GPU memory. */
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

/* Skips the test and says why. */
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
	NEEDS_SLEEP = 1 << 3,    /* can_sleep */
	NEEDS_LIES = 1 << 5,     /* a peer that violates the protocol */
	NEEDS_TCP = 1 << 4,      /* sockets that a test can cut, and rails */
	NEEDS_PROCESS = 1 << 7,  /* a second process */
	NEEDS_EAGER = 1 << 8,    /* small messages of A are sent at once */
	NEEDS_EAGER_B = 1 << 10, /* small messages of B are sent at once */
	/* What A sends needs bounce buffers, whose number can be limited. */
	NEEDS_BOUNCE = 1 << 9,
	NEEDS_GUARD = 1 << 6, /* the fabric enforces regions: no TERN_CAP_UNGUARDED */
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
 * Runs lists (each ends with a NULL name) with cmocka, on the instance that the arguments
 * name: PROGRAM INSTANCE [FILTER]. Returns 77 if this machine or this build does not have
 * the fabric. Tests for which missing() has a reason are skipped, each with a line that
 * says so.
 */
int conformance_main(int argc, char **argv, const struct conformance_test *const lists[],
	size_t list_count,
	const char *(*missing)(const struct instance *instance, unsigned needs));

/*
 * Starts the program again as a second process, which calls conformance_child() with
 * these two descriptors. A fork would not do, since devices that this process has opened
 * cannot be used in another. Returns the child's id.
 */
pid_t conformance_spawn(const struct instance *instance, int in, int out);
/* Each program defines its own. */
_Noreturn void conformance_child(const struct instance *instance, int in, int out);

extern const struct conformance_test conformance_messages[];
extern const struct conformance_test conformance_ends[];
extern const struct conformance_test conformance_memory[];
extern const struct conformance_test conformance_regions[];
extern const struct conformance_test conformance_sleep[];
extern const struct conformance_test conformance_death[];

#endif
