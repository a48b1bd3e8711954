/* SPDX-License-Identifier: Apache-2.0 */
/* The ways of copying around the cache, for tern_copy and its test. */
#ifndef TERN_TRANSPORT_COPY_H
#define TERN_TRANSPORT_COPY_H

#include <stdbool.h>
#include <stddef.h>

struct tern_copy_way {
	const char *name;
	bool (*supported)(void); /* by this processor */
	/* Any size, any alignment. What it wrote is ordered before every later store. */
	void (*copy)(void *dst, const void *src, size_t bytes);
};

/* Best first; the last one works everywhere. Ends with a NULL name. */
extern const struct tern_copy_way tern_copy_ways[];

#endif
