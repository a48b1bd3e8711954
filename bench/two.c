/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/two.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/pair.h"

#define LIMIT_S 120
#define END     UINT64_MAX

int two_fork(bool *client)
{
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		pair_die("socketpair: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		pair_die("fork: %s", strerror(errno));
	*client = pid > 0;
	if (!*client)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(fds[*client ? 1 : 0]);
	alarm(LIMIT_S);
	bench_pin(*client ? 0 : 1);
	return fds[*client ? 0 : 1];
}

void two_tell(int fd, const void *data, size_t bytes)
{
	if (send(fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		pair_die("the other process is gone");
}

void two_hear(int fd, void *data, size_t bytes)
{
	if (recv(fd, data, bytes, MSG_WAITALL) != (ssize_t)bytes)
		pair_die("the other process is gone");
}

void two_ask(int fd, uint64_t question, void *answer, size_t bytes)
{
	two_tell(fd, &question, sizeof(question));
	two_hear(fd, answer, bytes);
}

uint64_t two_question(int fd)
{
	uint64_t question;

	two_hear(fd, &question, sizeof(question));
	if (question == END)
		_exit(0);
	return question;
}

void two_end(int fd)
{
	uint64_t end = END;

	two_tell(fd, &end, sizeof(end));
}
