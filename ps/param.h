/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor of a job's parameters: its name, its shape, its place in the flat vector
 * (the vector of all parameters, one tensor after the other), and its initial values.
 *
 * An initial value that is not given is a pure function of (seed, name of the tensor,
 * number of the element) and of `init`, a and b. It has the same bits on every machine,
 * and does not depend on the order of the tensors. Any value can be computed without the
 * ones before it, since the chunks of a tensor lie on different servers. Given values come
 * from a worker: ps/given.h.
 */
#ifndef TERN_PS_PARAM_H
#define TERN_PS_PARAM_H

#include <tern/train.h>

struct tern_param {
	/* "fc1.weight": 1 to TERN_TENSOR_NAME_MAX bytes of UTF-8. The memory belongs to
	 * whoever made the structure. */
	const char *name;
	struct tern_shape shape; /* f32 */
	uint64_t first, count;   /* its range of the flat vector, in elements */
	enum tern_init init;
	float a, b;
	/* Given values: their digest (ps/given.h); 0: those of different workers are not
	 * compared. */
	uint64_t digest;
	uint32_t rule; /* number of its optimizer: see struct tern_ps_job */
	/* Gradients, or values, of the tensor travel as bf16; else as f32. The servers have
	 * f32 in any case. */
	bool push_bf16, pull_bf16;
};

/* "zeros", "constant", "uniform", "normal" or "given"; "unknown" for a value that is no
 * kind. */
const char *tern_init_name(enum tern_init init);
/* The kind of that name; -EINVAL: there is none. `name` may be NULL. */
int tern_init_parse(const char *name, enum tern_init *out);

/* How many of the numbers a and b the kind uses: 0, 1 (only a) or 2. */
unsigned tern_init_arguments(enum tern_init init);

/* Computes `count` initial values of the tensor, from value `first` on. The numbers a and
 * b that its kind uses are finite; uniform: b > a; normal: b >= 0, and float32 can hold
 * a - 9 b and a + 9 b. Given values are set to NaN, which a worker's values replace. */
void tern_param_init(const struct tern_param *param, uint64_t seed, uint64_t first,
	uint64_t count, float *out);

/* The quantile function of the normal distribution with mean 0 and standard deviation 1:
 * u in (0, 1) is the probability of a smaller value. The relative error is below 1e-14. */
double tern_normal_quantile(double u);

#endif
