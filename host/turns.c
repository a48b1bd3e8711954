/* SPDX-License-Identifier: Apache-2.0 */
#include "host/turns.h"

#include "base/util.h"

/* Looks at the number before a thread sleeps: most calls are shorter than a sleep. */
#define LOOKS 200u

void turns_init(struct turns *t)
{
	pthread_mutex_init(&t->mutex, NULL);
	pthread_cond_init(&t->changed, NULL);
	t->next = 0;
	atomic_init(&t->serving, 0);
}

void turns_fini(struct turns *t)
{
	pthread_cond_destroy(&t->changed);
	pthread_mutex_destroy(&t->mutex);
}

static bool is_turn(struct turns *t, uint64_t number)
{
	return atomic_load_explicit(&t->serving, memory_order_acquire) == number;
}

void turns_take(struct turns *t)
{
	uint64_t number;

	pthread_mutex_lock(&t->mutex);
	number = t->next++;
	pthread_mutex_unlock(&t->mutex);
	for (unsigned i = 0; i < LOOKS; i++) {
		if (is_turn(t, number))
			return;
		tern_cpu_relax();
	}
	pthread_mutex_lock(&t->mutex);
	while (!is_turn(t, number))
		pthread_cond_wait(&t->changed, &t->mutex);
	pthread_mutex_unlock(&t->mutex);
}

void turns_give_into_mutex(struct turns *t)
{
	uint64_t serving;

	pthread_mutex_lock(&t->mutex);
	serving = atomic_load_explicit(&t->serving, memory_order_relaxed) + 1;
	atomic_store_explicit(&t->serving, serving, memory_order_release);
	if (t->next != serving)
		pthread_cond_broadcast(&t->changed);
}

void turns_give(struct turns *t)
{
	turns_give_into_mutex(t);
	pthread_mutex_unlock(&t->mutex);
}

bool turns_are_wanted(struct turns *t)
{
	bool wanted;

	pthread_mutex_lock(&t->mutex);
	wanted = t->next != atomic_load_explicit(&t->serving, memory_order_relaxed) + 1;
	pthread_mutex_unlock(&t->mutex);
	return wanted;
}
