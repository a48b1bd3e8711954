/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of a job's processes: each is a JSON object with a member "event". Servers
 * and workers write them; the launcher (`tern train`) reads those of its children and
 * passes them on. The process that the user has started prints the events with these
 * functions: as JSON with --json, else as text.
 *
 *     listening  address                                     a server can be joined
 *     start      model, fabric, servers, workers, slots: the launcher starts the workers
 *     progress   step, steps, loss, steps_per_s, samples_per_s, mb_per_s
 *     saved      path, step, steps: the parameters after `step` steps of the job, or of
 *                `worker` if it is given (async mode, interrupted)
 *     saving     the process writes a file of the parameters, and must not be killed
 *                until "saved" or "unsaved"
 *     unsaved    text: the parameters could not be saved
 *     generated  text
 *     note       text: news for the user, such as which process has joined
 *     waiting    text: how long there was no step, and which process is waited for
 *     device     role, index, device, text, device_bytes: the GPU on which this server
 *                or worker computes
 *     ready      a worker has read its data; only the launcher needs to know
 *     begun      a worker's first step begins; only the launcher needs to know
 *     lost       worker, text: a server goes on without this worker
 *     applied    gradients, gradients_refused, staleness_mean, staleness_max: what
 *                a server has applied, reported at its end
 *     log        time, level, text: a line of the library's log
 *     status     text: the answer to SIGUSR1; without --json it goes to stderr
 *     error      text, input (true: the user's fault, not the job's)
 *     done       steps, loss, test_accuracy, ..., steps_per_s, samples_per_s
 *     failed     text, code: the last event of a command that failed
 *     end        code: the last event of a server or worker
 *
 * With --json each event also has "time" (UTC), "host", "pid", and "job": the value of
 * the environment variable TERN_JOB, which the launcher sets unless the user has set it.
 */
#ifndef TERN_TOOLS_REPORT_H
#define TERN_TOOLS_REPORT_H

#include "base/env.h"
#include "tools/output.h"

/* Prints an event and releases it. As text, error and log lines begin with "tern WHO:
 * ". */
void report(struct output *out, const char *who, json_t *event);

#define REPORT_JOB "TERN_JOB"

/* Prints the event "failed" as JSON, with the reason `text` and the exit code. */
void report_failed(const char *text, int code);

/* Makes a JSON string from text that may not be UTF-8, such as a path or text that a
 * model wrote. Bytes that JSON cannot hold become '?'. */
json_t *report_text(const char *text);

#endif
