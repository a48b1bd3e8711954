/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses options by a table: see options.h. Default values go through the same parser as
 * the user's input, so they are always valid.
 */
#include "tools/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util.h"

#define NAMES_MAX 64

bool options_is(const char *arg, const char *name)
{
	size_t n = strlen(name);

	return strncmp(arg, name, n) == 0 && (!arg[n] || arg[n] == '=');
}

int options_refuse(struct message *error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(error->text, sizeof(error->text), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* Levenshtein distance of two names of at most 31 characters; 99 if one is longer. */
static unsigned distance(const char *a, const char *b)
{
	size_t na = strlen(a), nb = strlen(b);
	unsigned row[32];

	if (na >= TERN_ARRAY_SIZE(row) || nb >= TERN_ARRAY_SIZE(row))
		return 99;
	for (size_t j = 0; j <= nb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= na; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= nb; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			unsigned skip = TERN_MIN(row[j], row[j - 1]) + 1;

			diagonal = row[j];
			row[j] = TERN_MIN(change, skip);
		}
	}
	return row[nb];
}

const char *options_nearest(const char *typed, const char *const *names)
{
	const char *best = NULL;
	unsigned best_distance = 3; /* more than two typing errors make another word */

	for (; *names; names++) {
		unsigned d = distance(typed, *names);

		if (strlen(typed) >= 2 && strncmp(typed, *names, strlen(typed)) == 0)
			d = 1; /* the typed word is the start of the name */
		if (d < best_distance && d < strlen(*names)) {
			best = *names;
			best_distance = d;
		}
	}
	return best;
}

/* Maps the name that an option has in other programs to Tern's name. NULL: the word is
 * unknown. "": the word is known, but this command (its options are `names`) has no such
 * option. */
static const char *named_elsewhere(const char *typed, const char *const *names)
{
	static const struct {
		const char *typed, *here;
	} words[] = {
		{"batch-size", "batch"},
		{"epochs", "steps"},
		{"gpu", "device"},
		{"host", "listen"},
		{"learning-rate", "lr"},
		{"output", "save"},
		{"port", "listen"},
		{"verbose", "log-level"},
	};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(words); i++) {
		if (strcmp(typed, words[i].typed) != 0)
			continue;
		for (; *names; names++)
			if (strcmp(*names, words[i].here) == 0)
				return *names;
		return "";
	}
	return NULL;
}

/* ---- parsing values ---- */

static bool in_range(const struct option *o, double v)
{
	return (o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max);
}

/* Reads decimal digits only, since strtoull() alone would accept signs and spaces. */
static bool read_count(const char *text, char **end, uint64_t *out)
{
	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*out = strtoull(text, end, 10);
	return errno == 0;
}

static int parse_count(
	const struct option *o, const char *text, uint64_t *out, struct message *error)
{
	bool number = text[strspn(text, "0123456789")] == '\0';
	uint64_t max = o->max == 0 ? UINT64_MAX : (uint64_t)o->max;
	char *end;

	if (number && read_count(text, &end, out) && in_range(o, (double)*out))
		return 0;
	return options_refuse(error, "--%s %s: must be %s%.0f to %llu", o->name, text,
		number ? "" : "a whole number, ", o->min, (unsigned long long)max);
}

static int parse_real(
	const struct option *o, const char *text, double *out, struct message *error)
{
	char *end;

	*out = strtod(text, &end);
	/* strtod() would also accept blanks, hexadecimal, infinity and NaN. */
	if (text[strspn(text, "0123456789+-.eE")] || end == text || *end)
		return options_refuse(error, "--%s %s: must be a number, %g to %g",
			o->name, text, o->min, o->max);
	if (!isfinite(*out) || !in_range(o, *out))
		return options_refuse(error, "--%s %s: must be %g to %g", o->name, text,
			o->min, o->max);
	return 0;
}

/* Reads a unit at *at and moves *at past it. "K" and "KiB" mean 1,024; M, G and T
 * likewise; "B", or no unit, means 1. *shift: log2 of the unit. -EINVAL: neither a comma
 * nor the end follows. */
static int read_unit(const char **at, unsigned *shift)
{
	static const char units[] = "KMGT";
	const char *p = *at;
	const char *unit = *p ? strchr(units, toupper((unsigned char)*p)) : NULL;

	*shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
	if (unit)
		p += strncasecmp(p + 1, "iB", 2) == 0 ? 3 : 1;
	else if (toupper((unsigned char)*p) == 'B')
		p++;
	*at = p;
	return *p && *p != ',' ? -EINVAL : 0;
}

/* Converts the digits after the decimal point of a size to bytes: "5" of "1.5M" (shift is
 * 20) to 524288. -EINVAL: not a whole number of bytes. */
static int read_fraction(const char *digits, size_t n, unsigned shift, uint64_t *out)
{
	uint64_t above = 0, below = 1;

	for (size_t i = 0; i < n; i++) {
		above = above * 10 + (uint64_t)(digits[i] - '0');
		below *= 10;
	}
	*out = (uint64_t)(((unsigned __int128)above << shift) / below);
	return ((unsigned __int128)above << shift) % below ? -EINVAL : 0;
}

/* Reads one size of a list, a number with or without a unit, and moves *at past it.
 * `text`, the whole list, is for the error text. */
static int read_size(const struct option *o, const char *text, const char **at,
	uint64_t *out, struct message *error)
{
	const char *wrong = o->type == OPTION_COUNTS
				    ? "must be whole numbers, separated by commas"
				    : "a size is a number, perhaps with K, M or G "
				      "(or KiB, MiB, GiB, the same)";
	const char *p, *point = NULL;
	uint64_t whole, fraction = 0;
	size_t digits = 0;
	unsigned shift;
	char *end;

	if (!isdigit((unsigned char)**at))
		return options_refuse(error, "--%s %s: %s", o->name, text, wrong);
	if (!read_count(*at, &end, &whole))
		return options_refuse(error, "--%s %s: too large", o->name, text);
	p = end;
	if (*p == '.') {
		point = p + 1;
		digits = strspn(point, "0123456789");
		p = point + digits;
	}
	if (read_unit(&p, &shift) || (point && (!digits || digits > 18)))
		return options_refuse(error, "--%s %s: %s", o->name, text, wrong);
	if (read_fraction(point, digits, shift, &fraction))
		return options_refuse(
			error, "--%s %s: not a whole number", o->name, text);
	if (whole > (UINT64_MAX >> shift) - 1)
		return options_refuse(error, "--%s %s: too large", o->name, text);
	*out = (whole << shift) + fraction;
	*at = p;
	return 0;
}

static int parse_bytes(const struct option *o, const char *text, struct byte_list *out,
	struct message *error)
{
	const char *p = text;
	int r;

	out->count = 0;
	do {
		uint64_t v = 0;

		if (out->count == TERN_ARRAY_SIZE(out->bytes))
			return options_refuse(error, "--%s %s: more than %zu values",
				o->name, text, TERN_ARRAY_SIZE(out->bytes));
		r = read_size(o, text, &p, &v, error);
		if (r)
			return r;
		if (!in_range(o, (double)v))
			return options_refuse(error, "--%s %s: must be %.0f to %.0f%s",
				o->name, text, o->min, o->max,
				o->type == OPTION_BYTES ? " bytes" : "");
		out->bytes[out->count++] = v;
		if (*p == ',' && !*++p)
			return options_refuse(
				error, "--%s %s: ends with a comma", o->name, text);
	} while (*p);
	return 0;
}

int options_parse_bytes(const char *text, struct byte_list *out)
{
	struct message error;

	return parse_bytes(&(struct option){.name = "size", .type = OPTION_BYTES}, text,
		out, &error);
}

static const char *const *choices_of(const struct option *o)
{
	return o->choices ? o->choices : o->find_choices();
}

static int parse_choice(
	const struct option *o, const char *text, int *out, struct message *error)
{
	const char *const *choices = choices_of(o);
	char all[256] = "";

	for (int i = 0; choices[i]; i++) {
		if (strcmp(text, choices[i]) == 0) {
			*out = i;
			return 0;
		}
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s",
			i ? ", " : "", choices[i]);
	}
	return options_refuse(error, "--%s %s: must be one of %s", o->name, text, all);
}

const char *options_wrong_address(const char *text, uint64_t least_port)
{
	const char *colon = strrchr(text, ':');
	char *end;
	uint64_t port;

	if (colon && strchr(text, ':') != colon &&
		(*text != '[' || memchr(text, ']', (size_t)(colon - text)) != colon - 1))
		return "an IPv6 address stands in brackets, [ADDRESS]:PORT";
	if (!read_count(colon ? colon + 1 : text, &end, &port) || *end ||
		port < least_port || port > 65535)
		return least_port ? "must be HOST:PORT, the port 1 to 65535"
				  : "must be HOST:PORT, or PORT alone, the port 0 to "
				    "65535";
	return NULL;
}

/* Checks an address to listen at: HOST:PORT, or ":PORT" or "PORT", which mean all
 * addresses of this host. */
static int check_address(const struct option *o, const char *text, struct message *error)
{
	const char *wrong = options_wrong_address(text, 0);

	return wrong ? options_refuse(error, "--%s %s: %s", o->name, text, wrong) : 0;
}

static int parse_pair(const struct option *o, const char *text, struct count_pair *out,
	struct message *error)
{
	char *end;

	if (!read_count(text, &end, &out->a) || *end != ':' ||
		!read_count(end + 1, &end, &out->b) || *end || !out->a || !out->b)
		return options_refuse(error,
			"--%s %s: must be A:B, two whole numbers from 1", o->name, text);
	out->given = true;
	return 0;
}

static int parse_value(
	const struct option *o, const char *text, void *settings, struct message *error)
{
	void *at = (char *)settings + o->at;
	struct message why;

	if (o->type != OPTION_FLAG && !*text)
		return options_refuse(error, "--%s: its value is empty", o->name);
	switch (o->type) {
	case OPTION_FLAG:
		*(bool *)at = true;
		return 0;
	case OPTION_COUNT:
		return parse_count(o, text, at, error);
	case OPTION_REAL:
		return parse_real(o, text, at, error);
	case OPTION_COUNTS:
	case OPTION_BYTES:
		return parse_bytes(o, text, at, error);
	case OPTION_CHOICE:
		return parse_choice(o, text, at, error);
	case OPTION_TEXT:
	case OPTION_ADDRESS:
		*(const char **)at = text;
		return o->type == OPTION_ADDRESS ? check_address(o, text, error) : 0;
	case OPTION_PAIR:
		return parse_pair(o, text, at, error);
	case OPTION_CUSTOM:
		if (o->parse(text, at, &why) == 0)
			return 0;
		return options_refuse(error, "--%s %s: %.400s", o->name, text, why.text);
	}
	return -EINVAL;
}

/* ---- parsing the command line ---- */

static const struct option *find(
	const struct option *table, const char *name, size_t bytes)
{
	for (; table->name; table++) {
		if (strncmp(table->name, name, bytes) == 0 && !table->name[bytes])
			return table;
	}
	return NULL;
}

static int unknown(
	const struct option *table, const char *name, size_t bytes, struct message *error)
{
	const char *names[NAMES_MAX];
	char typed[64];
	const char *near;
	size_t n = 0;

	snprintf(typed, sizeof(typed), "%.*s", (int)TERN_MIN(bytes, sizeof(typed) - 1),
		name);
	for (; table->name; table++) {
		tern_assert(n + 1 < NAMES_MAX);
		names[n++] = table->name;
	}
	names[n] = NULL;
	near = named_elsewhere(typed, names);
	if (!near)
		near = options_nearest(typed, names);
	if (near && *near)
		return options_refuse(
			error, "--%s: no such option; did you mean --%s?", typed, near);
	return options_refuse(error, "--%s: no such option; see --help", typed);
}

int options_parse(const struct option *table, int argc, char **argv, void *settings,
	struct message *error)
{
	for (const struct option *o = table; o->name; o++) {
		if (o->initial)
			tern_assert(parse_value(o, o->initial, settings, error) == 0);
	}
	for (int i = 0; i < argc; i++) {
		const struct option *o;
		const char *name = argv[i] + 2, *value;
		size_t bytes;
		int r;

		if (strncmp(argv[i], "--", 2) != 0 || !*name)
			return options_refuse(error, "%s: not an option; see --help",
				*argv[i] ? argv[i] : "''");
		bytes = strcspn(name, "=");
		value = name[bytes] ? name + bytes + 1 : NULL;
		o = find(table, name, bytes);
		if (!o)
			return unknown(table, name, bytes, error);
		if (o->type == OPTION_FLAG && value)
			return options_refuse(error, "--%s takes no value", o->name);
		if (o->type != OPTION_FLAG && !value) {
			if (++i == argc)
				return options_refuse(error, "--%s needs a value: %s",
					o->name, o->value);
			value = argv[i];
		}
		r = parse_value(o, value, settings, error);
		if (r)
			return r;
	}
	return 0;
}

/* ---- help ---- */

#define HELP_WIDTH 88u

static size_t name_of(const struct option *o, char *out, size_t bytes)
{
	return (size_t)snprintf(out, bytes, "--%s%s%s", o->name, o->value ? " " : "",
		o->value ? o->value : "");
}

/* Writes the help text of an option with its choices and its default, in one line. */
static void text_of(const struct option *o, char *out, size_t bytes)
{
	FILE *f = fmemopen(out, bytes, "w");

	tern_assert(f);
	fputs(o->help, f);
	if (o->type == OPTION_CHOICE) {
		fputs(" (", f);
		for (int i = 0; choices_of(o)[i]; i++)
			fprintf(f, "%s%s", i ? "|" : "", choices_of(o)[i]);
		fputs(")", f);
	}
	if (o->initial)
		fprintf(f, "; default %s", o->initial);
	fclose(f);
	out[bytes - 1] = '\0'; /* fclose() writes no NUL if the text is too long */
}

/* Prints the words of a text, broken into lines. The cursor already stands at `column`,
 * where the broken lines begin too. */
static void print_words(FILE *out, size_t column, char *text)
{
	size_t at = column;
	char *rest;

	for (char *word = strtok_r(text, " ", &rest); word;
		word = strtok_r(NULL, " ", &rest)) {
		size_t bytes = strlen(word);

		if (at > column && at + 1 + bytes > HELP_WIDTH) {
			fprintf(out, "\n%*s", (int)column, "");
			at = column;
		}
		fprintf(out, "%s%s", at > column ? " " : "", word);
		at += bytes + (at > column);
	}
	fputc('\n', out);
}

void options_help(const struct option *table, FILE *out)
{
	char name[64], text[512];
	size_t widest = 0;

	for (const struct option *o = table; o->name; o++)
		widest = TERN_MAX(widest, name_of(o, name, sizeof(name)));
	for (const struct option *o = table; o->name; o++) {
		name_of(o, name, sizeof(name));
		text_of(o, text, sizeof(text));
		fprintf(out, "  %-*s  ", (int)widest, name);
		print_words(out, widest + 4, text);
	}
}
