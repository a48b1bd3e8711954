/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between a subcommand and main.c, and the exit codes that scripts
 * depend on. */
#ifndef TERN_TOOLS_COMMAND_H
#define TERN_TOOLS_COMMAND_H

#include "tools/options.h"

enum exit_code {
	EXIT_OK = 0,
	EXIT_JOB = 1,   /* the job failed */
	EXIT_INPUT = 2, /* the command or its input was wrong */
			/* 128 and a signal's number: ended by it */
};

struct command {
	const char *name;
	const char *usage;   /* the usage text behind "tern NAME" */
	const char *summary; /* one line */
	const struct option *options;
	/* Gets the arguments behind the name; returns an exit code. */
	int (*run)(int argc, char **argv);
};

extern const struct command train_command, server_command, worker_command, bench_command,
	info_command;

/* Prints one line on stderr, "tern NAME: ..."; returns EXIT_INPUT. */
int command_refuse(const struct command *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
