/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock that threads get in the order in which they ask for it. The progress thread of a
 * shared context asks again and again, and so may many callers: with a lock that goes to
 * whoever comes first, one side could keep the other out for ever.
 */
#ifndef TERN_HOST_TURNS_H
#define TERN_HOST_TURNS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct turns {
	pthread_mutex_t mutex; /* protects the fields below, for a moment only */
	pthread_cond_t changed;
	uint64_t next;            /* number that the next thread gets */
	_Atomic uint64_t serving; /* number of the thread that has the lock */
};

void turns_init(struct turns *t);
void turns_fini(struct turns *t);
void turns_take(struct turns *t);
void turns_give(struct turns *t);
/* Called by the thread that has the lock: true if others wait for it. */
bool turns_are_wanted(struct turns *t);

/* Gives the lock, and returns with t->mutex held, for a wait on a condition of the caller's
 * own; nobody who takes t->mutex afterwards can be missed. */
void turns_give_into_mutex(struct turns *t);

#endif
