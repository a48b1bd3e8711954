/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common start of the GPU benchmarks: the first device, a stream, memory that is counted,
 * and the time between two events of the stream. A benchmark that cannot continue has no
 * result, so every failure here ends the program with one line: exit status 2 without a
 * device, else 1.
 */
#ifndef TERN_BENCH_GPU_DEVICE_H
#define TERN_BENCH_GPU_DEVICE_H

#include <stdint.h>

#include "kernels/cuda/table.h"

struct bench_gpu {
	const struct tern_cuda_api *api;
	const struct tern_cublas_api *blas; /* NULL: cuBLAS is not there */
	const char *no_blas;                /* the reason for that */
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUevent from, to;
	CUdeviceptr owned[64]; /* allocations below, freed at the end */
	unsigned owned_count;
	uint64_t bytes; /* bytes of all allocations */
};

void bench_gpu_open(struct bench_gpu *gpu);
void bench_gpu_close(struct bench_gpu *gpu);

/* Allocates device memory, which lives until bench_gpu_close(). */
void *bench_gpu_alloc(struct bench_gpu *gpu, uint64_t bytes);
/* Random floats in [low, 1). */
float *bench_gpu_floats(struct bench_gpu *gpu, uint64_t count, float low);
void bench_gpu_up(struct bench_gpu *gpu, void *to, const void *from, uint64_t bytes);
void bench_gpu_down(struct bench_gpu *gpu, void *to, const void *from, uint64_t bytes);

struct tern_cuda_kernels *bench_gpu_table(struct bench_gpu *gpu,
	const struct tern_cublas_api *blas, const struct tern_cuda_sizes *sizes);

/* Runs `times` calls and returns the microseconds from the first to the last, measured
 * on the device. */
double bench_gpu_time_us(
	struct bench_gpu *gpu, void (*run)(void *arg), void *arg, unsigned times);

/* A line that bench/gpu/figures.py reads. Each sample is the time of `times`
 * operations. */
struct bench_gpu_row {
	const char *name, *peer;
	uint64_t bytes; /* of one operation; 0: it is not about bytes */
	double goal;
	const double *ours_us, *peer_us;
	unsigned ours_count, peer_count, times;
	const char *wrong; /* reason why this is not a comparison; NULL: it is one */
};
void bench_gpu_row(const struct bench_gpu_row *row);

void bench_gpu_check(const struct bench_gpu *gpu, CUresult result, const char *what);
/* Ends the program if a call of the table has failed. */
void bench_gpu_done(const struct tern_cuda_kernels *k, int status);
_Noreturn void bench_fail(int status, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
