/* SPDX-License-Identifier: Apache-2.0 */
/* See report.h. As text, a member that an event lacks counts as 0 or "", and an event with
 * an unknown name is not printed. */
#include "tools/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps/metric.h"
#include "ps/talk.h"
#include "tools/field.h"
#include "tools/log.h"

/* A number that is not shown if it is missing. */
static double known_of(const json_t *event, const char *name)
{
	const json_t *number = json_object_get(event, name);

	return json_is_number(number) ? json_number_value(number) : (double)NAN;
}

/* Writes metrics as "accuracy 0.93  top5 0.99", as many as have room. */
static void show_metrics(const json_t *event, char *text, size_t bytes)
{
	json_t *metrics = json_object_get(event, "metrics");
	const char *name;
	json_t *value;
	size_t n = 0;

	*text = '\0';
	json_object_foreach(metrics, name, value)
	{
		char one[100];
		double number;

		if (!tern_metric_read(value, &number))
			continue;
		snprintf(one, sizeof(one), "%s%.70s %.4g", n ? "  " : "", name, number);
		if (n + strlen(one) >= bytes)
			break;
		strcpy(text + n, one);
		n += strlen(one);
	}
}

static void show_progress(struct output *out, const json_t *event)
{
	char metrics[120];
	struct progress p = {
		.step = (uint64_t)field_number(event, "step"),
		.steps = (uint64_t)field_number(event, "steps"),
		.loss = known_of(event, "loss"),
		.metrics = metrics,
		.lr = known_of(event, "lr"),
		.staleness = known_of(event, "staleness_mean"),
		.samples_per_s = known_of(event, "samples_per_s"),
		.mb_per_s = known_of(event, "mb_per_s"),
		.left_s = -1,
		.waits_for = field_text(event, "waits_for"),
	};
	double steps_per_s = field_number(event, "steps_per_s");

	show_metrics(event, metrics, sizeof(metrics));
	if (steps_per_s > 0)
		p.left_s = (double)(p.steps - p.step) / steps_per_s;
	output_progress(out, &p, tern_clock_ns());
}

static void show_done(struct output *out, const json_t *event)
{
	char tested[160] = "", stale[64] = "", refused[48] = "", skipped[48] = "";
	size_t n = 0;

	if (json_object_get(event, "test_accuracy"))
		n += (size_t)snprintf(tested, sizeof(tested), ", test accuracy %.4f",
			field_number(event, "test_accuracy"));
	if (json_object_get(event, "test_auc"))
		snprintf(tested + n, sizeof(tested) - n, ", AUC %.4f",
			field_number(event, "test_auc"));
	if (json_object_get(event, "staleness_mean"))
		snprintf(stale, sizeof(stale), ", staleness %.2f (at most %.0f)",
			field_number(event, "staleness_mean"),
			field_number(event, "staleness_max"));
	if (field_number(event, "gradients_refused") > 0)
		snprintf(refused, sizeof(refused), ", %.0f gradients refused",
			field_number(event, "gradients_refused"));
	if (field_number(event, "skipped") > 0)
		snprintf(skipped, sizeof(skipped), ", %.0f %s left out",
			field_number(event, "skipped"),
			field_number(event, "skipped") > 1 ? "slots" : "slot");
	output_line(out,
		"done: %.0f steps, loss %.4f%s; %.1f steps/s, %.0f samples/s%s%s%s",
		field_number(event, "steps"), field_number(event, "loss"), tested,
		field_number(event, "steps_per_s"), field_number(event, "samples_per_s"),
		stale, refused, skipped);
}

static void show_evaluated(struct output *out, const json_t *event)
{
	char auc[32] = "";

	if (json_object_get(event, "test_auc"))
		snprintf(auc, sizeof(auc), ", AUC %.4f", field_number(event, "test_auc"));
	output_line(out, "step %.0f: test loss %.4f, accuracy %.4f%s",
		field_number(event, "step"), known_of(event, "test_loss"),
		known_of(event, "test_accuracy"), auc);
}

static void show_applied(struct output *out, const json_t *event)
{
	output_line(out,
		"applied %.0f gradients of chunks, refused %.0f; staleness %.2f (at most "
		"%.0f)",
		field_number(event, "gradients"),
		field_number(event, "gradients_refused"),
		field_number(event, "staleness_mean"),
		field_number(event, "staleness_max"));
}

static void show_saved(struct output *out, const json_t *event)
{
	double step = field_number(event, "step"), steps = field_number(event, "steps");

	if (json_object_get(event, "worker"))
		output_line(out, "saved %s: step %.0f of %.0f of worker %.0f",
			field_text(event, "path"), step, steps,
			field_number(event, "worker"));
	else if (step < steps)
		output_line(out, "saved %s: step %.0f of %.0f", field_text(event, "path"),
			step, steps);
	else
		output_line(out, "saved %s", field_text(event, "path"));
}

static void show_start(struct output *out, const json_t *event)
{
	const char *join = field_text(event, "join");

	output_line(out,
		"%s over %s: %.0f server%s, %.0f worker%s, %.0f slot%s a step; servers "
		"at %.400s%s",
		field_text(event, "model"), field_text(event, "fabric"),
		field_number(event, "servers"),
		field_number(event, "servers") == 1 ? "" : "s",
		field_number(event, "workers"),
		field_number(event, "workers") == 1 ? "" : "s",
		field_number(event, "slots"),
		field_number(event, "slots") == 1 ? "" : "s", join,
		strlen(join) > 400 ? "..." : "");
}

static void show(struct output *out, const char *who, const json_t *event)
{
	const char *name = field_text(event, "event");

	if (strcmp(name, "progress") == 0)
		show_progress(out, event);
	else if (strcmp(name, "done") == 0)
		show_done(out, event);
	else if (strcmp(name, "start") == 0)
		show_start(out, event);
	else if (strcmp(name, "listening") == 0)
		output_line(out, "listening at %s", field_text(event, "address"));
	else if (json_is_true(json_object_get(event, "hidden")))
		return;
	else if (strcmp(name, "note") == 0 || strcmp(name, "draining") == 0 ||
		 strcmp(name, "drained") == 0 || strcmp(name, "aborting") == 0 ||
		 strcmp(name, "waiting") == 0 || strcmp(name, "lost") == 0 ||
		 strcmp(name, "came") == 0 || strcmp(name, "skipped") == 0 ||
		 strcmp(name, "back") == 0 || strcmp(name, "snapshot") == 0 ||
		 strcmp(name, "restart") == 0)
		output_line(out, "%s", field_text(event, "text"));
	else if ((strcmp(name, "followed") == 0 || strcmp(name, "begun") == 0) &&
		 *field_text(event, "text"))
		output_line(out, "%s", field_text(event, "text"));
	else if (strcmp(name, "warning") == 0)
		output_line(out, "warning: %s", field_text(event, "text"));
	else if (strcmp(name, "evaluated") == 0)
		show_evaluated(out, event);
	else if (strcmp(name, "applied") == 0)
		show_applied(out, event);
	else if (strcmp(name, "device") == 0)
		output_line(out, "%s %.0f: computes on %s", field_text(event, "role"),
			field_number(event, "index"), field_text(event, "text"));
	else if (strcmp(name, "saved") == 0)
		show_saved(out, event);
	else if (strcmp(name, "unsaved") == 0 || strcmp(name, "status") == 0)
		output_error(out, who, "%s", field_text(event, "text"));
	else if (strcmp(name, "generated") == 0)
		output_text(out, field_text(event, "text"));
	else if (strcmp(name, "log") == 0)
		output_error(out, who, "%s %s: %s", field_text(event, "time"),
			field_text(event, "level"), field_text(event, "text"));
	else if (strcmp(name, "error") == 0)
		output_error(out, who, "%s", field_text(event, "text"));
}

static void set_if_missing(json_t *event, const char *name, json_t *value)
{
	if (json_object_get(event, name))
		json_decref(value);
	else
		json_object_set_new(event, name, value);
}

/* Adds time, host, pid and job, unless the event has them already, as an event from a
 * child process has. */
static void stamp(json_t *event)
{
	const char *job = getenv(REPORT_JOB);
	char time[LOG_TIME_BYTES], host[256] = "";

	gethostname(host, sizeof(host) - 1);
	set_if_missing(event, "time", json_string(log_time(time)));
	set_if_missing(event, "host", report_text(host));
	set_if_missing(event, "pid", json_integer(getpid()));
	if (job)
		set_if_missing(event, "job", report_text(job));
}

void report_failed(const char *text, int code)
{
	json_t *event = json_pack(
		"{ss so si}", "event", "failed", "text", report_text(text), "code", code);

	stamp(event);
	output_json(event);
}

void report(struct output *out, const char *who, json_t *event)
{
	if (out->json) {
		stamp(event);
		output_json(event);
		return;
	}
	show(out, who, event);
	json_decref(event);
}

void report_number(json_t *event, const char *name, double value)
{
	json_object_set_new(
		event, name, isfinite(value) ? json_real(value) : json_null());
}

json_t *report_text(const char *text)
{
	return tern_talk_text(text);
}
