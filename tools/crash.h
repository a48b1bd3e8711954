/* SPDX-License-Identifier: Apache-2.0 */
/* Reports a crash of this process: writes a line and a backtrace to stderr. */
#ifndef TERN_TOOLS_CRASH_H
#define TERN_TOOLS_CRASH_H

/* Catches SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, each unless it is ignored or has
 * another handler, such as a sanitizer's. After the report the process ends by the same
 * signal, with a core file if the system keeps them. To be called once, before threads are
 * started. */
void crash_open(void);

#endif
