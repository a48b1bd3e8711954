/* SPDX-License-Identifier: Apache-2.0 */
/* One parameter of a model: its name, its shape, its place in the flat vector (the vector
 * of all parameters of the model, one after the other), and its initial values. */
#ifndef TERN_PS_PARAM_H
#define TERN_PS_PARAM_H

#include <tern/types.h>

/* How the initial values are computed. Initial value i of a parameter depends only on
 * this kind, the scale, and (seed, index of the parameter, i), so every process would
 * compute the same. */
enum tern_init_kind {
	TERN_INIT_ZERO,
	TERN_INIT_UNIFORM, /* in [-scale, scale) */
};

struct tern_param {
	char name[48];           /* "fc1.weight" */
	struct tern_shape shape; /* f32 */
	uint64_t first, count;   /* its range of the flat vector, in elements */
	enum tern_init_kind init;
	float scale;
};

/* Computes `count` initial values of parameter number `index`, from value `first` on. */
void tern_param_init(const struct tern_param *param, uint64_t seed, uint32_t index,
	uint64_t first, uint64_t count, float *out);

#endif
