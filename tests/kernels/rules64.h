/* SPDX-License-Identifier: Apache-2.0 */
/* The update rules in float64, as a reference for the kernels. */
#ifndef TERN_TESTS_KERNELS_RULES64_H
#define TERN_TESTS_KERNELS_RULES64_H

#include <stdint.h>

struct tern_optimizer;

/* One step on one element, by the formula of kernels/rules.h in float64. g: mean of the
 * gradients. Returns the new parameter, and updates the state that the rule has. */
double rules64_step(const struct tern_optimizer *opt, uint64_t step, double clip,
	double g, double w, double *m, double *v);

#endif
