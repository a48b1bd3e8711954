/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session is a computer (compute.h) for the worker, whose slots and final parameters it
 * passes on to the program, tensor by tensor. It checks what the program says: the worker
 * relies on it.
 */
#include "client/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/sized.h"
#include "client/compute.h"
#include "client/verify.h"
#include "client/worker.h"
#include "ps/given.h"

#define SEED_STREAM 0x736c6f74ull /* "slot" */

struct tern_slot {
	struct tern_session *session;
	struct tern_work *work; /* NULL: the worker has begun no slot */
	bool held;              /* the program holds the slot */
	bool revoked;
	bool *pushed;     /* one entry per tensor, by id */
	uint32_t pushing; /* number of tensors that are reserved */
};

struct tern_session {
	struct tern_session_opts opts;
	struct tern_context *ctx;
	struct tern_computer computer;
	struct tern_worker *worker; /* NULL: not started */
	/* The tensors in job.params are in the order of their names from the start on, so
	 * that workers agree however they declare them; params_of[id] is the tensor's
	 * place there. */
	struct tern_ps_job job;
	uint32_t *params_of, tensor_room;
	/* By id: the rule of a tensor that has one of its own. */
	struct tensor_rule {
		bool given;
		struct tern_optimizer rule;
	} * rules_of;
	/* By id: the program's values of a given tensor, until the start. */
	const float **values_of;
	struct tern_slot slot;
	struct verify verify; /* the slots that are computed twice */
	uint32_t index;       /* which worker this is */
	/* All steps are done: these are the parameters. */
	const struct tern_buf *final;
	struct tern_evaluation *evaluation; /* this worker is the finisher */
	/* The job is complete, and its memory is its own; before that, the tensors' names
	 * are the session's. */
	bool settled;
	bool started, ended;
	int status; /* if `ended` */
	char end_text[512];
	char text[600]; /* what went wrong in the last call that failed */
};

static int complain(struct tern_session *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Sets the text of the session. Returns `status`. */
static int complain(struct tern_session *s, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->text, sizeof(s->text), fmt, ap);
	va_end(ap);
	return status;
}

static void tell(struct tern_session *s)
{
	if (s->opts.event)
		s->opts.event(s->opts.arg);
}

static struct tern_session *of_computer(struct tern_computer *computer)
{
	return tern_container_of(computer, struct tern_session, computer);
}

/* ---- what the worker says ---- */

/* Offers the slot to the program, which has pushed nothing of it. */
static void offer(struct tern_session *s)
{
	s->slot.revoked = false;
	memset(s->slot.pushed, 0, s->job.param_count * sizeof(*s->slot.pushed));
	tell(s);
}

static void on_begin(struct tern_computer *computer, struct tern_work *work)
{
	struct tern_session *s = of_computer(computer);

	tern_assert(!s->slot.work);
	s->slot.work = work;
	verify_begin(&s->verify);
	offer(s);
}

static void on_revoke(struct tern_computer *computer, struct tern_work *work)
{
	struct tern_session *s = of_computer(computer);

	tern_assert(s->slot.work == work);
	if (s->slot.held) {
		s->slot.revoked = true;
	} else {
		s->slot.work = NULL;
		tern_work_end(work, 0);
	}
	tell(s);
}

static void on_complete(struct tern_computer *computer, const struct tern_buf *params)
{
	struct tern_session *s = of_computer(computer);

	s->final = params;
	tell(s);
}

static void on_evaluate(
	struct tern_computer *computer, struct tern_evaluation *evaluation)
{
	struct tern_session *s = of_computer(computer);

	s->final = evaluation->params;
	s->evaluation = evaluation;
	tell(s);
}

static void note(void *arg, const char *text)
{
	struct tern_session *s = arg;

	if (s->opts.note)
		s->opts.note(s->opts.arg, text);
}

static void lost(void *arg, uint32_t worker, const char *text)
{
	(void)worker;
	note(arg, text);
}

/* The status with which the session ends, which must not be one that has another meaning
 * for the callers of this file. */
static int end_status(int status)
{
	switch (status) {
	case -ENODATA: /* no host has the name of a server */
		return -EHOSTUNREACH;
	case -EAGAIN:
	case -EBUSY:
		return -EIO;
	default:
		return status;
	}
}

static void ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	struct tern_session *s = arg;

	(void)results;
	s->ended = true;
	s->status = end_status(status);
	snprintf(s->end_text, sizeof(s->end_text), "%s", text);
	tell(s);
}

/* ---- before the start ---- */

/* Reads the list of addresses of `join` into the job. An address without "FABRIC://" gets
 * "auto://". */
static int read_servers(struct tern_ps_job *job, const char *join)
{
	const size_t room = sizeof(job->servers[0]);
	size_t count = 1;

	for (const char *p = join; *p; p++)
		count += *p == ',';
	if (count > TERN_SERVERS_MAX)
		return -EINVAL;
	job->servers = calloc(count, room);
	if (!job->servers)
		return -ENOMEM;
	for (const char *p = join; job->server_count < count; p++) {
		size_t n = strcspn(p, ",");
		const char *fabric = memmem(p, n, "://", 3) ? "" : "auto://";

		if (n == 0 || (size_t)snprintf(job->servers[job->server_count++], room,
				      "%s%.*s", fabric, (int)n, p) >= room)
			return -EINVAL;
		p += n;
	}
	return 0;
}

int tern_session_new_sized(struct tern_context *ctx, const struct tern_session_opts *opts,
	size_t opts_bytes, struct tern_session **out)
{
	static const struct tern_computer_ops ops = {.begin = on_begin,
		.revoke = on_revoke,
		.complete = on_complete,
		.evaluate = on_evaluate};
	struct tern_session *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	r = tern_read_sized(&s->opts, sizeof(s->opts), opts, opts_bytes);
	if (r == 0)
		r = s->opts.join ? read_servers(&s->job, s->opts.join) : -EINVAL;
	if (r < 0) {
		tern_session_free(s);
		return r;
	}
	s->opts.join = NULL; /* the caller's */
	s->ctx = ctx;
	s->computer.ops = &ops;
	s->slot.session = s;
	*out = s;
	return 0;
}

/* Frees the names of the tensors that the program has declared. */
static void forget_tensors(struct tern_session *s)
{
	for (uint32_t i = 0; i < s->job.param_count; i++)
		free((char *)(uintptr_t)s->job.params[i].name);
}

void tern_session_free(struct tern_session *s)
{
	if (!s)
		return;
	tern_worker_free(s->worker);
	if (!s->settled)
		forget_tensors(s);
	tern_ps_job_fini(&s->job);
	free(s->params_of);
	free(s->rules_of);
	free(s->values_of);
	free(s->slot.pushed);
	free(s->verify.digests);
	free(s);
}

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
		return complain(s, -EINVAL, "rule %.60s: expected %s", name,
			tern_optimizer_names());
	for (size_t i = 0; i < TERN_ARRAY_SIZE(fields); i++) {
		if (fields[i].from == 0)
			continue;
		*fields[i].to = fields[i].from < 0 ? 0 : (float)fields[i].from;
		if (fields[i].from > 0 && *fields[i].to == 0)
			return complain(s, -EINVAL,
				"rule %s: %g is too small for a float32", name,
				fields[i].from);
	}
	if (rule->lr < 0 || (o->kind == TERN_OPT_MEAN && rule->lr != 0))
		return complain(s, -EINVAL, "rule %s: lr: expected %s, got %g", name,
			rule->lr < 0 ? "more than 0" : "none", rule->lr);
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

int tern_session_tensor_sized(struct tern_session *s, const struct tern_tensor_opts *opts,
	size_t opts_bytes, uint32_t *id)
{
	struct tern_tensor_opts o;
	struct tensor_rule own = {.given = false};
	char *name;
	int r = tern_read_sized(&o, sizeof(o), opts, opts_bytes);

	if (r < 0)
		return complain(s, r, "a tensor has an option that this library lacks");
	if (s->started)
		return complain(s, -EALREADY,
			"a tensor cannot be declared after the session has started");
	if (!o.name || !*o.name || strlen(o.name) > TERN_TENSOR_NAME_MAX)
		return complain(s, -EINVAL,
			"the name of tensor %u: expected 1 to %u bytes, got %s",
			s->job.param_count, TERN_TENSOR_NAME_MAX,
			o.name && *o.name ? "more" : "none");
	if (o.shape.rank > TERN_RANK_MAX)
		return complain(s, -EINVAL,
			"tensor %s: expected at most %u dimensions, got %u", o.name,
			TERN_RANK_MAX, o.shape.rank);
	if (o.shape.dtype != TERN_F32)
		return complain(s, -EINVAL, "tensor %s: expected dtype f32, got %s",
			o.name, tern_dtype_name(o.shape.dtype));
	if ((o.init == TERN_INIT_GIVEN) != (o.values != NULL))
		return complain(s, -EINVAL, "tensor %s: expected %s", o.name,
			o.values ? "no values, as its init is not TERN_INIT_GIVEN"
				 : "values, as its init is TERN_INIT_GIVEN");
	if (s->job.param_count == TERN_PARAMS_MAX)
		return complain(s, -E2BIG, "tensor %s: a job has at most %u tensors",
			o.name, TERN_PARAMS_MAX);
	own.given = o.rule;
	r = o.rule ? read_rule(s, o.rule, &own.rule) : 0;
	if (r < 0)
		return r;
	name = grow(s) < 0 ? NULL : strdup(o.name);
	if (!name)
		return complain(s, -ENOMEM, "no memory for tensor %s", o.name);
	*id = s->job.param_count++;
	s->rules_of[*id] = own;
	s->values_of[*id] = o.values;
	s->job.params[*id] = (struct tern_param){.name = name,
		.shape = o.shape,
		.first = *id, /* until the tensors are sorted */
		.init = o.init,
		.a = (float)o.a,
		.b = (float)o.b};
	return 0;
}

/* ---- the start ---- */

static int read_schedule(struct tern_session *s, const struct tern_schedule_opts *o)
{
	const char *name = o->name ? o->name : "constant";
	enum tern_schedule_kind kind = TERN_SCHEDULE_CONSTANT;
	bool has_end;

	while (kind < TERN_SCHEDULE_COUNT && strcmp(name, tern_schedule_name(kind)) != 0)
		kind++;
	if (kind == TERN_SCHEDULE_COUNT)
		return complain(s, -EINVAL,
			"schedule %.60s: expected constant, step, linear or cosine",
			name);
	has_end = kind == TERN_SCHEDULE_LINEAR || kind == TERN_SCHEDULE_COSINE;
	s->job.optimizer.schedule = (struct tern_schedule){.kind = kind,
		.warmup = o->warmup,
		.steps = has_end && o->steps == 0 ? s->job.steps : o->steps,
		.factor = o->factor};
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct tern_param *x = a, *y = b;

	return strcmp(x->name, y->name);
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
 * are visited in the order of their names, so all workers count alike. */
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
		return complain(s, -EINVAL,
			"tensor %s: a job has at most %u different rules of tensors",
			p->name, TERN_JOB_RULES_MAX);
	s->job.rules[i] = own->rule;
	s->job.rule_count = TERN_MAX(s->job.rule_count, i + 1);
	p->rule = i + 1;
	return 0;
}

/* Brings the tensors into the order of their names, and lays them out one after the
 * other. */
static int lay_out(struct tern_session *s)
{
	uint32_t count = s->job.param_count;

	s->params_of = calloc(count + 1u, sizeof(*s->params_of));
	s->slot.pushed = calloc(count + 1u, sizeof(*s->slot.pushed));
	s->verify.digests = calloc(count + 1u, sizeof(*s->verify.digests));
	if (!s->params_of || !s->slot.pushed || !s->verify.digests)
		return complain(s, -ENOMEM, "no memory for %u tensors", count);
	if (count)
		qsort(s->job.params, count, sizeof(*s->job.params), by_name);
	for (uint32_t i = 0; i < count; i++)
		s->params_of[s->job.params[i].first] = i;
	for (uint32_t i = 1; i < count; i++)
		if (strcmp(s->job.params[i - 1].name, s->job.params[i].name) == 0)
			return complain(s, -EINVAL, "two tensors have the name %s",
				s->job.params[i].name);
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
		return complain(s, -EINVAL,
			"the job has no tensors: declare them before the start");
	if (r < 0)
		return complain(s, r, "the job is impossible: %s",
			*why.text ? why.text : tern_status_text(r));
	forget_tensors(s);
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
		return complain(s, -ENOMEM, "no memory for the given values");
	for (uint32_t id = 0; id < s->job.param_count; id++)
		(*given)[s->params_of[id]] = s->values_of[id];
	if (tern_given_describe(&s->job, *given, !o->init_from_first, &why) < 0)
		return complain(s, -EINVAL, "%s", why.text);
	return 0;
}

static int read_job(struct tern_session *s, const struct tern_job_opts *o)
{
	const char *arithmetic = o->arithmetic ? o->arithmetic : "";
	struct tern_ps_job *job = &s->job;
	int r;

	if (o->mode > TERN_TRAIN_SSP)
		return complain(s, -EINVAL,
			"mode %u: expected sync (0), async (1) or ssp (2)",
			(unsigned)o->mode);
	if (o->staleness > TERN_SSP_MAX || (o->staleness && o->mode != TERN_TRAIN_SSP))
		return complain(s, -EINVAL,
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
	s->index = o->index;
	s->verify.left = slots_to_verify(o);
	if (o->index >= o->workers)
		return complain(s, -EINVAL,
			"index %u of %u workers: expected an index from 0 to the number "
			"of workers less one",
			o->index, o->workers);
	if (strlen(arithmetic) >= sizeof(job->arithmetic))
		return complain(s, -EINVAL, "arithmetic: expected at most %zu bytes",
			sizeof(job->arithmetic) - 1);
	strcpy(job->arithmetic, arithmetic);
	r = read_rule(s, &o->rule, &job->optimizer);
	if (r == 0 && !tern_optimizer_is_for_models(job->optimizer.kind))
		return complain(s, -EINVAL, "rule %s: expected a rule of a tensor only",
			o->rule.name);
	return r < 0 ? r : read_schedule(s, &o->schedule);
}

int tern_session_start_sized(
	struct tern_session *s, const struct tern_job_opts *opts, size_t opts_bytes)
{
	struct tern_job_opts o;
	struct tern_ps_text why;
	const float **given = NULL;
	int r = tern_read_sized(&o, sizeof(o), opts, opts_bytes);

	if (r < 0)
		return complain(s, r, "the job has an option that this library lacks");
	if (s->started)
		return complain(s, -EALREADY, "the session has started already");
	s->started = true;
	r = read_job(s, &o);
	if (r == 0)
		r = lay_out(s);
	if (r == 0)
		r = check_job(s);
	if (r == 0)
		r = read_values(s, &o, &given);
	if (r == 0) {
		r = tern_worker_new(
			&(struct tern_worker_opts){.domain = tern_context_domain(s->ctx),
				.ctx = s->ctx,
				.computer = &s->computer,
				.job = &s->job,
				.index = o.index,
				.given = given,
				.note = note,
				.lost = lost,
				.waiting = note,
				.ended = ended,
				.arg = s},
			&s->worker, &why);
		if (r < 0)
			complain(s, r, "%s", why.text);
	}
	free(given);
	s->ended = r < 0;
	s->status = r = end_status(r);
	if (r < 0)
		snprintf(s->end_text, sizeof(s->end_text), "%.511s", s->text);
	return r;
}

/* ---- slots ---- */

/* Returns the status with which the session has ended, and sets the text. */
static int how_it_ended(struct tern_session *s)
{
	return complain(s, s->status, "%s", s->end_text);
}

int tern_session_next_sized(struct tern_session *s, struct tern_slot **out,
	struct tern_slot_info *info, size_t info_bytes)
{
	struct tern_slot *slot = &s->slot;
	struct tern_slot_info own;

	if (!s->started)
		return complain(s, -EINVAL, "the session has not started");
	if (slot->held)
		return complain(s, -EBUSY, "the previous slot has not been ended");
	if (s->final)
		return complain(s, -ENODATA, "all steps are done");
	if (s->ended)
		return how_it_ended(s);
	if (!slot->work)
		return -EAGAIN;
	slot->held = true;
	own = (struct tern_slot_info){.step = slot->work->version,
		.slot = slot->work->slot,
		.batch = s->job.records ? slot->work->batch : 0,
		.seed = tern_rng_at(
			s->job.seed, SEED_STREAM, slot->work->version, slot->work->slot),
		.repeated = s->verify.phase == VERIFY_SECOND};
	if (info)
		tern_write_sized(info, info_bytes, &own, sizeof(own));
	*out = slot;
	return 0;
}

uint64_t tern_slot_record(const struct tern_slot *slot, uint32_t j)
{
	if (!slot->held || slot->work->record_count == 0 || j >= slot->work->batch)
		return UINT64_MAX;
	return tern_work_record(slot->work, j);
}

/* NULL: there is no such tensor, or the session has not started. */
static const struct tern_param *param_of(const struct tern_session *s, uint32_t id)
{
	return s->params_of && id < s->job.param_count ? &s->job.params[s->params_of[id]]
						       : NULL;
}

const float *tern_slot_param(const struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = param_of(slot->session, id);

	return p && slot->held ? tern_vector(slot->work->params) + p->first : NULL;
}

float *tern_slot_gradient(const struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = param_of(slot->session, id);

	return p && slot->held ? tern_vector(slot->work->gradient) + p->first : NULL;
}

struct tern_worker *session_worker(const struct tern_session *s)
{
	return s->worker;
}

struct tern_session *session_of_slot(const struct tern_slot *slot)
{
	return slot->session;
}

static int has_ended(const struct tern_slot *slot)
{
	return complain(slot->session, -EINVAL, "the slot has ended");
}

/* Checks that the program may end the slot now. */
static int check_end(const struct tern_slot *slot)
{
	if (!slot->held)
		return has_ended(slot);
	if (slot->pushing)
		return complain(slot->session, -EBUSY,
			"another thread still pushes a tensor of this slot");
	return 0;
}

int session_reserve(struct tern_slot *slot, uint32_t id)
{
	struct tern_session *s = slot->session;
	const struct tern_param *p = param_of(s, id);

	if (!slot->held)
		return has_ended(slot);
	if (!p)
		return complain(s, -EINVAL, "tensor %u: expected 0 to %u", id,
			s->job.param_count - 1);
	if (slot->pushed[id])
		return complain(s, -EALREADY, "tensor %s was pushed before in this slot",
			p->name);
	slot->pushed[id] = true;
	slot->pushing++;
	return 0;
}

void session_take(struct tern_slot *slot, uint32_t id, const float *from)
{
	struct tern_session *s = slot->session;

	verify_take(&s->verify, id, tern_slot_gradient(slot, id), from,
		param_of(s, id)->count * sizeof(*from));
}

bool session_verifies(const struct tern_slot *slot)
{
	return slot->session->verify.phase != VERIFY_OFF;
}

void session_pushed(struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = param_of(slot->session, id);

	slot->pushing--;
	if (!session_verifies(slot))
		tern_work_final(slot->work, p->first, p->count);
}

bool session_is_pushing(const struct tern_slot *slot)
{
	return slot->pushing > 0;
}

int tern_slot_push(struct tern_slot *slot, uint32_t id, const float *from)
{
	int r = session_reserve(slot, id);

	if (r < 0)
		return r;
	session_take(slot, id, from);
	session_pushed(slot, id);
	return 0;
}

static struct tern_work *let_go(struct tern_slot *slot)
{
	struct tern_work *work = slot->work;

	tern_assert(slot->pushing == 0);
	slot->work = NULL;
	slot->held = false;
	return work;
}

/* The slot was computed for the first of two times: the program gets it again. */
static void repeat(struct tern_slot *slot, double loss)
{
	slot->held = false;
	verify_again(&slot->session->verify, loss);
	offer(slot->session);
}

/* The slot was computed twice: sends the gradients if they are the same, else this worker
 * leaves. */
static void compare(struct tern_slot *slot, double loss)
{
	struct tern_session *s = slot->session;
	const struct verify_slot which = {.worker = s->index,
		.slot = slot->work->slot,
		.step = slot->work->version};
	uint32_t count = s->job.param_count, first = 0;
	uint32_t differing = verify_differing(&s->verify, count, &first);
	char text[VERIFY_TEXT_BYTES];

	if (differing > 0) {
		verify_describe(text, sizeof(text), &which, param_of(s, first)->name,
			differing, count);
		tern_work_fail(let_go(slot), -EBADMSG, text);
		return;
	}
	if (!verify_loss(&s->verify, loss, &which, text, sizeof(text)))
		note(s, text);
	for (uint32_t id = 0; id < count; id++)
		tern_work_final(
			slot->work, param_of(s, id)->first, param_of(s, id)->count);
	tern_work_end(let_go(slot), loss);
}

int tern_slot_end(struct tern_slot *slot, double loss)
{
	struct tern_session *s = slot->session;
	int r = check_end(slot);

	if (r < 0)
		return r;
	for (uint32_t id = 0; id < s->job.param_count; id++) {
		if (slot->pushed[id])
			continue;
		memset(tern_slot_gradient(slot, id), 0,
			param_of(s, id)->count * sizeof(float));
		tern_slot_push(slot, id, NULL);
	}
	if (!session_verifies(slot) || slot->revoked)
		tern_work_end(let_go(slot), loss);
	else if (s->verify.phase == VERIFY_FIRST)
		repeat(slot, loss);
	else
		compare(slot, loss);
	return 0;
}

int tern_slot_fail(struct tern_slot *slot, const char *text)
{
	int r = check_end(slot);

	if (r < 0)
		return r;
	tern_work_fail(let_go(slot), -ECANCELED, text);
	return 0;
}

bool tern_slot_is_revoked(const struct tern_slot *slot)
{
	return slot->revoked;
}

/* ---- the end ---- */

const float *tern_session_param(const struct tern_session *s, uint32_t id)
{
	const struct tern_param *p = param_of(s, id);

	return s->final && p ? tern_vector(s->final) + p->first : NULL;
}

int tern_session_finisher(struct tern_session *s)
{
	if (!s->started)
		return complain(s, -EINVAL, "the session has not started");
	if (s->ended)
		return how_it_ended(s);
	if (!s->final)
		return complain(s, -EBUSY,
			"the finisher is known after the last slot only: not all steps "
			"are done");
	return s->evaluation ? 1 : -EAGAIN;
}

void tern_session_goes_on(struct tern_session *s)
{
	if (s->evaluation)
		tern_evaluation_goes_on(s->evaluation);
}

void tern_session_finished(struct tern_session *s, const char *text)
{
	struct tern_evaluation *evaluation = s->evaluation;

	s->evaluation = NULL;
	if (evaluation)
		tern_evaluation_end(evaluation, text ? -ECANCELED : 0, text);
}

void tern_session_leave(struct tern_session *s, const char *why)
{
	if (s->worker && !s->ended)
		tern_worker_ask_to_leave(s->worker, why);
}

int tern_session_status(struct tern_session *s)
{
	if (!s->started)
		return complain(s, -EINVAL, "the session has not started");
	return s->ended ? how_it_ended(s) : -EAGAIN;
}

const char *tern_session_text(const struct tern_session *s)
{
	return s->text;
}

void tern_session_describe(const struct tern_session *s, char *text, size_t bytes)
{
	if (s->ended)
		snprintf(text, bytes, "the session has ended: %s", s->end_text);
	else if (s->worker)
		tern_worker_describe(s->worker, text, bytes);
	else
		snprintf(text, bytes, "the session has not started");
}
