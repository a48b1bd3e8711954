/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures that a program and the library share, where either may be the older one.
 * A function of the interface is told the size that the program knows (an inline function
 * in the header says it), and new fields are added at the end only, never into padding,
 * so that the shorter one is a prefix of the other; a field of 0 is as if it were not
 * there.
 */
#ifndef TERN_BASE_SIZED_H
#define TERN_BASE_SIZED_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/util.h"

/* Options into `own`; what `theirs` lacks, or all of them if it is NULL, is 0. -E2BIG: it
 * sets one that this library does not have. */
static inline int tern_read_sized(
	void *own, size_t own_bytes, const void *theirs, size_t their_bytes)
{
	const char *from = theirs;

	memset(own, 0, own_bytes);
	if (!theirs)
		return 0;
	for (size_t i = own_bytes; i < their_bytes; i++)
		if (from[i])
			return -E2BIG;
	memcpy(own, theirs, TERN_MIN(own_bytes, their_bytes));
	return 0;
}

/* Results into `theirs`: what the program does not know is left out, and what this
 * library does not have is 0. */
static inline void tern_write_sized(
	void *theirs, size_t their_bytes, const void *own, size_t own_bytes)
{
	memset(theirs, 0, their_bytes);
	memcpy(theirs, own, TERN_MIN(own_bytes, their_bytes));
}

#endif
