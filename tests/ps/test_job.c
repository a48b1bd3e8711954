/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the description of a job in JSON. A decoded job must equal the encoded one. A
 * field that is missing or wrong must be refused with a sentence that names it. No input
 * may crash the decoder.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/job.h"

static struct tern_ps_text why;

/* ---- a job ---- */

static void add_param(struct tern_ps_job *job, uint32_t i, const char *name,
	uint64_t rows, uint64_t columns, float scale)
{
	struct tern_param *p = &job->params[i];

	p->name = name;
	p->shape = (struct tern_shape){
		.dtype = TERN_F32, .rank = columns ? 2 : 1, .dims = {rows, columns}};
	p->first = job->element_count;
	p->count = rows * (columns ? columns : 1);
	if (scale > 0) {
		p->init = TERN_INIT_UNIFORM;
		p->a = -scale;
		p->b = scale;
	}
	job->element_count += p->count;
}

static struct tern_ps_job some_job(void)
{
	struct tern_ps_job job = {.mode = TERN_MODE_SYNC,
		.steps = 1000,
		.seed = 0xfedcba9876543210ull,
		.slots = 8,
		.workers = 3,
		.batch = 32,
		.records = 60000,
		.data = 0x8000000000000001ull,
		.clip_norm = 0.1,
		.arithmetic = "portable \"quoted\" 1",
		.param_count = 2,
		.server_count = 2};

	tern_optimizer_parse("adam", &job.optimizer);
	job.optimizer.weight_decay = 1.0f / 3.0f;
	job.optimizer.schedule = (struct tern_schedule){
		.kind = TERN_SCHEDULE_COSINE, .warmup = 10, .steps = 1000, .factor = 0.1};
	job.params = calloc(2, sizeof(*job.params));
	job.servers = calloc(2, sizeof(*job.servers));
	add_param(&job, 0, "fc1.weight", 4, 7, 0.3f);
	add_param(&job, 1, "fc1.bias", 7, 0, 0);
	strcpy(job.servers[0], "tcp://a:1");
	strcpy(job.servers[1], "tcp://b:2");
	job.rule_count = 2;
	tern_optimizer_parse("sgd", &job.rules[0]);
	tern_optimizer_parse("rmsprop", &job.rules[1]);
	job.params[1].rule = 2;
	return job;
}

static json_t *some_json(void)
{
	struct tern_ps_job job = some_job();
	char *text = tern_ps_job_encode(&job);
	json_t *root = json_loads(text, 0, NULL);

	assert_non_null(root);
	free(text);
	tern_ps_job_fini(&job);
	return root;
}

/* Decodes `root` as text, in memory that ends where the text ends, and frees it. */
static int decode(json_t *root, struct tern_ps_job *out)
{
	char *text = json_dumps(root, 0);
	size_t bytes = strlen(text);
	char *exact = malloc(bytes);
	int r;

	memcpy(exact, text, bytes);
	r = tern_ps_job_decode(exact, bytes, out, &why);
	free(exact);
	free(text);
	json_decref(root);
	return r;
}

/* ---- encoding and decoding ---- */

static void assert_same(const struct tern_ps_job *a, const struct tern_ps_job *b)
{
	assert_false(tern_ps_job_differs(a, b, "it", &why));
	assert_true(a->seed == b->seed);
	assert_true(a->records == b->records && a->data == b->data);
	assert_true(a->clip_norm == b->clip_norm);
	assert_string_equal(a->arithmetic, b->arithmetic);
	assert_int_equal(a->optimizer.kind, b->optimizer.kind);
	for (uint32_t i = 0; i < a->param_count; i++)
		assert_int_equal(tern_ps_job_rule(a, &a->params[i])->kind,
			tern_ps_job_rule(b, &b->params[i])->kind);
	assert_true(a->optimizer.lr == b->optimizer.lr);
	for (unsigned i = 0; i < TERN_SETTING_COUNT; i++)
		assert_true(tern_optimizer_value(&a->optimizer, i) ==
			    tern_optimizer_value(&b->optimizer, i));
	assert_int_equal(a->optimizer.schedule.kind, b->optimizer.schedule.kind);
	assert_true(a->optimizer.schedule.warmup == b->optimizer.schedule.warmup);
	assert_true(a->optimizer.schedule.steps == b->optimizer.schedule.steps);
	assert_true(a->optimizer.schedule.factor == b->optimizer.schedule.factor);
	assert_int_equal(a->element_count, b->element_count);
	assert_int_equal(a->param_count, b->param_count);
	for (uint32_t i = 0; i < a->param_count; i++) {
		const struct tern_param *p = &a->params[i], *q = &b->params[i];

		assert_string_equal(p->name, q->name);
		assert_true(tern_shape_equal(&p->shape, &q->shape));
		assert_int_equal(p->first, q->first);
		assert_int_equal(p->count, q->count);
		assert_int_equal(p->init, q->init);
		assert_memory_equal(&p->a, &q->a, sizeof(p->a));
		assert_memory_equal(&p->b, &q->b, sizeof(p->b));
	}
	assert_int_equal(a->server_count, b->server_count);
	for (uint32_t i = 0; i < a->server_count; i++)
		assert_string_equal(a->servers[i], b->servers[i]);
}

static void test_a_job_comes_back_the_same(void **state)
{
	static const struct tern_schedule schedules[] = {{.warmup = 1ull << 40},
		{TERN_SCHEDULE_STEP, 0, 1, 1.0 / 3},
		{TERN_SCHEDULE_LINEAR, 7, 1ull << 40, 0},
		{TERN_SCHEDULE_COSINE, 0, 1000, 1}};

	(void)state;
	for (unsigned i = 0; i < TERN_OPT_COUNT; i++) {
		struct tern_ps_job job = some_job(), back, copy;
		char *text;

		tern_optimizer_parse(tern_optimizer_name(i), &job.optimizer);
		job.optimizer.lr = 1.0f / 7.0f;
		job.optimizer.schedule = schedules[i % TERN_ARRAY_SIZE(schedules)];
		if (i % 2) {
			job.mode = TERN_MODE_ASYNC;
			job.ssp = i % 4 == 1 ? 0 : i == 3 ? 1 : TERN_SSP_MAX + 1;
			job.clip_norm = 0;
			job.params[1].shape.rank = 0; /* the shape of a scalar */
			job.params[1].shape.dims[0] = 0;
			job.params[1].count = 1;
			job.element_count -= 6;
		}
		text = tern_ps_job_encode(&job);
		assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why), 0);
		assert_same(&job, &back);
		assert_int_equal(tern_ps_job_copy(&copy, &back), 0);
		tern_ps_job_fini(&back);
		assert_same(&job, &copy);
		tern_ps_job_fini(&copy);
		tern_ps_job_fini(&job);
		free(text);
	}
}

static void test_names_of_1_to_255_bytes_come_back(void **state)
{
	static char longest[TERN_TENSOR_NAME_MAX + 1];
	static const char *const names[] = {
		"w", "\xc3\xa9/\xe6\xb0\xb4\x01 \"\\", longest};

	(void)state;
	memset(longest, 'x', sizeof(longest) - 1);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		struct tern_ps_job job = some_job(), back;
		char *text;

		job.params[1].name = names[i];
		text = tern_ps_job_encode(&job);
		assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why), 0);
		assert_same(&job, &back);
		tern_ps_job_fini(&back);
		tern_ps_job_fini(&job);
		free(text);
	}
}

/* Floats that need all digits, the smallest, the largest, and a negative zero. */
static void test_initial_values_come_back_bit_for_bit(void **state)
{
	static const float values[] = {
		0.1f, -1.0f / 3, 0x1p-149f, -0x1.fffffep-127f, FLT_MAX, -0.0f, 16777215};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(values); i++) {
		struct tern_ps_job job = some_job(), back;
		char *text;

		job.params[0].init = TERN_INIT_CONSTANT;
		job.params[0].a = values[i];
		job.params[0].b = 0;
		job.params[1].init = values[i] > 0 ? TERN_INIT_UNIFORM : TERN_INIT_NORMAL;
		job.params[1].a = values[i] > 0 ? -values[i] : values[i];
		job.params[1].b = fabsf(values[i]);
		text = tern_ps_job_encode(&job);
		assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why), 0);
		assert_same(&job, &back);
		tern_ps_job_fini(&back);
		tern_ps_job_fini(&job);
		free(text);
	}
}

static void test_the_digest_of_given_values_comes_back(void **state)
{
	static const uint64_t digests[] = {0, 1, 0x8000000000000001ull, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(digests); i++) {
		struct tern_ps_job job = some_job(), back;
		char *text;

		job.params[1].init = TERN_INIT_GIVEN;
		job.params[1].digest = digests[i];
		text = tern_ps_job_encode(&job);
		assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why), 0);
		assert_same(&job, &back);
		assert_true(back.params[1].digest == digests[i]);
		tern_ps_job_fini(&back);
		*strstr(text, "digest") = 'x';
		assert_int_equal(
			tern_ps_job_decode(text, strlen(text), &back, &why), -EINVAL);
		assert_non_null(strstr(
			why.text, "tensor fc1.bias: digest: expected an integer from 0"));
		tern_ps_job_fini(&job);
		free(text);
	}
}

/* What a caller describes wrongly is encoded so that the decoder names it. */
static void refused_after_encoding(
	const char *name, enum tern_init init, float a, float b, const char *word)
{
	struct tern_ps_job job = some_job(), back;
	char *text;

	job.params[1].name = name;
	job.params[1].init = init;
	job.params[1].a = a;
	job.params[1].b = b;
	text = tern_ps_job_encode(&job);
	assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why), -EINVAL);
	if (!strstr(why.text, word))
		fail_msg("\"%s\" does not say \"%s\"", why.text, word);
	tern_ps_job_fini(&job);
	free(text);
}

static void test_tensors_described_wrongly_are_refused_in_words(void **state)
{
	char long_name[TERN_TENSOR_NAME_MAX + 2];

	(void)state;
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	refused_after_encoding("x", TERN_INIT_UNIFORM, 0.5f, 0.5f,
		"tensor x: b: expected a number above a, which is 0.5, got 0.5");
	refused_after_encoding("x", TERN_INIT_NORMAL, 0, -1,
		"tensor x: b: expected a standard deviation of 0 or more, got -1.0");
	refused_after_encoding("x", TERN_INIT_NORMAL, 0, FLT_MAX / 8,
		"tensor x: b: expected a standard deviation so that a + 9 b fits");
	refused_after_encoding("x", TERN_INIT_NORMAL, 0, NAN,
		"tensor x: b: expected a finite number, got null");
	refused_after_encoding("x", TERN_INIT_CONSTANT, -INFINITY, 0,
		"tensor x: a: expected a finite number, got null");
	refused_after_encoding("x", (enum tern_init)5, 0, 0,
		"tensor x: init: expected \"zeros\", \"constant\", \"uniform\", "
		"\"normal\" or \"given\", got \"unknown\"");
	refused_after_encoding(long_name, TERN_INIT_ZEROS, 0, 0,
		"tensor number 1: name: expected 1 to 255 bytes");
	refused_after_encoding("\xff", TERN_INIT_ZEROS, 0, 0,
		"tensor number 1: name: expected 1 to 255 bytes of UTF-8");
}

/* ---- what is refused ---- */

/* Which object contains a field: the job, its optimizer, the schedule of that, or its
 * second parameter. */
enum place { ROOT, OPTIMIZER, SCHEDULE, PARAM };

static json_t *at(json_t *root, enum place place)
{
	switch (place) {
	case ROOT:
		return root;
	case OPTIMIZER:
		return json_object_get(root, "optimizer");
	case SCHEDULE:
		return json_object_get(at(root, OPTIMIZER), "schedule");
	case PARAM:
		return json_array_get(json_object_get(root, "params"), 1);
	}
	return NULL;
}

/* Checks that the job is refused if the field is set to `value` (JSON), or is missing if
 * `value` is NULL. */
static void refused(
	enum place place, const char *field, const char *value, const char *word)
{
	json_t *root = some_json();
	struct tern_ps_job job;

	assert_non_null(json_object_get(at(root, place), field));
	if (value) {
		json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);

		assert_non_null(v);
		json_object_set_new(at(root, place), field, v);
	} else {
		json_object_del(at(root, place), field);
	}
	if (decode(root, &job) != -EINVAL)
		fail_msg("%s: %s was taken", field, value ? value : "nothing");
	if (!strstr(why.text, word) || !strstr(why.text, "expected"))
		fail_msg("%s: %s: \"%s\" does not say \"%s\"", field,
			value ? value : "nothing", why.text, word);
	assert_null(job.params);
	assert_null(job.servers);
}

static const struct {
	enum place place;
	/* `word`: expected in the error; NULL: the name of the field. */
	const char *field, *word;
	const char *wrong[7];
} fields[] = {
	{ROOT, "mode", NULL,
		{"\"both\"", "\"\"", "\"ssp\"", "\"ssp:-1\"", "\"ssp:1099511627777\"",
			"\"ssp:18446744073709551615\""}},
	{ROOT, "steps", NULL, {"-1", "1.0", "1099511627777"}},
	{ROOT, "seed", NULL, {"1.5"}},
	{ROOT, "slots", NULL, {"0", "-1", "4097", "1.0"}},
	{ROOT, "workers", NULL, {"0", "-1", "4097", "1.0"}},
	{ROOT, "batch", NULL, {"0", "-1", "16777217", "1.0"}},
	{ROOT, "records", NULL, {"-1", "1099511627777", "1.0"}},
	{ROOT, "data", NULL, {"1.5"}},
	{ROOT, "clip_norm", NULL, {"-1", "-0.001"}},
	{ROOT, "arithmetic", NULL, {"3"}},
	{ROOT, "optimizer", NULL, {"\"adam\"", "{}"}},
	/* Without rules (an empty list), that of fc1.bias is missing. */
	{ROOT, "rules", "rule", {"{}", "3"}},
	{ROOT, "params", NULL, {"{}", "[3]", "[{}]"}},
	{ROOT, "servers", NULL, {"{}", "[3]", "[\"\"]", "[\"a\", null]"}},
	{OPTIMIZER, "name", "optimizer", {"3", "\"sgdx\"", "\"\""}},
	{OPTIMIZER, "lr", NULL, {"\"1\"", "1e300", "-1e39"}},
	/* adam does not have these two */
	{OPTIMIZER, "momentum", NULL, {"1e39", "0.1", "-0.1"}},
	{OPTIMIZER, "initial_accumulator", NULL, {"1e39", "0.1"}},
	/* 0.99999999999 is 1 as a float, 1e-50 is 0. */
	{OPTIMIZER, "beta1", NULL, {"1e39", "1", "-0.1", "0.99999999999"}},
	{OPTIMIZER, "beta2", NULL, {"1e39", "1", "-0.1"}},
	{OPTIMIZER, "epsilon", NULL, {"1e39", "0", "-1e-8", "1e-50"}},
	{OPTIMIZER, "weight_decay", NULL, {"1e39", "-0.1"}},
	{OPTIMIZER, "schedule", NULL, {"\"cosine\"", "{}"}},
	{SCHEDULE, "name", "schedule", {"3", "\"cosin\"", "\"\"", "\"constant\""}},
	{SCHEDULE, "warmup", NULL, {"-1", "1.0", "1099511627777"}},
	{SCHEDULE, "steps", NULL, {"0", "-1", "1.0", "1099511627777"}},
	{SCHEDULE, "factor", NULL, {"\"1\"", "-0.1", "1.1"}},
	{PARAM, "name", NULL, {"\"\"", "3", "\"__metadata__\""}},
	{PARAM, "dims", "fc1.bias",
		{"{}", "[0]", "[-1]", "[1.0]", "[1,1,1,1,1,1,1,1,1]", "[1099511627776]",
			"[4294967296,4294967296,4294967296]"}},
	{PARAM, "init", "tensor fc1.bias: init", {"1", "true", "\"zero\"", "\"\""}},
	{PARAM, "a", "tensor fc1.bias: a", {"1e39", "\"1\""}},
	{PARAM, "rule", "tensor fc1.bias: rule", {"3", "-1", "1.0"}},
	{PARAM, "b", "tensor fc1.bias: b", {"-1e39", "\"1\""}},
};

static void test_a_field_that_is_missing_or_wrong_is_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(fields); i++) {
		const char *word = fields[i].word ? fields[i].word : fields[i].field;

		refused(fields[i].place, fields[i].field, NULL, word);
		refused(fields[i].place, fields[i].field, "null", word);
		/* An empty list of dims is valid: it is the shape of a scalar. */
		if (strcmp(fields[i].field, "dims") != 0)
			refused(fields[i].place, fields[i].field, "[]", word);
		for (size_t j = 0; j < 7 && fields[i].wrong[j]; j++)
			refused(fields[i].place, fields[i].field, fields[i].wrong[j],
				word);
	}
}

static void test_the_value_of_a_wrong_field_is_told(void **state)
{
	(void)state;
	refused(ROOT, "steps", "-1", "an integer from 0 to 1099511627776, got -1");
	refused(ROOT, "mode", NULL, "from 0 to 2^40, got nothing");
	refused(ROOT, "mode", "\"both\"", "from 0 to 2^40, got \"both\"");
	refused(OPTIMIZER, "lr", "[1,2]", "a finite number, got [1,2]");
	refused(PARAM, "a", "[1,2]",
		"tensor fc1.bias: a: expected a finite number, got [1,2]");
	refused(PARAM, "init", "\"gauss\"",
		"tensor fc1.bias: init: expected \"zeros\", \"constant\", \"uniform\", "
		"\"normal\" or \"given\", got \"gauss\"");
	refused(PARAM, "dims", "[0]", "tensor fc1.bias: dims: expected dimensions of 1");
	refused(PARAM, "name", "\"\"", "tensor number 1: name: expected 1 to 255 bytes");
	refused(PARAM, "name", "\"fc1.weight\"",
		"tensor fc1.weight: expected every name once");
	refused(OPTIMIZER, "beta1", "1", "beta1: expected 0 or more, and below 1, got 1");
	refused(OPTIMIZER, "momentum", "0.5", "0, since the optimizer does not have it");
	refused(ROOT, "batch",
		"\"1234567890123456789012345678901234567890123456789012345678901234\"",
		"got a longer text");
}

/* The norm of gradients has no meaning for means of statistics. */
static void test_means_and_clipping_exclude_each_other(void **state)
{
	struct tern_ps_job job = some_job(), back;
	char *text;

	(void)state;
	tern_optimizer_parse("mean", &job.rules[1]);
	for (int clips = 0; clips < 2; clips++) {
		job.clip_norm = clips;
		text = tern_ps_job_encode(&job);
		assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why),
			clips ? -EINVAL : 0);
		tern_ps_job_fini(&back);
		free(text);
	}
	assert_non_null(strstr(why.text, "clip_norm: expected 0"));
	tern_ps_job_fini(&job);
}

/* Every field of an encoded job is in the list above. */
static void test_all_fields_are_tried(void **state)
{
	json_t *root = some_json();
	size_t sent = 0;

	(void)state;
	sent += json_object_size(at(root, ROOT));
	sent += json_object_size(at(root, OPTIMIZER));
	sent += json_object_size(at(root, SCHEDULE));
	sent += json_object_size(at(root, PARAM));
	assert_int_equal(sent, TERN_ARRAY_SIZE(fields));
	json_decref(root);
}

static void test_strings_that_are_too_long_are_refused(void **state)
{
	char value[131];

	(void)state;
	memset(value, 'x', sizeof(value));
	value[0] = value[129] = '"'; /* 128 characters between the quotes */
	value[130] = 0;
	refused(ROOT, "arithmetic", value, "arithmetic");
	for (unsigned longest = 0; longest < 2; longest++) {
		json_t *root = some_json();
		struct tern_ps_job job;

		value[0] = value[127] = 'x';
		value[127 + longest] = 0;
		json_array_set_new(
			json_object_get(root, "servers"), 1, json_string(value));
		assert_int_equal(decode(root, &job), longest ? -EINVAL : 0);
		tern_ps_job_fini(&job);
	}
	assert_non_null(strstr(why.text, "servers"));
}

static json_t *tensor_json(unsigned number)
{
	char name[16];

	snprintf(name, sizeof(name), "t%u", number);
	return json_pack("{s:s, s:[i], s:s, s:f, s:f, s:i}", "name", name, "dims", 1,
		"init", "zeros", "a", 0.0, "b", 0.0, "rule", 0);
}

static void test_lists_that_are_too_long_are_refused(void **state)
{
	json_t *root = some_json(), *params;
	struct tern_ps_job job;

	(void)state;
	for (unsigned i = 2; i < TERN_SERVERS_MAX; i++)
		json_array_append_new(json_object_get(root, "servers"), json_string("a"));
	assert_int_equal(decode(json_deep_copy(root), &job), 0);
	tern_ps_job_fini(&job);
	json_array_append_new(json_object_get(root, "servers"), json_string("a"));
	assert_int_equal(decode(root, &job), -EINVAL);
	assert_non_null(strstr(why.text, "servers"));

	root = some_json();
	for (unsigned i = 2; i <= TERN_JOB_RULES_MAX; i++)
		json_array_append(json_object_get(root, "rules"), at(root, OPTIMIZER));
	assert_int_equal(decode(root, &job), -EINVAL);
	assert_non_null(strstr(why.text, "rules: expected a list of at most 16"));

	root = some_json();
	params = json_object_get(root, "params");
	for (unsigned i = 2; i < TERN_PARAMS_MAX; i++)
		json_array_append_new(params, tensor_json(i));
	assert_int_equal(decode(json_deep_copy(root), &job), 0);
	tern_ps_job_fini(&job);
	json_array_append_new(params, tensor_json(TERN_PARAMS_MAX));
	assert_int_equal(decode(root, &job), -EINVAL);
	assert_non_null(strstr(why.text, "params"));
}

static void test_clipping_in_async_mode_is_refused(void **state)
{
	(void)state;
	refused(ROOT, "mode", "\"async\"", "clip_norm");
}

static void test_what_is_no_object_is_refused(void **state)
{
	static const char *const texts[] = {
		"", " ", "{", "[]", "3", "null", "{}x", "\"mode\"", "\xff\xfe", "{}"};
	struct tern_ps_job job;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		why.text[0] = 0;
		assert_int_equal(
			tern_ps_job_decode(texts[i], strlen(texts[i]), &job, &why),
			-EINVAL);
		assert_non_null(strstr(why.text, "expected"));
	}
}

/* A field that occurs twice is refused, since it would be unclear which value is
 * meant. */
static void test_duplicate_fields_are_refused(void **state)
{
	struct tern_ps_job job = some_job(), back;
	char *text = tern_ps_job_encode(&job), twice[4096];

	(void)state;
	snprintf(twice, sizeof(twice), "{\"steps\":1,%s", text + 1);
	assert_int_equal(tern_ps_job_decode(twice, strlen(twice), &back, &why), -EINVAL);
	free(text);
	tern_ps_job_fini(&job);
}

/* ---- random changes ---- */

/* Changes the text at random: replaces a byte by any byte or by one that JSON uses,
 * removes a piece, or repeats a piece. */
static size_t mutate(char *text, size_t bytes, size_t room, struct tern_rng *rng)
{
	size_t from = tern_rng_below(rng, bytes), n = 1 + tern_rng_below(rng, 12);

	n = TERN_MIN(n, bytes - from);
	switch (tern_rng_below(rng, 4)) {
	case 0:
		text[from] = (char)tern_rng_next(rng);
		return bytes;
	case 1:
		text[from] = "0123456789-.eE\"{}[],:"[tern_rng_below(rng, 21)];
		return bytes;
	case 2:
		memmove(text + from, text + from + n, bytes - from - n);
		return bytes - n;
	default:
		if (bytes + n > room)
			return bytes;
		memmove(text + from + n, text + from, bytes - from);
		return bytes + n;
	}
}

static void check_limits(const struct tern_ps_job *job)
{
	uint64_t elements = 0;

	assert_true(job->slots >= 1 && job->slots <= TERN_SLOTS_MAX);
	assert_true(job->workers >= 1 && job->workers <= TERN_WORKERS_MAX);
	assert_true(job->batch >= 1 && job->clip_norm >= 0);
	assert_true(job->param_count >= 1 && job->server_count >= 1);
	for (uint32_t i = 0; i < job->param_count; i++) {
		assert_int_equal(job->params[i].first, elements);
		assert_true(job->params[i].count > 0);
		elements += job->params[i].count;
	}
	assert_int_equal(elements, job->element_count);
}

static void test_changed_bytes_are_refused_or_a_sane_job(void **state)
{
	struct tern_ps_job job = some_job(), back;
	char *text = tern_ps_job_encode(&job);
	size_t length = strlen(text), room = length + 64;
	struct tern_rng rng = {.seed = 25};
	unsigned taken = 0, turned_down = 0;

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		char *changed = malloc(room), *exact;
		size_t bytes = length;

		memcpy(changed, text, length);
		for (uint64_t n = 1 + tern_rng_below(&rng, 3); n > 0; n--)
			bytes = mutate(changed, bytes, room, &rng);
		exact = malloc(bytes + !bytes);
		memcpy(exact, changed, bytes);
		if (tern_ps_job_decode(exact, bytes, &back, &why) == 0) {
			check_limits(&back);
			tern_ps_job_fini(&back);
			taken++;
		} else {
			assert_true(why.text[0] != 0);
			assert_null(back.params);
			turned_down++;
		}
		free(exact);
		free(changed);
	}
	assert_true(taken > 100 && turned_down > 100);
	free(text);
	tern_ps_job_fini(&job);
}

/* ---- differences between two jobs ---- */

#define DIFFERS(change, word)                                                            \
	do {                                                                             \
		struct tern_ps_job ours = some_job(), theirs = some_job();               \
		change;                                                                  \
		why.text[0] = 0;                                                         \
		assert_true(tern_ps_job_differs(&ours, &theirs, "worker 7", &why));      \
		if (!strstr(why.text, word) || !strstr(why.text, "worker 7"))            \
			fail_msg("\"%s\" does not say \"%s\"", why.text, word);          \
		tern_ps_job_fini(&ours);                                                 \
		tern_ps_job_fini(&theirs);                                               \
	} while (0)

/* --arithmetic chooses between the names of built-in engines only. */
static void test_portable_arithmetic_is_advised_for_built_in_engines_only(void **state)
{
	static const char advice[] = "--arithmetic portable";

	(void)state;
	DIFFERS(strcpy(ours.arithmetic, "avx2 openblas libm 01234567");
		strcpy(theirs.arithmetic, "portable portable libm 01234567"), advice);
	DIFFERS(strcpy(ours.arithmetic, "avx2 openblas libm 01234567");
		strcpy(theirs.arithmetic, "mine 2"), "equal bits");
	assert_null(strstr(why.text, advice));
	DIFFERS(strcpy(ours.arithmetic, "numpy 1"); strcpy(theirs.arithmetic, "numpy 2"),
		"\"numpy 2\", the job \"numpy 1\": equal bits need equal arithmetic");
	assert_null(strstr(why.text, advice));
}

static void test_a_difference_is_said_with_both_values(void **state)
{
	(void)state;
	DIFFERS(theirs.mode = TERN_MODE_ASYNC, "has async, the job sync");
	DIFFERS((theirs.mode = TERN_MODE_ASYNC, theirs.ssp = 4),
		"has ssp:3, the job sync");
	DIFFERS(theirs.steps = 999, "999, the job 1000");
	DIFFERS(theirs.seed = 5, "seed");
	DIFFERS(theirs.slots = 9, "9, the job 8");
	DIFFERS(theirs.workers = 4, "4, the job 3");
	DIFFERS(theirs.batch = 33, "33, the job 32");
	DIFFERS(theirs.records = 59999, "59999, the job 60000");
	DIFFERS(theirs.data = 1, "not the same ones (digest 0000000000000001");
	DIFFERS(theirs.server_count = 1, "servers");
	DIFFERS(theirs.clip_norm = 0, "clip norm");
	DIFFERS(strcpy(theirs.arithmetic, "avx2"), "\"avx2\"");
	DIFFERS(theirs.optimizer.kind = TERN_OPT_SGD, "sgd, the job adam");
	DIFFERS(theirs.optimizer.lr = 1, "learning rate");
	DIFFERS(theirs.optimizer.lr = 0.3f, "has 0.3, the job 0.001");
	DIFFERS(theirs.clip_norm = 0.7, "has 0.7, the job 0.1");
	DIFFERS(theirs.workers = theirs.slots = 4, "workers: worker 7 has 4, the job 3");
	DIFFERS(theirs.optimizer.momentum = 1, "momentum");
	DIFFERS(theirs.optimizer.beta1 = 0, "beta1");
	DIFFERS(theirs.optimizer.beta2 = 0, "beta2");
	DIFFERS(theirs.optimizer.epsilon = 1, "epsilon");
	DIFFERS(theirs.optimizer.weight_decay = 0, "weight decay");
	DIFFERS(theirs.optimizer.initial_accumulator = 1, "initial accumulator");
	DIFFERS(theirs.optimizer.schedule.warmup = 0,
		"steps of warm-up: worker 7 has 0, the job 10");
	DIFFERS(theirs.optimizer.schedule = (struct tern_schedule){.warmup = 10},
		"schedule of the learning rate: worker 7 has constant, the job "
		"cosine:1000,0.1");
	DIFFERS(theirs.optimizer.schedule.kind = TERN_SCHEDULE_LINEAR, "linear:1000,0.1");
	DIFFERS(theirs.optimizer.schedule.steps = 7, "has cosine:7,0.1, the job");
	DIFFERS(theirs.optimizer.schedule.factor = 0.7, "has cosine:1000,0.7, the job");
	DIFFERS(theirs.rule_count = 1, "number of rules: worker 7 has 1, the job 2");
	DIFFERS(theirs.rules[1].kind = TERN_OPT_ADAGRAD,
		"worker 7 has adagrad, the job rmsprop");
	DIFFERS(theirs.rules[0].lr = 1, "learning rate");
	DIFFERS(theirs.params[1].rule = 0,
		"tensor fc1.bias: worker 7 gives it rule 0, the job rule 2");
	/* The two numbers differ by one, which float64 cannot represent at this size. */
	DIFFERS(theirs.seed++, "18364758544493064721, the job 18364758544493064720");
}

static void set_init(
	struct tern_ps_job *job, uint32_t i, enum tern_init init, float a, float b)
{
	job->params[i].init = init;
	job->params[i].a = a;
	job->params[i].b = b;
}

static void swap_tensors(struct tern_ps_job *job)
{
	struct tern_param first = job->params[0];

	job->params[0] = job->params[1];
	job->params[1] = first;
}

static void test_a_difference_between_tensors_is_said_in_words(void **state)
{
	(void)state;
	DIFFERS(theirs.param_count = 1,
		"tensor fc1.bias: the job has it, worker 7 does not");
	DIFFERS(ours.param_count = 1,
		"tensor fc1.bias: worker 7 has it, the job does not");
	DIFFERS(theirs.params[1].name = "b",
		"tensor fc1.bias: the job has it, worker 7 does not");
	DIFFERS(swap_tensors(&theirs),
		"tensor fc1.weight: number 0 of the job, but worker 7 has fc1.bias "
		"there: both must have the tensors in the same order");
	DIFFERS(theirs.params[0].shape.dims[1] = 8,
		"tensor fc1.weight: worker 7 has the shape f32[4,8], the job f32[4,7]");
	DIFFERS(set_init(&ours, 0, TERN_INIT_ZEROS, 0, 0),
		"tensor fc1.weight: worker 7 starts it uniform in [-0.3, 0.3), the job "
		"with zeros");
	DIFFERS(set_init(&theirs, 0, TERN_INIT_UNIFORM, -0.3f, 1),
		"starts it uniform in [-0.3, 1), the job uniform in [-0.3, 0.3)");
	DIFFERS(set_init(&theirs, 1, TERN_INIT_CONSTANT, 0.1f, 0),
		"tensor fc1.bias: worker 7 starts it with the constant 0.1, the job with "
		"zeros");
	DIFFERS(set_init(&theirs, 1, TERN_INIT_NORMAL, -1, 0.02f),
		"starts it normal with mean -1 and standard deviation 0.02, the job with "
		"zeros");
}

static void give(struct tern_ps_job *job, uint64_t digest)
{
	set_init(job, 1, TERN_INIT_GIVEN, 0, 0);
	job->params[1].digest = digest;
}

static void test_other_given_values_are_a_difference(void **state)
{
	(void)state;
	DIFFERS((give(&ours, 5), give(&theirs, 6)),
		"tensor fc1.bias: worker 7 gives it other initial values than the job "
		"(digest 0000000000000006, the job's 0000000000000005): make them with "
		"the same seed (such as torch.manual_seed) or file (--init-from) on all "
		"workers, or set init_from_first");
	DIFFERS(give(&theirs, 6),
		"with given values (--init-from, or a program's), which must be those of "
		"all workers");
	DIFFERS((give(&ours, 5), give(&theirs, 0)),
		"tensor fc1.bias: worker 7 starts it with given values (--init-from, or "
		"a program's), of the first worker that lives, the job with given values "
		"(--init-from, or a program's), which must be those of all workers");
}

static void test_equal_given_values_are_no_difference(void **state)
{
	struct tern_ps_job ours = some_job(), theirs = some_job();

	(void)state;
	give(&ours, 5);
	give(&theirs, 5);
	assert_false(tern_ps_job_differs(&ours, &theirs, "it", &why));
	tern_ps_job_fini(&ours);
	tern_ps_job_fini(&theirs);
}

/* Long names are cut, so the rest of the sentence is whole. */
static void test_a_difference_between_long_names_is_said_to_its_end(void **state)
{
	char long_name[TERN_TENSOR_NAME_MAX + 1];

	(void)state;
	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	DIFFERS((give(&ours, 5), give(&theirs, 6),
			ours.params[1].name = theirs.params[1].name = long_name),
		"or set init_from_first");
	DIFFERS(ours.params[1].name = long_name, "xxx...: the job has it, worker 7 does");
	DIFFERS((ours.params[0].name = theirs.params[0].name = long_name,
			set_init(&theirs, 0, TERN_INIT_NORMAL, -1.17549435e-38f,
				1.17549435e-38f)),
		"the job uniform in [-0.3, 0.3)");
}

/* 0 and -0 are equal numbers of different bits, and numbers that a kind of initial values
 * does not use make no difference. */
static void test_initial_values_are_compared_as_they_are_used(void **state)
{
	struct tern_ps_job ours = some_job(), theirs = some_job();

	(void)state;
	set_init(&theirs, 1, TERN_INIT_ZEROS, 3, 4);
	assert_false(tern_ps_job_differs(&ours, &theirs, "it", &why));
	set_init(&ours, 1, TERN_INIT_CONSTANT, 0.0f, 1);
	set_init(&theirs, 1, TERN_INIT_CONSTANT, 0.0f, 2);
	assert_false(tern_ps_job_differs(&ours, &theirs, "it", &why));
	set_init(&theirs, 1, TERN_INIT_CONSTANT, -0.0f, 1);
	assert_true(tern_ps_job_differs(&ours, &theirs, "it", &why));
	assert_non_null(strstr(why.text, "with the constant -0, the job with the "
					 "constant 0"));
	tern_ps_job_fini(&ours);
	tern_ps_job_fini(&theirs);
}

static void test_arithmetic_may_differ_in_async_mode(void **state)
{
	struct tern_ps_job ours = some_job(), theirs = some_job();

	(void)state;
	ours.mode = theirs.mode = TERN_MODE_ASYNC;
	strcpy(theirs.arithmetic, "avx2");
	assert_false(tern_ps_job_differs(&ours, &theirs, "it", &why));
	tern_ps_job_fini(&ours);
	tern_ps_job_fini(&theirs);
}

static void test_async_shares_add_up_to_the_steps(void **state)
{
	struct tern_ps_job job = {.mode = TERN_MODE_ASYNC, .workers = 7};

	(void)state;
	for (job.steps = 0; job.steps < 30; job.steps++) {
		uint64_t sum = 0;

		for (uint32_t i = 0; i < job.workers; i++)
			sum += tern_ps_job_steps_of(&job, i);
		assert_int_equal(sum, job.steps);
	}
	job.mode = TERN_MODE_SYNC;
	assert_int_equal(tern_ps_job_steps_of(&job, 3), 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_job_comes_back_the_same),
		cmocka_unit_test(test_names_of_1_to_255_bytes_come_back),
		cmocka_unit_test(test_initial_values_come_back_bit_for_bit),
		cmocka_unit_test(test_the_digest_of_given_values_comes_back),
		cmocka_unit_test(test_tensors_described_wrongly_are_refused_in_words),
		cmocka_unit_test(test_a_field_that_is_missing_or_wrong_is_named),
		cmocka_unit_test(test_the_value_of_a_wrong_field_is_told),
		cmocka_unit_test(test_means_and_clipping_exclude_each_other),
		cmocka_unit_test(test_all_fields_are_tried),
		cmocka_unit_test(test_strings_that_are_too_long_are_refused),
		cmocka_unit_test(test_lists_that_are_too_long_are_refused),
		cmocka_unit_test(test_clipping_in_async_mode_is_refused),
		cmocka_unit_test(test_what_is_no_object_is_refused),
		cmocka_unit_test(test_duplicate_fields_are_refused),
		cmocka_unit_test(test_changed_bytes_are_refused_or_a_sane_job),
		cmocka_unit_test(test_a_difference_is_said_with_both_values),
		cmocka_unit_test(test_a_difference_between_tensors_is_said_in_words),
		cmocka_unit_test(test_other_given_values_are_a_difference),
		cmocka_unit_test(test_equal_given_values_are_no_difference),
		cmocka_unit_test(test_a_difference_between_long_names_is_said_to_its_end),
		cmocka_unit_test(test_initial_values_are_compared_as_they_are_used),
		cmocka_unit_test(
			test_portable_arithmetic_is_advised_for_built_in_engines_only),
		cmocka_unit_test(test_arithmetic_may_differ_in_async_mode),
		cmocka_unit_test(test_async_shares_add_up_to_the_steps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
