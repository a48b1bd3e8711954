/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A measurement between two processes, forks of this one: one sends, one receives;
 * tensors go through the public rendezvous interface and nothing below it.
 */
#ifndef TERN_TOOLS_BENCH_PAIR_H
#define TERN_TOOLS_BENCH_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/fabric.h"

/* Where a tensor lands; whichever it is, it is read from there (tern_req.data). */
enum bench_receive {
	BENCH_RECEIVE_ROOM,  /* in a tensor that is there already */
	BENCH_RECEIVE_ALLOC, /* in one that is taken from the pool for it */
	BENCH_RECEIVE_PEEK,  /* in place, where the fabric can */
};

enum bench_pin { BENCH_PIN_AUTO, BENCH_PIN_YES, BENCH_PIN_NO };

struct bench_config {
	struct fabric_settings fabric;
	const char *secret; /* of both ends; NULL: none */
	const char *listen; /* HOST:PORT of the receiver; NULL: see fabric_listen_address
			     */
	uint64_t size;      /* bytes of one tensor, at least 1 */
	uint32_t inflight;  /* how many are on their way at once */
	uint64_t warmup,
		rounds; /* messages before and during the measurement, at least 1 each */
	bool sleep;     /* both ends sleep between events instead of polling */
	bool rewrite;   /* the sender writes each tensor anew before it sends it */
	enum bench_receive receive;
	enum bench_pin pin; /* each end to a core of its own; auto: if they poll */
	bool reply_each; /* every message is answered by 8 bytes: round trips are timed.
			    Else only the last one is: a rate */
};

struct bench_result {
	uint64_t elapsed_ns;              /* the measured rounds, until the last answer */
	uint64_t cpu_ns;                  /* of both processes, during them */
	uint64_t registrations;           /* of both processes, during them */
	uint64_t p50_ns, p99_ns, p999_ns; /* with reply_each */
	bool pinned;                      /* the ends ran on different cores */
	char fabric[16];                  /* the one that carried it */
};

struct bench_error {
	bool input; /* what was asked for is not there: the user's to put right */
	char text[320];
};

/* Forks: no thread may have been started. 0, or a negative status with the text. The
 * first message of each slot is checked byte for byte at the receiver. */
int bench_pair_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error);

#endif
