/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library logs, and where it goes.
 *
 * There is one function and one level for the process (tern_log_set), which a context's
 * options replace for what concerns that context and its peers (log, log_level). Without
 * either, errors and warnings go to stderr, as "tern: warning: ...".
 *
 * A log function gets one line without its end, at most 1023 bytes, in which every byte
 * that is not printable is escaped; it is valid during the call only. A context's lines
 * come on the thread that uses the context, from inside any call on it or on its peers;
 * lines about domains, memory, GPUs and devices come on whichever thread made the call,
 * to the process's function, which must therefore be thread-safe. A log function may call
 * nothing of Tern but tern_log_level_name(), must not block for long, since nothing moves
 * meanwhile, and must return (no longjmp, no exception).
 */
#ifndef TERN_LOG_H
#define TERN_LOG_H

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tern_log_level {
	TERN_LOG_DEFAULT = 0, /* a context: as the process; the process: TERN_LOG_WARN */
	TERN_LOG_NONE = 1,    /* nothing is logged */
	TERN_LOG_ERROR = 2,   /* something failed that a caller's status cannot tell */
	TERN_LOG_WARN = 3,    /* a peer was refused or cut, or a device was lost */
	TERN_LOG_INFO = 4,    /* which path was chosen, and why not a faster one */
	TERN_LOG_DEBUG = 5,   /* every change of a connection */
};

/*
 * Sets the process's level and function (NULL: stderr). From any thread, at any time. A
 * line that another thread is just writing may still come to the earlier function: its
 * `arg` must stay valid until the calls that are under way have returned.
 */
TERN_API void tern_log_set(enum tern_log_level level,
	void (*log)(enum tern_log_level level, const char *text, void *arg), void *arg);

/* "none", "error", "warning", "info", "debug"; else "?". Static storage. */
TERN_API const char *tern_log_level_name(enum tern_log_level level);

#ifdef __cplusplus
}
#endif
#endif
