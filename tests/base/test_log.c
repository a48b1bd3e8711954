/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of where log lines go, and of the limited rate of warnings about connections that
 * have not completed their handshake ("strangers"). The tests set the clock. */
#include "tests/harness/cmocka.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"
#include "transport/context.h"

struct logger {
	struct tern_env env;
	uint64_t now_ns;
	unsigned count;
	char last[200];
};

/* True: logger->last gets only line number TERN_LOG_STRANGERS + 1, the first line after
 * those that were logged at once. False: it gets every line. */
static bool keep_first;

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
	assert_string_equal(l.last, "3 more warnings about unknown peers were left out");
	keep_first = false;
}

/* ---- log function and log level set by the program ---- */

struct kept {
	unsigned count;
	enum tern_log_level level;
	char text[200];
};

static void keep(enum tern_log_level level, const char *text, void *arg)
{
	struct kept *k = arg;

	k->count++;
	k->level = level;
	snprintf(k->text, sizeof(k->text), "%s", text);
}

static void test_a_program_takes_the_processs_lines(void **state)
{
	struct kept k = {0};

	(void)state;
	tern_log_set(TERN_LOG_DEFAULT, keep, &k);
	tern_log(tern_env_system(), TERN_LOG_WARN, "a \033 of %d", 7);
	assert_int_equal(k.level, TERN_LOG_WARN);
	assert_string_equal(k.text, "a \\x1b of 7");
	tern_log(tern_env_system(), TERN_LOG_INFO, "not asked for");
	assert_int_equal(k.count, 1);
	tern_log_set(TERN_LOG_DEBUG, keep, &k);
	tern_log(tern_env_system(), TERN_LOG_DEBUG, "asked for");
	assert_int_equal(k.count, 2);
	tern_log_set(TERN_LOG_NONE, keep, &k);
	tern_log(tern_env_system(), TERN_LOG_ERROR, "silenced");
	assert_int_equal(k.count, 2);
	tern_log_set(TERN_LOG_DEFAULT, NULL, NULL);
}

static void test_what_is_not_a_contexts_goes_to_the_process(void **state)
{
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct tern_buf buf;
	struct kept k = {0};

	(void)state;
	tern_log_set(TERN_LOG_DEFAULT, keep, &k);
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_pool_new(domain,
				 &(struct tern_pool_opts){.slab_bytes = 1 << 20}, &pool),
		0);
	assert_int_equal(tern_pool_get(pool, 5, &buf), 0);
	tern_pool_free(pool);
	assert_int_equal(k.count, 1);
	assert_int_equal(k.level, TERN_LOG_ERROR);
	tern_pool_put(pool, &buf);
	tern_domain_free(domain);
	tern_log_set(TERN_LOG_DEFAULT, NULL, NULL);
}

static void test_a_context_has_a_function_and_a_level_of_its_own(void **state)
{
	struct kept of_process = {0}, of_context = {0};
	struct tern_context_opts opts = {
		.log = keep, .log_arg = &of_context, .log_level = TERN_LOG_INFO};
	struct tern_context *own, *loud, *silent;
	struct tern_domain *domain;

	(void)state;
	tern_log_set(TERN_LOG_WARN, keep, &of_process);
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_context_new(domain, &opts, &own), 0);
	opts.log = NULL;
	assert_int_equal(tern_context_new(domain, &opts, &loud), 0);
	opts.log_level = TERN_LOG_NONE;
	assert_int_equal(tern_context_new(domain, &opts, &silent), 0);
	tern_log(tern_context_env(own), TERN_LOG_INFO, "one");
	tern_log(tern_context_env(own), TERN_LOG_DEBUG, "too much");
	assert_int_equal(of_context.count, 1);
	assert_string_equal(of_context.text, "one");
	assert_int_equal(of_process.count, 0);
	tern_log(tern_context_env(loud), TERN_LOG_INFO, "two");
	assert_int_equal(of_process.count, 1);
	tern_log(tern_context_env(silent), TERN_LOG_ERROR, "three");
	assert_int_equal(of_process.count, 1);
	tern_context_free(own);
	tern_context_free(loud);
	tern_context_free(silent);
	tern_domain_free(domain);
	tern_log_set(TERN_LOG_DEFAULT, NULL, NULL);
}

static void test_a_contexts_level_follows_the_processs(void **state)
{
	struct kept k = {0};
	struct tern_domain *domain;
	struct tern_context *ctx;

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_context_new(domain, NULL, &ctx), 0);
	tern_log_set(TERN_LOG_NONE, keep, &k);
	tern_log(tern_context_env(ctx), TERN_LOG_ERROR, "no");
	tern_log_set(TERN_LOG_DEBUG, keep, &k);
	tern_log(tern_context_env(ctx), TERN_LOG_DEBUG, "yes");
	assert_int_equal(k.count, 1);
	assert_string_equal(k.text, "yes");
	tern_context_free(ctx);
	tern_domain_free(domain);
	tern_log_set(TERN_LOG_DEFAULT, NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strangers_cannot_fill_the_log),
		cmocka_unit_test(test_what_was_left_out_is_counted),
		cmocka_unit_test(test_a_program_takes_the_processs_lines),
		cmocka_unit_test(test_what_is_not_a_contexts_goes_to_the_process),
		cmocka_unit_test(test_a_context_has_a_function_and_a_level_of_its_own),
		cmocka_unit_test(test_a_contexts_level_follows_the_processs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
