/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded with LD_PRELOAD, is a disk that only the curves of --logdir are on, and that a test breaks and
 * mends while a job runs. CURVES_DISK in the environment names a file. While it is there, a write() to
 * an event file fails with the error whose number the file has, or if that is 0, waits. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The function has another C name, since the C library's header may define write() inline;
 * its symbol is "write". */
__attribute__((visibility("default"))) ssize_t curves_write(
	int fd, const void *data, size_t count) __asm__("write");

static bool is_event_file(int fd)
{
	char link[40], path[PATH_MAX] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof(path) - 1) > 0 && strstr(path, "tfevents");
}

/* The error of the disk; 0: it stands still; -1: nothing is wrong with it. */
static int error_now(const char *path)
{
	FILE *file = path ? fopen(path, "re") : NULL;
	int error = -1;

	if (!file)
		return -1;
	if (fscanf(file, "%d", &error) != 1)
		abort();
	fclose(file);
	return error;
}

ssize_t curves_write(int fd, const void *data, size_t count)
{
	const char *path = getenv("CURVES_DISK");
	int error = is_event_file(fd) ? error_now(path) : -1;

	while (error == 0) {
		usleep(1000);
		error = error_now(path);
	}
	if (error > 0) {
		errno = error;
		return -1;
	}
	return syscall(SYS_write, fd, data, count);
}
