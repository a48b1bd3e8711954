/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that run for each table of CPU kernels (AVX-512, AVX2, portable) that this
 * processor supports. Results that must be equal bit for bit are compared with a scalar
 * computation; results with rounding are compared with float64.
 */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/bf16.h"
#include "kernels/variants.h"
#include "tests/kernels/rules64.h"

#define MOST 1000u

static const size_t sizes[] = {0, 1, 17, MOST};
static const struct tern_kernels *tables[3];
static size_t table_count;
static struct tern_rng rng = {.seed = 20};

static int find_tables(void **state)
{
	static const char *const names[] = {"avx512", "avx2", "portable"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		const struct tern_kernels *k = tern_kernels_named(names[i]);

		if (k)
			tables[table_count++] = k;
	}
	return table_count > 0 ? 0 : -1;
}

static uint32_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static float float_of(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* A random number in [-1, 1) of varying magnitude, so that sums depend on the order of
 * additions. */
static float some(void)
{
	float u = 2.0f * tern_unit_f32(tern_rng_next(&rng)) - 1.0f;

	return ldexpf(u, -(int)tern_rng_below(&rng, 8));
}

/* A vector in memory for one element more. With `off` it is moved by one element from
 * malloc's alignment, and ends where the memory ends, so that a sanitizer notices any
 * access beyond the end. */
struct vector {
	float *base, *at;
	size_t count;
};

static struct vector vector_new(size_t count, bool off)
{
	struct vector v = {.base = malloc((count + 1) * sizeof(float)), .count = count};

	assert_non_null(v.base);
	v.at = v.base + off;
	for (size_t j = 0; j < count; j++)
		v.at[j] = some();
	return v;
}

static struct vector vector_copy(const struct vector *from, bool off)
{
	struct vector v = vector_new(from->count, off);

	memcpy(v.at, from->at, from->count * sizeof(float));
	return v;
}

static void assert_close(double got, double wanted, double relative, double absolute)
{
	double most = absolute + relative * fabs(wanted);

	if (!(fabs(got - wanted) <= most))
		fail_msg("got %.9g, wanted %.9g", got, wanted);
}

static void assert_same(const struct vector *a, const struct vector *b)
{
	assert_int_equal(a->count, b->count);
	for (size_t j = 0; j < a->count; j++)
		if (bits_of(a->at[j]) != bits_of(b->at[j]))
			fail_msg("element %zu: %a is not %a", j, (double)a->at[j],
				(double)b->at[j]);
}

/* tree(lo, hi) as defined in kernels.h: the sum of the inputs lo to hi - 1 in a fixed
 * order. */
static float tree(const float *const *src, unsigned lo, unsigned hi, size_t j)
{
	unsigned half = 1;

	if (hi - lo == 1)
		return src[lo][j];
	while (2 * half < hi - lo)
		half *= 2;
	return tree(src, lo, lo + half, j) + tree(src, lo + half, hi, j);
}

/* ---- sums ---- */

static void check_sum(const struct tern_kernels *k, unsigned n, size_t count, bool off)
{
	struct vector in[TERN_SUM_MAX] = {{0}}, got = vector_new(count, off);
	struct vector wanted = vector_new(count, false);
	const float *src[TERN_SUM_MAX];
	float scale = n % 2 ? 1.0f : 1.0f / 3.0f;

	for (unsigned i = 0; i < n; i++) {
		in[i] = vector_new(count, off && i % 2);
		src[i] = in[i].at;
	}
	for (size_t j = 0; j < count; j++)
		wanted.at[j] = scale * tree(src, 0, n, j);
	k->sum(got.at, src, n, scale, count);
	assert_same(&got, &wanted);
	/* The result may replace one of the inputs; in this test the last one. */
	k->sum(in[n - 1].at, src, n, scale, count);
	assert_same(&in[n - 1], &wanted);
	for (unsigned i = 0; i < n; i++)
		free(in[i].base);
	free(got.base);
	free(wanted.base);
}

static void test_sum_is_the_tree_bit_for_bit(void **state)
{
	(void)state;
	for (size_t t = 0; t < table_count; t++)
		for (unsigned n = 1; n <= TERN_SUM_MAX; n++)
			for (size_t s = 0; s < TERN_ARRAY_SIZE(sizes); s++) {
				check_sum(tables[t], n, sizes[s], false);
				check_sum(tables[t], n, sizes[s], true);
			}
}

static void test_sum_squares_is_close_and_the_same_in_all_tables(void **state)
{
	(void)state;
	for (size_t s = 0; s < TERN_ARRAY_SIZE(sizes); s++) {
		struct vector x = vector_new(sizes[s], true);
		double wanted = 0, first = tables[0]->sum_squares(x.at, x.count);

		for (size_t j = 0; j < x.count; j++)
			wanted += (double)x.at[j] * (double)x.at[j];
		for (size_t t = 0; t < table_count; t++) {
			double got = tables[t]->sum_squares(x.at, x.count);

			assert_close(got, wanted, 1e-13, 0);
			assert_memory_equal(&got, &first, sizeof(got));
		}
		free(x.base);
	}
}

/* ---- optimizers ---- */

struct trial {
	struct tern_optimizer opt;
	struct vector w, m, v, grads[TERN_SUM_MAX];
	const float *src[TERN_SUM_MAX];
	unsigned n;
	uint64_t step;
	float scale, clip;
};

static struct trial trial_new(const char *name, unsigned n, size_t count)
{
	struct trial t = {.n = n,
		.step = 1 + tern_rng_below(&rng, 50),
		.scale = 1.0f / (float)n,
		.clip = 0.75f,
		.w = vector_new(count, false),
		.m = vector_new(count, false),
		.v = vector_new(count, false)};

	assert_int_equal(tern_optimizer_parse(name, &t.opt), 0);
	t.opt.weight_decay = 0.01f;
	for (size_t j = 0; j < count; j++)
		t.v.at[j] = fabsf(t.v.at[j]);
	for (unsigned i = 0; i < n; i++) {
		t.grads[i] = vector_new(count, false);
		t.src[i] = t.grads[i].at;
	}
	return t;
}

/* Copies the vectors of a trial. `off` chooses which copies are moved by one element from
 * their alignment. */
static struct trial trial_copy(const struct trial *from, bool off)
{
	struct trial t = *from;

	t.w = vector_copy(&from->w, off);
	t.m = vector_copy(&from->m, !off);
	t.v = vector_copy(&from->v, off);
	for (unsigned i = 0; i < t.n; i++) {
		t.grads[i] = vector_copy(&from->grads[i], off && i % 2 == 0);
		t.src[i] = t.grads[i].at;
	}
	return t;
}

static void trial_free(struct trial *t)
{
	free(t->w.base);
	free(t->m.base);
	free(t->v.base);
	for (unsigned i = 0; i < t->n; i++)
		free(t->grads[i].base);
}

/* Updates `count` elements from element `first` on, from t->w into w_out. */
static void step(const struct tern_kernels *k, struct trial *t, float *w_out,
	size_t first, size_t count)
{
	const float *src[TERN_SUM_MAX];
	bool has_m = tern_optimizer_has_m(t->opt.kind);
	bool has_v = tern_optimizer_has_v(t->opt.kind);

	for (unsigned i = 0; i < t->n; i++)
		src[i] = t->src[i] + first;
	k->update(&t->opt, t->step, w_out + first, t->w.at + first,
		has_m ? t->m.at + first : NULL, has_v ? t->v.at + first : NULL, src, t->n,
		t->scale, t->clip, count);
}

/* Updates element j by the rule's formula in float64. */
static double reference(const struct trial *t, size_t j, double *m, double *v)
{
	double g = 0;

	*m = (double)t->m.at[j];
	*v = (double)t->v.at[j];
	for (unsigned i = 0; i < t->n; i++)
		g += (double)t->src[i][j];
	return rules64_step(&t->opt, t->step, (double)t->clip, g * (double)t->scale,
		(double)t->w.at[j], m, v);
}

static void check_reference(
	const struct tern_kernels *k, const char *name, unsigned n, size_t count)
{
	struct trial t = trial_new(name, n, count), was = trial_copy(&t, false);

	step(k, &t, t.w.at, 0, count);
	for (size_t j = 0; j < count; j++) {
		double m, v, w = reference(&was, j, &m, &v);

		assert_close((double)t.w.at[j], w, 1e-6, 1e-6);
		assert_close((double)t.m.at[j], m, 1e-6, 1e-6);
		assert_close((double)t.v.at[j], v, 1e-6, 1e-6);
	}
	trial_free(&t);
	trial_free(&was);
}

static void test_update_is_close_to_float64(void **state)
{
	(void)state;
	for (size_t t = 0; t < table_count; t++)
		for (unsigned o = 0; o < TERN_OPT_COUNT; o++)
			for (unsigned n = 1; n <= TERN_SUM_MAX; n++)
				check_reference(
					tables[t], tern_optimizer_name(o), n, 200);
}

/* Compares every table with the first one. The first one updates in place, in one part,
 * aligned; then every table, also the first one, writes to other memory, in three parts,
 * with two alignments. */
static void check_update_bits(const char *name, unsigned n, size_t count)
{
	struct trial one = trial_new(name, n, count), before = trial_copy(&one, false);

	step(tables[0], &one, one.w.at, 0, count);
	for (size_t i = 0; i < 2 * table_count; i++) {
		struct trial other = trial_copy(&before, i % 2);
		struct vector out = vector_new(count, i % 2 == 0);
		size_t a = count / 3, b = count - count / 5;

		step(tables[i / 2], &other, out.at, 0, a);
		step(tables[i / 2], &other, out.at, a, b - a);
		step(tables[i / 2], &other, out.at, b, count - b);
		assert_same(&out, &one.w);
		assert_same(&other.m, &one.m);
		assert_same(&other.v, &one.v);
		assert_same(&other.w, &before.w);
		free(out.base);
		trial_free(&other);
	}
	trial_free(&one);
	trial_free(&before);
}

static void test_update_bits_do_not_depend_on_table_place_or_split(void **state)
{
	(void)state;
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++)
		for (unsigned n = 1; n <= TERN_SUM_MAX; n++)
			for (size_t s = 0; s < TERN_ARRAY_SIZE(sizes); s++)
				check_update_bits(tern_optimizer_name(o), n, sizes[s]);
}

static void test_update_without_clip_is_the_sum_then_the_step(void **state)
{
	struct trial t = trial_new("sgd", 5, MOST), was = trial_copy(&t, false);

	(void)state;
	t.clip = 1.0f;
	t.opt.weight_decay = 0;
	step(tables[0], &t, t.w.at, 0, MOST);
	for (size_t j = 0; j < MOST; j++) {
		float g = t.scale * tree(t.src, 0, 5, j);

		assert_int_equal(bits_of(t.w.at[j]), bits_of(was.w.at[j] - t.opt.lr * g));
	}
	trial_free(&t);
	trial_free(&was);
}

static void test_mean_is_the_mean_without_clip_or_decay(void **state)
{
	struct trial t = trial_new("mean", 3, MOST);

	(void)state;
	t.opt.lr = 0.5f;
	for (size_t i = 0; i < table_count; i++) {
		step(tables[i], &t, t.w.at, 0, MOST);
		for (size_t j = 0; j < MOST; j++)
			assert_int_equal(bits_of(t.w.at[j]),
				bits_of(tree(t.src, 0, 3, j) * t.scale));
	}
	trial_free(&t);
}

/* ---- names ---- */

static void test_optimizers_have_names(void **state)
{
	/* Processes of a job tell each other the optimizer by its name. */
	static const char *const names[] = {"sgd", "momentum", "nesterov", "adagrad",
		"rmsprop", "adam", "adamw", "mean"};
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(TERN_ARRAY_SIZE(names), TERN_OPT_COUNT);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		assert_int_equal(tern_optimizer_parse(names[i], &o), 0);
		assert_int_equal(o.kind, i);
		assert_string_equal(tern_optimizer_name(o.kind), names[i]);
		assert_int_equal(tern_optimizer_is_for_models(o.kind),
			strstr(tern_optimizer_names(), names[i]) != NULL);
	}
	assert_true(tern_optimizer_parse("sgdx", &o) < 0);
	assert_true(tern_optimizer_parse("", &o) < 0);
}

static void test_tables_are_found_by_name_only(void **state)
{
	(void)state;
	assert_null(tern_kernels_named("avx"));
	assert_null(tern_kernels_named(""));
	assert_non_null(tern_kernels_named("portable"));
	for (size_t t = 0; t < table_count; t++) {
		const char *print = tern_kernels_fingerprint(tables[t]);
		size_t n = strlen(tables[t]->name);

		assert_memory_equal(print, tables[t]->name, n);
		assert_int_equal(print[n], ' ');
		assert_non_null(strstr(print, " libm "));
	}
}

/* The portable table's results must be the same on every processor, so that workers on
 * different processors can train together (--arithmetic portable). */
static void test_the_portable_table_does_not_depend_on_the_processor(void **state)
{
	const char *print = tern_kernels_fingerprint(tern_kernels_named("portable"));
	float x[7 * 5], w[5 * 3], b[3] = {1, 2, 3}, y[7 * 3], wanted[7 * 3];

	(void)state;
	assert_memory_equal(print, "portable portable matmul libm ", 30);
	for (size_t j = 0; j < TERN_ARRAY_SIZE(x); j++)
		x[j] = some();
	for (size_t j = 0; j < TERN_ARRAY_SIZE(w); j++)
		w[j] = some();
	for (size_t i = 0; i < 7; i++)
		for (size_t j = 0; j < 3; j++) {
			wanted[i * 3 + j] = b[j];
			for (size_t l = 0; l < 5; l++)
				wanted[i * 3 + j] += x[i * 5 + l] * w[l * 3 + j];
		}
	tern_kernels_named("portable")->dense_forward(y, x, w, b, 7, 5, 3, false);
	assert_memory_equal(y, wanted, sizeof(y));
}

static double exp_rounded_up(double x)
{
	return nextafter(exp(x), HUGE_VAL);
}

static void test_another_libm_is_another_arithmetic(void **state)
{
	struct tern_libm libm = {.exp = exp, .log = log, .pow = pow};
	uint32_t digest = tern_libm_digest(&libm);

	(void)state;
	assert_int_equal(tern_libm_digest(&libm), digest);
	libm.exp = exp_rounded_up;
	assert_int_not_equal(tern_libm_digest(&libm), digest);
}

/* ---- casts ---- */

/* A slow conversion to f16 to compare with. half_reference() finds the two f16 values
 * next to a number in float64, and takes the nearer one, or the even one if both are
 * equally near. */
static double half_value(uint32_t h)
{
	int exponent = (int)((h >> 10) & 31);
	double fraction = (double)(h & 0x3ff) / 1024.0;

	return exponent ? ldexp(1.0 + fraction, exponent - 15) : ldexp(fraction, -14);
}

static uint16_t half_reference(float f)
{
	uint32_t sign = bits_of(f) >> 31 << 15, low = 0, high = 0x7c00;
	double x = fabs((double)f);

	if (isnan(f))
		return (uint16_t)(sign | 0x7e00);
	/* half_value(0x7c00) is 65536, the value that the exponent would mean if it did
	 * not mean infinity. */
	if (x >= half_value(0x7c00))
		return (uint16_t)(sign | 0x7c00);
	while (high - low > 1) {
		uint32_t mid = (low + high) / 2;

		if (half_value(mid) <= x)
			low = mid;
		else
			high = mid;
	}
	if (x - half_value(low) > half_value(high) - x)
		low = high;
	else if (x - half_value(low) == half_value(high) - x)
		low += low & 1;
	return (uint16_t)(sign | low);
}

static bool half_is_nan(uint16_t h)
{
	return (h & 0x7fff) > 0x7c00;
}

static bool bf16_is_nan(uint16_t h)
{
	return (h & 0x7fff) > 0x7f80;
}

static void test_f16_and_bf16_go_to_f32_and_back(void **state)
{
	uint16_t *all = malloc(65536 * sizeof(*all)),
		 *back = malloc(65536 * sizeof(*back));
	float *wide = malloc(65536 * sizeof(*wide));

	(void)state;
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	for (size_t t = 0; t < table_count; t++) {
		tables[t]->f16_to_f32(wide, all, 65536);
		tables[t]->f32_to_f16(back, wide, 65536);
		for (uint32_t i = 0; i < 65536; i++) {
			double value = half_value(i) * (i & 0x8000 ? -1 : 1);

			if (half_is_nan(all[i])) {
				assert_true(isnan(wide[i]) && half_is_nan(back[i]));
				assert_int_equal(back[i] & 0x8000, i & 0x8000);
				continue;
			}
			assert_int_equal(back[i], i);
			if ((i & 0x7fff) == 0x7c00)
				assert_true(isinf(wide[i]));
			else
				assert_true((double)wide[i] == value);
		}
		tables[t]->bf16_to_f32(wide, all, 65536);
		tables[t]->f32_to_bf16(back, wide, 65536);
		for (uint32_t i = 0; i < 65536; i++) {
			assert_int_equal(bits_of(wide[i]), i << 16);
			if (bf16_is_nan(all[i]))
				assert_true(bf16_is_nan(back[i]));
			else
				assert_int_equal(back[i], i);
		}
	}
	free(all);
	free(back);
	free(wide);
}

static void test_casts_round_to_nearest_even(void **state)
{
	static const struct {
		uint32_t f32;
		uint16_t f16, bf16;
	} cases[] = {
		/* f16: half way between two values, rounds down to even. */
		{0x3f801000, 0x3c00, 0x3f80},
		/* f16: half way between two values, rounds up to even. */
		{0x3f803000, 0x3c02, 0x3f80},
		{0x3f801001, 0x3c01, 0x3f80}, /* f16: just above half way */
		/* bf16: half way between two values, rounds down to even. */
		{0x3f808000, 0x3c04, 0x3f80},
		/* bf16: half way between two values, rounds up to even. */
		{0x3f818000, 0x3c0c, 0x3f82},
		/* The largest f32 that becomes 65504, the largest f16. */
		{0x477fefff, 0x7bff, 0x4780},
		{0x477ff000, 0x7c00, 0x4780}, /* 65520: half way, rounds to infinity */
		{0x7f7fffff, 0x7c00, 0x7f80}, /* FLT_MAX: infinity in both formats */
		{0xff7f8000, 0xfc00, 0xff80}, /* rounds to -infinity in bf16, too */
		{0x7f7f7fff, 0x7c00, 0x7f7f}, /* just below that: still finite in bf16 */
		{0x7f800000, 0x7c00, 0x7f80}, /* infinity */
		/* 2^-25: half way between 0 and the smallest f16, rounds to 0. */
		{0x33000000, 0x0000, 0x3300},
		{0x33000001, 0x0001, 0x3300}, /* just above 2^-25 */
		/* 1.5 * 2^-24: half way between two subnormals, rounds up to even. */
		{0x33c00000, 0x0002, 0x33c0},
		{0x387fe000, 0x0400,
			/* Half way between the largest subnormal f16 and the smallest
			 * normal one. */
			0x3880},
		{0x387fc000, 0x03ff, 0x3880}, /* the largest subnormal f16 itself */
		{0x80000001, 0x8000, 0x8000}, /* the negative f32 closest to zero */
		/* Half way between two subnormals of bf16. */
		{0x00018000, 0x0000, 0x0002},
	};

	(void)state;
	for (size_t t = 0; t < table_count; t++)
		for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
			float f = float_of(cases[i].f32);
			uint16_t h;

			tables[t]->f32_to_f16(&h, &f, 1);
			assert_int_equal(h, cases[i].f16);
			assert_int_equal(h, half_reference(f));
			tables[t]->f32_to_bf16(&h, &f, 1);
			assert_int_equal(h, cases[i].bf16);
		}
}

static void test_nan_stays_nan_when_its_payload_is_cut_off(void **state)
{
	static const uint32_t nans[] = {
		0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000, 0x7f801fff};

	(void)state;
	for (size_t t = 0; t < table_count; t++)
		for (size_t i = 0; i < TERN_ARRAY_SIZE(nans); i++) {
			float f = float_of(nans[i]);
			uint16_t h;

			tables[t]->f32_to_f16(&h, &f, 1);
			assert_true(half_is_nan(h));
			tables[t]->f32_to_bf16(&h, &f, 1);
			assert_true(bf16_is_nan(h));
		}
}

/* The value of a bf16, from its sign, exponent and significand. */
static double bf16_value(uint16_t h)
{
	int exponent = h >> 7 & 0xff;
	double value = exponent ? ldexp(128 + (h & 0x7f), exponent - 134)
				: ldexp(h & 0x7f, -133);

	if (exponent == 255)
		value = h & 0x7f ? (double)NAN : HUGE_VAL;
	return h & 0x8000 ? -value : value;
}

/* The value of bf16 that is nearest to a number, computed by division by the distance of such
 * values. The mode of the FPU, by which rint() rounds, is to nearest even. */
static double bf16_nearest(float x)
{
	int exponent = 0;
	double step, nearest;

	frexp((double)x, &exponent);
	step = ldexp(1, (exponent < -125 ? -125 : exponent) - 8);
	nearest = rint((double)x / step) * step;
	return fabs(nearest) >= 0x1p128 ? copysign(HUGE_VAL, nearest) : nearest;
}

/* For each upper half of a float32, the lower halves next to those at which the rounding
 * changes, in order. */
static const uint16_t low_halves[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};

static void check_narrowed(uint32_t bits, uint16_t h)
{
	float x = float_of(bits);
	double value = bf16_value(h);

	if (isnan(x) ? isnan(value) && bf16_is_nan(h)
		     : value == bf16_nearest(x) && !signbit(value) == !signbit(x))
		return;
	fail_msg("%08x (%a) becomes %04x (%a)", bits, (double)x, h, value);
}

static void test_bf16_is_the_nearest_value_of_all(void **state)
{
	enum { LOW = TERN_ARRAY_SIZE(low_halves), COUNT = 65536 * LOW };
	float *x = malloc(COUNT * sizeof(*x));
	uint16_t *h = malloc(COUNT * sizeof(*h));

	(void)state;
	for (uint32_t i = 0; i < COUNT; i++)
		x[i] = float_of(i / LOW << 16 | low_halves[i % LOW]);
	tern_bf16_narrow(h, x, COUNT);
	for (uint32_t i = 0; i < COUNT; i++)
		check_narrowed(bits_of(x[i]), h[i]);
	for (size_t t = 0; t < table_count; t++) {
		uint16_t *other = malloc(COUNT * sizeof(*other));

		tables[t]->f32_to_bf16(other, x, COUNT);
		assert_memory_equal(other, h, COUNT * sizeof(*h));
		free(other);
	}
	free(x);
	free(h);
}

/* All 65,536 values are widened to themselves: as they lie apart, and from the begin of the
 * place that their float32 take. */
static void test_bf16_is_widened_to_itself(void **state)
{
	static const size_t counts[] = {1, 7, 2047, 2048, 2049, 4097, 65536};
	static uint16_t all[65536];
	static float apart[65536], in_place[65537];

	(void)state;
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	tern_bf16_widen(apart, all, 65536);
	for (uint32_t i = 0; i < 65536; i++)
		if (bf16_is_nan(all[i]))
			assert_true(isnan(apart[i]) && bits_of(apart[i]) == i << 16);
		else
			assert_true((double)apart[i] == bf16_value(all[i]));
	for (size_t k = 0; k < TERN_ARRAY_SIZE(counts); k++) {
		size_t n = counts[k];

		memcpy(in_place, all, n * sizeof(*all));
		in_place[n] = 3;
		tern_bf16_widen_in_place(in_place, n);
		assert_memory_equal(in_place, apart, n * sizeof(*apart));
		assert_true(in_place[n] == 3);
	}
}

static void test_bf16_is_cast_alike_at_any_place_and_length(void **state)
{
	float x[80], back[80];
	uint16_t h[80], one;

	(void)state;
	for (size_t i = 0; i < 80; i++)
		x[i] = 1.0f + (float)i * 0x1.8p-9f;
	for (size_t first = 0; first < 8; first++)
		for (size_t n = 0; n <= 70; n++) {
			memset(h, 0xee, sizeof(h));
			tern_bf16_narrow(h + first, x + first, n);
			tern_bf16_widen(back, h + first, n);
			for (size_t i = 0; i < n; i++) {
				tern_bf16_narrow(&one, &x[first + i], 1);
				assert_int_equal(h[first + i], one);
				assert_int_equal(bits_of(back[i]), (uint32_t)one << 16);
			}
			assert_int_equal(h[first + n], 0xeeee);
		}
}

/* The test converts three kinds of bit patterns, equally many of each: values near the
 * subnormals of f16 (2^-30 to 2^-13); values from 2^-31 to 2 with few significant bits, of
 * which many are exactly half way between two f16 values; and any others. */
static void test_f32_to_f16_agrees_with_the_slow_way(void **state)
{
	enum { COUNT = 200000 };
	float *x = malloc(COUNT * sizeof(*x));
	uint16_t *h = malloc(COUNT * sizeof(*h));

	(void)state;
	for (size_t j = 0; j < COUNT; j++) {
		uint32_t u = (uint32_t)tern_rng_next(&rng);

		if (j % 3 == 1)
			u = (u & 0x80ffffff) + 0x38000000 - (u >> 24 & 15) * 0x800000;
		if (j % 3 == 2)
			u = ((u & 0x8fffffff) | 0x30000000) & ~0xfffu;
		x[j] = float_of(u);
	}
	for (size_t t = 0; t < table_count; t++) {
		tables[t]->f32_to_f16(h, x, COUNT);
		for (size_t j = 0; j < COUNT; j++) {
			if (isnan(x[j]))
				assert_true(half_is_nan(h[j]));
			else if (h[j] != half_reference(x[j]))
				fail_msg("%s: %a became %04x, not %04x", tables[t]->name,
					(double)x[j], h[j], half_reference(x[j]));
		}
	}
	free(x);
	free(h);
}

static void test_casts_of_a_part_are_those_of_the_whole(void **state)
{
	float x[37], back[37];
	uint16_t whole[37], part[37];

	(void)state;
	for (size_t j = 0; j < 37; j++)
		x[j] = some();
	for (size_t t = 0; t < table_count; t++) {
		tables[t]->f32_to_f16(whole, x, 37);
		memset(part, 0xaa, sizeof(part));
		tables[t]->f32_to_f16(part + 1, x + 1, 18);
		assert_memory_equal(part + 1, whole + 1, 18 * sizeof(*part));
		assert_int_equal(part[0], 0xaaaa);
		assert_int_equal(part[19], 0xaaaa);
		memset(back, 0xaa, sizeof(back));
		tables[t]->f16_to_f32(back, whole, 0);
		assert_int_equal(bits_of(back[0]), 0xaaaaaaaa);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sum_is_the_tree_bit_for_bit),
		cmocka_unit_test(test_sum_squares_is_close_and_the_same_in_all_tables),
		cmocka_unit_test(test_update_is_close_to_float64),
		cmocka_unit_test(test_update_bits_do_not_depend_on_table_place_or_split),
		cmocka_unit_test(test_update_without_clip_is_the_sum_then_the_step),
		cmocka_unit_test(test_mean_is_the_mean_without_clip_or_decay),
		cmocka_unit_test(test_optimizers_have_names),
		cmocka_unit_test(test_tables_are_found_by_name_only),
		cmocka_unit_test(
			test_the_portable_table_does_not_depend_on_the_processor),
		cmocka_unit_test(test_another_libm_is_another_arithmetic),
		cmocka_unit_test(test_f16_and_bf16_go_to_f32_and_back),
		cmocka_unit_test(test_bf16_is_the_nearest_value_of_all),
		cmocka_unit_test(test_bf16_is_widened_to_itself),
		cmocka_unit_test(test_bf16_is_cast_alike_at_any_place_and_length),
		cmocka_unit_test(test_casts_round_to_nearest_even),
		cmocka_unit_test(test_nan_stays_nan_when_its_payload_is_cut_off),
		cmocka_unit_test(test_f32_to_f16_agrees_with_the_slow_way),
		cmocka_unit_test(test_casts_of_a_part_are_those_of_the_whole),
	};

	return cmocka_run_group_tests(tests, find_tables, NULL);
}
