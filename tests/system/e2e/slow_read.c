/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded with LD_PRELOAD, makes large reads of a process return 4 KiB every 50 ms, like a
 * slow disk: a file of 4 MiB takes 51 s. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LARGE 65536
#define SMALL 4096

/* The function has another C name, since the C library's header may define read() inline;
 * its symbol is "read". */
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
