/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line as data. A command has one struct of settings and one table that says,
 * for each option, what it is called, what values it takes, which value it starts with
 * and where in the struct it goes. Parsing, messages and `tern help CMD` all come from
 * that table, so none of them can say something else than the others.
 */
#ifndef TERN_TOOLS_OPTIONS_H
#define TERN_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
	OPTION_FLAG,    /* bool; takes no value */
	OPTION_COUNT,   /* uint64_t, decimal */
	OPTION_REAL,    /* double */
	OPTION_COUNTS,  /* struct byte_list: whole numbers, separated by commas */
	OPTION_BYTES,   /* struct byte_list: sizes such as 64, 4K, 1.5MiB, 64B */
	OPTION_CHOICE,  /* int: index into `choices` */
	OPTION_TEXT,    /* const char *, not empty */
	OPTION_ADDRESS, /* const char *: HOST:PORT, or PORT alone */
	OPTION_PAIR,    /* struct count_pair: A:B */
	OPTION_CUSTOM,  /* what `parse` makes of it */
};

struct byte_list {
	size_t count;
	uint64_t bytes[32];
};

struct count_pair {
	bool given;
	uint64_t a, b;
};

struct message {
	char text[512];
};

struct option {
	const char *name;  /* without the dashes */
	const char *value; /* how the value is called in help: "N"; NULL for flags */
	const char *help;
	enum option_type type;
	size_t at; /* offset in the command's settings */
	const char
		*initial; /* the default, as one would write it; NULL: zero, not given */
	double min, max;  /* of numbers, inclusive; both 0: anything */
	const char *const *choices; /* CHOICE: NULL-terminated */
	/* CUSTOM: 0, or -EINVAL with what would be right in `why`. */
	int (*parse)(const char *text, void *at, struct message *why);
};

/*
 * An entry of a table: OPTION(COUNT, "steps", "N", "how many", struct settings, steps,
 * .initial = "100", .min = 1, .max = 1e9). A table ends with OPTION_END.
 */
#define OPTION(kind, name_, value_, help_, settings, field, ...)                         \
	{                                                                                \
		.name = (name_), .value = (value_), .help = (help_),                     \
		.type = OPTION_##kind, .at = offsetof(settings, field), __VA_ARGS__      \
	}
#define OPTION_END                                                                       \
	{                                                                                \
		.name = NULL                                                             \
	}

/*
 * Fills `settings` with the defaults and then with what argv says: "--name value" or
 * "--name=value". -EINVAL with a message that names the option, the value, and what would
 * be right. Texts point into argv or the table.
 */
int options_parse(const struct option *table, int argc, char **argv, void *settings,
	struct message *error);

/* -EINVAL, with this said in `error`. */
int options_refuse(struct message *error, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Each option in an aligned block of lines. */
void options_help(const struct option *table, FILE *out);

/* Reads sizes as an option of type BYTES does. -EINVAL. */
int options_parse_bytes(const char *text, struct byte_list *out);

/* The nearest of a NULL-terminated list to what was typed; NULL if none is near. */
const char *options_nearest(const char *typed, const char *const *names);

#endif
