/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of two computations that are compared bit by bit. */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <string.h>

#include "client/verify.h"

#define TENSORS 3u
#define COUNT   5u

struct bed {
	struct verify v;
	uint64_t digests[TENSORS];
	float first[TENSORS][COUNT], second[TENSORS][COUNT], room[TENSORS][COUNT];
};

static void fill(struct bed *bed)
{
	*bed = (struct bed){.v = {.left = 1}};
	bed->v.digests = bed->digests;
	for (unsigned k = 0; k < TENSORS; k++)
		for (unsigned i = 0; i < COUNT; i++)
			bed->first[k][i] = bed->second[k][i] = (float)(k * COUNT + i);
}

/* Takes the gradients of both computations, and returns how many differ. */
static uint32_t differing(struct bed *bed, uint32_t *first)
{
	struct verify *v = &bed->v;

	verify_begin(v);
	assert_int_equal(v->phase, VERIFY_FIRST);
	for (unsigned k = 0; k < TENSORS; k++)
		verify_take(v, k, bed->room[k], bed->first[k], sizeof(bed->room[k]));
	verify_again(v, 0.5);
	assert_int_equal(v->phase, VERIFY_SECOND);
	for (unsigned k = TENSORS; k-- > 0;)
		verify_take(v, k, bed->room[k], bed->second[k], sizeof(bed->room[k]));
	assert_memory_equal(bed->room, bed->second, sizeof(bed->room));
	return verify_differing(v, TENSORS, first);
}

static void test_equal_gradients_do_not_differ(void **state)
{
	struct bed bed;
	uint32_t first;

	(void)state;
	fill(&bed);
	bed.first[1][3] = bed.second[1][3] = NAN;
	assert_int_equal(differing(&bed, &first), 0);
	verify_begin(&bed.v);
	assert_int_equal(bed.v.phase, VERIFY_OFF);
}

static void test_one_bit_makes_a_difference(void **state)
{
	struct bed bed;
	uint32_t first, bits;

	(void)state;
	fill(&bed);
	bed.second[2][4] = nextafterf(bed.second[2][4], INFINITY);
	assert_int_equal(differing(&bed, &first), 1);
	assert_int_equal(first, 2);
	fill(&bed);
	bed.second[0][0] = -0.0f;
	assert_int_equal(differing(&bed, &first), 1);
	assert_int_equal(first, 0);
	fill(&bed);
	bed.first[1][0] = bed.second[1][0] = NAN;
	memcpy(&bits, &bed.second[1][0], sizeof(bits));
	bits ^= 1; /* another NaN */
	memcpy(&bed.second[1][0], &bits, sizeof(bits));
	bed.second[2][0] += 1;
	assert_int_equal(differing(&bed, &first), 2);
	assert_int_equal(first, 1);
}

static void test_a_tensor_is_pushed_both_times_or_not(void **state)
{
	for (unsigned pushed = 0; pushed < 4; pushed++) {
		struct bed bed;
		uint32_t first = TENSORS;

		(void)state;
		fill(&bed);
		memset(bed.room[1], 0, sizeof(bed.room[1]));
		verify_begin(&bed.v);
		for (unsigned i = 0; i < 2; i++) {
			for (unsigned k = 0; k < TENSORS; k++)
				if (k != 1 || pushed >> i & 1)
					verify_take(&bed.v, k, bed.room[k], NULL,
						sizeof(bed.room[k]));
				else
					verify_unpushed(&bed.v, k);
			if (i == 0)
				verify_again(&bed.v, 0.5);
		}
		assert_int_equal(verify_differing(&bed.v, TENSORS, &first),
			pushed == 1 || pushed == 2);
		assert_int_equal(first, pushed == 1 || pushed == 2 ? 1 : TENSORS);
	}
}

static void test_gradients_may_lie_in_place(void **state)
{
	struct bed bed;
	uint32_t first;

	(void)state;
	for (unsigned changed = 0; changed < 2; changed++) {
		fill(&bed);
		verify_begin(&bed.v);
		for (unsigned k = 0; k < TENSORS; k++)
			verify_take(&bed.v, k, bed.first[k], NULL, sizeof(bed.first[k]));
		verify_again(&bed.v, 0.5);
		bed.first[1][1] += (float)changed;
		for (unsigned k = 0; k < TENSORS; k++)
			verify_take(&bed.v, k, bed.first[k], NULL, sizeof(bed.first[k]));
		assert_int_equal(verify_differing(&bed.v, TENSORS, &first), changed);
	}
}

static void test_a_slot_that_is_not_verified_is_copied(void **state)
{
	struct bed bed;

	(void)state;
	fill(&bed);
	bed.v.left = 0;
	verify_begin(&bed.v);
	verify_take(&bed.v, 1, bed.room[1], bed.first[1], sizeof(bed.room[1]));
	assert_memory_equal(bed.room[1], bed.first[1], sizeof(bed.room[1]));
	assert_int_equal(bed.digests[1], 0);
}

static void test_a_loss_that_differs_is_told(void **state)
{
	const struct verify_slot slot = {.worker = 2, .slot = 3, .step = 4};
	struct bed bed;
	char text[VERIFY_TEXT_BYTES];
	uint32_t first;

	(void)state;
	fill(&bed);
	differing(&bed, &first);
	assert_true(verify_loss(&bed.v, 0.5, &slot, text, sizeof(text)));
	assert_false(verify_loss(&bed.v, 0.25, &slot, text, sizeof(text)));
	assert_string_equal(text,
		"worker 2 computed slot 3 of step 4 twice: the gradients are the same, "
		"but the losses are 0.5 and 0.25");
	bed.v.loss = NAN;
	assert_true(verify_loss(&bed.v, bed.v.loss, &slot, text, sizeof(text)));
}

/* The servers and the program get the sentence whole. */
static void test_the_sentence_has_room_for_large_numbers_and_names(void **state)
{
	const struct verify_slot slot = {
		.worker = UINT32_MAX, .slot = UINT32_MAX, .step = UINT64_MAX};
	char name[256], text[VERIFY_TEXT_BYTES];

	(void)state;
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	verify_describe(text, sizeof(text), &slot, name, UINT32_MAX, UINT32_MAX);
	assert_string_equal(strrchr(text, ' '), " off)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equal_gradients_do_not_differ),
		cmocka_unit_test(test_one_bit_makes_a_difference),
		cmocka_unit_test(test_a_tensor_is_pushed_both_times_or_not),
		cmocka_unit_test(test_gradients_may_lie_in_place),
		cmocka_unit_test(test_a_slot_that_is_not_verified_is_copied),
		cmocka_unit_test(test_a_loss_that_differs_is_told),
		cmocka_unit_test(test_the_sentence_has_room_for_large_numbers_and_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
