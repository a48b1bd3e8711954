/* SPDX-License-Identifier: Apache-2.0 */
/* The two file operations of struct tern_env, carried out with blocking system calls on
 * the environment's file thread. Any thread may call them. */
#ifndef TERN_TOOLS_HOST_FILE_H
#define TERN_TOOLS_HOST_FILE_H

#include "base/env.h"

/*
 * Carries out `op` and sets its status, and for READ data and bytes. Does not call
 * done(). READ: the open's or the read's errno, -EISDIR, -ENOMEM. WRITE: whatever went
 * wrong; then `path` is as it was before and nothing is left beside it (or, if the
 * directory could not be synced, it is new and whole but might not survive a loss of
 * power). A directory that may not be read, or whose file system syncs none, is no error
 * but a warning in the log.
 */
void host_file_run(struct tern_file_op *op);

/* Could a file of `bytes` be written in `directory` now? Makes one there, takes its room,
 * removes it and syncs the directory. The errno of what failed: -ENOSPC, -EDQUOT, -EACCES, -EROFS, -EFBIG...
 */
int host_file_probe(const char *directory, uint64_t bytes);

#endif
