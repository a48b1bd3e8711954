/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a job about its optimizer: the update rule and its settings. */
#ifndef TERN_TOOLS_OPTIMIZER_H
#define TERN_TOOLS_OPTIMIZER_H

#include "kernels/kernels.h"
#include "tools/options.h"

struct optimizer_number {
	const char *text; /* as the user typed it; NULL: not given */
	double value;
};

struct optimizer_settings {
	/* With the defaults of --optimizer, until optimizer_check() copies the other
	 * options into it. */
	struct tern_optimizer rule;
	double lr; /* --lr; 0: the rule's default */
	struct optimizer_number numbers[TERN_SETTING_COUNT];
	/* --schedule, without a warm-up. steps is 0 if the user gave no TOTAL. */
	struct tern_schedule schedule;
	uint64_t warmup; /* --warmup */
};

int optimizer_parse(const char *text, void *at, struct message *why);
int optimizer_parse_number(const char *text, void *at, struct message *why);
int optimizer_parse_schedule(const char *text, void *at, struct message *why);

/* A row for a setting of kernels/rules.h. */
#define OPTIMIZER_NUMBER(option, setting, settings, field, help)                         \
	OPTION(CUSTOM, option, "X", help "; default: the optimizer's", settings,         \
		field.numbers[TERN_SETTING_##setting], .parse = optimizer_parse_number)
/* Rows for a command's table of options; `field` of its settings is a struct
 * optimizer_settings. */
#define OPTIMIZER_OPTIONS(settings, field)                                               \
	OPTION(CUSTOM, "optimizer", "NAME",                                              \
		"sgd, momentum, nesterov, adagrad, rmsprop, adam or adamw", settings,    \
		field.rule, .initial = "sgd", .parse = optimizer_parse),                 \
		OPTION(REAL, "lr", "X", "learning rate; default: the optimizer's",       \
			settings, field.lr, .min = 1e-12, .max = 1e6),                   \
		OPTIMIZER_NUMBER("momentum", momentum, settings, field,                  \
			"momentum, nesterov, rmsprop: factor of the last step's m, to "  \
			"which this step's gradient is added"),                          \
		OPTIMIZER_NUMBER("beta1", beta1, settings, field,                        \
			"adam, adamw: decay of the mean of gradients"),                  \
		OPTIMIZER_NUMBER("beta2", beta2, settings, field,                        \
			"rmsprop, adam, adamw: decay of the mean of squared gradients"), \
		OPTIMIZER_NUMBER("epsilon", epsilon, settings, field,                    \
			"adagrad, rmsprop, adam, adamw: added to the root of the mean "  \
			"(adagrad: the sum) of squared gradients"),                      \
		OPTIMIZER_NUMBER("weight-decay", weight_decay, settings, field,          \
			"L2 penalty of the parameters; adamw: shrinks them by this "     \
			"times the learning rate"),                                      \
		OPTIMIZER_NUMBER("initial-accumulator", initial_accumulator, settings,   \
			field, "adagrad: start of the sum of squared gradients"),        \
		OPTION(CUSTOM, "schedule", "SCHEDULE",                                   \
			"how the learning rate changes: constant, step:EVERY,FACTOR, "   \
			"linear:TOTAL,END or cosine:TOTAL,END; default of TOTAL: "       \
			"--steps; END: part of the learning rate after TOTAL steps, "    \
			"default 0",                                                     \
			settings, field.schedule, .initial = "constant",                 \
			.parse = optimizer_parse_schedule),                              \
		OPTION(COUNT, "warmup", "STEPS",                                         \
			"the learning rate rises from 0 in the first steps, and is "     \
			"whole at this one",                                             \
			settings, field.warmup, .max = 1e12)

/* Checks the options together, and completes settings->rule. steps: of the job. -EINVAL:
 * `error` has one line. */
int optimizer_check(
	struct optimizer_settings *settings, uint64_t steps, struct message *error);

#endif
