/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bed of the conformance lists (two ends, all promises checked all the time) on
 * simulated verbs devices, for tests of what only this fabric has: devices that go,
 * limits, completions that are late.
 *
 * A connects from device 0, B listens on device 1, unless the options or the address say
 * otherwise. Time is real, plus what verbs_skip_ns() added.
 */
#ifndef TERN_TESTS_UNIT_VERBS_BED_H
#define TERN_TESTS_UNIT_VERBS_BED_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tests/conformance/bed.h"
#include "tests/fake_verbs/fake_verbs.h"

#define LONG_MESSAGE_BYTES 66000u

/* The thread sanitiser is slow, and finds nothing where there is one thread. */
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
	const char *verbs;  /* as in tern_domain_opts; NULL: from A's device */
	const char *listen; /* NULL: on device 1 */
	uint32_t message_bytes, b_message_bytes; /* 0: MESSAGE_BYTES; as A's */
	bool one_domain;                         /* for both ends */
};

/* All as usual: change what the test is about. */
struct verbs_bed_opts verbs_bed_defaults(void);
struct bed *verbs_bed_new(const struct verbs_bed_opts *opts); /* NULL: the defaults */
/* Ends every conn, and checks that nothing of the simulated machine is left open. */
void verbs_bed_free(struct bed *bed);

/* Is `text` in one of the last lines of either end? */
bool verbs_logged(const struct bed *bed, const char *text);

/* Both ends' clocks go on by so much. */
void verbs_skip_ns(uint64_t ns);

/* link_say() for messages longer than the bed's own. */
int verbs_say(struct link *link, size_t bytes);
void verbs_say_surely(struct link *link, size_t bytes);

/* Polls of one side alone. */
void side_turns(struct side *side, unsigned count);

/* Messages, puts and gets that go on until their conn ends. */
struct load {
	struct link *link, *other; /* they start at `link` */
	struct tern_buf here, there;
	struct tern_region region;
	struct work puts[8], gets[8];
	unsigned put_count, get_count; /* started */
	unsigned message_bytes;
};
/* `bytes` of each put and get. Exposes memory at `other`. */
void load_init(struct load *load, struct link *link, struct link *other, uint64_t bytes);
/* Starts what there is room for; true if anything. Nothing once the conn ended. */
bool load_push(struct load *load);
/* Checks: each of them ended once; how many with `status`. */
unsigned load_ended(const struct load *load, int status);

/* Says messages both ways and waits until they are there: the conn works. */
void check_works(struct link *a, struct link *b);
/* `link` ends with this status. */
void check_ends(struct link *link, int status);

#endif
