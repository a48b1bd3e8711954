/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the conformance lists (two ends; all rules are always checked) on
 * simulated verbs devices, for tests of what only the verbs fabric has: devices that are
 * removed, limits, late completions.
 *
 * A connects from device 0 and B listens on device 1, unless the options or the address
 * name others. Time is real time plus the time that verbs_skip_ns() adds.
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

/* Fewer rounds with the thread sanitizer, which is slow, and finds nothing in a test with
 * one thread. */
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
	/* The option `verbs` of the domains; NULL: A's device for connecting. */
	const char *verbs;
	const char *listen; /* address at which B listens; NULL: an address of device 1 */
	/* Largest message of A and of B in bytes. 0: MESSAGE_BYTES, or for B the same as
	 * A's. */
	uint32_t message_bytes, b_message_bytes;
	bool one_domain; /* both ends share a domain */
};

/* The default options; a test changes some of them. */
struct verbs_bed_opts verbs_bed_defaults(void);
/* Opts NULL: the default options. */
struct bed *verbs_bed_new(const struct verbs_bed_opts *opts);
/* Closes every conn and frees the bed; checks that no object of the simulated machine is
 * left open. */
void verbs_bed_free(struct bed *bed);

/* True if one of the last log lines of either end contains `text`. */
bool verbs_logged(const struct bed *bed, const char *text);

/* Moves the clocks of both ends forward by `ns`. */
void verbs_skip_ns(uint64_t ns);

/* link_say() for messages that are longer than those of the bed. */
int verbs_say(struct link *link, size_t bytes);
void verbs_say_surely(struct link *link, size_t bytes);

/* Polls only this side, `count` times. */
void side_turns(struct side *side, unsigned count);

/* Messages, and up to 8 puts and 8 gets, that load_push() starts on a conn. */
struct load {
	/* The two ends of a conn; all operations start at `link`. */
	struct link *link, *other;
	struct tern_buf here, there;
	struct tern_region region;
	struct work puts[8], gets[8];
	unsigned put_count, get_count; /* number of operations started */
	unsigned message_bytes;
};
/* Each put and get has `bytes` bytes. Exposes memory of `other`. */
void load_init(struct load *load, struct link *link, struct link *other, uint64_t bytes);
/* Sends one message, and starts one put and one get, as far as the fabric accepts them;
 * true if it accepted any. Does nothing after the conn has ended. */
bool load_push(struct load *load);
/* Checks that each put and get has ended once. Returns how many ended with `status`. */
unsigned load_ended(const struct load *load, int status);

/* Checks that the conn works: sends messages both ways and waits for them. */
void check_works(struct link *a, struct link *b);
/* Waits until `link` ends, and checks its status. */
void check_ends(struct link *link, int status);

#endif
