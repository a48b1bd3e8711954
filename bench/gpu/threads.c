/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The element-by-element kernels with 64 to 1,024 threads per block, and with 4 to 32
 * bytes per thread, beside the shipped numbers. For each other number the build compiles
 * the kernels once more: kernels.cu with other blocks, widths.cu with other bytes per
 * thread. A table of kernels for such a number is the shipped table over a driver whose
 * calls are replaced in three places: it loads the other code, finds the kernels by the
 * names that they have there, and launches threads for as many elements. So Tern itself
 * has no setting for these numbers. The rows of the shipped numbers beside themselves
 * show by how much ratios differ by chance.
 *
 * usage: gpu_threads [--smoke], which prints samples as gpu_rates does.
 */
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "bench/gpu/device.h"
#include "kernels/cuda/cuda_kernels.h"

/* Number of elements whose results are compared. It is no multiple of the elements of a
 * block, so the last block is partly filled. */
#define CHECKED 100003u
#define INPUTS  4u

extern const unsigned char tern_fatbin[], bench_fatbin_64[], bench_fatbin_128[],
	bench_fatbin_512[], bench_fatbin_1024[], bench_widths_1[], bench_widths_2[],
	bench_widths_8[];

enum changed { THREADS, BYTES };

static const struct variant {
	enum changed changed; /* what the variant is about; the rest is as shipped */
	unsigned threads;     /* threads per block */
	unsigned elements;    /* elements per thread */
	const unsigned char *code;
} variants[] = {
	{THREADS, 64, TERN_QUAD_ELEMENTS, bench_fatbin_64},
	{THREADS, 128, TERN_QUAD_ELEMENTS, bench_fatbin_128},
	{THREADS, TERN_QUAD_THREADS, TERN_QUAD_ELEMENTS, tern_fatbin},
	{THREADS, 512, TERN_QUAD_ELEMENTS, bench_fatbin_512},
	{THREADS, 1024, TERN_QUAD_ELEMENTS, bench_fatbin_1024},
	{BYTES, TERN_QUAD_THREADS, 1, bench_widths_1},
	{BYTES, TERN_QUAD_THREADS, 2, bench_widths_2},
	{BYTES, TERN_QUAD_THREADS, TERN_QUAD_ELEMENTS, tern_fatbin},
	{BYTES, TERN_QUAD_THREADS, 8, bench_widths_8},
};

struct threads {
	struct bench_gpu gpu;
	struct tern_optimizer adam;
	uint64_t count; /* number of elements of the operation that runs */
	/* in device memory; Adam: parameters, m, v, gradient */
	float *in[INPUTS];
	float *out;
	float initial[CHECKED + INPUTS], results[2][CHECKED];
	unsigned rounds, times;
};

/* A table of kernels, and the inputs that it is run with. */
struct side {
	struct threads *t;
	struct tern_cuda_kernels *k;
};

/* ---- the driver with its three replaced calls ---- */

static const struct tern_cuda_api *real;
static struct tern_cuda_api replaced;
static const struct variant *present; /* the variant that is loaded and launched */

static CUresult load_present(CUmodule *module, const void *code, unsigned count,
	CUjit_option *options, void **values)
{
	(void)code;
	return real->module_load_data_ex(module, present->code, count, options, values);
}

/* Code with another number of elements per thread has only the kernels of operations[],
 * whose names end with the number (widths.h). Other kernels become NULL: they are never
 * launched. */
static CUresult find_present(CUfunction *kernel, CUmodule module, const char *name)
{
	char other[64];
	CUresult result;

	if (present->elements == TERN_QUAD_ELEMENTS)
		return real->module_get_function(kernel, module, name);
	snprintf(other, sizeof(other), "%s_%u", name, present->elements);
	*kernel = NULL;
	result = real->module_get_function(kernel, module, other);
	return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}

/* The host has filled in the arguments for the shipped number of elements per thread. They
 * are right for other numbers, too, because only element-by-element kernels are launched
 * here: their threads are independent of each other, and do nothing behind the last
 * element; and each kernel has one tensor, which is aligned to 256 bytes, more than the
 * widest access needs. */
static CUresult launch_present(CUfunction kernel, unsigned grid_x, unsigned grid_y,
	unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
	unsigned shared_bytes, CUstream stream, void **args, void **extra)
{
	uint64_t elements = (uint64_t)grid_x * block_x * TERN_QUAD_ELEMENTS;
	uint64_t blocks = div_up(elements, present->threads * present->elements);

	return real->launch_kernel(kernel, (unsigned)blocks, grid_y, grid_z,
		present->threads, block_y, block_z, shared_bytes, stream, args, extra);
}

static struct tern_cuda_kernels *open_variant(
	const struct threads *t, const struct variant *variant)
{
	static const struct tern_cuda_sizes none;
	struct bench_gpu gpu = t->gpu;

	real = t->gpu.api;
	replaced = *real;
	replaced.module_load_data_ex = load_present;
	replaced.module_get_function = find_present;
	replaced.launch_kernel = launch_present;
	present = variant;
	gpu.api = &replaced;
	return bench_gpu_table(&gpu, NULL, &none);
}

/* ---- the operations ---- */

/* w_out is not w_in, so the parameters stay as they are from run to run. m and v are
 * updated in place. */
static void adam(void *arg)
{
	const struct side *s = arg;
	const struct tern_cuda_tensor tensor = {.w_out = s->t->out,
		.w_in = s->t->in[0],
		.m = s->t->in[1],
		.v = s->t->in[2],
		.grads = {s->t->in[3]},
		.count = s->t->count};

	bench_gpu_done(s->k, tern_cuda_update(s->k, &s->t->adam, 1, &tensor, 1, 1, 1, 1));
}

static void narrow(void *arg)
{
	const struct side *s = arg;

	bench_gpu_done(s->k, tern_cuda_f32_to_f16(s->k, (uint16_t *)s->t->out,
				     s->t->in[0], s->t->count));
}

static void sum(void *arg)
{
	const struct side *s = arg;

	bench_gpu_done(
		s->k, tern_cuda_sum(s->k, s->t->out, (const float *const *)s->t->in,
			      INPUTS, 1.0f / INPUTS, s->t->count));
}

static const struct operation {
	const char *name;
	void (*run)(void *arg);
	unsigned bytes; /* bytes that are read and written per element */
} operations[] = {
	{"Adam, one tensor", adam, 7 * sizeof(float)},
	{"f32 to f16", narrow, sizeof(float) + sizeof(uint16_t)},
	{"sum of 4", sum, (INPUTS + 1) * sizeof(float)},
};

/* ---- measuring ---- */

/* Runs the operation on CHECKED elements that are the same in every call; twice, since
 * the result of the second step of Adam depends on the m and v that the first one stored. */
static void compute(struct side *s, const struct operation *o, float *result)
{
	struct threads *t = s->t;
	uint64_t count = t->count, bytes = CHECKED * sizeof(float);

	for (unsigned i = 0; i < INPUTS; i++)
		bench_gpu_up(&t->gpu, t->in[i], t->initial + i, bytes);
	bench_gpu_clear(&t->gpu, t->out, bytes);
	t->count = CHECKED;
	o->run(s);
	o->run(s);
	t->count = count;
	bench_gpu_down(&t->gpu, result, t->out, bytes);
}

static void describe(char *out, size_t bytes, enum changed changed, unsigned threads,
	unsigned elements)
{
	if (changed == THREADS)
		snprintf(out, bytes, "%u threads a block", threads);
	else
		snprintf(out, bytes, "%zu bytes a thread", elements * sizeof(float));
}

static void run_variant(struct threads *t, struct side *shipped, struct side *other,
	const struct operation *o)
{
	const struct bench_gpu_work ours = {o->run, other}, peer = {o->run, shipped};
	char name[64], changed[32], beside[32];
	bool same;

	compute(shipped, o, t->results[0]);
	compute(other, o, t->results[1]);
	same = memcmp(t->results[0], t->results[1], sizeof(t->results[0])) == 0;
	describe(changed, sizeof(changed), present->changed, present->threads,
		present->elements);
	describe(beside, sizeof(beside), present->changed, TERN_QUAD_THREADS,
		TERN_QUAD_ELEMENTS);
	snprintf(name, sizeof(name), "%s, %s", o->name, changed);
	bench_gpu_turns(&t->gpu, &ours, &peer, t->rounds,
		&(struct bench_gpu_row){.name = name,
			.peer = beside,
			.bytes = o->bytes * t->count,
			.times = t->times,
			.wrong = same ? NULL : "the results differ"});
}

static void prepare(struct threads *t)
{
	/* Adam's v must not be negative. */
	for (unsigned i = 0; i < INPUTS; i++)
		t->in[i] = bench_gpu_floats(&t->gpu, t->count, 0);
	t->out = bench_gpu_alloc(&t->gpu, t->count * sizeof(float));
	for (size_t i = 0; i < TERN_ARRAY_SIZE(t->initial); i++)
		t->initial[i] = tern_unit_f32(tern_rng_at(4, 3, 2, i));
	tern_optimizer_parse("adam", &t->adam);
}

int main(int argc, char **argv)
{
	/* floats of a vector, by scale; the last is 256 MiB */
	static const uint64_t counts[] = {CHECKED, 4u << 20, 64u << 20};
	static const unsigned rounds[] = {2, 3, 9}, times[] = {1, 2, 10};
	static const struct tern_cuda_sizes none;
	static struct threads t;
	enum bench_gpu_scale scale = bench_gpu_scale(argc, argv);
	struct side shipped = {.t = &t};

	bench_gpu_open(&t.gpu);
	t.count = counts[scale];
	t.rounds = rounds[scale];
	t.times = times[scale];
	prepare(&t);
	shipped.k = bench_gpu_table(&t.gpu, NULL, &none);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(variants); i++) {
		struct side other = {&t, open_variant(&t, &variants[i])};

		for (size_t j = 0; j < TERN_ARRAY_SIZE(operations); j++)
			run_variant(&t, &shipped, &other, &operations[j]);
		tern_cuda_kernels_free(other.k);
	}
	tern_cuda_kernels_free(shipped.k);
	bench_gpu_close(&t.gpu);
	return 0;
}
