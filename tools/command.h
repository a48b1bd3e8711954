/* SPDX-License-Identifier: Apache-2.0 */
/* What a subcommand is to main.c, and the exit codes that scripts depend on. */
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
	const char *usage;   /* what follows "tern NAME" */
	const char *summary; /* one line */
	const struct option *options;
	int (*run)(int argc, char **argv); /* arguments behind the name; an exit code */
};

extern const struct command train_command, server_command, worker_command, bench_command,
	info_command;

/* One line on stderr, "tern NAME: ..."; returns EXIT_INPUT. */
int command_refuse(const struct command *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
