/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/gpu/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

#define PATTERN_COUNT (1u << 20) /* number of floats in the pattern */

void bench_fail(int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(status);
}

enum bench_gpu_scale bench_gpu_scale(int argc, char **argv)
{
	const char *asked = getenv("TERN_GPU_SCALE");

	if (argc > 2 || (argc == 2 && strcmp(argv[1], "--smoke") != 0))
		bench_fail(2, "usage: %s [--smoke]", argv[0]);
	if (argc == 2 || (asked && strcmp(asked, "few") == 0))
		return BENCH_GPU_FEW;
	return asked && strcmp(asked, "some") == 0 ? BENCH_GPU_SOME : BENCH_GPU_LARGE;
}

void bench_gpu_check(const struct bench_gpu *gpu, CUresult result, const char *what)
{
	char text[160];

	if (result != CUDA_SUCCESS)
		bench_fail(1, "%s: %s", what,
			tern_cuda_text(gpu->api, result, text, sizeof(text)));
}

void bench_gpu_done(const struct tern_cuda_kernels *k, int status)
{
	if (status < 0)
		bench_fail(1, "%s", tern_cuda_kernels_error(k));
}

void bench_gpu_open(struct bench_gpu *gpu)
{
	const char *blas = getenv("TERN_GPU_BLAS"), *why;
	const struct tern_cuda_api *api;

	*gpu = (struct bench_gpu){0};
	if (tern_cuda_load(&gpu->api, &why) < 0)
		bench_fail(2, "%s", why);
	api = gpu->api;
	bench_gpu_check(gpu, api->device_get(&gpu->device, 0), "the first device");
	bench_gpu_check(gpu, api->primary_ctx_retain(&gpu->context, gpu->device),
		"the device's context");
	bench_gpu_check(gpu, api->ctx_push_current(gpu->context), "the context");
	bench_gpu_check(gpu,
		api->stream_create_with_priority(&gpu->stream, CU_STREAM_NON_BLOCKING, 0),
		"a stream");
	bench_gpu_check(gpu, api->event_create(&gpu->from, CU_EVENT_DEFAULT), "an event");
	bench_gpu_check(gpu, api->event_create(&gpu->to, CU_EVENT_DEFAULT), "an event");
	gpu->no_blas = "TERN_GPU_BLAS=none";
	if (!blas || strcmp(blas, "none") != 0)
		tern_cublas_load(api, &gpu->blas, &gpu->no_blas);
}

void bench_gpu_close(struct bench_gpu *gpu)
{
	while (gpu->owned_count > 0)
		gpu->api->mem_free(gpu->owned[--gpu->owned_count]);
	gpu->api->event_destroy(gpu->to);
	gpu->api->event_destroy(gpu->from);
	gpu->api->stream_destroy(gpu->stream);
	gpu->api->ctx_pop_current(NULL);
	gpu->api->primary_ctx_release(gpu->device);
}

void *bench_gpu_alloc(struct bench_gpu *gpu, uint64_t bytes)
{
	CUdeviceptr p;
	char what[64];

	snprintf(what, sizeof(what), "%llu bytes on the device",
		(unsigned long long)bytes);
	bench_gpu_check(gpu, gpu->api->mem_alloc(&p, bytes), what);
	tern_assert(gpu->owned_count < TERN_ARRAY_SIZE(gpu->owned));
	gpu->owned[gpu->owned_count++] = p;
	gpu->bytes += bytes;
	return (void *)(uintptr_t)p;
}

void bench_gpu_clear(struct bench_gpu *gpu, void *to, uint64_t bytes)
{
	bench_gpu_check(gpu,
		gpu->api->memset_d8_async(
			(CUdeviceptr)(uintptr_t)to, 0, bytes, gpu->stream),
		"clearing memory");
}

void bench_gpu_up(struct bench_gpu *gpu, void *to, const void *from, uint64_t bytes)
{
	bench_gpu_check(gpu,
		gpu->api->memcpy_htod_async(
			(CUdeviceptr)(uintptr_t)to, from, bytes, gpu->stream),
		"a copy to the device");
	bench_gpu_check(gpu, gpu->api->stream_synchronize(gpu->stream), "the stream");
}

void bench_gpu_down(struct bench_gpu *gpu, void *to, const void *from, uint64_t bytes)
{
	bench_gpu_check(gpu,
		gpu->api->memcpy_dtoh_async(
			to, (CUdeviceptr)(uintptr_t)from, bytes, gpu->stream),
		"a copy from the device");
	bench_gpu_check(gpu, gpu->api->stream_synchronize(gpu->stream), "the stream");
}

/* Copies a random pattern to the device, and repeats it there until it fills the
 * memory. */
float *bench_gpu_floats(struct bench_gpu *gpu, uint64_t count, float low)
{
	uint64_t have = TERN_MIN(count, (uint64_t)PATTERN_COUNT);
	float *out = bench_gpu_alloc(gpu, count * sizeof(float));
	float *pattern = malloc(have * sizeof(float));
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)out;

	if (!pattern)
		bench_fail(1, "out of memory");
	for (uint64_t i = 0; i < have; i++)
		pattern[i] = low + (1 - low) * tern_unit_f32(tern_rng_at(1, 2, 3, i));
	bench_gpu_up(gpu, out, pattern, have * sizeof(float));
	free(pattern);
	while (have < count) {
		uint64_t more = TERN_MIN(have, count - have);

		bench_gpu_check(gpu,
			gpu->api->memcpy_dtod_async(at + have * sizeof(float), at,
				more * sizeof(float), gpu->stream),
			"a copy on the device");
		have += more;
	}
	bench_gpu_check(gpu, gpu->api->stream_synchronize(gpu->stream), "the stream");
	return out;
}

struct tern_cuda_kernels *bench_gpu_table(struct bench_gpu *gpu,
	const struct tern_cublas_api *blas, const struct tern_cuda_sizes *sizes)
{
	struct tern_cuda_kernels *k;
	char why[256];

	if (tern_cuda_kernels_new(gpu->api, blas, gpu->device, gpu->stream, sizes, &k,
		    why, sizeof(why)) < 0)
		bench_fail(1, "%s", why);
	return k;
}

double bench_gpu_time_us(
	struct bench_gpu *gpu, void (*run)(void *arg), void *arg, unsigned times)
{
	const struct tern_cuda_api *api = gpu->api;
	float ms;

	bench_gpu_check(gpu, api->event_record(gpu->from, gpu->stream), "an event");
	for (unsigned i = 0; i < times; i++)
		run(arg);
	bench_gpu_check(gpu, api->event_record(gpu->to, gpu->stream), "an event");
	bench_gpu_check(
		gpu, api->event_synchronize(gpu->to), "waiting for the timed work");
	bench_gpu_check(gpu, api->event_elapsed_time(&ms, gpu->from, gpu->to), "a time");
	return 1000.0 * (double)ms;
}

static void print_samples(const char *name, const double *us, unsigned count, double by)
{
	printf(", \"%s\": [", name);
	for (unsigned i = 0; i < count; i++)
		printf("%s%.4f", i ? ", " : "", us[i] / by);
	printf("]");
}

void bench_gpu_row(const struct bench_gpu_row *row)
{
	printf("{\"name\": \"%s\", \"peer\": \"%s\", \"bytes\": %llu, \"goal\": %g",
		row->name, row->peer, (unsigned long long)row->bytes, row->goal);
	if (row->wrong)
		printf(", \"wrong\": \"%s\"", row->wrong);
	if (row->missing)
		printf(", \"missing\": \"%s\"", row->missing);
	if (row->note)
		printf(", \"note\": \"%s\"", row->note);
	print_samples("ours_us", row->ours_us, row->ours_count, row->times);
	print_samples("peer_us", row->peer_us, row->peer_count, row->times);
	printf("}\n");
	fflush(stdout);
}

static double work_us(
	struct bench_gpu *gpu, const struct bench_gpu_work *work, unsigned times)
{
	return bench_gpu_time_us(gpu, work->run, work->arg, times);
}

void bench_gpu_turns(struct bench_gpu *gpu, const struct bench_gpu_work *ours,
	const struct bench_gpu_work *peer, unsigned rounds,
	const struct bench_gpu_row *row)
{
	double ours_us[2 * BENCH_GPU_ROUNDS_MAX], peer_us[2 * BENCH_GPU_ROUNDS_MAX];
	struct bench_gpu_row measured = *row;

	tern_assert(rounds <= BENCH_GPU_ROUNDS_MAX);
	work_us(gpu, peer, row->times); /* warm-up */
	if (ours->run)
		work_us(gpu, ours, row->times);
	for (unsigned i = 0; i < rounds; i++) {
		peer_us[2 * i] = work_us(gpu, peer, row->times);
		for (unsigned j = 0; j < 2 && ours->run; j++)
			ours_us[2 * i + j] = work_us(gpu, ours, row->times);
		peer_us[2 * i + 1] = work_us(gpu, peer, row->times);
	}
	measured.ours_us = ours_us;
	measured.ours_count = ours->run ? 2 * rounds : 0;
	measured.peer_us = peer_us;
	measured.peer_count = 2 * rounds;
	bench_gpu_row(&measured);
}
