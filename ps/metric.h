/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics: numbers that a program names while it trains, such as an accuracy. A worker tells
 * them to server 0 (client/report.c), and server 0 to whoever shows the progress of the job
 * (server/progress.c). Only the last value of each name is kept, and a list is bounded.
 *
 * A metric need not be a finite number. JSON has no such numbers, so messages and events
 * have the strings "nan", "inf" and "-inf" in their place.
 */
#ifndef TERN_PS_METRIC_H
#define TERN_PS_METRIC_H

#include <jansson.h>

#include <tern/train.h>

struct tern_metric {
	char name[TERN_METRIC_NAME_MAX + 1];
	double value;
	/* Number of steps that were done when it was told: on a worker in async mode of its
	 * own, else of the job. */
	uint64_t step;
};

struct tern_metrics {
	struct tern_metric list[TERN_METRICS_MAX];
	uint32_t count;
};

/* True for a name of 1 to TERN_METRIC_NAME_MAX printable ASCII characters without blanks. */
bool tern_metric_is_name(const char *name);

/* Returns the metric of this valid name, which is added with the value 0 if it is missing.
 * NULL: the list is full. */
struct tern_metric *tern_metrics_get(struct tern_metrics *metrics, const char *name);

/* A JSON number; a string if `value` is not finite. */
json_t *tern_metric_json(double value);

/* Reads what tern_metric_json() has made. False: it is something else. */
bool tern_metric_read(const json_t *json, double *value);

/* An object with the value of each metric under its name. */
json_t *tern_metrics_json(const struct tern_metrics *metrics);

#endif
