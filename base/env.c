/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/escape.h"

#define RATION_NS (10 * TERN_NS_PER_S)

_Noreturn void tern_assert_failed(const char *expr, const char *file, int line)
{
	fprintf(stderr, "tern: internal error: %s:%d: %s\n", file, line, expr);
	abort();
}

static void log_line(struct tern_env *env, enum tern_log_level level, const char *fmt,
	va_list ap) __attribute__((format(printf, 3, 0)));

static void log_line(
	struct tern_env *env, enum tern_log_level level, const char *fmt, va_list ap)
{
	char raw[512], line[2 * sizeof(raw)];

	if (level > env->log_level)
		return;
	vsnprintf(raw, sizeof(raw), fmt, ap);
	tern_escape(line, sizeof(line), raw, strlen(raw));
	env->ops->log(env, level, line);
}

void tern_log(struct tern_env *env, enum tern_log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	log_line(env, level, fmt, ap);
	va_end(ap);
}

static bool ration(struct tern_env *env)
{
	struct tern_log_ration *r = &env->strangers;
	uint64_t now_ns = tern_now_ns(env);

	if (now_ns >= r->until_ns) {
		if (r->dropped)
			tern_log(env, TERN_LOG_WARN,
				"%u more connections of strangers were cut", r->dropped);
		*r = (struct tern_log_ration){
			.until_ns = now_ns + RATION_NS, .left = TERN_LOG_STRANGERS};
	}
	if (r->left == 0) {
		r->dropped++;
		return false;
	}
	r->left--;
	return true;
}

void tern_log_stranger(struct tern_env *env, const char *fmt, ...)
{
	va_list ap;

	if (!ration(env))
		return;
	va_start(ap, fmt);
	log_line(env, TERN_LOG_WARN, fmt, ap);
	va_end(ap);
}

static uint64_t system_now_ns(struct tern_env *env)
{
	(void)env;
	return tern_clock_ns();
}

static uint64_t system_ticks(struct tern_env *env)
{
	(void)env;
	return tern_clock_ticks();
}

static uint64_t system_random(struct tern_env *env)
{
	uint64_t r;

	(void)env;
	if (getrandom(&r, sizeof(r), 0) != sizeof(r))
		abort(); /* cannot happen for 8 bytes on Linux >= 3.17 */
	return r;
}

static void system_log(struct tern_env *env, enum tern_log_level level, const char *line)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	(void)env;
	fprintf(stderr, "tern: %s: %s\n", names[level], line);
}

static int system_submit(struct tern_env *env, struct tern_job *job)
{
	(void)env;
	(void)job;
	return -ENOTSUP;
}

static int system_file(struct tern_env *env, struct tern_file_op *op)
{
	(void)env;
	(void)op;
	return -ENOTSUP;
}

struct tern_env *tern_env_system(void)
{
	static const struct tern_env_ops ops = {
		.now_ns = system_now_ns,
		.ticks = system_ticks,
		.random = system_random,
		.log = system_log,
		.submit = system_submit,
		.file = system_file,
	};
	static struct tern_env env = {.ops = &ops, .log_level = TERN_LOG_WARN};

	return &env;
}
