/* SPDX-License-Identifier: Apache-2.0 */
/* See supervise.h. Everything happens in one loop: the signal handler only writes signal
 * numbers into a pipe (signals.h), which the loop polls. */
#include "tools/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "tools/signals.h"

#define LINE_MAX_BYTES (16u << 20)

int supervise_init(struct supervisor *s)
{
	s->signal_fd = signals_open();
	if (s->signal_fd < 0)
		return s->signal_fd;
	signals_catch_stop();
	s->signal = 0;
	s->interrupt_count = 0;
	s->child_count = 0;
	return 0;
}

/* ---- starting children ---- */

/* Turns the forked child into "tern ARGS...". Runs between fork and exec:
 * async-signal-safe calls only. */
static _Noreturn void become(
	char *const *argv, int out, int secret, pid_t parent, const sigset_t *mask)
{
	static const char failed[] =
		"tern: /proc/self/exe cannot be executed: is /proc mounted?\n";

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* The parent may have died before prctl() took effect. */
	if (getppid() != parent)
		_exit(127);
	setpgid(0, 0);
	signals_reset_child();
	sigprocmask(SIG_SETMASK, mask, NULL);
	if (dup2(out, STDOUT_FILENO) < 0)
		_exit(127);
	if (secret == SUPERVISE_SECRET_FD)
		fcntl(secret, F_SETFD, 0);
	else if (secret >= 0 && dup2(secret, SUPERVISE_SECRET_FD) < 0)
		_exit(127);
	execv("/proc/self/exe", argv);
	if (write(STDERR_FILENO, failed, sizeof(failed) - 1) < 0)
		_exit(126);
	_exit(127);
}

/* Returns the read end of a new pipe that contains the secret; -1: there is no secret;
 * other negative values: errno of the failure. */
static int offer_secret(const struct supervisor *s)
{
	size_t bytes = s->secret ? strlen(s->secret) : 0;
	ssize_t written;
	int fds[2];

	if (!bytes)
		return -1;
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	/* An empty pipe accepts this many bytes even if nothing reads it yet. */
	written = write(fds[1], s->secret, bytes);
	tern_assert(written == (ssize_t)bytes);
	close(fds[1]);
	return fds[0];
}

int supervise_start(struct supervisor *s, const char *name, const char *const *args)
{
	char *argv[SUPERVISE_ARGS_MAX + 2] = {(char *)"tern"};
	struct child *c = &s->children[s->child_count];
	pid_t parent = getpid();
	sigset_t all, mask;
	int fds[2], n = 1, secret;

	tern_assert(s->child_count < SUPERVISE_CHILDREN_MAX);
	for (; *args; args++) {
		tern_assert(n <= SUPERVISE_ARGS_MAX);
		argv[n++] = (char *)*args;
	}
	secret = offer_secret(s);
	if (secret < -1)
		return secret;
	if (pipe2(fds, O_CLOEXEC) < 0) {
		int error = errno;

		if (secret >= 0)
			close(secret);
		return -error;
	}
	*c = (struct child){.fd = fds[0]};
	snprintf(c->name, sizeof(c->name), "%s", name);
	/* Signals are blocked until the child has reset its handlers: an inherited
	 * handler would write the child's signals into this process's pipe. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &mask);
	c->pid = fork();
	if (c->pid == 0)
		become(argv, fds[1], secret, parent, &mask);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	close(fds[1]);
	if (secret >= 0)
		close(secret);
	if (c->pid < 0) {
		int error = errno;

		close(fds[0]);
		return -error;
	}
	/* O_NONBLOCK does not affect the child, since the two ends of a pipe have
	 * separate flags. */
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	c->running = true;
	s->child_count++;
	return 0;
}

/* ---- reading the children's lines ---- */

/* Passes the complete lines in c->line to on_line, and keeps the incomplete rest. */
static void split_lines(struct supervisor *s, struct child *c)
{
	size_t from = 0;

	for (;;) {
		char *start = c->line + from;
		char *end = memchr(start, '\n', c->line_bytes - from);

		if (!end)
			break;
		*end = '\0';
		from = (size_t)(end + 1 - c->line);
		s->on_line(s->arg, c, start);
	}
	memmove(c->line, c->line + from, c->line_bytes - from);
	c->line_bytes -= from;
}

static bool make_room(struct child *c)
{
	size_t room = c->line_room ? c->line_room * 2 : 4096;
	char *line;

	if (c->line_bytes < c->line_room)
		return true;
	line = room <= LINE_MAX_BYTES ? realloc(c->line, room) : NULL;
	if (!line)
		return false;
	c->line = line;
	c->line_room = room;
	return true;
}

/* Reads what the child's pipe contains now. Closes the pipe at its end, after an error, or
 * if a line does not fit into memory or into LINE_MAX_BYTES. */
static void read_lines(struct supervisor *s, struct child *c)
{
	while (c->fd >= 0) {
		ssize_t n = -1;

		if (make_room(c))
			n = read(c->fd, c->line + c->line_bytes,
				c->line_room - c->line_bytes);
		else
			errno = EFBIG;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			close(c->fd);
			c->fd = -1;
			return;
		}
		c->line_bytes += (size_t)n;
		split_lines(s, c);
	}
}

/* ---- the ends of children, and signals ---- */

static void reap(struct supervisor *s)
{
	for (unsigned i = 0; i < s->child_count; i++) {
		struct child *c = &s->children[i];

		if (!c->running || waitpid(c->pid, &c->status, WNOHANG) != c->pid)
			continue;
		c->running = false;
		read_lines(s, c);
		if (c->fd >= 0)
			close(c->fd);
		c->fd = -1;
		free(c->line);
		c->line = NULL;
		s->on_exit(s->arg, c);
	}
}

static void signal_all(struct supervisor *s, int signal)
{
	for (unsigned i = 0; i < s->child_count; i++) {
		if (s->children[i].running)
			kill(s->children[i].pid, signal);
	}
}

/* Ctrl-Z stops the whole job. The terminal did not signal the children, since they are in
 * process groups of their own. */
static void stop_all(struct supervisor *s)
{
	signal_all(s, SIGSTOP);
	signals_stop();
	signal_all(s, SIGCONT);
}

static void ask_all(struct supervisor *s)
{
	if (s->on_status)
		s->on_status(s->arg);
	signal_all(s, SIGUSR1);
}

static void take_signals(struct supervisor *s)
{
	int number;

	while ((number = signals_take(s->signal_fd))) {
		if (number == SIGTSTP)
			stop_all(s);
		if (number == SIGUSR1)
			ask_all(s);
		if (!signals_is_end(number))
			continue;
		s->signal = s->signal ? s->signal : number;
		s->interrupt_count += number == SIGINT;
	}
}

void supervise_turn(struct supervisor *s, int timeout_ms)
{
	struct pollfd *fds = s->fds;
	nfds_t n = 0;

	fds[n++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
	for (unsigned i = 0; i < s->child_count; i++) {
		if (s->children[i].fd < 0)
			continue;
		s->of[n] = &s->children[i];
		fds[n++] = (struct pollfd){.fd = s->children[i].fd, .events = POLLIN};
	}
	if (poll(fds, n, timeout_ms) <= 0)
		return;
	for (nfds_t i = 1; i < n; i++) {
		if (fds[i].revents)
			read_lines(s, s->of[i]);
	}
	if (fds[0].revents) {
		take_signals(s);
		reap(s);
	}
}

unsigned supervise_running(const struct supervisor *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->child_count; i++)
		n += s->children[i].running;
	return n;
}

/* Kills the running children; those that are saving a file only if `also_saving`. */
static void cut(struct supervisor *s, bool also_saving)
{
	for (unsigned i = 0; i < s->child_count; i++) {
		const struct child *c = &s->children[i];

		if (c->running && (also_saving || !c->saving))
			kill(c->pid, SIGKILL);
	}
}

void supervise_end(struct supervisor *s, int signal, unsigned grace_ms)
{
	uint64_t limit_ns = tern_clock_ns() + grace_ms * TERN_NS_PER_MS;

	signal_all(s, signal);
	/* A stopped child handles the signal only when it continues. */
	signal_all(s, SIGCONT);
	while (supervise_running(s)) {
		uint64_t now_ns = tern_clock_ns();

		if (s->interrupt_count > 1 || now_ns >= limit_ns) {
			cut(s, s->interrupt_count > 1);
			supervise_turn(s, -1);
		} else {
			supervise_turn(
				s, (int)((limit_ns - now_ns) / TERN_NS_PER_MS) + 1);
		}
	}
}

void supervise_fini(struct supervisor *s)
{
	tern_assert(!supervise_running(s));
	signals_close(s->signal_fd);
}

void supervise_describe(const struct child *c, char *text, size_t bytes)
{
	if (WIFSIGNALED(c->status))
		snprintf(text, bytes, "%s (pid %d) was killed by signal %d (%s)", c->name,
			(int)c->pid, WTERMSIG(c->status), strsignal(WTERMSIG(c->status)));
	else
		snprintf(text, bytes, "%s (pid %d) exited with status %d", c->name,
			(int)c->pid, WEXITSTATUS(c->status));
}
