/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a job for people. What a person wants to know first stands first: whether
 * steps are made, how fast, who is waited for, and how old the last snapshot is. A member that
 * the answer lacks is left out. */
#include "tools/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "ps/metric.h"
#include "tools/field.h"

/* Time without a gradient after which a job counts as one that stands still, unless STILL_STEPS of
 * its steps take longer. */
#define STILL_S     2.0
#define STILL_STEPS 3

static bool has(const json_t *object, const char *name)
{
	return json_object_get(object, name) != NULL;
}

static bool is(const json_t *object, const char *name, const char *text)
{
	return strcmp(field_text(object, name), text) == 0;
}

struct duration {
	char text[40];
};

static struct duration duration(double s)
{
	struct duration d;
	double all = fmin(fmax(s, 0), 1e9);
	unsigned whole = (unsigned)all;

	if (all < 10)
		snprintf(d.text, sizeof(d.text), "%.1f s", all);
	else if (whole < 60)
		snprintf(d.text, sizeof(d.text), "%u s", whole);
	else if (whole < 3600)
		snprintf(d.text, sizeof(d.text), "%u min %u s", whole / 60, whole % 60);
	else if (whole < 86400)
		snprintf(d.text, sizeof(d.text), "%u h %u min", whole / 3600,
			whole / 60 % 60);
	else
		snprintf(d.text, sizeof(d.text), "%u d %u h", whole / 86400,
			whole / 3600 % 24);
	return d;
}

/* "1 worker", "2 workers" */
static void count(FILE *to, double n, const char *what)
{
	fprintf(to, "%.0f %s%s", n, what, n == 1 ? "" : "s");
}

/* ---- the job ---- */

static bool stands_still(const json_t *a)
{
	return field_number(a, "quiet_s") >=
	       fmax(STILL_S, STILL_STEPS * field_number(a, "step_s"));
}

static void show_state(FILE *to, const json_t *a)
{
	fputs("state      ", to);
	if (is(a, "state", "no_job"))
		fputs("no job yet", to);
	else if (is(a, "state", "starts"))
		fputs("the steps have not begun", to);
	else if (is(a, "state", "back"))
		fprintf(to, "the job goes back, for %s now",
			duration(field_number(
					 json_object_get(a, "recoveries"), "back_for_s"))
				.text);
	else if (is(a, "state", "finishes"))
		fputs("the steps are done, the job ends", to);
	else if (stands_still(a))
		fprintf(to, "no progress for %s",
			duration(field_number(a, "quiet_s")).text);
	else
		fputs("makes steps", to);
	fprintf(to, "; up %s\n", duration(field_number(a, "uptime_s")).text);
}

static void show_rate(FILE *to, double rate, const char *unit)
{
	fprintf(to, rate >= 1000 ? "   %.0f %s" : "   %.3g %s", rate, unit);
}

static void show_step(FILE *to, const json_t *a)
{
	double step = field_number(a, "step"), rate = field_number(a, "steps_per_s");
	double steps = field_number(json_object_get(a, "job"), "steps");

	if (!has(a, "step"))
		return;
	fprintf(to, "step       %.0f of %.0f", step, steps);
	if (has(a, "steps_per_s"))
		show_rate(to, rate, "steps/s");
	if (has(a, "samples_per_s"))
		show_rate(to, field_number(a, "samples_per_s"), "samples/s");
	if (rate > 0 && step < steps && !stands_still(a))
		fprintf(to, "   %s left", duration((steps - step) / rate).text);
	fputc('\n', to);
}

static void show_metrics(FILE *to, const json_t *a)
{
	json_t *metrics = json_object_get(a, "metrics");
	const char *name;
	json_t *value;

	if (!has(a, "loss") && !has(a, "lr") && !json_object_size(metrics))
		return;
	fputs("training", to);
	if (has(a, "loss"))
		fprintf(to, "   loss %.4g", field_number(a, "loss"));
	if (has(a, "lr"))
		fprintf(to, "   lr %.4g", field_number(a, "lr"));
	json_object_foreach(metrics, name, value)
	{
		double number;

		if (tern_metric_read(value, &number))
			fprintf(to, "   %.63s %.4g", name, number);
	}
	fputc('\n', to);
}

static void show_staleness(FILE *to, const json_t *a)
{
	const json_t *staleness = json_object_get(a, "staleness");

	if (staleness)
		fprintf(to, "staleness  %.2f versions on average, %.0f at most\n",
			field_number(staleness, "mean"), field_number(staleness, "max"));
}

/* A job that makes steps always waits for somebody, for a moment. */
static void show_awaited(FILE *to, const json_t *a)
{
	if (has(a, "waits_for") && (!is(a, "state", "steps") || stands_still(a)))
		fprintf(to, "waits for  %s\n", field_text(a, "waits_for"));
}

static void show_snapshot(FILE *to, const json_t *a)
{
	const json_t *s = json_object_get(a, "snapshot");
	double failures = field_number(s, "failures");

	if (!s)
		return;
	fputs("snapshot   ", to);
	if (has(s, "step"))
		fprintf(to, "step %.0f, %s ago, %.1f MB in %.2f s: %s",
			field_number(s, "step"), duration(field_number(s, "age_s")).text,
			field_number(s, "bytes") / 1e6, field_number(s, "seconds"),
			field_text(s, "path"));
	else
		fputs("none yet", to);
	if (has(s, "taking"))
		fprintf(to, "; that of step %.0f is being taken",
			field_number(s, "taking"));
	fputc('\n', to);
	if (failures > 0) {
		fputs("           ", to);
		count(to, failures, "snapshot");
		fprintf(to, " failed since: %s\n", field_text(s, "why"));
	}
}

static void show_recoveries(FILE *to, const json_t *a)
{
	const json_t *r = json_object_get(a, "recoveries");
	double lost = field_number(r, "workers_lost"), back = field_number(r, "back");

	if (lost == 0 && back == 0)
		return;
	fputs("recovered  ", to);
	count(to, lost, "worker");
	fprintf(to, " lost, %.0f came; ", field_number(r, "workers_came"));
	fputs("the job went back ", to);
	count(to, back, "time");
	if (has(r, "last_back_s"))
		fprintf(to, ", the last time for %s",
			duration(field_number(r, "last_back_s")).text);
	fputc('\n', to);
}

static void show_job(FILE *to, const json_t *a)
{
	const json_t *job = json_object_get(a, "job");

	if (!job)
		return;
	fprintf(to, "job        %s, %s, ", field_text(job, "mode"),
		field_text(job, "optimizer"));
	count(to, field_number(job, "tensors"), "tensor");
	fprintf(to, " of %.0f parameters", field_number(job, "elements"));
	if (has(job, "slots")) {
		fputs(", ", to);
		count(to, field_number(job, "slots"), "slot");
	}
	if (has(job, "batch"))
		fprintf(to, ", batch %.0f", field_number(job, "batch"));
	if (has(job, "first_step"))
		fprintf(to, ", from the snapshot of step %.0f",
			field_number(job, "first_step"));
	fputc('\n', to);
}

/* ---- the processes ---- */

static void show_follower(FILE *to, const json_t *f)
{
	if (!f)
		return;
	fprintf(to, "  followed by %s", field_text(f, "address"));
	if (!json_is_true(json_object_get(f, "complete")))
		fprintf(to, ", which has %.0f of %.0f chunks", field_number(f, "filled"),
			field_number(f, "chunks"));
}

static void show_servers(FILE *to, const json_t *a)
{
	const json_t *servers = json_object_get(a, "servers"), *one;
	size_t i;

	if (!json_array_size(servers))
		return;
	fputs("\nserver  state    address\n", to);
	json_array_foreach(servers, i, one)
	{
		fprintf(to, "%-7.0f %-8s %s", field_number(one, "server"),
			field_text(one, "state"), field_text(one, "address"));
		show_follower(to, json_object_get(one, "follower"));
		fputc('\n', to);
	}
}

/* True if there is something to say about the worker. */
static bool is_special(const json_t *w)
{
	return !is(w, "state", "joined") || field_number(w, "silent_s") >= STILL_S;
}

static void show_worker(FILE *to, const json_t *w)
{
	char work[24] = "-", loss[24] = "-", late[160] = "";

	if (has(w, "slots"))
		snprintf(work, sizeof(work), "%.0f", field_number(w, "slots"));
	else if (has(w, "step"))
		snprintf(work, sizeof(work), "%.0f", field_number(w, "step"));
	if (has(w, "loss"))
		snprintf(loss, sizeof(loss), "%.4g", field_number(w, "loss"));
	if (has(w, "owes") && field_number(w, "silent_s") >= STILL_S)
		snprintf(late, sizeof(late), "  owes %.80s, silent for %s",
			field_text(w, "owes"),
			duration(field_number(w, "silent_s")).text);
	fprintf(to, "%-7.0f %-8s %-8s %-10s %s%s\n", field_number(w, "worker"),
		field_text(w, "state"), work, loss, field_text(w, "name"), late);
}

/* Lists the workers that are special, or those that are not. Returns how many more may be
 * listed. */
static unsigned show_some(FILE *to, const json_t *workers, bool special, unsigned rows)
{
	const json_t *one;
	size_t i;

	json_array_foreach(workers, i, one)
	{
		if (rows == 0)
			break;
		if (is_special(one) != special)
			continue;
		show_worker(to, one);
		rows--;
	}
	return rows;
}

static void show_workers(FILE *to, const json_t *a, unsigned rows)
{
	const json_t *workers = json_object_get(a, "workers");
	const json_t *job = json_object_get(a, "job");
	size_t n = json_array_size(workers);
	unsigned left;

	if (!n)
		return;
	fprintf(to, "\nworker  state    %-8s loss       name\n",
		is(job, "mode", "sync") ? "slots" : "step");
	left = show_some(to, workers, true, rows);
	show_some(to, workers, false, left);
	if (n > rows) {
		fputs("and ", to);
		count(to, (double)(n - rows), "more worker");
		fputs(": --json lists all\n", to);
	}
}

static void show_partial(FILE *to, const json_t *a)
{
	if (has(a, "partial"))
		fprintf(to,
			"partial    only server %.0f has answered, and server 0 knows "
			"more: "
			"%s\n",
			field_number(a, "server"), field_text(a, "partial"));
}

void status_show(FILE *to, const json_t *answer, unsigned rows)
{
	show_state(to, answer);
	show_step(to, answer);
	show_metrics(to, answer);
	show_staleness(to, answer);
	show_awaited(to, answer);
	show_snapshot(to, answer);
	show_recoveries(to, answer);
	show_job(to, answer);
	show_partial(to, answer);
	show_servers(to, answer);
	show_workers(to, answer, rows);
}
