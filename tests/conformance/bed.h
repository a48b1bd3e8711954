/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the fabric conformance list: two ends of one fabric in one process, A
 * (which connects) and B (which listens), each with a domain and a port of its own, and
 * everything that the contract of transport/fabric.h promises for all calls checked all
 * the time: handlers and done() run in poll() only, `closed` comes once and last, every
 * op ends once and before it, messages arrive whole, aligned, in order and once.
 *
 * A test asks for links (conns as seen from one end), says numbered messages on them and
 * pumps until something is true. Nothing here measures time; a pump that has had no
 * success for long fails the test, so that a lost event is a failure and not a hang.
 */
#ifndef TERN_TESTS_CONFORMANCE_BED_H
#define TERN_TESTS_CONFORMANCE_BED_H

#include "tests/cmocka.h"

#include <tern/context.h>
#include <tern/memory.h>

#include "base/env.h"
#include "base/list.h"
#include "transport/domain.h"
#include "transport/fabric.h"

#define MESSAGE_BYTES   8192u
#define SAY_HEAD_BYTES  16u
#define SAY_MOST_BYTES  (MESSAGE_BYTES - SAY_HEAD_BYTES)
#define BED_ADDRESS_MAX 128

/* One program run: a fabric with one set of options. */
struct instance {
	const char *name;   /* "tcp-epoll" */
	const char *fabric; /* "tcp" */
	struct tern_domain_opts opts;
	struct tern_domain_hooks hooks;
	/* Called first: why it cannot run here, or NULL. May be NULL itself. */
	const char *(*unavailable)(void);
	bool can_sleep; /* fd() and arm() are of use */
	bool alone;     /* both ends must be in one process */
	unsigned gpus;  /* 1 << A, 1 << B: whose memory is a GPU's */
	bool uses_gpu;  /* the others' domains use the device as well */
	bool ipc;       /* the driver has CUDA IPC */
	bool direct;    /* the fabric reaches it */
	/* The number-th address to listen at; one at which nobody listens. */
	void (*address)(char *out, unsigned number);
	void (*nobody)(char *out);
	const char *const *malformed; /* NULL-terminated */
	const char *elsewhere; /* well-formed and not of this machine; may be NULL */
	/* Fabrics without a world leave these NULL. */
	void *(*world_new)(void);
	void (*world_free)(void *world);
	struct tern_env *(*world_env)(void *world, unsigned side);
	struct tern_domain *(*world_domain)(void *world, unsigned side); /* the world's */
	void (*world_step)(void *world); /* lets virtual time pass */
};

/*
 * `name` without what it ends with ("-gpu", "-gpu-a", "-gpu-b", and others that
 * instance_gpu.c lists) is an instance: that one with the memory of both ends, of A or of
 * B in a simulated GPU. NULL: it is not, or this build knows no GPUs.
 */
const struct instance *conformance_with_gpus(const char *name);

extern const struct instance conformance_sim, conformance_sim_get;
extern const struct instance conformance_verbs, conformance_verbs_own_queue,
	conformance_verbs_guard, conformance_verbs_least;
/* NULL-terminated; empty where the headers of rdma-core are missing */
extern const struct instance *const conformance_fakes[];
extern const struct instance *const conformance_instances[]; /* NULL-terminated */

enum side_name { A, B };

struct link;

/* An environment that keeps the last log lines. */
struct log_env {
	struct tern_env env;
	char lines[8][256];
	unsigned count;
};

/* How tests get at memory of a GPU; NULL as long as nobody uses one. */
struct device_memory {
	const void *api;                /* a struct tern_cuda_api */
	void (*reset)(bool background); /* a new GPU, that behaves in another way */
	uint64_t (*take)(uint64_t bytes);
	void (*give)(uint64_t address);
	void (*write)(uint64_t address, const void *from, uint64_t bytes);
	void (*read)(void *to, uint64_t address, uint64_t bytes);
};
extern const struct device_memory *device_memory;

/* Memory of one domain, freed all at once. */
struct memory_box {
	struct tern_domain *domain;
	bool gpu;               /* all of it is a GPU's */
	struct tern_pool *pool; /* made at first use */
	struct tern_list wraps;
};

struct side {
	struct bed *bed;
	struct tern_domain *domain;
	struct tern_fabric *fabric;
	struct tern_port *port;
	struct memory_box box;
	struct tern_region regions[64]; /* exposed by link_expose, not withdrawn yet */
	unsigned region_count;
	struct tern_list links; /* every link there ever was */
	struct log_env log;
	bool polling;
	bool asleep; /* the pump leaves it alone */
	void (*on_accepted)(struct link *link);
	unsigned accepted_count;
};

struct bed {
	const struct instance *instance;
	void *world;
	struct side sides[2];
	struct tern_lsn *lsn; /* B's, at address 0 */
	void *arg;            /* the test's */
	unsigned idle_turns;
};

/* One end of a conn, kept until the bed goes. */
struct link {
	struct tern_list node;
	struct side *side;
	struct tern_conn *conn; /* NULL once it is closed */
	struct tern_lsn *lsn;   /* NULL: made with connect */
	bool up;
	unsigned closed_count;
	int status;
	unsigned writable_count;
	uint64_t said, heard; /* numbered messages */
	uint64_t heard_bytes;
	unsigned ops_out;
	struct tern_region region; /* what fork tests' children hand over */
	/* Replaces the check of numbered messages. */
	int (*on_message)(struct link *link, const void *data, size_t bytes);
	void (*on_heard)(struct link *link); /* after a numbered message was checked */
	void (*on_up)(struct link *link);
	void (*on_writable)(struct link *link);
	void (*on_closed)(struct link *link);
	void *arg;
};

struct work {
	struct tern_op op;
	struct link *link; /* NULL: of a withdrawal */
	struct side *side;
	unsigned done_count;
	int status;
	void (*then)(struct work *work);
	void *arg;
};

void log_env_init(struct log_env *log);
/* Is `text` in one of the last lines? */
bool log_env_has(const struct log_env *log, const char *text);

/* NULL if the instance can be opened here, else why not. */
const char *bed_unavailable(const struct instance *instance);

/* The domain of one side: a new one, or the world's. */
struct tern_domain *instance_domain(
	const struct instance *instance, void *world, unsigned side);

/* Fails the test when it cannot. B listens. */
struct bed *bed_new(const struct instance *instance);
/* The same with another limit of messages at each end. */
struct bed *bed_new_sized(
	const struct instance *instance, uint32_t a_bytes, uint32_t b_bytes);
/* Closes what is open, and checks that all of it ended. */
void bed_free(struct bed *bed);

/* Lets both ends move once. */
void bed_turn(struct bed *bed);
/* What one side's poll() returned. */
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

/* Turns that let everything under way arrive, where nothing tells that it has. */
void bed_settle(struct bed *bed);

/* Starts to connect A to B's listener. */
struct link *bed_dial(struct bed *bed);
struct link *bed_dial_at(struct bed *bed, enum side_name side, const char *address);
/* A conn that is up: both of its ends. */
void bed_pair(struct bed *bed, struct link **a, struct link **b);
/* The next numbered message, of SAY_HEAD_BYTES + `bytes`; send's status. */
int link_say(struct link *link, size_t bytes);
/* The same, pumping while there is no room. */
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
/* The same, pumping while there is no room. */
void link_put_surely(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset);
void link_get_surely(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset);
/* Exposes all of `buf`; fails the test if it is refused. */
struct tern_region link_expose(
	struct link *link, const struct tern_buf *buf, enum tern_access access);
/* Withdraws, and pumps until nothing lands any more. */
void side_withdraw(struct side *side, const struct tern_region *region);
/* Withdraws; true: done() will tell. */
bool side_withdraw_start(
	struct side *side, struct work *work, const struct tern_region *region);
/* peek() to its end: 0 with *out, or -ENOTSUP. */
int link_peek(struct link *link, const struct tern_region *region, uint64_t remote_offset,
	uint64_t bytes, const void **out);

/* Bytes number `start` and on of the stream `seed`. */
void pattern_fill(void *to, uint64_t bytes, uint64_t seed, uint64_t start);
bool pattern_holds(const void *at, uint64_t bytes, uint64_t seed, uint64_t start);
/* The same with what is in a buffer, also in memory of a GPU. */
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

/* Skips the test, saying why. */
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
	NEEDS_SLEEP = 1 << 3,   /* can_sleep */
	NEEDS_LIES = 1 << 5,    /* a peer that breaks the rules */
	NEEDS_TCP = 1 << 4,     /* sockets that a test can cut, rails */
	NEEDS_PROCESS = 1 << 7, /* a second process */
	NEEDS_EAGER = 1 << 8,   /* what A sends leaves at once, if it is small */
	NEEDS_GUARD = 1 << 6,   /* the fabric enforces regions: no TERN_CAP_UNGUARDED */
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
 * Runs lists (each ends with a NULL name) on the instance that the arguments name, with
 * cmocka: PROGRAM INSTANCE [FILTER]. 77 if this machine or this build does not have the
 * fabric; tests for which missing() has a reason are skipped, each with a line that says
 * so.
 */
int conformance_main(int argc, char **argv, const struct conformance_test *const lists[],
	size_t list_count,
	const char *(*missing)(const struct instance *instance, unsigned needs));

/*
 * A second process: the program anew, which calls conformance_child() with these two
 * descriptors. Not just a fork: devices that this process has opened are of no use in
 * another. The child's id.
 */
pid_t conformance_spawn(const struct instance *instance, int in, int out);
/* Each program's own. */
_Noreturn void conformance_child(const struct instance *instance, int in, int out);

extern const struct conformance_test conformance_messages[];
extern const struct conformance_test conformance_ends[];
extern const struct conformance_test conformance_memory[];
extern const struct conformance_test conformance_regions[];
extern const struct conformance_test conformance_sleep[];
extern const struct conformance_test conformance_death[];

#endif
