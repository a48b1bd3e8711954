/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals as something to poll. Not a signalfd: that needs every thread of the process to
 * block the signals, and libraries start threads of their own before main() does
 * (OpenBLAS), which would take a signal and end the process.
 *
 * There is one of these per process at a time.
 */
#ifndef TERN_TOOLS_SIGNALS_H
#define TERN_TOOLS_SIGNALS_H

#include <stdbool.h>

/*
 * Catches what asks a process to end, and SIGCHLD:
 *
 *     SIGINT, SIGTERM  in order
 *     SIGHUP           the same, unless it was ignored (nohup)
 *     SIGUSR1          (asks for the status, and ends nothing)
 *     SIGUSR2          in order and without saving: the launcher ends what is left of a
 *                      job that has failed
 *
 * SIGPIPE and SIGXFSZ are ignored from now on: a write says EPIPE or EFBIG. A descriptor
 * that is readable once a signal came; -EMFILE.
 */
int signals_open(void);

/* A second SIGINT ends the process at once, from the handler. */
void signals_abort_on_second(void);

/* Catches SIGTSTP (Ctrl-Z) too, unless it is ignored. */
void signals_catch_stop(void);

/* Stops this process as SIGTSTP does; returns when it goes on, or at once if there is
 * nobody who could continue it (an orphaned process group). */
void signals_stop(void);

/* Did it ask the process to end? */
bool signals_is_end(int number);

/* "SIGTERM" */
const char *signals_name(int number);

/* The next signal that came; 0: none. */
int signals_take(int fd);

/* Default actions again; closes the descriptor. */
void signals_close(int fd);

/* In a child between fork and exec: default actions, and SIGUSR1 is ignored until the
 * child catches it. Async-signal-safe. */
void signals_reset_child(void);

#endif
