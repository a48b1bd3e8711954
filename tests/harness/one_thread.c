/* SPDX-License-Identifier: Apache-2.0 */
/* In the unit tests that are not in suite threads, the linker replaces pthread_create() by the
 * function below, which aborts the test. Of the unit tests only suite threads runs under
 * ThreadSanitizer, which would therefore never see a test that makes threads outside of it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg);

int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	(void)thread, (void)attr, (void)start, (void)arg;
	fprintf(stderr, "this test makes threads: name it in threaded_tests in "
			"tests/meson.build\n");
	abort();
}
