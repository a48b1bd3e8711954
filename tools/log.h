/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which lines of the library's log a process shows: --log-level, else TERN_LOG, else
 * warnings and errors. Each line has the time and the role, since it is read later,
 * together with those of other processes.
 */
#ifndef TERN_TOOLS_LOG_H
#define TERN_TOOLS_LOG_H

#include <tern/log.h>

#include "tools/options.h"

#define LOG_TIME_BYTES 32

int log_parse_level(const char *text, void *at, struct message *why);

/* A row of a command's table of options; enum tern_log_level, 0: not given. */
#define LOG_LEVEL_OPTION(settings, field)                                                \
	OPTION(CUSTOM, "log-level", "none|error|warn|info|debug",                        \
		"what to log; default: TERN_LOG of the environment, else warn",          \
		settings, field, .parse = log_parse_level)

/* From now on log lines go to stderr as "tern ROLE: TIME LEVEL: TEXT". `level` is the
 * option's. -EINVAL: TERN_LOG is not a level. */
int log_open(const char *role, enum tern_log_level level, struct message *error);

/* Sends log lines to `take` instead, on any thread; NULL: to stderr again. */
void log_redirect(
	void (*take)(enum tern_log_level level, const char *text, void *arg), void *arg);

/* The present time, "2026-11-23T10:20:30.123Z". */
const char *log_time(char out[LOG_TIME_BYTES]);

#endif
