/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of escaping text that comes from another process: base/escape.h. */
#include "tests/harness/cmocka.h"

#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/escape.h"
#include "base/util.h"

static void check(const char *text, const char *expected)
{
	char out[256];

	assert_string_equal(tern_escape(out, sizeof(out), text, strlen(text)), expected);
	assert_string_equal(TERN_SHOWN(expected), expected);
}

static void test_printable_text_stays_as_it_is(void **state)
{
	(void)state;
	check("", "");
	check("worker 3 (tcp 10.0.0.7:41234)", "worker 3 (tcp 10.0.0.7:41234)");
	check("Z\xc3\xbcrich \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x90\xa6",
		"Z\xc3\xbcrich \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x90\xa6");
	check("C:\\x41", "C:\\x41");
}

static void test_control_characters_are_shown_as_bytes(void **state)
{
	(void)state;
	check("\033[2J", "\\x1b[2J");
	check("a\r\nerror: b\a\177", "a\\x0d\\x0aerror: b\\x07\\x7f");
	/* The control character CSI (0x9b): as a byte, and as a UTF-8 character. */
	check("\x9b"
	      "2J",
		"\\x9b2J");
	check("\xc2\x9b"
	      "2J",
		"\\xc2\\x9b2J");
	assert_string_equal(TERN_SHOWN_BYTES("a\0b", 3), "a\\x00b");
}

static void test_text_that_turns_or_hides_is_shown_as_bytes(void **state)
{
	(void)state;
	check("\xe2\x80\xae"
	      "evil",
		"\\xe2\\x80\\xae"
		"evil");
	check("a\xe2\x80\x8b"
	      "b",
		"a\\xe2\\x80\\x8b"
		"b");
	check("\xef\xbb\xbf", "\\xef\\xbb\\xbf");
	check("\xe2\x80\xa8", "\\xe2\\x80\\xa8");
}

static void test_malformed_utf_8_is_shown_as_bytes(void **state)
{
	static const char *const malformed[] = {
		"\xc3",             /* only the first byte of a character */
		"\xc3(",            /* the second byte is no continuation byte */
		"\xc0\xaf",         /* '/' in two bytes instead of one */
		"\xe0\x80\xaf",     /* '/' in three bytes instead of one */
		"\xed\xa0\x80",     /* half of a surrogate pair */
		"\xf4\x90\x80\x80", /* a code point above U+10FFFF */
		"\xff\xfe",
		"\x80",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(malformed); i++)
		for (const char *p = TERN_SHOWN(malformed[i]); *p; p++)
			assert_true(*p >= ' ' && *p <= '~');
}

/* Escapes one text into buffers of every size. The result must be NUL-terminated. If the
 * buffer is too small, the result must end with "..." (or as many dots as fit), and no
 * escape sequence or UTF-8 character may be cut. */
static void test_text_that_does_not_fit_ends_with_dots(void **state)
{
	static const char text[] = "a\033\xc3\xbc"
				   "bc";
	static const char whole[] = "a\\x1b\xc3\xbc"
				    "bc";
	static const char *const expected[] = {
		"", ".", "..", "...", "a...", "a...", "a...", "a...", "a\\x1b..."};

	(void)state;
	for (size_t size = 1; size < sizeof(whole) + 4; size++) {
		char *out = malloc(size);

		tern_escape(out, size, text, strlen(text));
		if (size >= sizeof(whole))
			assert_string_equal(out, whole);
		else
			assert_string_equal(out, expected[size - 1]);
		free(out);
	}
}

struct logger {
	struct tern_env env;
	char line[1024];
};

static void keep_line(struct tern_env *env, enum tern_log_level level, const char *line)
{
	struct logger *l = tern_container_of(env, struct logger, env);

	(void)level;
	snprintf(l->line, sizeof(l->line), "%s", line);
}

static void test_no_log_line_holds_a_control_character(void **state)
{
	static const struct tern_env_ops ops = {.log = keep_line};
	struct logger l = {.env = {.ops = &ops, .log_level = TERN_LOG_WARN}};

	(void)state;
	tern_log(&l.env, TERN_LOG_WARN, "%s: refused",
		"eve\033[1A\ntern: error: all lost");
	assert_string_equal(l.line, "eve\\x1b[1A\\x0atern: error: all lost: refused");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_printable_text_stays_as_it_is),
		cmocka_unit_test(test_control_characters_are_shown_as_bytes),
		cmocka_unit_test(test_text_that_turns_or_hides_is_shown_as_bytes),
		cmocka_unit_test(test_malformed_utf_8_is_shown_as_bytes),
		cmocka_unit_test(test_text_that_does_not_fit_ends_with_dots),
		cmocka_unit_test(test_no_log_line_holds_a_control_character),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
