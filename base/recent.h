/* SPDX-License-Identifier: Apache-2.0 */
/* How often something has happened lately: at most so many times in any stretch of so much time. */
#ifndef TERN_BASE_RECENT_H
#define TERN_BASE_RECENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TERN_RECENT_KEPT 32u

struct tern_recent { /* all zeros: it has never happened */
	uint64_t count;
	uint64_t times_ns[TERN_RECENT_KEPT]; /* the first `count`, the oldest one first */
};

static inline void tern_recent_forget(struct tern_recent *r, uint64_t how_many)
{
	r->count -= how_many;
	memmove(r->times_ns, r->times_ns + how_many, r->count * sizeof(*r->times_ns));
}

/* Counts one more time. False, and it does not count: there were `most` in the window_ns before. If as many
 * as are kept were in that time, and `most` allows more, the oldest one is forgotten. */
static inline bool tern_recent_count(
	struct tern_recent *r, uint64_t window_ns, uint64_t most, uint64_t now_ns)
{
	uint64_t old = 0;

	while (old < r->count && now_ns - r->times_ns[old] > window_ns)
		old++;
	tern_recent_forget(r, old);
	if (r->count >= most)
		return false;
	if (r->count == TERN_RECENT_KEPT)
		tern_recent_forget(r, 1);
	r->times_ns[r->count++] = now_ns;
	return true;
}

#endif
