/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels with 1, 2 or 8 elements per thread in the place of four, which bench/gpu
 * measures and nothing else uses: the build defines TERN_QUAD_ELEMENTS. A quad of that
 * size is defined here, so block.h leaves out its own. All else of the kernels is the
 * shipped source. nvcc compiles them for the GPU (bench/gpu/widths.cu), the C compiler
 * for the simulated driver (tests/gpu/widths.c).
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_WIDTHS_H
#define TERN_KERNELS_CUDA_BLOCKS_WIDTHS_H

#include <stdint.h>

struct tern_quad {
	float at[TERN_QUAD_ELEMENTS];
} __attribute__((aligned(4 * TERN_QUAD_ELEMENTS)));

struct tern_half_quad {
	uint16_t at[TERN_QUAD_ELEMENTS];
} __attribute__((aligned(2 * TERN_QUAD_ELEMENTS)));

#ifdef __CUDACC__
#define TERN_WIDTH_BODY static __device__ __forceinline__

/* Types that one instruction moves. Eight floats are two moves: no instruction of sm_80 or
 * sm_90 moves 32 bytes. */
#if TERN_QUAD_ELEMENTS == 1
typedef float tern_width_floats;
typedef unsigned short tern_width_halves;
#elif TERN_QUAD_ELEMENTS == 2
typedef float2 tern_width_floats;
typedef ushort2 tern_width_halves;
#elif TERN_QUAD_ELEMENTS == 8
typedef float4 tern_width_floats;
typedef uint4 tern_width_halves;
#endif

template <typename quad, typename move> TERN_WIDTH_BODY quad tern_width_get(const void *p)
{
	const unsigned count = sizeof(quad) / sizeof(move);
	move moved[count];
	quad q;

#pragma unroll
	for (unsigned i = 0; i < count; i++)
		moved[i] = ((const move *)p)[i];
	memcpy(&q, moved, sizeof(q));
	return q;
}

template <typename move, typename quad>
TERN_WIDTH_BODY void tern_width_put(void *p, quad q)
{
	const unsigned count = sizeof(quad) / sizeof(move);
	move moved[count];

	memcpy(moved, &q, sizeof(q));
#pragma unroll
	for (unsigned i = 0; i < count; i++)
		__stwb((move *)p + i, moved[i]);
}
#else
#define TERN_WIDTH_BODY static inline
#endif

TERN_WIDTH_BODY struct tern_quad tern_quad_get(const float *p)
{
#ifdef __CUDACC__
	return tern_width_get<struct tern_quad, tern_width_floats>(p);
#else
	return *(const struct tern_quad *)(const void *)p;
#endif
}

TERN_WIDTH_BODY void tern_quad_put(float *p, struct tern_quad q)
{
#ifdef __CUDACC__
	tern_width_put<tern_width_floats>(p, q);
#else
	*(struct tern_quad *)(void *)p = q;
#endif
}

TERN_WIDTH_BODY struct tern_half_quad tern_half_quad_get(const uint16_t *p)
{
#ifdef __CUDACC__
	return tern_width_get<struct tern_half_quad, tern_width_halves>(p);
#else
	return *(const struct tern_half_quad *)(const void *)p;
#endif
}

TERN_WIDTH_BODY void tern_half_quad_put(uint16_t *p, struct tern_half_quad q)
{
#ifdef __CUDACC__
	tern_width_put<tern_width_halves>(p, q);
#else
	*(struct tern_half_quad *)(void *)p = q;
#endif
}

#include "kernels/cuda/blocks/elementwise.h"

/* The list of kernels: name, type of the argument. Their names end with the number of
 * elements, as in tern_cuda_adam_8. */
#define TERN_WIDTH_KERNELS(X)                                                            \
	X(sum, struct tern_cuda_sum)                                                     \
	X(adam, struct tern_cuda_update)                                                 \
	X(f32_to_f16, struct tern_cuda_narrow)
#define TERN_WIDTH_JOINED(name, elements) name##_##elements
#define TERN_WIDTH_NAME(name, elements)   TERN_WIDTH_JOINED(name, elements)

#endif
