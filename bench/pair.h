/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every program of two processes shares: arguments, pinning, tensors, timing and the
 * line of JSON at the end. A peer gives four operations; pair_main() runs them as `tern
 * bench` runs Tern, so that all figures mean the same: N bytes out and 8 back, into a
 * tensor that belongs to the user, first messages checked byte for byte.
 *
 *     sender                              receiver
 *     post(n): start to send tensor n     receive(n): until tensor n is in its place
 *     await(n): until it may be used      answer(n): send 8 bytes
 *       again and, if pair_answered(),
 *       its answer is here
 *
 * Message n lies in slot n % inflight at both ends. The sender posts `inflight` messages
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
	/* What was asked for. */
	const char *variant; /* of the peer's own: which of its ways, "" if it has one */
	size_t size, size_max;
	unsigned inflight;
	uint64_t warmup, total; /* messages of this size; the first `warmup` do not count
				 */
	bool reply_each;        /* else only the warm-up's and the run's last are answered
				 */
	bool poll;              /* else sleep between events */
	bool rewrite; /* the sender writes its tensor anew before each message */
	bool sender;

	int fd;      /* to the other process, for addresses: pair_tell, pair_hear */
	void *state; /* the peer's */
	unsigned char *tensors;
};

struct pair_ops {
	const char *name;
	const char *variants; /* "unary,stream"; "" if there is one way */
	const char *waits;    /* "poll,sleep": what --wait may be */
	const char *(*version)(void);
	int (*rank)(void); /* NULL: pair_main forks. Else who this process is, 0 sends */
	void (*open)(struct pair *p);  /* once: connected when it returns at both ends */
	void (*begin)(struct pair *p); /* for each size, at both ends; may be NULL */
	void (*post)(struct pair *p, uint64_t n);
	void (*await)(struct pair *p, uint64_t n);
	void (*receive)(struct pair *p, uint64_t n);
	void (*answer)(struct pair *p, uint64_t n);
	void (*close)(struct pair *p); /* may be NULL */
};

int pair_main(int argc, char **argv, const struct pair_ops *ops);

/* Says why on stderr and ends the process. */
void pair_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* The same for a negative errno or a library's status, unless it is 0. */
void pair_must(const char *what, int status, const char *text);

bool pair_answered(const struct pair *p, uint64_t n);
/* Tensor n, in huge pages where the system gives them, touched. */
unsigned char *pair_tensor(const struct pair *p, uint64_t n);

void pair_tell(const struct pair *p, const void *data, size_t bytes);
/* Reads exactly so many. */
void pair_hear(const struct pair *p, void *data, size_t bytes);

/* ---- also for programs that are not a pair ---- */

/* In a loop that spins. */
static inline void pair_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

uint64_t bench_now_ns(void);
uint64_t bench_cpu_ns(void); /* of this process, all threads; no softirq */
/* The n-th core that this process may use; false if there are not that many. */
bool bench_pin(unsigned n);
/* Zeroed, touched, advised to be huge; shared between forks or not. */
void *bench_memory(size_t bytes, bool shared);
/* Percentile by nearest rank; sorts. */
uint64_t bench_percentile_ns(uint64_t *values, uint64_t count, double share);
/* "64,4K,1M": how many were written to out; dies if one is not a number of bytes. */
unsigned bench_sizes(const char *text, uint64_t *out, unsigned most);
/* Contents of tensor number n, and whether it holds them. */
void bench_fill(unsigned char *p, size_t bytes, uint64_t n);
bool bench_holds(const unsigned char *p, size_t bytes, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
