/* SPDX-License-Identifier: Apache-2.0 */
/* One suite for every table that this processor runs: against float64 or against
 * arithmetic written out, bit for bit where the header promises bits. */
#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/kernels.h"

#define COUNT 1003

static const struct tern_kernels *const *tables(void)
{
	static const struct tern_kernels *all[4];
	static const char *const names[] = {"portable", "avx2", "avx512"};
	unsigned n = 0;

	for (unsigned i = 0; i < 3; i++) {
		const struct tern_kernels *k = tern_kernels_named(names[i]);

		if (k)
			all[n++] = k;
	}
	all[n] = NULL;
	return all;
}

#define FOR_EACH_TABLE(k)                                                                \
	for (const struct tern_kernels *const *next_ = tables(), *k;                     \
		(k = *next_) != NULL; next_++)

static void fill(float *x, size_t count, uint64_t seed)
{
	struct tern_rng rng = {.seed = seed};

	for (size_t i = 0; i < count; i++)
		x[i] = (tern_unit_f32(tern_rng_next(&rng)) - 0.5f) *
		       (i % 7 == 0 ? 1000.0f : 1.0f);
}

static float tree(const float *x, unsigned lo, unsigned hi)
{
	unsigned half = 1;

	if (hi - lo == 1)
		return x[lo];
	while (half * 2 < hi - lo)
		half *= 2;
	return tree(x, lo, lo + half) + tree(x, lo + half, hi);
}

/* ---- sums and optimizers --------------------------------------------------------------
 */

static void test_sum_is_the_fixed_tree(void **state)
{
	static float in[TERN_SUM_MAX][COUNT + 1], out[COUNT];

	(void)state;
	FOR_EACH_TABLE(k)
	for (unsigned n = 1; n <= TERN_SUM_MAX; n++) {
		const float *src[TERN_SUM_MAX];

		for (unsigned i = 0; i < n; i++) {
			fill(in[i], COUNT + 1, n * 10 + i);
			src[i] = in[i] + (i & 1); /* some are unaligned */
		}
		k->sum(out, src, n, 0.25f, COUNT);
		for (size_t j = 0; j < COUNT; j++) {
			float x[TERN_SUM_MAX], want;

			for (unsigned i = 0; i < n; i++)
				x[i] = src[i][j];
			want = 0.25f * tree(x, 0, n);
			assert_memory_equal(&out[j], &want, sizeof(want));
		}
	}
}

static void test_sum_squares(void **state)
{
	static float x[COUNT];
	double want = 0;

	(void)state;
	fill(x, COUNT, 3);
	for (size_t j = 0; j < COUNT; j++)
		want += (double)x[j] * (double)x[j];
	FOR_EACH_TABLE(k)
	{
		double got = k->sum_squares(x, COUNT);
		double portable = tern_kernels_named("portable")->sum_squares(x, COUNT);

		assert_true(fabs(got - want) <= 1e-12 * want);
		assert_memory_equal(&got, &portable, sizeof(got));
		assert_true(k->sum_squares(x, 0) == 0);
	}
}

struct state_vectors {
	float w[COUNT], m[COUNT], v[COUNT];
};

static void start(struct state_vectors *s, const struct tern_optimizer *o)
{
	fill(s->w, COUNT, 1);
	for (size_t j = 0; j < COUNT; j++) {
		s->m[j] = 0.01f * (float)j;
		s->v[j] = o->initial_accumulator + 0.001f * (float)j;
	}
}

/* The formulas of kernels.h, in float64. */
static double reference(
	const struct tern_optimizer *o, double t, double w, double m, double v, double g)
{
	double lr = (double)o->lr;

	g += (double)o->weight_decay * w;
	switch (o->kind) {
	case TERN_OPT_SGD:
		return w - lr * g;
	case TERN_OPT_MOMENTUM:
		return w - lr * ((double)o->momentum * m + g);
	case TERN_OPT_ADAGRAD:
		return w - lr * g / (sqrt(v + g * g) + (double)o->epsilon);
	case TERN_OPT_ADAM:
		m = (double)o->beta1 * m + (1 - (double)o->beta1) * g;
		v = (double)o->beta2 * v + (1 - (double)o->beta2) * g * g;
		return w - lr * (m / (1 - pow((double)o->beta1, t))) /
				   (sqrt(v / (1 - pow((double)o->beta2, t))) +
					   (double)o->epsilon);
	}
	return NAN;
}

static void test_update_is_the_formula(void **state)
{
	static const char *const names[] = {"sgd", "momentum", "adagrad", "adam"};
	static struct state_vectors before, after;
	static float g[3][COUNT];
	const float *grads[3] = {g[0], g[1], g[2]};

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		fill(g[i], COUNT, 40 + i);
	FOR_EACH_TABLE(k)
	for (unsigned i = 0; i < 4; i++) {
		struct tern_optimizer o;

		assert_int_equal(tern_optimizer_parse(names[i], &o), 0);
		o.weight_decay = 0.01f;
		start(&before, &o);
		start(&after, &o);
		k->update(&o, 5, after.w, before.w, after.m, after.v, grads, 3, 1.0f / 3,
			0.5f, COUNT);
		for (size_t j = 0; j < COUNT; j++) {
			double mean =
				((double)g[0][j] + (double)g[1][j] + (double)g[2][j]) / 6;
			double want = reference(&o, 5, (double)before.w[j],
				(double)before.m[j], (double)before.v[j], mean);

			assert_true(fabs((double)after.w[j] - want) <=
				    1e-5 * (1 + fabs(want)));
		}
	}
}

static void test_update_does_not_depend_on_width_or_cut(void **state)
{
	static const char *const names[] = {"sgd", "momentum", "adagrad", "adam"};
	static struct state_vectors whole, cut;
	static float g[2][COUNT];

	(void)state;
	fill(g[0], COUNT, 50);
	fill(g[1], COUNT, 51);
	FOR_EACH_TABLE(k)
	for (unsigned i = 0; i < 4; i++) {
		const struct tern_kernels *p = tern_kernels_named("portable");
		const float *grads[2] = {g[0], g[1]};
		struct tern_optimizer o;

		tern_optimizer_parse(names[i], &o);
		start(&whole, &o);
		start(&cut, &o);
		p->update(&o, 3, whole.w, whole.w, whole.m, whole.v, grads, 2, 0.5f, 1.0f,
			COUNT);
		for (size_t at = 0, n; at < COUNT; at += n) {
			const float *part[2] = {g[0] + at, g[1] + at};

			n = TERN_MIN((size_t)(1 + at % 37), COUNT - at);
			k->update(&o, 3, cut.w + at, cut.w + at, cut.m + at, cut.v + at,
				part, 2, 0.5f, 1.0f, n);
		}
		assert_memory_equal(&whole, &cut, sizeof(whole));
	}
}

/* ---- casts ----------------------------------------------------------------------------
 */

/* Nearest half, ties to even, by trying all of them. */
static double half_value(uint32_t h)
{
	double sign = h & 0x8000 ? -1 : 1;
	int e = (int)(h >> 10 & 31), f = (int)(h & 1023);

	return sign * (e ? ldexp(1024 + f, e - 25) : ldexp(f, -24));
}

static void test_half_casts(void **state)
{
	static uint16_t all[65536], back[65536];
	static float wide[65536];

	(void)state;
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	FOR_EACH_TABLE(k)
	{
		k->f16_to_f32(wide, all, 65536);
		k->f32_to_f16(back, wide, 65536);
		for (uint32_t i = 0; i < 65536; i++) {
			if ((i & 0x7fff) > 0x7c00)
				assert_true(
					isnan(wide[i]) && (back[i] & 0x7fff) > 0x7c00);
			else
				assert_int_equal(back[i], i);
			if ((i & 0x7c00) != 0x7c00)
				assert_true((double)wide[i] == half_value(i));
		}
		/* Between neighbours: below, at and above the middle. */
		for (uint32_t i = 0; i < 0x7bff; i++) {
			float middle = (float)((half_value(i) + half_value(i + 1)) / 2);
			float x[3] = {nextafterf(middle, 0), middle,
				nextafterf(middle, INFINITY)};
			uint16_t h[3];

			k->f32_to_f16(h, x, 3);
			assert_int_equal(h[0], i);
			assert_int_equal(h[1], i + (i & 1));
			assert_int_equal(h[2], i + 1);
		}
		wide[0] = 65520.0f; /* the middle between the largest and infinity */
		wide[1] = 65519.996f;
		k->f32_to_f16(back, wide, 2);
		assert_int_equal(back[0], 0x7c00);
		assert_int_equal(back[1], 0x7bff);
	}
}

static void test_bfloat_casts(void **state)
{
	static uint16_t all[65536], back[65536];
	static float wide[65536];
	const float ties[4] = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, NAN, 3.4028235e38f};
	uint16_t got[4];

	(void)state;
	for (uint32_t i = 0; i < 65536; i++)
		all[i] = (uint16_t)i;
	FOR_EACH_TABLE(k)
	{
		k->bf16_to_f32(wide, all, 65536);
		k->f32_to_bf16(back, wide, 65536);
		for (uint32_t i = 0; i < 65536; i++) {
			if ((i & 0x7fff) > 0x7f80)
				assert_true((back[i] & 0x7fff) > 0x7f80);
			else
				assert_int_equal(back[i], i);
		}
		k->f32_to_bf16(got, ties, 4);
		assert_int_equal(got[0], 0x3f80);
		assert_int_equal(got[1], 0x3f82);
		assert_true((got[2] & 0x7fff) > 0x7f80);
		assert_int_equal(got[3], 0x7f80);
	}
}

/* ---- layers
 * ---------------------------------------------------------------------------- */

enum {
	ROWS = 9,
	IN = 13,
	OUT = 11,
};

static void test_dense_layer(void **state)
{
	static float x[ROWS * IN], w[IN * OUT], b[OUT], y[ROWS * OUT], dy[ROWS * OUT];
	static float dx[ROWS * IN], dw[IN * OUT], db[OUT], masked[ROWS * OUT];

	(void)state;
	FOR_EACH_TABLE(k)
	{
		fill(x, ROWS * IN, 1);
		fill(w, IN * OUT, 2);
		fill(b, OUT, 3);
		fill(dy, ROWS * OUT, 4);
		k->dense_forward(y, x, w, b, ROWS, IN, OUT, 1);
		for (size_t i = 0; i < ROWS; i++)
			for (size_t j = 0; j < OUT; j++) {
				double sum = (double)b[j], size = fabs(sum);

				for (size_t l = 0; l < IN; l++) {
					sum += (double)x[i * IN + l] *
					       (double)w[l * OUT + j];
					size += fabs((double)x[i * IN + l] *
						     (double)w[l * OUT + j]);
				}
				assert_true(fabs((double)y[i * OUT + j] - fmax(sum, 0)) <=
					    1e-5 * size);
				masked[i * OUT + j] =
					y[i * OUT + j] > 0 ? dy[i * OUT + j] : 0;
			}
		k->dense_backward(dx, dw, db, dy, y, x, w, ROWS, IN, OUT, 1);
		assert_memory_equal(dy, masked, sizeof(dy));
		for (size_t l = 0; l < IN; l++)
			for (size_t j = 0; j < OUT; j++) {
				double sum = 0, size = 0;

				for (size_t i = 0; i < ROWS; i++) {
					double p = (double)x[i * IN + l] *
						   (double)masked[i * OUT + j];

					sum += p;
					size += fabs(p);
				}
				assert_true(fabs((double)dw[l * OUT + j] - sum) <=
					    1e-5 * size);
			}
		for (size_t i = 0; i < ROWS; i++)
			for (size_t l = 0; l < IN; l++) {
				double sum = 0, size = 0;

				for (size_t j = 0; j < OUT; j++) {
					double p = (double)masked[i * OUT + j] *
						   (double)w[l * OUT + j];

					sum += p;
					size += fabs(p);
				}
				assert_true(fabs((double)dx[i * IN + l] - sum) <=
					    1e-5 * size);
			}
		for (size_t j = 0; j < OUT; j++) {
			double sum = 0, size = 0;

			for (size_t i = 0; i < ROWS; i++) {
				sum += (double)masked[i * OUT + j];
				size += fabs((double)masked[i * OUT + j]);
			}
			assert_true(fabs((double)db[j] - sum) <= 1e-5 * size);
		}
	}
}

static void test_softmax_cross_entropy(void **state)
{
	float logits[3 * 4] = {1, 2, 3, 4, 1000, -1000, 0, 1000, -5, -5, -5, -5}, d[12];
	const int32_t labels[3] = {3, 3, 1};
	size_t correct;

	(void)state;
	FOR_EACH_TABLE(k)
	{
		double loss = k->softmax_xent(d, logits, labels, 3, 4, &correct);
		double first = log(exp(-3) + exp(-2) + exp(-1) + 1);

		assert_true(fabs(loss - (first + log(2) + log(4))) < 1e-6);
		assert_int_equal(correct, 1); /* of equals the first counts */
		assert_true(fabs((double)d[3] - (exp(-first) - 1) / 3) < 1e-7);
		assert_true(fabs((double)d[4] - 0.5 / 3) < 1e-7 && d[5] == 0);
		assert_true(fabs((double)d[9] + 0.25) < 1e-7);
	}
}

static void test_embedding(void **state)
{
	const int32_t ids[5] = {2, 0, 2, 2, 1};
	float table[4 * 3], y[15], dtable[12], dy[15];

	(void)state;
	fill(table, 12, 1);
	fill(dy, 15, 2);
	FOR_EACH_TABLE(k)
	{
		k->embed_forward(y, table, ids, 5, 3);
		k->embed_backward(dtable, dy, ids, 5, 3, 4);
		for (int j = 0; j < 3; j++) {
			float two = 0.0f + dy[j];

			two = two + dy[6 + j];
			two = two + dy[9 + j];
			assert_true(y[j] == table[6 + j] && y[12 + j] == table[3 + j]);
			assert_true(dtable[6 + j] == two && dtable[j] == dy[3 + j]);
			assert_true(dtable[9 + j] == 0);
		}
	}
}

static void test_fingerprints_tell_tables_apart(void **state)
{
	(void)state;
	FOR_EACH_TABLE(k)
	{
		assert_non_null(strstr(tern_kernels_fingerprint(k), k->name));
		assert_true(strlen(tern_kernels_fingerprint(k)) > strlen(k->name));
	}
	assert_null(tern_kernels_named("abacus"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sum_is_the_fixed_tree),
		cmocka_unit_test(test_sum_squares),
		cmocka_unit_test(test_update_is_the_formula),
		cmocka_unit_test(test_update_does_not_depend_on_width_or_cut),
		cmocka_unit_test(test_half_casts),
		cmocka_unit_test(test_bfloat_casts),
		cmocka_unit_test(test_dense_layer),
		cmocka_unit_test(test_softmax_cross_entropy),
		cmocka_unit_test(test_embedding),
		cmocka_unit_test(test_fingerprints_tell_tables_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
