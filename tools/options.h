/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line as data. A command has one struct of settings and one table, which
 * gives each option's name, its values, its default and its place in the struct. Parsing,
 * messages and `tern help CMD` all use that table, so they cannot contradict each other.
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
	OPTION_CUSTOM,  /* type is up to `parse` */
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
	const char *value; /* placeholder for the value in help: "N"; NULL for flags */
	const char *help;
	enum option_type type;
	size_t at; /* offset in the command's settings */
	/* The default, as the user would type it; NULL: zero, not given. */
	const char *initial;
	double min, max;            /* limits of numbers, inclusive; both 0: none */
	const char *const *choices; /* CHOICE: NULL-terminated */
	const char *const *(*find_choices)(
		void); /* CHOICE without `choices`: returns them */
	/* CUSTOM: parses `text` into `at`. Returns 0, or -EINVAL with the expected
	 * form in `why`. */
	int (*parse)(const char *text, void *at, struct message *why);
};

/*
 * An entry of a table. Example: OPTION(COUNT, "steps", "N", "how many", struct settings,
 * steps, .initial = "100", .min = 1, .max = 1e9). A table ends with OPTION_END.
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
 * Fills `settings` with the defaults and then with the options in argv: "--name value" or
 * "--name=value". -EINVAL: `error` names the option, the value, and what is expected.
 * Texts in `settings` point into argv or the table.
 */
int options_parse(const struct option *table, int argc, char **argv, void *settings,
	struct message *error);

/* Returns what is wrong with an address of tcp or verbs, which must be HOST:PORT;
 * NULL: it is right. If `least_port` is 0, the host may be missing. */
const char *options_wrong_address(const char *text, uint64_t least_port);

/* Writes this text to `error` and returns -EINVAL. */
int options_refuse(struct message *error, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Prints each option in an aligned block of lines. */
void options_help(const struct option *table, FILE *out);

/* Parses sizes like an option of type BYTES. -EINVAL. */
int options_parse_bytes(const char *text, struct byte_list *out);

/* Returns the name of a NULL-terminated list that is nearest to the typed word; NULL
 * if none is near. */
const char *options_nearest(const char *typed, const char *const *names);

#endif
