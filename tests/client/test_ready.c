/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of client/ready.h: a chunk can be taken once, as soon as all of its elements are
 * final. The elements become final in pieces of any size and in any order; another thread
 * may take chunks meanwhile. */
#include "tests/harness/cmocka.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/rng.h"
#include "client/data/permutation.h"
#include "client/ready.h"

#define CHUNKS   8u
#define ELEMENTS 41000u /* eight chunks, the last of which is smaller */
#define PIECES   97u

struct world {
	struct tern_plan plan;
	struct ready ready;
	/* Piece i has the elements from bounds[i] to bounds[i + 1] - 1. */
	uint64_t bounds[PIECES + 1];
	uint64_t seed;
	/* For each element: 1 if it was written, which happens before ready_say() is
	 * called for it. */
	unsigned char *written;
};

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void world_init(struct world *w, uint64_t seed)
{
	struct tern_param all = {.count = ELEMENTS};
	const struct tern_ps_job job = {.params = &all,
		.param_count = 1,
		.element_count = ELEMENTS,
		.server_count = 2};

	w->seed = seed;
	w->written = calloc(ELEMENTS, 1);
	assert_int_equal(tern_plan_init(&w->plan, &job), 0);
	assert_int_equal(w->plan.chunk_count, CHUNKS);
	assert_int_equal(ready_init(&w->ready, &w->plan), 0);
	for (unsigned i = 1; i < PIECES; i++)
		w->bounds[i] = tern_rng_at(seed, 1, 0, i) % ELEMENTS;
	w->bounds[0] = 0;
	w->bounds[PIECES] = ELEMENTS;
	qsort(w->bounds, PIECES + 1, sizeof(w->bounds[0]), by_value);
}

static void world_fini(struct world *w)
{
	ready_fini(&w->ready);
	tern_plan_fini(&w->plan);
	free(w->written);
}

static void say_piece(struct world *w, unsigned number)
{
	uint64_t at = tern_permutation_at(w->seed, PIECES, number);
	uint64_t first = w->bounds[at], count = w->bounds[at + 1] - first;

	for (uint64_t i = 0; i < count; i++)
		w->written[first + i] = 1;
	ready_say(&w->ready, first, count);
}

/* Takes all chunks that are final, and returns their number. `taken`: the chunks taken so
 * far; none may be taken twice. */
static unsigned take_all(struct world *w, bool *taken)
{
	uint32_t chunk;
	unsigned count = 0;

	while (ready_take(&w->ready, &chunk)) {
		const struct tern_chunk *c = &w->plan.chunks[chunk];

		assert_false(taken[chunk]);
		taken[chunk] = true;
		for (uint64_t i = 0; i < c->count; i++)
			assert_int_equal(w->written[c->first + i], 1);
		count++;
	}
	return count;
}

static unsigned complete_chunks(const struct world *w)
{
	unsigned count = 0;

	for (uint32_t k = 0; k < w->plan.chunk_count; k++) {
		const struct tern_chunk *c = &w->plan.chunks[k];
		uint64_t written = 0;

		for (uint64_t i = 0; i < c->count; i++)
			written += w->written[c->first + i];
		count += written == c->count;
	}
	return count;
}

static void test_a_chunk_is_final_when_all_of_it_is(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 20; seed++) {
		bool taken[CHUNKS] = {false};
		unsigned count = 0;
		struct world w;

		world_init(&w, seed);
		ready_begin(&w.ready);
		for (unsigned i = 0; i < PIECES; i++) {
			say_piece(&w, i);
			count += take_all(&w, taken);
			assert_int_equal(count, complete_chunks(&w));
		}
		assert_int_equal(count, w.plan.chunk_count);
		world_fini(&w);
	}
}

static void test_a_gradient_in_one_piece_ends_with_its_first_chunk(void **state)
{
	struct world w;
	uint32_t chunk;

	(void)state;
	world_init(&w, 1);
	for (unsigned turn = 0; turn < 2; turn++) {
		ready_begin(&w.ready);
		assert_false(ready_take(&w.ready, &chunk));
		ready_say(&w.ready, 0, ELEMENTS);
		for (uint32_t wanted = w.plan.chunk_count; wanted-- > 0;) {
			assert_true(ready_take(&w.ready, &chunk));
			assert_int_equal(chunk, wanted);
		}
		assert_false(ready_take(&w.ready, &chunk));
	}
	world_fini(&w);
}

static void *say_all(void *arg)
{
	for (unsigned i = 0; i < PIECES; i++)
		say_piece(arg, i);
	return NULL;
}

static void test_another_thread_takes_what_was_written(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++) {
		bool taken[CHUNKS] = {false};
		unsigned count = 0;
		struct world w;
		pthread_t thread;

		world_init(&w, seed);
		ready_begin(&w.ready);
		assert_int_equal(pthread_create(&thread, NULL, say_all, &w), 0);
		while (count < w.plan.chunk_count)
			count += take_all(&w, taken);
		pthread_join(thread, NULL);
		world_fini(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_chunk_is_final_when_all_of_it_is),
		cmocka_unit_test(test_a_gradient_in_one_piece_ends_with_its_first_chunk),
		cmocka_unit_test(test_another_thread_takes_what_was_written),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
