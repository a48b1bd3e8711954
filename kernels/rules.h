/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Update rules (optimizers): everything about a rule is in this file, in one row of
 * TERN_RULES and one function tern_rule_NAME(). The CPU's loops (kernels/elementwise.c),
 * the GPU's kernels (kernels/cuda/blocks), the tables of names, settings and defaults
 * (kernels/optimizer.c), the fields of the job's JSON (ps/job.c), the checks of options
 * (tools/optimizer.c), and the tests' reference in float64 are made from these. The
 * header is valid C and C++, for nvcc.
 *
 * A rule's function makes one step on one element. Every operation in it is one IEEE
 * operation with its own rounding (nothing is fused), so all CPUs and GPUs give the same
 * bits. Another order of operations would give other bits than earlier releases.
 */
#ifndef TERN_KERNELS_RULES_H
#define TERN_KERNELS_RULES_H

#ifndef __CUDACC__
#include <math.h>
#endif

#include "kernels/scalars.h"

/*
 * Settings of rules besides the learning rate: X(name, range). A setting is a field of
 * struct tern_optimizer, of the job's JSON, and an option with dashes in its name
 * (--weight-decay).
 */
#define TERN_SETTINGS(X)                                                                 \
	X(momentum, TERN_RANGE_FRACTION)                                                 \
	X(beta1, TERN_RANGE_FRACTION)                                                    \
	X(beta2, TERN_RANGE_FRACTION)                                                    \
	X(epsilon, TERN_RANGE_POSITIVE)                                                  \
	X(weight_decay, TERN_RANGE_NOT_NEGATIVE)                                         \
	X(initial_accumulator, TERN_RANGE_NOT_NEGATIVE)

/*
 * Rows: Y(X, KIND, name, HAS_M, HAS_V, lr, settings). X is passed through to Y.
 * HAS_M, HAS_V: whether the rule keeps a state vector m (made from gradients) or v (from
 * their squares). lr: default learning rate. settings: TERN_SET(name, default) for each
 * setting that the rule has; the user of the table defines TERN_SET.
 */
#define TERN_OPTIMIZERS(Y, X)                                                            \
	Y(X, SGD, sgd, 0, 0, 0.01f, TERN_SET(weight_decay, 0))                           \
	Y(X, MOMENTUM, momentum, 1, 0, 0.01f,                                            \
		TERN_SET(momentum, 0.9f) TERN_SET(weight_decay, 0))                      \
	Y(X, NESTEROV, nesterov, 1, 0, 0.01f,                                            \
		TERN_SET(momentum, 0.9f) TERN_SET(weight_decay, 0))                      \
	Y(X, ADAGRAD, adagrad, 0, 1, 0.1f,                                               \
		TERN_SET(epsilon, 1e-10f) TERN_SET(weight_decay, 0)                      \
			TERN_SET(initial_accumulator, 0.1f))                             \
	Y(X, RMSPROP, rmsprop, 1, 1, 0.01f,                                              \
		TERN_SET(momentum, 0) TERN_SET(beta2, 0.99f) TERN_SET(epsilon, 1e-8f)    \
			TERN_SET(weight_decay, 0))                                       \
	Y(X, ADAM, adam, 1, 1, 1e-3f,                                                    \
		TERN_SET(beta1, 0.9f) TERN_SET(beta2, 0.999f) TERN_SET(epsilon, 1e-8f)   \
			TERN_SET(weight_decay, 0))                                       \
	Y(X, ADAMW, adamw, 1, 1, 1e-3f,                                                  \
		TERN_SET(beta1, 0.9f) TERN_SET(beta2, 0.999f) TERN_SET(epsilon, 1e-8f)   \
			TERN_SET(weight_decay, 0.01f))

/* All rules: the optimizers, and those that no user can choose for a whole model. */
#define TERN_RULES(Y, X)                                                                 \
	TERN_OPTIMIZERS(Y, X)                                                            \
	Y(X, MEAN, mean, 0, 0, 0, )

#ifdef __CUDACC__
#define TERN_RULE static __device__ __forceinline__ tern_real
#else
#define TERN_RULE static inline __attribute__((always_inline)) tern_real
#endif

/*
 * Arguments of a rule: c: the scalars of the step; g: mean of the gradients; w: the
 * parameter; *m, *v: the element's state, which the rule updates if it has it. Returns
 * the new parameter.
 *
 * Starts with the gradient: clipped by the norm, with the weight decay as the gradient
 * of an L2 penalty.
 */
TERN_RULE tern_rule_gradient(const struct tern_scalars *c, tern_real g, tern_real w)
{
	return g * c->clip + c->decay * w;
}

/* w -= lr g. Robbins, Monro 1951. */
TERN_RULE tern_rule_sgd(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	(void)m;
	(void)v;
	return w - c->lr * tern_rule_gradient(c, g, w);
}

/* m = momentum m + g;  w -= lr m. Polyak 1964. */
TERN_RULE tern_rule_momentum(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	(void)v;
	*m = c->momentum * *m + tern_rule_gradient(c, g, w);
	return w - c->lr * *m;
}

/*
 * m = momentum m + g;  w -= lr (g + momentum m). Nesterov 1983, in the form of
 * torch.optim.SGD(nesterov=True); Sutskever et al. 2013 have the learning rate inside m,
 * which is the same as long as the learning rate does not change.
 */
TERN_RULE tern_rule_nesterov(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	(void)v;
	g = tern_rule_gradient(c, g, w);
	*m = c->momentum * *m + g;
	return w - c->lr * (g + c->momentum * *m);
}

/* v += g^2;  w -= lr g / (sqrt(v) + epsilon). Duchi, Hazan, Singer 2011. */
TERN_RULE tern_rule_adagrad(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	(void)m;
	g = tern_rule_gradient(c, g, w);
	*v = *v + g * g;
	return w - c->lr * g / (tern_real_sqrt(*v) + c->epsilon);
}

/*
 * v = beta2 v + (1 - beta2) g^2;  m = momentum m + g / (sqrt(v) + epsilon);  w -= lr m.
 * Tieleman, Hinton 2012 (lecture 6.5 of a course, without m and epsilon), in the form of
 * torch.optim.RMSprop, which calls beta2 alpha. TensorFlow has epsilon inside the root.
 */
TERN_RULE tern_rule_rmsprop(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	g = tern_rule_gradient(c, g, w);
	*v = c->beta2 * *v + c->rest2 * (g * g);
	*m = c->momentum * *m + g / (tern_real_sqrt(*v) + c->epsilon);
	return w - c->lr * *m;
}

/*
 * m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 * w -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon). Kingma, Ba 2015.
 */
TERN_RULE tern_rule_adam(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	g = tern_rule_gradient(c, g, w);
	*m = c->beta1 * *m + c->rest1 * g;
	*v = c->beta2 * *v + c->rest2 * (g * g);
	return w -
	       c->lr * (*m * c->unbias1) / (tern_real_sqrt(*v * c->unbias2) + c->epsilon);
}

/*
 * Adam whose weight decay is not part of the gradient: besides Adam's step,
 * w -= lr weight_decay w. Loshchilov, Hutter 2019, in the form of torch.optim.AdamW,
 * where the learning rate is a factor of the decay. Both changes are added before they
 * change w, so that a small decay is not lost in a rounding of its own.
 */
TERN_RULE tern_rule_adamw(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	g = g * c->clip;
	*m = c->beta1 * *m + c->rest1 * g;
	*v = c->beta2 * *v + c->rest2 * (g * g);
	return w -
	       (c->lr_decay * w + c->lr * (*m * c->unbias1) /
					  (tern_real_sqrt(*v * c->unbias2) + c->epsilon));
}

/* w = g, the mean of what was sent, for statistics instead of parameters (as those of
 * batch normalisation). Learning rate, weight decay and clipping do not apply. */
TERN_RULE tern_rule_mean(const struct tern_scalars *c, tern_real g, tern_real w,
	tern_real *m, tern_real *v)
{
	(void)c;
	(void)w;
	(void)m;
	(void)v;
	return g;
}

#endif
