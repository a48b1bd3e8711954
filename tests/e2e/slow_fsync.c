/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, it makes the first fsync() of a process last 3 seconds, as a slow disk does:
 * longer than the launcher gives to the processes of a job that has failed. */
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int fsync(int fd)
{
	static bool called;

	if (!called)
		sleep(3);
	called = true;
	return (int)syscall(SYS_fsync, fd);
}
