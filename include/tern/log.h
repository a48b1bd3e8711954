/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines of the library: their levels and where they go.
 *
 * The process has one log function and one log level (tern_log_set). The options `log`
 * and `log_level` of a context replace them for lines about that context and its peers.
 * By default, errors and warnings go to stderr, as "tern: warning: ...".
 *
 * A log function gets one line without a newline, of at most 1023 bytes, with every
 * unprintable byte escaped. The text is valid during the call only.
 *
 * Threads: lines about a context are logged on the thread that uses the context, inside
 * any call on the context or its peers. Lines about domains, memory, GPUs and devices are
 * logged on the thread that made the call, whichever that is, so the log function of the
 * process must be thread-safe.
 *
 * A log function may call no function of Tern except tern_log_level_name(). It must not
 * block for long, since no transfer makes progress meanwhile, and it must return (no
 * longjmp, no exception).
 */
#ifndef TERN_LOG_H
#define TERN_LOG_H

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tern_log_level {
	/* In a context's options, this stands for the level of the process; in
	 * tern_log_set(), for TERN_LOG_WARN. */
	TERN_LOG_DEFAULT = 0,
	TERN_LOG_NONE = 1, /* nothing is logged */
	/* Mistakes of the program or of its setup, and failures that no status reports. */
	TERN_LOG_ERROR = 2,
	/* Such as: a peer was refused or cut, a device was lost, or memory must be
	 * copied. */
	TERN_LOG_WARN = 3,
	/* Such as: which transfer path was chosen, and why not a faster one. */
	TERN_LOG_INFO = 4,
	/* Such as: each change of a peer's state (enum tern_peer_event). */
	TERN_LOG_DEBUG = 5,
};

/*
 * Sets the log level and log function of the process (NULL: stderr). May be called from
 * any thread at any time. A thread that is logging a line at that moment may still call
 * the former function once: keep the former `arg` valid until calls in progress on other
 * threads have returned.
 */
TERN_API void tern_log_set(enum tern_log_level level,
	void (*log)(enum tern_log_level level, const char *text, void *arg), void *arg);

/* Name of a log level: "none", "error", "warning", "info", "debug"; "?" if unknown.
 * Static storage. */
TERN_API const char *tern_log_level_name(enum tern_log_level level);

#ifdef __cplusplus
}
#endif
#endif
