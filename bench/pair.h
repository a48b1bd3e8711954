/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that all programs of two processes share: arguments, pinning, tensors, timing and
 * the JSON line at the end. A peer provides four operations; pair_main() runs them as
 * `tern bench` runs Tern, so that all figures mean the same: N bytes are sent and 8 bytes
 * come back; the receiver gets them in a tensor of its own; the first messages are
 * checked byte for byte.
 *
 *     sender                              receiver
 *     post(n): starts to send tensor n    receive(n): until tensor n is in its place
 *     await(n): until it may be reused    answer(n): sends 8 bytes
 *       and, if pair_answered(),
 *       its answer is here
 *
 * Message n uses slot n % inflight at both ends. The sender posts `inflight` messages
 * before it awaits the first, in order. A receiver that posts receives ahead does so in
 * answer(), before it answers: the steady state of training.
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
	/* Parameters of the run. */
	const char *variant; /* which way of the peer to use; "" if it has only one */
	size_t size, size_max;
	unsigned inflight;
	/* Messages of this size; the first `warmup` are not counted. */
	uint64_t warmup, total;
	/* false: only the last message of the warm-up and of the run is answered. */
	bool reply_each;
	bool poll;    /* false: sleep between events */
	bool rewrite; /* the sender writes its tensor anew before each message */
	bool sender;

	int fd; /* socket to the other process, for addresses: pair_tell, pair_hear */
	void *state; /* for the peer's own data */
	unsigned char *tensors;
};

struct pair_ops {
	const char *name;
	const char *variants; /* "unary,stream"; "" if there is only one way */
	const char *waits;    /* allowed values of --wait: "poll,sleep" */
	const char *(*version)(void);
	/* NULL: pair_main forks. Else returns which process this is; 0 sends. */
	int (*rank)(void);
	/* Called once; both ends are connected when it returns. */
	void (*open)(struct pair *p);
	/* Called for each size, at both ends; may be NULL. */
	void (*begin)(struct pair *p);
	void (*post)(struct pair *p, uint64_t n);
	void (*await)(struct pair *p, uint64_t n);
	void (*receive)(struct pair *p, uint64_t n);
	void (*answer)(struct pair *p, uint64_t n);
	void (*close)(struct pair *p); /* may be NULL */
};

int pair_main(int argc, char **argv, const struct pair_ops *ops);

/* Prints a reason on stderr and ends the process. */
void pair_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* The same for a negative errno or a library's status, unless it is 0. */
void pair_must(const char *what, int status, const char *text);

bool pair_answered(const struct pair *p, uint64_t n);
/* Memory of tensor n: huge pages if the system gives them, every page touched. */
unsigned char *pair_tensor(const struct pair *p, uint64_t n);

void pair_tell(const struct pair *p, const void *data, size_t bytes);
/* Reads exactly `bytes` bytes. */
void pair_hear(const struct pair *p, void *data, size_t bytes);

/* ---- also used by programs without a pair ---- */

/* Call this in a loop that spins. */
static inline void pair_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

uint64_t bench_now_ns(void);
/* Processor time of this process, all threads, without softirqs. */
uint64_t bench_cpu_ns(void);
/* Pins the process to the n-th core that it may use; false if it has fewer. */
bool bench_pin(unsigned n);
/* Zeroed memory, every page touched, advised to be huge; `shared`: shared with forks. */
void *bench_memory(size_t bytes, bool shared);
/* Percentile by nearest rank. Sorts the values. */
uint64_t bench_percentile_ns(uint64_t *values, uint64_t count, double share);
/* Parses "64,4K,1M" into out[] and returns how many there are; ends the process if one
 * is not a number of bytes. */
unsigned bench_sizes(const char *text, uint64_t *out, unsigned most);
/* Fills tensor number n, and checks its contents. */
void bench_fill(unsigned char *p, size_t bytes, uint64_t n);
bool bench_holds(const unsigned char *p, size_t bytes, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
