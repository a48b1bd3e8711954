/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --init-from: the parameters with which a job begins are those of a safetensors file, in
 * place of those that the servers make from the seed. Each worker reads the file and has
 * its values as given values (ps/given.h): their digests are part of the job, so workers
 * with different files are not of one job.
 */
#ifndef TERN_TOOLS_INIT_FROM_H
#define TERN_TOOLS_INIT_FROM_H

#include "client/models/model.h"
#include "client/worker.h"
#include "tools/options.h"

/* All NULL: the option was not given. The values are kept as long as the worker lives,
 * since a job that goes back may begin anew, and the file may be gone by then. */
struct init_from {
	struct tern_param *params; /* those of the model, with given values */
	float *flat;
	const float **given; /* [param]: its values, within `flat` */
};

/*
 * Reads the parameters of `model` from the file `path`. It blocks. -EINVAL: the file does not
 * fit the model, or is damaged; -ENOMEM; or the errno of opening or reading the file, such as
 * -ENOENT or -EIO. `error` has one line: what is wrong and where. -ECANCELED: stop(), which is
 * called several times a second while the file is read, has returned true; `error` is not set.
 * init_from_free() must follow in any case.
 */
int init_from_read(const char *path, const struct tern_model *model,
	bool (*stop)(void *arg), void *arg, struct init_from *out, struct message *error);

/* Lets the job, which has the tensors of the model, begin with these values. `from` must stay
 * in place as long as `job` and `opts` are used. Without a file nothing changes. */
void init_from_apply(const struct init_from *from, struct tern_ps_job *job,
	struct tern_worker_opts *opts);

void init_from_free(struct init_from *from);

#endif
