/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sums of more gradients than one kernel call adds, and over more elements than
 * a piece has: the order of additions must still be the tree of docs/training.md, bit for
 * bit, in every table of kernels. */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/sum.h"

/* Gradients: more than 8 * 8 * 8, since one kernel call adds at most 8. */
#define MOST   600u
#define FOLDED 1024u /* gradients in the test that adds them up as they arrive */
#define COUNT  4133u /* elements: two whole pieces and a part of a third */

static const struct tern_kernels *tables[3];
static size_t table_count;
static float *storage;
static const float *gradients[MOST];

/* Random values of many magnitudes. Gradient i starts at element i of them. So all
 * gradients differ, and any other order of additions gives another sum. */
static int prepare(void **state)
{
	static const char *const names[] = {"avx512", "avx2", "portable"};
	struct tern_rng rng = {.seed = 24};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		const struct tern_kernels *k = tern_kernels_named(names[i]);

		if (k)
			tables[table_count++] = k;
	}
	storage = malloc((COUNT + MOST) * sizeof(*storage));
	for (size_t j = 0; j < COUNT + MOST; j++)
		storage[j] = ldexpf(2.0f * tern_unit_f32(tern_rng_next(&rng)) - 1.0f,
			-(int)tern_rng_below(&rng, 12));
	for (size_t i = 0; i < MOST; i++)
		gradients[i] = storage + i;
	return 0;
}

static int clean_up(void **state)
{
	(void)state;
	free(storage);
	return 0;
}

/* The sum of the gradients lo to hi - 1: it is divided at lo + the largest power of two
 * below hi - lo. */
static float tree(unsigned lo, unsigned hi, size_t j)
{
	unsigned half = 1;

	if (hi - lo == 1)
		return gradients[lo][j];
	while (2 * half < hi - lo)
		half *= 2;
	return tree(lo, lo + half, j) + tree(lo + half, hi, j);
}

static void assert_same(const float *got, const float *wanted, size_t count, unsigned n)
{
	for (size_t j = 0; j < count; j++)
		if (memcmp(&got[j], &wanted[j], sizeof(*got)) != 0)
			fail_msg("%u gradients, element %zu: %a is not %a", n, j,
				(double)got[j], (double)wanted[j]);
}

static float *room(size_t count)
{
	float *x = malloc(count * sizeof(*x));

	assert_non_null(x);
	return x;
}

static void check_sum(unsigned n, size_t count)
{
	float *wanted = room(count), *got = room(count), scale = 1.0f / (float)n;
	double squares = 0;

	for (size_t j = 0; j < count; j++) {
		wanted[j] = scale * tree(0, n, j);
		squares += (double)wanted[j] * (double)wanted[j];
	}
	for (size_t t = 0; t < table_count; t++) {
		double r =
			tern_sum_run(tables[t], got, gradients, n, false, scale, count);

		assert_same(got, wanted, count, n);
		assert_true(fabs(r - squares) <= 1e-12 * squares);
	}
	free(wanted);
	free(got);
}

static void test_sum_run_is_the_tree_for_any_number(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 100; n++)
		check_sum(n, 37);
	check_sum(511, 37);
	check_sum(512, 37);
	check_sum(513, 37);
	check_sum(MOST, 37);
}

static void test_sum_run_is_the_tree_across_pieces(void **state)
{
	static const unsigned some[] = {1, 2, 8, 9, 64, 65, 73, 100};
	static const size_t lengths[] = {2047, 2048, 2049, COUNT};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(some); i++)
		for (size_t l = 0; l < TERN_ARRAY_SIZE(lengths); l++)
			check_sum(some[i], lengths[l]);
}

static void test_sum_run_of_nothing_writes_nothing(void **state)
{
	float x = 3;

	(void)state;
	assert_true(tern_sum_run(tables[0], &x, gradients, 9, false, 1.0f, 0) == 0);
	assert_true(x == 3);
}

/* Fills w, m and v, the vectors before a step, with values that are the same each
 * time. */
static void fill(float *w, float *m, float *v, size_t count)
{
	for (size_t j = 0; j < count; j++) {
		w[j] = storage[count - j];
		m[j] = 0.1f * storage[j];
		v[j] = fabsf(storage[j]);
	}
}

/* Compares the update from many gradients with one kernel call on their sum. */
static void check_update(const char *name, unsigned n, size_t count)
{
	float *w = room(count), *m = room(count), *v = room(count), *out = room(count);
	float *w1 = room(count), *m1 = room(count), *v1 = room(count), *g = room(count);
	const float *in[] = {g};
	struct tern_optimizer opt;
	struct tern_update u = {.optimizer = &opt,
		.step = 3,
		.w_out = out,
		.w_in = w,
		.gradients = gradients,
		.gradient_count = n,
		.scale = 1.0f / (float)n,
		.clip = 0.5f,
		.count = count};
	float *all[] = {w, m, v, out, w1, m1, v1, g};

	assert_int_equal(tern_optimizer_parse(name, &opt), 0);
	opt.weight_decay = 0.01f;
	if (tern_optimizer_has_m(opt.kind))
		u.m = m;
	if (tern_optimizer_has_v(opt.kind))
		u.v = v;
	fill(w1, m1, v1, count);
	for (size_t j = 0; j < count; j++)
		g[j] = tree(0, n, j);
	tables[0]->update(&opt, u.step, w1, w1, u.m ? m1 : NULL, u.v ? v1 : NULL, in, 1,
		u.scale, u.clip, count);
	for (size_t t = 0; t < table_count; t++) {
		u.kernels = tables[t];
		fill(w, m, v, count);
		tern_update_run(&u);
		assert_same(out, w1, count, n);
		assert_same(m, m1, count, n);
		assert_same(v, v1, count, n);
		/* The same in place. */
		fill(w, m, v, count);
		u.w_out = w;
		tern_update_run(&u);
		assert_same(w, w1, count, n);
		u.w_out = out;
	}
	for (size_t i = 0; i < TERN_ARRAY_SIZE(all); i++)
		free(all[i]);
}

static void test_update_run_is_the_step_on_the_tree(void **state)
{
	(void)state;
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++) {
		for (unsigned n = 1; n <= 100; n++)
			check_update(tern_optimizer_name(o), n, 37);
		check_update(tern_optimizer_name(o), 7, COUNT);
		check_update(tern_optimizer_name(o), 100, COUNT);
	}
}

/* ---- gradients of bf16 ---- */

#define SLOTS_MOST 70u

/* Gradients of `count` elements, rounded to bf16 (`narrow`), and these as float32. */
struct rounded {
	uint16_t narrow[SLOTS_MOST][COUNT];
	float wide[SLOTS_MOST][COUNT];
	const float *narrow_at[SLOTS_MOST], *wide_at[SLOTS_MOST];
};

static struct rounded *round_gradients(unsigned n, size_t count)
{
	struct rounded *r = malloc(sizeof(*r));

	assert_non_null(r);
	for (unsigned i = 0; i < n; i++) {
		tables[0]->f32_to_bf16(r->narrow[i], gradients[i], count);
		tables[0]->bf16_to_f32(r->wide[i], r->narrow[i], count);
		r->narrow_at[i] = (const float *)(const void *)r->narrow[i];
		r->wide_at[i] = r->wide[i];
	}
	return r;
}

static void check_sum_of_bf16(unsigned n, size_t count)
{
	struct rounded *r = round_gradients(n, count);
	float *wanted = room(count), *got = room(count), scale = 1.0f / (float)n;
	double squares =
		tern_sum_run(tables[0], wanted, r->wide_at, n, false, scale, count);

	for (size_t t = 0; t < table_count; t++) {
		assert_true(tern_sum_run(tables[t], got, r->narrow_at, n, true, scale,
				    count) == squares);
		assert_same(got, wanted, count, n);
	}
	free(wanted);
	free(got);
	free(r);
}

static void test_bf16_is_added_up_as_float32(void **state)
{
	static const unsigned some[] = {1, 2, 7, 8, 9, 64, 65, 70};
	static const size_t lengths[] = {1, 37, 2047, 2048, 2049, COUNT};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(some); i++)
		for (size_t l = 0; l < TERN_ARRAY_SIZE(lengths); l++)
			check_sum_of_bf16(some[i], lengths[l]);
}

/* Up to eight gradients, of which one lies where the sum is written. */
static void test_the_sum_of_bf16_may_replace_a_gradient(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 8; n++)
		for (unsigned at = 0; at < n; at++) {
			struct rounded *r = round_gradients(n, COUNT);
			float *wanted = room(COUNT), *dst = room(COUNT);

			tern_sum_run(
				tables[0], wanted, r->wide_at, n, false, 1.0f, COUNT);
			memcpy(dst, r->narrow[at], COUNT * sizeof(uint16_t));
			r->narrow_at[at] = dst;
			tern_sum_bf16(tables[0], dst, r->narrow_at, n, COUNT);
			assert_same(dst, wanted, COUNT, n);
			free(wanted);
			free(dst);
			free(r);
		}
}

static void test_an_update_reads_bf16_and_writes_a_rounded_copy(void **state)
{
	struct rounded *r = round_gradients(7, COUNT);
	float *w = room(COUNT), *wanted = room(COUNT), *got = room(COUNT);
	uint16_t *copy = malloc(COUNT * sizeof(*copy)),
		 *rounded = malloc(COUNT * sizeof(*rounded));
	struct tern_optimizer opt;
	struct tern_update u = {.kernels = tables[0],
		.optimizer = &opt,
		.step = 1,
		.w_in = w,
		.w_out = wanted,
		.gradients = r->wide_at,
		.gradient_count = 7,
		.scale = 1.0f / 7,
		.clip = 1,
		.first = 100,
		.count = COUNT - 200};

	(void)state;
	assert_int_equal(tern_optimizer_parse("sgd", &opt), 0);
	for (size_t j = 0; j < COUNT; j++)
		w[j] = storage[COUNT - j];
	tern_update_run(&u);
	u.w_out = got;
	u.gradients = r->narrow_at;
	u.bf16 = true;
	u.w_bf16 = copy;
	memset(copy, 0xee, COUNT * sizeof(*copy));
	tern_update_run(&u);
	assert_same(got + 100, wanted + 100, COUNT - 200, 7);
	tables[0]->f32_to_bf16(rounded, wanted, COUNT);
	assert_memory_equal(copy + 100, rounded + 100, (COUNT - 200) * sizeof(*copy));
	assert_int_equal(copy[99], 0xeeee);
	assert_int_equal(copy[COUNT - 100], 0xeeee);
	free(w);
	free(wanted);
	free(got);
	free(copy);
	free(rounded);
	free(r);
}

/* ---- adding gradients up as they arrive ---- */

#define FOLD_COUNT 5u

static void add_bf16(
	void *arg, float *dst, const float *const *in, unsigned n, bool are_gradients)
{
	(void)arg;
	if (are_gradients)
		tern_sum_bf16(tables[0], dst, in, n, FOLD_COUNT);
	else
		tables[0]->sum(dst, in, n, 1.0f, FOLD_COUNT);
}

/* Folds gradients of bf16, which become partial sums of float32, also where the last one is a
 * sum by itself. */
static void check_fold_of_bf16(uint32_t n)
{
	struct rounded *r = round_gradients(n, FOLD_COUNT);
	float values[SLOTS_MOST][FOLD_COUNT], *places[SLOTS_MOST];
	const float *left[TERN_SUM_MAX];
	float wanted[FOLD_COUNT], got[FOLD_COUNT];
	uint32_t span = tern_sum_span(n), count = 0;

	for (uint32_t i = 0; i < n; i++) {
		places[i] = values[i];
		memcpy(values[i], r->narrow[i], FOLD_COUNT * sizeof(uint16_t));
	}
	for (uint32_t folded = 0; folded < n; folded = tern_sum_folded_next(n, folded))
		tern_sum_fold(places, n, folded, add_bf16, NULL);
	for (uint32_t i = 0; i < n; i += span)
		left[count++] = places[i];
	tern_sum_run(tables[0], wanted, r->wide_at, n, false, 0.1f, FOLD_COUNT);
	tern_sum_run(tables[0], got, left, count, false, 0.1f, FOLD_COUNT);
	assert_same(got, wanted, FOLD_COUNT, n);
	free(r);
}

static void test_folding_bf16_is_the_tree(void **state)
{
	(void)state;
	/* With up to eight gradients there is nothing to fold. */
	for (uint32_t n = 9; n <= SLOTS_MOST; n++)
		check_fold_of_bf16(n);
}

/* A server that accepts the gradients of a window of slots, in any order. As soon as the
 * gradients at the front of the window have arrived, they are added up, in the order of
 * the tree ("folded"). */
struct gathering {
	uint32_t n, window, folded, held, most;
	bool here[FOLDED];
	float values[FOLDED][FOLD_COUNT];
	float *places[FOLDED];
};

static void take_one(struct gathering *g, struct tern_rng *rng)
{
	uint32_t end = TERN_MIN(g->n, g->folded + g->window), missing = 0, pick;

	for (uint32_t i = g->folded; i < end; i++)
		missing += !g->here[i];
	pick = (uint32_t)tern_rng_below(rng, missing);
	for (uint32_t i = g->folded; i < end; i++) {
		if (g->here[i] || pick-- > 0)
			continue;
		g->here[i] = true;
		memcpy(g->values[i], gradients[i % MOST] + i / MOST,
			sizeof(g->values[i]));
		g->places[i] = g->values[i];
		g->held++;
		break;
	}
	g->most = TERN_MAX(g->most, g->held);
}

static bool may_fold(const struct gathering *g)
{
	for (uint32_t i = g->folded; i < tern_sum_folded_next(g->n, g->folded); i++)
		if (!g->here[i])
			return false;
	return g->folded < g->n;
}

static void add(
	void *arg, float *dst, const float *const *in, unsigned n, bool are_gradients)
{
	(void)arg;
	assert_ptr_equal(dst, in[0]);
	assert_true(are_gradients || n > 1);
	tables[0]->sum(dst, in, n, 1.0f, FOLD_COUNT);
}

static void fold_one(struct gathering *g)
{
	tern_sum_fold(g->places, g->n, g->folded, add, NULL);
	g->folded = tern_sum_folded_next(g->n, g->folded);
	for (uint32_t i = tern_sum_fold_start(g->n, g->folded) + 1; i < g->folded; i++) {
		g->held -= g->places[i] != NULL;
		/* NULL, so that a second read of this gradient crashes. */
		g->places[i] = NULL;
	}
}

/* Compares the sum of gradients that are added up as they arrive, in random order within
 * the window, with the plain tree, bit for bit. Checks and returns the largest number of
 * gradients and partial sums that were held at a time. */
static uint32_t check_fold(uint32_t n, uint32_t window, uint64_t seed)
{
	static struct gathering g;
	struct tern_rng rng = {.seed = seed};
	const float *all[FOLDED], *left[TERN_SUM_MAX];
	float wanted[FOLD_COUNT], got[FOLD_COUNT];
	uint32_t span = tern_sum_span(n), count = 0;

	g = (struct gathering){.n = n, .window = window};
	while (g.folded < n) {
		take_one(&g, &rng);
		while (may_fold(&g))
			fold_one(&g);
	}
	for (uint32_t i = 0; i < n; i++)
		all[i] = gradients[i % MOST] + i / MOST;
	for (uint32_t i = 0; i < n && count < TERN_SUM_MAX; i += span)
		left[count++] = g.places[i];
	assert_int_equal(g.held, count);
	tern_sum_run(tables[0], wanted, all, n, false, 1.0f / (float)n, FOLD_COUNT);
	tern_sum_run(tables[0], got, left, count, false, 1.0f / (float)n, FOLD_COUNT);
	assert_same(got, wanted, FOLD_COUNT, n);
	assert_true(g.most <= tern_sum_held_most(n, window));
	return g.most;
}

static void test_folding_as_gradients_come_is_the_tree(void **state)
{
	(void)state;
	for (uint32_t n = 1; n < 700; n++)
		for (uint32_t window = 8; window <= 32; window *= 2)
			check_fold(n, window, n);
	for (uint64_t seed = 0; seed < 20; seed++)
		check_fold(1024, 16, seed);
}

static void test_folding_holds_few(void **state)
{
	(void)state;
	assert_int_equal(check_fold(16, 8, 1), 9);
	assert_int_equal(check_fold(64, 8, 1), 15);
	assert_int_equal(check_fold(1024, 8, 1), 23);
	assert_int_equal(tern_sum_held_most(16, 8), 9);
	assert_int_equal(tern_sum_held_most(64, 8), 15);
	assert_int_equal(tern_sum_held_most(1024, 8), 23);
	assert_int_equal(tern_sum_held_most(64, 64), 64);
	assert_int_equal(tern_sum_held_most(5, 8), 5);
	assert_int_equal(tern_sum_held_most(UINT32_MAX, 8), 8 + 9 * 7 + 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sum_run_is_the_tree_for_any_number),
		cmocka_unit_test(test_sum_run_is_the_tree_across_pieces),
		cmocka_unit_test(test_sum_run_of_nothing_writes_nothing),
		cmocka_unit_test(test_update_run_is_the_step_on_the_tree),
		cmocka_unit_test(test_folding_as_gradients_come_is_the_tree),
		cmocka_unit_test(test_bf16_is_added_up_as_float32),
		cmocka_unit_test(test_the_sum_of_bf16_may_replace_a_gradient),
		cmocka_unit_test(test_an_update_reads_bf16_and_writes_a_rounded_copy),
		cmocka_unit_test(test_folding_bf16_is_the_tree),
		cmocka_unit_test(test_folding_holds_few),
	};

	return cmocka_run_group_tests(tests, prepare, clean_up);
}
