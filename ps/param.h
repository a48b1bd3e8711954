/* SPDX-License-Identifier: Apache-2.0 */
/* One parameter of a model: its name, its shape, its place in the flat vector, and its
 * initial values. */
#ifndef TERN_PS_PARAM_H
#define TERN_PS_PARAM_H

#include <tern/types.h>

/* Value i of a parameter depends on (seed, index of the parameter, i) alone, so every
 * process computes the same. */
enum tern_init_kind {
	TERN_INIT_ZERO,
	TERN_INIT_UNIFORM, /* in [-scale, scale) */
};

struct tern_param {
	char name[48];           /* "fc1.weight" */
	struct tern_shape shape; /* f32 */
	uint64_t first, count;   /* range of the flat vector */
	enum tern_init_kind init;
	float scale;
};

/* Computes the initial values first..first+count of parameter `index`. */
void tern_param_init(const struct tern_param *param, uint64_t seed, uint32_t index,
	uint64_t first, uint64_t count, float *out);

#endif
