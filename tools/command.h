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
	/* SIGTERM asked a process of a job to end that can go on from a snapshot: EX_TEMPFAIL of
	 * sysexits.h, for which batch systems can queue a job again */
	EXIT_REQUEUE = 75,
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

extern const struct command train_command, run_command, server_command, worker_command,
	bench_command, info_command, checkpoint_command, evaluator_command,
	status_command, top_command, drain_command, abort_command;

/* Reports an error as one line on stderr, "tern NAME: ..."; with --json also as an event
 * "failed" on stdout, which has `code`. Returns `code`. */
int command_end(const struct command *command, enum exit_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* For a command or input that is wrong, and for a job or measurement that has failed. */
#define command_refuse(command, ...) command_end(command, EXIT_INPUT, __VA_ARGS__)
#define command_fail(command, ...)   command_end(command, EXIT_JOB, __VA_ARGS__)

#endif
