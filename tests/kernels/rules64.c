/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiles the formulas of kernels/rules.h with double in the place of float. So this
 * reference tests the rounding, the loops and the vectors of the kernels, but not the
 * formulas themselves.
 */
#define tern_real      double
#define tern_real_sqrt sqrt

#include "tests/kernels/rules64.h"

#include "kernels/kernels.h"

static double unbias(double beta, uint64_t step)
{
	return 1 / (1 - pow(beta, (double)step));
}

static struct tern_scalars scalars_of(
	const struct tern_optimizer *o, uint64_t step, double clip)
{
	double beta1 = (double)o->beta1, beta2 = (double)o->beta2;
	double lr = (double)tern_schedule_lr(&o->schedule, o->lr, step);

	return (struct tern_scalars){.lr = lr,
		.clip = clip,
		.momentum = (double)o->momentum,
		.beta1 = beta1,
		.beta2 = beta2,
		.epsilon = (double)o->epsilon,
		.decay = (double)o->weight_decay,
		.lr_decay = lr * (double)o->weight_decay,
		.rest1 = 1 - beta1,
		.rest2 = 1 - beta2,
		.unbias1 = unbias(beta1, step),
		.unbias2 = unbias(beta2, step)};
}

double rules64_step(const struct tern_optimizer *opt, uint64_t step, double clip,
	double g, double w, double *m, double *v)
{
	const struct tern_scalars c = scalars_of(opt, step, clip);

	switch (opt->kind) {
#define RULE(X, KIND, name, ...)                                                         \
	case TERN_OPT_##KIND:                                                            \
		return tern_rule_##name(&c, g, w, m, v);
		TERN_RULES(RULE, )
	}
	return NAN;
}
