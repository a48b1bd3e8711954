/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c needs to know of a subcommand ("tern NAME"), and the program's exit codes,
 * which scripts depend on. */
#ifndef TERN_TOOLS_COMMAND_H
#define TERN_TOOLS_COMMAND_H

#include "tools/options.h"

enum exit_code {
	EXIT_OK = 0,
	EXIT_JOB = 1,   /* the job or the measurement failed */
	EXIT_INPUT = 2, /* the command or its input was wrong */
			/* 128 + N: signal N asked the program to end */
};

struct command {
	const char *name;
	const char *usage;   /* the usage text after "tern NAME" */
	const char *summary; /* what the command does, in one line of `tern help` */
	const struct option *options;
	/* Runs the command. argc and argv are the arguments after NAME; returns an enum
	 * exit_code. */
	int (*run)(int argc, char **argv);
};

extern const struct command train_command, server_command, worker_command, bench_command,
	info_command;

/* Each reports an error as one line on stderr, "tern NAME: ..."; with --json also as an
 * event "failed" on stdout, with the exit code. command_refuse() is for wrong commands and
 * input, and returns EXIT_INPUT; command_fail() returns EXIT_JOB. */
int command_refuse(const struct command *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int command_fail(const struct command *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
