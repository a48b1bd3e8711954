/* SPDX-License-Identifier: Apache-2.0 */
/* See optimizer.h. Which settings a rule has, and their ranges and defaults, is in
 * kernels/rules.h. */
#include "tools/optimizer.h"

#include <errno.h>
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

/* ---- the schedule ---- */

/* What a user types for each kind of schedule. */
static const char *const forms[TERN_SCHEDULE_COUNT] = {
	[TERN_SCHEDULE_CONSTANT] = "constant",
	[TERN_SCHEDULE_STEP] = "step:EVERY,FACTOR",
	[TERN_SCHEDULE_LINEAR] = "linear:TOTAL,END",
	[TERN_SCHEDULE_COSINE] = "cosine:TOTAL,END",
};

/* Reads the number of steps, and moves *at past it. */
static int read_steps(const char **at, struct tern_schedule *s, struct message *why)
{
	size_t digits = strspn(*at, "0123456789");

	if (digits == 0)
		return options_refuse(why, "must be %s", forms[s->kind]);
	s->steps = digits < 15 ? strtoull(*at, NULL, 10) : 0;
	if (s->steps < 1 || s->steps > TERN_SCHEDULE_STEPS_MAX)
		return options_refuse(why, "%s must be 1 to %llu",
			s->kind == TERN_SCHEDULE_STEP ? "EVERY" : "TOTAL",
			(unsigned long long)TERN_SCHEDULE_STEPS_MAX);
	*at += digits;
	return 0;
}

static int read_factor(const char *text, struct tern_schedule *s, struct message *why)
{
	struct optimizer_number number;

	if (optimizer_parse_number(text, &number, why) < 0)
		return options_refuse(why, "must be %s", forms[s->kind]);
	s->factor = number.value;
	if (s->kind == TERN_SCHEDULE_STEP && !(s->factor > 0 && s->factor <= 1))
		return options_refuse(why, "FACTOR must be more than 0, at most 1");
	if (!(s->factor >= 0 && s->factor <= 1))
		return options_refuse(why, "END must be 0 to 1");
	return 0;
}

/* Reads the numbers behind the name: `text` begins with a colon, or is empty. */
static int read_numbers(const char *text, struct tern_schedule *s, struct message *why)
{
	bool is_step = s->kind == TERN_SCHEDULE_STEP;
	int r = 0;

	if (*text ? s->kind == TERN_SCHEDULE_CONSTANT : is_step)
		return options_refuse(why, "must be %s", forms[s->kind]);
	if (!*text)
		return 0;
	text++;
	if (*text != ',' || is_step) /* TOTAL may be left out */
		r = read_steps(&text, s, why);
	if (r == 0 && *text == ',')
		return read_factor(text + 1, s, why);
	if (r == 0 && (*text || is_step))
		return options_refuse(why, "must be %s", forms[s->kind]);
	return r;
}

int optimizer_parse_schedule(const char *text, void *at, struct message *why)
{
	size_t bytes = strcspn(text, ":");

	for (unsigned kind = 0; kind < TERN_SCHEDULE_COUNT; kind++) {
		struct tern_schedule s = {.kind = kind};
		const char *name = tern_schedule_name(kind);

		if (strlen(name) != bytes || strncmp(text, name, bytes) != 0)
			continue;
		if (read_numbers(text + bytes, &s, why) < 0)
			return -EINVAL;
		*(struct tern_schedule *)at = s;
		return 0;
	}
	return options_refuse(
		why, "must be %s, %s, %s or %s", forms[0], forms[1], forms[2], forms[3]);
}

/* ---- settings ---- */

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

int optimizer_check(
	struct optimizer_settings *settings, uint64_t steps, struct message *error)
{
	struct tern_schedule *schedule = &settings->rule.schedule;
	int r = 0;

	*schedule = settings->schedule;
	schedule->warmup = settings->warmup;
	if (schedule->kind != TERN_SCHEDULE_CONSTANT && schedule->steps == 0)
		schedule->steps = steps;

	if (settings->lr > 0)
		settings->rule.lr = (float)settings->lr;
	for (unsigned i = 0; i < TERN_SETTING_COUNT && r == 0; i++)
		r = take_number(settings, i, error);
	return r;
}
