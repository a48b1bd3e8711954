/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A measurement between two forked processes: one sends, one receives. Tensors go through
 * the public interface of the rendezvous only.
 */
#ifndef TERN_TOOLS_BENCH_PAIR_H
#define TERN_TOOLS_BENCH_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/fabric.h"

/* Where a tensor is received; in each case it is read from there (tern_req.data). */
enum bench_receive {
	BENCH_RECEIVE_ROOM,  /* into a tensor that exists already */
	BENCH_RECEIVE_ALLOC, /* into a tensor that is allocated from the pool */
	BENCH_RECEIVE_PEEK,  /* in place, if the fabric can */
};

enum bench_pin { BENCH_PIN_AUTO, BENCH_PIN_YES, BENCH_PIN_NO };

struct bench_config {
	struct fabric_settings fabric;
	const char *secret; /* for both ends; NULL: none */
	/* HOST:PORT of the receiver; NULL: see fabric_listen_address(). */
	const char *listen;
	uint64_t size;     /* bytes of one tensor, at least 1 */
	uint32_t inflight; /* tensors in flight at once */
	uint64_t warmup,
		rounds; /* messages before and during the measurement, at least 1 each */
	bool sleep;     /* both ends sleep between events instead of polling */
	bool rewrite;   /* the sender writes each tensor anew before it sends it */
	enum bench_receive receive;
	enum bench_pin pin; /* pin each end to a core of its own; auto: if they poll */
	/* Every message is answered by 8 bytes, and round trips are timed. If false
	 * only the last one is answered, and the rate is measured. */
	bool reply_each;
};

struct bench_result {
	uint64_t elapsed_ns; /* duration of the measured rounds, until the last answer */
	uint64_t cpu_ns;     /* processor time of both processes during them */
	uint64_t registrations; /* memory registrations of both processes during them */
	uint64_t p50_ns, p99_ns, p999_ns; /* with reply_each */
	bool pinned;                      /* the ends ran on different cores */
	char fabric[16];                  /* the fabric that was used */
};

struct bench_error {
	/* The failure is the user's to correct: something asked for is not there. */
	bool input;
	char text[320];
};

/* Runs a measurement. It forks, so no thread may have been started. 0, or a negative
 * status with the text. The receiver checks the first message of each slot byte for
 * byte. */
int bench_pair_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error);

#endif
