/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/escape.h"
#include "base/lock.h"

#define RATION_NS (10 * TERN_NS_PER_S)

_Noreturn void tern_assert_failed(const char *expr, const char *file, int line)
{
	fprintf(stderr, "tern: internal error: %s:%d: %s\n", file, line, expr);
	abort();
}

/* ---- the settings of tern_log_set() ---- */

static _Atomic(enum tern_log_level) process_level = TERN_LOG_WARN;
static struct {
	struct tern_lock lock; /* not held while the log function runs */
	void (*log)(enum tern_log_level level, const char *text, void *arg);
	void *arg;
} process;

void tern_log_set(enum tern_log_level level,
	void (*log)(enum tern_log_level level, const char *text, void *arg), void *arg)
{
	tern_lock_take(&process.lock);
	process.log = log;
	process.arg = arg;
	tern_lock_give(&process.lock);
	atomic_store(&process_level, level == TERN_LOG_DEFAULT ? TERN_LOG_WARN : level);
}

const char *tern_log_level_name(enum tern_log_level level)
{
	switch (level) {
	case TERN_LOG_ERROR:
		return "error";
	case TERN_LOG_WARN:
		return "warning";
	case TERN_LOG_INFO:
		return "info";
	case TERN_LOG_DEBUG:
		return "debug";
	case TERN_LOG_NONE:
		return "none";
	case TERN_LOG_DEFAULT:
		break;
	}
	return "?";
}

static enum tern_log_level level_of(const struct tern_env *env)
{
	return env->log_level == TERN_LOG_DEFAULT
		       ? atomic_load_explicit(&process_level, memory_order_relaxed)
		       : env->log_level;
}

/* ---- lines ---- */

static void log_line(struct tern_env *env, enum tern_log_level level, const char *fmt,
	va_list ap) __attribute__((format(printf, 3, 0)));

static void log_line(
	struct tern_env *env, enum tern_log_level level, const char *fmt, va_list ap)
{
	char raw[512], line[2 * sizeof(raw)];

	if (level > level_of(env))
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
				"%u more warnings about unknown peers were left out",
				r->dropped);
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
		abort(); /* getrandom() cannot fail for 8 bytes on Linux >= 3.17 */
	return r;
}

static void system_log(struct tern_env *env, enum tern_log_level level, const char *line)
{
	void (*log)(enum tern_log_level level, const char *text, void *arg);
	void *arg;

	(void)env;
	tern_lock_take(&process.lock);
	log = process.log;
	arg = process.arg;
	tern_lock_give(&process.lock);
	if (log)
		log(level, line, arg);
	else
		fprintf(stderr, "tern: %s: %s\n", tern_log_level_name(level), line);
}

static int system_submit(struct tern_env *env, struct tern_task *task)
{
	(void)env;
	(void)task;
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
	static struct tern_env env = {.ops = &ops};

	return &env;
}
