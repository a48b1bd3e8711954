/* SPDX-License-Identifier: Apache-2.0 */
/* See guard.h. The pipe carries process groups: N adds group N, -N removes it. */
#include "tools/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/supervise.h"

static void take(pid_t *groups, unsigned *count, pid_t group)
{
	if (group > 0 && *count < SUPERVISE_CHILDREN_MAX)
		groups[(*count)++] = group;
	for (unsigned i = 0; group < 0 && i < *count; i++)
		if (groups[i] == -group)
			groups[i--] = groups[--*count];
}

/* Runs in the child that fork() has made: async-signal-safe calls only. Signals are
 * blocked, so that only SIGKILL ends the guard before its time. */
static _Noreturn void guard(int fd)
{
	static pid_t groups[SUPERVISE_CHILDREN_MAX];
	unsigned count = 0;
	pid_t group;
	ssize_t n;

	setpgid(0, 0);
	prctl(PR_SET_NAME, "tern-guard");
	/* A write of so few bytes is never split, so neither is this read. */
	while ((n = read(fd, &group, sizeof(group))) > 0 || (n < 0 && errno == EINTR))
		if (n == sizeof(group))
			take(groups, &count, group);
	for (unsigned i = 0; i < count; i++)
		kill(-groups[i], SIGKILL);
	_exit(0);
}

int guard_open(struct guard *g)
{
	sigset_t all, mask;
	int fds[2], error;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &mask);
	g->pid = fork();
	error = errno;
	if (g->pid == 0) {
		close(fds[1]);
		guard(fds[0]);
	}
	sigprocmask(SIG_SETMASK, &mask, NULL);
	close(fds[0]);
	if (g->pid < 0) {
		close(fds[1]);
		return -error;
	}
	/* A guard that was stopped must not stop the launcher. */
	fcntl(fds[1], F_SETFL, O_NONBLOCK);
	g->fd = fds[1];
	return 0;
}

static void say(const struct guard *g, pid_t group)
{
	/* If the guard was killed, there is nobody to be told. */
	if (write(g->fd, &group, sizeof(group)) < 0)
		errno = 0;
}

void guard_add(const struct guard *g, pid_t group)
{
	say(g, group);
}

void guard_remove(const struct guard *g, pid_t group)
{
	say(g, -group);
}

void guard_close(struct guard *g)
{
	close(g->fd);
	/* it may have been stopped */
	kill(g->pid, SIGKILL);
	while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
		;
}
