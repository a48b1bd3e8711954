/* SPDX-License-Identifier: Apache-2.0 */
/* The updater that computes on the CPU, with ps/sum.c. It keeps the optimizer's state, and,
 * where gradients are clipped by their norm, the mean gradient between a step's two phases:
 * the sum, which the norm needs, and the update. */
#include "ps/updater.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "ps/sum.h"

struct cpu_updater {
	struct tern_updater updater;
	const struct tern_kernels *kernels;
};

struct cpu_chunk {
	struct tern_updater_chunk chunk;
	float *m, *v, *mean; /* state, mean gradient; NULL if not used */
};

static struct cpu_updater *cpu_of(struct tern_updater *u)
{
	return tern_container_of(u, struct cpu_updater, updater);
}

static struct cpu_chunk *chunk_of(struct tern_updater_chunk *c)
{
	return tern_container_of(c, struct cpu_chunk, chunk);
}

static void chunk_free(struct tern_updater *u, struct tern_updater_chunk *chunk)
{
	struct cpu_chunk *c = chunk_of(chunk);

	(void)u;
	free(c->m);
	free(c->v);
	free(c->mean);
	free(c);
}

/* If `wanted`, allocates a vector of `count` elements with this value. True: no
 * memory. */
static bool misses(float **out, bool wanted, uint64_t count, float value)
{
	if (!wanted)
		return false;
	*out = aligned_alloc(64, tern_align_up(count * sizeof(**out), 64));
	for (uint64_t i = 0; *out && i < count; i++)
		(*out)[i] = value;
	return !*out;
}

bool tern_updater_has_m(const struct tern_updater_opts *opts)
{
	for (unsigned i = 0; i < tern_updater_segment_count(opts); i++)
		if (tern_optimizer_has_m(tern_updater_segment(opts, i).optimizer->kind))
			return true;
	return false;
}

bool tern_updater_has_v(const struct tern_updater_opts *opts)
{
	for (unsigned i = 0; i < tern_updater_segment_count(opts); i++)
		if (tern_optimizer_has_v(tern_updater_segment(opts, i).optimizer->kind))
			return true;
	return false;
}

static int no_memory(struct tern_updater *u)
{
	snprintf(u->error, sizeof(u->error), "out of memory");
	return -ENOMEM;
}

static int chunk_new(struct tern_updater *u, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out)
{
	struct cpu_chunk *c = calloc(1, sizeof(*c));

	if (!c)
		return no_memory(u);
	c->chunk.opts = *opts;
	if (misses(&c->m, tern_updater_has_m(opts), opts->count, 0) ||
		misses(&c->v, tern_updater_has_v(opts), opts->count, 0) ||
		misses(&c->mean, opts->two_phase, opts->count, 0)) {
		chunk_free(u, &c->chunk);
		return no_memory(u);
	}
	for (unsigned i = 0; c->v && i < tern_updater_segment_count(opts); i++) {
		struct tern_updater_segment s = tern_updater_segment(opts, i);

		for (uint64_t j = s.first; j < s.first + s.count; j++)
			c->v[j] = s.optimizer->initial_accumulator;
	}
	*out = &c->chunk;
	return 0;
}

/* True if updates and sums take gradients of bf16, and no partial sums. */
static bool inputs_are_bf16(const struct tern_updater_chunk *chunk)
{
	return chunk->opts.bf16 && !chunk->opts.folds;
}

/* The segment is skipped. */
static void keep(const struct tern_kernels *kernels, const struct tern_updater_step *step,
	const struct tern_updater_segment *s)
{
	const float *w = step->w_in + s->first;

	if (step->w_out != step->w_in)
		memcpy(step->w_out + s->first, w, s->count * sizeof(*w));
	if (step->w_bf16)
		kernels->f32_to_bf16(step->w_bf16 + s->first, w, s->count);
}

static int update(struct tern_updater *u, struct tern_updater_chunk *chunk,
	const struct tern_updater_step *step)
{
	struct cpu_chunk *c = chunk_of(chunk);
	const float *mean = c->mean;
	struct tern_update update = {.kernels = cpu_of(u)->kernels,
		.w_out = step->w_out,
		.w_in = step->w_in,
		.m = c->m,
		.v = c->v,
		.gradients = step->gradients ? step->gradients : &mean,
		.gradient_count = step->gradients ? step->gradient_count : 1,
		.bf16 = step->gradients && !step->is_mean && inputs_are_bf16(chunk),
		.scale = step->gradients ? step->scale : 1.0f,
		.clip = step->clip,
		.w_bf16 = step->w_bf16};

	for (unsigned i = 0; i < tern_updater_step_segment_count(&chunk->opts, step);
		i++) {
		struct tern_updater_segment s =
			tern_updater_step_segment(&chunk->opts, step, i);

		if (!s.optimizer) {
			keep(update.kernels, step, &s);
			continue;
		}
		update.optimizer = s.optimizer;
		update.step = s.update;
		update.first = s.first;
		update.count = s.count;
		tern_update_run(&update);
	}
	return 0;
}

static int sum(struct tern_updater *u, struct tern_updater_chunk *chunk,
	const float *const *gradients, unsigned gradient_count, float scale,
	double *squares)
{
	*squares = tern_sum_run(cpu_of(u)->kernels, chunk_of(chunk)->mean, gradients,
		gradient_count, inputs_are_bf16(chunk), scale, chunk->opts.count);
	return 0;
}

static int mean(struct tern_updater *u, struct tern_updater_chunk *chunk, float *to,
	const float *const *gradients, unsigned gradient_count, float scale)
{
	const struct cpu_chunk *c = chunk_of(chunk);

	if (gradients)
		tern_sum_run(cpu_of(u)->kernels, to, gradients, gradient_count,
			inputs_are_bf16(chunk), scale, chunk->opts.count);
	else
		memcpy(to, c->mean, chunk->opts.count * sizeof(*to));
	return 0;
}

struct adder {
	const struct tern_kernels *kernels;
	uint64_t count; /* elements */
	bool bf16;      /* gradients are bf16 */
};

static void add(void *arg, float *dst, const float *const *in, unsigned n, bool gradients)
{
	const struct adder *adder = arg;

	if (gradients && adder->bf16)
		tern_sum_bf16(adder->kernels, dst, in, n, adder->count);
	else if (n > 1)
		adder->kernels->sum(dst, in, n, 1.0f, adder->count);
}

void tern_updater_fold_on_cpu(const struct tern_kernels *kernels, float *const *places,
	uint32_t gradient_count, uint32_t folded, uint64_t count, bool bf16)
{
	struct adder adder = {kernels, count, bf16};

	tern_sum_fold(places, gradient_count, folded, add, &adder);
}

static int fold(struct tern_updater *u, struct tern_updater_chunk *chunk,
	float *const *places, uint32_t gradient_count, uint32_t folded)
{
	tern_updater_fold_on_cpu(cpu_of(u)->kernels, places, gradient_count, folded,
		chunk->opts.count, chunk->opts.bf16);
	return 0;
}

static int copy(struct tern_updater *u, struct tern_updater_chunk *chunk, float *to,
	const float *from)
{
	(void)u;
	memcpy(to, from, chunk->opts.count * sizeof(*to));
	return 0;
}

static int get_state(struct tern_updater *u, struct tern_updater_chunk *chunk,
	const struct tern_updater_state *to)
{
	const struct cpu_chunk *c = chunk_of(chunk);

	if (c->m)
		copy(u, chunk, to->m, c->m);
	if (c->v)
		copy(u, chunk, to->v, c->v);
	return 0;
}

static int set_state(struct tern_updater *u, struct tern_updater_chunk *chunk,
	const struct tern_updater_state *from)
{
	struct cpu_chunk *c = chunk_of(chunk);

	if (c->m)
		copy(u, chunk, c->m, from->m);
	if (c->v)
		copy(u, chunk, c->v, from->v);
	return 0;
}

static void narrow(struct tern_updater *u, struct tern_updater_chunk *chunk, uint16_t *to,
	const float *from)
{
	cpu_of(u)->kernels->f32_to_bf16(to, from, chunk->opts.count);
}

static void cpu_free(struct tern_updater *u)
{
	free(cpu_of(u));
}

int tern_updater_cpu_new(const struct tern_kernels *kernels, struct tern_updater **out)
{
	static const struct tern_updater_ops ops = {
		.chunk_new = chunk_new,
		.chunk_free = chunk_free,
		.update = update,
		.sum = sum,
		.mean = mean,
		.fold = fold,
		.copy = copy,
		.get_state = get_state,
		.set_state = set_state,
		.narrow = narrow,
		.free = cpu_free,
	};
	struct cpu_updater *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	u->updater.ops = &ops;
	u->kernels = kernels;
	snprintf(u->updater.name, sizeof(u->updater.name), "the CPU (%s)", kernels->name);
	snprintf(u->updater.fingerprint, sizeof(u->updater.fingerprint), "%s",
		tern_kernels_fingerprint(kernels));
	*out = &u->updater;
	return 0;
}
