/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that all programs that measure a pair of processes share: arguments, pinning,
 * tensors, timing and the JSON line at the end. A peer (a library that Tern is compared
 * with) provides four operations. pair_main() runs them as `tern bench` runs Tern, so
 * that all figures mean the same: N bytes are sent and 8 bytes come back; the receiver
 * gets the N bytes in a tensor of its own; the first messages are checked byte for byte.
 *
 *     sender                              receiver
 *     post(n): starts to send tensor n    receive(n): waits until tensor n has arrived
 *     await(n): waits until tensor n        in its place
 *       may be reused and, if             answer(n): if pair_answered(), sends 8
 *       pair_answered(), its answer         bytes
 *       has arrived
 *
 * Message n uses slot n % inflight (tensor and requests) at both ends. The sender posts up
 * to `inflight` messages before it awaits the first of them; it awaits them in order. A
 * library's receiver that posts receives in advance posts one for each slot in begin(),
 * and the next one of the slot in answer().
 *
 * Where the messages are those of steps (`in_steps`), each slot has a size of its own: a
 * step is one message of each slot. The receiver answers the last message of each step,
 * and the sender begins the next step when it has that answer.
 *
 * In both directions (`both_ways`), each answer has as many bytes as its message, and the
 * sender gets them in another tensor of the slot; the first answers are checked, too. The
 * sender posts the receives of answers in advance, and answer() does not wait until the
 * answer has left.
 *
 * With --threads, each end has several threads, and thread i of the sender is connected
 * with thread i of the receiver. Each thread has a struct pair, and calls those operations
 * that get one, except close(). So a program keeps its state for each thread
 * (_Thread_local, or p->state), except for objects of which the library's documentation
 * recommends one for the process. All threads of an end start at a barrier, and the figures
 * are those of all of them together.
 */
#ifndef TERN_BENCH_PAIR_H
#define TERN_BENCH_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAIR_REPLY_BYTES 8

struct pair {
	/* These members are the same at both ends. */
	/* which of the peer's variants to use; "" if it has only one */
	const char *variant;
	size_t size; /* bytes of each message; in steps, of all messages of a step together */
	size_t size_max; /* bytes of the largest message of this run */
	unsigned inflight;
	bool in_steps;
	bool both_ways; /* answer n has pair_bytes(p, n) bytes, not PAIR_REPLY_BYTES */
	/* Messages of the present size: `total`, of which the first `warmup` are not
	 * counted. */
	uint64_t warmup, total;
	/* true: each message is answered. false: only the last one of the warm-up, the last
	 * one of all and, with in_steps, the last one of each step. */
	bool reply_each;
	bool poll; /* true: the ends poll; false: they sleep between events */
	/* ns from the planned start of a measured message to that of the next one. A message
	 * that starts later, since the answer before it came too late, has its round trip
	 * counted from the planned start. 0: a message starts when there is a slot for it. See
	 * start_of() in pair.c. */
	uint64_t every_ns;
	/* the sender writes new contents into its tensor before each message */
	bool rewrite;
	bool sender;
	unsigned threads; /* threads of each end; 0: only the main thread */
	unsigned thread;  /* number of this thread, from 0 */

	char host[16];  /* IPv4 address at which the receiver listens */
	char local[16]; /* IPv4 address of this end; the same as `host` at the receiver */
	int fd;         /* socket to the other process, for pair_tell() and pair_hear() */
	void *state;    /* for the peer's own use */
	unsigned char *tensors;
	size_t replies_at; /* offset of the answers in `tensors`; used with both_ways */
	/* Size of each slot's tensor, and its offset in `tensors`: use pair_bytes() and
	 * pair_tensor(). */
	struct pair_slot *slots;
};

struct pair_ops {
	const char *name;
	/* names of the variants, as "unary,stream"; "" if there is only one */
	const char *variants;
	const char *waits; /* allowed values of --wait, as "poll,sleep" */
	bool both_ways;    /* the program can do --test both */
	bool threads;      /* the program can do --threads */
	const char *(*version)(void);
	/* NULL: pair_main() forks the second process, or runs one end of two hosts. Else
	 * (MPI) another program has started both, and this returns the number of this
	 * process: 0 sends, 1 receives. */
	int (*rank)(void);
	/* Returns `bytes` of memory for the tensors, every page of which has been touched.
	 * Called once by each thread, before open(). NULL: any memory will do. */
	unsigned char *(*memory)(struct pair *p, size_t bytes);
	/* Connects the two ends. Called at both ends, once by each thread. */
	void (*open)(struct pair *p);
	/* Called before the first message of each size, at both ends; may be NULL. */
	void (*begin)(struct pair *p);
	void (*post)(struct pair *p, uint64_t n);
	void (*await)(struct pair *p, uint64_t n);
	void (*receive)(struct pair *p, uint64_t n);
	void (*answer)(struct pair *p, uint64_t n);
	/* Receiver: waits until all its answers have left. Called when the warm-up has ended,
	 * and after the last message of a size. NULL: answer() waits. */
	void (*flush)(struct pair *p);
	/* Sender: lets the library handle its events, without waiting. Called after the last
	 * message of a size, again and again until the receiver has returned from flush(): the
	 * receiver's library may need acknowledgements of the last answers from the sender's.
	 * NULL: the sender need not do anything for that. */
	void (*progress)(struct pair *p);
	void (*close)(struct pair *p); /* may be NULL */
};

int pair_main(int argc, char **argv, const struct pair_ops *ops);

/* Prints the text on stderr and exits with status 1. */
void pair_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* As pair_die(), with "what: text (status)", if `status` (a library's error code or a
 * negative errno) is not 0; `text` explains the status. */
void pair_must(const char *what, int status, const char *text);

/* Returns the slot of message n. If there is only one, as in a round trip, it is found without
 * a division: a round trip would need some ten of them, of about 5 ns each, and the shortest
 * ones take 200 ns. */
static inline unsigned pair_slot(const struct pair *p, uint64_t n)
{
	return p->inflight == 1 ? 0 : (unsigned)(n % p->inflight);
}

bool pair_answered(const struct pair *p, uint64_t n); /* true if message n is answered */
size_t pair_bytes(const struct pair *p, uint64_t n);  /* size of message n */
/* Returns the memory of tensor n. All tensors are in huge pages if the system has them,
 * and every page was touched before. */
unsigned char *pair_tensor(const struct pair *p, uint64_t n);
/* Returns the memory of answer n, where answers are tensors (`--test both`): the receiver
 * sends it from there, and the sender gets it there. It has pair_bytes(p, n) bytes. */
unsigned char *pair_reply(const struct pair *p, uint64_t n);

/* Sends bytes to the other process over p->fd, beside the library that is measured. */
void pair_tell(const struct pair *p, const void *data, size_t bytes);
/* Reads exactly `bytes` bytes that the other process has sent with pair_tell(). */
void pair_hear(const struct pair *p, void *data, size_t bytes);

/* ---- also used by other programs of this folder ---- */

/* Tells the processor that the caller spins in a loop. */
static inline void pair_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

uint64_t bench_now_ns(void);
/* Processor time of this process, all threads, in ns, without softirqs. */
uint64_t bench_cpu_ns(void);
/* Pins the calling thread, and the threads that it starts later, to the n-th core, from 0, of
 * those that it may use; false if it has fewer, or if it cannot be pinned. */
bool bench_pin(unsigned n);
/* Allocates zeroed memory: every page is touched, huge pages are requested; `shared`:
 * shared with processes that are forked later. */
void *bench_memory(size_t bytes, bool shared);
/* Maps a file in memory (memfd), shared, in huge pages if the system can, and touches every
 * page. `bytes` is a multiple of 2 MiB. */
void *bench_map(int fd, size_t bytes);
/* Returns a percentile (`share` from 0 to 1) by nearest rank. Sorts the values. */
uint64_t bench_percentile(uint64_t *values, uint64_t count, double share);
/* Parses a list such as "64,4K,1M" into out[] and returns how many numbers it has; exits
 * with an error if the list is wrong or has more than `most`. */
unsigned bench_sizes(const char *text, uint64_t *out, unsigned most);
/* Fills a tensor with the contents of message n; checks whether a tensor has these. */
void bench_fill(unsigned char *p, size_t bytes, uint64_t n);
bool bench_holds(const unsigned char *p, size_t bytes, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
