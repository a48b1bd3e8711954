/* SPDX-License-Identifier: Apache-2.0 */
/* The data sets of a job, from the files that its options name. */
#ifndef TERN_TOOLS_DATA_H
#define TERN_TOOLS_DATA_H

#include "client/data/dataset.h"
#include "tools/job.h"

struct job_data {
	struct tern_dataset *train;
	struct tern_dataset *test; /* NULL: nothing to test on */
};

/*
 * Reads and parses them, blocking: for use before a context has anything to do. -EINVAL
 * with one line: what is wrong with which file or option, and where. job_data_free in any
 * case.
 */
int job_data_read(
	const struct job_settings *job, struct job_data *data, struct message *error);
void job_data_free(struct job_data *data);

#endif
