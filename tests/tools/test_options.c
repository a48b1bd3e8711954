/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the parser of the command line: what it accepts, and the line with which it
 * refuses the rest. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "tools/options.h"

struct settings {
	bool json;
	uint64_t steps;
	double lr;
	struct byte_list sizes, rounds;
	int fabric, custom;
	const char *data, *listen;
	struct count_pair split;
};

static int parse_even(const char *text, void *at, struct message *why)
{
	if (strlen(text) % 2 == 0) {
		*(int *)at = (int)strlen(text);
		return 0;
	}
	snprintf(why->text, sizeof(why->text), "must have an even length");
	return -EINVAL;
}

static const char *const fabrics[] = {"auto", "tcp", "shm", NULL};
static const struct option table[] = {
	OPTION(FLAG, "json", NULL, "", struct settings, json),
	OPTION(COUNT, "steps", "N", "", struct settings, steps, .initial = "100",
		.min = 1, .max = 1e9),
	OPTION(REAL, "lr", "X", "", struct settings, lr, .initial = "0.5", .max = 100),
	OPTION(BYTES, "size", "N", "", struct settings, sizes, .initial = "64,4K",
		.max = 1e12),
	OPTION(COUNTS, "rounds", "N", "", struct settings, rounds, .min = 1, .max = 1e9),
	OPTION(CHOICE, "fabric", "F", "", struct settings, fabric, .initial = "auto",
		.choices = fabrics),
	OPTION(TEXT, "data", "PATH", "", struct settings, data),
	OPTION(ADDRESS, "listen", "HOST:PORT", "", struct settings, listen),
	OPTION(PAIR, "split", "A:B", "", struct settings, split),
	OPTION(CUSTOM, "custom", "X", "", struct settings, custom, .parse = parse_even),
	OPTION_END,
};

static int parse(struct settings *s, struct message *error, const char *a, const char *b)
{
	char *argv[] = {(char *)a, (char *)b};

	memset(s, 0, sizeof(*s));
	return options_parse(table, b ? 2 : 1, argv, s, error);
}

static void refused(const char *a, const char *b, const char *text)
{
	struct settings s;
	struct message error;

	assert_int_equal(parse(&s, &error, a, b), -EINVAL);
	assert_string_equal(error.text, text);
}

static void test_defaults_are_as_if_typed(void **state)
{
	struct settings s;
	struct message error;

	(void)state;
	assert_int_equal(parse(&s, &error, "--json", NULL), 0);
	assert_true(s.json);
	assert_int_equal(s.steps, 100);
	assert_true(s.lr == 0.5);
	assert_int_equal(s.sizes.count, 2);
	assert_int_equal(s.sizes.bytes[1], 4096);
	assert_int_equal(s.fabric, 0);
	assert_null(s.data);
	assert_false(s.split.given);
}

static void test_values_of_every_type_are_taken(void **state)
{
	struct settings s;
	struct message error;

	(void)state;
	assert_int_equal(parse(&s, &error, "--steps", "7"), 0);
	assert_int_equal(s.steps, 7);
	assert_int_equal(parse(&s, &error, "--lr=1e-3", NULL), 0);
	assert_true(s.lr == 1e-3);
	assert_int_equal(parse(&s, &error, "--size", "1,2k,3M,64G"), 0);
	assert_int_equal(s.sizes.count, 4);
	assert_int_equal(s.sizes.bytes[3], 64ull << 30);
	assert_int_equal(parse(&s, &error, "--rounds", "10,20"), 0);
	assert_int_equal(s.rounds.bytes[1], 20);
	assert_int_equal(parse(&s, &error, "--fabric", "shm"), 0);
	assert_int_equal(s.fabric, 2);
	assert_int_equal(parse(&s, &error, "--data", "--odd name"), 0);
	assert_string_equal(s.data, "--odd name");
	assert_int_equal(parse(&s, &error, "--listen", "[::1]:0"), 0);
	assert_string_equal(s.listen, "[::1]:0");
	assert_int_equal(parse(&s, &error, "--listen", ":7000"), 0);
	assert_int_equal(parse(&s, &error, "--listen", "7000"), 0);
	assert_string_equal(s.listen, "7000");
	assert_int_equal(parse(&s, &error, "--split", "8000:2000"), 0);
	assert_true(s.split.given);
	assert_int_equal(s.split.b, 2000);
	assert_int_equal(parse(&s, &error, "--custom", "four"), 0);
	assert_int_equal(s.custom, 4);
}

static void test_sizes_are_taken_as_people_and_programs_write_them(void **state)
{
	struct settings s;
	struct message error;

	(void)state;
	assert_int_equal(
		parse(&s, &error, "--size", "64B,64KiB,1MiB,1.5M,2.25gib,0.5K,7b,0.5T"),
		0);
	assert_int_equal(s.sizes.count, 8);
	assert_int_equal(s.sizes.bytes[0], 64);
	assert_int_equal(s.sizes.bytes[1], 64 << 10);
	assert_int_equal(s.sizes.bytes[2], 1 << 20);
	assert_int_equal(s.sizes.bytes[3], 3 << 19);
	assert_int_equal(s.sizes.bytes[4], 9ull << 28);
	assert_int_equal(s.sizes.bytes[5], 512);
	assert_int_equal(s.sizes.bytes[6], 7);
	assert_int_equal(s.sizes.bytes[7], 1ull << 39);
}

static void test_unknown_option_names_the_nearest(void **state)
{
	(void)state;
	refused("--stepps", "7", "--stepps: no such option; did you mean --steps?");
	refused("--fab", "tcp", "--fab: no such option; did you mean --fabric?");
	refused("--port", "7", "--port: no such option; did you mean --listen?");
	refused("--verbose", NULL, "--verbose: no such option; see --help");
	refused("--zzzzzz", "7", "--zzzzzz: no such option; see --help");
	refused("steps", NULL, "steps: not an option; see --help");
	refused("--", NULL, "--: not an option; see --help");
	refused("", NULL, "'': not an option; see --help");
}

static void test_wrong_value_says_what_is_right(void **state)
{
	(void)state;
	refused("--steps", "many",
		"--steps many: must be a whole number, 1 to 1000000000");
	refused("--steps", "-1", "--steps -1: must be a whole number, 1 to 1000000000");
	refused("--steps", "", "--steps: its value is empty");
	refused("--steps", "0", "--steps 0: must be 1 to 1000000000");
	refused("--steps", "99999999999999999999",
		"--steps 99999999999999999999: must be 1 to 1000000000");
	refused("--steps", NULL, "--steps needs a value: N");
	refused("--lr", "1e-3x", "--lr 1e-3x: must be a number, 0 to 100");
	refused("--lr", "nan", "--lr nan: must be a number, 0 to 100");
	refused("--lr", "0x1p3", "--lr 0x1p3: must be a number, 0 to 100");
	refused("--lr", " 1", "--lr  1: must be a number, 0 to 100");
	refused("--lr", "1e400", "--lr 1e400: must be 0 to 100");
	refused("--lr", "-1", "--lr -1: must be 0 to 100");
	refused("--fabric", "ibverbs", "--fabric ibverbs: must be one of auto, tcp, shm");
	refused("--split", "8000", "--split 8000: must be A:B, two whole numbers from 1");
	refused("--split", "0:5", "--split 0:5: must be A:B, two whole numbers from 1");
	refused("--listen", "here",
		"--listen here: must be HOST:PORT, or PORT alone, the port 0 to 65535");
	refused("--listen", "h:70000",
		"--listen h:70000: must be HOST:PORT, or PORT alone, the port 0 to "
		"65535");
	refused("--listen", "::1",
		"--listen ::1: an IPv6 address stands in brackets, [ADDRESS]:PORT");
	refused("--listen", "[::1]",
		"--listen [::1]: an IPv6 address stands in brackets, [ADDRESS]:PORT");
	refused("--json=1", NULL, "--json takes no value");
	refused("--data", "", "--data: its value is empty");
	refused("--custom", "odd", "--custom odd: must have an even length");
}

static void test_wrong_size_is_refused(void **state)
{
	static const char not_a_size[] = ": a size is a number, perhaps with K, M or G "
					 "(or KiB, MiB, GiB, the same)";
	static const char *const wrong[] = {
		"4X", "K", "4KB", "4Ki", "-1", "1.", ".5K", "1.5.5K", "4 K", "4,,4"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		char line[200];

		snprintf(line, sizeof(line), "--size %s%s", wrong[i], not_a_size);
		refused("--size", wrong[i], line);
	}
	refused("--size", "1.5", "--size 1.5: not a whole number");
	refused("--size", "0.1K", "--size 0.1K: not a whole number");
	refused("--size", "4,", "--size 4,: ends with a comma");
	refused("--size", "99999999999G", "--size 99999999999G: too large");
	refused("--size", "16777216T", "--size 16777216T: too large");
	refused("--rounds", "0", "--rounds 0: must be 1 to 1000000000");
	refused("--rounds", "many",
		"--rounds many: must be whole numbers, separated by commas");
	refused("--size", "2000G", "--size 2000G: must be 0 to 1000000000000 bytes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults_are_as_if_typed),
		cmocka_unit_test(test_values_of_every_type_are_taken),
		cmocka_unit_test(test_sizes_are_taken_as_people_and_programs_write_them),
		cmocka_unit_test(test_unknown_option_names_the_nearest),
		cmocka_unit_test(test_wrong_value_says_what_is_right),
		cmocka_unit_test(test_wrong_size_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
