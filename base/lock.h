/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock for sections of some tens of nanoseconds, without a system call in them. It is
 * given back by a plain store, where a mutex takes a second locked instruction to learn
 * whether somebody sleeps: these two are most of what an uncontended mutex costs. Nobody
 * is woken for it: who finds it taken looks again for longer than a section lasts, and then
 * sleeps now and then, because its holder has lost the processor. So a waiter of higher
 * priority does not keep the holder from running. Not fair, not recursive; zeroes are a
 * free one.
 */
#ifndef TERN_BASE_LOCK_H
#define TERN_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/util.h"

#define TERN_LOCK_LOOKS    256 /* some microseconds */
#define TERN_LOCK_SLEEP_NS 20000

struct tern_lock {
	atomic_bool held;
};

static inline void tern_lock_wait(struct tern_lock *lock)
{
	const struct timespec pause = {.tv_nsec = TERN_LOCK_SLEEP_NS};
	int looks = 0;

	while (atomic_load_explicit(&lock->held, memory_order_relaxed)) {
		tern_cpu_relax();
		if (++looks % TERN_LOCK_LOOKS == 0)
			nanosleep(&pause, NULL);
	}
}

static inline void tern_lock_take(struct tern_lock *lock)
{
	while (tern_unlikely(atomic_exchange_explicit(
		&lock->held, true, memory_order_acquire)))
		tern_lock_wait(lock);
}

static inline void tern_lock_give(struct tern_lock *lock)
{
	atomic_store_explicit(&lock->held, false, memory_order_release);
}

#endif
