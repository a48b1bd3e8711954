/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bits of an initial value must not depend on the machine, the compiler or the C
 * library. So everything is computed in double with + - * / and sqrt, which IEEE 754
 * rounds in one way only, and the compiler must not fuse a product with a sum
 * (-ffp-contract=off in meson.build). The functions exp and log of a C library are not
 * correctly rounded.
 */
#include "ps/param.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include <tern/channel.h>

#include "base/rng.h"
#include "base/util.h"

/* 2: double is computed with more digits than it has (x87); negative: it is unknown. */
_Static_assert(FLT_EVAL_METHOD >= 0 && FLT_EVAL_METHOD != 2,
	"initial values need arithmetic in double");

/* "param": separates this stream from other uses of the seed. */
#define STREAM 0x706172616dull

static const char *const names[] = {
	[TERN_INIT_ZEROS] = "zeros",
	[TERN_INIT_CONSTANT] = "constant",
	[TERN_INIT_UNIFORM] = "uniform",
	[TERN_INIT_NORMAL] = "normal",
	[TERN_INIT_GIVEN] = "given",
};

const char *tern_init_name(enum tern_init init)
{
	return (unsigned)init < TERN_ARRAY_SIZE(names) ? names[init] : "unknown";
}

int tern_init_parse(const char *name, enum tern_init *out)
{
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		if (name && strcmp(name, names[i]) == 0) {
			*out = (enum tern_init)i;
			return 0;
		}
	}
	return -EINVAL;
}

unsigned tern_init_arguments(enum tern_init init)
{
	switch (init) {
	case TERN_INIT_ZEROS:
	case TERN_INIT_GIVEN:
		return 0;
	case TERN_INIT_CONSTANT:
		return 1;
	case TERN_INIT_UNIFORM:
	case TERN_INIT_NORMAL:
		return 2;
	}
	return 0;
}

/* ---- the normal distribution ---- */

/* The natural logarithm of a normal number x > 0. With x = m 2^e and m from sqrt(1/2) to
 * sqrt(2), log(x) = e log(2) + 2 artanh(f) where f = (m - 1) / (m + 1). The series of
 * artanh ends after f^21: since |f| < 0.172, the rest is below 2^-60. */
static double natural_log(double x)
{
	static const double log_2 = 0.69314718055994530942,
			    root_2 = 1.4142135623730950488;
	double m, f, square, sum = 0;
	uint64_t bits;
	int e;

	memcpy(&bits, &x, sizeof(bits));
	e = (int)(bits >> 52) - 1023;
	bits = (bits & ((1ull << 52) - 1)) | 1023ull << 52;
	memcpy(&m, &bits, sizeof(m)); /* in [1, 2) */
	if (m > root_2) {
		m *= 0.5;
		e++;
	}
	f = (m - 1) / (m + 1);
	square = f * f;
	for (int n = 21; n >= 1; n -= 2)
		sum = sum * square + 1.0 / n;
	return e * log_2 + 2 * f * sum;
}

/* Coefficients of three rational functions, from the constant term on (Wichura: Algorithm
 * AS 241: The percentage points of the normal distribution, Applied Statistics 37, 1988,
 * function PPND16). */
struct rational {
	double above[8], below[8];
};

/* |u - 1/2| <= 0.425 */
static const struct rational middle = {
	{3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
		1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
		3.3430575583588128105e4, 2.5090809287301226727e3},
	{1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
		2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
		5.2264952788528545610e3}};

/* exp(-25) < min(u, 1 - u) < 0.075 */
static const struct rational tail = {
	{1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
		3.64784832476320460504e0, 1.27045825245236838258e0,
		2.41780725177450611770e-1, 2.27238449892691845833e-2,
		7.74545014278341407640e-4},
	{1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
		6.89767334985100004550e-1, 1.48103976427480074590e-1,
		1.51986665636164571966e-2, 5.47593808499534494600e-4,
		1.05075007164441684324e-9}};

/* min(u, 1 - u) <= exp(-25) */
static const struct rational far_tail = {
	{6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
		2.96560571828504891230e-1, 2.65321895265761230930e-2,
		1.24266094738807843860e-3, 2.71155556874348757815e-5,
		2.01033439929228813265e-7},
	{1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
		1.48753612908506148525e-2, 7.86869131145613259100e-4,
		1.84631831751005468180e-5, 1.42151175831644588870e-7,
		2.04426310338993978564e-15}};

static double value_at(const struct rational *f, double x)
{
	double above = f->above[7], below = f->below[7];

	for (unsigned i = 7; i-- > 0;) {
		above = above * x + f->above[i];
		below = below * x + f->below[i];
	}
	return above / below;
}

double tern_normal_quantile(double u)
{
	double q = u - 0.5, r;

	if (fabs(q) <= 0.425)
		return q * value_at(&middle, 0.180625 - q * q);
	r = sqrt(-natural_log(q < 0 ? u : 1 - u));
	r = r <= 5 ? value_at(&tail, r - 1.6) : value_at(&far_tail, r - 5);
	return q < 0 ? -r : r;
}

/* ---- values ---- */

/* The largest float below `limit`, which is no NaN and not -FLT_MAX. */
static float below(float limit)
{
	uint32_t bits;

	memcpy(&bits, &limit, sizeof(bits));
	if (limit == 0)
		bits = 0x80000001u; /* the smallest negative number */
	else
		bits += limit > 0 ? UINT32_MAX : 1; /* towards zero, or away from it */
	memcpy(&limit, &bits, sizeof(limit));
	return limit;
}

/* The number is uniform in [a, b), with the 53 random bits that a double can hold. If
 * rounding to float gives b, the result is the largest float below b. */
static float uniform(const struct tern_param *p, uint64_t random)
{
	double a = (double)p->a, b = (double)p->b;
	float value = (float)(a + (b - a) * ((double)(random >> 11) * 0x1p-53));

	return value < p->b ? value : below(p->b);
}

/* The number of 52 random bits is increased by a half, so that u is neither 0 nor 1 and
 * the distribution is symmetric. The farthest values are 8.2 standard deviations from the
 * mean. */
static float normal(const struct tern_param *p, uint64_t random)
{
	double u = ((double)(random >> 12) + 0.5) * 0x1p-52;

	return (float)((double)p->a + (double)p->b * tern_normal_quantile(u));
}

void tern_param_init(const struct tern_param *param, uint64_t seed, uint64_t first,
	uint64_t count, float *out)
{
	uint64_t key = tern_key(param->name);

	switch (param->init) {
	case TERN_INIT_ZEROS:
		memset(out, 0, count * sizeof(*out));
		return;
	case TERN_INIT_CONSTANT:
		for (uint64_t i = 0; i < count; i++)
			out[i] = param->a;
		return;
	case TERN_INIT_UNIFORM:
		for (uint64_t i = 0; i < count; i++)
			out[i] =
				uniform(param, tern_rng_at(seed, STREAM, key, first + i));
		return;
	case TERN_INIT_NORMAL:
		for (uint64_t i = 0; i < count; i++)
			out[i] = normal(param, tern_rng_at(seed, STREAM, key, first + i));
		return;
	case TERN_INIT_GIVEN:
		for (uint64_t i = 0; i < count; i++)
			out[i] = NAN;
		return;
	}
}
