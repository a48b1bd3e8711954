/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the data sets of a job from the files that its options name. */
#ifndef TERN_TOOLS_DATA_H
#define TERN_TOOLS_DATA_H

#include "client/data/dataset.h"
#include "tools/job.h"

struct job_data {
	struct tern_dataset *train;
	struct tern_dataset *test; /* NULL: there is no test set */
};

/*
 * Reads and parses the files. It blocks, so it must be called before a context has work
 * to do. -EINVAL: `error` has one line: which file or option is wrong, where, and why.
 * -ECANCELED: stop(), which is called several times a second, has returned true; stop may
 * be NULL. job_data_free() must follow in any case.
 */
int job_data_read(const struct job_settings *job, bool (*stop)(void *arg), void *arg,
	struct job_data *data, struct message *error);
void job_data_free(struct job_data *data);

#endif
