/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all GPU benchmarks need: the first device, a stream, device memory whose bytes are
 * counted, and the time between two events of the stream. A benchmark that cannot
 * continue has no result, so every failure here ends the program with one line: exit
 * status 2 without a device or with wrong arguments, else 1.
 */
#ifndef TERN_BENCH_GPU_DEVICE_H
#define TERN_BENCH_GPU_DEVICE_H

#include <stdint.h>

#include "kernels/cuda/table.h"

struct bench_gpu {
	const struct tern_cuda_api *api;
	const struct tern_cublas_api *blas; /* NULL: cuBLAS is not used */
	const char *no_blas;                /* the reason if `blas` is NULL */
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUevent from, to;
	/* allocations of bench_gpu_alloc(), freed in bench_gpu_close() */
	CUdeviceptr owned[64];
	unsigned owned_count;
	uint64_t bytes; /* bytes of all these allocations */
};

/* Size of the measurements. FEW: to test a program; the figures mean nothing. SOME: for a
 * run under a checker or a profiler. LARGE: to measure. */
enum bench_gpu_scale { BENCH_GPU_FEW, BENCH_GPU_SOME, BENCH_GPU_LARGE };

/* Returns the scale that the environment variable TERN_GPU_SCALE asks for: "few", "some",
 * or anything else for large. The option --smoke means few. With any other argument it
 * prints the usage and exits. */
enum bench_gpu_scale bench_gpu_scale(int argc, char **argv);

void bench_gpu_open(struct bench_gpu *gpu);
void bench_gpu_close(struct bench_gpu *gpu);

/* Allocates device memory, which bench_gpu_close() frees. */
void *bench_gpu_alloc(struct bench_gpu *gpu, uint64_t bytes);
/* Allocates `count` random floats in [low, 1) in device memory. */
float *bench_gpu_floats(struct bench_gpu *gpu, uint64_t count, float low);
/* Queues into gpu->stream that the memory is set to 0. The next two copy from the host to
 * the device and back, and wait until that is done. */
void bench_gpu_clear(struct bench_gpu *gpu, void *to, uint64_t bytes);
void bench_gpu_up(struct bench_gpu *gpu, void *to, const void *from, uint64_t bytes);
void bench_gpu_down(struct bench_gpu *gpu, void *to, const void *from, uint64_t bytes);

struct tern_cuda_kernels *bench_gpu_table(struct bench_gpu *gpu,
	const struct tern_cublas_api *blas, const struct tern_cuda_sizes *sizes);

/* Calls run() `times` times and returns the microseconds that the queued work took,
 * measured on the device. */
double bench_gpu_time_us(
	struct bench_gpu *gpu, void (*run)(void *arg), void *arg, unsigned times);

/* A JSON line of samples, which bench/gpu/figures.py reads. Each sample here is the time
 * of `times` operations; the line has the time of one. */
struct bench_gpu_row {
	const char *name, *peer;
	/* bytes that one operation moves; 0: the row is not about bandwidth */
	uint64_t bytes;
	double goal;
	const double *ours_us, *peer_us;
	unsigned ours_count, peer_count, times;
	/* reason why the samples must not be compared; NULL: they may */
	const char *wrong;
	const char *missing; /* reason why there are no samples; NULL: there are */
	const char *note;    /* one more observation to show; NULL: none */
};
void bench_gpu_row(const struct bench_gpu_row *row);

#define BENCH_GPU_ROUNDS_MAX 16u

struct bench_gpu_work { /* a call that queues work into the stream */
	void (*run)(void *arg);
	void *arg;
};
/* Measures two kinds of work in the order peer, ours, ours, peer, so that a drift of the
 * clocks affects both alike, and repeats that `rounds` times. Prints `row` with the
 * samples, each of which is the time of row->times calls. If ours->run is NULL, only the
 * peer is measured. */
void bench_gpu_turns(struct bench_gpu *gpu, const struct bench_gpu_work *ours,
	const struct bench_gpu_work *peer, unsigned rounds,
	const struct bench_gpu_row *row);

void bench_gpu_check(const struct bench_gpu *gpu, CUresult result, const char *what);
/* Ends the program if a call of a tern_cuda_...() function has failed. */
void bench_gpu_done(const struct tern_cuda_kernels *k, int status);
_Noreturn void bench_fail(int status, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
