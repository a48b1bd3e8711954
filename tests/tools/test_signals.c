/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "base/util.h"
#include "tools/signals.h"

#define THREADS 4u
#define EACH    1000u

static const int sent[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};

static void *raise_many(void *arg)
{
	const int *number = arg;

	for (unsigned i = 0; i < EACH; i++)
		raise(*number);
	return NULL;
}

/* Each thread sends itself one kind of signal, so the signal's handler runs in that
 * thread. */
static void test_signals_are_heard_on_all_threads_at_once(void **state)
{
	pthread_t threads[THREADS];
	unsigned heard[THREADS] = {0};
	int fd, number;

	(void)state;
	signal(SIGHUP, SIG_DFL); /* nohup starts programs with SIGHUP ignored */
	fd = signals_open();
	assert_true(fd >= 0);
	assert_false(signals_asked());
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, raise_many, (void *)&sent[i]),
			0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_true(signals_asked());
	while ((number = signals_take(fd)) > 0)
		for (unsigned i = 0; i < THREADS; i++)
			heard[i] += number == sent[i];
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(heard[i], EACH);
	signals_close(fd);
}

static void test_a_child_that_ends_asks_nobody_to_end(void **state)
{
	int fd = signals_open();

	(void)state;
	assert_true(fd >= 0);
	raise(SIGCHLD);
	raise(SIGUSR1);
	assert_false(signals_asked());
	raise(SIGUSR2);
	assert_true(signals_asked());
	signals_close(fd);
}

/* nohup has a program started with SIGHUP ignored; signals_open() must not catch it
 * then. */
static void test_an_ignored_hangup_stays_ignored(void **state)
{
	int fd;

	(void)state;
	signal(SIGHUP, SIG_IGN);
	fd = signals_open();
	assert_true(fd >= 0);
	raise(SIGHUP);
	assert_false(signals_asked());
	assert_int_equal(signals_take(fd), 0);
	signals_close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_signals_are_heard_on_all_threads_at_once),
		cmocka_unit_test(test_a_child_that_ends_asks_nobody_to_end),
		cmocka_unit_test(test_an_ignored_hangup_stays_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
