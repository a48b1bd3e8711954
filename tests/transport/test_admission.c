/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the rules by which a listener chooses which connection to close when more are
 * in the handshake (half-open) than it allows. */
#include "tests/harness/cmocka.h"

#include "base/util.h"
#include "transport/admission.h"

#define MOST 64u

static struct tern_admission admission;
static struct tern_half_open full[MOST], extra[8];

static const char many[] = "tcp 10.0.0.1:4000", other[] = "tcp 10.0.0.2:4000";

static int reset(void **state)
{
	(void)state;
	tern_admission_init(&admission, 1);
	return 0;
}

/* Adds MOST connections from `name`, as many as the limit allows, one each nanosecond. */
static void fill(const char *name)
{
	for (unsigned i = 0; i < MOST; i++)
		tern_admission_add(&admission, &full[i], name, i);
}

static struct tern_half_open *come(
	struct tern_half_open *newcomer, const char *name, uint64_t now_ns)
{
	struct tern_half_open *excess;

	tern_admission_add(&admission, newcomer, name, now_ns);
	excess = tern_admission_excess(&admission, newcomer, MOST, now_ns);
	if (excess)
		tern_admission_remove(&admission, excess);
	return excess;
}

static void test_nobody_is_cut_while_there_is_room(void **state)
{
	(void)state;
	for (unsigned i = 0; i < MOST; i++)
		assert_null(come(&full[i], many, i * TERN_OVERDUE_NS));
	tern_admission_remove(&admission, &full[7]);
	tern_admission_remove(&admission, &full[7]);
	assert_int_equal(admission.count, MOST - 1);
	assert_null(come(&extra[0], many, 0));
}

static void test_no_source_keeps_another_one_out(void **state)
{
	(void)state;
	fill(many);
	assert_ptr_equal(come(&extra[0], other, MOST), &full[MOST - 1]);
	assert_ptr_equal(come(&extra[1], other, MOST), &full[MOST - 2]);
	/* A connection that is overdue is closed rather than one that may still complete
	 * its handshake. */
	assert_ptr_equal(come(&extra[2], other, TERN_OVERDUE_NS), &full[0]);
}

static void test_of_one_source_every_fourth_takes_the_place_of_a_silent_one(void **state)
{
	(void)state;
	fill(many);
	full[0].has_spoken = true;
	for (unsigned i = 0; i < 3; i++)
		assert_ptr_equal(come(&extra[i], many, MOST), &extra[i]);
	assert_ptr_equal(come(&extra[3], many, MOST), &full[1]);
}

static void test_a_handshake_under_way_goes_on_until_it_is_overdue(void **state)
{
	(void)state;
	fill(many);
	for (unsigned i = 0; i < MOST; i++)
		full[i].has_spoken = true;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(extra); i++)
		assert_ptr_equal(come(&extra[i], many, MOST), &extra[i]);
	assert_ptr_equal(come(&extra[0], many, TERN_OVERDUE_NS), &full[0]);
}

static void test_who_has_come_of_late_may_be_anybody(void **state)
{
	(void)state;
	assert_false(tern_admission_expects(&admission, 0));
	come(&full[0], many, 0);
	assert_true(tern_admission_expects(&admission, TERN_OVERDUE_NS - 1));
	assert_false(tern_admission_expects(&admission, TERN_OVERDUE_NS));
	come(&full[1], many, TERN_OVERDUE_NS);
	assert_true(tern_admission_expects(&admission, TERN_OVERDUE_NS));
	full[1].has_spoken = true;
	assert_false(tern_admission_expects(&admission, TERN_OVERDUE_NS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_nobody_is_cut_while_there_is_room, reset),
		cmocka_unit_test_setup(test_no_source_keeps_another_one_out, reset),
		cmocka_unit_test_setup(
			test_of_one_source_every_fourth_takes_the_place_of_a_silent_one,
			reset),
		cmocka_unit_test_setup(
			test_a_handshake_under_way_goes_on_until_it_is_overdue, reset),
		cmocka_unit_test_setup(test_who_has_come_of_late_may_be_anybody, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
