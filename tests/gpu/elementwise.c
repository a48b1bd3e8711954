/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of elementwise CUDA kernels: sums, updates and casts must have the same bits as
 * on the CPU. Sums of squares must be close to the CPU's, with bits that do not depend on
 * the alignment of the elements. */
#include "tests/gpu/gpu.h"

#include <math.h>
#include <string.h>

static const uint64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 31, 1000, 4096, 4099, 12293};

/* By how many elements operand i is moved from its alignment. Layout 0: all are aligned.
 * Layout 1: all are moved alike, so that quads (aligned groups of four elements) are
 * incomplete at both ends. Layout 2: neighbours are moved differently, so that quads
 * cannot be used. */
static size_t aside_of(unsigned layout, unsigned i)
{
	return layout == 0 ? 0 : layout == 1 ? 3 : i % 4;
}

#define LAYOUTS 3u

/* Step between the tested numbers of inputs. With GPU_FEW only 1 and TERN_SUM_MAX inputs
 * are tested. */
static unsigned counts_between(void)
{
	return gpu.scale == GPU_FEW ? TERN_SUM_MAX - 1 : 1;
}

/* ---- sums ---- */

typedef struct twin maker(uint64_t count, size_t aside);

static void check_sum(maker *make, unsigned n, uint64_t count, unsigned layout)
{
	struct twin in[TERN_SUM_MAX], wanted = floats_new(count, 0);
	struct twin got = floats_new(count, 4 * aside_of(layout, 0));
	const float *dev[TERN_SUM_MAX], *host[TERN_SUM_MAX];
	float scale = n % 2 ? 1.0f : 1.0f / 3.0f;
	struct tern_cuda_kernels *k = gpu.tables[0];

	for (unsigned i = 0; i < n; i++) {
		in[i] = make(count, 4 * aside_of(layout, i + 1));
		dev[i] = in[i].dev;
		host[i] = in[i].host;
	}
	tern_kernels_cpu()->sum(wanted.host, host, n, scale, count);
	assert_done(k, tern_cuda_sum(k, got.dev, dev, n, scale, count));
	gpu_down(&got);
	assert_same_f32(got.host, wanted.host, count);
	/* The result may replace one of the inputs; in this test the last one. */
	assert_done(k, tern_cuda_sum(k, in[n - 1].dev, dev, n, scale, count));
	gpu_down(&in[n - 1]);
	assert_same_f32(in[n - 1].host, wanted.host, count);
	for (unsigned i = 0; i < n; i++)
		twin_free(&in[i]);
	twin_free(&got);
	twin_free(&wanted);
}

static void test_sum_has_the_bits_of_the_cpu(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= TERN_SUM_MAX; n += counts_between())
		for (size_t s = 0; s < TERN_ARRAY_SIZE(sizes); s++)
			for (unsigned layout = 0; layout < LAYOUTS; layout++)
				check_sum(floats_new, n, sizes[s], layout);
}

static void test_sum_of_special_values_has_the_bits_of_the_cpu(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= TERN_SUM_MAX; n += counts_between())
		check_sum(specials_new, n, 5000, n % LAYOUTS);
}

static double squares_of(const struct twin *x, struct twin *out, uint64_t count)
{
	struct tern_cuda_kernels *k = gpu.tables[0];
	double got;

	assert_done(k, tern_cuda_sum_squares(k, out->dev, x->dev, count));
	gpu_down(out);
	memcpy(&got, out->host, sizeof(got));
	return got;
}

static void test_sum_of_squares_is_close_and_the_same_wherever_it_lies(void **state)
{
	static const uint64_t counts[] = {
		0, 1, 3, 4, 1025, 4096, 16385, 300007, 50000003};
	const size_t used =
		TERN_ARRAY_SIZE(counts) - (gpu.scale == GPU_FEW           ? 2
						  : gpu.scale == GPU_SOME ? 1
									  : 0);
	struct twin out = twin_new(sizeof(double), 0);

	(void)state;
	for (size_t s = 0; s < used; s++) {
		struct twin x = floats_new(counts[s], 0), aside = copy_new(&x, 4);
		double wanted = tern_kernels_cpu()->sum_squares(x.host, counts[s]);
		double got = squares_of(&x, &out, counts[s]);
		double again = squares_of(&x, &out, counts[s]);
		double moved = squares_of(&aside, &out, counts[s]);

		assert_near(got, wanted, 1e-12 * wanted);
		assert_memory_equal(&got, &again, sizeof(got));
		assert_memory_equal(&got, &moved, sizeof(got));
		twin_free(&x);
		twin_free(&aside);
	}
	twin_free(&out);
}

/* ---- updates ---- */

struct trial { /* a parameter tensor and its gradients, on the GPU and on the CPU */
	struct twin w, m, v, grads[TERN_SUM_MAX], out;
	uint64_t count;
};

static struct trial trial_new(maker *make, uint64_t count, unsigned layout, unsigned n)
{
	struct trial t = {.count = count,
		.w = make(count, 4 * aside_of(layout, 0)),
		.m = make(count, 4 * aside_of(layout, 1)),
		.v = make(count, 4 * aside_of(layout, 2)),
		.out = make(count, 4 * aside_of(layout, 3))};

	for (uint64_t j = 0; j < count; j++)
		host_f32(&t.v)[j] = fabsf(host_f32(&t.v)[j]);
	gpu_up(&t.v);
	for (unsigned i = 0; i < n; i++)
		t.grads[i] = make(count, 4 * aside_of(layout, i));
	return t;
}

static void trial_free(struct trial *t, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		twin_free(&t->grads[i]);
	twin_free(&t->w);
	twin_free(&t->m);
	twin_free(&t->v);
	twin_free(&t->out);
}

static struct tern_cuda_tensor tensor_of(
	const struct tern_optimizer *o, struct trial *t, unsigned n, bool in_place)
{
	struct tern_cuda_tensor x = {.w_out = in_place ? t->w.dev : t->out.dev,
		.w_in = t->w.dev,
		.m = tern_optimizer_has_m(o->kind) ? t->m.dev : NULL,
		.v = tern_optimizer_has_v(o->kind) ? t->v.dev : NULL,
		.count = t->count};

	for (unsigned i = 0; i < n; i++)
		x.grads[i] = t->grads[i].dev;
	return x;
}

/* Makes the step on the CPU from the host's copies, and compares the results. */
static void check_trial(const struct tern_optimizer *o, struct trial *t, unsigned n,
	uint64_t step, bool in_place)
{
	struct twin *m = tern_optimizer_has_m(o->kind) ? &t->m : NULL;
	struct twin *v = tern_optimizer_has_v(o->kind) ? &t->v : NULL;
	struct twin *out = in_place ? &t->w : &t->out;
	struct trial wanted = {.w = copy_new(&t->w, 0),
		.m = copy_new(&t->m, 0),
		.v = copy_new(&t->v, 0)};
	const float *grads[TERN_SUM_MAX];

	for (unsigned i = 0; i < n; i++)
		grads[i] = t->grads[i].host;
	tern_kernels_cpu()->update(o, step, wanted.w.host, wanted.w.host,
		m ? wanted.m.host : NULL, v ? wanted.v.host : NULL, grads, n,
		1.0f / (float)n, 0.75f, t->count);
	gpu_down(out);
	assert_same_f32(out->host, wanted.w.host, t->count);
	gpu_down(&t->m);
	assert_same_f32(t->m.host, wanted.m.host, t->count);
	gpu_down(&t->v);
	assert_same_f32(t->v.host, wanted.v.host, t->count);
	twin_free(&wanted.w);
	twin_free(&wanted.m);
	twin_free(&wanted.v);
}

#define TENSORS 40u /* more tensors than one launch takes */

static void check_update(maker *make, const char *name, unsigned n, bool in_place)
{
	struct tern_optimizer o;
	struct trial trials[TENSORS];
	struct tern_cuda_tensor tensors[TENSORS];
	uint64_t step = 1 + tern_rng_below(&gpu_rng, 50);
	struct tern_cuda_kernels *k = gpu.tables[0];

	assert_int_equal(tern_optimizer_parse(name, &o), 0);
	o.weight_decay = 0.01f;
	for (unsigned i = 0; i < TENSORS; i++) {
		trials[i] = trial_new(
			make, sizes[i % TERN_ARRAY_SIZE(sizes)], i % LAYOUTS, n);
		tensors[i] = tensor_of(&o, &trials[i], n, in_place);
	}
	assert_done(k, tern_cuda_update(
			       k, &o, step, tensors, TENSORS, n, 1.0f / (float)n, 0.75f));
	for (unsigned i = 0; i < TENSORS; i++) {
		check_trial(&o, &trials[i], n, step, in_place);
		trial_free(&trials[i], n);
	}
}

static void test_update_of_many_tensors_has_the_bits_of_the_cpu(void **state)
{
	(void)state;
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++)
		for (unsigned n = 1; n <= TERN_SUM_MAX; n += counts_between())
			check_update(floats_new, tern_optimizer_name(o), n, n % 2);
}

static void test_update_of_special_values_has_the_bits_of_the_cpu(void **state)
{
	(void)state;
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++)
		check_update(specials_new, tern_optimizer_name(o), 3, true);
}

static void test_update_of_nothing_does_nothing(void **state)
{
	struct tern_cuda_kernels *k = gpu.tables[0];
	struct tern_cuda_tensor none = {.count = 0};
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(tern_optimizer_parse("adam", &o), 0);
	assert_done(k, tern_cuda_update(k, &o, 1, &none, 0, 1, 1, 1));
	assert_done(k, tern_cuda_update(k, &o, 1, &none, 1, 1, 1, 1));
}

/* ---- casts ---- */

typedef int narrow_fn(
	struct tern_cuda_kernels *k, uint16_t *dst, const float *src, uint64_t n);
typedef int widen_fn(
	struct tern_cuda_kernels *k, float *dst, const uint16_t *src, uint64_t n);

static void check_widen(
	widen_fn *widen, void (*by_cpu)(float *, const uint16_t *, size_t), size_t aside)
{
	enum { ALL = 65536 };
	struct twin in = twin_new(ALL * sizeof(uint16_t), 2 * aside);
	struct twin out = floats_new(ALL, 0), wanted = floats_new(ALL, 0);

	for (uint32_t i = 0; i < ALL; i++)
		((uint16_t *)in.host)[i] = (uint16_t)i;
	gpu_up(&in);
	assert_done(gpu.tables[0], widen(gpu.tables[0], out.dev, in.dev, ALL));
	gpu_down(&out);
	by_cpu(wanted.host, in.host, ALL);
	assert_memory_equal(out.host, wanted.host, out.bytes);
	twin_free(&in);
	twin_free(&out);
	twin_free(&wanted);
}

static void check_narrow(narrow_fn *narrow,
	void (*by_cpu)(uint16_t *, const float *, size_t), maker *make, uint64_t count,
	unsigned layout)
{
	struct twin in = make(count, 4 * aside_of(layout, 1));
	struct twin out = twin_new(count * sizeof(uint16_t), 2 * aside_of(layout, 2));
	struct twin wanted = twin_new(count * sizeof(uint16_t), 0);

	assert_done(gpu.tables[0], narrow(gpu.tables[0], out.dev, in.dev, count));
	gpu_down(&out);
	by_cpu(wanted.host, in.host, count);
	assert_memory_equal(out.host, wanted.host, out.bytes);
	twin_free(&in);
	twin_free(&out);
	twin_free(&wanted);
}

static void test_casts_have_the_bits_of_the_cpu(void **state)
{
	const struct tern_kernels *cpu = tern_kernels_cpu();

	(void)state;
	for (size_t aside = 0; aside < 2; aside++) {
		check_widen(tern_cuda_f16_to_f32, cpu->f16_to_f32, aside);
		check_widen(tern_cuda_bf16_to_f32, cpu->bf16_to_f32, aside);
	}
	for (size_t s = 0; s < TERN_ARRAY_SIZE(sizes); s++)
		for (unsigned layout = 0; layout < LAYOUTS; layout++) {
			check_narrow(tern_cuda_f32_to_f16, cpu->f32_to_f16, specials_new,
				sizes[s], layout);
			check_narrow(tern_cuda_f32_to_bf16, cpu->f32_to_bf16,
				specials_new, sizes[s], layout);
		}
}

/* Returns floats for tests of casts. Element j has the bits of j as its upper 20 bits, so
 * 2^20 elements have every sign and exponent, and the ties of f16 and bf16. Its lower 12
 * bits are 0, 1 or 0x800, in turn. */
static struct twin patterns_new(uint64_t count, size_t aside)
{
	struct twin t = twin_new(count * sizeof(float), aside);

	for (uint64_t j = 0; j < count; j++) {
		uint32_t u = (uint32_t)j << 12 | (j % 3 == 0          ? 0
							 : j % 3 == 1 ? 1
								      : 0x800);

		memcpy(host_f32(&t) + j, &u, sizeof(u));
	}
	gpu_up(&t);
	return t;
}

static void test_casts_of_all_exponents_have_the_bits_of_the_cpu(void **state)
{
	const struct tern_kernels *cpu = tern_kernels_cpu();

	(void)state;
	check_narrow(tern_cuda_f32_to_f16, cpu->f32_to_f16, patterns_new, 1u << 20, 0);
	check_narrow(tern_cuda_f32_to_bf16, cpu->f32_to_bf16, patterns_new, 1u << 20, 0);
}

int gpu_run_sums(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest sums[] = {
		cmocka_unit_test(
			test_sum_of_squares_is_close_and_the_same_wherever_it_lies),
	};

	return cmocka_run_group_tests(sums, setup, teardown);
}

int gpu_run_elementwise(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest elementwise[] = {
		cmocka_unit_test(test_sum_has_the_bits_of_the_cpu),
		cmocka_unit_test(test_sum_of_special_values_has_the_bits_of_the_cpu),
		cmocka_unit_test(test_update_of_many_tensors_has_the_bits_of_the_cpu),
		cmocka_unit_test(test_update_of_special_values_has_the_bits_of_the_cpu),
		cmocka_unit_test(test_update_of_nothing_does_nothing),
		cmocka_unit_test(test_casts_have_the_bits_of_the_cpu),
		cmocka_unit_test(test_casts_of_all_exponents_have_the_bits_of_the_cpu),
	};

	return cmocka_run_group_tests(elementwise, setup, teardown);
}
