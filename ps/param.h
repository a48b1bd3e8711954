/* SPDX-License-Identifier: Apache-2.0 */
/* One parameter of a model: its name and shape, its place in the flat vector, and how it
 * starts. */
#ifndef TERN_PS_PARAM_H
#define TERN_PS_PARAM_H

#include <tern/types.h>

/* Value i of a parameter is a function of (seed, the parameter's index, i) alone, so
 * whoever holds any part of it computes the same. */
enum tern_init_kind {
	TERN_INIT_ZERO,
	TERN_INIT_UNIFORM, /* in [-scale, scale) */
};

struct tern_param {
	char name[48];           /* "fc1.weight" */
	struct tern_shape shape; /* f32 */
	uint64_t first, count;   /* its elements in the flat vector */
	enum tern_init_kind init;
	float scale;
};

/* Fills values first..first+count of parameter `index`. */
void tern_param_init(const struct tern_param *param, uint64_t seed, uint32_t index,
	uint64_t first, uint64_t count, float *out);

#endif
