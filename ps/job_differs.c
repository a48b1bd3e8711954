/* SPDX-License-Identifier: Apache-2.0 */
/* Says in which property two jobs differ, with both values. */
#include "ps/job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "ps/shown.h"

void tern_ps_print_shape(const struct tern_shape *shape, char *out, size_t size)
{
	size_t n = (size_t)snprintf(out, size, "%s[", tern_dtype_name(shape->dtype));

	for (uint32_t i = 0; i < shape->rank && n < size; i++)
		n += (size_t)snprintf(out + n, size - n, "%s%llu", i ? "," : "",
			(unsigned long long)shape->dims[i]);
	if (n < size)
		snprintf(out + n, size - n, "]");
}

void tern_ps_print_number(double value, char *out, size_t size)
{
	bool narrow = (double)(float)value == value;

	for (int digits = 1; digits <= 17; digits++) {
		double read;

		snprintf(out, size, "%.*g", digits, value);
		read = strtod(out, NULL);
		if (narrow ? (float)read == (float)value : read == value)
			return;
	}
}

static bool differ(struct tern_ps_text *why, const char *who, const char *what,
	double ours, double theirs)
{
	char our_text[32], their_text[32];

	if (ours == theirs)
		return false;
	tern_ps_print_number(ours, our_text, sizeof(our_text));
	tern_ps_print_number(theirs, their_text, sizeof(their_text));
	snprintf(why->text, sizeof(why->text), "%s: %s has %s, the job %s", what, who,
		their_text, our_text);
	return true;
}

static bool differ_int(struct tern_ps_text *why, const char *who, const char *what,
	uint64_t ours, uint64_t theirs)
{
	if (ours == theirs)
		return false;
	snprintf(why->text, sizeof(why->text), "%s: %s has %llu, the job %llu", what, who,
		(unsigned long long)theirs, (unsigned long long)ours);
	return true;
}

static bool data_differ(const struct tern_ps_job *a, const struct tern_ps_job *b,
	const char *who, struct tern_ps_text *why)
{
	if (differ_int(why, who, "records to train on", a->records, b->records))
		return true;
	if (a->data == b->data)
		return false;
	snprintf(why->text, sizeof(why->text),
		"data: %s has %s (digest %016llx, the job's %016llx)", who,
		a->records ? "as many records to train on as the job, but not the same "
			     "ones"
			   : "other data than the job",
		(unsigned long long)b->data, (unsigned long long)a->data);
	return true;
}

/* Prints how a tensor is started, to be read after "starts it". */
static void print_init(const struct tern_param *p, char *out, size_t size)
{
	char a[24], b[24];

	tern_ps_print_number((double)p->a, a, sizeof(a));
	tern_ps_print_number((double)p->b, b, sizeof(b));
	switch (p->init) {
	case TERN_INIT_ZEROS:
		snprintf(out, size, "with zeros");
		return;
	case TERN_INIT_CONSTANT:
		snprintf(out, size, "with the constant %s", a);
		return;
	case TERN_INIT_UNIFORM:
		snprintf(out, size, "uniform in [%s, %s)", a, b);
		return;
	case TERN_INIT_NORMAL:
		snprintf(
			out, size, "normal with mean %s and standard deviation %s", a, b);
		return;
	case TERN_INIT_GIVEN:
		snprintf(out, size, "with given values (--init-from, or a program's), %s",
			p->digest ? "which must be those of all workers"
				  : "of the first worker that lives");
		return;
	}
}

/* Compares bits, since 0 and -0 are equal numbers. */
static bool inits_are_equal(const struct tern_param *p, const struct tern_param *q)
{
	unsigned arguments = tern_init_arguments(p->init);

	return p->init == q->init && p->digest == q->digest &&
	       (arguments < 1 || memcmp(&p->a, &q->a, sizeof(p->a)) == 0) &&
	       (arguments < 2 || memcmp(&p->b, &q->b, sizeof(p->b)) == 0);
}

/* Compares the types that a tensor has on the wire. */
static bool wire_differs(const struct tern_param *p, const struct tern_param *q,
	const char *who, struct tern_ps_text *why)
{
	bool pushes = p->push_bf16 != q->push_bf16;
	bool theirs = pushes ? q->push_bf16 : q->pull_bf16;

	if (!pushes && p->pull_bf16 == q->pull_bf16)
		return false;
	snprintf(why->text, sizeof(why->text), "tensor %s: %s %s it as %s, the job as %s",
		TERN_TENSOR_SHOWN(p->name), who, pushes ? "pushes" : "pulls",
		theirs ? "bf16" : "f32", theirs ? "f32" : "bf16");
	return true;
}

/* Compares two tensors of the same name. */
static bool param_differs(const struct tern_param *p, const struct tern_param *q,
	const char *who, struct tern_ps_text *why)
{
	char ours[100], theirs[100];

	if (!tern_shape_equal(&p->shape, &q->shape)) {
		tern_ps_print_shape(&p->shape, ours, sizeof(ours));
		tern_ps_print_shape(&q->shape, theirs, sizeof(theirs));
		snprintf(why->text, sizeof(why->text),
			"tensor %s: %s has the shape %s, the job %s",
			TERN_TENSOR_SHOWN(p->name), who, theirs, ours);
		return true;
	}
	if (p->rule != q->rule) {
		snprintf(why->text, sizeof(why->text),
			"tensor %s: %s gives it rule %u, the job rule %u",
			TERN_TENSOR_SHOWN(p->name), who, q->rule, p->rule);
		return true;
	}
	if (wire_differs(p, q, who, why))
		return true;
	if (inits_are_equal(p, q))
		return false;
	if (p->digest && q->digest) {
		snprintf(why->text, sizeof(why->text),
			"tensor %s: %s gives it other initial values than the job "
			"(digest %016llx, the job's %016llx): make them with the same "
			"seed (such as torch.manual_seed) or file (--init-from) on all "
			"workers, or set init_from_first",
			TERN_TENSOR_SHOWN(p->name), who, (unsigned long long)q->digest,
			(unsigned long long)p->digest);
		return true;
	}
	print_init(p, ours, sizeof(ours));
	print_init(q, theirs, sizeof(theirs));
	snprintf(why->text, sizeof(why->text), "tensor %s: %s starts it %s, the job %s",
		TERN_TENSOR_SHOWN(p->name), who, theirs, ours);
	return true;
}

static bool has_param(const struct tern_ps_job *job, const char *name)
{
	for (uint32_t i = 0; i < job->param_count; i++)
		if (strcmp(job->params[i].name, name) == 0)
			return true;
	return false;
}

/* Writes why the names of the jobs' tensors differ from number i on, where one of the
 * lists may end. */
static void tell_names(const struct tern_ps_job *a, const struct tern_ps_job *b,
	uint32_t i, const char *who, struct tern_ps_text *why)
{
	const char *ours = i < a->param_count ? a->params[i].name : NULL;
	const char *theirs = i < b->param_count ? b->params[i].name : NULL;

	if (ours && !has_param(b, ours))
		snprintf(why->text, sizeof(why->text),
			"tensor %s: the job has it, %s does not", TERN_TENSOR_SHOWN(ours),
			who);
	else if (theirs && !has_param(a, theirs))
		snprintf(why->text, sizeof(why->text),
			"tensor %s: %s has it, the job does not",
			TERN_TENSOR_SHOWN(theirs), who);
	else
		snprintf(why->text, sizeof(why->text),
			"tensor %s: number %u of the job, but %s has %s there: both must "
			"have the tensors in the same order",
			TERN_TENSOR_SHOWN(ours ? ours : "none"), i, who,
			TERN_TENSOR_SHOWN(theirs ? theirs : "none"));
}

static bool params_differ(const struct tern_ps_job *a, const struct tern_ps_job *b,
	const char *who, struct tern_ps_text *why)
{
	uint32_t count = TERN_MIN(a->param_count, b->param_count);

	for (uint32_t i = 0; i < count; i++) {
		const struct tern_param *p = &a->params[i], *q = &b->params[i];

		if (strcmp(p->name, q->name) != 0) {
			tell_names(a, b, i, who, why);
			return true;
		}
		if (param_differs(p, q, who, why))
			return true;
	}
	if (a->param_count == b->param_count)
		return false;
	tell_names(a, b, count, who, why);
	return true;
}

/* Prints a schedule as the option --schedule has it. */
static void print_schedule(const struct tern_schedule *s, char *out, size_t size)
{
	char factor[32];

	tern_ps_print_number(s->factor, factor, sizeof(factor));
	if (s->kind == TERN_SCHEDULE_CONSTANT)
		snprintf(out, size, "%s", tern_schedule_name(s->kind));
	else
		snprintf(out, size, "%s:%llu,%s", tern_schedule_name(s->kind),
			(unsigned long long)s->steps, factor);
}

static bool schedules_differ(const struct tern_schedule *a, const struct tern_schedule *b,
	const char *who, struct tern_ps_text *why)
{
	char ours[80], theirs[80];

	if (differ_int(why, who, "steps of warm-up", a->warmup, b->warmup))
		return true;
	if (a->kind == b->kind && a->steps == b->steps && a->factor == b->factor)
		return false;
	print_schedule(a, ours, sizeof(ours));
	print_schedule(b, theirs, sizeof(theirs));
	snprintf(why->text, sizeof(why->text),
		"schedule of the learning rate: %s has %s, the job %s", who, theirs,
		ours);
	return true;
}

static bool optimizers_differ(const struct tern_optimizer *a,
	const struct tern_optimizer *b, const char *who, struct tern_ps_text *why)
{
	if (differ(why, who, "learning rate", a->lr, b->lr))
		return true;
	for (unsigned i = 0; i < TERN_SETTING_COUNT; i++) {
		char words[32];

		snprintf(words, sizeof(words), "%s", tern_setting_name(i));
		for (char *at = words; (at = strchr(at, '_'));)
			*at = ' ';
		if (differ(why, who, words, tern_optimizer_value(a, i),
			    tern_optimizer_value(b, i)))
			return true;
	}
	return schedules_differ(&a->schedule, &b->schedule, who, why);
}

/* Puts the name of the first tensor that has this rule before the text. */
static void name_tensor_of(
	const struct tern_ps_job *job, uint32_t rule, struct tern_ps_text *why)
{
	for (uint32_t i = 0; i < job->param_count; i++)
		if (job->params[i].rule == rule) {
			tern_ps_name_tensor(why, &job->params[i]);
			return;
		}
}

static bool rules_differ(const struct tern_ps_job *a, const struct tern_ps_job *b,
	const char *who, struct tern_ps_text *why)
{
	if (differ_int(why, who, "number of rules", a->rule_count, b->rule_count))
		return true;
	for (uint32_t i = 0; i < a->rule_count; i++) {
		const struct tern_optimizer *p = &a->rules[i], *q = &b->rules[i];
		bool other = p->kind != q->kind;

		if (other)
			snprintf(why->text, sizeof(why->text),
				"rule: %s has %s, the job %s", who,
				tern_optimizer_name(q->kind),
				tern_optimizer_name(p->kind));
		if (other || optimizers_differ(p, q, who, why)) {
			name_tensor_of(a, i + 1, why);
			return true;
		}
	}
	return false;
}

/* True if the name is that of a built-in engine on a CPU (kernels/dispatch.c), which
 * --arithmetic chooses. The names that other programs give are free. */
static bool is_of_engine(const char *arithmetic)
{
	static const char *const names[] = {"portable ", "avx2 ", "avx512 "};
	bool found = false;

	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++)
		found = found || strncmp(arithmetic, names[i], strlen(names[i])) == 0;
	return found && strstr(arithmetic, " libm ");
}

static bool arithmetic_differs(const struct tern_ps_job *a, const struct tern_ps_job *b,
	const char *who, struct tern_ps_text *why)
{
	if (a->mode != TERN_MODE_SYNC || strcmp(a->arithmetic, b->arithmetic) == 0)
		return false;
	snprintf(why->text, sizeof(why->text),
		"arithmetic: %s has \"%s\", the job \"%s\": equal bits need equal "
		"arithmetic%s",
		who, b->arithmetic, a->arithmetic,
		is_of_engine(a->arithmetic) && is_of_engine(b->arithmetic)
			? " (or --arithmetic portable everywhere)"
			: "");
	return true;
}

bool tern_ps_job_differs(const struct tern_ps_job *a, const struct tern_ps_job *b,
	const char *who, struct tern_ps_text *why)
{
	const struct tern_optimizer *p = &a->optimizer, *q = &b->optimizer;

	if (a->mode != b->mode || a->ssp != b->ssp) {
		snprintf(why->text, sizeof(why->text), "mode: %s has %s, the job %s", who,
			tern_mode_text(b->mode, b->ssp).text,
			tern_mode_text(a->mode, a->ssp).text);
		return true;
	}
	if (p->kind != q->kind) {
		snprintf(why->text, sizeof(why->text), "optimizer: %s has %s, the job %s",
			who, tern_optimizer_name(q->kind), tern_optimizer_name(p->kind));
		return true;
	}
	return differ_int(why, who, "steps", a->steps, b->steps) ||
	       differ_int(why, who, "seed", a->seed, b->seed) ||
	       /* Compare this first: by default, the number of slots follows from the
	        * number of workers. */
	       differ_int(why, who, "workers", a->workers, b->workers) ||
	       differ_int(why, who, "slots", a->slots, b->slots) ||
	       differ_int(why, who, "batch", a->batch, b->batch) ||
	       differ_int(
		       why, who, "number of servers", a->server_count, b->server_count) ||
	       differ(why, who, "clip norm", a->clip_norm, b->clip_norm) ||
	       optimizers_differ(p, q, who, why) || rules_differ(a, b, who, why) ||
	       params_differ(a, b, who, why) || data_differ(a, b, who, why) ||
	       /* Compare this last: the arithmetic may name the whole model. */
	       arithmetic_differs(a, b, who, why);
}
