/* SPDX-License-Identifier: Apache-2.0 */
/* How large stacks are: what is too little ends in a signal somewhere inside. */
#ifndef TERN_TOOLS_STACK_H
#define TERN_TOOLS_STACK_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that everything here gets along with, on the main thread and on others. */
#define STACK_BYTES ((size_t)1 << 20)

/* Makes room for STACK_BYTES on the main thread's stack if less is allowed (ulimit -s).
 * -EPERM: the hard limit is lower; `soft_bytes` says how much there is. */
int stack_raise(uint64_t *soft_bytes);

#endif
