/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals as a descriptor to poll. signalfd cannot be used: it needs the signals blocked
 * in every thread of the process, and libraries start threads before main() runs
 * (OpenBLAS), one of which would take a signal and end the process.
 *
 * A process has one of these at a time.
 */
#ifndef TERN_TOOLS_SIGNALS_H
#define TERN_TOOLS_SIGNALS_H

#include <stdbool.h>

/*
 * Catches SIGCHLD, and the signals that a user sends:
 *
 *     SIGINT, SIGTERM  end in an orderly way
 *     SIGHUP           the same, unless it was ignored (nohup)
 *     SIGUSR1          tell the status, and go on
 *     SIGUSR2          end in an orderly way, without saving: the launcher ends the rest
 *                      of a job that has failed
 *
 * SIGPIPE and SIGXFSZ are ignored from now on: a write fails with EPIPE or EFBIG. Returns
 * a descriptor that is readable when a signal has come; -EMFILE.
 */
int signals_open(void);

/* A second SIGINT ends the process at once, inside the handler. */
void signals_abort_on_second(void);

/* Catches SIGTSTP (Ctrl-Z) too, unless it is ignored. */
void signals_catch_stop(void);

/* Stops this process as SIGTSTP does. Returns when it continues, or at once if no
 * process could continue it (an orphaned process group). */
void signals_stop(void);

/* True if this signal asks the process to end. */
bool signals_is_end(int number);

/* True if a signal has asked this process to end since signals_open(). For code that
 * blocks while no loop takes signals. */
bool signals_asked(void);

/* Name of a signal: "SIGTERM". */
const char *signals_name(int number);

/* Takes the next signal that came; 0: none. */
int signals_take(int fd);

/* Restores the default actions and closes the descriptor. */
void signals_close(int fd);

/* For a child between fork and exec: default actions, and SIGUSR1 is ignored until the
 * child catches it. Async-signal-safe. */
void signals_reset_child(void);

#endif
