/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: their names, default settings, state vectors, and the scalars of a step. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/variants.h"

static const struct {
	const char *name;
	struct tern_optimizer defaults;
	unsigned state_count;
	const char *states[2];
} table[] = {
	[TERN_OPT_SGD] = {"sgd", {.kind = TERN_OPT_SGD, .lr = 0.01f}, 0, {NULL}},
	[TERN_OPT_MOMENTUM] = {"momentum",
		{.kind = TERN_OPT_MOMENTUM, .lr = 0.01f, .momentum = 0.9f}, 1, {"m"}},
	[TERN_OPT_ADAGRAD] = {"adagrad",
		{.kind = TERN_OPT_ADAGRAD,
			.lr = 0.1f,
			.epsilon = 1e-10f,
			.initial_accumulator = 0.1f},
		1, {"v"}},
	[TERN_OPT_ADAM] = {"adam",
		{.kind = TERN_OPT_ADAM,
			.lr = 1e-3f,
			.beta1 = 0.9f,
			.beta2 = 0.999f,
			.epsilon = 1e-8f},
		2, {"m", "v"}},
};

_Static_assert(TERN_ARRAY_SIZE(table) == TERN_OPT_COUNT, "a row for each kind");

int tern_optimizer_parse(const char *name, struct tern_optimizer *out)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(table); i++)
		if (strcmp(name, table[i].name) == 0) {
			*out = table[i].defaults;
			return 0;
		}
	return -EINVAL;
}

const char *tern_optimizer_name(enum tern_optimizer_kind kind)
{
	return table[kind].name;
}

const char *tern_optimizer_names(void)
{
	return "sgd, momentum, adagrad or adam";
}

unsigned tern_optimizer_state_count(enum tern_optimizer_kind kind)
{
	return table[kind].state_count;
}

const char *tern_optimizer_state_name(enum tern_optimizer_kind kind, unsigned index)
{
	return index < table[kind].state_count ? table[kind].states[index] : NULL;
}

/* Returns 1 / (1 - beta^step), computed in double and rounded to float once. */
static float unbias(float beta, uint64_t step)
{
	return (float)(1.0 / (1.0 - pow((double)beta, (double)step)));
}

struct tern_scalars tern_scalars_of(const struct tern_optimizer *opt, uint64_t step)
{
	return (struct tern_scalars){
		.lr = opt->lr,
		.momentum = opt->momentum,
		.beta1 = opt->beta1,
		.beta2 = opt->beta2,
		.epsilon = opt->epsilon,
		.decay = opt->weight_decay,
		.rest1 = 1.0f - opt->beta1,
		.rest2 = 1.0f - opt->beta2,
		.unbias1 = unbias(opt->beta1, step),
		.unbias2 = unbias(opt->beta2, step),
	};
}
