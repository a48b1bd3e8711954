/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern checkpoint diff`: compares the jobs, their blobs and the parameters of two snapshots.
 * Parameters are compared as bytes, since two jobs with the same result have the same
 * bytes. The optimizer's state is not compared. All differences are gathered into one
 * JSON object, and the text for people is printed from that.
 */
#include "tools/checkpoint.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/shown.h"
#include "tools/report.h"

struct side {
	struct checkpoint c;
	float *flat;
};

/* ---- the jobs ---- */

/* From one field of the job up to another one, both included. */
#define FIELDS(first, last)                                                              \
	{                                                                                \
		offsetof(struct tern_ps_job, first),                                     \
			offsetof(struct tern_ps_job, last) +                             \
				sizeof(((struct tern_ps_job *)NULL)->last)               \
	}
static const struct fields {
	size_t from, to;
} properties[] = {
	FIELDS(mode, ssp),
	FIELDS(steps, steps),
	FIELDS(seed, seed),
	FIELDS(slots, slots),
	FIELDS(workers, workers),
	FIELDS(batch, batch),
	FIELDS(records, data),
	FIELDS(optimizer, optimizer),
	FIELDS(rules, rule_count),
	FIELDS(clip_norm, clip_norm),
	FIELDS(arithmetic, arithmetic),
	FIELDS(params, param_count),
	FIELDS(server_count, server_count),
};

/* Lists the properties in which the jobs differ. tern_ps_job_differs() tells only the
 * first one, so it compares job A with a copy of itself in which one property is that of
 * job B, for one property after the other. */
static json_t *compare_jobs(const struct tern_ps_job *a, const struct tern_ps_job *b)
{
	json_t *list = json_array();

	for (size_t i = 0; i < TERN_ARRAY_SIZE(properties); i++) {
		const struct fields *f = &properties[i];
		struct tern_ps_job other = *a;
		struct tern_ps_text why;

		memcpy((char *)&other + f->from, (const char *)b + f->from,
			f->to - f->from);
		if (tern_ps_job_differs(a, &other, "B", &why))
			json_array_append_new(list, report_text(why.text));
	}
	return list;
}

/* ---- tensors ---- */

/* The tensor of that name. NULL: there is none. The search begins at number `at`, since
 * the tensors of most jobs are in the same order. */
static const struct tern_param *find(
	const struct tern_ps_job *job, uint32_t at, const char *name)
{
	for (uint32_t i = 0; i < job->param_count; i++) {
		const struct tern_param *p = &job->params[(at + i) % job->param_count];

		if (strcmp(p->name, name) == 0)
			return p;
	}
	return NULL;
}

/* A number as JSON, which has no infinity and no NaN: those are texts. */
static json_t *number_json(double value)
{
	if (isfinite(value))
		return json_real(value);
	return json_string(isnan(value) ? "nan" : "inf");
}

/* Compares the elements of a tensor by their bytes. */
static void compare_elements(json_t *one, const float *a, const float *b, uint64_t count)
{
	uint64_t differing = 0;
	double most = 0;

	for (uint64_t i = 0; i < count; i++) {
		double distance;

		if (memcmp(&a[i], &b[i], sizeof(a[i])) == 0)
			continue;
		differing++;
		distance = fabs((double)a[i] - (double)b[i]);
		if (isnan(distance) || distance > most)
			most = isnan(most) ? most : distance;
	}
	json_object_set_new(one, "elements", json_integer((json_int_t)count));
	json_object_set_new(one, "differing", json_integer((json_int_t)differing));
	if (differing)
		json_object_set_new(one, "largest_difference", number_json(most));
}

static bool is_same(const json_t *one)
{
	const json_t *differing = json_object_get(one, "differing");

	return differing && json_integer_value(differing) == 0;
}

/* Compares tensor number i of A with that of the same name in B. */
static json_t *compare_tensor(const struct side *a, const struct side *b, uint32_t i)
{
	const struct tern_param *p = &a->c.snapshot.job.params[i];
	const struct tern_param *q = find(&b->c.snapshot.job, i, p->name);
	json_t *one = json_pack("{so}", "name", report_text(p->name));
	char text[2 * sizeof(struct checkpoint_shape) + 40];

	if (!q) {
		json_object_set_new(one, "text", json_string("only A has it"));
	} else if (!tern_shape_equal(&p->shape, &q->shape)) {
		snprintf(text, sizeof(text), "A has %s, B %s",
			checkpoint_shape_text(&p->shape).text,
			checkpoint_shape_text(&q->shape).text);
		json_object_set_new(one, "text", json_string(text));
	} else {
		compare_elements(one, a->flat + p->first, b->flat + q->first, p->count);
	}
	return one;
}

static json_t *compare_tensors(const struct side *a, const struct side *b)
{
	const struct tern_ps_job *ours = &a->c.snapshot.job;
	const struct tern_ps_job *theirs = &b->c.snapshot.job;
	json_t *list = json_array();

	for (uint32_t i = 0; i < ours->param_count; i++)
		json_array_append_new(list, compare_tensor(a, b, i));
	for (uint32_t i = 0; i < theirs->param_count; i++)
		if (!find(ours, i, theirs->params[i].name))
			json_array_append_new(
				list, json_pack("{so ss}", "name",
					      report_text(theirs->params[i].name), "text",
					      "only B has it"));
	return list;
}

/* ---- the blobs ---- */

/* Says how the blobs of the jobs differ. */
static const char *compare_blobs(const struct tern_blob *a, const struct tern_blob *b)
{
	if (!a->step && !b->step)
		return "none";
	if (!a->step || !b->step)
		return a->step ? "only A has one" : "only B has one";
	if (a->bytes != b->bytes || (a->bytes && memcmp(a->data, b->data, a->bytes) != 0))
		return "the bytes differ";
	return a->step == b->step ? "the same" : "the same bytes, of different steps";
}

static bool is_same_blob(const char *text)
{
	return strcmp(text, "none") == 0 || strcmp(text, "the same") == 0;
}

/* ---- all of it ---- */

static json_t *side_json(const struct side *side)
{
	return json_pack("{ss so sI}", "snapshot",
		tern_snapshot_short_name(side->c.snapshot.id).text, "directory",
		report_text(side->c.directory), "step",
		(json_int_t)side->c.snapshot.id.step);
}

static json_t *compare(const struct side *a, const struct side *b)
{
	json_t *jobs = compare_jobs(&a->c.snapshot.job, &b->c.snapshot.job);
	json_t *tensors = compare_tensors(a, b);
	const char *blobs = compare_blobs(&a->c.snapshot.blob, &b->c.snapshot.blob);
	bool same = json_array_size(jobs) == 0 && is_same_blob(blobs) &&
		    a->c.snapshot.id.step == b->c.snapshot.id.step;

	for (size_t i = 0; i < json_array_size(tensors); i++)
		same = same && is_same(json_array_get(tensors, i));
	return json_pack("{sb so so so ss so}", "same", same, "a", side_json(a), "b",
		side_json(b), "job", jobs, "blob", blobs, "tensors", tensors);
}

static void print_tensor(struct output *out, const json_t *one)
{
	const char *name = json_string_value(json_object_get(one, "name"));
	const char *text = json_string_value(json_object_get(one, "text"));
	const json_t *most = json_object_get(one, "largest_difference");
	char number[32];

	if (text || is_same(one)) {
		output_line(out, "%s: %s", name, text ? text : "the same");
		return;
	}
	if (json_is_real(most))
		snprintf(number, sizeof(number), "%g", json_real_value(most));
	else
		snprintf(number, sizeof(number), "%s", json_string_value(most));
	output_line(out, "%s: %lld of %lld elements differ, by %s at most", name,
		json_integer_value(json_object_get(one, "differing")),
		json_integer_value(json_object_get(one, "elements")), number);
}

static void print(struct output *out, const json_t *all)
{
	static const char *const sides[][2] = {{"a", "A"}, {"b", "B"}};
	const json_t *jobs = json_object_get(all, "job");
	const json_t *tensors = json_object_get(all, "tensors");

	for (size_t i = 0; i < TERN_ARRAY_SIZE(sides); i++) {
		const json_t *side = json_object_get(all, sides[i][0]);

		output_line(out, "%s: %s in %.300s", sides[i][1],
			json_string_value(json_object_get(side, "snapshot")),
			json_string_value(json_object_get(side, "directory")));
	}
	if (json_array_size(jobs) == 0)
		output_line(out, "the jobs: the same");
	else
		output_line(out, "the jobs differ (\"the job\" is that of A):");
	for (size_t i = 0; i < json_array_size(jobs); i++)
		output_line(out, "  %s", json_string_value(json_array_get(jobs, i)));
	if (strcmp(json_string_value(json_object_get(all, "blob")), "none") != 0)
		output_line(out, "the blob: %s",
			json_string_value(json_object_get(all, "blob")));
	for (size_t i = 0; i < json_array_size(tensors); i++)
		print_tensor(out, json_array_get(tensors, i));
}

static int open_side(const char *path, struct side *side, struct message *error)
{
	int r = checkpoint_open(path, &side->c, error);

	if (r < 0)
		return r;
	side->flat = checkpoint_read_params(&side->c, error);
	return side->flat ? 0 : -1;
}

static void close_side(struct side *side)
{
	free(side->flat);
	checkpoint_close(&side->c);
}

int checkpoint_diff(struct checkpoint_call *call)
{
	struct side a = {0}, b = {0};
	struct message error;
	json_t *all;
	int code;

	if (open_side(call->paths[0], &a, &error) < 0 ||
		open_side(call->paths[1], &b, &error) < 0) {
		code = command_refuse(&checkpoint_command, "%s", error.text);
	} else {
		all = compare(&a, &b);
		code = json_is_true(json_object_get(all, "same")) ? EXIT_OK : EXIT_JOB;
		print(&call->out, all);
		if (call->out.json)
			output_json(all);
		else
			json_decref(all);
	}
	close_side(&a);
	close_side(&b);
	return code;
}
