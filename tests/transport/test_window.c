/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the names of windows (memory that a peer may access). A name is a table entry
 * and a generation; it must stay unambiguous after 2^31 and 2^32 uses of an entry. See
 * transport/window.h. */
#include "tests/harness/cmocka.h"

#include <errno.h>

#include "base/util.h"
#include "transport/window.h"

static char memory[64];
static int owner;

static struct tern_region expose(struct tern_windows *windows)
{
	struct tern_region region;

	assert_int_equal(tern_window_expose(windows, &owner, memory, sizeof(memory),
				 TERN_ACCESS_WRITE, &region),
		0);
	return region;
}

static int find(struct tern_windows *windows, uint32_t generation)
{
	struct tern_window *window;

	return tern_window_find(windows, &owner, 0, generation, 0, 8, &window);
}

static void test_a_name_means_one_use_whatever_wraps(void **state)
{
	static const uint32_t used[] = {0, 1, (1u << 31) - 2, (1u << 31) - 1, 1u << 31,
		UINT32_MAX - 1, UINT32_MAX};
	struct tern_windows windows;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(used); i++) {
		uint32_t first = used[i] + 1;
		struct tern_region region;

		assert_int_equal(tern_windows_init(&windows), 0);
		windows.table[0].generation = used[i];
		for (uint32_t n = 0; n < 3; n++) {
			region = expose(&windows);
			assert_int_equal(find(&windows, first + n), 0);
			assert_int_equal(find(&windows, first + n - 1), -ESTALE);
			assert_int_equal(find(&windows, first + n - 1000), -ESTALE);
			assert_int_equal(find(&windows, first + n + 1), -EPROTO);
			tern_window_withdraw(&windows, &region);
			assert_int_equal(find(&windows, first + n), -ESTALE);
		}
		tern_windows_fini(&windows);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_name_means_one_use_whatever_wraps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
