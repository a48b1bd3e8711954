/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a job say: events, each a JSON object with a member "event". A
 * role makes them; the launcher reads them from its children and passes them on. Whoever
 * ends up before the user shows them through here: as they are with --json, else in
 * words.
 *
 *     listening  address                                     a server can be joined
 *     start      servers, workers, slots, model, parameters  the launcher: the job begins
 *     progress   step, steps, loss, samples_per_s, mb_per_s
 *     saved      path, step, steps: parameters after so many of the job's steps, or of
 *                those of `worker`, if it is there (async mode, interrupted)
 *     saving     a file of the parameters is being written: its end is waited for
 *     unsaved    text: they could not be saved
 *     generated  text
 *     note       text: something worth a line, such as who joined and how
 *     waiting    text: there was no step for so long, and who is waited for
 *     log        time, level, text: a line of the library's log
 *     status     text: the answer to SIGUSR1, on stderr
 *     error      text, input (the user's, not the job's, fault)
 *     done       steps, loss, test_accuracy, ..., steps_per_s, samples_per_s
 *     failed     text, code: the last of a command that failed
 *     end        code: the last of a server or worker
 *
 * With --json each has "time" (UTC), "host", "pid", and "job": what the environment says
 * in TERN_JOB, which the launcher sets if nobody has.
 */
#ifndef TERN_TOOLS_REPORT_H
#define TERN_TOOLS_REPORT_H

#include "base/env.h"
#include "tools/output.h"

/* Takes the reference. `who`: what errors and log lines begin with: "tern WHO: ". */
void report(struct output *out, const char *who, json_t *event);

#define REPORT_JOB "TERN_JOB"

/* The event "failed", as JSON. */
void report_failed(const char *text, int code);

/* A string for an event of text that may not be UTF-8 (paths, what a model wrote): bytes
 * that JSON cannot hold become '?'. */
json_t *report_text(const char *text);

#endif
