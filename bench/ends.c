/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/ends.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX  4096u /* bytes of the sender's arguments */
#define WORDS_MAX 64
/* Two hosts: s within which the other end must come; else SIGALRM ends the process. pair.c
 * sets another limit before it opens the connection that is measured. */
#define WAIT_S 60

/* ---- two processes of one host ---- */

static volatile sig_atomic_t over;

void ends_over(void)
{
	over = 1;
}

static void child_ended(int signal)
{
	static const char text[] = "the receiver has exited too early\n";

	(void)signal;
	if (!over && write(STDERR_FILENO, text, sizeof(text) - 1))
		_exit(1);
}

int ends_fork(struct pair *p, void (*run)(struct pair *p, void *arg), void *arg)
{
	int fds[2], status;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		pair_die("socketpair: %s", strerror(errno));
	signal(SIGCHLD, child_ended);
	pid = fork();
	if (pid < 0)
		pair_die("fork: %s", strerror(errno));
	p->sender = pid > 0;
	p->fd = fds[p->sender ? 0 : 1];
	close(fds[p->sender ? 1 : 0]);
	if (!p->sender) {
		signal(SIGCHLD, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	run(p, arg);
	if (!p->sender)
		_exit(0);
	if (waitpid(pid, &status, 0) != pid || status != 0)
		pair_die("the receiver ended with status %x", (unsigned)status);
	return 0;
}

/* The processes connect over a UNIX socket that is named after mpirun's process id. */
void ends_rank(struct pair *p, int rank)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "tern-bench-%d",
		(int)getppid());
	p->sender = rank == 0;
	if (!p->sender) {
		if (bind(fd, (void *)&name, sizeof(name)) < 0 || listen(fd, 1) < 0)
			pair_die("listening for the sender: %s", strerror(errno));
		p->fd = accept(fd, NULL, NULL);
	} else {
		for (int i = 0; connect(fd, (void *)&name, sizeof(name)) < 0; i++) {
			if (i == 5000)
				pair_die("the receiver did not listen within 5 s");
			usleep(1000);
		}
		p->fd = fd;
	}
}

/* ---- two hosts ---- */

static struct sockaddr_in resolve(const char *address)
{
	const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(address, ':');
	struct sockaddr_in at = {0};
	struct addrinfo *found;
	char host[256];
	int r;

	if (!colon || colon == address || (size_t)(colon - address) >= sizeof(host)) {
		fprintf(stderr, "%s: \"%s\" is no address: expected HOST:PORT\n",
			program_invocation_short_name, address);
		exit(2);
	}
	memcpy(host, address, (size_t)(colon - address));
	host[colon - address] = '\0';
	r = getaddrinfo(host, colon + 1, &hints, &found);
	if (r != 0)
		pair_die("%s: %s", address, gai_strerror(r));
	memcpy(&at, found->ai_addr, sizeof(at));
	freeaddrinfo(found);
	return at;
}

static void name_hosts(struct pair *p)
{
	struct sockaddr_in local, other;
	socklen_t bytes = sizeof(local);

	if (getsockname(p->fd, (void *)&local, &bytes) < 0 ||
		getpeername(p->fd, (void *)&other, &bytes) < 0)
		pair_die("the other process is gone");
	inet_ntop(AF_INET, &local.sin_addr, p->local, sizeof(p->local));
	inet_ntop(AF_INET, p->sender ? &other.sin_addr : &local.sin_addr, p->host,
		sizeof(p->host));
}

static int open_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		pair_die("socket: %s", strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int accept_sender(const char *address)
{
	struct sockaddr_in at = resolve(address);
	socklen_t bytes = sizeof(at);
	char host[INET_ADDRSTRLEN];
	int listener = open_socket(), fd, one = 1;

	if (bind(listener, (void *)&at, sizeof(at)) < 0 || listen(listener, 1) < 0 ||
		getsockname(listener, (void *)&at, &bytes) < 0)
		pair_die("listening at %s: %s", address, strerror(errno));
	inet_ntop(AF_INET, &at.sin_addr, host, sizeof(host));
	printf("{\"listening\": \"%s:%u\"}\n", host, ntohs(at.sin_port));
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		pair_die("accepting: %s", strerror(errno));
	close(listener);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

char **ends_serve(struct pair *p, const char *address, char *name, int *argc)
{
	static char text[TEXT_MAX + 1];
	static char *words[WORDS_MAX + 1];
	uint32_t bytes;

	alarm(WAIT_S);
	p->fd = accept_sender(address);
	name_hosts(p);
	pair_hear(p, &bytes, sizeof(bytes));
	if (bytes > TEXT_MAX)
		pair_die("the sender's arguments have %u bytes: at most %u", bytes,
			TEXT_MAX);
	pair_hear(p, text, bytes);
	words[0] = name;
	*argc = 1;
	for (char *at_word = text; at_word < text + bytes && *argc < WORDS_MAX;
		at_word += strlen(at_word) + 1)
		words[(*argc)++] = at_word;
	return words;
}

void ends_connect(struct pair *p, const char *address, int argc, char **argv)
{
	struct sockaddr_in at = resolve(address);
	char text[TEXT_MAX];
	uint32_t bytes = 0;

	alarm(WAIT_S);
	p->sender = true;
	p->fd = open_socket();
	if (connect(p->fd, (void *)&at, sizeof(at)) < 0)
		pair_die("connecting to %s: %s", address, strerror(errno));
	name_hosts(p);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--connect") == 0) {
			i++;
			continue;
		}
		if (bytes + strlen(argv[i]) + 1 > sizeof(text))
			pair_die("the arguments have more than %u bytes", TEXT_MAX);
		memcpy(text + bytes, argv[i], strlen(argv[i]) + 1);
		bytes += (uint32_t)strlen(argv[i]) + 1;
	}
	pair_tell(p, &bytes, sizeof(bytes));
	pair_tell(p, text, bytes);
}
