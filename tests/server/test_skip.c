/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that the slots of a step do not push. Whole jobs, whose workers are sessions, are
 * compared bit by bit with the update rules, applied to each tensor alone in the steps in
 * which a slot has pushed it.
 */
#include "tests/server/train_bed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ps/sum.h"

#define STEPS     7u
#define SLOTS_MAX 20u
#define DECAY     0.1f
#define RATE      0.05f

enum { ALWAYS, NEVER, OFTEN, SELDOM };

/* In the order of their names. `large` lies in several chunks, and several tensors share
 * a chunk. */
static const struct {
	const char *name, *rule;
	uint64_t count;
	unsigned pushed;
} tensors[] = {{"a.large", "adamw", 18000, OFTEN}, {"b.gate", "adam", 3, OFTEN},
	{"c", "momentum", 700, OFTEN}, {"d", "nesterov", 50, SELDOM},
	{"e", "adagrad", 9, OFTEN}, {"f", "rmsprop", 9, SELDOM}, {"g", "sgd", 5, OFTEN},
	{"h", "adamw", 4000, NEVER}, {"i", "adamw", 6000, ALWAYS},
	{"j", "mean", 40, OFTEN}, {"k.large", "momentum", 9000, SELDOM},
	{"l", "adamw", 1, SELDOM}, {"m", "adamw", 1, OFTEN}};

#define TENSORS  TERN_ARRAY_SIZE(tensors)
#define ELEMENTS 37818u

struct values {
	float at[ELEMENTS];
};

static const struct tern_schedule_opts schedule = {
	.name = "cosine", .warmup = 2, .factor = 0.1};

static uint64_t first_of(unsigned k)
{
	uint64_t first = 0;

	for (unsigned i = 0; i < k; i++)
		first += tensors[i].count;
	return first;
}

/* Whether a slot pushes the tensor. In some steps no slot pushes those that are not pushed
 * always. */
static bool pushes(unsigned k, uint64_t step, uint32_t slot)
{
	static const unsigned permille[] = {
		[ALWAYS] = 1000, [NEVER] = 0, [OFTEN] = 700, [SELDOM] = 300};
	unsigned limit = permille[tensors[k].pushed];

	return tern_rng_at(1, k, step, 0) % 1000 < limit &&
	       tern_rng_at(2, k, step, slot) % 1000 < limit + (limit > 0) * 200;
}

static void fill(float *to, const float *w, unsigned k, uint64_t step, uint32_t slot)
{
	struct tern_rng rng = {.seed = tern_rng_at(3, k, step, slot)};

	for (uint64_t i = 0; i < tensors[k].count; i++)
		to[i] = w[i] / 4 + tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
}

/* ---- the rules, applied to each tensor alone ---- */

struct reference {
	struct tern_optimizer rule;
	uint64_t updates;
	float *w, *m, *v;
	float g[SLOTS_MAX][18000];
};

static void make_step(struct reference *r, unsigned k, uint64_t step, uint32_t slots)
{
	struct tern_optimizer now = r->rule;
	const float *in[SLOTS_MAX];
	bool pushed = false;

	for (uint32_t i = 0; i < slots; i++) {
		in[i] = r->g[i];
		memset(r->g[i], 0, tensors[k].count * sizeof(float));
		if (!pushes(k, step, i))
			continue;
		fill(r->g[i], r->w, k, step, i);
		pushed = true;
	}
	if (!pushed)
		return;
	now.lr = tern_schedule_lr(&r->rule.schedule, r->rule.lr, step + 1);
	now.schedule = (struct tern_schedule){.kind = TERN_SCHEDULE_CONSTANT};
	tern_update_run(&(struct tern_update){.kernels = tern_kernels_cpu(),
		.optimizer = &now,
		.step = ++r->updates,
		.w_in = r->w,
		.w_out = r->w,
		.m = tern_optimizer_has_m(now.kind) ? r->m : NULL,
		.v = tern_optimizer_has_v(now.kind) ? r->v : NULL,
		.gradients = in,
		.gradient_count = slots,
		.scale = 1.0f / (float)slots,
		.clip = 1,
		.count = tensors[k].count});
}

/* Makes all steps on the initial values. */
static void refer(struct values *w, uint32_t slots)
{
	struct reference *r = calloc(1, sizeof(*r));
	unsigned skipped = 0;

	assert_non_null(r);
	for (unsigned k = 0; k < TENSORS; k++) {
		uint64_t n = tensors[k].count;

		tern_optimizer_parse(tensors[k].rule, &r->rule);
		r->rule.lr = RATE;
		r->rule.weight_decay = DECAY;
		r->rule.schedule = (struct tern_schedule){.kind = TERN_SCHEDULE_COSINE,
			.warmup = schedule.warmup,
			.steps = STEPS,
			.factor = schedule.factor};
		r->w = w->at + first_of(k);
		r->m = calloc(n, sizeof(float));
		r->v = calloc(n, sizeof(float));
		for (uint64_t i = 0; i < n; i++)
			r->v[i] = r->rule.initial_accumulator;
		r->updates = 0;
		for (uint64_t step = 0; step < STEPS; step++)
			make_step(r, k, step, slots);
		skipped += STEPS - (unsigned)r->updates;
		free(r->m);
		free(r->v);
	}
	assert_in_range(skipped, STEPS + 5, TENSORS * STEPS * 2 / 3);
	free(r);
}

/* ---- workers ---- */

struct seat { /* a worker */
	struct tern_session *session;
	uint32_t ids[TENSORS];
	bool finished;
};

static void declare(struct seat *seat, const struct setup *setup)
{
	for (unsigned k = 0; k < TENSORS; k++) {
		/* The norm of clipping excludes the rule mean. */
		const char *rule =
			setup->clip_norm > 0 && strcmp(tensors[k].rule, "mean") == 0
				? "sgd"
				: tensors[k].rule;
		const struct tern_rule_opts opts = {.name = rule,
			.lr = strcmp(rule, "mean") ? (double)RATE : 0,
			.weight_decay = strcmp(rule, "mean") ? (double)DECAY : 0};

		assert_int_equal(
			tern_session_tensor(seat->session,
				&(struct tern_tensor_opts){.name = tensors[k].name,
					.shape =
						tern_shape_1d(TERN_F32, tensors[k].count),
					.init = TERN_INIT_UNIFORM,
					.a = -1,
					.b = 1,
					.rule = &opts},
				&seat->ids[k]),
			0);
	}
}

static void sit_down(struct seat *seat, struct member *m, const struct setup *setup,
	char addresses[][128], unsigned index)
{
	const struct tern_job_opts job = {.workers = setup->workers,
		.index = index,
		.mode = setup->mode == TERN_MODE_SYNC ? TERN_TRAIN_SYNC
						      : TERN_TRAIN_ASYNC,
		.slots = setup->mode == TERN_MODE_SYNC ? setup->slots : 0,
		.steps = STEPS,
		.seed = 4,
		.clip_norm = setup->clip_norm,
		.schedule = schedule};
	char join[2 * 128 + 2];

	open_member(m);
	snprintf(join, sizeof(join), "%.128s%s%.128s", addresses[0],
		setup->servers > 1 ? "," : "", setup->servers > 1 ? addresses[1] : "");
	assert_int_equal(tern_session_new(m->ctx,
				 &(struct tern_session_opts){.join = join}, &m->session),
		0);
	seat->session = m->session;
	declare(seat, setup);
	if (tern_session_start(seat->session, &job) < 0)
		fail_msg("%s", tern_session_text(seat->session));
}

static void compute(struct seat *seat, struct values *first)
{
	struct tern_slot_info info;
	struct tern_slot *slot;

	if (tern_session_next(seat->session, &slot, &info) < 0)
		return;
	for (unsigned k = 0; k < TENSORS; k++) {
		const float *w = tern_slot_param(slot, seat->ids[k]);

		if (info.step == 0)
			memcpy(first->at + first_of(k), w,
				tensors[k].count * sizeof(float));
		if (!pushes(k, info.step, info.slot))
			continue;
		fill(tern_slot_gradient(slot, seat->ids[k]), w, k, info.step, info.slot);
		assert_int_equal(tern_slot_push(slot, seat->ids[k], NULL), 0);
	}
	assert_int_equal(tern_slot_end(slot, 0), 0);
}

/* Lets the worker do what it can. Returns true if it has left the job. */
static bool go_on(struct seat *seat, struct values *first, struct values *last)
{
	int status = tern_session_status(seat->session);

	if (status != -EAGAIN) {
		if (status < 0)
			fail_msg("%s", tern_session_text(seat->session));
		return true;
	}
	compute(seat, first);
	if (tern_session_finisher(seat->session) != 1 || seat->finished)
		return false;
	for (unsigned k = 0; k < TENSORS; k++)
		memcpy(last->at + first_of(k),
			tern_session_param(seat->session, seat->ids[k]),
			tensors[k].count * sizeof(float));
	seat->finished = true;
	tern_session_finished(seat->session, NULL);
	return false;
}

/* How many tensors the servers say that no slot has pushed, and what one of them says. */
static struct {
	unsigned count;
	char text[300];
} warned;

static void warn(void *arg, const char *text)
{
	unsigned count = 1;

	(void)arg;
	sscanf(text, "no slot of the job has pushed %u tensors", &count);
	warned.count += count;
	snprintf(warned.text, sizeof(warned.text), "%s", text);
}

/* Runs a job. Returns the initial values and the final ones. */
static void train(const struct setup *setup, struct values *first, struct values *last)
{
	struct member members[MEMBERS_MAX] = {0};
	struct seat seats[MEMBERS_MAX] = {0};
	char addresses[MEMBERS_MAX][128];
	unsigned count = setup->servers + setup->workers, left = setup->workers;
	uint64_t limit = tern_clock_ns() + 60 * TERN_NS_PER_S;

	warned.count = 0;
	start_servers(members, setup, addresses);
	for (unsigned i = 0; i < setup->servers; i++)
		members[i].server->opts.warning = warn;
	for (unsigned i = 0; i < setup->workers; i++)
		sit_down(&seats[i], &members[setup->servers + i], setup, addresses, i);
	while (left > 0) {
		step_all(members, count);
		left = 0;
		for (unsigned i = 0; i < setup->workers; i++)
			left += !go_on(&seats[i], first, last);
		assert_true(tern_clock_ns() < limit);
	}
	close_members(members, count);
}

/* ---- cases ---- */

static struct values initial, result, other;

static bool is_never_pushed(unsigned k, uint32_t slots)
{
	for (uint64_t step = 0; step < STEPS; step++)
		for (uint32_t i = 0; i < slots; i++)
			if (pushes(k, step, i))
				return false;
	return true;
}

static void expect_warnings(const struct setup *setup)
{
	unsigned count = 0;

	for (unsigned k = 0; k < TENSORS; k++)
		count += is_never_pushed(k, setup->slots);
	assert_true(count > 0);
	assert_int_equal(warned.count, count);
	if (count == 1)
		assert_string_equal(warned.text,
			"no slot of the job has pushed tensor h: "
			"it has its initial values");
}

static void expect_the_rules(const struct setup *setup)
{
	train(setup, &initial, &result);
	expect_warnings(setup);
	refer(&initial, setup->slots);
	for (unsigned k = 0; k < TENSORS; k++)
		if (memcmp(initial.at + first_of(k), result.at + first_of(k),
			    tensors[k].count * sizeof(float)) != 0)
			fail_msg("%s, %u servers, %u workers, %u slots: tensor %s has "
				 "other values than its rule gives",
				setup->fabric, setup->servers, setup->workers,
				setup->slots, tensors[k].name);
}

static void test_a_tensor_that_no_slot_pushes_stands_still(void **state)
{
	static const struct setup setups[] = {
		{"tcp", NULL, NULL, 1, 1, 1, STEPS, TERN_MODE_SYNC, 0},
		{"tcp", NULL, NULL, 2, 2, 3, STEPS, TERN_MODE_SYNC, 0},
		/* Gradients are read in place. */
		{"shm", NULL, NULL, 1, 3, 3, STEPS, TERN_MODE_SYNC, 0},
		{"shm", NULL, NULL, 2, 4, 2, STEPS, TERN_MODE_SYNC, 0},
		/* Gradients are folded. */
		{"tcp", NULL, NULL, 1, 2, 20, STEPS, TERN_MODE_SYNC, 0},
		{"shm", NULL, NULL, 2, 1, 13, STEPS, TERN_MODE_SYNC, 0},
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(setups); i++)
		expect_the_rules(&setups[i]);
}

static void test_so_does_one_that_an_async_gradient_lacks(void **state)
{
	(void)state;
	expect_the_rules(
		&(struct setup){"tcp", NULL, NULL, 2, 1, 1, STEPS, TERN_MODE_ASYNC, 0});
	expect_the_rules(
		&(struct setup){"shm", NULL, NULL, 1, 1, 1, STEPS, TERN_MODE_ASYNC, 0});
}

static void test_it_does_so_where_gradients_are_clipped(void **state)
{
	static const struct setup setups[] = {
		{"shm", NULL, NULL, 2, 3, 5, STEPS, TERN_MODE_SYNC, 0.5},
		{"tcp", NULL, NULL, 1, 5, 5, STEPS, TERN_MODE_SYNC, 0.5},
		{"shm", NULL, NULL, 1, 5, 5, STEPS, TERN_MODE_SYNC, 0.5},
	};
	/* A norm that no gradient has. */
	static const struct setup loose = {
		"tcp", NULL, NULL, 1, 2, 5, STEPS, TERN_MODE_SYNC, 1e9};

	(void)state;
	train(&(struct setup){"tcp", NULL, NULL, 1, 1, 5, STEPS, TERN_MODE_SYNC, 0.5},
		&initial, &result);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(setups); i++) {
		train(&setups[i], &initial, &other);
		assert_memory_equal(&result, &other, sizeof(result));
	}
	assert_memory_equal(initial.at + first_of(7), result.at + first_of(7),
		tensors[7].count * sizeof(float));
	train(&loose, &initial, &result);
	refer(&initial, loose.slots);
	/* j is not a statistic here. */
	assert_memory_equal(initial.at, result.at, first_of(9) * sizeof(float));
	assert_memory_equal(initial.at + first_of(10), result.at + first_of(10),
		(ELEMENTS - first_of(10)) * sizeof(float));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_tensor_that_no_slot_pushes_stands_still),
		cmocka_unit_test(test_so_does_one_that_an_async_gradient_lacks),
		cmocka_unit_test(test_it_does_so_where_gradients_are_clipped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
