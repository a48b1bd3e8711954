/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A measurement between two processes: one sends tensors, one receives them. Both are
 * forked on this host, or the receiver is on another host (bench_hosts.h). Tensors are
 * moved through the public interface of the rendezvous only.
 */
#ifndef TERN_TOOLS_BENCH_PAIR_H
#define TERN_TOOLS_BENCH_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/fabric.h"

/* Where a tensor is received. In each case tern_req.data then points to it. */
enum bench_receive {
	BENCH_RECEIVE_ROOM,  /* into a buffer that was allocated before */
	BENCH_RECEIVE_ALLOC, /* into a buffer that Tern allocates from the pool */
	BENCH_RECEIVE_PEEK,  /* read in place in the sender's memory, if the fabric can */
};

/* Largest values that a struct bench_config may have. */
#define BENCH_SIZE_MAX     (1ull << 36)
#define BENCH_INFLIGHT_MAX 4096u
#define BENCH_ROUNDS_MAX   1000000000u

/* A collective operation that both ends call, instead of tensors from one to the other. */
enum bench_collective {
	BENCH_NO_COLLECTIVE,
	BENCH_ALLREDUCE, /* the sum of two tensors of f32 */
	BENCH_ALLTOALL,  /* both ends exchange one half */
};
/* A tensor of a collective operation is a multiple of this: two parts of f32. */
#define BENCH_COLLECTIVE_BYTES 8u

/* Operations of the test window, in the order of their batches. */
enum bench_op { BENCH_PUT, BENCH_PUT_NOTE, BENCH_GET, BENCH_SEND, BENCH_OPS };

enum bench_pin { BENCH_PIN_AUTO, BENCH_PIN_YES, BENCH_PIN_NO };

struct bench_config {
	struct fabric_settings fabric;
	const char *secret; /* secret of both ends; NULL: none */
	/* HOST:PORT where the receiver listens; NULL: see fabric_listen_address(). */
	const char *listen;
	/* Address of a `tern bench --serve` on another host, which receives; NULL: a
	 * process of this host receives. */
	const char *connect;
	/* with `connect`: the client makes no further measurement after this one */
	bool last;
	uint64_t size;     /* bytes of one tensor, at least 1 */
	uint32_t inflight; /* largest number of tensors in flight at once */
	uint64_t warmup,
		/* messages sent before and during the measurement, at least 1 each */
		rounds;
	bool sleep; /* both ends sleep, instead of polling, while there is nothing to do */
	/* the sender writes new contents into each tensor before it sends it */
	bool rewrite;
	enum bench_receive receive;
	enum bench_collective collective;
	bool window;        /* puts and gets, too: bench_window.c */
	enum bench_pin pin; /* pin each end to its own core; auto: only if they poll */
	/* Every message is answered by 8 bytes, and its round trip is timed. If false,
	 * the message rate is measured: only the last message of the warm-up and the last
	 * of all are answered. */
	bool reply_each;
	/* With reply_each: ns from the planned start of a measured message to that of the
	 * next one. If no slot is free at its planned start, a message starts later, but
	 * its round trip counts from the planned start. 0: nothing is planned; a message
	 * starts when there is a slot for it. */
	uint64_t every_ns;
};

struct bench_result {
	/* time that the measured rounds took, until the last answer */
	uint64_t elapsed_ns;
	uint64_t cpu_ns;        /* processor time of both processes in elapsed_ns */
	uint64_t registrations; /* memory registrations of both processes in elapsed_ns */
	/* percentiles of the round trips, with reply_each */
	uint64_t p50_ns, p99_ns, p999_ns;
	/* the test window: percentiles of each operation, and the time of all of them */
	struct bench_op_result {
		uint64_t p50_ns, p99_ns, p999_ns, took_ns;
	} ops[BENCH_OPS];
	/* each end was pinned to its own core; with `connect`: this end was pinned */
	bool pinned;
	char fabric[16]; /* name of the fabric that was used */
};

struct bench_error {
	/* The user can correct the failure, such as a fabric that does not work on this
	 * host: exit code 2. */
	bool input;
	char text[320];
};

/* Runs a measurement. It forks, so no thread may have been started. Returns 0, or a
 * negative status with error->text. The receiver checks the contents of the first
 * `inflight` messages. */
int bench_pair_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error);

#endif
