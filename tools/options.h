/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command-line options as tables. Each command has one struct of settings and one table,
 * which gives each option's name, its values, its default and its field in the struct.
 * Parsing, error messages and `tern help CMD` all use that table, so they cannot
 * contradict each other.
 */
#ifndef TERN_TOOLS_OPTIONS_H
#define TERN_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
	OPTION_FLAG,    /* a bool; the option takes no value */
	OPTION_COUNT,   /* uint64_t, decimal */
	OPTION_REAL,    /* double */
	OPTION_COUNTS,  /* struct byte_list: whole numbers, separated by commas */
	OPTION_BYTES,   /* struct byte_list: sizes such as 64, 4K, 1.5MiB, 64B */
	OPTION_CHOICE,  /* int: index into `choices` */
	OPTION_TEXT,    /* const char *, not empty */
	OPTION_ADDRESS, /* const char *: HOST:PORT, or PORT alone */
	OPTION_PAIR,    /* struct count_pair: A:B */
	OPTION_CUSTOM,  /* the option's `parse` function decides what the field holds */
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
	const char *name; /* without the two leading dashes */
	/* placeholder for the value in the help, such as "N"; NULL for flags */
	const char *value;
	const char *help;
	enum option_type type;
	size_t at; /* offset of the option's field in the command's settings */
	/* The default value, written as a user would type it. NULL: no default; if the
	 * option is not given, its field keeps its value, normally 0. */
	const char *initial;
	double min, max; /* inclusive limits of a number; both 0: no limits */
	/* OPTION_CHOICE: the allowed words, NULL-terminated */
	const char *const *choices;
	const char *const *(*find_choices)(
		void); /* OPTION_CHOICE, if `choices` is NULL: returns the list */
	/* OPTION_CUSTOM: parses `text` and stores the value at `at`. Returns 0, or
	 * -EINVAL with the expected form in `why`. */
	int (*parse)(const char *text, void *at, struct message *why);
};

/*
 * An entry of a table of options. Example: OPTION(COUNT, "steps", "N", "how many", struct
 * settings, steps, .initial = "100", .min = 1, .max = 1e9). A table ends with OPTION_END.
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
 * Fills `settings` with the defaults, and then with the options in argv: "--name value"
 * or "--name=value". -EINVAL: `error` names the option, its value, and what is expected.
 * Strings in `settings` are not copied: they point into argv or the table.
 */
int options_parse(const struct option *table, int argc, char **argv, void *settings,
	struct message *error);

/* Checks an address for tcp or verbs, which must be HOST:PORT. Returns an error text,
 * NULL if the address is right. `least_port` is the smallest port allowed; 0 is for
 * addresses to listen at, for which the error text also offers PORT alone. */
const char *options_wrong_address(const char *text, uint64_t least_port);

/* True if the argument `arg` is the option `name`, which has its dashes ("--listen"):
 * "--listen" or "--listen=VALUE". */
bool options_is(const char *arg, const char *name);

/* Formats an error text into `error`. Always returns -EINVAL, so that a parser can write
 * `return options_refuse(...)`. */
int options_refuse(struct message *error, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Prints the help of all options in two columns: name and value, then the help text. */
void options_help(const struct option *table, FILE *out);

/* Parses a list of sizes, such as "64,4K,1MiB", as an option of type OPTION_BYTES does.
 * Returns 0 or -EINVAL. */
int options_parse_bytes(const char *text, struct byte_list *out);

/* Finds the name in `names` (NULL-terminated) that is most similar to the typed word, for
 * "did you mean NAME?". NULL: no name is similar. */
const char *options_nearest(const char *typed, const char *const *names);

#endif
