/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bed of the conformance lists (two ends, all rules always checked) on simulated
 * verbs devices, for tests of what only this fabric has: devices that are removed,
 * limits, late completions.
 *
 * A connects from device 0, B listens on device 1, unless the options or the address say
 * otherwise. Time is real, plus the time that verbs_skip_ns() adds.
 */
#ifndef TERN_TESTS_TRANSPORT_VERBS_VERBS_BED_H
#define TERN_TESTS_TRANSPORT_VERBS_VERBS_BED_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tests/harness/bed.h"
#include "tests/fakes/verbs/fake_verbs.h"

#define LONG_MESSAGE_BYTES 66000u

/* The thread sanitizer is slow, and finds nothing in a test with one thread. */
#if defined(__SANITIZE_THREAD__)
#define ROUNDS(count) (((count) + 5) / 6)
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ROUNDS(count) (((count) + 5) / 6)
#endif
#endif
#ifndef ROUNDS
#define ROUNDS(count) (count)
#endif

struct verbs_bed_opts {
	struct fake_verbs_opts fake;
	const char *verbs;  /* as in tern_domain_opts; NULL: connect from A's device */
	const char *listen; /* NULL: an address of device 1 */
	/* 0: MESSAGE_BYTES, and the same as A's. */
	uint32_t message_bytes, b_message_bytes;
	bool one_domain; /* both ends share a domain */
};

/* The defaults: a test changes what it is about. */
struct verbs_bed_opts verbs_bed_defaults(void);
struct bed *verbs_bed_new(const struct verbs_bed_opts *opts); /* NULL: the defaults */
/* Ends every conn, and checks that no object of the simulated machine is left open. */
void verbs_bed_free(struct bed *bed);

/* True if `text` is in one of the last log lines of either end. */
bool verbs_logged(const struct bed *bed, const char *text);

/* Moves the clocks of both ends forward. */
void verbs_skip_ns(uint64_t ns);

/* link_say() for messages longer than the bed's own. */
int verbs_say(struct link *link, size_t bytes);
void verbs_say_surely(struct link *link, size_t bytes);

/* Polls one side only. */
void side_turns(struct side *side, unsigned count);

/* Messages, puts and gets that continue until their conn ends. */
struct load {
	struct link *link, *other; /* they start at `link` */
	struct tern_buf here, there;
	struct tern_region region;
	struct work puts[8], gets[8];
	unsigned put_count, get_count; /* number started */
	unsigned message_bytes;
};
/* `bytes` is the size of each put and get. Exposes memory at `other`. */
void load_init(struct load *load, struct link *link, struct link *other, uint64_t bytes);
/* Starts as many operations as there is room for; true if any. Does nothing after the
 * end of the conn. */
bool load_push(struct load *load);
/* Checks that each operation has ended once; returns how many ended with `status`. */
unsigned load_ended(const struct load *load, int status);

/* Sends messages both ways and waits for their arrival: the conn works. */
void check_works(struct link *a, struct link *b);
/* Waits until `link` ends, and checks its status. */
void check_ends(struct link *link, int status);

#endif
