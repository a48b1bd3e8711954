/* SPDX-License-Identifier: Apache-2.0 */
/* The implementations of copying with non-temporal stores, for tern_copy() and its
 * test. */
#ifndef TERN_TRANSPORT_MEMORY_COPY_H
#define TERN_TRANSPORT_MEMORY_COPY_H

#include <stdbool.h>
#include <stddef.h>

struct tern_copy_way {
	const char *name;
	bool (*supported)(void); /* True if this processor can run it. */
	/* Copies any size at any alignment. Its writes are ordered before every later
	 * store. */
	void (*copy)(void *dst, const void *src, size_t bytes);
};

/* Implementations, best first. The last one works on every processor; a NULL name ends
 * the list. */
extern const struct tern_copy_way tern_copy_ways[];

#endif
