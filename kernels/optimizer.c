/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: their names, default settings and state vectors, all of them from the rows
 * of kernels/rules.h, and the scalars of a step. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/variants.h"

static const struct {
	const char *name;
	struct tern_optimizer defaults;
	bool has_m, has_v;
} table[] = {
#define TERN_SET(setting, value) .setting = (value),
#define ROW(X, KIND, title, HAS_M, HAS_V, rate, settings)                                \
	{.name = #title,                                                                 \
		.defaults = {.kind = TERN_OPT_##KIND, .lr = (rate), settings},           \
		.has_m = (HAS_M),                                                        \
		.has_v = (HAS_V)},
	TERN_RULES(ROW, )
#undef ROW
#undef TERN_SET
};

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

bool tern_optimizer_is_for_models(enum tern_optimizer_kind kind)
{
	return kind != TERN_OPT_MEAN;
}

const char *tern_optimizer_names(void)
{
#define NAME(X, KIND, name, ...) ", " #name
	return &(TERN_OPTIMIZERS(NAME, ))[2];
#undef NAME
}

bool tern_optimizer_has_m(enum tern_optimizer_kind kind)
{
	return table[kind].has_m;
}

bool tern_optimizer_has_v(enum tern_optimizer_kind kind)
{
	return table[kind].has_v;
}

/* Returns 1 / (1 - beta^step), computed in double and rounded to float once. */
static float unbias(float beta, uint64_t step)
{
	return (float)(1.0 / (1.0 - pow((double)beta, (double)step)));
}

struct tern_scalars tern_scalars_of(
	const struct tern_optimizer *opt, uint64_t step, float clip)
{
	return (struct tern_scalars){
		.lr = opt->lr,
		.clip = clip,
		.momentum = opt->momentum,
		.beta1 = opt->beta1,
		.beta2 = opt->beta2,
		.epsilon = opt->epsilon,
		.decay = opt->weight_decay,
		.lr_decay = opt->lr * opt->weight_decay,
		.rest1 = 1.0f - opt->beta1,
		.rest2 = 1.0f - opt->beta2,
		.unbias1 = unbias(opt->beta1, step),
		.unbias2 = unbias(opt->beta2, step),
	};
}
