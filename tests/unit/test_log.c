/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings about strangers are rationed, in virtual time. */
#include "tests/cmocka.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"

struct logger {
	struct tern_env env;
	uint64_t now_ns;
	unsigned count;
	char last[200];
};

static bool keep_first; /* of the lines behind the first ration */

static uint64_t now_of(struct tern_env *env)
{
	return tern_container_of(env, struct logger, env)->now_ns;
}

static void take_line(struct tern_env *env, enum tern_log_level level, const char *line)
{
	struct logger *l = tern_container_of(env, struct logger, env);

	assert_int_equal(level, TERN_LOG_WARN);
	l->count++;
	if (!keep_first || l->count == TERN_LOG_STRANGERS + 1)
		snprintf(l->last, sizeof(l->last), "%s", line);
}

static const struct tern_env_ops ops = {.now_ns = now_of, .log = take_line};

static void strangers(struct logger *l, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		tern_log_stranger(&l->env, "stranger %u", i);
}

static void test_strangers_cannot_fill_the_log(void **state)
{
	struct logger l = {.env = {.ops = &ops, .log_level = TERN_LOG_WARN}};

	(void)state;
	l.now_ns = 5;
	strangers(&l, 1000);
	assert_int_equal(l.count, TERN_LOG_STRANGERS);
	assert_string_equal(l.last, "stranger 7");
	l.now_ns += 10 * TERN_NS_PER_S - 1;
	strangers(&l, 1);
	assert_int_equal(l.count, TERN_LOG_STRANGERS);
	l.now_ns += 1;
	tern_log(&l.env, TERN_LOG_WARN, "of one that is known");
	strangers(&l, 1);
	assert_int_equal(l.count, TERN_LOG_STRANGERS + 3);
	assert_string_equal(l.last, "stranger 0");
}

static void test_what_was_left_out_is_counted(void **state)
{
	struct logger l = {.env = {.ops = &ops, .log_level = TERN_LOG_WARN}};

	(void)state;
	strangers(&l, TERN_LOG_STRANGERS + 3);
	l.now_ns = 10 * TERN_NS_PER_S;
	keep_first = true;
	strangers(&l, 1);
	assert_string_equal(l.last, "3 more connections of strangers were cut");
	keep_first = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strangers_cannot_fill_the_log),
		cmocka_unit_test(test_what_was_left_out_is_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
