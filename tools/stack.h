/* SPDX-License-Identifier: Apache-2.0 */
/* The size of thread stacks. A process whose stack is too small would be killed by
 * SIGSEGV in some deep call. */
#ifndef TERN_TOOLS_STACK_H
#define TERN_TOOLS_STACK_H

#include <stddef.h>
#include <stdint.h>

/* Stack size in bytes that is enough for all code of Tern, on the main thread and on
 * others. */
#define STACK_BYTES ((size_t)1 << 20)

/* Raises the stack limit of the main thread (ulimit -s) to STACK_BYTES if it is lower.
 * *soft_bytes: the limit before, in bytes. -EPERM: the hard limit is lower than
 * STACK_BYTES, and nothing was changed. */
int stack_raise(uint64_t *soft_bytes);

#endif
