/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals as a file descriptor that can be polled. signalfd() cannot be used: it needs
 * the signals blocked in every thread of the process, but libraries such as OpenBLAS
 * start threads before main() runs, and one of those threads would take a signal and end
 * the process.
 *
 * A process may have only one such descriptor at a time.
 */
#ifndef TERN_TOOLS_SIGNALS_H
#define TERN_TOOLS_SIGNALS_H

#include <stdbool.h>

/*
 * Catches SIGCHLD, and the signals that a user sends:
 *
 *     SIGINT, SIGTERM  end in an orderly way
 *     SIGHUP           the same, unless it was ignored (nohup)
 *     SIGUSR1          print the status, and go on
 *     SIGUSR2          end in an orderly way, without saving: the launcher sends this to
 *                      the remaining processes of a job that has failed or is over
 *
 * SIGPIPE and SIGXFSZ are ignored from now on: a write fails with EPIPE or EFBIG instead.
 * Returns a descriptor that is readable when a signal has arrived, or the negative errno
 * of pipe2(), such as -EMFILE.
 */
int signals_open(void);

/* From now on a second SIGINT ends the process immediately, inside the handler. */
void signals_abort_on_second(void);

/* Catches SIGTSTP (Ctrl-Z) too, unless the process was started with it ignored. */
void signals_catch_stop(void);

/* Stops this process as SIGTSTP does by default. Returns when SIGCONT continues the
 * process; returns immediately if no other process could continue it (an orphaned process
 * group). */
void signals_stop(void);

/* True if this signal asks the process to end. */
bool signals_is_end(int number);

/* True if a signal has asked this process to end since signals_open(). For code that
 * blocks for long outside the event loop. */
bool signals_asked(void);

/* Returns the name of a signal that asks a process to end, such as "SIGTERM". */
const char *signals_name(int number);

/* Reads the next signal that has arrived from the descriptor `fd`. Returns the signal's
 * number, 0 if none has arrived. */
int signals_take(int fd);

/* Restores the default actions of the caught signals, except that SIGUSR1 is ignored, and
 * closes the descriptor. Signals that signals_open() ignores stay ignored. */
void signals_close(int fd);

/* For a child between fork and exec: sets the actions of signals as signals_close() does.
 * SIGUSR1 would end the child, so it is ignored until the child catches it. `program`: the
 * child executes another program, for which SIGUSR1 and the signals that signals_open()
 * ignores get their default actions, too. Async-signal-safe. */
void signals_reset_child(bool program);

#endif
