/* SPDX-License-Identifier: Apache-2.0 */
/* The size of stacks: a stack that is too small ends the process by a signal somewhere
 * inside. */
#ifndef TERN_TOOLS_STACK_H
#define TERN_TOOLS_STACK_H

#include <stddef.h>
#include <stdint.h>

/* Stack size in bytes that suffices for all code here, on the main thread and on
 * others. */
#define STACK_BYTES ((size_t)1 << 20)

/* Raises the main thread's stack limit to STACK_BYTES if it is lower (ulimit -s).
 * -EPERM: the hard limit is lower; `soft_bytes` is the present limit. */
int stack_raise(uint64_t *soft_bytes);

#endif
