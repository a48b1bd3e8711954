/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the options of the verbs fabric: which values are accepted, what they do, and
 * the error for a wrong one. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs.h"

static struct verbs_opts parsed(const char *text)
{
	struct verbs_opts opts;
	char error[256] = "";

	assert_int_equal(verbs_opts_parse(text, &opts, error, sizeof(error)), 0);
	assert_string_equal(error, "");
	return opts;
}

static void refused(const char *text, const char *says)
{
	struct verbs_opts opts;
	char error[256] = "";

	assert_int_equal(verbs_opts_parse(text, &opts, error, sizeof(error)), -EINVAL);
	assert_string_equal(error, says);
}

static void test_nothing_said_means_the_defaults(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct verbs_opts o = parsed(i ? "" : NULL);

		assert_int_equal(o.device_count, 0);
		assert_int_equal(o.from.len, 0);
		assert_int_equal(o.gid_index, -1);
		assert_int_equal(o.traffic_class, -1);
		assert_int_equal(o.timeout_exponent, 16);
		assert_int_equal(o.retry_count, 7);
		assert_int_equal(o.depth, 256);
		assert_int_equal(o.inline_max, 220);
		assert_int_equal(o.read_max, 16);
		assert_false(o.no_srq);
		assert_false(o.guard);
	}
}

static void test_every_option_is_taken(void **state)
{
	struct verbs_opts o =
		parsed("device=mlx5_0+mlx5_1,from=10.7.0.1,gid=3,tc=106,timeout=18,retry="
		       "5,depth=1024,inline=0,reads=4,srq=off,guard=on");

	(void)state;
	assert_int_equal(o.device_count, 2);
	assert_string_equal(o.devices[0], "mlx5_0");
	assert_string_equal(o.devices[1], "mlx5_1");
	assert_int_equal(o.from.sa.ss_family, AF_INET);
	assert_int_equal(
		ntohl(((struct sockaddr_in *)(void *)&o.from.sa)->sin_addr.s_addr),
		0x0a070001);
	assert_int_equal(o.gid_index, 3);
	assert_int_equal(o.traffic_class, 106);
	assert_int_equal(o.timeout_exponent, 18);
	assert_int_equal(o.retry_count, 5);
	assert_int_equal(o.depth, 1024);
	assert_int_equal(o.inline_max, 0);
	assert_int_equal(o.read_max, 4);
	assert_true(o.no_srq);
	assert_true(o.guard);
}

static void test_bounds_are_inside(void **state)
{
	struct verbs_opts o;

	(void)state;
	o = parsed("gid=0,tc=0,timeout=1,retry=0,depth=16,reads=1");
	assert_int_equal(o.gid_index, 0);
	assert_int_equal(o.traffic_class, 0);
	assert_int_equal(o.timeout_exponent, 1);
	assert_int_equal(o.retry_count, 0);
	assert_int_equal(o.depth, 16);
	assert_int_equal(o.read_max, 1);
	o = parsed("gid=255,tc=255,timeout=31,retry=7,depth=16384,inline=256,reads=255");
	assert_int_equal(o.gid_index, 255);
	assert_int_equal(o.depth, 16384);
	assert_int_equal(o.inline_max, 256);
	assert_int_equal(o.read_max, 255);
}

static void test_numbers_outside_are_told_the_range(void **state)
{
	(void)state;
	refused("gid=-1", "gid=-1: want a number from 0 to 255");
	refused("gid=256", "gid=256: want a number from 0 to 255");
	refused("tc=256", "tc=256: want a number from 0 to 255");
	refused("timeout=0", "timeout=0: want a number from 1 to 31");
	refused("timeout=32", "timeout=32: want a number from 1 to 31");
	refused("retry=9", "retry=9: want a number from 0 to 7");
	refused("depth=15", "depth=15: want a number from 16 to 16384");
	refused("depth=16385", "depth=16385: want a number from 16 to 16384");
	refused("inline=257", "inline=257: want a number from 0 to 256");
	refused("reads=0", "reads=0: want a number from 1 to 255");
	refused("reads=256", "reads=256: want a number from 1 to 255");
}

static void test_what_is_no_number_is_refused(void **state)
{
	(void)state;
	refused("retry=", "retry=: want a number from 0 to 7");
	refused("retry=x", "retry=x: want a number from 0 to 7");
	refused("retry=7x", "retry=7x: want a number from 0 to 7");
	refused("retry=99999999999999999999",
		"retry=99999999999999999999: want a number from 0 to 7");
}

static void test_switches_are_on_or_off(void **state)
{
	(void)state;
	assert_false(parsed("srq=on").no_srq);
	assert_false(parsed("guard=off").guard);
	refused("srq=1", "srq=1: want on or off");
	refused("guard=", "guard=: want on or off");
}

static void test_devices_are_names_with_plus_between(void **state)
{
	const char *right = "want names as in `tern info`, up to 8, with + between";
	char text[256], says[400];

	(void)state;
	assert_int_equal(parsed("device=a+b+c+d+e+f+g+h").device_count, 8);
	assert_int_equal(parsed("device=a+b,device=c").device_count, 1);
	for (int i = 0; i < 4; i++) {
		static const char *const wrong[] = {
			"", "a++b", "a+", "a+b+c+d+e+f+g+h+i"};

		snprintf(text, sizeof(text), "device=%s", wrong[i]);
		snprintf(says, sizeof(says), "%s: %s", text, right);
		refused(text, says);
	}
	/* A device name of the maximum length, and one that is a character longer. */
	snprintf(text, sizeof(text), "device=%063d", 0);
	assert_int_equal(strlen(parsed(text).devices[0]), 63);
	snprintf(text, sizeof(text), "device=%064d", 0);
	snprintf(says, sizeof(says), "%s: %s", text, right);
	refused(text, says);
}

static void test_from_is_a_numeric_address(void **state)
{
	static const char *const wrong[] = {"", "localhost", "10.7.0.1:80", "10.7.0.256",
		"10.7.0.1/24", "fe80", "1:2"};

	(void)state;
	assert_int_equal(parsed("from=2001:db8::7").from.sa.ss_family, AF_INET6);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		char text[64], says[200];

		snprintf(text, sizeof(text), "from=%s", wrong[i]);
		snprintf(says, sizeof(says), "%s: want a numeric address of this machine",
			text);
		refused(text, says);
	}
}

static void test_unknown_options_are_told_what_there_is(void **state)
{
	(void)state;
	refused("fast=1", "fast=1: no such option; there are device, from, gid, tc, "
			  "timeout, retry, "
			  "depth, inline, reads, srq, guard");
	refused("retry", "retry: want NAME=VALUE");
	refused("retry=7,,guard=on", ": want NAME=VALUE");
	refused("=7",
		"=7: no such option; there are device, from, gid, tc, timeout, retry, "
		"depth, inline, reads, srq, guard");
}

static void test_too_long_an_option_is_cut_in_the_message(void **state)
{
	char text[400];

	(void)state;
	snprintf(text, sizeof(text), "retry=7,device=%0300d", 0);
	refused(text, "device=0000000000000...: too long");
}

static void test_message_fits_the_room(void **state)
{
	struct verbs_opts opts;
	char error[8];

	(void)state;
	assert_int_equal(
		verbs_opts_parse("retry=9", &opts, error, sizeof(error)), -EINVAL);
	assert_string_equal(error, "retry=9");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_said_means_the_defaults),
		cmocka_unit_test(test_every_option_is_taken),
		cmocka_unit_test(test_bounds_are_inside),
		cmocka_unit_test(test_numbers_outside_are_told_the_range),
		cmocka_unit_test(test_what_is_no_number_is_refused),
		cmocka_unit_test(test_switches_are_on_or_off),
		cmocka_unit_test(test_devices_are_names_with_plus_between),
		cmocka_unit_test(test_from_is_a_numeric_address),
		cmocka_unit_test(test_unknown_options_are_told_what_there_is),
		cmocka_unit_test(test_too_long_an_option_is_cut_in_the_message),
		cmocka_unit_test(test_message_fits_the_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
