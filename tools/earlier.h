/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that an interrupted run of a job has left in --save. A batch system that
 * interrupts a job starts the same command line again: that run may replace the file, and
 * no other may. So the file names its job.
 */
#ifndef TERN_TOOLS_EARLIER_H
#define TERN_TOOLS_EARLIER_H

#include <stdbool.h>

#include "tools/job.h"

#define EARLIER_NAME_BYTES 17

/* Name of the job: a digest of the options on which its result depends, as they were
 * typed. It is the same in each process of a sync job. */
void earlier_name(const struct job_settings *job, char name[EARLIER_NAME_BYTES]);

/* True if the file at `path` comes from an interrupted run of the job `name`; *step is
 * then the number of steps in it. */
bool earlier_is_of(const char *path, const char *name, uint64_t *step);

#endif
