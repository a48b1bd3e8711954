/* SPDX-License-Identifier: Apache-2.0 */
/* A pipe that the handler writes each signal's number to, on whatever thread it runs. */
#include "tools/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/util.h"

static const int caught[] = {SIGINT, SIGTERM, SIGCHLD};
static volatile int write_fd = -1;

static void handle(int number)
{
	unsigned char byte = (unsigned char)number;
	int error = errno;

	/* A full pipe holds thousands that have not been looked at: one more says
	 * nothing. */
	if (write(write_fd, &byte, 1) < 0)
		errno = error;
}

static void set_all(void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(caught); i++)
		sigaction(caught[i], &action, NULL);
}

int signals_open(void)
{
	int fds[2];

	tern_assert(write_fd < 0);
	if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) < 0)
		return -errno;
	write_fd = fds[1];
	set_all(handle);
	return fds[0];
}

int signals_take(int fd)
{
	unsigned char byte;

	return read(fd, &byte, 1) == 1 ? byte : 0;
}

void signals_reset(void)
{
	set_all(SIG_DFL);
}

void signals_close(int fd)
{
	signals_reset();
	close(fd);
	close(write_fd);
	write_fd = -1;
}
