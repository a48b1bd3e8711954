/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the initial values of tensors. They must have the distribution that was asked
 * for and the same bits everywhere, and must depend on the name, the element and the seed
 * only. The statistical limits are those of a fixed sample, so a test that passes once
 * always passes; they are set so that one of 10,000 correct samples would fail.
 */
#include "tests/harness/cmocka.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/param.h"

#define SAMPLE (1u << 20)

static float values[SAMPLE];

static struct tern_param tensor(const char *name, enum tern_init init, float a, float b)
{
	return (struct tern_param){.name = name, .init = init, .a = a, .b = b};
}

static void take_sample(const struct tern_param *p, uint64_t seed)
{
	tern_param_init(p, seed, 0, SAMPLE, values);
}

static int by_value(const void *x, const void *y)
{
	float a = *(const float *)x, b = *(const float *)y;

	return (a > b) - (a < b);
}

/* ---- which numbers ---- */

static void test_zeros_and_constants(void **state)
{
	struct tern_param zeros = tensor("z", TERN_INIT_ZEROS, 3, 4);
	struct tern_param constant = tensor("c", TERN_INIT_CONSTANT, -0.1f, 4);

	(void)state;
	take_sample(&constant, 1);
	for (unsigned i = 0; i < SAMPLE; i++)
		assert_true(values[i] == -0.1f);
	take_sample(&zeros, 1);
	for (unsigned i = 0; i < SAMPLE; i++)
		assert_true(values[i] == 0 && !signbit(values[i]));
}

static void test_every_value_can_be_computed_alone(void **state)
{
	static const enum tern_init random[] = {TERN_INIT_UNIFORM, TERN_INIT_NORMAL};

	(void)state;
	for (unsigned k = 0; k < TERN_ARRAY_SIZE(random); k++) {
		struct tern_param p = tensor("fc1.weight", random[k], -1, 2);

		take_sample(&p, 7);
		for (unsigned i = 0; i < SAMPLE; i += 997) {
			float alone;

			tern_param_init(&p, 7, i, 1, &alone);
			assert_memory_equal(&alone, &values[i], sizeof(alone));
		}
	}
}

/* Correlation of the sample with the one of `other`; both have the same size. */
static double correlation(const struct tern_param *p, uint64_t seed,
	const struct tern_param *other, uint64_t other_seed)
{
	float *second = malloc(sizeof(values));
	double sums[5] = {0}, n = SAMPLE;

	tern_param_init(other, other_seed, 0, SAMPLE, second);
	take_sample(p, seed);
	for (unsigned i = 0; i < SAMPLE; i++) {
		double x = (double)values[i], y = (double)second[i];

		sums[0] += x;
		sums[1] += y;
		sums[2] += x * x;
		sums[3] += y * y;
		sums[4] += x * y;
	}
	free(second);
	return (sums[4] - sums[0] * sums[1] / n) /
	       sqrt((sums[2] - sums[0] * sums[0] / n) *
		       (sums[3] - sums[1] * sums[1] / n));
}

/* Streams of similar names and of neighbouring seeds are independent. The standard
 * deviation of the correlation is 1/1024. */
static void test_the_stream_follows_from_name_and_seed(void **state)
{
	struct tern_param p = tensor("layers.1.weight", TERN_INIT_NORMAL, 0, 1);
	struct tern_param same = p, next = p, upper = p;
	char name[] = "layers.1.weight";

	(void)state;
	same.name = name;
	next.name = "layers.2.weight";
	upper.name = "Layers.1.weight";
	assert_true(correlation(&p, 1, &same, 1) > 0.999999);
	assert_true(fabs(correlation(&p, 1, &next, 1)) < 4.0 / 1024);
	assert_true(fabs(correlation(&p, 1, &upper, 1)) < 4.0 / 1024);
	assert_true(fabs(correlation(&p, 1, &p, 2)) < 4.0 / 1024);
}

/* The digest of many values: it is the same with any compiler and C library. */
static uint64_t digest_of(const struct tern_param *p)
{
	uint64_t digest = 0;

	take_sample(p, 11);
	for (unsigned i = 0; i < SAMPLE; i++) {
		uint32_t bits;

		memcpy(&bits, &values[i], sizeof(bits));
		digest = tern_mix64(digest ^ bits);
	}
	return digest;
}

static void test_the_bits_are_the_same_everywhere(void **state)
{
	struct tern_param uniform = tensor("w", TERN_INIT_UNIFORM, -0.3f, 0.7f);
	struct tern_param normal = tensor("w", TERN_INIT_NORMAL, 0.1f, 0.02f);

	(void)state;
	assert_true(digest_of(&uniform) == 0x5982b5055022ca16);
	assert_true(digest_of(&normal) == 0x7be1d6a8c372e1c5);
}

/* ---- their distribution ---- */

/* Kolmogorov and Smirnov's largest distance between the sample's distribution function
 * and `f`, multiplied by the square root of the sample's size. */
static double distance(double (*f)(double x))
{
	double most = 0;

	qsort(values, SAMPLE, sizeof(values[0]), by_value);
	for (unsigned i = 0; i < SAMPLE; i++) {
		double at = f((double)values[i]);

		most = fmax(most,
			fmax(at - (double)i / SAMPLE, (double)(i + 1) / SAMPLE - at));
	}
	return most * sqrt((double)SAMPLE);
}

static double uniform_cdf(double x)
{
	return (x + 0.25) / 1.25; /* of [-0.25, 1) */
}

static double normal_cdf(double x)
{
	return 0.5 * erfc(-(x - 0.5) / 2 / sqrt(2.0)); /* mean 0.5, deviation 2 */
}

static void test_uniform_values_are_spread_evenly(void **state)
{
	struct tern_param p = tensor("w", TERN_INIT_UNIFORM, -0.25f, 1);

	(void)state;
	for (uint64_t seed = 0; seed < 4; seed++) {
		take_sample(&p, seed);
		for (unsigned i = 0; i < SAMPLE; i++)
			assert_true(values[i] >= -0.25f && values[i] < 1);
		/* The probability of a larger distance is 2 exp(-2 d^2). */
		assert_true(distance(uniform_cdf) < 2.23);
	}
}

/* Where few floats lie between a and b, rounding must not give b. */
static void test_uniform_values_stay_below_b(void **state)
{
	static const float limits[][2] = {{1, 1 + FLT_EPSILON}, {1, 1 + 2 * FLT_EPSILON},
		{-FLT_EPSILON, 0}, {-FLT_MIN, -0.0f}, {-2, -2 + 2 * FLT_EPSILON},
		{16777216, 16777220}, {-FLT_MAX, FLT_MAX}, {0, 0x1p-149f}};

	(void)state;
	for (unsigned k = 0; k < TERN_ARRAY_SIZE(limits); k++) {
		struct tern_param p =
			tensor("w", TERN_INIT_UNIFORM, limits[k][0], limits[k][1]);

		take_sample(&p, k);
		for (unsigned i = 0; i < SAMPLE; i++)
			assert_true(
				values[i] >= limits[k][0] && values[i] < limits[k][1]);
	}
}

/* Standardised moments of the sample, whose mean is 0.5 and deviation 2. */
static void find_moments(double out[4])
{
	memset(out, 0, 4 * sizeof(out[0]));
	for (unsigned i = 0; i < SAMPLE; i++) {
		double z = ((double)values[i] - 0.5) / 2;

		out[0] += z / SAMPLE;
		out[1] += z * z / SAMPLE;
		out[2] += z * z * z / SAMPLE;
		out[3] += z * z * z * z / SAMPLE;
	}
}

/* How many values lie more than `z` deviations from the mean, on one side. */
static double beyond(double z)
{
	double count = 0;

	for (unsigned i = 0; i < SAMPLE; i++)
		count += z < 0 ? ((double)values[i] - 0.5) / 2 < z
			       : ((double)values[i] - 0.5) / 2 > z;
	return count;
}

static void test_normal_values_have_the_normal_distribution(void **state)
{
	struct tern_param p = tensor("w", TERN_INIT_NORMAL, 0.5f, 2);
	double m[4];

	(void)state;
	for (uint64_t seed = 0; seed < 4; seed++) {
		take_sample(&p, seed);
		find_moments(m);
		/* Their standard deviations are sqrt(1, 2, 15, 96) / 1024. */
		assert_true(fabs(m[0]) < 4 * 1 / 1024.0);
		assert_true(fabs(m[1] - 1) < 4 * 1.4142 / 1024);
		assert_true(fabs(m[2]) < 4 * 3.873 / 1024);
		assert_true(fabs(m[3] - 3) < 4 * 9.798 / 1024);
		for (double z = -4; z <= 4; z++) {
			double expected = SAMPLE * 0.5 * erfc(fabs(z) / sqrt(2.0));

			assert_true(fabs(beyond(z) - expected) < 4 * sqrt(expected));
		}
		assert_true(distance(normal_cdf) < 2.23);
	}
}

/* The quantile function inverts erfc of the C library, up to the farthest values that the
 * generator can give. */
static void test_the_normal_quantile_inverts_the_distribution_function(void **state)
{
	static const double places[] = {0.5, 0.0749999, 0.075, 0.0750001, 0.925, 0.25,
		1e-2, 1e-4, 1e-8, 1.3887943864964e-11, 1.3887943864965e-11, 1e-12, 1e-14,
		0x1p-53};

	(void)state;
	for (unsigned k = 0; k < TERN_ARRAY_SIZE(places); k++) {
		double u = places[k], z = tern_normal_quantile(u);
		double back = 0.5 * erfc(-z / sqrt(2.0));

		/* A relative error e of z changes u by e z^2 or less, relatively. */
		if (fabs(back - u) > u * 1e-14 * (2 + z * z))
			fail_msg("quantile %a of %a leads back to %a", z, u, back);
		if (u > 1e-4)
			assert_true(fabs(z + tern_normal_quantile(1 - u)) < 1e-11);
	}
	assert_true(tern_normal_quantile(0.5) == 0);
	assert_true(fabs(tern_normal_quantile(0.975) - 1.9599639845400542355) < 1e-14);
	assert_true(fabs(tern_normal_quantile(0x1p-53) + 8.2095361516013867) < 1e-13);
	assert_true(fabs(tern_normal_quantile(1 - 0x1p-53) - 8.2095361516013867) < 1e-13);
}

static void test_kinds_have_names(void **state)
{
	enum tern_init init;

	(void)state;
	for (enum tern_init i = TERN_INIT_ZEROS; i <= TERN_INIT_GIVEN; i++) {
		assert_int_equal(tern_init_parse(tern_init_name(i), &init), 0);
		assert_int_equal(init, i);
	}
	assert_true(tern_init_parse("Zeros", &init) < 0);
	assert_true(tern_init_parse("", &init) < 0);
	assert_true(tern_init_parse(NULL, &init) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_zeros_and_constants),
		cmocka_unit_test(test_every_value_can_be_computed_alone),
		cmocka_unit_test(test_the_stream_follows_from_name_and_seed),
		cmocka_unit_test(test_the_bits_are_the_same_everywhere),
		cmocka_unit_test(test_uniform_values_are_spread_evenly),
		cmocka_unit_test(test_uniform_values_stay_below_b),
		cmocka_unit_test(test_normal_values_have_the_normal_distribution),
		cmocka_unit_test(
			test_the_normal_quantile_inverts_the_distribution_function),
		cmocka_unit_test(test_kinds_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
