/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches the element-by-element kernels and the sum of squares: fills in the kernels'
 * arguments, and chooses the number of blocks.
 */
#include <string.h>

#include "base/util.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/variants.h"

/* ---- spans: the elements of an element-by-element kernel ---- */

static uint16_t shift_of(const void *p, size_t size)
{
	return (uint16_t)((uintptr_t)p / size % TERN_QUAD_ELEMENTS);
}

struct tern_span cuda_span(uint64_t count, const void *p, size_t size)
{
	return (struct tern_span){.count = count, .shift = shift_of(p, size), .quads = 1};
}

void cuda_span_with(struct tern_span *span, const void *p, size_t size)
{
	if (shift_of(p, size) != span->shift)
		span->quads = 0;
}

uint64_t cuda_span_blocks(const struct tern_span *span)
{
	return span->count ? div_up(span->count + span->shift, TERN_QUAD_BLOCK) : 0;
}

/* ---- sums ---- */

int tern_cuda_sum(struct tern_cuda_kernels *k, float *dst, const float *const *src,
	unsigned n, float scale, uint64_t count)
{
	struct tern_cuda_sum a = {.dst = dst,
		.span = cuda_span(count, dst, sizeof(float)),
		.scale = scale,
		.n = n};

	tern_assert(n >= 1 && n <= TERN_SUM_MAX);
	for (unsigned i = 0; i < n; i++) {
		a.src[i] = src[i];
		cuda_span_with(&a.span, src[i], sizeof(float));
	}
	return cuda_launch(k, TERN_CUDA_sum, cuda_span_blocks(&a.span), &a);
}

/* The number of blocks and the elements of each block depend on `count` alone, since the
 * bits of the sum depend on them. */
int tern_cuda_sum_squares(
	struct tern_cuda_kernels *k, double *out, const float *x, uint64_t count)
{
	/* elements of a block's row: one quad (four floats) for each thread */
	const uint64_t row = 4 * TERN_REDUCE_THREADS;
	uint64_t rows = div_up(count, row);
	uint64_t per_block = row * TERN_MAX(div_up(rows, TERN_PARTIALS_MAX), (uint64_t)4);
	const struct tern_cuda_squares squares = {.partials = k->partials,
		.x = x,
		.count = count,
		.per_block = per_block,
		.quads = (uintptr_t)x % sizeof(struct tern_quad) == 0};
	const struct tern_cuda_total total = {
		.out = out, .partials = k->partials, .count = div_up(count, per_block)};
	int r = cuda_launch(k, TERN_CUDA_squares, total.count, &squares);

	return r < 0 ? r : cuda_launch(k, TERN_CUDA_total, 1, &total);
}

/* ---- updates: one optimizer step ---- */

static enum tern_cuda_kernel kernel_of(enum tern_optimizer_kind kind, unsigned n)
{
	switch (kind) {
#define KERNEL(X, KIND, name, ...)                                                       \
	case TERN_OPT_##KIND:                                                            \
		return n == 1 ? TERN_CUDA_##name : TERN_CUDA_##name##_slots;
		TERN_OPTIMIZERS(KERNEL, )
#undef KERNEL
	case TERN_OPT_MEAN:
		break;
	}
	tern_never("an optimizer without a kernel");
}

/* Makes the descriptor of a tensor for the update kernel. The caller sets first_block. */
static struct tern_cuda_part part_of(const struct tern_cuda_tensor *t, unsigned n)
{
	struct tern_cuda_part p = {.w_out = t->w_out,
		.w_in = t->w_in,
		.m = t->m,
		.v = t->v,
		.span = cuda_span(t->count, t->w_out, sizeof(float))};

	cuda_span_with(&p.span, t->w_in, sizeof(float));
	if (t->m)
		cuda_span_with(&p.span, t->m, sizeof(float));
	if (t->v)
		cuda_span_with(&p.span, t->v, sizeof(float));
	for (unsigned i = 0; i < n; i++) {
		p.grads[i] = t->grads[i];
		cuda_span_with(&p.span, t->grads[i], sizeof(float));
	}
	return p;
}

/* Launches the update of as many tensors as one launch can take. Returns how many of the
 * `tensors` are done, or a negative status. */
static int update_some(struct tern_cuda_kernels *k, enum tern_cuda_kernel kernel,
	struct tern_cuda_update *a, const struct tern_cuda_tensor *tensors, size_t count)
{
	uint64_t blocks = 0;
	size_t taken = 0;
	int r;

	a->part_count = 0;
	for (; taken < count && a->part_count < TERN_CUDA_PARTS_MAX; taken++) {
		struct tern_cuda_part *p = &a->parts[a->part_count];

		if (tensors[taken].count == 0)
			continue;
		*p = part_of(&tensors[taken], a->n);
		p->first_block = (uint32_t)blocks;
		blocks += cuda_span_blocks(&p->span);
		a->part_count++;
	}
	r = cuda_launch(k, kernel, blocks, a);
	return r < 0 ? r : (int)taken;
}

/* The rule `mean` replaces the parameters by the mean, which a sum gives. */
static int put_means(struct tern_cuda_kernels *k, const struct tern_cuda_tensor *tensors,
	size_t tensor_count, unsigned n, float scale)
{
	int r = 0;

	for (size_t i = 0; i < tensor_count && r == 0; i++)
		r = tern_cuda_sum(k, tensors[i].w_out, tensors[i].grads, n, scale,
			tensors[i].count);
	return r;
}

int tern_cuda_update(struct tern_cuda_kernels *k, const struct tern_optimizer *opt,
	uint64_t step, const struct tern_cuda_tensor *tensors, size_t tensor_count,
	unsigned n, float scale, float clip)
{
	struct tern_cuda_update a = {
		.scalars = tern_scalars_of(opt, step, clip), .scale = scale, .n = n};

	tern_assert(n >= 1 && n <= TERN_SUM_MAX);
	if (opt->kind == TERN_OPT_MEAN)
		return put_means(k, tensors, tensor_count, n, scale);
	while (tensor_count > 0) {
		int r = update_some(
			k, kernel_of(opt->kind, n), &a, tensors, tensor_count);

		if (r < 0)
			return r;
		tensors += r;
		tensor_count -= (size_t)r;
	}
	return 0;
}

/* ---- casts ---- */

static int narrow(struct tern_cuda_kernels *k, enum tern_cuda_kernel kernel,
	uint16_t *dst, const float *src, uint64_t count)
{
	struct tern_cuda_narrow a = {
		.dst = dst, .src = src, .span = cuda_span(count, src, sizeof(*src))};

	cuda_span_with(&a.span, dst, sizeof(*dst));
	return cuda_launch(k, kernel, cuda_span_blocks(&a.span), &a);
}

static int widen(struct tern_cuda_kernels *k, enum tern_cuda_kernel kernel, float *dst,
	const uint16_t *src, uint64_t count)
{
	struct tern_cuda_widen a = {
		.dst = dst, .src = src, .span = cuda_span(count, dst, sizeof(*dst))};

	cuda_span_with(&a.span, src, sizeof(*src));
	return cuda_launch(k, kernel, cuda_span_blocks(&a.span), &a);
}

int tern_cuda_f32_to_f16(
	struct tern_cuda_kernels *k, uint16_t *dst, const float *src, uint64_t count)
{
	return narrow(k, TERN_CUDA_f32_to_f16, dst, src, count);
}

int tern_cuda_f16_to_f32(
	struct tern_cuda_kernels *k, float *dst, const uint16_t *src, uint64_t count)
{
	return widen(k, TERN_CUDA_f16_to_f32, dst, src, count);
}

int tern_cuda_f32_to_bf16(
	struct tern_cuda_kernels *k, uint16_t *dst, const float *src, uint64_t count)
{
	return narrow(k, TERN_CUDA_f32_to_bf16, dst, src, count);
}

int tern_cuda_bf16_to_f32(
	struct tern_cuda_kernels *k, float *dst, const uint16_t *src, uint64_t count)
{
	return widen(k, TERN_CUDA_bf16_to_f32, dst, src, count);
}
