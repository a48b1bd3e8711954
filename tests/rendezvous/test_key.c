/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the digest of a name, which serves as the key of a tensor. */
#include "tests/harness/cmocka.h"

#include "base/endian.h"
#include "base/util.h"
#include "rendezvous/key.h"

static struct tern_name named(const struct tern_name_key *key, const char *name)
{
	struct tern_name out;

	tern_name_set(&out, key, name);
	return out;
}

/* Compares the digest with the first test vector of the authors of SipHash: no bytes, with
 * the key 00 01 02 ... 0f. Their other vectors contain zero bytes, which a name cannot
 * have. */
static void test_the_digest_is_siphash_2_4(void **state)
{
	const struct tern_name_key key = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
	struct tern_name empty = named(&key, "");

	(void)state;
	assert_true(tern_get_le64(empty.digest) == 0x726fdb47dd0e0e31);
}

static void test_names_differ_in_any_byte(void **state)
{
	const struct tern_name_key key = tern_name_key(NULL);
	char text[256];

	(void)state;
	for (unsigned length = 1; length <= TERN_NAME_MAX; length++) {
		struct tern_name whole, other;

		memset(text, 'a', length);
		text[length] = 0;
		whole = named(&key, text);
		for (unsigned i = 0; i<length; i += length> 20 ? 7 : 1) {
			text[i] = 'b';
			other = named(&key, text);
			assert_true(tern_names_differ(&whole, &other));
			text[i] = 'a';
		}
		other = named(&key, text);
		assert_false(tern_names_differ(&whole, &other));
		text[length - 1] = 0;
		other = named(&key, text);
		assert_int_equal(tern_names_differ(&whole, &other), length > 1);
	}
}

static void test_no_name_differs_from_none(void **state)
{
	const struct tern_name_key key = tern_name_key(NULL);
	const struct tern_name none = {0}, some = named(&key, "weights");

	(void)state;
	assert_false(tern_names_differ(&none, &some));
	assert_false(tern_names_differ(&some, &none));
	assert_false(tern_names_differ(&none, &none));
}

static void test_each_secret_has_digests_of_its_own(void **state)
{
	const struct tern_name_key keys[] = {
		tern_name_key(NULL), tern_name_key("one"), tern_name_key("two")};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(keys); i++)
		for (unsigned j = 0; j < TERN_ARRAY_SIZE(keys); j++) {
			struct tern_name a = named(&keys[i], "w");
			struct tern_name b = named(&keys[j], "w");

			assert_int_equal(tern_names_differ(&a, &b), i != j);
		}
}

static void test_of_a_long_name_the_end_is_shown(void **state)
{
	const struct tern_name_key key = tern_name_key(NULL);
	struct tern_name name =
		named(&key, "a name of more than forty-seven bytes in all: "
			    "model.layers.17.attention.weight");

	(void)state;
	assert_int_equal(name.bytes, sizeof(name.text));
	assert_memory_equal(name.text, "...", 3);
	assert_memory_equal(name.text + 47 - 16, "attention.weight", 16);
	name = named(&key, "short");
	assert_int_equal(name.bytes, 5);
	assert_memory_equal(name.text, "short", 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_digest_is_siphash_2_4),
		cmocka_unit_test(test_names_differ_in_any_byte),
		cmocka_unit_test(test_no_name_differs_from_none),
		cmocka_unit_test(test_each_secret_has_digests_of_its_own),
		cmocka_unit_test(test_of_a_long_name_the_end_is_shown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
