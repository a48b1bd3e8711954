/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and supervises the child processes of a job. All run this program's own
 * executable. The supervisor reads each child's stdout through a pipe, and no child
 * outlives it.
 *
 * A child asks the kernel for SIGKILL when its parent dies. The supervisor learns of a
 * child's end by SIGCHLD, at once, whatever the cause. Children are in process groups of
 * their own, so a Ctrl-C at the terminal reaches only the supervisor, which then ends
 * them in an orderly way.
 *
 * Only one thread may use this module; nothing else in the process may wait for children
 * or handle these signals.
 */
#ifndef TERN_TOOLS_SUPERVISE_H
#define TERN_TOOLS_SUPERVISE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* largest number of servers plus workers of a job */
#define SUPERVISE_CHILDREN_MAX (256 + 4096)
#define SUPERVISE_ARGS_MAX     64
#define SUPERVISE_SECRET_FD    3

struct child {
	char name[32]; /* name in messages: "worker 1" */
	pid_t pid;
	bool running; /* waitpid() has not returned its status yet */
	/* the child is writing a file: supervise_end() must not kill it yet */
	bool saving;
	int status; /* from waitpid(); valid if not `running` */
	int fd;     /* read end of its stdout; -1 after end of file or an error */
	char *line; /* start of a line whose newline has not been read yet */
	size_t line_bytes, line_room;
};

struct supervisor {
	/* Called for each line that a child has printed; `line` has no newline. */
	void (*on_line)(void *arg, struct child *child, const char *line);
	/* Called when a child has ended, after its complete lines were passed to on_line.
	 * child->status is set. */
	void (*on_exit)(void *arg, struct child *child);
	/* Called when SIGUSR1 asks for the status, before the signal is passed to the
	 * children. May be NULL. */
	void (*on_status)(void *arg);
	void *arg;
	/* Secret that each child can read from descriptor SUPERVISE_SECRET_FD; NULL: no
	 * secret, and the descriptor is not open. */
	const char *secret;
	int signal_fd;
	int signal; /* first signal that asked the job to end, see signals.h; 0: none */
	/* number of SIGINTs received; after the second, supervise_end() kills */
	unsigned interrupt_count;
	unsigned child_count;
	struct child children[SUPERVISE_CHILDREN_MAX];
	/* Used within one supervise_turn(): the polled descriptors, and the child of
	 * each. */
	struct pollfd fds[SUPERVISE_CHILDREN_MAX + 1];
	struct child *of[SUPERVISE_CHILDREN_MAX + 1];
};

/* From now on catches the signals of signals.h, and SIGTSTP: the children stop and
 * continue with this process. The on_... handlers may be set before or after this call.
 * Errors: those of signals_open(). */
int supervise_init(struct supervisor *s);

/* Starts the child "tern ARGS..." (at most SUPERVISE_ARGS_MAX arguments,
 * NULL-terminated). Errors: the negative errno of pipe2() or fork(). If the program cannot
 * be executed, the child exits with status 127, or 126 if it cannot report that either. */
int supervise_start(struct supervisor *s, const char *name, const char *const *args);

/*
 * Waits at most timeout_ms (-1: no limit) for an event and calls the handlers. s->signal
 * and s->interrupt_count tell about signals that have come.
 */
void supervise_turn(struct supervisor *s, int timeout_ms);

unsigned supervise_running(const struct supervisor *s);

/* Sends `signal` to all running children. After grace_ms it kills (SIGKILL) those that
 * are not `saving`; once this process has received a second SIGINT, it kills all. Returns
 * when every child was waited for; the handlers are called as usual. Only SIGINT is
 * counted, because both the shell and the kernel send SIGHUP when a terminal is closed. */
void supervise_end(struct supervisor *s, int signal, unsigned grace_ms);

/* Ends the catching of signals, see signals_close(). All children must have ended. */
void supervise_fini(struct supervisor *s);

/* Describes how a child ended: "worker 1 (pid 4242) was killed by signal 9 (Killed)",
 * "worker 1 (pid 4242) exited with status 1". */
void supervise_describe(const struct child *child, char *text, size_t bytes);

#endif
