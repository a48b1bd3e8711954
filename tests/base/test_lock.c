/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of base/lock.h, the lock for short sections: only one thread at a time holds it,
 * and if that thread is preempted, the threads that wait for the lock give up the CPU. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/lock.h"

#define THREADS 4
#define ROUNDS  20000

struct shared {
	struct tern_lock lock;
	/* Protected by the lock; not atomic, so that a race detector notices if the lock
	 * fails. */
	int in_use, count;
	atomic_int intruders; /* how often a thread got the lock while another held it */
};

/* Takes and gives the lock ROUNDS times. In 20 of them the thread holds the lock for
 * 0.2 ms, so long that the other threads must sleep. */
static void *count_up(void *arg)
{
	const struct timespec nap = {.tv_nsec = 200000};
	struct shared *s = arg;

	for (int i = 0; i < ROUNDS; i++) {
		tern_lock_take(&s->lock);
		if (s->in_use++)
			atomic_fetch_add(&s->intruders, 1);
		if (i % (ROUNDS / 20) == 0)
			nanosleep(&nap, NULL);
		s->count++;
		s->in_use--;
		tern_lock_give(&s->lock);
	}
	return NULL;
}

static void test_excludes(void **state)
{
	struct shared s = {0};
	pthread_t threads[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_up, &s), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&s.intruders), 0);
	assert_int_equal(s.count, THREADS * ROUNDS);
}

struct waiter {
	struct tern_lock *lock;
	long sleeps;
};

static void *take_and_give(void *arg)
{
	struct waiter *w = arg;
	struct rusage usage;

	tern_lock_take(w->lock);
	tern_lock_give(w->lock);
	w->sleeps = getrusage(RUSAGE_THREAD, &usage) ? -1 : usage.ru_nvcsw;
	return NULL;
}

/* This thread holds the lock for 200 ms. Meanwhile the other thread, which waits for the
 * lock, must sleep more than three times instead of using the CPU. */
static void test_a_long_wait_sleeps(void **state)
{
	const struct timespec nap = {.tv_nsec = 200000000};
	struct tern_lock lock = {0};
	struct waiter w = {.lock = &lock};
	pthread_t thread;

	(void)state;
	tern_lock_take(&lock);
	assert_int_equal(pthread_create(&thread, NULL, take_and_give, &w), 0);
	nanosleep(&nap, NULL);
	tern_lock_give(&lock);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(w.sleeps > 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_excludes),
		cmocka_unit_test(test_a_long_wait_sleeps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
