/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How close the CUDA kernels come to the device's memory bandwidth, and what a launch
 * costs. Every case is measured in turn with its limit (limit, ours, ours, limit), in one
 * process and on one stream; a sample is the time of several consecutive runs. In a large
 * run, the vectors are several times as large as the L2 cache of today's devices; the cases
 * of a launch, of embeddings and of the loss are small. The data are random, unless a case
 * says that they are zero.
 *
 * usage: gpu_rates [--smoke | --device]. Prints samples, one JSON object per line;
 * figures.py computes figures from them. --smoke: small and short, to test the program
 * itself, as TERN_GPU_SCALE=few does. --device: prints only the properties of the device.
 */
#include <stdio.h>
#include <string.h>

#include "base/cuda_devices.h"
#include "base/rng.h"
#include "base/util.h"
#include "bench/gpu/device.h"

#define TENSORS_MAX 161
#define SLOTS       3u /* number of gradients in adam_slots(): vectors 3 to 5 */
/* Largest number of ids that tern_cuda_embed_backward() scans for a table of
 * EMBED_TABLE_ROWS; it sorts the ids if there is one more. */
#define EMBED_SCANNED    16384u
#define EMBED_WIDTH      16u
#define EMBED_TABLE_ROWS 128u
/* Number of rows that are scanned where the table has EMBED_WIDE_TABLE_ROWS. */
#define EMBED_WIDE_SCANNED    8192u
#define EMBED_WIDE_TABLE_ROWS 4096u
#define XENT_ROWS             4096u
#define XENT_CLASSES          100u

struct rates {
	struct bench_gpu gpu;
	struct tern_cuda_kernels *k;
	struct tern_optimizer adam, others[3]; /* others: sgd, momentum, adagrad */
	uint64_t count;                        /* number of floats of a vector */
	int32_t *ids, *wide_ids, *labels;
	double *squares; /* result of the sum of squares, in device memory */
	struct tern_cuda_result *result;
	float *vector[TERN_SUM_MAX + 1]; /* arrays of `count` floats in device memory */
	/* memory that is read and written by most cases: each array has at least half of the
	 * bytes that any case moves */
	float *copy_from, *copy_to;
	void *pinned; /* `count` floats of page-locked host memory */
	struct tern_cuda_tensor many[TENSORS_MAX], one, zero, small;
	size_t many_count;
	uint64_t bytes;  /* bytes that the present case moves */
	unsigned inputs; /* number of inputs, if the present case is a sum */
	unsigned rounds, times;
};

static CUdeviceptr address(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* ---- operations of the driver, as limits ---- */

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

/* The least work that the driver can queue: the limit of a launch. */
static void set_few(void *arg)
{
	struct rates *r = arg;

	bench_gpu_check(&r->gpu,
		r->gpu.api->memset_d32_async(address(r->copy_to), 0, 1024, r->gpu.stream),
		"setting memory");
}

/* ---- Tern's kernels ---- */

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

/* Adam with gradients, m and v that are zero, and so stay the same from run to run. */
static void adam_zero(void *arg)
{
	struct rates *r = arg;

	adam(r, &r->zero, 1);
}

static void adam_small(void *arg)
{
	struct rates *r = arg;

	adam(r, &r->small, 1);
}

/* Adam with a sum of SLOTS gradients. */
static void adam_slots(void *arg)
{
	struct rates *r = arg;
	struct tern_cuda_tensor t = r->one;

	for (unsigned i = 0; i < SLOTS; i++)
		t.grads[i] = r->vector[3 + i];
	bench_gpu_done(r->k, tern_cuda_update(r->k, &r->adam, 1, &t, 1, SLOTS, 0.25f, 1));
}

static void other(struct rates *r, unsigned i, bool m, bool v)
{
	struct tern_cuda_tensor t = r->one;

	t.m = m ? t.m : NULL;
	t.v = v ? t.v : NULL;
	bench_gpu_done(r->k, tern_cuda_update(r->k, &r->others[i], 1, &t, 1, 1, 1, 1));
}

static void sgd(void *arg)
{
	other(arg, 0, false, false);
}

static void momentum(void *arg)
{
	other(arg, 1, true, false);
}

static void adagrad(void *arg)
{
	other(arg, 2, false, true);
}

static void narrow_f16(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_f32_to_f16(r->k, (uint16_t *)r->copy_to,
				     r->vector[3], r->count));
}

static void narrow_bf16(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_f32_to_bf16(r->k, (uint16_t *)r->copy_to,
				     r->vector[3], r->count));
}

static void widen_f16(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_f16_to_f32(r->k, r->copy_to,
				     (const uint16_t *)r->copy_from, r->count));
}

static void widen_bf16(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_bf16_to_f32(r->k, r->copy_to,
				     (const uint16_t *)r->copy_from, r->count));
}

static void squares(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(
		r->k, tern_cuda_sum_squares(r->k, r->squares, r->vector[3], r->count));
}

static void xent(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_softmax_xent(r->k, r->result, r->copy_to,
				     r->copy_from, r->labels, XENT_ROWS, XENT_CLASSES));
}

static void gather(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_embed_forward(r->k, r->copy_to, r->copy_from,
				     r->ids, EMBED_SCANNED, EMBED_WIDTH));
}

static void sum(void *arg)
{
	struct rates *r = arg;

	bench_gpu_done(r->k, tern_cuda_sum(r->k, r->vector[TERN_SUM_MAX],
				     (const float *const *)r->vector, r->inputs,
				     1.0f / (float)r->inputs, r->count));
}

static void embed(struct rates *r, const int32_t *ids, uint64_t rows, uint64_t table_rows)
{
	bench_gpu_done(r->k, tern_cuda_embed_backward(r->k, r->copy_to, r->copy_from, ids,
				     rows, EMBED_WIDTH, table_rows));
}

static void embed_sorted(void *arg)
{
	struct rates *r = arg;

	embed(r, r->ids, EMBED_SCANNED + 1, EMBED_TABLE_ROWS);
}

static void embed_scanned(void *arg)
{
	struct rates *r = arg;

	embed(r, r->ids, EMBED_SCANNED, EMBED_TABLE_ROWS);
}

static void embed_wide_sorted(void *arg)
{
	struct rates *r = arg;

	embed(r, r->wide_ids, EMBED_WIDE_SCANNED + 1, EMBED_WIDE_TABLE_ROWS);
}

static void embed_wide_scanned(void *arg)
{
	struct rates *r = arg;

	embed(r, r->wide_ids, EMBED_WIDE_SCANNED, EMBED_WIDE_TABLE_ROWS);
}

/* ---- the table of cases ---- */

static uint64_t bytes_of_adam_many(const struct rates *r)
{
	uint64_t count = 0;

	for (size_t i = 0; i < r->many_count; i++)
		count += r->many[i].count;
	/* Per element, w, m and v are read and written, and the gradient is read. */
	return 7 * sizeof(float) * count;
}

static uint64_t bytes_of_adam_one(const struct rates *r)
{
	return 7 * sizeof(float) * r->count;
}

static uint64_t bytes_of_adam_slots(const struct rates *r)
{
	return (6 + SLOTS) * sizeof(float) * r->count;
}

static uint64_t bytes_of_sgd(const struct rates *r)
{
	return 3 * sizeof(float) * r->count;
}

/* Momentum and Adagrad, which have one state vector. */
static uint64_t bytes_of_momentum(const struct rates *r)
{
	return 5 * sizeof(float) * r->count;
}

static uint64_t bytes_of_cast(const struct rates *r)
{
	return (sizeof(float) + sizeof(uint16_t)) * r->count;
}

static uint64_t bytes_of_xent(const struct rates *r)
{
	(void)r;
	return 2 * sizeof(float) * XENT_ROWS * XENT_CLASSES;
}

static uint64_t bytes_of_gather(const struct rates *r)
{
	(void)r;
	return 2 * sizeof(float) * EMBED_SCANNED * EMBED_WIDTH;
}

static uint64_t bytes_of_sum(const struct rates *r)
{
	return (r->inputs + 1) * sizeof(float) * r->count;
}

static uint64_t bytes_of_vector(const struct rates *r)
{
	return sizeof(float) * r->count;
}

/* The cases; a further measurement needs a line here. ours: NULL if only the limit is
 * measured. goal: the rate to reach, as a fraction of the limit's rate; 0: none. inputs:
 * of a sum. more_times: factor of rates->times, for cases that take little time. */
static const struct rate_case {
	const char *name, *limit_name;
	double goal;
	unsigned inputs, more_times;
	/* Bytes that are read and written; NULL: the case is not about bandwidth. */
	uint64_t (*bytes)(const struct rates *r);
	void (*ours)(void *arg);
	void (*limit)(void *arg);
} cases[] = {
	{"Adam, 161 tensors of ResNet-50", "copy on the device", 0.9, 0, 1,
		bytes_of_adam_many, adam_many, copy_on_device},
	{"Adam, one tensor", "copy on the device", 0.9, 0, 1, bytes_of_adam_one, adam_one,
		copy_on_device},
	{"Adam, m, v and gradient zero", "copy on the device", 0.9, 0, 1,
		bytes_of_adam_one, adam_zero, copy_on_device},
	{"Adam, sum of 3 gradients", "copy on the device", 0.9, 0, 1, bytes_of_adam_slots,
		adam_slots, copy_on_device},
	{"SGD", "copy on the device", 0.9, 0, 1, bytes_of_sgd, sgd, copy_on_device},
	{"momentum", "copy on the device", 0.9, 0, 1, bytes_of_momentum, momentum,
		copy_on_device},
	{"Adagrad", "copy on the device", 0.9, 0, 1, bytes_of_momentum, adagrad,
		copy_on_device},
	{"f32 to f16", "copy on the device", 0.9, 0, 1, bytes_of_cast, narrow_f16,
		copy_on_device},
	{"f32 to bf16", "copy on the device", 0.9, 0, 1, bytes_of_cast, narrow_bf16,
		copy_on_device},
	{"f16 to f32", "copy on the device", 0.9, 0, 1, bytes_of_cast, widen_f16,
		copy_on_device},
	{"bf16 to f32", "copy on the device", 0.9, 0, 1, bytes_of_cast, widen_bf16,
		copy_on_device},
	{"sum of squares", "copy on the device", 0.9, 0, 1, bytes_of_vector, squares,
		copy_on_device},
	{"softmax and loss, 4,096 rows of 100", "copy on the device", 0, 0, 10,
		bytes_of_xent, xent, copy_on_device},
	{"16,384 embeddings of 16", "copy on the device", 0, 0, 10, bytes_of_gather,
		gather, copy_on_device},
	{"sum of 2", "copy on the device", 0.9, 2, 1, bytes_of_sum, sum, copy_on_device},
	{"sum of 4", "copy on the device", 0.9, 4, 1, bytes_of_sum, sum, copy_on_device},
	{"sum of 8", "copy on the device", 0.9, 8, 1, bytes_of_sum, sum, copy_on_device},
	{"page-locked memory to the device", "copy", 0, 0, 1, bytes_of_vector, NULL,
		copy_up},
	{"device to page-locked memory", "copy", 0, 0, 1, bytes_of_vector, NULL,
		copy_down},
	{"gradient of 16,385 embeddings of 16, 128 rows: sorts", "16,384: scans", 0, 0,
		10, NULL, embed_sorted, embed_scanned},
	{"gradient of 8,193 embeddings of 16, 4,096 rows: sorts", "8,192: scans", 0, 0,
		10, NULL, embed_wide_sorted, embed_wide_scanned},
	{"a launch: Adam of 1,024 elements", "memset of 4 KiB", 0, 0, 100, NULL,
		adam_small, set_few},
};

static void run_case(struct rates *r, const struct rate_case *c)
{
	const struct bench_gpu_work ours = {c->ours, r}, limit = {c->limit, r};

	r->inputs = c->inputs;
	r->bytes = c->bytes ? c->bytes(r) : 0;
	bench_gpu_turns(&r->gpu, &ours, &limit, r->rounds,
		&(struct bench_gpu_row){.name = c->name,
			.peer = c->limit_name,
			.bytes = r->bytes,
			.goal = c->goal,
			.times = r->times > 1 ? r->times * c->more_times : 1});
}

/* ---- preparing ---- */

static void add_tensor(struct rates *r, uint64_t count, uint64_t *at)
{
	struct tern_cuda_tensor *t = &r->many[r->many_count++];

	/* only in a large run are the vectors long enough for all tensors */
	count = TERN_MIN(count, r->count - *at);
	*t = (struct tern_cuda_tensor){.w_out = r->vector[0] + *at,
		.w_in = r->vector[0] + *at,
		.m = r->vector[1] + *at,
		.v = r->vector[2] + *at,
		.grads = {r->vector[3] + *at},
		.count = count};
	*at += count;
}

/* Appends three tensors to the list of rates->many: the weights of a convolution, and the
 * scale and the shift of the normalisation that follows it. */
static void add_convolution(
	struct rates *r, uint64_t in, uint64_t out, uint64_t window, uint64_t *at)
{
	add_tensor(r, in * out * window * window, at);
	add_tensor(r, out, at);
	add_tensor(r, out, at);
}

/* Appends all tensors of ResNet-50 (He et al. 2015) to the list of rates->many. They lie one
 * after the other in the vectors. */
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

static float *zeros(struct rates *r)
{
	float *out = bench_gpu_alloc(&r->gpu, r->count * sizeof(float));

	bench_gpu_clear(&r->gpu, out, r->count * sizeof(float));
	return out;
}

/* Allocates `count` random numbers below `most` in device memory. */
static int32_t *ids_new(struct rates *r, size_t count, uint32_t most)
{
	static int32_t ids[EMBED_SCANNED + 1];
	struct tern_rng rng = {.seed = 4};
	int32_t *out = bench_gpu_alloc(&r->gpu, count * sizeof(*out));

	for (size_t i = 0; i < count; i++)
		ids[i] = (int32_t)tern_rng_below(&rng, most);
	bench_gpu_up(&r->gpu, out, ids, count * sizeof(*out));
	return out;
}

static void prepare(struct rates *r)
{
	const struct tern_cuda_sizes sizes = {.xent_rows = XENT_ROWS,
		.embed_rows = EMBED_SCANNED + 1,
		.embed_table_rows = EMBED_WIDE_TABLE_ROWS};
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
	tern_optimizer_parse("sgd", &r->others[0]);
	tern_optimizer_parse("momentum", &r->others[1]);
	tern_optimizer_parse("adagrad", &r->others[2]);
	r->squares = bench_gpu_alloc(&r->gpu, sizeof(*r->squares));
	r->result = bench_gpu_alloc(&r->gpu, sizeof(*r->result));
	add_resnet(r);
	r->one = (struct tern_cuda_tensor){.w_out = r->vector[0],
		.w_in = r->vector[0],
		.m = r->vector[1],
		.v = r->vector[2],
		.grads = {r->vector[3]},
		.count = r->count};
	r->zero = (struct tern_cuda_tensor){.w_out = r->vector[0],
		.w_in = r->vector[0],
		.m = zeros(r),
		.v = zeros(r),
		.grads = {zeros(r)},
		.count = r->count};
	r->ids = ids_new(r, EMBED_SCANNED + 1, EMBED_TABLE_ROWS);
	r->wide_ids = ids_new(r, EMBED_WIDE_SCANNED + 1, EMBED_WIDE_TABLE_ROWS);
	r->labels = ids_new(r, XENT_ROWS, XENT_CLASSES);
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
	/* floats of a vector, by scale; the last is 256 MiB */
	static const uint64_t counts[] = {100000, 4u << 20, 64u << 20};
	static const unsigned rounds[] = {2, 3, 9}, times[] = {1, 2, 10};
	bool device = argc == 2 && strcmp(argv[1], "--device") == 0;
	enum bench_gpu_scale scale = device ? BENCH_GPU_FEW : bench_gpu_scale(argc, argv);

	bench_gpu_open(&r.gpu);
	if (device) {
		print_device(&r.gpu);
		bench_gpu_close(&r.gpu);
		return 0;
	}
	r.count = counts[scale];
	r.rounds = rounds[scale];
	r.times = times[scale];
	prepare(&r);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++)
		run_case(&r, &cases[i]);
	tern_cuda_kernels_free(r.k);
	r.gpu.api->mem_free_host(r.pinned);
	bench_gpu_close(&r.gpu);
	return 0;
}
