/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server 0 reports the progress of the job to those who watch it (opts.progress), every
 * PROGRESS_NS while steps are made or workers tell something new, and every WAITING_NS while
 * neither happens, with the processes that are waited for. Workers tell their losses,
 * metrics and times in the message "progress" (client/report.c). Losses and metrics are shown,
 * and times decide who computes which slots (balance.c): no parameter depends on them.
 */
#include "server/membership.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"

#define PROGRESS_NS (200 * TERN_NS_PER_MS)
#define WAITING_NS  TERN_NS_PER_S

/* ---- what workers say ---- */

/* Reads "loss" and "weight"; both are missing if the worker has computed no slot. */
static bool read_loss(struct server_peer *p, const json_t *message)
{
	const json_t *loss = json_object_get(message, "loss");
	const json_t *weight = json_object_get(message, "weight");
	double value = json_number_value(weight);

	if (!loss && !weight)
		return true;
	if (!json_is_number(loss) || !json_is_number(weight) || !(value > 0) ||
		!isfinite(value))
		return false;
	p->loss = json_number_value(loss);
	p->loss_weight = value;
	return true;
}

/* Reads how long the last slot took, in ns; it is missing if the worker has computed none. */
static bool read_time(struct server_peer *p, const json_t *message)
{
	const json_t *ns = json_object_get(message, "slot_ns");

	if (!ns)
		return true;
	if (!json_is_integer(ns) || json_integer_value(ns) < 1)
		return false;
	balance_note(&p->times, (uint64_t)json_integer_value(ns));
	return true;
}

static uint64_t steps_made(const struct tern_server *s)
{
	struct tern_server_stats stats;

	tern_server_stats(s, &stats);
	return stats.steps;
}

/* Takes one metric. In sync mode the newest step counts, whoever is heard last: a worker may
 * be behind the others. In async mode a worker tells its own steps, which say nothing of the
 * job's: a metric is of the step at which it is heard. */
static bool read_metric(struct tern_server *s, const json_t *triple)
{
	const char *name = json_string_value(json_array_get(triple, 0));
	const json_t *told = json_array_get(triple, 2);
	bool sync = s->job.mode == TERN_MODE_SYNC;
	struct tern_metric *m;
	uint64_t step;
	double value;

	if (!tern_metric_is_name(name) ||
		!tern_metric_read(json_array_get(triple, 1), &value) ||
		!json_is_integer(told) || json_integer_value(told) < 0 ||
		(uint64_t)json_integer_value(told) > s->job.steps)
		return false;
	step = sync ? (uint64_t)json_integer_value(told) : steps_made(s);
	m = tern_metrics_get(&s->metrics, name);
	if (!m && !s->metric_refused)
		server_note(s, "the metric %s is not shown: a job has at most %u of them",
			name, TERN_METRICS_MAX);
	s->metric_refused = s->metric_refused || !m;
	if (!m || (sync && step < m->step))
		return true;
	m->value = value;
	m->step = step;
	return true;
}

void progress_forget(struct tern_server *s)
{
	s->metrics = (struct tern_metrics){0};
	s->metric_refused = s->progress_due = false;
}

void progress_on_progress(struct server_peer *p, const json_t *message)
{
	const json_t *metrics = json_object_get(message, "metrics");
	bool good = (!metrics || json_is_array(metrics)) &&
		    json_array_size(metrics) <= TERN_METRICS_MAX &&
		    read_loss(p, message) && read_time(p, message);

	for (size_t i = 0; good && i < json_array_size(metrics); i++)
		good = read_metric(p->server, json_array_get(metrics, i));
	if (!good) {
		server_refuse(p,
			"its message \"progress\" is malformed: expected a loss with a "
			"weight above 0, a time of a slot above 0, and at most %u "
			"metrics with name, value and step",
			TERN_METRICS_MAX);
		return;
	}
	p->server->progress_due = true;
	change_maybe_balance(p->server);
}

/* ---- reports ---- */

double progress_loss(const struct tern_server *s)
{
	double sum = 0, weight = 0;

	for (uint32_t i = 0; i < s->job.workers; i++) {
		const struct server_peer *w = s->workers[i];

		if (w->lost || w->loss_weight == 0)
			continue;
		sum += w->loss * w->loss_weight;
		weight += w->loss_weight;
	}
	return weight > 0 ? sum / weight : (double)NAN;
}

/* Mean staleness of the gradients that were applied since the last report; NAN: none. */
static double take_staleness(struct tern_server *s)
{
	uint64_t count = s->stats.gradients_added - s->progress_gradients;
	uint64_t sum = s->stats.staleness_sum - s->progress_staleness;

	s->progress_gradients = s->stats.gradients_added;
	s->progress_staleness = s->stats.staleness_sum;
	return count && s->job.mode == TERN_MODE_ASYNC ? (double)sum / (double)count
						       : (double)NAN;
}

double progress_lr(const struct tern_server *s, uint64_t step)
{
	const struct tern_optimizer *rule = &s->job.optimizer;

	return (double)tern_schedule_lr(&rule->schedule, rule->lr, TERN_MAX(step, 1ull));
}

static void report(struct tern_server *s, uint64_t step, const char *waits_for)
{
	s->progress_due = false;
	s->progress_step = step;
	s->progress_ns = tern_now_ns(s->env);
	s->opts.progress(s->opts.arg,
		&(struct tern_server_progress){.step = step,
			.steps = s->job.steps,
			.slots = s->job.mode == TERN_MODE_SYNC ? s->job.slots : 1,
			.batch = s->job.records ? s->job.batch : 0,
			.loss = progress_loss(s),
			.lr = progress_lr(s, step),
			.staleness_mean = take_staleness(s),
			.staleness_max = s->stats.staleness_max,
			.metrics = &s->metrics,
			.waits_for = waits_for});
}

static void tick(struct tern_timer *timer)
{
	struct tern_server *s =
		tern_container_of(timer, struct tern_server, progress_timer);
	uint64_t now_ns = tern_now_ns(s->env), step = steps_made(s);
	char names[300];

	if (s->over || s->opts.ctx->ending)
		return;
	if (s->progress_due || step != s->progress_step) {
		report(s, step, "");
	} else if (now_ns - s->progress_ns >= WAITING_NS) {
		if (late_name_owing(s, names, sizeof(names)) > 0)
			report(s, step, names);
	}
	tern_timer_set(s->opts.ctx, timer, now_ns + PROGRESS_NS);
}

void progress_start(struct tern_server *s)
{
	if (s->index != 0 || !s->opts.progress || s->over)
		return;
	s->progress_ns = tern_now_ns(s->env);
	s->progress_timer.fire = tick;
	tern_timer_set(s->opts.ctx, &s->progress_timer, s->progress_ns + PROGRESS_NS);
}

void progress_end(struct tern_server *s)
{
	uint64_t step = steps_made(s);

	tern_timer_clear(s->opts.ctx, &s->progress_timer);
	if (s->index == 0 && s->opts.progress &&
		(s->progress_due || step != s->progress_step))
		report(s, step, "");
}
