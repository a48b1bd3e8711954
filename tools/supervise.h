/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a job: started from this program's own file, each read through one
 * pipe, and never left behind.
 *
 * A child cannot outlive its supervisor: it asks the kernel for SIGKILL at the parent's
 * death. The supervisor learns of a child's end by SIGCHLD, within a moment, whatever the
 * cause. Children are in process groups of their own: a Ctrl-C at the terminal reaches
 * only the supervisor, which then ends them in an orderly way.
 *
 * One thread uses this; nothing else in the process may wait for children or handle these
 * signals.
 */
#ifndef TERN_TOOLS_SUPERVISE_H
#define TERN_TOOLS_SUPERVISE_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SUPERVISE_CHILDREN_MAX (256 + 4096) /* most servers and workers of a job */
#define SUPERVISE_ARGS_MAX     64
#define SUPERVISE_SECRET_FD    3

struct child {
	char name[32]; /* "worker 1" */
	pid_t pid;
	bool running; /* not waited for yet */
	bool saving;  /* it writes a file: supervise_end does not kill it */
	int status;   /* from waitpid, when it is not running any more */
	int fd;       /* its stdout; -1 after end of file */
	char *line;   /* the incomplete last line */
	size_t line_bytes, line_room;
};

struct supervisor {
	/* A child has printed a line, given without its newline. */
	void (*on_line)(void *arg, struct child *child, const char *line);
	/* A child has ended, and all its lines were handed over; child->status says
	 * how it ended. */
	void (*on_exit)(void *arg, struct child *child);
	/* SIGUSR1 asks for the status; afterwards the children are asked. May be NULL. */
	void (*on_status)(void *arg);
	void *arg;
	/* Secret that each child can read from SUPERVISE_SECRET_FD; NULL: none, and no
	 * such descriptor. */
	const char *secret;
	int signal_fd;
	int signal; /* first signal that asked to end, see signals.h; 0: none */
	unsigned interrupt_count; /* number of SIGINTs; the second one kills */
	unsigned child_count;
	struct child children[SUPERVISE_CHILDREN_MAX];
	/* Used during one turn. */
	struct pollfd fds[SUPERVISE_CHILDREN_MAX + 1];
	struct child *of[SUPERVISE_CHILDREN_MAX + 1];
};

/* Catches the signals of signals.h from now on, and SIGTSTP: the children stop and
 * continue with this process. The on_... handlers may be set before or after. -EMFILE. */
int supervise_init(struct supervisor *s);

/* Starts "tern ARGS..." (at most SUPERVISE_ARGS_MAX, NULL-terminated). -EAGAIN,
 * -ENOMEM, -EMFILE; a program that cannot be executed appears as one that exits with
 * 127. */
int supervise_start(struct supervisor *s, const char *name, const char *const *args);

/*
 * Waits at most timeout_ms (-1: no limit) for an event and calls the handlers. If a
 * signal came, it is in `signal` afterwards.
 */
void supervise_turn(struct supervisor *s, int timeout_ms);

unsigned supervise_running(const struct supervisor *s);

/* Sends `signal` to all children that still run. Children left after grace_ms get
 * SIGKILL once they are not `saving`; all get it when SIGINT has come twice. Returns
 * when every child was waited for; the handlers are called as usual. Other signals may
 * be repeated: at a closed terminal both the shell and the kernel send SIGHUP. */
void supervise_end(struct supervisor *s, int signal, unsigned grace_ms);

/* Restores the signal handlers. All children must have ended. */
void supervise_fini(struct supervisor *s);

/* Describes the end of a child: "worker 1 (pid 4242) was killed by signal 9 (Killed)",
 * "... exited with status 1". */
void supervise_describe(const struct child *child, char *text, size_t bytes);

#endif
