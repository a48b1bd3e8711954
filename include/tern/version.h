/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Version of these headers. tern_version() returns the version of the library that the
 * process runs with, which may be later: see docs/compatibility.md.
 */
#ifndef TERN_VERSION_H
#define TERN_VERSION_H

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 1
#define TERN_VERSION_PATCH 0
#define TERN_VERSION       "0.1.0"

/* A version as one number, for comparisons: #if TERN_VERSION_NUMBER >= TERN_VERSION_OF(0,
 * 2, 0) */
#define TERN_VERSION_OF(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define TERN_VERSION_NUMBER                                                              \
	TERN_VERSION_OF(TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH)

#endif
