/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers that every file needs: assertions, bounds, container_of, cleanup. */
#ifndef TERN_BASE_UTIL_H
#define TERN_BASE_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define TERN_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define tern_container_of(ptr, type, member)                                             \
	((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define TERN_MIN(a, b)                                                                   \
	({                                                                               \
		__typeof__(a) min_a_ = (a);                                              \
		__typeof__(b) min_b_ = (b);                                              \
		min_a_ < min_b_ ? min_a_ : min_b_;                                       \
	})
#define TERN_MAX(a, b)                                                                   \
	({                                                                               \
		__typeof__(a) max_a_ = (a);                                              \
		__typeof__(b) max_b_ = (b);                                              \
		max_a_ > max_b_ ? max_a_ : max_b_;                                       \
	})

#define tern_likely(x)   __builtin_expect(!!(x), 1)
#define tern_unlikely(x) __builtin_expect(!!(x), 0)

/* Assertions, which stay on in release builds. They check preconditions and invariants of
 * the code, never input. */
_Noreturn void tern_assert_failed(const char *expr, const char *file, int line);
#define tern_assert(expr)                                                                \
	(tern_likely(expr) ? (void)0 : tern_assert_failed(#expr, __FILE__, __LINE__))

/* Aborts: marks code that a correct program never reaches; `why` is the reason. */
#define tern_never(why) tern_assert_failed(why, __FILE__, __LINE__)

/* Rounds x up to a multiple of n, which must be a power of two. */
static inline uint64_t tern_align_up(uint64_t x, uint64_t n)
{
	return (x + n - 1) & ~(n - 1);
}

/* True if a is before b, for wrapping 32-bit counters (serial-number comparison). */
static inline bool tern_seq_before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0;
}

/* Scope guards. When a variable marked TERN_CLEANUP(f) goes out of scope, f is called with
 * the variable's address. TERN_TAKE returns a pointer's value and sets the pointer to
 * NULL, which tern_cleanup_free() ignores. */
#define TERN_CLEANUP(f) __attribute__((cleanup(f)))
#define TERN_TAKE(ptr)                                                                   \
	({                                                                               \
		__typeof__(ptr) take_ = (ptr);                                           \
		(ptr) = NULL;                                                            \
		take_;                                                                   \
	})
static inline void tern_cleanup_free(void *p)
{
	free(*(void **)p);
}
static inline void tern_cleanup_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void tern_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield");
#endif
}

#endif
