/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the table of requests that wait for their counterpart: their order, and that
 * no peer can make one hash chain long. */
#include "tests/harness/cmocka.h"

#include "rendezvous/match.h"

#include <stdlib.h>

#define COUNT 20000u

static const struct tern_match_secret secret = {
	{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0}};

struct table {
	struct tern_match match;
	struct tern_match_node nodes[COUNT];
};

static struct table *table_new(void)
{
	struct table *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	assert_int_equal(tern_match_init(&t->match, &secret), 0);
	for (unsigned i = 0; i < COUNT; i++)
		tern_match_node_init(&t->nodes[i]);
	return t;
}

static void table_free(struct table *t)
{
	for (unsigned i = 0; i < COUNT; i++)
		tern_match_remove(&t->match, &t->nodes[i]);
	tern_match_fini(&t->match); /* asserts that the table is empty */
	free(t);
}

static void add(struct table *t, unsigned i, uint64_t key, uint64_t step,
	uint32_t channel, enum tern_match_kind kind)
{
	t->nodes[i].triple = tern_match_triple(&t->match, key, step, channel);
	tern_match_add(&t->match, &t->nodes[i], kind);
}

static unsigned longest_chain(const struct tern_match *match)
{
	unsigned longest = 0;

	for (uint64_t i = 0; i < 1ull << (32 - match->shift); i++) {
		unsigned length = 0;

		tern_list_for_each (n, &match->buckets[i])
			length++;
		longest = TERN_MAX(longest, length);
	}
	return longest;
}

static void test_nodes_of_one_triple_are_found_oldest_first(void **state)
{
	enum { FEW = 9 };
	struct table *t = table_new();
	const struct tern_triple triple = tern_match_triple(&t->match, 5, 6, 7);

	(void)state;
	for (unsigned i = 0; i < FEW; i++) {
		add(t, i, 5, 6, 7, TERN_MATCH_RECV);
		add(t, FEW + i, 5, 6, 7, TERN_MATCH_SEND); /* same triple, but a send */
		add(t, 2 * FEW + i, 5, 6, 8, TERN_MATCH_RECV);
	}
	tern_match_remove(&t->match, &t->nodes[4]);
	/* Removing a node twice has no effect. */
	tern_match_remove(&t->match, &t->nodes[4]);
	tern_match_remove(&t->match, &t->nodes[FEW - 1]);
	assert_null(tern_match_before(&t->nodes[0]));
	assert_ptr_equal(tern_match_before(&t->nodes[5]), &t->nodes[3]);
	for (unsigned i = 0; i < FEW - 1; i++) {
		if (i == 4)
			continue;
		assert_ptr_equal(tern_match_find(&t->match, &triple, TERN_MATCH_RECV),
			&t->nodes[i]);
		tern_match_remove(&t->match, &t->nodes[i]);
	}
	assert_null(tern_match_find(&t->match, &triple, TERN_MATCH_RECV));
	assert_ptr_equal(
		tern_match_find(&t->match, &triple, TERN_MATCH_SEND), &t->nodes[FEW]);
	table_free(t);
}

static void test_a_node_comes_back_behind_all_others(void **state)
{
	struct table *t = table_new();
	const struct tern_triple triple = tern_match_triple(&t->match, 1, 0, 0);

	(void)state;
	add(t, 0, 1, 0, 0, TERN_MATCH_RECV);
	add(t, 1, 1, 0, 0, TERN_MATCH_RECV);
	tern_match_remove(&t->match, &t->nodes[0]);
	add(t, 0, 1, 0, 0, TERN_MATCH_RECV);
	assert_ptr_equal(
		tern_match_find(&t->match, &triple, TERN_MATCH_RECV), &t->nodes[1]);
	table_free(t);
}

static void test_many_nodes_of_one_triple_are_one_link_of_a_chain(void **state)
{
	struct table *t = table_new();

	(void)state;
	for (unsigned i = 0; i < COUNT; i++)
		add(t, i, 1, 2, 3, i % 2 ? TERN_MATCH_RECV : TERN_MATCH_SENT);
	assert_in_range(longest_chain(&t->match), 1, 2);
	table_free(t);
}

/* The keys are multiples of the inverse of 2^64 / golden ratio: multiplicative hashing
 * without a secret would put all of them into one bucket. */
static void test_crafted_triples_do_not_fall_together(void **state)
{
	const uint64_t spread = 0x9e3779b97f4a7c15;
	struct table *keys = table_new(), *steps = table_new(), *channels = table_new();
	uint64_t inverse = 1;

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		inverse *= 2 - spread * inverse;
	assert_int_equal(spread * inverse, 1);
	for (unsigned i = 0; i < COUNT; i++) {
		add(keys, i, i * inverse, 0, 0, TERN_MATCH_RECV);
		add(steps, i, 0, i * inverse * inverse, 0, TERN_MATCH_RECV);
		add(channels, i, 0, (uint64_t)i << 40, COUNT - i, TERN_MATCH_RECV);
	}
	assert_in_range(longest_chain(&keys->match), 1, 16);
	assert_in_range(longest_chain(&steps->match), 1, 16);
	assert_in_range(longest_chain(&channels->match), 1, 16);
	table_free(keys);
	table_free(steps);
	table_free(channels);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nodes_of_one_triple_are_found_oldest_first),
		cmocka_unit_test(test_a_node_comes_back_behind_all_others),
		cmocka_unit_test(test_many_nodes_of_one_triple_are_one_link_of_a_chain),
		cmocka_unit_test(test_crafted_triples_do_not_fall_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
