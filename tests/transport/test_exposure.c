/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the names of exposures (memory that a peer may access). A name is a table entry
 * and a generation; it must stay unambiguous after 2^31 and 2^32 uses of an entry. See
 * transport/exposure.h. */
#include "tests/harness/cmocka.h"

#include <errno.h>

#include "base/util.h"
#include "transport/exposure.h"

static char memory[64];
static int owner;

static struct tern_region expose(struct tern_exposures *exposures)
{
	struct tern_region region;

	assert_int_equal(tern_exposure_add(exposures, &owner, memory, sizeof(memory),
				 TERN_ACCESS_WRITE, &region),
		0);
	return region;
}

static int find(struct tern_exposures *exposures, uint32_t generation)
{
	struct tern_exposure *exposure;

	return tern_exposure_find(exposures, &owner, 0, generation, 0, 8, &exposure);
}

static void test_a_name_means_one_use_whatever_wraps(void **state)
{
	static const uint32_t used[] = {0, 1, (1u << 31) - 2, (1u << 31) - 1, 1u << 31,
		UINT32_MAX - 1, UINT32_MAX};
	struct tern_exposures exposures;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(used); i++) {
		uint32_t first = used[i] + 1;
		struct tern_region region;

		assert_int_equal(tern_exposures_init(&exposures), 0);
		exposures.table[0].generation = used[i];
		for (uint32_t n = 0; n < 3; n++) {
			region = expose(&exposures);
			assert_int_equal(find(&exposures, first + n), 0);
			assert_int_equal(find(&exposures, first + n - 1), -ESTALE);
			assert_int_equal(find(&exposures, first + n - 1000), -ESTALE);
			assert_int_equal(find(&exposures, first + n + 1), -EPROTO);
			tern_exposure_withdraw(&exposures, &region);
			assert_int_equal(find(&exposures, first + n), -ESTALE);
		}
		tern_exposures_fini(&exposures);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_name_means_one_use_whatever_wraps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
