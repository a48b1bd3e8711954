/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/rare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/sum.h"

#define COUNT_MAX 100u

const struct rare rare_tensors[RARE_COUNT] = {
	{"bias.rare", 4996, 100, {.name = "momentum", .lr = 0.5, .weight_decay = 0.25}},
	{"scale", 10096, 2, {.name = "adamw", .lr = 0.125, .weight_decay = 0.5}},
	{"scale.mean", 10098, 2, {.name = "mean"}},
};

bool rare_has(uint64_t element)
{
	for (unsigned k = 0; k < RARE_COUNT; k++)
		if (element - rare_tensors[k].first < rare_tensors[k].count)
			return true;
	return false;
}

bool rare_is_pushed(const struct rare *t, uint64_t step, uint32_t share)
{
	return tern_rng_at(t->first, 1, step, 0) % 2 &&
	       tern_rng_at(t->first, 2, step, share) % 2;
}

void rare_fill(const struct rare *t, uint64_t step, uint32_t share, float *to)
{
	for (uint64_t i = 0; i < t->count; i++)
		to[i] = (float)((1 + step + 8 * share) % 251); /* bf16 has the number */
}

/* ---- what is expected ---- */

struct reference {
	struct tern_optimizer rule;
	uint64_t updates;
	float w[COUNT_MAX], m[COUNT_MAX], v[COUNT_MAX];
};

static float initial(const struct job *j, const struct rare *t, uint64_t i)
{
	return j->initial ? j->initial(j, t->first + i) : 0;
}

static void make_step(
	const struct job *j, struct reference *r, const struct rare *t, uint64_t step)
{
	uint32_t slots = j->plan.slots;
	static float gradients[TERN_SLOTS_MAX][COUNT_MAX];
	static const float *in[TERN_SLOTS_MAX];
	bool pushed = false;

	for (uint32_t i = 0; i < slots; i++) {
		in[i] = gradients[i];
		memset(gradients[i], 0, sizeof(gradients[i]));
		if (!rare_is_pushed(t, step, i) || job_omits(j, step, i))
			continue;
		rare_fill(t, step, i, gradients[i]);
		pushed = true;
	}
	if (!pushed)
		return;
	tern_update_run(&(struct tern_update){.kernels = tern_kernels_cpu(),
		.optimizer = &r->rule,
		.step = ++r->updates,
		.w_in = r->w,
		.w_out = r->w,
		.m = tern_optimizer_has_m(r->rule.kind) ? r->m : NULL,
		.v = tern_optimizer_has_v(r->rule.kind) ? r->v : NULL,
		.gradients = in,
		.gradient_count = slots,
		.scale = 1.0f / (float)job_slots_counted(j),
		.clip = 1,
		.count = t->count});
}

static bool has_the_rules_values(
	const struct job *j, const struct rare *t, const float *result)
{
	struct reference r = {0};

	if (tern_optimizer_parse(t->rule.name, &r.rule) < 0)
		tern_never("a rule");
	r.rule.lr = (float)t->rule.lr;
	r.rule.weight_decay = (float)t->rule.weight_decay;
	for (uint64_t i = 0; i < t->count; i++)
		r.w[i] = initial(j, t, i);
	for (uint64_t step = 0; step < j->plan.steps; step++)
		make_step(j, &r, t, step);
	for (uint64_t i = 0; i < t->count; i++) {
		if (result[t->first + i] == r.w[i])
			continue;
		fprintf(stderr,
			"rare: element %u of %s ends as %.9g; with %u updates it is "
			"%.9g\n",
			(unsigned)i, t->name, (double)result[t->first + i],
			(unsigned)r.updates, (double)r.w[i]);
		return false;
	}
	return true;
}

/* Steps of a worker in async mode. */
static uint64_t steps_of(const struct job *j, uint32_t worker)
{
	return j->plan.steps / j->workers + (worker < j->plan.steps % j->workers);
}

static bool was_pushed(const struct job *j, const struct rare *t, const float *result)
{
	bool keeps = true, lost = job_workers_left(j) < j->workers;
	float pushed[COUNT_MAX];

	for (uint32_t worker = 0; worker < j->workers; worker++)
		for (uint64_t step = 0; step < steps_of(j, worker); step++) {
			if (!rare_is_pushed(t, step, worker))
				continue;
			rare_fill(t, step, worker, pushed);
			if (memcmp(pushed, result + t->first, t->count * sizeof(float)) ==
				0)
				return true;
			keeps = false;
		}
	for (uint64_t i = 0; i < t->count; i++)
		keeps = (keeps || lost) && result[t->first + i] == initial(j, t, i);
	if (!keeps)
		fprintf(stderr, "rare: %s ends as %g, which nobody has pushed\n", t->name,
			(double)result[t->first]);
	return keeps;
}

bool rare_are_right(const struct job *j)
{
	const float *result = job_result(j);

	for (unsigned k = 0; result && k < RARE_COUNT; k++) {
		const struct rare *t = &rare_tensors[k];

		if (!j->async && !has_the_rules_values(j, t, result))
			return false;
		if (j->async && strcmp(t->rule.name, "mean") == 0 &&
			!was_pushed(j, t, result))
			return false;
	}
	return result;
}
