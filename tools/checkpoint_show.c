/* SPDX-License-Identifier: Apache-2.0 */
/* `tern checkpoint show`: what the manifest of a snapshot says. No part is read. */
#include "tools/checkpoint.h"

#include <stdio.h>

#include "ps/shown.h"
#include "tools/report.h"

struct line {
	char text[400];
};

static void add(struct line *line, const char *name, double value)
{
	size_t used = strlen(line->text);
	char number[32];

	tern_ps_print_number(value, number, sizeof(number));
	snprintf(line->text + used, sizeof(line->text) - used, ", %s %s", name, number);
}

/* "adam, lr 0.01, beta1 0.9, ..." */
static struct line optimizer_text(const struct tern_optimizer *o)
{
	const struct tern_schedule *s = &o->schedule;
	struct line line;

	snprintf(line.text, sizeof(line.text), "%s", tern_optimizer_name(o->kind));
	add(&line, "lr", (double)o->lr);
	for (unsigned i = 0; i < TERN_SETTING_COUNT; i++)
		if (tern_optimizer_has(o->kind, i))
			add(&line, tern_setting_name(i),
				(double)tern_optimizer_value(o, i));
	if (s->kind != TERN_SCHEDULE_CONSTANT) {
		size_t used = strlen(line.text);

		snprintf(line.text + used, sizeof(line.text) - used, ", schedule %s:%llu",
			tern_schedule_name(s->kind), (unsigned long long)s->steps);
		add(&line, "factor", s->factor);
	}
	if (s->warmup)
		add(&line, "warmup", (double)s->warmup);
	return line;
}

static void print_job(struct output *out, const struct tern_snapshot *s)
{
	const struct tern_ps_job *job = &s->job;

	output_line(out, "step        %llu of %llu", (unsigned long long)s->id.step,
		(unsigned long long)job->steps);
	output_line(out, "mode        %s", tern_mode_text(job->mode, job->ssp).text);
	output_line(out, "slots       %u", job->slots);
	output_line(out, "batch       %u", job->batch);
	output_line(out, "seed        %llu", (unsigned long long)job->seed);
	output_line(out, "records     %llu", (unsigned long long)job->records);
	output_line(out, "optimizer   %s", optimizer_text(&job->optimizer).text);
	for (uint32_t i = 0; i < job->rule_count; i++)
		output_line(
			out, "rule %-6u %s", i + 1, optimizer_text(&job->rules[i]).text);
	if (job->clip_norm > 0) {
		char norm[32];

		tern_ps_print_number(job->clip_norm, norm, sizeof(norm));
		output_line(out, "clip norm   %s", norm);
	}
	output_line(out, "arithmetic  %s", job->arithmetic);
	output_line(out, "workers     %u", job->workers);
	output_line(out, "servers     %u", job->server_count);
}

/* Async: how many steps of each worker the snapshot has. */
static void print_applied(struct output *out, const struct tern_snapshot *s)
{
	if (!s->least)
		return;
	output_line(out, "applied     steps of each worker");
	for (uint32_t i = 0; i < s->job.workers; i++) {
		char torn[48] = "";

		if (s->most[i] > s->least[i])
			snprintf(torn, sizeof(torn), " to %llu, torn",
				(unsigned long long)s->most[i]);
		output_line(out, "  worker %-4u %llu%s", i,
			(unsigned long long)s->least[i], torn);
	}
}

static void print(struct output *out, const struct checkpoint *c)
{
	const struct tern_snapshot *s = &c->snapshot;

	output_line(out, "snapshot    %s in %.300s", tern_snapshot_short_name(s->id).text,
		c->directory);
	print_job(out, s);
	print_applied(out, s);
	if (s->blob.step)
		output_line(out, "blob        %zu bytes, of step %llu", s->blob.bytes,
			(unsigned long long)s->blob.step);
	output_line(out, "tensors     %u, with %llu elements", s->job.param_count,
		(unsigned long long)s->job.element_count);
	for (uint32_t i = 0; i < s->job.param_count; i++) {
		const struct tern_param *p = &s->job.params[i];
		char rule[24] = "";

		if (p->rule)
			snprintf(rule, sizeof(rule), ", rule %u", p->rule);
		output_line(out, "  %s  %s%s", p->name,
			checkpoint_shape_text(&p->shape).text, rule);
	}
	output_line(out, "parts       %u, with %llu bytes", s->part_count,
		(unsigned long long)checkpoint_bytes(s));
	for (uint32_t i = 0; i < s->part_count; i++)
		output_line(out, "  %s  %llu bytes, %u chunk%s",
			tern_snapshot_part_name(s->id, i).text,
			(unsigned long long)s->parts[i].bytes, s->parts[i].chunk_count,
			s->parts[i].chunk_count == 1 ? "" : "s");
}

/* The tensors are beside the job, and not in it; "servers" is their number. */
static json_t *job_json(const struct tern_ps_job *job)
{
	json_t *all = tern_ps_job_json(job);

	json_object_del(all, "params");
	json_object_set_new(all, "servers", json_integer(job->server_count));
	return all;
}

static json_t *tensors_json(const struct tern_ps_job *job)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < job->param_count; i++) {
		const struct tern_param *p = &job->params[i];
		json_t *shape = json_array();

		for (uint32_t j = 0; j < p->shape.rank; j++)
			json_array_append_new(
				shape, json_integer((json_int_t)p->shape.dims[j]));
		json_array_append_new(list,
			json_pack("{so so ss sI}", "name", report_text(p->name), "shape",
				shape, "dtype", tern_dtype_name(p->shape.dtype), "rule",
				(json_int_t)p->rule));
	}
	return list;
}

static json_t *parts_json(const struct tern_snapshot *s)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < s->part_count; i++)
		json_array_append_new(
			list, json_pack("{ss sI sI}", "file",
				      tern_snapshot_part_name(s->id, i).text, "bytes",
				      (json_int_t)s->parts[i].bytes, "chunks",
				      (json_int_t)s->parts[i].chunk_count));
	return list;
}

/* NULL in sync mode. */
static json_t *applied_json(const struct tern_snapshot *s)
{
	json_t *list = s->least ? json_array() : NULL;

	for (uint32_t i = 0; list && i < s->job.workers; i++)
		json_array_append_new(list, json_pack("[I, I]", (json_int_t)s->least[i],
						    (json_int_t)s->most[i]));
	return list;
}

/* NULL: the snapshot has no blob. */
static json_t *blob_json(const struct tern_blob *blob)
{
	return blob->step ? json_pack("{sI sI}", "step", (json_int_t)blob->step, "bytes",
				    (json_int_t)blob->bytes)
			  : NULL;
}

int checkpoint_show(struct checkpoint_call *call)
{
	struct checkpoint c;
	const struct tern_snapshot *s = &c.snapshot;
	struct message error;

	if (checkpoint_open(call->paths[0], &c, &error) < 0)
		return command_refuse(&checkpoint_command, "%s", error.text);
	if (call->out.json)
		output_json(json_pack("{ss so sI so so so so* so*}", "snapshot",
			tern_snapshot_short_name(s->id).text, "directory",
			report_text(c.directory), "step", (json_int_t)s->id.step, "job",
			job_json(&s->job), "tensors", tensors_json(&s->job), "parts",
			parts_json(s), "applied", applied_json(s), "blob",
			blob_json(&s->blob)));
	else
		print(&call->out, &c);
	checkpoint_close(&c);
	return EXIT_OK;
}
