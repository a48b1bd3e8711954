/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded with LD_PRELOAD, makes one fsync() of a process slow, like a slow disk: the first one
 * lasts 3 seconds, which is longer than `tern train` waits for processes that have nothing to
 * save. SLOW_FSYNC=N:S:ROLE in the environment: in `tern ROLE` the N-th one lasts S seconds. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* True if the first argument of this process is `role`. */
static bool is_in_role(const char *role)
{
	char words[4096] = "";
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, words, sizeof(words) - 2);

	if (fd >= 0)
		close(fd);
	return n > 0 && strcmp(words + strlen(words) + 1, role) == 0;
}

__attribute__((visibility("default"))) int fsync(int fd)
{
	static unsigned calls;
	const char *which = getenv("SLOW_FSYNC");
	unsigned n = 1, seconds = 3;
	char role[16] = "";

	if (which && sscanf(which, "%u:%u:%15s", &n, &seconds, role) != 3)
		abort();
	if (++calls == n && (!which || is_in_role(role)))
		sleep(seconds);
	return (int)syscall(SYS_fsync, fd);
}
