/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This worker tells server 0 its progress, for those who watch the job: the loss of its last
 * step, the metrics that its program has named, and how long its last slot took (message
 * "progress"). No parameter depends on it. A worker says it at most every REPORT_NS, and more rarely in a
 * job of many workers, so that server 0 gets at most some 500 messages a second.
 */
#include "client/worker_state.h"

#include <errno.h>

#include "base/clock.h"

#define REPORT_NS     (200 * TERN_NS_PER_MS)
#define PER_WORKER_NS (2 * TERN_NS_PER_MS)

/* Takes the metrics that server 0 was not told of. NULL: there are none. */
static json_t *take_metrics(struct tern_worker *w)
{
	json_t *list = NULL;

	for (uint32_t i = 0; i < w->metrics.count; i++) {
		const struct tern_metric *m = &w->metrics.list[i];

		if (!w->metric_is_new[i])
			continue;
		w->metric_is_new[i] = false;
		list = list ? list : json_array();
		json_array_append_new(
			list, json_pack("[s, o, I]", m->name, tern_metric_json(m->value),
				      (json_int_t)m->step));
	}
	return list;
}

void report_say(struct tern_worker *w)
{
	json_t *message, *metrics;

	tern_timer_clear(w->opts.ctx, &w->report_timer);
	if (!w->report_due || !w->begun)
		return;
	w->report_due = false;
	w->reported_ns = tern_now_ns(w->env);
	metrics = take_metrics(w);
	message = json_pack("{s:s, s:I}", "type", "progress", "step",
		(json_int_t)TERN_MIN(w->version, w->my_steps));
	if (w->report_weight > 0)
		json_object_update_new(
			message, json_pack("{s:f, s:f}", "loss", w->report_loss, "weight",
					 w->report_weight));
	if (w->slot_ns)
		json_object_set_new(
			message, "slot_ns", json_integer((json_int_t)w->slot_ns));
	w->slot_ns = 0;
	if (metrics)
		json_object_set_new(message, "metrics", metrics);
	tern_talk_say(&w->servers[0].talk, message);
}

static void fire(struct tern_timer *timer)
{
	struct tern_worker *w =
		tern_container_of(timer, struct tern_worker, report_timer);

	if (!w->over && !w->opts.ctx->ending)
		report_say(w);
}

/* There is something new: says it now, or when the interval has passed. */
static void changed(struct tern_worker *w)
{
	uint64_t interval_ns = TERN_MAX(REPORT_NS, w->job.workers * PER_WORKER_NS);
	uint64_t due_ns = w->reported_ns ? w->reported_ns + interval_ns : 0;

	w->report_due = true;
	if (w->over)
		return;
	if (tern_now_ns(w->env) >= due_ns) {
		report_say(w);
	} else if (!w->report_timer.place) {
		w->report_timer.fire = fire;
		tern_timer_set(w->opts.ctx, &w->report_timer, due_ns);
	}
}

void report_loss(struct tern_worker *w, double loss, double weight)
{
	w->report_loss = loss;
	w->report_weight = weight;
	changed(w);
}

int tern_worker_metric(
	struct tern_worker *w, const char *name, double value, uint64_t step)
{
	struct tern_metric *m;

	if (!tern_metric_is_name(name))
		return -EINVAL;
	m = tern_metrics_get(&w->metrics, name);
	if (!m)
		return -E2BIG;
	m->value = value;
	m->step = TERN_MAX(step, TERN_MIN(w->version, w->my_steps));
	w->metric_is_new[m - w->metrics.list] = true;
	changed(w);
	return 0;
}
