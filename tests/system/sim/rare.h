/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of the simulated programs that are pushed rarely: in some steps by no slot, in
 * others by some. They have update rules of their own, and the ledger does not count their
 * elements. Whether a slot pushes one, and what, follows from the step and the slot, or in
 * async mode the worker ("share").
 */
#ifndef TERN_TESTS_SYSTEM_SIM_RARE_H
#define TERN_TESTS_SYSTEM_SIM_RARE_H

#include <tern/train.h>

#include "tests/system/sim/job.h"

struct rare {
	const char *name;
	uint64_t first, count; /* elements of the flat vector */
	struct tern_rule_opts rule;
};

#define RARE_COUNT 3u
extern const struct rare rare_tensors[RARE_COUNT];

bool rare_has(uint64_t element); /* true if the element is one of a rare tensor */
bool rare_is_pushed(const struct rare *t, uint64_t step, uint32_t share);
void rare_fill(const struct rare *t, uint64_t step, uint32_t share, float *to);
/* Sync mode: the saved parameters are those that the rules give if the steps in which no slot
 * pushes a tensor do not count for it. Async mode: a tensor with the rule mean has what one
 * gradient has pushed. Prints the first error. */
bool rare_are_right(const struct job *j);

#endif
