/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of a job's processes: each is a JSON object with a member "event". A role
 * makes them; the launcher reads them from its children and passes them on. The process
 * that the user started prints them here: as they are with --json, else as text.
 *
 *     listening  address                                     a server can be joined
 *     start      servers, workers, slots, model, parameters  the launcher: the job begins
 *     progress   step, steps, loss, samples_per_s, mb_per_s
 *     saved      path, step, steps: the parameters after `step` steps of the job, or of
 *                `worker` if it is given (async mode, interrupted)
 *     saving     a file of the parameters is being written: its end is waited for
 *     unsaved    text: they could not be saved
 *     generated  text
 *     note       text: something worth a line, such as which process has joined
 *     waiting    text: how long there was no step, and which process is waited for
 *     log        time, level, text: a line of the library's log
 *     status     text: the answer to SIGUSR1, on stderr
 *     error      text, input (true: the user's fault, not the job's)
 *     done       steps, loss, test_accuracy, ..., steps_per_s, samples_per_s
 *     failed     text, code: the last event of a command that failed
 *     end        code: the last event of a server or worker
 *
 * With --json each has "time" (UTC), "host", "pid", and "job": the value of TERN_JOB in
 * the environment, which the launcher sets if it is not set.
 */
#ifndef TERN_TOOLS_REPORT_H
#define TERN_TOOLS_REPORT_H

#include "base/env.h"
#include "tools/output.h"

/* Prints an event and releases it. Error and log lines begin with "tern WHO: ". */
void report(struct output *out, const char *who, json_t *event);

#define REPORT_JOB "TERN_JOB"

/* Prints the event "failed" as JSON. */
void report_failed(const char *text, int code);

/* A JSON string of text that may not be UTF-8 (paths, text that a model wrote): bytes
 * that JSON cannot hold become '?'. */
json_t *report_text(const char *text);

#endif
