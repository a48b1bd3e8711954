/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/job.h"

#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "ps/shown.h"
#include "ps/view.h"

struct tern_mode_text tern_mode_text(enum tern_mode mode, uint64_t ssp)
{
	struct tern_mode_text out = {"sync"};

	if (mode == TERN_MODE_ASYNC && ssp)
		snprintf(out.text, sizeof(out.text), "ssp:%llu",
			(unsigned long long)ssp - 1);
	else if (mode == TERN_MODE_ASYNC)
		strcpy(out.text, "async");
	return out;
}

bool tern_mode_parse(const char *text, enum tern_mode *mode, uint64_t *ssp)
{
	unsigned long long staleness;
	char *end;

	*ssp = 0;
	*mode = strcmp(text, "sync") == 0 ? TERN_MODE_SYNC : TERN_MODE_ASYNC;
	if (*mode == TERN_MODE_SYNC || strcmp(text, "async") == 0)
		return true;
	if (strncmp(text, "ssp:", 4) != 0 || text[4] < '0' || text[4] > '9')
		return false;
	/* A number that is too large for strtoull() becomes ULLONG_MAX. */
	staleness = strtoull(text + 4, &end, 10);
	*ssp = staleness + 1;
	return !*end && staleness <= TERN_SSP_MAX;
}

uint64_t tern_ps_job_steps_of(const struct tern_ps_job *job, uint32_t index)
{
	if (job->mode == TERN_MODE_SYNC)
		return job->steps;
	return job->steps / job->workers + (index < job->steps % job->workers);
}

uint32_t tern_ps_job_tensor_at(const struct tern_ps_job *job, uint64_t element)
{
	uint32_t low = 0, high = job->param_count - 1;

	while (low < high) {
		uint32_t middle = low + (high - low + 1) / 2;

		if (job->params[middle].first <= element)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

void tern_ps_job_fini(struct tern_ps_job *job)
{
	free(job->params);
	free(job->names);
	free(job->servers);
	*job = (struct tern_ps_job){0};
}

/* Copies the names of the tensors into memory of the job. */
static int own_names(struct tern_ps_job *job)
{
	size_t bytes = 0;
	char *at;

	for (uint32_t i = 0; i < job->param_count; i++)
		bytes += strlen(job->params[i].name) + 1;
	job->names = at = malloc(bytes + 1);
	if (!at)
		return -ENOMEM;
	for (uint32_t i = 0; i < job->param_count; i++) {
		const char *name = job->params[i].name;

		job->params[i].name = at;
		at = stpcpy(at, name) + 1;
	}
	return 0;
}

int tern_ps_job_copy(struct tern_ps_job *to, const struct tern_ps_job *from)
{
	*to = *from;
	to->names = NULL;
	to->params = calloc(from->param_count, sizeof(*to->params));
	to->servers = calloc(from->server_count, sizeof(*to->servers));
	if (!to->params || !to->servers) {
		tern_ps_job_fini(to);
		return -ENOMEM;
	}
	memcpy(to->params, from->params, from->param_count * sizeof(*to->params));
	memcpy(to->servers, from->servers, from->server_count * sizeof(*to->servers));
	if (own_names(to) == 0)
		return 0;
	tern_ps_job_fini(to);
	return -ENOMEM;
}

/* ---- encoding ---- */

/* JSON has no infinite numbers, no NaN, and no text that is not UTF-8: such a value is
 * encoded as null, which the decoder refuses with the name of the field. */
static json_t *or_null(json_t *value)
{
	return value ? value : json_null();
}

/* Numbers that the kind of initial values does not use are 0. A tensor with given values
 * has a digest in place of them. */
static json_t *encode_values(const struct tern_param *p)
{
	json_t *dims = json_array();
	unsigned arguments = tern_init_arguments(p->init);

	for (uint32_t i = 0; i < p->shape.rank; i++)
		json_array_append_new(dims, json_integer((json_int_t)p->shape.dims[i]));
	if (p->init == TERN_INIT_GIVEN)
		return json_pack("{s:o, s:o, s:s, s:I, s:I}", "name",
			or_null(json_string(p->name)), "dims", dims, "init",
			tern_init_name(p->init), "digest", (json_int_t)p->digest, "rule",
			(json_int_t)p->rule);
	return json_pack("{s:o, s:o, s:s, s:o, s:o, s:I}", "name",
		or_null(json_string(p->name)), "dims", dims, "init",
		tern_init_name(p->init), "a",
		or_null(json_real(arguments > 0 ? (double)p->a : 0.0)), "b",
		or_null(json_real(arguments > 1 ? (double)p->b : 0.0)), "rule",
		(json_int_t)p->rule);
}

/* "push" and "pull" are there only if they are not f32. */
static json_t *encode_param(const struct tern_param *p)
{
	json_t *root = encode_values(p);

	if (p->push_bf16)
		json_object_set_new(root, "push", json_string("bf16"));
	if (p->pull_bf16)
		json_object_set_new(root, "pull", json_string("bf16"));
	return root;
}

static json_t *encode_schedule(const struct tern_schedule *s)
{
	return json_pack("{s:s, s:I, s:I, s:o}", "name", tern_schedule_name(s->kind),
		"warmup", (json_int_t)s->warmup, "steps", (json_int_t)s->steps, "factor",
		or_null(json_real(s->factor)));
}

static json_t *encode_optimizer(const struct tern_optimizer *o)
{
	json_t *root = json_pack("{s:s, s:o}", "name", tern_optimizer_name(o->kind), "lr",
		or_null(json_real((double)o->lr)));

	for (unsigned i = 0; i < TERN_SETTING_COUNT; i++)
		json_object_set_new(root, tern_setting_name(i),
			or_null(json_real((double)tern_optimizer_value(o, i))));
	json_object_set_new(root, "schedule", encode_schedule(&o->schedule));
	return root;
}

json_t *tern_ps_job_json(const struct tern_ps_job *job)
{
	json_t *params = json_array(), *servers = json_array(), *rules = json_array();
	json_t *root;

	for (uint32_t i = 0; i < job->rule_count; i++)
		json_array_append_new(rules, encode_optimizer(&job->rules[i]));
	for (uint32_t i = 0; i < job->param_count; i++)
		json_array_append_new(params, encode_param(&job->params[i]));
	for (uint32_t i = 0; i < job->server_count; i++)
		json_array_append_new(servers, or_null(json_string(job->servers[i])));
	root = json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
		"mode", tern_mode_text(job->mode, job->ssp).text, "steps",
		(json_int_t)job->steps, "seed", (json_int_t)job->seed, "slots",
		(json_int_t)job->slots, "workers", (json_int_t)job->workers, "batch",
		(json_int_t)job->batch, "records", (json_int_t)job->records, "data",
		(json_int_t)job->data, "clip_norm", or_null(json_real(job->clip_norm)),
		"arithmetic", or_null(json_string(job->arithmetic)), "optimizer",
		encode_optimizer(&job->optimizer), "rules", rules, "params", params,
		"servers", servers);
	if (root)
		tern_view_write_job(root, job);
	return root;
}

char *tern_ps_job_encode(const struct tern_ps_job *job)
{
	json_t *root = tern_ps_job_json(job);
	char *text =
		root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;

	json_decref(root);
	return text;
}

/* ---- decoding ---- */

static int bad(struct tern_ps_text *why, const char *field, const char *expected)
{
	snprintf(why->text, sizeof(why->text), "%s: expected %s", field, expected);
	return -EINVAL;
}

/* Writes which value the field has and what was expected; returns -EINVAL. Not for
 * lists. */
static int bad_value(struct tern_ps_text *why, const json_t *root, const char *field,
	const char *expected)
{
	const json_t *value = json_object_get(root, field);
	char text[60] = "";
	size_t bytes =
		json_dumpb(value, text, sizeof(text) - 1, JSON_ENCODE_ANY | JSON_COMPACT);
	const char *shown = bytes < sizeof(text) ? text : "a longer text";

	snprintf(why->text, sizeof(why->text), "%s: expected %s, got %s", field, expected,
		value ? shown : "nothing");
	return -EINVAL;
}

static int get_int(const json_t *root, const char *field, uint64_t low, uint64_t high,
	uint64_t *out, struct tern_ps_text *why)
{
	const json_t *value = json_object_get(root, field);
	char expected[80];

	if (json_is_integer(value)) {
		*out = (uint64_t)json_integer_value(value);
		if (*out >= low && *out <= high)
			return 0;
	}
	snprintf(expected, sizeof(expected), "an integer from %llu to %llu",
		(unsigned long long)low, (unsigned long long)high);
	return bad_value(why, root, field, expected);
}

static int get_float(
	const json_t *root, const char *field, float *out, struct tern_ps_text *why)
{
	const json_t *value = json_object_get(root, field);
	double d = json_number_value(value);

	if (!json_is_number(value) || !isfinite((float)d))
		return bad_value(why, root, field, "a finite number");
	*out = (float)d;
	return 0;
}

static int decode_setting(const json_t *root, struct tern_optimizer *o, unsigned setting,
	struct tern_ps_text *why)
{
	const char *name = tern_setting_name(setting);
	float *value = tern_optimizer_setting(o, setting);

	if (get_float(root, name, value, why) < 0)
		return -EINVAL;
	if (!tern_optimizer_has(o->kind, setting))
		return *value == 0 ? 0
				   : bad_value(why, root, name,
					     "0, since the optimizer does not have it");
	return tern_setting_allows(setting, *value)
		       ? 0
		       : bad_value(why, root, name, tern_setting_range(setting));
}

static int decode_schedule(
	const json_t *root, struct tern_schedule *s, struct tern_ps_text *why)
{
	const char *name = json_string_value(json_object_get(root, "name"));
	const json_t *factor = json_object_get(root, "factor");
	unsigned kind = 0;
	const char *wrong;

	while (kind < TERN_SCHEDULE_COUNT && name &&
		strcmp(name, tern_schedule_name(kind)) != 0)
		kind++;
	if (!name || kind == TERN_SCHEDULE_COUNT)
		return bad(why, "schedule", "constant, step, linear or cosine");
	s->kind = kind;
	if (get_int(root, "warmup", 0, TERN_SCHEDULE_STEPS_MAX, &s->warmup, why) < 0 ||
		get_int(root, "steps", 0, TERN_SCHEDULE_STEPS_MAX, &s->steps, why) < 0)
		return -EINVAL;
	s->factor = json_number_value(factor);
	if (!json_is_number(factor))
		return bad_value(why, root, "factor", "a number");
	wrong = tern_schedule_wrong(s);
	if (wrong)
		snprintf(why->text, sizeof(why->text), "schedule: %s", wrong);
	return wrong ? -EINVAL : 0;
}

static int decode_optimizer(
	const json_t *root, struct tern_optimizer *o, struct tern_ps_text *why)
{
	const char *name = json_string_value(json_object_get(root, "name"));
	char expected[160];

	if (!name || tern_optimizer_parse(name, o) < 0) {
		snprintf(expected, sizeof(expected), "one of %s", tern_optimizer_names());
		return bad(why, "optimizer", expected);
	}
	if (get_float(root, "lr", &o->lr, why) < 0)
		return -EINVAL;
	for (unsigned i = 0; i < TERN_SETTING_COUNT; i++)
		if (decode_setting(root, o, i, why) < 0)
			return -EINVAL;
	return decode_schedule(json_object_get(root, "schedule"), &o->schedule, why);
}

static int bad_tensor(struct tern_ps_text *why, const struct tern_param *p)
{
	tern_ps_name_tensor(why, p);
	return -EINVAL;
}

static int decode_name(const json_t *root, uint32_t number, struct tern_param *p,
	struct tern_ps_text *why)
{
	const json_t *name = json_object_get(root, "name");
	size_t bytes = json_string_length(name);

	p->name = json_string_value(name);
	if (bytes >= 1 && bytes <= TERN_TENSOR_NAME_MAX && strlen(p->name) == bytes) {
		if (strcmp(p->name, "__metadata__") != 0)
			return 0;
		return bad(why, "tensor __metadata__",
			"another name: files of results use this one");
	}
	snprintf(why->text, sizeof(why->text),
		"params: tensor number %u: name: expected 1 to %u bytes of UTF-8 without "
		"NUL",
		number, TERN_TENSOR_NAME_MAX);
	return -EINVAL;
}

static int decode_shape(
	const json_t *root, struct tern_param *p, struct tern_ps_text *why)
{
	const json_t *dims = json_object_get(root, "dims");
	uint64_t bytes;

	p->shape = (struct tern_shape){
		.dtype = TERN_F32, .rank = (uint32_t)json_array_size(dims)};
	if (!json_is_array(dims) || json_array_size(dims) > TERN_RANK_MAX)
		return bad(why, "dims", "a list of at most 8 dimensions");
	for (uint32_t i = 0; i < p->shape.rank; i++) {
		const json_t *dim = json_array_get(dims, i);

		if (!json_is_integer(dim) || json_integer_value(dim) <= 0)
			return bad(why, "dims", "dimensions of 1 or more");
		p->shape.dims[i] = (uint64_t)json_integer_value(dim);
	}
	if (tern_shape_bytes(&p->shape, &bytes) < 0 || bytes > (1ull << 40))
		return bad(why, "dims", "at most 1 TiB");
	p->count = bytes / sizeof(float);
	return 0;
}

static int decode_init(const json_t *root, struct tern_param *p, struct tern_ps_text *why)
{
	const char *init = json_string_value(json_object_get(root, "init"));
	char expected[60];

	if (tern_init_parse(init, &p->init) < 0)
		return bad_value(why, root, "init",
			"\"zeros\", \"constant\", \"uniform\", \"normal\" or \"given\"");
	if (p->init == TERN_INIT_GIVEN)
		return get_int(root, "digest", 0, UINT64_MAX, &p->digest, why);
	if (get_float(root, "a", &p->a, why) < 0 || get_float(root, "b", &p->b, why) < 0)
		return -EINVAL;
	if (p->init == TERN_INIT_UNIFORM && !(p->b > p->a)) {
		snprintf(expected, sizeof(expected), "a number above a, which is %.9g",
			(double)p->a);
		return bad_value(why, root, "b", expected);
	}
	if (p->init == TERN_INIT_NORMAL && !(p->b >= 0))
		return bad_value(why, root, "b", "a standard deviation of 0 or more");
	/* The farthest value is 8.2 standard deviations from the mean. */
	if (p->init == TERN_INIT_NORMAL &&
		fabs((double)p->a) + 9 * (double)p->b > (double)FLT_MAX)
		return bad_value(why, root, "b",
			"a standard deviation so that a + 9 b fits into float32");
	if (tern_init_arguments(p->init) < 1)
		p->a = 0;
	if (tern_init_arguments(p->init) < 2)
		p->b = 0;
	return 0;
}

/* Reads the type that gradients ("push") or values ("pull") have on the wire. */
static int decode_wire(
	const json_t *root, const char *field, bool *bf16, struct tern_ps_text *why)
{
	const json_t *value = json_object_get(root, field);
	const char *name = json_string_value(value);

	*bf16 = name && strcmp(name, "bf16") == 0;
	if (!value || *bf16 || (name && strcmp(name, "f32") == 0))
		return 0;
	return bad_value(why, root, field, "\"f32\" or \"bf16\"");
}

/* p->name points into `root`. */
static int decode_param(const json_t *root, uint32_t number, struct tern_param *p,
	struct tern_ps_text *why)
{
	if (decode_name(root, number, p, why) < 0)
		return -EINVAL;
	if (decode_shape(root, p, why) < 0 || decode_init(root, p, why) < 0 ||
		decode_wire(root, "push", &p->push_bf16, why) < 0 ||
		decode_wire(root, "pull", &p->pull_bf16, why) < 0)
		return bad_tensor(why, p);
	return 0;
}

/* Each change of the types begins a chunk, which takes memory for each slot and worker,
 * however small it is. A session has fewer changes, since it sorts its tensors. */
static int check_types(const struct tern_ps_job *job, struct tern_ps_text *why)
{
	uint32_t changes = 0;

	for (uint32_t i = 1; i < job->param_count; i++) {
		const struct tern_param *p = &job->params[i];

		changes += p->push_bf16 != p[-1].push_bf16 ||
			   p->pull_bf16 != p[-1].pull_bf16;
	}
	if (changes <= TERN_TYPE_CHANGES_MAX)
		return 0;
	snprintf(why->text, sizeof(why->text),
		"params: the types on the wire change %u times from one tensor to the "
		"next: expected at most %u times",
		changes, TERN_TYPE_CHANGES_MAX);
	return -EINVAL;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Checks that no name occurs twice. Sorting takes O(n log n) comparisons for any names; a
 * hash table could be slow for names that a peer has chosen. */
static int check_names(const struct tern_ps_job *job, struct tern_ps_text *why)
{
	const char **names = calloc(job->param_count, sizeof(*names));
	int r = names ? 0 : -ENOMEM;

	for (uint32_t i = 0; names && i < job->param_count; i++)
		names[i] = job->params[i].name;
	if (names)
		qsort(names, job->param_count, sizeof(*names), by_name);
	for (uint32_t i = 1; r == 0 && i < job->param_count; i++) {
		if (strcmp(names[i - 1], names[i]) != 0)
			continue;
		snprintf(why->text, sizeof(why->text),
			"tensor %s: expected every name once, and it occurs again",
			TERN_TENSOR_SHOWN(names[i]));
		r = -EINVAL;
	}
	free(names);
	return r;
}

static int decode_rules(
	const json_t *root, struct tern_ps_job *job, struct tern_ps_text *why)
{
	const json_t *rules = json_object_get(root, "rules");

	if (!json_is_array(rules) || json_array_size(rules) > TERN_JOB_RULES_MAX)
		return bad(why, "rules", "a list of at most 16 optimizers");
	job->rule_count = (uint32_t)json_array_size(rules);
	for (uint32_t i = 0; i < job->rule_count; i++)
		if (decode_optimizer(json_array_get(rules, i), &job->rules[i], why) < 0)
			return -EINVAL;
	return 0;
}

/* Reads which rule a tensor has. */
static int decode_rule(const json_t *root, const struct tern_ps_job *job,
	struct tern_param *p, struct tern_ps_text *why)
{
	uint64_t rule;

	if (get_int(root, "rule", 0, job->rule_count, &rule, why) < 0)
		return bad_tensor(why, p);
	p->rule = (uint32_t)rule;
	/* The norm is that of the gradients, without means of statistics. */
	if (job->clip_norm > 0 && tern_ps_job_rule(job, p)->kind == TERN_OPT_MEAN)
		return bad(why, "clip_norm", "0 in a job with the rule mean");
	return 0;
}

static int decode_params(
	const json_t *params, struct tern_ps_job *job, struct tern_ps_text *why)
{
	int r;

	for (uint32_t i = 0; i < job->param_count; i++) {
		struct tern_param *p = &job->params[i];

		r = decode_param(json_array_get(params, i), i, p, why);
		if (r == 0)
			r = decode_rule(json_array_get(params, i), job, p, why);
		if (r < 0)
			return r;
		p->first = job->element_count;
		job->element_count += p->count;
	}
	r = check_types(job, why);
	if (r == 0)
		r = check_names(job, why);
	return r < 0 ? r : own_names(job);
}

static int decode_lists(
	const json_t *root, struct tern_ps_job *job, struct tern_ps_text *why)
{
	const json_t *params = json_object_get(root, "params");
	const json_t *servers = json_object_get(root, "servers");
	size_t param_count = json_array_size(params),
	       server_count = json_array_size(servers);
	int r;

	if (param_count < 1 || param_count > TERN_PARAMS_MAX)
		return bad(why, "params", "1 to 100000 tensors");
	if (server_count < 1 || server_count > TERN_SERVERS_MAX)
		return bad(why, "servers", "1 to 256 addresses");
	job->params = calloc(param_count, sizeof(*job->params));
	job->servers = calloc(server_count, sizeof(*job->servers));
	if (!job->params || !job->servers)
		return -ENOMEM;
	job->param_count = (uint32_t)param_count;
	job->server_count = (uint32_t)server_count;
	r = decode_params(params, job, why);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < job->server_count; i++) {
		const char *address = json_string_value(json_array_get(servers, i));

		if (!address || !*address || strlen(address) >= sizeof(job->servers[i]))
			return bad(why, "servers", "addresses of 1 to 127 characters");
		strcpy(job->servers[i], address);
	}
	if (!tern_view_read_job(root, job))
		return bad(why, "view",
			"a number above 0, and different numbers of all servers");
	return 0;
}

static int decode_numbers(
	const json_t *root, struct tern_ps_job *job, struct tern_ps_text *why)
{
	const char *mode = json_string_value(json_object_get(root, "mode"));
	const char *arithmetic = json_string_value(json_object_get(root, "arithmetic"));
	const json_t *clip = json_object_get(root, "clip_norm");
	uint64_t slots, workers, batch;

	if (!mode || !tern_mode_parse(mode, &job->mode, &job->ssp))
		return bad_value(why, root, "mode", TERN_MODES);
	if (get_int(root, "steps", 0, 1ull << 40, &job->steps, why) < 0 ||
		get_int(root, "seed", 0, UINT64_MAX, &job->seed, why) < 0 ||
		get_int(root, "slots", 1, TERN_SLOTS_MAX, &slots, why) < 0 ||
		get_int(root, "workers", 1, TERN_WORKERS_MAX, &workers, why) < 0 ||
		get_int(root, "batch", 1, 1u << 24, &batch, why) < 0 ||
		get_int(root, "records", 0, 1ull << 40, &job->records, why) < 0 ||
		get_int(root, "data", 0, UINT64_MAX, &job->data, why) < 0)
		return -EINVAL;
	job->slots = (uint32_t)slots;
	job->workers = (uint32_t)workers;
	job->batch = (uint32_t)batch;
	job->clip_norm = json_number_value(clip);
	if (!json_is_number(clip) || !(job->clip_norm >= 0) || !isfinite(job->clip_norm))
		return bad_value(why, root, "clip_norm", "a finite number, 0 or more");
	if (job->clip_norm > 0 && job->mode == TERN_MODE_ASYNC)
		return bad(
			why, "clip_norm", "0 in async mode: a norm needs a whole step");
	if (!arithmetic || strlen(arithmetic) >= sizeof(job->arithmetic))
		return bad_value(
			why, root, "arithmetic", "a string below 128 characters");
	strcpy(job->arithmetic, arithmetic);
	return decode_optimizer(json_object_get(root, "optimizer"), &job->optimizer, why);
}

int tern_ps_job_read(
	const json_t *root, struct tern_ps_job *out, struct tern_ps_text *why)
{
	int r;

	*out = (struct tern_ps_job){0};
	why->text[0] = 0;
	if (!json_is_object(root))
		return bad(why, "job", "a JSON object");
	r = decode_numbers(root, out, why);
	if (r == 0)
		r = decode_rules(root, out, why);
	if (r == 0)
		r = decode_lists(root, out, why);
	if (r < 0)
		tern_ps_job_fini(out);
	return r;
}

int tern_ps_job_decode(
	const char *json, size_t bytes, struct tern_ps_job *out, struct tern_ps_text *why)
{
	json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, NULL);
	int r = tern_ps_job_read(root, out, why);

	json_decref(root);
	return r;
}
