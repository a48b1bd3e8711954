/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what `tern info` prints about RDMA devices, on simulated devices. */
#include "tests/harness/cmocka.h"

#include <string.h>

#include "tests/fakes/verbs/fake_verbs.h"
#include "tools/info_rdma.h"

static json_t *info(const struct fake_verbs_opts *opts, const char *verbs)
{
	const struct fabric_settings settings = {.verbs = verbs};

	fake_verbs_reset(opts);
	return info_rdma(&settings, NULL, fake_verbs_api());
}

static json_t *device(json_t *rdma, size_t i)
{
	return json_array_get(json_object_get(rdma, "devices"), i);
}

static const char *text(json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

/* True if one of the listed differences begins with `begin`. */
static bool differs(json_t *one, const char *begin)
{
	json_t *line;
	size_t i;

	json_array_foreach(json_object_get(one, "differences"), i, line)
	{
		if (strncmp(json_string_value(line), begin, strlen(begin)) == 0)
			return true;
	}
	return false;
}

static void test_devices_are_listed_with_ports_and_gids(void **state)
{
	json_t *rdma = info(NULL, NULL), *one, *port, *gid;

	(void)state;
	assert_int_equal(json_array_size(json_object_get(rdma, "devices")), 2);
	one = device(rdma, 1);
	assert_string_equal(text(one, "name"), "fake_1");
	assert_string_equal(text(one, "transport"), "RoCE");
	assert_string_equal(text(one, "firmware"), "0.1");
	assert_int_equal(json_integer_value(json_object_get(one, "numa_node")), 0);
	assert_true(json_is_true(json_object_get(one, "used")));
	assert_true(json_is_false(json_object_get(one, "software")));
	port = json_array_get(json_object_get(one, "ports"), 0);
	assert_string_equal(text(port, "state"), "active");
	assert_string_equal(text(port, "link_layer"), "Ethernet");
	assert_string_equal(text(port, "rate"), "100 Gb/sec (4X EDR)");
	assert_int_equal(json_integer_value(json_object_get(port, "mtu")), 4096);
	assert_int_equal(json_array_size(json_object_get(port, "gids")), 2);
	gid = json_array_get(json_object_get(port, "gids"), 1);
	assert_string_equal(text(gid, "type"), "RoCE v2");
	assert_string_equal(text(gid, "address"), "10.7.0.2");
	assert_string_equal(text(gid, "gid"), "0000:0000:0000:0000:0000:ffff:0a07:0002");
	assert_int_equal(json_array_size(json_object_get(one, "differences")), 0);
	json_decref(rdma);
}

static void test_a_gid_has_an_address_only_if_it_is_of_roce(void **state)
{
	static const char *const transports[] = {"InfiniBand", "iWARP", "RoCE"};
	struct fake_verbs_opts opts = fake_verbs_defaults();
	json_t *rdma, *port, *gid;

	(void)state;
	opts.device_count = 3;
	opts.infiniband = 1u << 0;
	opts.iwarp = 1u << 1;
	rdma = info(&opts, NULL);
	for (size_t i = 0; i < 3; i++) {
		assert_string_equal(text(device(rdma, i), "transport"), transports[i]);
		port = json_array_get(json_object_get(device(rdma, i), "ports"), 0);
		gid = json_array_get(json_object_get(port, "gids"), 0);
		assert_int_equal(json_object_get(gid, "address") != NULL, i == 2);
	}
	json_decref(rdma);
}

static void test_addresses_are_of_the_device_that_they_lead_to(void **state)
{
	json_t *rdma = info(NULL, NULL);

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		json_t *list = json_object_get(device(rdma, i), "addresses");

		assert_int_equal(json_array_size(list), 1);
		assert_string_equal(text(json_array_get(list, 0), "address"),
			i ? "10.7.0.2" : "10.7.0.1");
	}
	json_decref(rdma);
}

static void test_limits_are_told_with_none_as_minus_one(void **state)
{
	json_t *rdma = info(NULL, NULL);
	json_t *limits = json_object_get(device(rdma, 0), "limits");

	(void)state;
	assert_int_equal(json_integer_value(json_object_get(limits, "max_qp")), 1024);
	assert_int_equal(json_integer_value(json_object_get(limits, "max_mr_size")), -1);
	assert_true(json_is_false(json_object_get(limits, "memory_windows")));
	json_decref(rdma);
}

static void test_what_a_device_lacks_is_a_difference(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	json_t *rdma;

	(void)state;
	opts.max_srq = 0;
	opts.max_qp_wr = 64;
	opts.max_rd_atomic = 4;
	opts.max_cqe = 4096;
	opts.reg_limit_bytes = 256u << 20;
	rdma = info(&opts, NULL);
	assert_true(differs(device(rdma, 0), "no shared receive queue"));
	assert_true(differs(device(rdma, 0), "a send queue holds only 64 requests"));
	assert_true(differs(device(rdma, 0), "4 reads under way"));
	assert_true(differs(device(rdma, 0), "completion queues of 4096 entries"));
	assert_true(differs(device(rdma, 0), "at most 256 MiB"));
	json_decref(rdma);
	opts.max_rd_atomic = 0;
	rdma = info(&opts, "depth=32");
	assert_true(differs(device(rdma, 0), "no reads"));
	assert_false(differs(device(rdma, 0), "a send queue"));
	json_decref(rdma);
}

static void test_a_port_that_is_down_is_a_difference(void **state)
{
	const struct fabric_settings settings = {0};
	json_t *rdma;

	(void)state;
	fake_verbs_reset(NULL);
	fake_verbs_port(1, false);
	rdma = info_rdma(&settings, NULL, fake_verbs_api());
	assert_false(differs(device(rdma, 0), "port 1 is not active"));
	assert_true(differs(device(rdma, 1), "port 1 is not active"));
	json_decref(rdma);
}

static void test_devices_that_are_not_used_say_why(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	json_t *rdma = info(&opts, "device=fake_1");

	(void)state;
	assert_true(differs(device(rdma, 0), "not used: the option device="));
	assert_true(json_is_true(json_object_get(device(rdma, 1), "used")));
	json_decref(rdma);
	opts.device_count = 10;
	rdma = info(&opts, NULL);
	assert_true(json_is_true(json_object_get(device(rdma, 7), "used")));
	assert_true(differs(device(rdma, 8), "not used: there are more than 8"));
	json_decref(rdma);
}

static void test_no_device_says_why(void **state)
{
	const struct fabric_settings settings = {0};
	struct fake_verbs_opts opts = fake_verbs_defaults();
	json_t *rdma;

	(void)state;
	opts.device_count = 0;
	fake_verbs_reset(&opts);
	rdma = info_rdma(&settings, "as the fabric says", fake_verbs_api());
	assert_string_equal(text(rdma, "why"), "as the fabric says");
	assert_null(json_object_get(rdma, "devices"));
	json_decref(rdma);
}

static void test_devices_that_fail_are_left_out(void **state)
{
	const struct fabric_settings settings = {0};
	json_t *rdma;

	(void)state;
	fake_verbs_reset(NULL);
	fake_verbs_fail("query_device", 1, 5);
	fake_verbs_fail("query_port", 1, 5);
	fake_verbs_fail("create_event_channel", 1, 5);
	rdma = info_rdma(&settings, NULL, fake_verbs_api());
	assert_int_equal(json_array_size(json_object_get(rdma, "devices")), 1);
	assert_true(differs(device(rdma, 0), "port 1 is not active"));
	assert_true(differs(device(rdma, 0), "no IP address"));
	json_decref(rdma);
	fake_verbs_reset(NULL); /* asserts that no simulated object is open */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_devices_are_listed_with_ports_and_gids),
		cmocka_unit_test(test_a_gid_has_an_address_only_if_it_is_of_roce),
		cmocka_unit_test(test_addresses_are_of_the_device_that_they_lead_to),
		cmocka_unit_test(test_limits_are_told_with_none_as_minus_one),
		cmocka_unit_test(test_what_a_device_lacks_is_a_difference),
		cmocka_unit_test(test_a_port_that_is_down_is_a_difference),
		cmocka_unit_test(test_devices_that_are_not_used_say_why),
		cmocka_unit_test(test_no_device_says_why),
		cmocka_unit_test(test_devices_that_fail_are_left_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
