/* SPDX-License-Identifier: Apache-2.0 */
/* The file operations of struct tern_env (read, write, list, remove), implemented with
 * blocking system calls. The environment's file thread calls them, but any thread
 * may. */
#ifndef TERN_TOOLS_HOST_FILE_H
#define TERN_TOOLS_HOST_FILE_H

#include <stdbool.h>

#include "base/env.h"

/*
 * Executes `op`. Sets op->status, and for READ and LIST op->data and op->bytes; does not
 * call op->done().
 * READ fails with the errno of open() or read(), -EISDIR or -ENOMEM; LIST with that of
 * opendir() or readdir(), or -ENOMEM; REMOVE with that of unlink() or of syncing the
 * directory.
 * WRITE may fail with any errno. Then `path` is unchanged and no temporary file is left.
 * One exception: if syncing the directory fails, `path` has the new contents, which may
 * be lost in a power failure. If the directory may not be read, or its file system cannot
 * sync directories, the write succeeds with a warning in the log.
 */
void host_file_run(struct tern_file_op *op);

/*
 * Reads a whole file, as TERN_FILE_READ does. stop() is called after each read() of at
 * most 4 MiB; if it returns true, reading ends with -ECANCELED. `stop` may be NULL. *data
 * is allocated with malloc(), NUL-terminated, and set only if 0 is returned.
 */
int host_file_read(
	const char *path, bool (*stop)(void *arg), void *arg, void **data, size_t *bytes);

/* Tests whether a file of `bytes` could be written in `directory` now: creates a file
 * there, removes its name, reserves its space and syncs the directory. Returns 0 or the
 * error: -ENOSPC, -EDQUOT, -EACCES, -EROFS, -EFBIG... */
int host_file_probe(const char *directory, uint64_t bytes);

#endif
