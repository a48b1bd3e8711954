/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/metric.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

static const struct {
	const char *text;
	double value;
} not_finite[] = {
	{"nan", (double)NAN}, {"inf", (double)INFINITY}, {"-inf", -(double)INFINITY}};

bool tern_metric_is_name(const char *name)
{
	size_t n = 0;

	while (name && n <= TERN_METRIC_NAME_MAX && name[n] > ' ' && name[n] < 0x7f)
		n++;
	return n > 0 && n <= TERN_METRIC_NAME_MAX && !name[n];
}

struct tern_metric *tern_metrics_get(struct tern_metrics *metrics, const char *name)
{
	struct tern_metric *m;

	for (uint32_t i = 0; i < metrics->count; i++)
		if (strcmp(metrics->list[i].name, name) == 0)
			return &metrics->list[i];
	if (metrics->count == TERN_METRICS_MAX)
		return NULL;
	m = &metrics->list[metrics->count++];
	*m = (struct tern_metric){.value = 0};
	snprintf(m->name, sizeof(m->name), "%s", name);
	return m;
}

json_t *tern_metric_json(double value)
{
	if (isfinite(value))
		return json_real(value);
	return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

bool tern_metric_read(const json_t *json, double *value)
{
	const char *text = json_string_value(json);

	if (json_is_number(json)) {
		*value = json_number_value(json);
		return true;
	}
	for (size_t i = 0; text && i < TERN_ARRAY_SIZE(not_finite); i++) {
		if (strcmp(text, not_finite[i].text) != 0)
			continue;
		*value = not_finite[i].value;
		return true;
	}
	return false;
}

json_t *tern_metrics_json(const struct tern_metrics *metrics)
{
	json_t *object = json_object();

	for (uint32_t i = 0; i < metrics->count; i++)
		json_object_set_new(object, metrics->list[i].name,
			tern_metric_json(metrics->list[i].value));
	return object;
}
