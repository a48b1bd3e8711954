/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded with LD_PRELOAD, makes the first fsync() of a process last 3 seconds, like a
 * slow disk: longer than `tern train` waits for processes that have nothing to save. */
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
