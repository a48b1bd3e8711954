/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of parameters that an interrupted run of a job has left in the --save
 * directory. A batch system that interrupts a job starts the same command line again: that
 * run may replace the file, other jobs need --overwrite. So the file contains the name of
 * its job.
 */
#ifndef TERN_TOOLS_EARLIER_H
#define TERN_TOOLS_EARLIER_H

#include <jansson.h>
#include <stdbool.h>

#include "tools/job.h"

#define EARLIER_NAME_BYTES 17

/* Writes the job's name: a digest, in hexadecimal, of the options that its result depends
 * on; paths count as they were typed. All workers of a job compute the same name, unless
 * they were given different paths. "", which is no job's name: there is not enough
 * memory. */
void earlier_name(const struct job_settings *job, char name[EARLIER_NAME_BYTES]);

/* True if the file at `path` was left by an interrupted run of the job `name`. *step is
 * then the number of training steps that its parameters have had. */
bool earlier_is_of(const char *path, const char *name, uint64_t *step);

/* Removes the file at `path` if an interrupted run of the job `name` has left it: the job is completed
 * now. */
void earlier_remove(const char *path, const char *name);

/* The metadata of a safetensors file, of which only the header is read: an object of strings,
 * which the caller releases. NULL: the file has none, or cannot be read. */
json_t *earlier_metadata(const char *path);

#endif
