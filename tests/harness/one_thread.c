/* SPDX-License-Identifier: Apache-2.0 */
/* The linker puts this in the place of pthread_create() in the unit tests that are not in suite
 * threads: under ThreadSanitizer only that suite runs, so a test that makes threads and is not in
 * it would not be looked at. */
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
