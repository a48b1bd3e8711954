/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of a job's processes: each is a JSON object with a member "event". Servers
 * and workers write them; the launcher (`tern train` or `tern run`) reads those of its
 * children and passes on those that the user needs. Every process prints its events with
 * these functions: as JSON with --json, which the launcher gives its children, else as
 * text.
 *
 *     listening  address                                     a server can be joined
 *     start      model, fabric, servers, workers, slots, join: the launcher starts the workers;
 *                of `tern run`: fabric, servers, workers, join, program, text
 *     output     worker, stream (stdout or stderr), text, of `tern run`: a line of a
 *                worker, or a piece of a long line
 *     progress   step, steps, loss, steps_per_s, samples_per_s; of a worker: mb_per_s, in
 *                sync mode lr; of server 0, and of `tern train`, which adds it: metrics (an object with the value of each name; a value that is
 *                not finite is "nan", "inf" or "-inf"), lr; in async mode staleness_mean
 *                (of the gradients since the last event), staleness_max; and waits_for, if
 *                nothing has happened for a second: who is waited for. What is not known
 *                yet is missing, or null
 *     evaluated  step, test_loss, test_accuracy: on the test data, after `step` steps (in
 *                async mode those of the worker that evaluates); of `tern evaluator` also
 *                steps, snapshot, and test_auc for two classes
 *     saved      path, step, steps: the parameters after `step` steps of the job, or of
 *                `worker` if it is given (async mode, interrupted)
 *     saving     the process writes a file of the parameters, and must not be killed
 *                until "saved" or "unsaved"
 *     unsaved    text: the parameters could not be saved
 *     generated  text
 *     note       text: news for the user, such as which process has joined
 *     waiting    text: how long there was no step, and which process is waited for
 *     device     role, index, device, text, device_bytes (workers only): the GPU on
 *                which this server or worker computes
 *     joined     count, workers: so many workers of the job have joined the server; only
 *                the launcher needs to know
 *     ready      a worker has read its data; only the launcher needs to know
 *     begun      the first step of this server or worker begins; only the launcher needs
 *                to know; of a server: view (tools/job_view.h), if servers or workers were
 *                added, or servers removed
 *     completed  the job of this server was completed; only the launcher needs to know
 *     lost       worker, text: the process that prints this goes on without the worker
 *     came       worker, text: that worker takes part in the place of a lost one
 *     aborted    text: an operator ends the job of this server; only the launcher needs to know
 *     back       text: the job goes back to a snapshot, and waits for all of its processes
 *     restart    count, text: the launcher starts a lost process again, or all
 *     snapshot   step, path, bytes, seconds, text: a snapshot was published
 *     warning    text: news that the user should see from every server
 *     draining   server, text, of `tern drain`: this server is to be removed
 *     drained    server, text, of `tern drain`: the job goes on without this server
 *     applied    gradients, gradients_refused, staleness_mean, staleness_max: what
 *                a server has applied, reported at its end
 *     log        time, level, text: a line of the library's log
 *     status     text: the answer to SIGUSR1; without --json it goes to stderr
 *     error      text, input (true: the user's fault, not the job's)
 *     done       steps, loss, test_accuracy, ..., steps_per_s, samples_per_s; of `tern
 *                run`: workers, succeeded (the number of those with exit code 0)
 *     failed     text, code: the last event of a command that failed; a server,
 *                worker or evaluator prints "error" and "end" instead once it has
 *                started
 *     end        code: the last event of a server, worker or evaluator
 *
 * With --json each event also has "time" (UTC), "host", "pid", and "job": the value of
 * the environment variable TERN_JOB, which the launcher sets unless the user has set it
 * (a server or worker that is started without TERN_JOB prints no "job").
 */
#ifndef TERN_TOOLS_REPORT_H
#define TERN_TOOLS_REPORT_H

#include "base/env.h"
#include "tools/output.h"

/* Prints an event and releases it. As text, lines on stderr other than progress begin
 * with "tern WHO: ". */
void report(struct output *out, const char *who, json_t *event);

#define REPORT_JOB "TERN_JOB"

/* Prints the event "failed" as JSON, with the reason `text` and the exit code. */
void report_failed(const char *text, int code);

/* Makes a JSON string from text that may not be UTF-8, such as a path or text that a
 * model wrote: if it is not, all its bytes above ASCII become '?'. */
json_t *report_text(const char *text);

/* Sets a number of an event; null if it is infinite or NaN, which JSON cannot express. */
void report_number(json_t *event, const char *name, double value);

#endif
