/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts and supervises the child processes of a job. A child is this program's own
 * executable (supervise_start) or a program of the user (supervise_start_program). The
 * supervisor reads what the children print through pipes, and no child outlives it.
 *
 * A child asks the kernel for SIGKILL when its parent dies. The supervisor learns of a
 * child's end by SIGCHLD, at once, whatever the cause. Children are in process groups of
 * their own, so a Ctrl-C at the terminal reaches only the supervisor, which then ends
 * them in an orderly way.
 *
 * A program of the user may start processes of its own, as a shell script does. They are
 * in the program's process group. Signals go to the whole group, and a guard (guard.h)
 * kills the group if the supervisor dies. Processes that a program leaves behind become
 * children of this process (PR_SET_CHILD_SUBREAPER), which is how it knows whether the
 * group is empty. A process that has left the group, as a daemon does, is not ended.
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

#include "tools/guard.h"

/* largest number of servers, workers and followers of a job */
#define SUPERVISE_CHILDREN_MAX (256 + 4096 + 256)
#define SUPERVISE_ARGS_MAX     64
#define SUPERVISE_SECRET_FD    3
/* Path by which a program can open the secret: the value of TERN_SECRET_FILE. */
#define SUPERVISE_SECRET_PATH "/proc/self/fd/3"
/* Longest text that on_text gets at once, in bytes. */
#define SUPERVISE_TEXT_MAX 8192u

/* The read end of a child's stdout or stderr. */
struct child_stream {
	int fd;     /* -1: not read, after the end of file, or after an error */
	char *line; /* start of a line whose end has not been read yet */
	size_t bytes, room;
	bool after_cr; /* the last line ended with \r, a \n after it ends no line */
};

struct child {
	char name[32]; /* name in messages: "worker 1" */
	pid_t pid;
	bool running; /* waitpid() has not returned its status yet */
	/* the child is writing a file: supervise_end() must not kill it yet */
	bool saving;
	int status;   /* from waitpid(); valid if not `running` */
	bool program; /* started by supervise_start_program() */
	/* The program has ended, but left processes in its process group. */
	bool left;
	struct child_stream out, err; /* stderr is read of programs only */
};

struct supervisor {
	/* Called for each line that a child has printed; `line` has no newline. */
	void (*on_line)(void *arg, struct child *child, const char *line);
	/* Called for each line that a program has printed on `fd`, STDOUT_FILENO or
	 * STDERR_FILENO, without its end, which is \n, \r or both: progress bars end their
	 * lines with \r. A line longer than SUPERVISE_TEXT_MAX comes in pieces. Called for
	 * the rest without an end, too. Only needed for programs. */
	void (*on_text)(
		void *arg, struct child *child, int fd, const char *text, size_t bytes);
	/* Called when a child has ended, after its complete lines were passed to on_line.
	 * child->status is set. */
	void (*on_exit)(void *arg, struct child *child);
	/* Called when SIGUSR1 asks for the status, before the signal is passed to the
	 * children that are no programs: it would end most programs. May be NULL. */
	void (*on_status)(void *arg);
	void *arg;
	/* Secret that each child can read from descriptor SUPERVISE_SECRET_FD; NULL: no
	 * secret, and the descriptor is not open. */
	const char *secret;
	struct guard guard; /* pid is 0 if there is none: no program was started */
	int signal_fd;
	int signal; /* first signal that asked the job to end, see signals.h; 0: none */
	/* number of SIGINTs received; after the second, supervise_end() kills */
	unsigned interrupt_count;
	unsigned child_count;
	struct child children[SUPERVISE_CHILDREN_MAX];
	/* The next child that is started takes the place of this one, which has ended and left
	 * no process; NULL: it is one more child. The caller sets it back to NULL. */
	struct child *replaced;
	/* Used within one supervise_turn(): the polled descriptors, and the child of
	 * each. */
	struct pollfd fds[2 * SUPERVISE_CHILDREN_MAX + 1];
	struct child *of[2 * SUPERVISE_CHILDREN_MAX + 1];
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
 * Starts a program, which is searched for in PATH as execvp() does, with the arguments
 * `argv` and the environment `env`, both NULL-terminated. Its stdin is /dev/null, since
 * several programs cannot share a terminal. It can read the secret from descriptor
 * SUPERVISE_SECRET_FD, or by SUPERVISE_SECRET_PATH, as often as it likes. Signals have
 * their default actions. Errors: as supervise_start(). If the program cannot be executed,
 * the child says so on stderr and exits with status 127.
 */
int supervise_start_program(
	struct supervisor *s, const char *name, char *const *argv, char *const *env);

/*
 * Waits at most timeout_ms (-1: no limit) for an event and calls the handlers. s->signal
 * and s->interrupt_count tell about signals that have come.
 */
void supervise_turn(struct supervisor *s, int timeout_ms);

unsigned supervise_running(const struct supervisor *s);

/* Sends `signal` to all running children from number `first` on, and to what programs have
 * left. After grace_ms it kills (SIGKILL) those that are not `saving`; once this process
 * has received a second SIGINT, it kills all of them. Returns when each was waited for; the
 * handlers are called as usual. Only SIGINT is counted, because both the shell and the
 * kernel send SIGHUP when a terminal is closed. */
void supervise_end(struct supervisor *s, unsigned first, int signal, unsigned grace_ms);

/* Ends the catching of signals, see signals_close(). All children must have ended. */
void supervise_fini(struct supervisor *s);

/* Describes how a child ended: "worker 1 (pid 4242) was killed by signal 9 (Killed)",
 * "worker 1 (pid 4242) exited with status 1". */
void supervise_describe(const struct child *child, char *text, size_t bytes);

#endif
