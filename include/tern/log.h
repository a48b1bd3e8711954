/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines of the library: their levels and where they go.
 *
 * The process has one log function and one level (tern_log_set). The options of a context
 * (log, log_level) replace them for lines about that context and its peers. By default,
 * errors and warnings go to stderr, as "tern: warning: ...".
 *
 * A log function gets one line without a newline, of at most 1023 bytes, with every
 * unprintable byte escaped. The text is valid during the call only.
 *
 * Threads: lines of a context come on the thread that uses the context, from inside any
 * call on it or its peers. Lines about domains, memory, GPUs and devices go to the log
 * function of the process on whichever thread made the call, so that function must be
 * thread-safe.
 *
 * A log function may call no function of Tern except tern_log_level_name(). It must not
 * block for long, since no transfer moves meanwhile, and it must return (no longjmp, no
 * exception).
 */
#ifndef TERN_LOG_H
#define TERN_LOG_H

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tern_log_level {
	/* For a context: the level of the process; for the process: TERN_LOG_WARN. */
	TERN_LOG_DEFAULT = 0,
	TERN_LOG_NONE = 1,  /* nothing is logged */
	TERN_LOG_ERROR = 2, /* a failure that no returned status reports */
	TERN_LOG_WARN = 3,  /* a peer was refused or cut, or a device was lost */
	TERN_LOG_INFO = 4,  /* which path was chosen, and why not a faster one */
	TERN_LOG_DEBUG = 5, /* every change of a connection's state */
};

/*
 * Sets the log level and function of the process (NULL: stderr). May be called from any
 * thread at any time. Another thread that is just writing a line may still call the
 * former function once: keep its `arg` valid until calls under way on other threads have
 * returned.
 */
TERN_API void tern_log_set(enum tern_log_level level,
	void (*log)(enum tern_log_level level, const char *text, void *arg), void *arg);

/* Name of the level: "none", "error", "warning", "info", "debug"; "?" if unknown.
 * Static storage. */
TERN_API const char *tern_log_level_name(enum tern_log_level level);

#ifdef __cplusplus
}
#endif
#endif
