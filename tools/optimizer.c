/* SPDX-License-Identifier: Apache-2.0 */
/* See optimizer.h. Which settings a rule has, and their ranges and defaults, is in
 * kernels/rules.h. */
#include "tools/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int optimizer_parse(const char *text, void *at, struct message *why)
{
	struct tern_optimizer o;

	if (tern_optimizer_parse(text, &o) == 0 && tern_optimizer_is_for_models(o.kind)) {
		*(struct tern_optimizer *)at = o;
		return 0;
	}
	return options_refuse(why, "must be one of %s", tern_optimizer_names());
}

int optimizer_parse_number(const char *text, void *at, struct message *why)
{
	struct optimizer_number *number = at;
	char *end;

	number->text = text;
	number->value = strtod(text, &end);
	/* strtod() would also accept blanks, hexadecimal, infinity and NaN. */
	if (text[strspn(text, "0123456789+-.eE")] || end == text || *end ||
		!isfinite((float)number->value))
		return options_refuse(why, "must be a finite number");
	return 0;
}

/* Writes the setting's name with `between` in the place of its underscores. */
static void name_setting(unsigned setting, char between, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s", tern_setting_name(setting));
	for (char *at = out; (at = strchr(at, '_'));)
		*at = between;
}

/* Appends the names of the optimizers that have the setting: "adam and adamw have it". */
static void append_owners(unsigned setting, char *out, size_t bytes)
{
	unsigned left = 0, count;

	for (unsigned kind = 0; kind < TERN_OPT_COUNT; kind++)
		left += tern_optimizer_has(kind, setting);
	count = left;
	for (unsigned kind = 0; kind < TERN_OPT_COUNT; kind++) {
		size_t used = strlen(out);

		if (!tern_optimizer_has(kind, setting))
			continue;
		left--;
		snprintf(out + used, bytes - used, "%s%s", tern_optimizer_name(kind),
			left > 1    ? ", "
			: left == 1 ? " and "
			: count > 1 ? " have it"
				    : " has it");
	}
}

static int take_number(
	struct optimizer_settings *settings, unsigned setting, struct message *error)
{
	const struct optimizer_number *number = &settings->numbers[setting];
	struct tern_optimizer *rule = &settings->rule;
	char option[32], words[32], owners[128] = "";

	if (!number->text)
		return 0;
	name_setting(setting, '-', option, sizeof(option));
	if (!tern_optimizer_has(rule->kind, setting)) {
		name_setting(setting, ' ', words, sizeof(words));
		append_owners(setting, owners, sizeof(owners));
		return options_refuse(error, "--%s %.60s: %s has no %s (%s)", option,
			number->text, tern_optimizer_name(rule->kind), words, owners);
	}
	if (!tern_setting_allows(setting, (float)number->value))
		return options_refuse(error, "--%s %.60s: must be %s", option,
			number->text, tern_setting_range(setting));
	*tern_optimizer_setting(rule, setting) = (float)number->value;
	return 0;
}

int optimizer_check(struct optimizer_settings *settings, struct message *error)
{
	int r = 0;

	if (settings->lr > 0)
		settings->rule.lr = (float)settings->lr;
	for (unsigned i = 0; i < TERN_SETTING_COUNT && r == 0; i++)
		r = take_number(settings, i, error);
	return r;
}
