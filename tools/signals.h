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

/* Catches SIGINT, SIGTERM and SIGCHLD. A descriptor that is readable once one came;
 * -EMFILE. */
int signals_open(void);

/* The next signal that came; 0: none. */
int signals_take(int fd);

/* Default actions again; closes the descriptor. */
void signals_close(int fd);

/* In a child between fork and exec: default actions. Async-signal-safe. */
void signals_reset(void);

#endif
