/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a session before the steps: the tensors and the job of a program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "client/session_state.h"
#include "ps/given.h"

/* ---- tensors ---- */

/* Reads an update rule. A field of 0 leaves the rule's default. */
static int read_rule(struct tern_session *s, const struct tern_rule_opts *rule,
	struct tern_optimizer *o)
{
	const char *name = rule->name ? rule->name : "sgd";
	const struct {
		double from;
		float *to;
	} fields[] = {{rule->lr, &o->lr}, {rule->momentum, &o->momentum},
		{rule->beta1, &o->beta1}, {rule->beta2, &o->beta2},
		{rule->epsilon, &o->epsilon}, {rule->weight_decay, &o->weight_decay},
		{rule->initial_accumulator, &o->initial_accumulator}};

	if (tern_optimizer_parse(name, o) < 0)
		return session_complain(s, -EINVAL, "rule %.60s: expected %s", name,
			tern_optimizer_names());
	for (size_t i = 0; i < TERN_ARRAY_SIZE(fields); i++) {
		if (fields[i].from == 0)
			continue;
		*fields[i].to = fields[i].from < 0 ? 0 : (float)fields[i].from;
		if (fields[i].from > 0 && *fields[i].to == 0)
			return session_complain(s, -EINVAL,
				"rule %s: %g is too small for a float32", name,
				fields[i].from);
	}
	if (rule->lr < 0 || (o->kind == TERN_OPT_MEAN && rule->lr != 0))
		return session_complain(s, -EINVAL, "rule %s: lr: expected %s, got %g",
			name, rule->lr < 0 ? "more than 0" : "none", rule->lr);
	return 0;
}

/* Makes room for one more tensor. */
static int grow(struct tern_session *s)
{
	uint32_t room = TERN_MAX(16u, 2 * s->tensor_room);
	struct tern_param *params;
	struct tensor_rule *rules;
	const float **values;

	if (s->job.param_count < s->tensor_room)
		return 0;
	params = realloc(s->job.params, room * sizeof(*params));
	if (!params)
		return -ENOMEM;
	s->job.params = params;
	rules = realloc(s->rules_of, room * sizeof(*rules));
	if (!rules)
		return -ENOMEM;
	s->rules_of = rules;
	values = realloc(s->values_of, room * sizeof(*values));
	if (!values)
		return -ENOMEM;
	s->values_of = values;
	s->tensor_room = room;
	return 0;
}

static bool is_wire_type(enum tern_dtype dtype)
{
	return dtype == TERN_DTYPE_NONE || dtype == TERN_F32 || dtype == TERN_BF16;
}

int tern_session_tensor_sized(struct tern_session *s, const struct tern_tensor_opts *opts,
	size_t opts_bytes, uint32_t *id)
{
	struct tern_tensor_opts o;
	struct tensor_rule own = {.given = false};
	char *name;
	int r = tern_read_sized(&o, sizeof(o), opts, opts_bytes);

	if (r < 0)
		return session_complain(
			s, r, "a tensor has an option that this library lacks");
	if (s->started)
		return session_complain(s, -EALREADY,
			"a tensor cannot be declared after the session has started");
	if (!o.name || !*o.name || strlen(o.name) > TERN_TENSOR_NAME_MAX)
		return session_complain(s, -EINVAL,
			"the name of tensor %u: expected 1 to %u bytes, got %s",
			s->job.param_count, TERN_TENSOR_NAME_MAX,
			o.name && *o.name ? "more" : "none");
	if (o.shape.rank > TERN_RANK_MAX)
		return session_complain(s, -EINVAL,
			"tensor %s: expected at most %u dimensions, got %u", o.name,
			TERN_RANK_MAX, o.shape.rank);
	if (o.shape.dtype != TERN_F32)
		return session_complain(s, -EINVAL,
			"tensor %s: expected dtype f32, got %s", o.name,
			tern_dtype_name(o.shape.dtype));
	if (!is_wire_type(o.push) || !is_wire_type(o.pull))
		return session_complain(s, -EINVAL,
			"tensor %s: %s: expected f32 or bf16, got %s", o.name,
			is_wire_type(o.push) ? "pull" : "push",
			tern_dtype_name(is_wire_type(o.push) ? o.pull : o.push));
	if ((o.init == TERN_INIT_GIVEN) != (o.values != NULL))
		return session_complain(s, -EINVAL, "tensor %s: expected %s", o.name,
			o.values ? "no values, as its init is not TERN_INIT_GIVEN"
				 : "values, as its init is TERN_INIT_GIVEN");
	if (s->job.param_count == TERN_PARAMS_MAX)
		return session_complain(s, -E2BIG,
			"tensor %s: a job has at most %u tensors", o.name,
			TERN_PARAMS_MAX);
	own.given = o.rule;
	r = o.rule ? read_rule(s, o.rule, &own.rule) : 0;
	if (r < 0)
		return r;
	name = grow(s) < 0 ? NULL : strdup(o.name);
	if (!name)
		return session_complain(s, -ENOMEM, "no memory for tensor %s", o.name);
	*id = s->job.param_count++;
	s->rules_of[*id] = own;
	s->values_of[*id] = o.values;
	s->job.params[*id] = (struct tern_param){.name = name,
		.shape = o.shape,
		.first = *id, /* until the tensors are sorted */
		.init = o.init,
		.a = (float)o.a,
		.b = (float)o.b,
		.push_bf16 = o.push == TERN_BF16,
		.pull_bf16 = o.pull == TERN_BF16};
	return 0;
}

/* ---- the job ---- */

static int read_schedule(struct tern_session *s, const struct tern_schedule_opts *o)
{
	const char *name = o->name ? o->name : "constant";
	enum tern_schedule_kind kind = TERN_SCHEDULE_CONSTANT;
	bool has_end;

	while (kind < TERN_SCHEDULE_COUNT && strcmp(name, tern_schedule_name(kind)) != 0)
		kind++;
	if (kind == TERN_SCHEDULE_COUNT)
		return session_complain(s, -EINVAL,
			"schedule %.60s: expected constant, step, linear or cosine",
			name);
	has_end = kind == TERN_SCHEDULE_LINEAR || kind == TERN_SCHEDULE_COSINE;
	s->job.optimizer.schedule = (struct tern_schedule){.kind = kind,
		.warmup = o->warmup,
		.steps = has_end && o->steps == 0 ? s->job.steps : o->steps,
		.factor = o->factor};
	return 0;
}

/* Whether the tensor ends within a cache line if it begins at one. */
static bool is_odd(const struct tern_param *p)
{
	uint64_t bytes;

	return tern_shape_bytes(&p->shape, &bytes) == 0 && bytes % 64 != 0;
}

static int by_name(const void *a, const void *b)
{
	const struct tern_param *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* Tensors of whole cache lines come first, so that each of them begins at one: programs
 * compute with them in place (tern_slot_map()). Of these, and of the others, those with the
 * same types on the wire are neighbours, because a chunk has one type. */
static int by_place(const void *a, const void *b)
{
	const struct tern_param *x = a, *y = b;
	int order = is_odd(x) - is_odd(y);

	if (order == 0)
		order = x->push_bf16 - y->push_bf16;
	if (order == 0)
		order = x->pull_bf16 - y->pull_bf16;
	return order ? order : by_name(a, b);
}

/* Compares two rules, whose schedules are the same. */
static bool is_same(const struct tern_optimizer *a, const struct tern_optimizer *b)
{
	for (unsigned i = 0; i < TERN_SETTING_COUNT; i++)
		if (tern_optimizer_value(a, i) != tern_optimizer_value(b, i))
			return false;
	return a->kind == b->kind && a->lr == b->lr;
}

/* Gives the tensor's rule its number in the job. Equal rules have one number. The tensors
 * are visited in their order in the job, so all workers count alike. */
static int number_rule(struct tern_session *s, struct tern_param *p)
{
	struct tensor_rule *own = &s->rules_of[p->first];
	uint32_t i = 0;

	if (!own->given)
		return 0;
	if (own->rule.kind != TERN_OPT_MEAN)
		own->rule.schedule = s->job.optimizer.schedule;
	while (i < s->job.rule_count && !is_same(&s->job.rules[i], &own->rule))
		i++;
	if (i == TERN_JOB_RULES_MAX)
		return session_complain(s, -EINVAL,
			"tensor %s: a job has at most %u different rules of tensors",
			p->name, TERN_JOB_RULES_MAX);
	s->job.rules[i] = own->rule;
	s->job.rule_count = TERN_MAX(s->job.rule_count, i + 1);
	p->rule = i + 1;
	return 0;
}

/* Brings the tensors into an order that does not depend on how they were declared, and lays
 * them out one after the other. */
static int lay_out(struct tern_session *s)
{
	uint32_t count = s->job.param_count;

	s->params_of = calloc(count + 1u, sizeof(*s->params_of));
	s->slot.pushed = calloc(count + 1u, sizeof(*s->slot.pushed));
	s->verify.digests = calloc(count + 1u, sizeof(*s->verify.digests));
	if (!s->params_of || !s->slot.pushed || !s->verify.digests)
		return session_complain(s, -ENOMEM, "no memory for %u tensors", count);
	if (count)
		qsort(s->job.params, count, sizeof(*s->job.params), by_name);
	for (uint32_t i = 1; i < count; i++)
		if (strcmp(s->job.params[i - 1].name, s->job.params[i].name) == 0)
			return session_complain(s, -EINVAL,
				"two tensors have the name %s", s->job.params[i].name);
	if (count)
		qsort(s->job.params, count, sizeof(*s->job.params), by_place);
	for (uint32_t i = 0; i < count; i++)
		s->params_of[s->job.params[i].first] = i;
	for (uint32_t i = 0; i < count; i++)
		if (number_rule(s, &s->job.params[i]) < 0)
			return -EINVAL;
	return 0;
}

/* Checks the job as a server does, by writing it as the message that a server gets and
 * reading that. The job is then as the server reads it. */
static int check_job(struct tern_session *s)
{
	char *text = tern_ps_job_encode(&s->job);
	struct tern_ps_text why = {""};
	struct tern_ps_job read;
	int r = text ? tern_ps_job_decode(text, strlen(text), &read, &why) : -ENOMEM;

	free(text);
	if (s->job.param_count == 0)
		return session_complain(s, -EINVAL,
			"the job has no tensors: declare them before the start");
	if (r < 0)
		return session_complain(s, r, "the job is impossible: %s",
			*why.text ? why.text : tern_status_text(r));
	session_forget_tensors(s);
	tern_ps_job_fini(&s->job);
	s->job = read;
	s->settled = true;
	return 0;
}

/* The number of slots that are computed twice. */
static uint64_t slots_to_verify(const struct tern_job_opts *o)
{
	if (o->mode != TERN_TRAIN_SYNC || o->verify_first < 0)
		return 0;
	return o->verify_first ? (uint64_t)o->verify_first : 1;
}

/* Sets *given to what struct tern_worker_opts takes, from malloc(). */
static int read_values(
	struct tern_session *s, const struct tern_job_opts *o, const float ***given)
{
	struct tern_ps_text why;

	*given = calloc(s->job.param_count, sizeof(**given));
	if (!*given)
		return session_complain(s, -ENOMEM, "no memory for the given values");
	for (uint32_t id = 0; id < s->job.param_count; id++)
		(*given)[s->params_of[id]] = s->values_of[id];
	if (tern_given_describe(&s->job, *given, !o->init_from_first, &why) < 0)
		return session_complain(s, -EINVAL, "%s", why.text);
	return 0;
}

/* The worker's number may be beyond those of the job, to which it is added then (server/grow.c), if
 * the session can go back with its job. */
static int read_index(struct tern_session *s, const struct tern_job_opts *o)
{
	bool grows = o->mode == TERN_TRAIN_SYNC && s->opts.server_wait_s > 0;

	s->index = o->index;
	if (o->index < (grows ? TERN_WORKERS_MAX : o->workers))
		return 0;
	if (grows)
		return session_complain(s, -EINVAL,
			"index %u: expected an index from 0 to %u", o->index,
			TERN_WORKERS_MAX - 1);
	return session_complain(s, -EINVAL,
		"index %u of %u workers: expected an index from 0 to the number of "
		"workers less one; only a job in sync mode gets more, from workers with "
		"a server_wait above 0",
		o->index, o->workers);
}

static int read_job(struct tern_session *s, const struct tern_job_opts *o)
{
	const char *arithmetic = o->arithmetic ? o->arithmetic : "";
	struct tern_ps_job *job = &s->job;
	int r;

	if (o->mode > TERN_TRAIN_SSP)
		return session_complain(s, -EINVAL,
			"mode %u: expected sync (0), async (1) or ssp (2)",
			(unsigned)o->mode);
	if (o->staleness > TERN_SSP_MAX || (o->staleness && o->mode != TERN_TRAIN_SSP))
		return session_complain(s, -EINVAL,
			"staleness %llu: expected a number up to 2^40 in mode ssp, and 0 "
			"in other modes",
			(unsigned long long)o->staleness);
	job->mode = o->mode == TERN_TRAIN_SYNC ? TERN_MODE_SYNC : TERN_MODE_ASYNC;
	job->ssp = o->mode == TERN_TRAIN_SSP ? o->staleness + 1 : 0;
	job->steps = o->steps;
	job->seed = o->seed;
	job->workers = o->workers;
	job->slots = o->slots ? o->slots : o->workers;
	job->batch = o->records ? o->batch : 1;
	job->records = o->records;
	job->data = o->data;
	job->clip_norm = o->clip_norm;
	s->early = o->early;
	s->verify.left = slots_to_verify(o);
	s->eval_every = o->eval_every > 0 ? (uint64_t)o->eval_every : 0;
	r = read_index(s, o);
	if (r < 0)
		return r;
	if (strlen(arithmetic) >= sizeof(job->arithmetic))
		return session_complain(s, -EINVAL,
			"arithmetic: expected at most %zu bytes",
			sizeof(job->arithmetic) - 1);
	strcpy(job->arithmetic, arithmetic);
	r = read_rule(s, &o->rule, &job->optimizer);
	if (r == 0 && !tern_optimizer_is_for_models(job->optimizer.kind))
		return session_complain(s, -EINVAL,
			"rule %s: expected a rule of a tensor only", o->rule.name);
	return r < 0 ? r : read_schedule(s, &o->schedule);
}

int tern_session_start_sized(
	struct tern_session *s, const struct tern_job_opts *opts, size_t opts_bytes)
{
	struct tern_job_opts o;
	const float **given = NULL;
	int r = tern_read_sized(&o, sizeof(o), opts, opts_bytes);

	if (r < 0)
		return session_complain(
			s, r, "the job has an option that this library lacks");
	if (s->started)
		return session_complain(s, -EALREADY, "the session has started already");
	s->started = true;
	r = read_job(s, &o);
	if (r == 0)
		r = lay_out(s);
	if (r == 0)
		r = check_job(s);
	if (r == 0)
		r = read_values(s, &o, &given);
	if (r == 0)
		r = session_back_init(s, given);
	if (r == 0)
		r = session_join(s, given, NULL);
	free(given);
	s->ended = r < 0;
	s->status = r;
	if (r < 0)
		snprintf(s->end_text, sizeof(s->end_text), "%.511s", s->text);
	return r;
}
