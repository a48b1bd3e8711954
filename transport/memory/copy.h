/* SPDX-License-Identifier: Apache-2.0 */
/* Implementations of a memory copy for tern_copy() and its test: all but the last use
 * non-temporal stores. */
#ifndef TERN_TRANSPORT_MEMORY_COPY_H
#define TERN_TRANSPORT_MEMORY_COPY_H

#include <stdbool.h>
#include <stddef.h>

struct tern_copy_way {
	const char *name;
	bool (*supported)(void); /* True if this processor can run copy(). */
	/* Copies any size at any alignment. Its non-temporal stores are ordered before
	 * every later store. */
	void (*copy)(void *dst, const void *src, size_t bytes);
};

/* The implementations, best first. The last one works on every processor; an entry with a
 * NULL name ends the list. */
extern const struct tern_copy_way tern_copy_ways[];

#endif
