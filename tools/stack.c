/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stack.h"

#include <errno.h>
#include <sys/resource.h>

/* The kernel reads the limit each time the stack grows, so the new limit also holds for
 * this running process. */
int stack_raise(uint64_t *soft_bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_STACK, &limit) < 0)
		return -errno;
	*soft_bytes = limit.rlim_cur;
	if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= STACK_BYTES)
		return 0;
	limit.rlim_cur = STACK_BYTES;
	if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < limit.rlim_cur)
		return -EPERM;
	return setrlimit(RLIMIT_STACK, &limit) < 0 ? -errno : 0;
}
