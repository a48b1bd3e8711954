/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses which lines of the library's log a process prints: the level of --log-level,
 * else of the environment variable TERN_LOG, else warnings and errors. Each line of text has
 * the time and the role of its process, since logs of several processes are read together.
 */
#ifndef TERN_TOOLS_LOG_H
#define TERN_TOOLS_LOG_H

#include <tern/log.h>

#include "tools/options.h"

#define LOG_TIME_BYTES 32

int log_parse_level(const char *text, void *at, struct message *why);

/* A row for a command's table of options. The field is an enum tern_log_level; 0 means
 * that the option was not given. */
#define LOG_LEVEL_OPTION(settings, field)                                                \
	OPTION(CUSTOM, "log-level", "none|error|warn|info|debug",                        \
		"least severe log lines to show; default: the environment variable "     \
		"TERN_LOG, else warn",                                                   \
		settings, field, .parse = log_parse_level)

/* From now on log lines go to stderr as "tern ROLE: TIME LEVEL: TEXT". `level` is the
 * value of --log-level. -EINVAL: TERN_LOG does not name a level. */
int log_open(const char *role, enum tern_log_level level, struct message *error);

/* From now on take() is called with each log line, on the thread that logs it, and must
 * print the line itself. NULL: log lines go to stderr again. */
void log_redirect(
	void (*take)(enum tern_log_level level, const char *text, void *arg), void *arg);

/* Writes the present time (UTC) to `out`, as "2026-11-23T10:20:30.123Z", and returns
 * `out`. */
const char *log_time(char out[LOG_TIME_BYTES]);

#endif
