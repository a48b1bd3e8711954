/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the hash table base/map.h: finding, removing, and that chains stay short. */
#include "tests/harness/cmocka.h"

#include "base/map.h"

#define COUNT 50000u

static struct tern_map_node nodes[COUNT];

static unsigned longest_chain(const struct tern_map *map)
{
	unsigned longest = 0;

	for (uint32_t i = 0; i <= map->mask; i++) {
		unsigned length = 0;

		tern_list_for_each (n, &map->buckets[i])
			length++;
		longest = TERN_MAX(longest, length);
	}
	return longest;
}

/* Ids like those of requests: an index in the low 16 bits, a generation number above
 * them. */
static uint64_t id_of(unsigned i)
{
	return (uint64_t)(1 + i % 3) << 16 | i;
}

static void fill(struct tern_map *map)
{
	tern_map_init(map, 0x243f6a8885a308d3);
	for (unsigned i = 0; i < COUNT; i++) {
		tern_map_node_init(&nodes[i]);
		tern_map_add(map, &nodes[i], id_of(i));
	}
}

static void drain(struct tern_map *map)
{
	for (unsigned i = 0; i < COUNT; i++)
		tern_map_remove(map, &nodes[i]);
	tern_map_fini(map); /* asserts that the table is empty */
}

static void test_each_is_found_by_its_number_while_it_is_there(void **state)
{
	struct tern_map map;

	(void)state;
	fill(&map);
	assert_int_equal(map.count, COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		assert_ptr_equal(tern_map_find(&map, id_of(i)), &nodes[i]);
	assert_null(tern_map_find(&map, 1));
	tern_map_remove(&map, &nodes[7]);
	tern_map_remove(&map, &nodes[7]);
	assert_null(tern_map_find(&map, id_of(7)));
	assert_int_equal(map.count, COUNT - 1);
	drain(&map);
}

static void test_a_search_looks_at_few_of_many(void **state)
{
	struct tern_map map;

	(void)state;
	fill(&map);
	assert_true(longest_chain(&map) <= 12);
	drain(&map);
}

static void test_of_several_with_one_number_the_first_is_found(void **state)
{
	struct tern_map map;

	(void)state;
	tern_map_init(&map, 1);
	for (unsigned i = 0; i < 40; i++) {
		tern_map_node_init(&nodes[i]);
		tern_map_add(&map, &nodes[i], 5);
	}
	for (unsigned i = 0; i < 40; i++) {
		assert_ptr_equal(tern_map_find(&map, 5), &nodes[i]);
		tern_map_remove(&map, &nodes[i]);
	}
	assert_null(tern_map_find(&map, 5));
	tern_map_fini(&map);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_is_found_by_its_number_while_it_is_there),
		cmocka_unit_test(test_a_search_looks_at_few_of_many),
		cmocka_unit_test(test_of_several_with_one_number_the_first_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
