/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --save-best of `tern evaluator`: a file has the parameters with the highest accuracy so far. Its
 * metadata has the accuracy and the step, so an evaluator that is started again goes on with
 * them.
 */
#ifndef TERN_TOOLS_EVALUATOR_BEST_H
#define TERN_TOOLS_EVALUATOR_BEST_H

#include "tools/checkpoint.h"

struct evaluator_best {
	const char *path; /* NULL: the option was not given */
	double accuracy;  /* of the file; -1: there is none */
};

/*
 * Looks at the file, if it is there, and tests that one of `bytes` could be written. Writes into
 * `found` which parameters the file has; "": there is no file. -EINVAL: `error` has one line.
 */
int evaluator_best_open(const char *path, uint64_t bytes, struct evaluator_best *best,
	struct message *found, struct message *error);

/*
 * Writes the parameters of the snapshot into the file if their accuracy is higher than that of
 * the file; a NaN is not. Returns 1 if they were written, 0 if not, or a negative errno: then the
 * file has what it had.
 */
int evaluator_best_take(struct evaluator_best *best, const struct checkpoint *c,
	const float *flat, double accuracy);

#endif
