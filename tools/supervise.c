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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "tools/signals.h"

#define LINE_MAX_BYTES (16u << 20)
/* Bytes of a program's stream that are read at once, and at its end: a pipe holds at most
 * 1 MiB unless root allows more. */
#define TURN_MAX_BYTES (64u << 10)
#define PIPE_MAX_BYTES (1u << 20)

int supervise_init(struct supervisor *s)
{
	s->signal_fd = signals_open();
	if (s->signal_fd < 0)
		return s->signal_fd;
	signals_catch_stop();
	s->signal = 0;
	s->interrupt_count = 0;
	s->child_count = 0;
	s->guard = (struct guard){0};
	return 0;
}

static bool is_alive(const struct child *c)
{
	return c->running || c->left;
}

/* ---- starting children ---- */

/* What a new child needs to know, between fork and exec. */
struct birth {
	const struct supervisor *supervisor;
	char *const *argv;
	char *const *env; /* NULL for this program's own executable */
	int out, err;     /* err: -1: stderr is that of this process */
	int secret;       /* -1: there is none */
	pid_t parent;
	sigset_t mask;
};

/* Reports that exec has failed. */
static _Noreturn void fail(const char *what, const char *why)
{
	if (write(STDERR_FILENO, what, strlen(what)) < 0 ||
		write(STDERR_FILENO, why, strlen(why)) < 0)
		_exit(126);
	_exit(127);
}

/* Gives the child its stdout, its stderr and the secret. */
static bool take_streams(const struct birth *b)
{
	int null = b->env ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;

	if (b->env && (null < 0 || dup2(null, STDIN_FILENO) < 0))
		return false;
	if (dup2(b->out, STDOUT_FILENO) < 0 ||
		(b->err >= 0 && dup2(b->err, STDERR_FILENO) < 0))
		return false;
	if (b->secret == SUPERVISE_SECRET_FD)
		fcntl(b->secret, F_SETFD, 0);
	return b->secret < 0 || b->secret == SUPERVISE_SECRET_FD ||
	       dup2(b->secret, SUPERVISE_SECRET_FD) >= 0;
}

/* Turns the forked child into "tern ARGS...", or into a program. Runs between fork and
 * exec: async-signal-safe calls only. */
static _Noreturn void become(const struct birth *b)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* The parent may have died before prctl() took effect. */
	if (getppid() != b->parent)
		_exit(127);
	setpgid(0, 0);
	if (b->env)
		guard_add(&b->supervisor->guard, getpid());
	signals_reset_child(b->env != NULL);
	sigprocmask(SIG_SETMASK, &b->mask, NULL);
	if (!take_streams(b))
		_exit(127);
	if (!b->env) {
		execv("/proc/self/exe", b->argv);
		fail("tern: ", "/proc/self/exe cannot be executed: is /proc mounted?\n");
	}
	execvpe(b->argv[0], b->argv, b->env);
	fail(b->argv[0], ": cannot be executed\n");
}

/* Makes a file with the secret that has no name and can be read again and again. */
static int make_secret_file(const char *secret)
{
	size_t bytes = strlen(secret);
	int fd = memfd_create("tern-secret", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	/* secret_read() refuses a file that other users can read. */
	if (fchmod(fd, 0600) == 0 && pwrite(fd, secret, bytes, 0) == (ssize_t)bytes)
		return fd;
	close(fd);
	return -EIO;
}

/* Returns the read end of a new pipe that contains the secret. */
static int make_secret_pipe(const char *secret)
{
	size_t bytes = strlen(secret);
	ssize_t written;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	/* An empty pipe accepts this many bytes even if nothing reads it yet. */
	written = write(fds[1], secret, bytes);
	tern_assert(written == (ssize_t)bytes);
	close(fds[1]);
	return fds[0];
}

/* Makes the descriptor from which a new child can read the secret, if there is one. This
 * program's own processes read it once, so they get a pipe. A program may read it again,
 * for example in a process that it starts. */
static int offer_secret(const struct supervisor *s, bool program, int *fd)
{
	int r;

	if (!s->secret || !*s->secret)
		return 0;
	r = program ? make_secret_file(s->secret) : make_secret_pipe(s->secret);
	if (r >= 0)
		*fd = r;
	return r < 0 ? r : 0;
}

/* Makes the pipe through which a stream of a new child is read. *end: its write end. */
static int open_stream(struct child_stream *stream, int *end)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	/* O_NONBLOCK does not affect the child, since the two ends of a pipe have
	 * separate flags. */
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	stream->fd = fds[0];
	*end = fds[1];
	return 0;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Makes the descriptors of a new child. */
static int prepare(struct supervisor *s, struct child *c, struct birth *b)
{
	int r = offer_secret(s, c->program, &b->secret);

	if (r == 0)
		r = open_stream(&c->out, &b->out);
	if (r == 0 && c->program)
		r = open_stream(&c->err, &b->err);
	return r;
}

static int start(struct supervisor *s, const char *name, bool program, struct birth *b)
{
	struct child *c = s->replaced ? s->replaced : &s->children[s->child_count];
	sigset_t all;
	int r;

	tern_assert(s->replaced || s->child_count < SUPERVISE_CHILDREN_MAX);
	tern_assert(!s->replaced || !is_alive(c));
	*c = (struct child){.program = program, .out.fd = -1, .err.fd = -1};
	snprintf(c->name, sizeof(c->name), "%s", name);
	b->supervisor = s;
	b->out = b->err = b->secret = -1;
	b->parent = getpid();
	r = prepare(s, c, b);
	/* Signals are blocked until the child has reset its handlers: an inherited
	 * handler would write the child's signals into this process's pipe. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &b->mask);
	if (r == 0)
		c->pid = fork();
	if (r == 0 && c->pid == 0)
		become(b);
	if (r == 0 && c->pid < 0)
		r = -errno;
	/* The child does the same: whoever comes first, the group exists for signals. */
	if (r == 0)
		setpgid(c->pid, c->pid);
	sigprocmask(SIG_SETMASK, &b->mask, NULL);
	close_fd(&b->out);
	close_fd(&b->err);
	close_fd(&b->secret);
	if (r) {
		close_fd(&c->out.fd);
		close_fd(&c->err.fd);
		return r;
	}
	c->running = true;
	s->child_count += !s->replaced;
	return 0;
}

int supervise_start(struct supervisor *s, const char *name, const char *const *args)
{
	char *argv[SUPERVISE_ARGS_MAX + 2] = {(char *)"tern"};
	int n = 1;

	for (; *args; args++) {
		tern_assert(n <= SUPERVISE_ARGS_MAX);
		argv[n++] = (char *)*args;
	}
	return start(s, name, false, &(struct birth){.argv = argv});
}

int supervise_start_program(
	struct supervisor *s, const char *name, char *const *argv, char *const *env)
{
	if (!s->guard.pid) {
		int r = guard_open(&s->guard);

		if (r)
			return r;
		prctl(PR_SET_CHILD_SUBREAPER, 1);
	}
	return start(s, name, true, &(struct birth){.argv = argv, .env = env});
}

/* ---- reading what the children print ---- */

/* Passes the complete lines of a process of this program to on_line. Returns how many bytes
 * they have. */
static size_t split_lines(struct supervisor *s, struct child *c)
{
	struct child_stream *stream = &c->out;
	size_t from = 0;

	for (;;) {
		char *start = stream->line + from;
		char *end = memchr(start, '\n', stream->bytes - from);

		if (!end)
			return from;
		*end = '\0';
		from = (size_t)(end + 1 - stream->line);
		s->on_line(s->arg, c, start);
	}
}

/* Returns how much of a line that is too long is passed on: a character of UTF-8 is not
 * cut. */
static size_t piece_of(const char *text)
{
	size_t n = SUPERVISE_TEXT_MAX;

	for (unsigned i = 0; i < 3 && (text[n] & 0xc0) == 0x80; i++)
		n--;
	return (text[n] & 0xc0) == 0x80 ? SUPERVISE_TEXT_MAX : n;
}

/* Passes the lines of a program to on_text. `all`: the last line without an end, too.
 * Returns how many bytes they have. */
static size_t split_text(
	struct supervisor *s, struct child *c, struct child_stream *stream, bool all)
{
	int fd = stream == &c->out ? STDOUT_FILENO : STDERR_FILENO;
	size_t from = 0;

	while (from < stream->bytes) {
		const char *text = stream->line + from;
		size_t left = stream->bytes - from, n = 0;

		if (*text == '\n' && stream->after_cr) {
			stream->after_cr = false;
			from++;
			continue;
		}
		while (n < left && n <= SUPERVISE_TEXT_MAX && text[n] != '\n' &&
			text[n] != '\r')
			n++;
		if (n == left && n <= SUPERVISE_TEXT_MAX && !all)
			return from;
		if (n > SUPERVISE_TEXT_MAX)
			n = piece_of(text);
		/* Progress bars begin their lines with \r, too. */
		if (n || *text == '\n')
			s->on_text(s->arg, c, fd, text, n);
		from += n;
		stream->after_cr = n < left && text[n] == '\r';
		from += n < left && (text[n] == '\n' || text[n] == '\r');
	}
	return from;
}

/* Passes on the lines of which the end has been read, and keeps the rest. */
static void split(
	struct supervisor *s, struct child *c, struct child_stream *stream, bool all)
{
	size_t from = c->program ? split_text(s, c, stream, all) : split_lines(s, c);

	if (from)
		memmove(stream->line, stream->line + from, stream->bytes - from);
	stream->bytes -= from;
}

static bool make_room(const struct child *c, struct child_stream *stream)
{
	size_t room = stream->room ? stream->room * 2 : 4096;
	char *line;

	if (c->program)
		room = 2 * SUPERVISE_TEXT_MAX;
	if (stream->bytes < stream->room)
		return true;
	line = room <= LINE_MAX_BYTES ? realloc(stream->line, room) : NULL;
	if (!line)
		return false;
	stream->line = line;
	stream->room = room;
	return true;
}

static void close_stream(
	struct supervisor *s, struct child *c, struct child_stream *stream)
{
	if (c->program)
		split(s, c, stream, true);
	close_fd(&stream->fd);
	free(stream->line);
	stream->line = NULL;
	stream->bytes = stream->room = 0;
}

/* Reads what the pipe contains now, but not much more than `limit` bytes: a program that
 * prints without end must not keep the supervisor from everything else. Closes the pipe
 * at its end, after an error, or if a line does not fit into memory or into
 * LINE_MAX_BYTES. */
static void read_stream(
	struct supervisor *s, struct child *c, struct child_stream *stream, size_t limit)
{
	size_t total = 0;

	while (stream->fd >= 0 && total < limit) {
		ssize_t n = -1;

		if (make_room(c, stream))
			n = read(stream->fd, stream->line + stream->bytes,
				stream->room - stream->bytes);
		else
			errno = EFBIG;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			close_stream(s, c, stream);
			return;
		}
		total += (size_t)n;
		stream->bytes += (size_t)n;
		split(s, c, stream, false);
	}
}

/* Reads the rest of a stream and closes it. No process writes to it any more, except one
 * that has left its group. */
static void finish_stream(
	struct supervisor *s, struct child *c, struct child_stream *stream)
{
	read_stream(s, c, stream, PIPE_MAX_BYTES);
	close_stream(s, c, stream);
}

/* ---- the ends of children, and signals ---- */

/* Waits for processes of the group of a program that has ended. True if there are
 * others. The children of processes that have ended became children of this process. */
static bool has_left_some(const struct child *c)
{
	pid_t pid;

	do
		pid = waitpid(-c->pid, NULL, WNOHANG);
	while (pid > 0);
	return pid == 0;
}

static void reap_one(struct supervisor *s, struct child *c)
{
	bool ended = c->running && waitpid(c->pid, &c->status, WNOHANG) == c->pid;

	if (!ended && !c->left)
		return;
	c->running = false;
	c->left = c->program && has_left_some(c);
	if (c->left) {
		read_stream(s, c, &c->out, PIPE_MAX_BYTES);
		read_stream(s, c, &c->err, PIPE_MAX_BYTES);
	} else {
		if (c->program)
			guard_remove(&s->guard, c->pid);
		finish_stream(s, c, &c->out);
		finish_stream(s, c, &c->err);
	}
	if (ended)
		s->on_exit(s->arg, c);
}

static bool is_known(const struct supervisor *s, pid_t pid)
{
	for (unsigned i = 0; i < s->child_count; i++)
		if (s->children[i].pid == pid)
			return true;
	return pid == s->guard.pid;
}

/* Waits for processes that became children of this one when their parents ended: programs
 * may leave any number of them. */
static void reap_orphans(const struct supervisor *s)
{
	siginfo_t info = {.si_pid = 0};

	while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid &&
		!is_known(s, info.si_pid)) {
		waitpid(info.si_pid, NULL, WNOHANG);
		info.si_pid = 0;
	}
}

static void reap(struct supervisor *s)
{
	for (unsigned i = 0; i < s->child_count; i++)
		reap_one(s, &s->children[i]);
	reap_orphans(s);
}

/* Sends a signal to a child; if it is a program, to its process group. The group exists as
 * long as this process has not waited for all of its processes. */
static void send_signal(const struct child *c, int signal)
{
	if (is_alive(c))
		kill(c->program ? -c->pid : c->pid, signal);
}

static void signal_all(struct supervisor *s, unsigned first, int signal)
{
	for (unsigned i = first; i < s->child_count; i++)
		send_signal(&s->children[i], signal);
}

/* Ctrl-Z stops the whole job. The terminal did not signal the children, since they are in
 * process groups of their own. */
static void stop_all(struct supervisor *s)
{
	signal_all(s, 0, SIGSTOP);
	signals_stop();
	signal_all(s, 0, SIGCONT);
}

static void ask_all(struct supervisor *s)
{
	if (s->on_status)
		s->on_status(s->arg);
	for (unsigned i = 0; i < s->child_count; i++)
		if (!s->children[i].program)
			send_signal(&s->children[i], SIGUSR1);
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

static nfds_t watch(struct supervisor *s, nfds_t n, struct child *c, int fd)
{
	if (fd < 0)
		return n;
	s->of[n] = c;
	s->fds[n] = (struct pollfd){.fd = fd, .events = POLLIN};
	return n + 1;
}

void supervise_turn(struct supervisor *s, int timeout_ms)
{
	struct pollfd *fds = s->fds;
	nfds_t n = 0;

	fds[n++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
	for (unsigned i = 0; i < s->child_count; i++) {
		n = watch(s, n, &s->children[i], s->children[i].out.fd);
		n = watch(s, n, &s->children[i], s->children[i].err.fd);
	}
	if (poll(fds, n, timeout_ms) <= 0)
		return;
	for (nfds_t i = 1; i < n; i++) {
		struct child *c = s->of[i];

		if (fds[i].revents)
			read_stream(s, c, fds[i].fd == c->out.fd ? &c->out : &c->err,
				c->program ? TURN_MAX_BYTES : SIZE_MAX);
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

static bool are_alive(const struct supervisor *s, unsigned first)
{
	for (unsigned i = first; i < s->child_count; i++)
		if (is_alive(&s->children[i]))
			return true;
	return false;
}

/* Kills the children from number `first` on; those that are saving a file only if
 * `also_saving`. */
static void cut(struct supervisor *s, unsigned first, bool also_saving)
{
	for (unsigned i = first; i < s->child_count; i++)
		if (also_saving || !s->children[i].saving)
			send_signal(&s->children[i], SIGKILL);
}

void supervise_end(struct supervisor *s, unsigned first, int signal, unsigned grace_ms)
{
	uint64_t limit_ns = tern_clock_ns() + grace_ms * TERN_NS_PER_MS;

	signal_all(s, first, signal);
	/* A stopped child handles the signal only when it continues. */
	signal_all(s, first, SIGCONT);
	while (are_alive(s, first)) {
		uint64_t now_ns = tern_clock_ns();

		if (s->interrupt_count > 1 || now_ns >= limit_ns) {
			cut(s, first, s->interrupt_count > 1);
			supervise_turn(s, -1);
		} else {
			supervise_turn(
				s, (int)((limit_ns - now_ns) / TERN_NS_PER_MS) + 1);
		}
	}
}

void supervise_fini(struct supervisor *s)
{
	tern_assert(!are_alive(s, 0));
	if (s->guard.pid)
		guard_close(&s->guard);
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
