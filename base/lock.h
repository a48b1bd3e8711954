/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock for critical sections of some tens of nanoseconds that make no system call. It
 * is released by a plain store. Releasing a mutex takes a second atomic instruction, to
 * learn whether a thread sleeps, and without contention these two instructions are most
 * of its cost. No waiter is woken. A thread that finds the lock taken polls for longer
 * than a section lasts. After that the holder was probably preempted, so the waiter
 * sleeps repeatedly for a short time. So a waiter of higher priority does not keep the
 * holder from running. Not fair, not recursive; zeroed memory is a free lock.
 */
#ifndef TERN_BASE_LOCK_H
#define TERN_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/util.h"

#define TERN_LOCK_LOOKS    256 /* polls before each sleep: some microseconds */
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
	while (tern_unlikely(
		atomic_exchange_explicit(&lock->held, true, memory_order_acquire)))
		tern_lock_wait(lock);
}

static inline void tern_lock_give(struct tern_lock *lock)
{
	atomic_store_explicit(&lock->held, false, memory_order_release);
}

#endif
