/* SPDX-License-Identifier: Apache-2.0 */
/* Signals as a pipe: the handler writes each signal's number to it, on whatever thread
 * the handler runs. */
#include "tools/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/util.h"

static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
/* Write end of the pipe. Atomic, since two signals may be handled on two threads at
 * once. */
static atomic_int write_fd = -1;
static atomic_bool aborts_on_second, interrupted, asked;

bool signals_is_end(int number)
{
	return number == SIGINT || number == SIGTERM || number == SIGHUP ||
	       number == SIGUSR2;
}

const char *signals_name(int number)
{
	switch (number) {
	case SIGINT:
		return "SIGINT";
	case SIGTERM:
		return "SIGTERM";
	case SIGHUP:
		return "SIGHUP";
	case SIGUSR2:
		return "SIGUSR2";
	}
	return "a signal";
}

static void handle(int number)
{
	static const char aborted[] = "tern: aborted by a second SIGINT\n";
	unsigned char byte = (unsigned char)number;
	int error = errno;

	if (number == SIGINT && atomic_exchange(&interrupted, true) && aborts_on_second) {
		if (write(STDERR_FILENO, aborted, sizeof(aborted) - 1) < 0)
			errno = error;
		_exit(128 + SIGINT);
	}
	if (signals_is_end(number))
		asked = true;

	/* If the pipe is full, it holds thousands of unread signals, and this signal is
	 * dropped. */
	if (write(write_fd, &byte, 1) < 0)
		errno = error;
}

static bool is_ignored(int number)
{
	struct sigaction action;

	return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void set_all(void (*handler)(int), void (*of_question)(int))
{
	struct sigaction action = {.sa_flags = SA_RESTART};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(caught); i++) {
		action.sa_handler = caught[i] == SIGUSR1 ? of_question : handler;
		if (caught[i] != SIGHUP || !is_ignored(SIGHUP))
			sigaction(caught[i], &action, NULL);
	}
}

int signals_open(void)
{
	int fds[2];

	tern_assert(write_fd < 0);
	if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) < 0)
		return -errno;
	write_fd = fds[1];
	interrupted = aborts_on_second = asked = false;
	set_all(handle, handle);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	return fds[0];
}

bool signals_asked(void)
{
	return asked;
}

void signals_abort_on_second(void)
{
	aborts_on_second = true;
}

void signals_catch_stop(void)
{
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};

	if (!is_ignored(SIGTSTP))
		sigaction(SIGTSTP, &action, NULL);
}

void signals_stop(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL}, kept;

	sigaction(SIGTSTP, &action, &kept);
	raise(SIGTSTP);
	sigaction(SIGTSTP, &kept, NULL);
}

int signals_take(int fd)
{
	unsigned char byte;

	return read(fd, &byte, 1) == 1 ? byte : 0;
}

static void reset(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	/* SIGUSR1 is ignored, not reset: it may come before a child is ready to answer or
	 * while the child ends, and must not kill the child. */
	set_all(SIG_DFL, SIG_IGN);
	if (!is_ignored(SIGTSTP))
		sigaction(SIGTSTP, &action, NULL);
}

void signals_reset_child(bool program)
{
	reset();
	if (!program)
		return;
	signal(SIGUSR1, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
}

void signals_close(int fd)
{
	reset();
	close(fd);
	close(write_fd);
	write_fd = -1;
}
