/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded with LD_PRELOAD, makes one fsync() of a process slow, like a slow disk: the first one
 * lasts 3 seconds, which is longer than `tern train` waits for processes that have nothing to
 * save. SLOW_FSYNC=N:S in the environment: the N-th one lasts S seconds. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int fsync(int fd)
{
	static unsigned calls;
	const char *which = getenv("SLOW_FSYNC");
	unsigned n = 1, seconds = 3;

	if (which && sscanf(which, "%u:%u", &n, &seconds) != 2)
		abort();
	if (++calls == n)
		sleep(seconds);
	return (int)syscall(SYS_fsync, fd);
}
