/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that kills process groups when the process that made it has died, whatever
 * killed that one, SIGKILL included.
 *
 * PR_SET_PDEATHSIG ends the children of a launcher that dies, but not their children: a
 * worker that is a shell script would leave the program that the script runs. The guard
 * reads from a pipe whose other end only the launcher holds. The end of that pipe is the
 * launcher's death, and then the guard sends SIGKILL to all groups that were added.
 */
#ifndef TERN_TOOLS_GUARD_H
#define TERN_TOOLS_GUARD_H

#include <sys/types.h>

struct guard {
	pid_t pid;
	int fd; /* write end of the pipe, non-blocking */
};

/* Starts the guard. Errors: the negative errno of pipe2() or fork(). */
int guard_open(struct guard *guard);

/* Adds a process group, and removes it again when no process is left in it. Adding is
 * async-signal-safe: a child calls it for its own group before it executes a program, so
 * that there is no moment at which it is not guarded. */
void guard_add(const struct guard *guard, pid_t group);
void guard_remove(const struct guard *guard, pid_t group);

/* Ends the guard. All groups must have been removed. */
void guard_close(struct guard *guard);

#endif
