/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --logdir: server 0 writes the progress of the job as curves that TensorBoard shows: the numbers
 * of the event "progress" under their names, and each metric as metrics/NAME.
 *
 * A point has the values of the last report of its step. Reports come up to five times a second.
 * The interval between two points of a curve is at least a 50,000th of the time since
 * logdir_open(), so a curve has each report of the first hours, and less than half a million
 * points after a year.
 *
 * A thread of its own writes, so that a disk that is full or does not answer delays no step. What
 * cannot be written is left out.
 */
#ifndef TERN_TOOLS_LOGDIR_H
#define TERN_TOOLS_LOGDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/server.h"
#include "tools/options.h"

/* A row for a table of options. */
#define LOGDIR_OPTION(settings, field)                                                   \
	OPTION(TEXT, "logdir", "DIR",                                                    \
		"server 0 writes there how the training goes, for tensorboard --logdir " \
		"DIR; a directory for each job",                                         \
		settings, field)

struct logdir;

/* Makes the directory and those above it if they do not exist, and checks that a file can be
 * written there. It blocks, so it is for a job that begins: one that goes on is not to wait for
 * this disk. NULL: the option was not given. -EINVAL: `error` has one line. */
int logdir_check(const char *directory, struct message *error);

/* Starts the thread, which makes the directory if it does not exist when a file begins.
 * `directory` must stay. 0; -ENOMEM, or -EAGAIN: no thread. */
int logdir_open(const char *directory, struct logdir **out);

/* The functions below belong to one thread, and do nothing if `l` is NULL. now_ns is the time of
 * tern_clock_ns(). */

/* The steps begin, or begin again after the job has gone back: `step` of them are done. What is
 * shown of later ones was not of this job, or is made again. */
void logdir_begin(struct logdir *l, uint64_t step);

/* Takes a report. steps_per_s: NAN, not known. */
void logdir_add(struct logdir *l, uint64_t now_ns, const struct tern_server_progress *p,
	double steps_per_s);

/* Writes the points of the newest report: no other report of its step comes. */
void logdir_flush(struct logdir *l, uint64_t now_ns);

/* True if something could not be written: `text` says what, and why. A failure is told once, until
 * a write has succeeded, and at most one an hour is told. */
bool logdir_has_warning(struct logdir *l, uint64_t now_ns, char *text, size_t bytes);

/* Waits until all is written, for at most 2 s: after that a thread that still waits for the disk
 * is left to the end of the process. */
void logdir_end(struct logdir *l);
void logdir_free(struct logdir *l); /* after logdir_end() */

#endif
