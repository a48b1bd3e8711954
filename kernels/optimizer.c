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

/* The settings that each rule has, as bits. */
static const unsigned settings_of[] = {
#define TERN_SET(setting, value)                        | 1u << TERN_SETTING_##setting
#define BITS(X, KIND, name, HAS_M, HAS_V, lr, settings) 0 settings,
	TERN_RULES(BITS, )
#undef BITS
#undef TERN_SET
};

static const struct {
	const char *name;
	enum tern_range range;
	size_t at; /* offset in struct tern_optimizer */
} settings[] = {
#define SETTING(field, values) {#field, values, offsetof(struct tern_optimizer, field)},
	TERN_SETTINGS(SETTING)
#undef SETTING
};

const char *tern_setting_name(unsigned setting)
{
	return settings[setting].name;
}

bool tern_setting_allows(unsigned setting, float value)
{
	switch (settings[setting].range) {
	case TERN_RANGE_FRACTION:
		return value >= 0 && value < 1;
	case TERN_RANGE_POSITIVE:
		return value > 0 && isfinite(value);
	case TERN_RANGE_NOT_NEGATIVE:
		return value >= 0 && isfinite(value);
	}
	return false;
}

const char *tern_setting_range(unsigned setting)
{
	switch (settings[setting].range) {
	case TERN_RANGE_FRACTION:
		return "0 or more, and below 1";
	case TERN_RANGE_POSITIVE:
		return "more than 0";
	case TERN_RANGE_NOT_NEGATIVE:
		return "0 or more";
	}
	return "";
}

float *tern_optimizer_setting(struct tern_optimizer *o, unsigned setting)
{
	return (float *)(void *)((char *)o + settings[setting].at);
}

float tern_optimizer_value(const struct tern_optimizer *o, unsigned setting)
{
	float value;

	memcpy(&value, (const char *)o + settings[setting].at, sizeof(value));
	return value;
}

bool tern_optimizer_has(enum tern_optimizer_kind kind, unsigned setting)
{
	return settings_of[kind] >> setting & 1;
}

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
	const float lr = tern_schedule_lr(&opt->schedule, opt->lr, step);

	return (struct tern_scalars){
		.lr = lr,
		.clip = clip,
		.momentum = opt->momentum,
		.beta1 = opt->beta1,
		.beta2 = opt->beta2,
		.epsilon = opt->epsilon,
		.decay = opt->weight_decay,
		.lr_decay = lr * opt->weight_decay,
		.rest1 = 1.0f - opt->beta1,
		.rest2 = 1.0f - opt->beta2,
		.unbias1 = unbias(opt->beta1, step),
		.unbias2 = unbias(opt->beta2, step),
	};
}
