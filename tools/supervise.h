/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a job: started from this program's own file, heard through one pipe
 * each, and never left behind.
 *
 * A child cannot outlive its supervisor: it asks the kernel for SIGKILL at the parent's
 * death. The supervisor learns of a child's end by SIGCHLD, so within a moment, whatever
 * the cause. Children are in process groups of their own: a Ctrl-C at the terminal
 * reaches the supervisor alone, which then ends them in order.
 *
 * One thread; nothing else in the process may wait for children or handle these signals.
 */
#ifndef TERN_TOOLS_SUPERVISE_H
#define TERN_TOOLS_SUPERVISE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SUPERVISE_CHILDREN_MAX (256 + 4096) /* servers and workers of a job */
#define SUPERVISE_ARGS_MAX     64
#define SUPERVISE_SECRET_FD    3

struct child {
	char name[32]; /* "worker 1" */
	pid_t pid;
	bool running; /* not yet waited for */
	int status;   /* as from waitpid, once it is not running */
	int fd;       /* its stdout; -1 at its end */
	char *line;   /* what came of a line so far */
	size_t line_bytes, line_room;
};

struct supervisor {
	/* One line that a child printed, without its newline. */
	void (*on_line)(void *arg, struct child *child, const char *line);
	/* It has ended, all its lines have been handed over; child->status says how. */
	void (*on_exit)(void *arg, struct child *child);
	/* SIGUSR1 asks for the status; the children are asked next. May be NULL. */
	void (*on_status)(void *arg);
	void *arg;
	const char *secret; /* what each child can read from SUPERVISE_SECRET_FD; NULL:
			       nothing, and no such descriptor */
	int signal_fd;
	int signal; /* the first that asked to end, see signals.h; 0: none */
	unsigned interrupt_count; /* SIGINTs that came: the second one kills */
	bool patient; /* supervise_end: a child is saving and must not be killed */
	unsigned child_count;
	struct child children[SUPERVISE_CHILDREN_MAX];
	/* Of one turn. */
	struct pollfd fds[SUPERVISE_CHILDREN_MAX + 1];
	struct child *of[SUPERVISE_CHILDREN_MAX + 1];
};

/* Catches what signals.h says from now on, and SIGTSTP: the children stop and go on with
 * this process. `on_...` may be set before or after. -EMFILE. */
int supervise_init(struct supervisor *s);

/* Starts "tern ARGS..." (at most SUPERVISE_ARGS_MAX, NULL-terminated). -EAGAIN, -ENOMEM,
 * -EMFILE; a program that cannot be executed is seen as one that exits with 127. */
int supervise_start(struct supervisor *s, const char *name, const char *const *args);

/*
 * Waits at most timeout_ms (-1: for ever) for something to happen and calls the handlers.
 * A signal that came is in `signal` afterwards.
 */
void supervise_turn(struct supervisor *s, int timeout_ms);

unsigned supervise_running(const struct supervisor *s);

/* Sends `signal` to all that still run, SIGKILL to those left after grace_ms, unless
 * `patient` is set, or when SIGINT has come twice; returns when every one has been waited
 * for. The handlers are called as ever. Other signals may come many times: at a closed
 * terminal both the shell and the kernel send SIGHUP. */
void supervise_end(struct supervisor *s, int signal, unsigned grace_ms);

/* All children have ended. Gives the signals back. */
void supervise_fini(struct supervisor *s);

/* "worker 1 (pid 4242) was killed by signal 9 (Killed)", "... exited with status 1". */
void supervise_describe(const struct child *child, char *text, size_t bytes);

#endif
