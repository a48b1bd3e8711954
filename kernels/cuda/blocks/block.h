/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the CUDA kernels are written. Each kernel is a function of one block, in a header
 * that nvcc compiles for the GPU and the C compiler for the CPU. So the indexing, the
 * order of every addition and the handling of edges can be tested without a GPU. Only on
 * a GPU do the threads of a block run at the same time.
 *
 * A block function consists of regions that start with TERN_EACH (t, THREADS). On the GPU
 * each thread runs a region once with its own t; on the CPU a region is a loop over t.
 * TERN_BARRIER stands between two regions if one reads what another thread wrote, or
 * overwrites what another thread reads; on the CPU the end of the loop is that barrier.
 * TERN_SHARED marks variables that the threads of a block share. A variable that a thread
 * keeps from one region to the next is an array of TERN_KEPT(THREADS) elements indexed by
 * TERN_MINE(t): one element on the GPU, one for each thread on the CPU.
 *
 * On both, arithmetic (except exp() and log()) is IEEE with one rounding per operation.
 * nvcc gets --fmad=false (no fused multiply-add), and keeps its defaults: correctly
 * rounded division and square root, and subnormal numbers. Where a fused multiply-add is
 * wanted, the source calls fmaf().
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_BLOCK_H
#define TERN_KERNELS_CUDA_BLOCKS_BLOCK_H

#include <stdint.h>

#ifdef __CUDACC__
#define TERN_BODY            static __device__ __forceinline__
#define TERN_EACH(t, count)  for (unsigned t = threadIdx.x, once = 1; once; once = 0)
#define TERN_BARRIER()       __syncthreads()
#define TERN_SHARED          __shared__
#define TERN_KEPT(count)     1
#define TERN_MINE(t)         0
#define TERN_COUNT_UP(place) atomicAdd(place, 1u)
#define TERN_UNROLL          _Pragma("unroll")
#else
#include <math.h>
#include <string.h>
#endif

/* A test may define TERN_EACH and the other macros itself, to use real threads. */
#if !defined(__CUDACC__) && !defined(TERN_EACH)
#define TERN_BODY           static inline
#define TERN_EACH(t, count) for (unsigned t = 0; t < (count); t++)
#define TERN_BARRIER()      ((void)0)
#define TERN_SHARED
#define TERN_KEPT(count)     (count)
#define TERN_MINE(t)         (t)
#define TERN_COUNT_UP(place) ((void)++*(place))
#define TERN_UNROLL
#endif

/* A quad: four floats that are loaded or stored together, 16 bytes, aligned to 16. The
 * build of bench/gpu defines quads of other sizes (widths.h), to measure them. */
#ifndef TERN_QUAD_ELEMENTS
#define TERN_QUAD_ELEMENTS 4u
struct tern_quad {
	float at[TERN_QUAD_ELEMENTS];
} __attribute__((aligned(16)));

struct tern_half_quad { /* four 16-bit floats */
	uint16_t at[TERN_QUAD_ELEMENTS];
} __attribute__((aligned(8)));

/* Loads a quad in one instruction. nvcc may split the load of a structure, and even a
 * store of its own vector types, so the load uses a built-in vector type, and the store
 * an intrinsic. */
TERN_BODY struct tern_quad tern_quad_get(const float *p)
{
#ifdef __CUDACC__
	float4 q = *(const float4 *)p;

	return {{q.x, q.y, q.z, q.w}};
#else
	return *(const struct tern_quad *)(const void *)p;
#endif
}

TERN_BODY void tern_quad_put(float *p, struct tern_quad q)
{
#ifdef __CUDACC__
	__stwb((float4 *)p, make_float4(q.at[0], q.at[1], q.at[2], q.at[3]));
#else
	*(struct tern_quad *)(void *)p = q;
#endif
}

TERN_BODY struct tern_half_quad tern_half_quad_get(const uint16_t *p)
{
#ifdef __CUDACC__
	ushort4 q = *(const ushort4 *)p;

	return {{q.x, q.y, q.z, q.w}};
#else
	return *(const struct tern_half_quad *)(const void *)p;
#endif
}

TERN_BODY void tern_half_quad_put(uint16_t *p, struct tern_half_quad q)
{
#ifdef __CUDACC__
	__stwb((ushort4 *)p, make_ushort4(q.at[0], q.at[1], q.at[2], q.at[3]));
#else
	*(struct tern_half_quad *)(void *)p = q;
#endif
}
#endif

/*
 * The elements of an element-by-element kernel. If `quads` is set, in every operand the
 * address `shift` elements before the first element is aligned for a quad. Then element e
 * belongs to quad (e + shift) / TERN_QUAD_ELEMENTS, and only the first and the last quad
 * may be incomplete. Elements do not depend on each other, so their bits do not depend on
 * the use of quads.
 */
struct tern_span {
	uint64_t count;
	uint16_t shift, quads;
};

/* Each thread has one quad. Many threads hide the latency of memory, and a small tensor
 * has too few quads for more than one per thread. The build of bench/gpu defines other
 * numbers of threads, to measure them. */
#ifndef TERN_QUAD_THREADS
#define TERN_QUAD_THREADS 256u
#endif
#define TERN_QUAD_BLOCK (TERN_QUAD_ELEMENTS * TERN_QUAD_THREADS) /* elements per block */

/* For each quad of the block: calls whole(args, e) if the quad can be moved as a whole,
 * else one(args, e) for each of its elements that exists. */
#define TERN_EACH_QUAD(args, span, block, whole, one)                                    \
	TERN_EACH (t, TERN_QUAD_THREADS) {                                               \
		uint64_t at = TERN_QUAD_ELEMENTS * ((block)*TERN_QUAD_THREADS + t);      \
                                                                                         \
		if (tern_span_whole(span, at))                                           \
			whole(args, at - (span)->shift);                                 \
		else                                                                     \
			for (uint64_t e = at; e < at + TERN_QUAD_ELEMENTS; e++)          \
				if (tern_span_has(span, e))                              \
					one(args, e - (span)->shift);                    \
	}

TERN_BODY int tern_span_whole(const struct tern_span *s, uint64_t at)
{
	return s->quads && at >= s->shift &&
	       at + TERN_QUAD_ELEMENTS <= s->count + s->shift;
}

TERN_BODY int tern_span_has(const struct tern_span *s, uint64_t e)
{
	return e >= s->shift && e < s->count + s->shift;
}

TERN_BODY uint32_t tern_bits_of(float f)
{
#ifdef __CUDACC__
	return __float_as_uint(f);
#else
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
#endif
}

TERN_BODY float tern_float_of(uint32_t u)
{
#ifdef __CUDACC__
	return __uint_as_float(u);
#else
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
#endif
}

#endif
