/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How close the CUDA kernels come to the device's memory bandwidth, and what a launch
 * costs. Every case is measured in turn with its limit (limit, ours, ours, limit), in one
 * process and on one stream; a sample is the time of `times` consecutive runs. The data
 * are random, and several times as large as any L2 cache.
 *
 * usage: gpu_rates [--smoke | --device]. It prints samples, one JSON object a line;
 * figures.py makes figures of them. --smoke: small and short, to test the program itself.
 * --device: prints only the name of the device.
 */
#include <stdio.h>
#include <string.h>

#include "base/cuda_devices.h"
#include "base/util.h"
#include "bench/gpu/device.h"

#define TENSORS_MAX 161
#define ROUNDS_MAX  16

struct rates {
	struct bench_gpu gpu;
	struct tern_cuda_kernels *k;
	struct tern_optimizer adam;
	uint64_t count;                  /* floats of a vector */
	float *vector[TERN_SUM_MAX + 1]; /* on the device */
	float *copy_from, *copy_to; /* each has half of the bytes that a case moves */
	void *pinned;               /* `count` floats on the host */
	struct tern_cuda_tensor many[TENSORS_MAX], one, small;
	size_t many_count;
	uint64_t bytes;  /* bytes of the present case */
	unsigned inputs; /* inputs of its sum */
	unsigned rounds, times;
};

static CUdeviceptr address(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* ---- limits ---- */

static void copy_on_device(void *arg)
{
	struct rates *r = arg;

	bench_gpu_check(&r->gpu,
		r->gpu.api->memcpy_dtod_async(address(r->copy_to), address(r->copy_from),
			r->bytes / 2, r->gpu.stream),
		"a copy on the device");
}

static void copy_up(void *arg)
{
	struct rates *r = arg;

	bench_gpu_check(&r->gpu,
		r->gpu.api->memcpy_htod_async(
			address(r->vector[0]), r->pinned, r->bytes, r->gpu.stream),
		"a copy to the device");
}

static void copy_down(void *arg)
{
	struct rates *r = arg;

	bench_gpu_check(&r->gpu,
		r->gpu.api->memcpy_dtoh_async(
			r->pinned, address(r->vector[0]), r->bytes, r->gpu.stream),
		"a copy from the device");
}

/* The smallest work of the driver. */
static void set_few(void *arg)
{
	struct rates *r = arg;

	bench_gpu_check(&r->gpu,
		r->gpu.api->memset_d32_async(address(r->copy_to), 0, 1024, r->gpu.stream),
		"setting memory");
}

/* ---- ours ---- */

static void adam(struct rates *r, const struct tern_cuda_tensor *tensors, size_t count)
{
	bench_gpu_done(
		r->k, tern_cuda_update(r->k, &r->adam, 1, tensors, count, 1, 1, 1));
}

static void adam_many(void *arg)
{
	struct rates *r = arg;

	adam(r, r->many, r->many_count);
}

static void adam_one(void *arg)
{
	struct rates *r = arg;

	adam(r, &r->one, 1);
}

static void adam_small(void *arg)
{
	struct rates *r = arg;

	adam(r, &r->small, 1);
}

static void sum(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_sum(r->k, r->vector[TERN_SUM_MAX],
				     (const float *const *)r->vector, r->inputs,
				     1.0f / (float)r->inputs, r->count));
}

/* ---- the table of cases ---- */

static uint64_t bytes_of_adam_many(const struct rates *r)
{
	uint64_t count = 0;

	for (size_t i = 0; i < r->many_count; i++)
		count += r->many[i].count;
	/* W, m, v are read and written; the gradient is read. */
	return 7 * sizeof(float) * count;
}

static uint64_t bytes_of_adam_one(const struct rates *r)
{
	return 7 * sizeof(float) * r->count;
}

static uint64_t bytes_of_sum(const struct rates *r)
{
	return (r->inputs + 1) * sizeof(float) * r->count;
}

static uint64_t bytes_of_vector(const struct rates *r)
{
	return sizeof(float) * r->count;
}

/* Add a line for each further measurement. ours NULL: the limit is the figure. goal: a
 * fraction of the limit's rate; 0: none. */
static const struct rate_case {
	const char *name, *limit_name;
	double goal;
	unsigned inputs, more_times;
	/* Bytes read and written; NULL: the cost of a launch. */
	uint64_t (*bytes)(const struct rates *r);
	void (*ours)(void *arg);
	void (*limit)(void *arg);
} cases[] = {
	{"Adam, 161 tensors of ResNet-50", "copy on the device", 0.9, 0, 1,
		bytes_of_adam_many, adam_many, copy_on_device},
	{"Adam, one tensor", "copy on the device", 0.9, 0, 1, bytes_of_adam_one, adam_one,
		copy_on_device},
	{"sum of 2", "copy on the device", 0.9, 2, 1, bytes_of_sum, sum, copy_on_device},
	{"sum of 4", "copy on the device", 0.9, 4, 1, bytes_of_sum, sum, copy_on_device},
	{"sum of 8", "copy on the device", 0.9, 8, 1, bytes_of_sum, sum, copy_on_device},
	{"page-locked memory to the device", "copy", 0, 0, 1, bytes_of_vector, NULL,
		copy_up},
	{"device to page-locked memory", "copy", 0, 0, 1, bytes_of_vector, NULL,
		copy_down},
	{"a launch: Adam of 1,024 elements", "memset of 4 KiB", 0, 0, 100, NULL,
		adam_small, set_few},
};

/* The order A, B, B, A makes a drift of the clocks affect both alike. */
static void run_case(struct rates *r, const struct rate_case *c)
{
	double ours[2 * ROUNDS_MAX], limit[2 * ROUNDS_MAX];
	unsigned times = r->times * c->more_times;

	r->inputs = c->inputs;
	r->bytes = c->bytes ? c->bytes(r) : 0;
	bench_gpu_time_us(&r->gpu, c->limit, r, times); /* warm-up */
	if (c->ours)
		bench_gpu_time_us(&r->gpu, c->ours, r, times);
	for (unsigned i = 0; i < r->rounds; i++) {
		limit[2 * i] = bench_gpu_time_us(&r->gpu, c->limit, r, times);
		for (unsigned j = 0; j < 2 && c->ours; j++)
			ours[2 * i + j] = bench_gpu_time_us(&r->gpu, c->ours, r, times);
		limit[2 * i + 1] = bench_gpu_time_us(&r->gpu, c->limit, r, times);
	}
	bench_gpu_row(&(struct bench_gpu_row){.name = c->name,
		.peer = c->limit_name,
		.bytes = r->bytes,
		.goal = c->goal,
		.ours_us = ours,
		.ours_count = c->ours ? 2 * r->rounds : 0,
		.peer_us = limit,
		.peer_count = 2 * r->rounds,
		.times = times});
}

/* ---- preparing ---- */

static void add_tensor(struct rates *r, uint64_t count, uint64_t *at)
{
	struct tern_cuda_tensor *t = &r->many[r->many_count++];

	count = TERN_MIN(count, r->count - *at); /* --smoke has less room */
	*t = (struct tern_cuda_tensor){.w_out = r->vector[0] + *at,
		.w_in = r->vector[0] + *at,
		.m = r->vector[1] + *at,
		.v = r->vector[2] + *at,
		.grads = {r->vector[3] + *at},
		.count = count};
	*at += count;
}

/* A convolution, and the scale and shift of the normalisation after it. */
static void add_convolution(
	struct rates *r, uint64_t in, uint64_t out, uint64_t window, uint64_t *at)
{
	add_tensor(r, in * out * window * window, at);
	add_tensor(r, out, at);
	add_tensor(r, out, at);
}

/* ResNet-50 (He et al. 2015), one tensor after the other. */
static void add_resnet(struct rates *r)
{
	static const unsigned blocks[] = {3, 4, 6, 3};
	uint64_t at = 0, in = 64;

	add_convolution(r, 3, 64, 7, &at);
	for (unsigned stage = 0; stage < 4; stage++)
		for (unsigned block = 0; block < blocks[stage]; block++) {
			uint64_t width = 64u << stage;

			add_convolution(r, in, width, 1, &at);
			add_convolution(r, width, width, 3, &at);
			add_convolution(r, width, 4 * width, 1, &at);
			if (block == 0)
				add_convolution(r, in, 4 * width, 1, &at);
			in = 4 * width;
		}
	add_tensor(r, 2048 * 1000, &at);
	add_tensor(r, 1000, &at);
	tern_assert(r->many_count == TENSORS_MAX);
}

static void prepare(struct rates *r)
{
	const struct tern_cuda_sizes sizes = {0};
	uint64_t moved = (TERN_SUM_MAX + 1) * r->count;

	r->k = bench_gpu_table(&r->gpu, NULL, &sizes);
	/* Adam's v must not be negative. */
	for (unsigned i = 0; i <= TERN_SUM_MAX; i++)
		r->vector[i] = bench_gpu_floats(&r->gpu, r->count, i == 2 ? 0 : -1);
	r->copy_from = bench_gpu_floats(&r->gpu, moved / 2 + 1, -1);
	r->copy_to = bench_gpu_floats(&r->gpu, moved / 2 + 1, -1);
	bench_gpu_check(&r->gpu,
		r->gpu.api->mem_host_alloc(&r->pinned, r->count * sizeof(float), 0),
		"page-locked memory");
	memset(r->pinned, 1, r->count * sizeof(float));
	tern_optimizer_parse("adam", &r->adam);
	add_resnet(r);
	r->one = (struct tern_cuda_tensor){.w_out = r->vector[0],
		.w_in = r->vector[0],
		.m = r->vector[1],
		.v = r->vector[2],
		.grads = {r->vector[3]},
		.count = r->count};
	r->small = r->one;
	r->small.count = 1024;
}

static void print_device(const struct bench_gpu *gpu)
{
	struct tern_cuda_device d;
	int driver;

	bench_gpu_check(gpu, tern_cuda_device_get(gpu->api, 0, &d), "the device");
	bench_gpu_check(gpu, gpu->api->driver_get_version(&driver), "the driver");
	printf("{\"device\": \"%s\", \"capability\": \"%d.%d\", \"multiprocessors\": %d, "
	       "\"bytes\": %llu, \"driver_cuda\": \"%d.%d\", \"toolkit\": \"%d.%d\", "
	       "\"cublas\": \"%s\"}\n",
		d.name, d.major, d.minor, d.multiprocessor_count,
		(unsigned long long)d.mem_bytes, driver / 1000, driver % 1000 / 10,
		CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10,
		gpu->blas ? "" : gpu->no_blas);
}

int main(int argc, char **argv)
{
	static struct rates r;
	bool smoke = argc == 2 && strcmp(argv[1], "--smoke") == 0;
	bool device = argc == 2 && strcmp(argv[1], "--device") == 0;

	if (argc != 1 && !smoke && !device)
		bench_fail(2, "usage: gpu_rates [--smoke | --device]");
	bench_gpu_open(&r.gpu);
	if (device) {
		print_device(&r.gpu);
		bench_gpu_close(&r.gpu);
		return 0;
	}
	r.count = smoke ? 100000 : 64u << 20; /* 256 MiB */
	r.rounds = smoke ? 2 : 9;
	r.times = smoke ? 1 : 10;
	prepare(&r);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++)
		run_case(&r, &cases[i]);
	tern_cuda_kernels_free(r.k);
	r.gpu.api->mem_free_host(r.pinned);
	bench_gpu_close(&r.gpu);
	return 0;
}
