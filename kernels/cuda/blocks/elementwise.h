/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-by-element kernels, as functions of one block: see block.h. One launch of an
 * update covers many tensors. Their descriptors are in the kernel's argument, which is
 * constant memory, so no descriptor is copied to the device before the launch or must
 * outlive it. A block finds its tensor by bisection over first_block.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_ELEMENTWISE_H
#define TERN_KERNELS_CUDA_BLOCKS_ELEMENTWISE_H

#include "kernels/cuda/blocks/elements.h"

#define TERN_CUDA_SLOTS 8u /* equals TERN_SUM_MAX */

/* ---- sum: dst = scale * tree(src[0..n)) ---- */

struct tern_cuda_sum {
	float *dst; /* may be one of src */
	const float *src[TERN_CUDA_SLOTS];
	struct tern_span span;
	float scale;
	uint32_t n;
};

TERN_BODY float tern_tree_one(const float *const *src, uint32_t n, uint64_t e)
{
	float x[TERN_CUDA_SLOTS];

	TERN_UNROLL
	for (uint32_t i = 0; i < TERN_CUDA_SLOTS; i++)
		x[i] = i < n ? src[i][e] : 0.0f;
	return tern_element_tree(x, n);
}

TERN_BODY struct tern_quad tern_tree_quad(const float *const *src, uint32_t n, uint64_t e)
{
	struct tern_quad in[TERN_CUDA_SLOTS], out;

	TERN_UNROLL
	for (uint32_t i = 0; i < TERN_CUDA_SLOTS; i++)
		if (i < n)
			in[i] = tern_quad_get(src[i] + e);
	TERN_UNROLL
	for (unsigned k = 0; k < TERN_QUAD_ELEMENTS; k++) {
		float x[TERN_CUDA_SLOTS];

		TERN_UNROLL
		for (uint32_t i = 0; i < TERN_CUDA_SLOTS; i++)
			x[i] = i < n ? in[i].at[k] : 0.0f;
		out.at[k] = tern_element_tree(x, n);
	}
	return out;
}

TERN_BODY void tern_sum_one(const struct tern_cuda_sum *a, uint64_t e)
{
	a->dst[e] = a->scale * tern_tree_one(a->src, a->n, e);
}

TERN_BODY void tern_sum_quad(const struct tern_cuda_sum *a, uint64_t e)
{
	struct tern_quad q = tern_tree_quad(a->src, a->n, e);

	TERN_UNROLL
	for (unsigned k = 0; k < TERN_QUAD_ELEMENTS; k++)
		q.at[k] = a->scale * q.at[k];
	tern_quad_put(a->dst + e, q);
}

TERN_BODY void tern_block_sum(const struct tern_cuda_sum *a, uint64_t block)
{
	TERN_EACH_QUAD(a, &a->span, block, tern_sum_quad, tern_sum_one)
}

/* ---- updates: one optimizer step ---- */

struct tern_cuda_part { /* one tensor of an update */
	float *w_out;
	const float *w_in;
	float *m, *v; /* state vectors; NULL if the optimizer has none */
	const float *grads[TERN_CUDA_SLOTS];
	struct tern_span span;
	uint32_t first_block;
};

/* Largest number of tensors in one launch: their descriptors must fit into the 4 KiB of
 * arguments that a kernel may have on every device. */
#define TERN_CUDA_PARTS_MAX 33u

struct tern_cuda_update {
	struct tern_scalars scalars;
	float scale;
	uint32_t n, part_count;
	struct tern_cuda_part parts[TERN_CUDA_PARTS_MAX];
};

struct tern_update_at { /* a tensor of the update, as the argument of TERN_EACH_QUAD */
	const struct tern_cuda_update *a;
	const struct tern_cuda_part *p;
};

/* Finds the tensor of a block: the last part whose first_block is not greater than
 * `block`. */
TERN_BODY const struct tern_cuda_part *tern_part_of(
	const struct tern_cuda_update *a, uint64_t block)
{
	uint32_t low = 0, high = a->part_count;

	while (high - low > 1) {
		uint32_t mid = (low + high) / 2;

		if (a->parts[mid].first_block <= block)
			low = mid;
		else
			high = mid;
	}
	return &a->parts[low];
}

/*
 * Defines the block function of an update rule. HAS_M, HAS_V: which state vectors the
 * optimizer keeps. N: the number of gradients that it adds. All are compile-time
 * constants, except that N is either 1 or a->n. A function for N = 1 uses fewer
 * registers, which allows more threads.
 */
#define TERN_UPDATE_BLOCK(name, kind, HAS_M, HAS_V, N)                                   \
	TERN_BODY void tern_##name##_one(const struct tern_update_at *u, uint64_t e)     \
	{                                                                                \
		const struct tern_cuda_update *a = u->a;                                 \
		const struct tern_cuda_part *p = u->p;                                   \
		float w = p->w_in[e], m = 0, v = 0;                                      \
		float g = tern_tree_one(p->grads, N, e) * a->scale;                      \
                                                                                         \
		if (HAS_M)                                                               \
			m = p->m[e];                                                     \
		if (HAS_V)                                                               \
			v = p->v[e];                                                     \
		p->w_out[e] = tern_rule_##kind(&a->scalars, g, w, &m, &v);               \
		if (HAS_M)                                                               \
			p->m[e] = m;                                                     \
		if (HAS_V)                                                               \
			p->v[e] = v;                                                     \
	}                                                                                \
                                                                                         \
	TERN_BODY void tern_##name##_quad(const struct tern_update_at *u, uint64_t e)    \
	{                                                                                \
		const struct tern_cuda_update *a = u->a;                                 \
		const struct tern_cuda_part *p = u->p;                                   \
		struct tern_quad w = tern_quad_get(p->w_in + e), m = {{0}}, v = {{0}};   \
		struct tern_quad sum = tern_tree_quad(p->grads, N, e);                   \
                                                                                         \
		if (HAS_M)                                                               \
			m = tern_quad_get(p->m + e);                                     \
		if (HAS_V)                                                               \
			v = tern_quad_get(p->v + e);                                     \
		TERN_UNROLL                                                              \
		for (unsigned k = 0; k < TERN_QUAD_ELEMENTS; k++) {                      \
			float g = sum.at[k] * a->scale;                                  \
                                                                                         \
			w.at[k] = tern_rule_##kind(                                      \
				&a->scalars, g, w.at[k], &m.at[k], &v.at[k]);            \
		}                                                                        \
		tern_quad_put(p->w_out + e, w);                                          \
		if (HAS_M)                                                               \
			tern_quad_put(p->m + e, m);                                      \
		if (HAS_V)                                                               \
			tern_quad_put(p->v + e, v);                                      \
	}                                                                                \
                                                                                         \
	TERN_BODY void tern_block_##name(                                                \
		const struct tern_cuda_update *a, uint64_t block)                        \
	{                                                                                \
		const struct tern_update_at u = {a, tern_part_of(a, block)};             \
		uint64_t own = block - u.p->first_block;                                 \
                                                                                         \
		TERN_EACH_QUAD(                                                          \
			&u, &u.p->span, own, tern_##name##_quad, tern_##name##_one)      \
	}

/* Two kernels for each optimizer: NAME for one gradient, NAME_slots for several. */
#define TERN_UPDATE_BLOCKS(X, KIND, name, HAS_M, HAS_V, ...)                             \
	TERN_UPDATE_BLOCK(name, name, HAS_M, HAS_V, 1)                                   \
	TERN_UPDATE_BLOCK(name##_slots, name, HAS_M, HAS_V, a->n)

TERN_OPTIMIZERS(TERN_UPDATE_BLOCKS, )

/* ---- casts ---- */

struct tern_cuda_narrow {
	uint16_t *dst;
	const float *src;
	struct tern_span span;
};

struct tern_cuda_widen {
	float *dst;
	const uint16_t *src;
	struct tern_span span;
};

#define TERN_CAST_BLOCKS(type)                                                           \
	TERN_BODY void tern_narrow_##type##_one(                                         \
		const struct tern_cuda_narrow *a, uint64_t e)                            \
	{                                                                                \
		a->dst[e] = tern_element_##type(a->src[e]);                              \
	}                                                                                \
                                                                                         \
	TERN_BODY void tern_narrow_##type##_quad(                                        \
		const struct tern_cuda_narrow *a, uint64_t e)                            \
	{                                                                                \
		struct tern_quad in = tern_quad_get(a->src + e);                         \
		struct tern_half_quad out;                                               \
                                                                                         \
		TERN_UNROLL                                                              \
		for (unsigned k = 0; k < TERN_QUAD_ELEMENTS; k++)                        \
			out.at[k] = tern_element_##type(in.at[k]);                       \
		tern_half_quad_put(a->dst + e, out);                                     \
	}                                                                                \
                                                                                         \
	TERN_BODY void tern_widen_##type##_one(                                          \
		const struct tern_cuda_widen *a, uint64_t e)                             \
	{                                                                                \
		a->dst[e] = tern_element_of_##type(a->src[e]);                           \
	}                                                                                \
                                                                                         \
	TERN_BODY void tern_widen_##type##_quad(                                         \
		const struct tern_cuda_widen *a, uint64_t e)                             \
	{                                                                                \
		struct tern_half_quad in = tern_half_quad_get(a->src + e);               \
		struct tern_quad out;                                                    \
                                                                                         \
		TERN_UNROLL                                                              \
		for (unsigned k = 0; k < TERN_QUAD_ELEMENTS; k++)                        \
			out.at[k] = tern_element_of_##type(in.at[k]);                    \
		tern_quad_put(a->dst + e, out);                                          \
	}                                                                                \
                                                                                         \
	TERN_BODY void tern_block_f32_to_##type(                                         \
		const struct tern_cuda_narrow *a, uint64_t block){TERN_EACH_QUAD(a,      \
		&a->span, block, tern_narrow_##type##_quad, tern_narrow_##type##_one)}   \
                                                                                         \
	TERN_BODY void tern_block_##type##_to_f32(                                       \
		const struct tern_cuda_widen *a, uint64_t block)                         \
	{                                                                                \
		TERN_EACH_QUAD(a, &a->span, block, tern_widen_##type##_quad,             \
			tern_widen_##type##_one)                                         \
	}

TERN_CAST_BLOCKS(f16)
TERN_CAST_BLOCKS(bf16)

#endif
