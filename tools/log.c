/* SPDX-License-Identifier: Apache-2.0 */
/* See log.h. */
#include "tools/log.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/escape.h"
#include "base/util.h"

/* Role and level for log lines. log_open() sets them before threads are started. */
static const char *the_role = "";
static enum tern_log_level the_level;

int log_parse_level(const char *text, void *at, struct message *why)
{
	static const struct {
		const char *name;
		enum tern_log_level level;
	} levels[] = {
		{"none", TERN_LOG_NONE},
		{"error", TERN_LOG_ERROR},
		{"warn", TERN_LOG_WARN},
		{"warning", TERN_LOG_WARN},
		{"info", TERN_LOG_INFO},
		{"debug", TERN_LOG_DEBUG},
	};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(levels); i++)
		if (strcmp(text, levels[i].name) == 0) {
			*(enum tern_log_level *)at = levels[i].level;
			return 0;
		}
	return options_refuse(why, "must be none, error, warn, info or debug");
}

const char *log_time(char out[LOG_TIME_BYTES])
{
	struct timespec now;
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	n = strftime(out, LOG_TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + n, LOG_TIME_BYTES - n, ".%03uZ",
		(unsigned)(now.tv_nsec / 1000000) % 1000);
	return out;
}

static void print_line(enum tern_log_level level, const char *text, void *arg)
{
	char time[LOG_TIME_BYTES];

	(void)arg;
	fprintf(stderr, "tern %s: %s %s: %s\n", the_role, log_time(time),
		tern_log_level_name(level), text);
}

int log_open(const char *role, enum tern_log_level level, struct message *error)
{
	const char *given = getenv("TERN_LOG");
	struct message why;

	if (level == TERN_LOG_DEFAULT && given && *given &&
		log_parse_level(given, &level, &why))
		return options_refuse(error, "TERN_LOG=%.100s: %s", given, why.text);
	the_role = role;
	the_level = level;
	log_redirect(NULL, NULL);
	return 0;
}

void log_redirect(
	void (*take)(enum tern_log_level level, const char *text, void *arg), void *arg)
{
	tern_log_set(the_level, take ? take : print_line, arg);
}
