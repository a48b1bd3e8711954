/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of encoded messages whose region (memory that a peer may access) is removed, or
 * replaced by another that takes as many bytes, more, or fewer. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "rendezvous/wire.h"

static const struct tern_region narrow = {{1, 2, 3, 4, 0, 0}};
static const struct tern_region wide = {{11, 12, 13, 14, 0, 16}};

static const struct tern_name name = {
	.digest = {1, 2, 3, 4, 5, 6, 7, 8}, .bytes = 6, .text = "a name"};

/* An RTS with everything that an extension of the header can have. */
static struct tern_header full(const struct tern_region *region)
{
	struct tern_header h = {
		.type = TERN_MSG_RTS,
		.flags = TERN_FLAG_REGION | TERN_FLAG_NAME,
		.src = 7,
		.bytes = 24,
		.shape = {.dtype = TERN_F32, .rank = 2, .dims = {2, 3}},
		.name = &name,
	};

	h.region = *region;
	return h;
}

static void check_decodes(
	const void *message, size_t bytes, const struct tern_region *region)
{
	struct tern_header h;
	const char *why = "";

	assert_int_equal(tern_header_decode(message, bytes, &h, &why), 0);
	assert_int_equal(!!(h.flags & TERN_FLAG_REGION), region != NULL);
	if (region)
		assert_memory_equal(&h.region, region, sizeof(*region));
	assert_int_equal(h.shape.dims[1], 3);
	assert_memory_equal(h.name, &name, sizeof(name));
}

static void test_a_region_takes_the_bytes_that_it_needs(void **state)
{
	_Alignas(8) unsigned char message[TERN_HEAD_MAX];
	struct tern_header h = full(&narrow);
	size_t bytes = tern_header_encode(&h, message);

	(void)state;
	assert_int_equal(bytes, TERN_HEADER_BYTES + 2 * 8 + 32 + sizeof(name));
	check_decodes(message, bytes, &narrow);
	h = full(&wide);
	bytes = tern_header_encode(&h, message);
	assert_int_equal(bytes, TERN_HEADER_BYTES + 2 * 8 + 48 + sizeof(name));
	check_decodes(message, bytes, &wide);
}

static void test_a_region_is_exchanged_for_one_of_another_width(void **state)
{
	const struct tern_region *regions[] = {&narrow, &wide, NULL};

	(void)state;
	for (unsigned from = 0; from < 2; from++)
		for (unsigned to = 0; to < 3; to++) {
			_Alignas(8) unsigned char message[TERN_HEAD_MAX];
			struct tern_header h = full(regions[from]);
			size_t first = tern_header_encode(&h, message);
			size_t bytes =
				tern_header_set_region(message, first, regions[to]);

			assert_in_range(bytes, 0, first + TERN_REGION_SPARE);
			check_decodes(message, bytes, regions[to]);
		}
}

static void test_a_width_without_a_region_is_refused(void **state)
{
	_Alignas(8) unsigned char message[TERN_HEAD_MAX];
	struct tern_header h = full(&narrow), out;
	const char *why = "";
	size_t bytes;

	(void)state;
	h.flags = TERN_FLAG_WIDE;
	bytes = tern_header_encode(&h, message);
	assert_int_equal(tern_header_decode(message, bytes, &out, &why), -EPROTO);
	assert_string_equal(why, "flag WIDE without a region");
	/* The flag WIDE says that the region takes 48 bytes, but it takes 32. */
	h = full(&narrow);
	h.flags |= TERN_FLAG_WIDE;
	bytes = tern_header_encode(&h, message);
	assert_int_equal(tern_header_decode(message, bytes, &out, &why), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_region_takes_the_bytes_that_it_needs),
		cmocka_unit_test(test_a_region_is_exchanged_for_one_of_another_width),
		cmocka_unit_test(test_a_width_without_a_region_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
