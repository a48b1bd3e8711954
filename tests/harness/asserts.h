/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small replacement of cmocka (a unit-test library), for machines where nothing can be
 * installed. It has only what the suites that run on such machines need. A failed
 * assertion ends its test case. Results are always printed as TAP. Mocks are missing, and
 * signals are not caught.
 */
#ifndef TERN_TESTS_HARNESS_ASSERTS_H
#define TERN_TESTS_HARNESS_ASSERTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
	const char *name;
	void (*test_func)(void **state);
	CMFixtureFunction setup_func, teardown_func;
};
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                              \
	{                                                                                \
#f, f, setup, teardown                                                   \
	}
#define cmocka_unit_test(f) cmocka_unit_test_setup_teardown(f, NULL, NULL)

enum asserts_verdict { ASSERTS_FAILED = 1, ASSERTS_SKIPPED = 2 };
/* Weak, so that all files of a program share this one variable: assertions in helper
 * files jump to it, too. */
__attribute__((weak)) jmp_buf asserts_end;

#define fail_msg(...)                                                                    \
	do {                                                                             \
		printf("# %s:%d: ", __FILE__, __LINE__);                                 \
		printf(__VA_ARGS__);                                                     \
		printf("\n");                                                            \
		longjmp(asserts_end, ASSERTS_FAILED);                                    \
	} while (0)
#define skip()             longjmp(asserts_end, ASSERTS_SKIPPED)
#define print_message(...) printf(__VA_ARGS__)

#define assert_true(x)                                                                   \
	do {                                                                             \
		if (!(x))                                                                \
			fail_msg("%s", #x);                                              \
	} while (0)
#define assert_false(x)            assert_true(!(x))
#define assert_null(p)             assert_true((p) == NULL)
#define assert_non_null(p)         assert_true((p) != NULL)
#define assert_ptr_equal(a, b)     assert_true((const void *)(a) == (const void *)(b))
#define assert_ptr_not_equal(a, b) assert_false((const void *)(a) == (const void *)(b))

#define ASSERTS_COMPARE(a, op, b)                                                        \
	do {                                                                             \
		long long asserts_a = (long long)(a), asserts_b = (long long)(b);        \
                                                                                         \
		if (!(asserts_a op asserts_b))                                           \
			fail_msg("%s is %lld, not " #op " %s, %lld", #a, asserts_a, #b,  \
				asserts_b);                                              \
	} while (0)
#define assert_int_equal(a, b)     ASSERTS_COMPARE(a, ==, b)
#define assert_int_not_equal(a, b) ASSERTS_COMPARE(a, !=, b)

#define assert_in_range(x, least, most)                                                  \
	do {                                                                             \
		unsigned long long asserts_x = (x);                                      \
                                                                                         \
		assert_true(asserts_x >= (least) && asserts_x <= (most));                \
	} while (0)

#define assert_string_equal(a, b)                                                        \
	do {                                                                             \
		const char *asserts_a = (a), *asserts_b = (b);                           \
                                                                                         \
		if (strcmp(asserts_a, asserts_b) != 0)                                   \
			fail_msg("\"%s\" is not \"%s\"", asserts_a, asserts_b);          \
	} while (0)
#define assert_memory_equal(a, b, bytes)     assert_true(memcmp(a, b, bytes) == 0)
#define assert_memory_not_equal(a, b, bytes) assert_true(memcmp(a, b, bytes) != 0)

/* Runs one test case. If its setup fails, the case fails and its teardown does not run.
 * Otherwise the teardown runs, also after a failed assertion. */
static inline int asserts_run_case(const struct CMUnitTest *test, void **state)
{
	volatile int verdict;

	if (test->setup_func && test->setup_func(state) != 0) {
		printf("# the case's setup failed\n");
		return ASSERTS_FAILED;
	}
	verdict = setjmp(asserts_end);
	if (verdict == 0)
		test->test_func(state);
	if (test->teardown_func && test->teardown_func(state) != 0) {
		printf("# the case's teardown failed\n");
		return ASSERTS_FAILED;
	}
	return verdict;
}

static inline int asserts_run_group(const struct CMUnitTest *tests, size_t count,
	CMFixtureFunction setup, CMFixtureFunction teardown)
{
	void *state = NULL;
	int failed = 0;

	printf("1..%zu\n", count);
	if (setup && setup(&state) != 0) {
		printf("# the group's setup failed\n");
		return (int)count;
	}
	for (size_t i = 0; i < count; i++) {
		int verdict = asserts_run_case(&tests[i], &state);

		failed += verdict == ASSERTS_FAILED;
		printf("%s %zu - %s%s\n", verdict == ASSERTS_FAILED ? "not ok" : "ok",
			i + 1, tests[i].name,
			verdict == ASSERTS_SKIPPED ? " # SKIP" : "");
		fflush(stdout);
	}
	if (teardown && teardown(&state) != 0) {
		printf("# the group's teardown failed\n");
		failed++;
	}
	return failed;
}
#define cmocka_run_group_tests(tests, setup, teardown)                                   \
	asserts_run_group(tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                        \
	(printf("# %s\n", name), cmocka_run_group_tests(tests, setup, teardown))

#endif
