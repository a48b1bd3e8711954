/* SPDX-License-Identifier: Apache-2.0 */
/* What a process that breaks leaves behind: a line and a backtrace on stderr. */
#ifndef TERN_TOOLS_CRASH_H
#define TERN_TOOLS_CRASH_H

/* Catches SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, unless somebody else has (a
 * sanitizer). After its lines the process ends by the signal, with a core if the system
 * keeps one. Once, before there are threads. */
void crash_open(void);

#endif
