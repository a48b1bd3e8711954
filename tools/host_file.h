/* SPDX-License-Identifier: Apache-2.0 */
/* The two file operations of struct tern_env, implemented with blocking system calls
 * on the environment's file thread. Any thread may call them. */
#ifndef TERN_TOOLS_HOST_FILE_H
#define TERN_TOOLS_HOST_FILE_H

#include <stdbool.h>

#include "base/env.h"

/*
 * Executes `op` and sets its status, and for READ data and bytes; does not call done().
 * READ: the errno of open or read, -EISDIR, -ENOMEM. WRITE: any errno; then `path` is
 * unchanged and no other file is left (or, if the directory could not be synced, the file
 * is new and complete but may not survive a power failure). If the directory may not be
 * read, or its file system cannot sync directories, that is not an error but a warning in
 * the log.
 */
void host_file_run(struct tern_file_op *op);

/*
 * Reads a file as TERN_FILE_READ does. `stop` is called after each piece of some MiB: if
 * it returns true, reading ends with -ECANCELED. May be NULL. *data is from malloc(),
 * NUL-terminated, and set only if 0 is returned.
 */
int host_file_read(
	const char *path, bool (*stop)(void *arg), void *arg, void **data, size_t *bytes);

/* Tests whether a file of `bytes` could be written in `directory` now: makes one,
 * reserves its space, removes it and syncs the directory. Returns the errno of the
 * failure: -ENOSPC, -EDQUOT, -EACCES, -EROFS, -EFBIG... */
int host_file_probe(const char *directory, uint64_t bytes);

#endif
