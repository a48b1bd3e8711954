/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of shared contexts: whole jobs, whose servers run on a thread of this
 * process. */
#include "tests/server/train_bed.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tern/shared.h>

#define LIMIT   (60 * TERN_NS_PER_S)
#define TENSORS 3u
#define STEPS   20u
#define SLOTS   4u
#define AHEAD   7u

/* One has several chunks, so that chunks span tensors. */
static const uint64_t counts[TENSORS] = {5, 20000, 700};
static const char *const names[TENSORS] = {"b", "weights", "a"};

/* ---- servers ---- */

struct served {
	struct job job;
	pthread_t thread;
	char join[300];
};

static void *serve(void *arg)
{
	struct served *s = arg;

	while (!all_ended(s->job.m, s->job.count))
		job_step(&s->job);
	return NULL;
}

static void start_serving(struct served *s, unsigned servers)
{
	static struct setup setup;

	setup = (struct setup){.fabric = "tcp", .model = "softmax", .servers = servers};
	job_open(&s->job, &setup);
	*s->join = '\0';
	for (unsigned i = 0; i < servers; i++) {
		strcat(s->join, i ? "," : "");
		/* The scheme may be left out: then it is auto. */
		strcat(s->join, s->job.addresses[i]);
	}
	assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

/* Waits until the servers have ended. */
static void end_serving(struct served *s)
{
	pthread_join(s->thread, NULL);
	for (unsigned i = 0; i < s->job.count; i++)
		assert_string_equal(s->job.m[i].text, "");
	job_close(&s->job);
}

/* ---- workers ---- */

struct trainer {
	pthread_t thread;
	const struct served *served;
	unsigned index, workers;
	struct tern_shared *shared;
	struct tern_session *session;
	uint32_t ids[TENSORS];
	uint64_t fail_at; /* it fails in this step; UINT64_MAX: in none */
	bool fickle;      /* it computes other gradients the second time */
	bool early;       /* it takes slots whose parameters are not all here */
	int64_t verify_first;
	unsigned repeated;                  /* slots that it has computed twice */
	struct tern_slot_info last;         /* the slot that it has computed last */
	bool undisturbed;                   /* no worker of the job is lost */
	struct tern_slot_info ahead[AHEAD]; /* the slots that come, as the session said */
	int ahead_count;
	int status;
	char text[300];
	bool finished;
	unsigned wrong;
	float final[TENSORS][2]; /* first and last element of each tensor */
};

/* Gradient of every element of tensor k in this slot. The parameters stay exact. */
static float gradient_of(const struct tern_slot_info *info, unsigned k)
{
	return (float)(info->slot + 1) * (float)(k + 1) * 0.25f;
}

struct push {
	struct trainer *trainer;
	struct tern_slot *slot;
	const struct tern_slot_info *info;
	unsigned k;
};

static void *push(void *arg)
{
	const struct push *p = arg;
	struct trainer *t = p->trainer;
	float *from = malloc(counts[p->k] * sizeof(*from));

	for (uint64_t i = 0; i < counts[p->k]; i++)
		from[i] = gradient_of(p->info, p->k);
	if (t->fickle && p->info->repeated && p->k > 0)
		from[counts[p->k] / 2] += 0.25f;
	if (tern_shared_push(t->shared, p->slot, t->ids[p->k], from) < 0)
		t->wrong++;
	free(from);
	return NULL;
}

/* Pushes all tensors at the same time, each from a thread of its own. */
static void compute(
	struct trainer *t, struct tern_slot *slot, const struct tern_slot_info *info)
{
	pthread_t threads[TENSORS];
	struct push pushes[TENSORS];

	for (unsigned k = 0; k < TENSORS; k++) {
		pushes[k] = (struct push){t, slot, info, k};
		pthread_create(&threads[k], NULL, push, &pushes[k]);
	}
	for (unsigned k = 0; k < TENSORS; k++)
		pthread_join(threads[k], NULL);
	if (tern_shared_end(t->shared, slot, 1.0 / (double)(info->step + 1)) < 0)
		t->wrong++;
}

static void open_trainer(struct trainer *t)
{
	struct tern_job_opts job = {.workers = t->workers,
		.index = t->index,
		.slots = SLOTS,
		.records = 37,
		.batch = 3,
		.steps = STEPS,
		.seed = 1,
		.rule = {.name = "sgd", .lr = 0.5},
		.arithmetic = "exact",
		.verify_first = t->verify_first,
		.early = t->early};

	t->wrong += tern_shared_new(NULL, &t->shared) < 0;
	t->wrong += tern_shared_session(t->shared,
			    &(struct tern_session_opts){.join = t->served->join},
			    &t->session) < 0;
	for (unsigned k = 0; k < TENSORS; k++) {
		unsigned at = (k + t->index) % TENSORS;
		/* The third tensor has another rate, and the first is a statistic. */
		const struct tern_rule_opts fast = {.name = "sgd", .lr = 2},
					    mean = {.name = "mean"};
		const struct tern_tensor_opts tensor = {.name = names[at],
			.shape = tern_shape_1d(TERN_F32, counts[at]),
			.init = TERN_INIT_ZEROS,
			.rule = at == 2   ? &fast
				: at == 0 ? &mean
					  : NULL,
			/* bf16 has all values of this tensor. */
			.push = at == 1 ? TERN_BF16 : TERN_F32,
			.pull = at == 1 ? TERN_BF16 : TERN_F32};

		t->wrong += tern_shared_tensor(
				    t->shared, t->session, &tensor, &t->ids[at]) < 0;
	}
	t->wrong += tern_shared_ahead(t->shared, t->session, t->ahead, AHEAD) != 0;
	t->wrong += tern_session_record(t->session, 0, 0, 0) != UINT64_MAX;
	t->wrong += tern_shared_start(t->shared, t->session, &job) < 0;
	t->ahead_count = tern_shared_ahead(t->shared, t->session, t->ahead, AHEAD);
}

static bool is_same_slot(const struct tern_slot_info *a, const struct tern_slot_info *b)
{
	return a->step == b->step && a->slot == b->slot && a->seed == b->seed &&
	       a->batch == b->batch && a->repeated == b->repeated;
}

/* Number of slots of this worker after the one that it holds, at most AHEAD. */
static int left_after(const struct trainer *t, const struct tern_slot_info *info)
{
	uint64_t in_step = (SLOTS - 1 - t->index) / t->workers + 1;
	uint64_t done = info->step * in_step + info->slot / t->workers + 1;

	return (int)TERN_MIN(STEPS * in_step - done, (uint64_t)AHEAD);
}

/* The slot and its records are what the session said before, and what it says now of the
 * slots after it goes on from there. */
static void check_ahead(struct trainer *t, const struct tern_slot *slot,
	const struct tern_slot_info *info)
{
	struct tern_slot_info now[AHEAD];
	int count = tern_shared_ahead(t->shared, t->session, now, AHEAD);

	if (!info->repeated) {
		/* Before the first slot no server may have answered. */
		t->wrong += t->ahead_count < 1 ? info->step > 0
					       : !is_same_slot(&t->ahead[0], info);
		for (int k = 1; k < t->ahead_count; k++)
			t->wrong += k > count || !is_same_slot(&t->ahead[k], &now[k - 1]);
	}
	t->wrong += count != left_after(t, info);
	for (uint32_t j = 0; j <= info->batch; j++)
		t->wrong += tern_session_record(t->session, info->step, info->slot, j) !=
			    tern_slot_record(slot, j);
	t->wrong += info->batch != 3;
	t->wrong += tern_session_record(t->session, info->step, SLOTS, 0) != UINT64_MAX;
	t->ahead_count = count;
	memcpy(t->ahead, now, sizeof(now));
}

/* A slot that comes again comes right after the first time. */
static void count_slot(struct trainer *t, const struct tern_slot_info *info)
{
	if (info->repeated) {
		t->repeated++;
		t->wrong += info->step != t->last.step || info->slot != t->last.slot ||
			    info->seed != t->last.seed || t->last.repeated;
	}
	t->last = *info;
}

static void end_trainer(struct trainer *t)
{
	int r = tern_shared_finisher(t->shared, t->session, LIMIT);

	t->wrong += tern_shared_ahead(t->shared, t->session, t->ahead, AHEAD) != 0;
	t->finished = r == 1;
	for (unsigned k = 0; k < TENSORS; k++) {
		const float *values = tern_session_param(t->session, t->ids[k]);

		t->final[k][0] = values[0];
		t->final[k][1] = values[counts[k] - 1];
	}
	/* The finisher must say that it has finished. */
	if (r == 1) {
		t->wrong += tern_shared_ended(t->shared, t->session, LIMIT) != -EBUSY;
		tern_shared_finished(t->shared, t->session, NULL);
	}
	t->status = tern_shared_ended(t->shared, t->session, LIMIT);
}

/* Trains until the end. */
static void *go_on(void *arg)
{
	struct trainer *t = arg;
	struct tern_slot_info info;
	struct tern_slot *slot;
	int r;

	while ((r = tern_shared_next(t->shared, t->session, &slot, &info, LIMIT)) == 0) {
		t->wrong += tern_shared_finisher(t->shared, t->session, LIMIT) != -EBUSY;
		count_slot(t, &info);
		if (t->undisturbed)
			check_ahead(t, slot, &info);
		if (info.step == t->fail_at)
			tern_shared_fail(t->shared, slot, "ValueError: it was asked to");
		else
			compute(t, slot, &info);
	}
	t->status = r;
	snprintf(t->text, sizeof(t->text), "%s", tern_shared_text());
	if (r == -ENODATA)
		end_trainer(t);
	tern_shared_free(t->shared);
	return NULL;
}

static void *train(void *arg)
{
	open_trainer(arg);
	return go_on(arg);
}

static void run_job(struct trainer *trainers, unsigned workers, unsigned servers)
{
	struct served served;

	start_serving(&served, servers);
	for (unsigned i = 0; i < workers; i++) {
		trainers[i].served = &served;
		trainers[i].index = i;
		trainers[i].workers = workers;
		assert_int_equal(
			pthread_create(&trainers[i].thread, NULL, train, &trainers[i]),
			0);
	}
	for (unsigned i = 0; i < workers; i++)
		pthread_join(trainers[i].thread, NULL);
	end_serving(&served);
}

static void check(const struct trainer *t)
{
	assert_int_equal(t->wrong, 0);
	assert_int_equal(t->status, 0);
	/* The mean over the slots of gradient_of(); but for the statistic, times rate and
	 * steps. */
	for (unsigned k = 0; k < TENSORS; k++) {
		float times = k == 0 ? 1 : -(k == 2 ? 2.0f : 0.5f) * (float)STEPS;
		float expected = times * 2.5f * (float)(k + 1) * 0.25f;

		assert_true(t->final[k][0] == expected);
		assert_true(t->final[k][1] == expected);
	}
}

static void test_sessions_train_from_many_threads(void **state)
{
	struct trainer trainers[3] = {
		{.fail_at = UINT64_MAX, .undisturbed = true, .verify_first = 3},
		{.fail_at = UINT64_MAX,
			.undisturbed = true,
			.early = true,
			.verify_first = -1},
		{.fail_at = UINT64_MAX, .undisturbed = true, .early = true}};

	(void)state;
	run_job(trainers, 3, 2);
	assert_int_equal(trainers[0].repeated, 3);
	assert_int_equal(trainers[1].repeated, 0);
	assert_int_equal(trainers[2].repeated, 1);
	for (unsigned i = 0; i < 3; i++)
		check(&trainers[i]);
	assert_int_equal(
		trainers[0].finished + trainers[1].finished + trainers[2].finished, 1);
}

static void test_a_worker_that_fails_is_replaced(void **state)
{
	struct trainer trainers[2] = {
		{.fail_at = 7, .early = true}, {.fail_at = UINT64_MAX, .early = true}};

	(void)state;
	run_job(trainers, 2, 1);
	check(&trainers[1]);
	assert_true(trainers[1].finished);
	assert_int_equal(trainers[0].status, -ECANCELED);
	assert_string_equal(trainers[0].text, "ValueError: it was asked to");
}

/* ---- early slots ---- */

struct early {
	struct served served;
	struct trainer trainers[2];
	struct tern_slot *slot;
};

static void compute_next(struct trainer *t, uint64_t step, uint32_t number)
{
	struct tern_slot_info info;
	struct tern_slot *slot;

	assert_int_equal(tern_shared_next(t->shared, t->session, &slot, &info, LIMIT), 0);
	assert_int_equal(info.step, step);
	assert_int_equal(info.slot, number);
	compute(t, slot, &info);
}

/* Worker 0 has computed its slots of the first step, and holds one of the second. */
static void begin_early(struct early *e)
{
	struct trainer *t = e->trainers;
	struct tern_slot_info info;

	*e = (struct early){0};
	start_serving(&e->served, 1);
	for (unsigned i = 0; i < 2; i++) {
		t[i] = (struct trainer){.served = &e->served,
			.index = i,
			.workers = 2,
			.fail_at = UINT64_MAX,
			.early = i == 0,
			.verify_first = -1};
		open_trainer(&t[i]);
	}
	compute_next(&t[0], 0, 0);
	compute_next(&t[0], 0, 2);
	assert_int_equal(
		tern_shared_next(t->shared, t->session, &e->slot, &info, LIMIT), 0);
	assert_true(info.early);
	assert_int_equal(info.step, 1);
	assert_int_equal(info.slot, 0);
	assert_int_equal(tern_shared_await(t->shared, e->slot, t->ids[1], 0), -ETIMEDOUT);
	assert_int_equal(tern_shared_await(t->shared, e->slot, TENSORS, 0), -EINVAL);
}

static void end_early(struct early *e, unsigned workers)
{
	for (unsigned i = 0; i < workers; i++)
		assert_int_equal(pthread_create(&e->trainers[i].thread, NULL, go_on,
					 &e->trainers[i]),
			0);
	for (unsigned i = 0; i < workers; i++)
		pthread_join(e->trainers[i].thread, NULL);
	end_serving(&e->served);
	for (unsigned i = 0; i < workers; i++)
		check(&e->trainers[i]);
}

static void test_an_early_slot_has_its_parameters_when_all_slots_are_computed(
	void **state)
{
	struct tern_slot_info info = {.step = 1, .slot = 0};
	struct trainer *t;
	struct early e;

	(void)state;
	begin_early(&e);
	t = e.trainers;
	compute_next(&t[1], 0, 1);
	compute_next(&t[1], 0, 3);
	assert_int_equal(tern_shared_await(t->shared, e.slot, t->ids[1], LIMIT), 0);
	assert_true(tern_slot_param(e.slot, t->ids[1])[counts[1] - 1] == -0.625f);
	compute(t, e.slot, &info);
	end_early(&e, 2);
}

static void test_an_early_slot_is_revoked_when_another_one_comes_before_it(void **state)
{
	struct tern_slot_info info = {.step = 1, .slot = 0};
	struct tern_slot *slot;
	struct trainer *t;
	struct early e;

	(void)state;
	begin_early(&e);
	t = e.trainers;
	assert_int_equal(
		tern_shared_next(t[1].shared, t[1].session, &slot, NULL, LIMIT), 0);
	assert_int_equal(tern_shared_fail(t[1].shared, slot, "it was asked to"), 0);
	assert_int_equal(
		tern_shared_await(t->shared, e.slot, t->ids[1], LIMIT), -ECANCELED);
	assert_string_equal(tern_shared_text(),
		"the slot was revoked before all of its parameters were here");
	compute(t, e.slot, &info); /* has no effect */
	compute_next(t, 0, 1);
	compute_next(t, 0, 3);
	tern_shared_free(t[1].shared);
	end_early(&e, 1);
}

/* ---- programs that are not deterministic ---- */

static void test_a_worker_that_is_not_deterministic_is_named_and_replaced(void **state)
{
	struct trainer trainers[2] = {{.fail_at = UINT64_MAX},
		{.fail_at = UINT64_MAX, .fickle = true, .verify_first = 2}};

	(void)state;
	run_job(trainers, 2, 2);
	check(&trainers[0]);
	assert_true(trainers[0].finished);
	assert_int_equal(trainers[0].repeated, 1);
	assert_int_equal(trainers[1].wrong, 0);
	assert_int_equal(trainers[1].repeated, 1);
	assert_int_equal(trainers[1].status, -EBADMSG);
	/* This worker declares the tensor "weights" first. */
	assert_ptr_equal(strstr(trainers[1].text,
				 "worker 1 computed slot 1 of step 0 twice, and 2 of 3 "
				 "gradients differ, first that of tensor weights. "),
		trainers[1].text);
}

static void test_the_environment_says_how_many_slots_are_verified(void **state)
{
	static const struct {
		const char *environment;
		int64_t argument;
		unsigned repeated;
	} cases[] = {{"2", 0, 2}, {"0", 0, 0}, {"0", 1, 1}, {"2", -1, 0}};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		struct trainer t = {
			.fail_at = UINT64_MAX, .verify_first = cases[i].argument};

		setenv("TERN_VERIFY_FIRST", cases[i].environment, 1);
		run_job(&t, 1, 1);
		check(&t);
		assert_int_equal(t.repeated, cases[i].repeated);
	}
	unsetenv("TERN_VERIFY_FIRST");
}

/* ---- a slot is ended beside a push ---- */

#define PARTS      16u
#define PART_COUNT 60000u

struct late_push {
	pthread_t thread;
	struct tern_shared *shared;
	struct tern_slot *slot;
	const float *from;
	uint32_t first; /* pushes the tensors first, first + 2, ... */
	float *expected;
	unsigned wrong;
};

static void *push_late(void *arg)
{
	struct late_push *p = arg;

	for (uint32_t id = p->first; id < PARTS; id += 2) {
		int r = tern_shared_push(p->shared, p->slot, id, p->from);

		p->expected[id] -= r == 0;
		p->wrong += r != 0 && r != -EINVAL;
	}
	return NULL;
}

static void check_whole(const float *values, float expected)
{
	for (unsigned i = 0; i < PART_COUNT; i++)
		if (values[i] != expected)
			fail_msg("element %u is %g, not %g", i, (double)values[i],
				(double)expected);
}

static void start_parts(struct trainer *t)
{
	char name[20];
	uint32_t id;

	assert_int_equal(tern_shared_new(NULL, &t->shared), 0);
	assert_int_equal(tern_shared_session(t->shared,
				 &(struct tern_session_opts){.join = t->served->join},
				 &t->session),
		0);
	for (unsigned i = 0; i < PARTS; i++) {
		snprintf(name, sizeof(name), "w%02u", i);
		assert_int_equal(
			tern_shared_tensor(t->shared, t->session,
				&(struct tern_tensor_opts){.name = name,
					.shape = tern_shape_1d(TERN_F32, PART_COUNT)},
				&id),
			0);
	}
	assert_int_equal(tern_shared_start(t->shared, t->session,
				 /* Which pushes come in time is not deterministic. */
				 &(struct tern_job_opts){.workers = 1,
					 .steps = STEPS,
					 .rule = {.lr = 1},
					 .verify_first = -1}),
		0);
}

/* The values of a slot are in the mapping, each tensor where the shift says, and stay there
 * when the session is gone. What is written there is not in the job. */
static void test_a_slot_can_be_mapped_and_the_mapping_is_its_own(void **state)
{
	struct tern_slot_map map[STEPS];
	struct served served;
	struct trainer t = {.served = &served, .workers = 1};
	float *from = malloc(PART_COUNT * sizeof(*from));
	struct tern_slot *slot;
	float *last = NULL;
	unsigned step = 0;

	(void)state;
	for (unsigned i = 0; i < PART_COUNT; i++)
		from[i] = 1;
	start_serving(&served, 1);
	start_parts(&t);
	while (tern_shared_next(t.shared, t.session, &slot, NULL, LIMIT) == 0) {
		assert_int_equal(tern_slot_map(slot, &map[step]), 0);
		for (unsigned i = 0; i < PARTS; i++) {
			const char *values = (const char *)tern_slot_param(slot, i);

			last = (float *)(uintptr_t)(values + map[step].shift);
			assert_in_range((char *)last - map[step].base, 0,
				map[step].bytes - PART_COUNT * sizeof(float));
			check_whole(last, -(float)step);
			*last = 7;
			check_whole((const float *)(const void *)values, -(float)step);
			assert_int_equal(tern_shared_push(t.shared, slot, i, from), 0);
		}
		assert_int_equal(tern_shared_end(t.shared, slot, 0), 0);
		step++;
	}
	assert_int_equal(step, STEPS);
	assert_int_equal(tern_slot_map(slot, &map[0]), -EINVAL);
	end_trainer(&t);
	tern_shared_free(t.shared);
	end_serving(&served);
	assert_true(*last == 7);
	*last = 1 - (float)STEPS;
	check_whole(last, *last);
	for (unsigned i = 0; i < STEPS; i++)
		munmap(map[i].base, map[i].bytes);
	free(from);
}

/* A push is whole in the step, or refused; never is a part of it in the step. */
static void test_a_slot_that_ends_beside_pushes_has_them_whole_or_not(void **state)
{
	float *from = malloc(PART_COUNT * sizeof(*from));
	float expected[PARTS] = {0};
	struct served served;
	struct trainer t = {.served = &served, .workers = 1};
	struct tern_slot *slot;

	(void)state;
	for (unsigned i = 0; i < PART_COUNT; i++)
		from[i] = 1;
	start_serving(&served, 1);
	start_parts(&t);
	while (tern_shared_next(t.shared, t.session, &slot, NULL, LIMIT) == 0) {
		struct late_push p[2];

		for (unsigned i = 0; i < PARTS; i++)
			check_whole(tern_slot_param(slot, i), expected[i]);
		for (unsigned i = 0; i < 2; i++) {
			p[i] = (struct late_push){.shared = t.shared,
				.slot = slot,
				.from = from,
				.first = i,
				.expected = expected};
			assert_int_equal(
				pthread_create(&p[i].thread, NULL, push_late, &p[i]), 0);
		}
		usleep((useconds_t)(rand() % 500));
		assert_int_equal(tern_shared_end(t.shared, slot, 0), 0);
		for (unsigned i = 0; i < 2; i++) {
			pthread_join(p[i].thread, NULL);
			assert_int_equal(p[i].wrong, 0);
		}
	}
	for (unsigned i = 0; i < PARTS; i++)
		check_whole(tern_session_param(t.session, i), expected[i]);
	end_trainer(&t);
	tern_shared_free(t.shared);
	end_serving(&served);
	free(from);
}

/* ---- metrics and weights ---- */

static void test_metrics_and_weights_are_checked(void **state)
{
	static const double wrong[] = {-1, (double)NAN, (double)INFINITY};
	struct served served;
	struct trainer t = {.served = &served, .workers = 1};
	struct tern_slot *slot = NULL;
	char name[TERN_METRIC_NAME_MAX + 2];

	(void)state;
	start_serving(&served, 1);
	start_parts(&t);
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(tern_shared_metric(t.shared, t.session, name, 1), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"the name of a metric: expected 1 to 63 printable ASCII characters "
		"without blanks");
	for (unsigned i = 0; i < TERN_METRICS_MAX; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		assert_int_equal(tern_shared_metric(t.shared, t.session, name, i), 0);
	}
	assert_int_equal(tern_shared_metric(t.shared, t.session, "more", 1), -E2BIG);
	assert_string_equal(tern_shared_text(),
		"metric more: a session has at most 32 different ones");
	assert_int_equal(tern_shared_metric(t.shared, t.session, "m3", (double)NAN), 0);
	while (tern_shared_next(t.shared, t.session, &slot, NULL, LIMIT) == 0) {
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(
				tern_shared_weigh(t.shared, slot, wrong[i]), -EINVAL);
		assert_int_equal(tern_shared_weigh(t.shared, slot, 0), 0);
		assert_int_equal(tern_shared_end(t.shared, slot, 0), 0);
	}
	assert_int_equal(tern_shared_weigh(t.shared, slot, 1), -EINVAL);
	assert_string_equal(tern_shared_text(), "the slot has ended");
	end_trainer(&t);
	assert_int_equal(t.status, 0);
	assert_int_equal(tern_shared_metric(t.shared, t.session, "m3", 1), 0);
	tern_shared_free(t.shared);
	end_serving(&served);
}

/* ---- many threads that call ---- */

#define CALLERS 16u

struct caller {
	pthread_t thread;
	const struct trainer *trainer;
	atomic_bool *stop;
};

static void *call(void *arg)
{
	const struct caller *c = arg;
	char text[200];

	while (!atomic_load(c->stop))
		tern_shared_describe(
			c->trainer->shared, c->trainer->session, text, sizeof(text));
	return NULL;
}

/* Threads that call again and again do not keep the progress thread out: the job would
 * stand still. */
static void test_threads_that_call_all_the_time_do_not_stop_a_job(void **state)
{
	struct caller callers[CALLERS];
	struct served served;
	struct trainer t = {.served = &served, .workers = 1};
	struct tern_slot *slot;
	atomic_bool stop = false;
	int r;

	(void)state;
	start_serving(&served, 1);
	start_parts(&t);
	for (unsigned i = 0; i < CALLERS; i++) {
		callers[i] = (struct caller){.trainer = &t, .stop = &stop};
		assert_int_equal(
			pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
	}
	while ((r = tern_shared_next(t.shared, t.session, &slot, NULL, LIMIT)) == 0)
		assert_int_equal(tern_shared_end(t.shared, slot, 0), 0);
	assert_int_equal(r, -ENODATA);
	assert_string_equal(tern_shared_text(), "all steps are done");
	atomic_store(&stop, true);
	for (unsigned i = 0; i < CALLERS; i++)
		pthread_join(callers[i].thread, NULL);
	end_trainer(&t);
	tern_shared_free(t.shared);
	end_serving(&served);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sessions_train_from_many_threads),
		cmocka_unit_test(test_a_worker_that_fails_is_replaced),
		cmocka_unit_test(
			test_an_early_slot_has_its_parameters_when_all_slots_are_computed),
		cmocka_unit_test(
			test_an_early_slot_is_revoked_when_another_one_comes_before_it),
		cmocka_unit_test(
			test_a_worker_that_is_not_deterministic_is_named_and_replaced),
		cmocka_unit_test(test_the_environment_says_how_many_slots_are_verified),
		cmocka_unit_test(test_a_slot_can_be_mapped_and_the_mapping_is_its_own),
		cmocka_unit_test(
			test_a_slot_that_ends_beside_pushes_has_them_whole_or_not),
		cmocka_unit_test(test_metrics_and_weights_are_checked),
		cmocka_unit_test(test_threads_that_call_all_the_time_do_not_stop_a_job),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
