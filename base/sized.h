/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures that a program and the library share, although the two may have been built
 * with different versions of the headers. A public function that takes such a structure
 * gets the size that it has in the program (an inline function in the header passes it).
 * New fields are only added at the end, never into padding, so the shorter structure is a
 * prefix of the longer one, and a field of 0 has the same effect as a missing one.
 */
#ifndef TERN_BASE_SIZED_H
#define TERN_BASE_SIZED_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/util.h"

/* Copies a program's options `theirs` to the library's structure `own`. Fields that
 * `theirs` is too short for become 0; if it is NULL, all fields become 0. -E2BIG: the
 * program sets an option that this library does not have. */
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

/* Copies the library's results `own` to the program's structure `theirs`. Fields that the
 * program does not know are left out; fields that this library does not have become 0. */
static inline void tern_write_sized(
	void *theirs, size_t their_bytes, const void *own, size_t own_bytes)
{
	memset(theirs, 0, their_bytes);
	memcpy(theirs, own, TERN_MIN(own_bytes, their_bytes));
}

#endif
