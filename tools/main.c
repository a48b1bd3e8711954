/* SPDX-License-Identifier: Apache-2.0 */
/* The `tern` program: finds the subcommand, and answers help and --version. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/types.h>

#include "base/escape.h"
#include "base/util.h"
#include "tools/command.h"
#include "tools/crash.h"
#include "tools/output.h"
#include "tools/report.h"
#include "tools/stack.h"
#include "tools/version.h"

static const struct command *const commands[] = {
	&train_command,
	&run_command,
	&server_command,
	&worker_command,
	&evaluator_command,
	&status_command,
	&top_command,
	&drain_command,
	&abort_command,
	&checkpoint_command,
	&bench_command,
	&info_command,
};

static bool wants_json;

int command_end(const struct command *command, enum exit_code code, const char *fmt, ...)
{
	char line[700], shown[4 * sizeof(line)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fprintf(stderr, "tern %s: %s\n", command->name,
		tern_escape(shown, sizeof(shown), line, strlen(line)));
	if (wants_json)
		report_failed(line, code);
	return code;
}

static const struct command *find(const char *name)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(commands); i++) {
		if (strcmp(commands[i]->name, name) == 0)
			return commands[i];
	}
	return NULL;
}

static int unknown(const char *name)
{
	const char *names[TERN_ARRAY_SIZE(commands) + 3];
	const char *near;
	size_t n = 0;

	for (size_t i = 0; i < TERN_ARRAY_SIZE(commands); i++)
		names[n++] = commands[i]->name;
	names[n++] = "help";
	names[n++] = "version";
	names[n] = NULL;
	name = *name ? name : "''";
	near = options_nearest(name, names);
	if (near)
		fprintf(stderr, "tern: %s: no such command; did you mean %s?\n",
			TERN_SHOWN(name), near);
	else
		fprintf(stderr, "tern: %s: no such command; see tern help\n",
			TERN_SHOWN(name));
	return EXIT_INPUT;
}

static int help_all(FILE *out)
{
	fprintf(out,
		"tern %s: moves tensors, and trains models with a parameter server\n\n"
		"usage: tern COMMAND [options]\n\n",
		tern_version());
	for (size_t i = 0; i < TERN_ARRAY_SIZE(commands); i++)
		fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
	fputs("  help       tern help COMMAND: the options of a command\n"
	      "  version    the version, and how it was built\n\n"
	      "exit codes: 0 success, 1 the job failed, 2 the command or its input was "
	      "wrong,\n"
	      "75 ended by SIGTERM, and the job can go on from a snapshot (--resume),\n"
	      "128+N ended by signal N (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP)\n",
		out);
	return out == stdout ? EXIT_OK : EXIT_INPUT;
}

static int help_one(const struct command *command)
{
	printf("usage: tern %s %s\n\n%s\n\n", command->name, command->usage,
		command->summary);
	options_help(command->options, stdout);
	return EXIT_OK;
}

/* True if `name` is among the arguments. What follows "--" is another program's. */
static bool has_argument(int argc, char **argv, const char *name)
{
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], name) == 0)
			return true;
	return false;
}

static bool asks_help(int argc, char **argv)
{
	return has_argument(argc, argv, "--help") || has_argument(argc, argv, "-h");
}

static bool asks_version(const char *word)
{
	return strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0 ||
	       strcmp(word, "-v") == 0 || strcmp(word, "version") == 0;
}

/* Opens /dev/null as any standard stream that is closed, so that no other file gets its
 * descriptor number. */
static void open_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Flushes stdout. Returns `code`, or EXIT_JOB if `code` is EXIT_OK but some output could not
 * be written. */
static int close_stdout(int code)
{
	static const char text[] =
		"tern: stdout: not all of the output could be written\n";
	bool lost = ferror(stdout) || output_lost();

	if (fflush(stdout) == 0 && !lost)
		return code;
	output_put(STDERR_FILENO, text, sizeof(text) - 1);
	return code ? code : EXIT_JOB;
}

static int run(int argc, char **argv)
{
	const struct command *command;

	if (argc < 2)
		return help_all(stderr);
	if (asks_version(argv[1])) {
		version_print();
		return EXIT_OK;
	}
	if (strcmp(argv[1], "help") == 0 && argc > 2 && strcmp(argv[2], "help") != 0) {
		command = find(argv[2]);
		return command ? help_one(command) : unknown(argv[2]);
	}
	if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
		strcmp(argv[1], "-h") == 0)
		return help_all(stdout);
	command = find(argv[1]);
	if (!command)
		return unknown(argv[1]);
	if (asks_help(argc - 2, argv + 2))
		return help_one(command);
	wants_json = has_argument(argc, argv, "--json");
	return command->run(argc - 2, argv + 2);
}

/* Raises the stack limit if it is too low. Returns false, after an error line, if that is
 * not possible: the process would sooner or later be killed by SIGSEGV. */
static bool has_stack(void)
{
	uint64_t bytes;

	if (stack_raise(&bytes) == 0)
		return true;
	fprintf(stderr,
		"tern: the stack may have %llu KiB (ulimit -s): at least %zu are "
		"needed\n",
		(unsigned long long)(bytes >> 10), STACK_BYTES >> 10);
	return false;
}

int main(int argc, char **argv)
{
	open_streams();
	crash_open();
	if (!has_stack())
		return EXIT_INPUT;
	return close_stdout(run(argc, argv));
}
