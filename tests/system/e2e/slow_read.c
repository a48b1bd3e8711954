/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a process, it makes reads of large pieces return 4 KiB every 50 ms,
 * like a slow disk: a file of 4 MiB takes 50 s. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LARGE 65536
#define SMALL 4096

/* By another name, because the C library's header may have defined read() inline. */
__attribute__((visibility("default"))) ssize_t slow_read(
	int fd, void *buf, size_t count) __asm__("read");

ssize_t slow_read(int fd, void *buf, size_t count)
{
	if (count >= LARGE) {
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
		count = SMALL;
	}
	return syscall(SYS_read, fd, buf, count);
}
