/* SPDX-License-Identifier: Apache-2.0 */
/* Reports a crash of the process: a line and a backtrace on stderr. */
#ifndef TERN_TOOLS_CRASH_H
#define TERN_TOOLS_CRASH_H

/* Catches SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, unless another handler is set
 * (a sanitizer's). After its lines the process ends by the signal, with a core if the
 * system keeps one. Call it once, before threads are started. */
void crash_open(void);

#endif
