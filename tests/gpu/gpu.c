/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MARGIN   64u
#define RUBBISH  0xa5
#define ALIGN_TO 256u

struct gpu gpu;
struct tern_rng gpu_rng = {.seed = 22};

/* ---- tables of kernels ---- */

int gpu_open_tables(void)
{
	const struct tern_cuda_sizes sizes = {.xent_rows = GPU_XENT_ROWS,
		.embed_rows = GPU_EMBED_ROWS,
		.embed_table_rows = GPU_EMBED_TABLE_ROWS};
	char why[256];

	for (size_t i = 0; i < 2; i++) {
		if (i == 0 && !gpu.blas[0])
			continue;
		if (tern_cuda_kernels_new(gpu.api, gpu.blas[i], gpu.device, gpu.stream,
			    &sizes, &gpu.tables[gpu.table_count], why, sizeof(why)) < 0) {
			print_message("%s\n", why);
			return -1;
		}
		print_message("table: %s\n",
			tern_cuda_kernels_fingerprint(gpu.tables[gpu.table_count]));
		gpu.table_count++;
	}
	return 0;
}

void gpu_close_tables(void)
{
	for (size_t i = 0; i < gpu.table_count; i++)
		tern_cuda_kernels_free(gpu.tables[i]);
	gpu.table_count = 0;
}

/* ---- memory ---- */

static void check(CUresult result)
{
	char text[160];

	if (result != CUDA_SUCCESS)
		fail_msg("%s", tern_cuda_text(gpu.api, result, text, sizeof(text)));
}

struct twin twin_new(size_t bytes, size_t aside)
{
	struct twin t = {.bytes = bytes};

	check(gpu.api->mem_alloc(&t.base, bytes + ALIGN_TO + aside + MARGIN));
	t.dev = (void *)(uintptr_t)(t.base + ALIGN_TO + aside);
	t.host = calloc(1, bytes + 1);
	assert_non_null(t.host);
	gpu_up(&t);
	return t;
}

void twin_free(struct twin *t)
{
	check(gpu.api->mem_free(t->base));
	free(t->host);
}

/* Size of the memory with the margins before and after it. */
static size_t whole(const struct twin *t)
{
	return (size_t)((uintptr_t)t->dev - t->base) + t->bytes + MARGIN;
}

void gpu_up(struct twin *t)
{
	size_t before = (size_t)((uintptr_t)t->dev - t->base);
	unsigned char *all = malloc(whole(t));

	assert_non_null(all);
	memset(all, RUBBISH, whole(t));
	memcpy(all + before, t->host, t->bytes);
	check(gpu.api->memcpy_htod_async(t->base, all, whole(t), gpu.stream));
	check(gpu.api->stream_synchronize(gpu.stream));
	free(all);
}

void gpu_down(struct twin *t)
{
	size_t before = (size_t)((uintptr_t)t->dev - t->base);
	unsigned char *all = malloc(whole(t));

	assert_non_null(all);
	check(gpu.api->memcpy_dtoh_async(all, t->base, whole(t), gpu.stream));
	check(gpu.api->stream_synchronize(gpu.stream));
	for (size_t i = 0; i < whole(t); i++)
		if ((i < before || i >= before + t->bytes) && all[i] != RUBBISH)
			fail_msg("a byte %ld off the start of %zu was written",
				(long)i - (long)before, t->bytes);
	memcpy(t->host, all + before, t->bytes);
	free(all);
}

/* ---- contents ---- */

/* A random number in [-1, 1) of varying magnitude, so that sums depend on the order of
 * additions. */
float gpu_random(void)
{
	float u = 2.0f * tern_unit_f32(tern_rng_next(&gpu_rng)) - 1.0f;

	return ldexpf(u, -(int)tern_rng_below(&gpu_rng, 8));
}

struct twin floats_new(uint64_t count, size_t aside)
{
	struct twin t = twin_new(count * sizeof(float), aside);

	for (uint64_t j = 0; j < count; j++)
		host_f32(&t)[j] = gpu_random();
	gpu_up(&t);
	return t;
}

struct twin specials_new(uint64_t count, size_t aside)
{
	static const uint32_t bits[] = {0, 0x80000000, 1, 0x80000001, 0x007fffff,
		0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
		0xffc12345, 0x7f800001, 0x3f800000, 0xbf800000, 0x33000001, 0x387fe000};
	struct twin t = twin_new(count * sizeof(float), aside);

	for (uint64_t j = 0; j < count; j++) {
		size_t pick = tern_rng_below(&gpu_rng, TERN_ARRAY_SIZE(bits) + 4);

		if (pick < TERN_ARRAY_SIZE(bits))
			memcpy(host_f32(&t) + j, &bits[pick], sizeof(float));
		else
			host_f32(&t)[j] = gpu_random();
	}
	gpu_up(&t);
	return t;
}

struct twin copy_new(const struct twin *of, size_t aside)
{
	struct twin t = twin_new(of->bytes, aside);

	memcpy(t.host, of->host, of->bytes);
	gpu_up(&t);
	return t;
}

/* ---- comparing ---- */

uint32_t gpu_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

void assert_same_f32(const float *got, const float *wanted, uint64_t count)
{
	for (uint64_t j = 0; j < count; j++)
		if (gpu_bits(got[j]) != gpu_bits(wanted[j]) &&
			!(isnan(got[j]) && isnan(wanted[j])))
			fail_msg("element %llu: %a is not %a", (unsigned long long)j,
				(double)got[j], (double)wanted[j]);
}

void assert_near(double got, double wanted, double most)
{
	if (!(fabs(got - wanted) <= most))
		fail_msg("got %.9g, wanted %.9g", got, wanted);
}

void assert_done(const struct tern_cuda_kernels *k, int status)
{
	if (status != 0)
		fail_msg("%d: %s", status, tern_cuda_kernels_error(k));
}

/* ---- groups of tests ---- */

bool gpu_asked(int argc, char **argv, const char *group)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], group) == 0)
			return true;
	return argc == 1;
}

int gpu_run(int argc, char **argv, CMFixtureFunction setup, CMFixtureFunction teardown)
{
	int failed = 0;

	if (gpu_asked(argc, argv, "elementwise"))
		failed += gpu_run_elementwise(setup, teardown);
	if (gpu_asked(argc, argv, "sums"))
		failed += gpu_run_sums(setup, teardown);
	if (gpu_asked(argc, argv, "layers"))
		failed += gpu_run_layers(setup, teardown);
	return failed;
}
