/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how events are printed: as text, one line for each, whatever text a peer has
 * sent (only generated text keeps its lines); as JSON, in printable ASCII. */
#include "tests/harness/cmocka.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/report.h"

static const char evil[] = "\033]0;pwned\a\033[31mboo\ntern server: all is well\302\233";
static const char shown[] =
	"\\x1b]0;pwned\\x07\\x1b[31mboo\\x0atern server: all is well\\xc2\\x9b";

static char said[4096];

/* Returns what report() writes to `fd` for the event. */
static const char *said_with(struct output *out, int fd, json_t *event)
{
	FILE *file = tmpfile();
	int kept = dup(fd);
	ssize_t n;

	assert_non_null(file);
	fflush(stdout);
	assert_true(dup2(fileno(file), fd) == fd);
	report(out, "server", event);
	fflush(stdout);
	dup2(kept, fd);
	close(kept);
	n = pread(fileno(file), said, sizeof(said) - 1, 0);
	assert_true(n >= 0);
	said[n] = '\0';
	fclose(file);
	return said;
}

static const char *said_of(int fd, json_t *event)
{
	return said_with(&(struct output){0}, fd, event);
}

static json_t *event_of(const char *name)
{
	return json_pack("{s:s, s:o, s:s}", "event", name, "text", report_text(evil),
		"level", "warning");
}

static void test_texts_of_peers_are_one_harmless_line(void **state)
{
	static const char *const names[] = {"error", "log", "note", "lost"};
	static const int fds[] = {
		STDERR_FILENO, STDERR_FILENO, STDOUT_FILENO, STDOUT_FILENO};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		const char *line = said_of(fds[i], event_of(names[i]));

		assert_non_null(strstr(line, shown));
		assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
	}
}

static void test_a_text_that_was_generated_keeps_its_lines(void **state)
{
	json_t *event = json_pack(
		"{s:s, s:s}", "event", "generated", "text", "one\033\n\nthree\n");

	(void)state;
	assert_string_equal(said_of(STDOUT_FILENO, event), "one\\x1b\n\nthree\n");
}

static void test_json_is_printable_ascii(void **state)
{
	/* The text contains DEL, NEL, a right-to-left override, and an emoji. */
	json_t *event = json_pack("{s:s, s:s}", "event", "note", "text",
		"a\177b\302\205c\342\200\256d\360\237\230\200\177");
	struct output out = {.json = true};
	const char *line = said_with(&out, STDOUT_FILENO, event);

	(void)state;
	assert_non_null(
		strstr(line, "\"a\\u007fb\\u0085c\\u202Ed\\uD83D\\uDE00\\u007f\""));
	for (const char *p = line; p[1]; p++)
		assert_true(*p >= ' ' && *p <= '~');
}

static void test_json_says_when_and_where(void **state)
{
	struct output out = {.json = true};
	json_t *event;

	(void)state;
	setenv("TERN_JOB", "night-7", true);
	event = json_loads(said_with(&out, STDOUT_FILENO, event_of("note")), 0, NULL);
	assert_string_equal(json_string_value(json_object_get(event, "job")), "night-7");
	assert_int_equal(json_integer_value(json_object_get(event, "pid")), getpid());
	assert_true(json_is_string(json_object_get(event, "host")));
	assert_true(json_is_string(json_object_get(event, "time")));
	/* The fields "pid" and so on that an event of another process already has are
	 * kept. */
	json_object_set_new(event, "pid", json_integer(17));
	event = json_loads(said_with(&out, STDOUT_FILENO, event), 0, NULL);
	assert_int_equal(json_integer_value(json_object_get(event, "pid")), 17);
	json_decref(event);
	unsetenv("TERN_JOB");
}

static void test_what_is_printable_stays(void **state)
{
	json_t *event =
		json_pack("{s:s, s:s}", "event", "note", "text", "100 % of \303\266\\n");

	(void)state;
	assert_string_equal(said_of(STDOUT_FILENO, event), "100 % of \303\266\\n\n");
}

static json_t *progress_of(void)
{
	return json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:{s:f, s:s}, s:s}",
		"event", "progress", "step", 3, "steps", 10, "loss", 0.5, "lr", 0.001,
		"staleness_mean", 1.25, "samples_per_s", 40.0, "metrics", "acc", 0.75,
		"gap", "nan", "waits_for", evil);
}

static void test_a_progress_line_has_what_is_known(void **state)
{
	json_t *event = progress_of();
	char expected[300];

	(void)state;
	snprintf(expected, sizeof(expected),
		"step 3/10  loss 0.5000  acc 0.75  gap nan  lr 0.001  staleness 1.2  "
		"40 samples/s  ? left  waits for %s\n",
		shown);
	assert_string_equal(said_of(STDERR_FILENO, json_incref(event)), expected);
	json_object_del(event, "waits_for");
	json_object_del(event, "staleness_mean");
	json_object_del(event, "metrics");
	json_object_del(event, "samples_per_s");
	json_object_set_new(event, "loss", json_null());
	json_object_set_new(event, "mb_per_s", json_real(2));
	json_object_set_new(event, "steps_per_s", json_real(1));
	assert_string_equal(said_of(STDERR_FILENO, event),
		"step 3/10  lr 0.001  2.0 MB/s  7s left\n");
}

/* The line has at most 255 characters. The rate of bytes is left out first, then the
 * staleness; of the metrics some have room. */
static void test_a_progress_line_drops_what_has_no_room(void **state)
{
	json_t *event = progress_of();
	char name[60];

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "a-metric-with-a-name-of-some-length-%u", i);
		json_object_set_new(
			json_object_get(event, "metrics"), name, json_real(i));
	}
	json_object_set_new(event, "mb_per_s", json_real(2));
	json_object_set_new(event, "waits_for",
		json_string("worker 1, worker 2, worker 3, worker 4, worker 5, worker 6, "
			    "worker 7, worker 8, worker 9"));
	assert_string_equal(said_of(STDERR_FILENO, event),
		"step 3/10  loss 0.5000  acc 0.75  gap nan  "
		"a-metric-with-a-name-of-some-length-0 0  "
		"a-metric-with-a-name-of-some-length-1 1  lr 0.001  40 samples/s  "
		"? left  waits for worker 1, worker 2, worker 3, worker 4, worker 5, "
		"worker 6, worker 7, worker 8, worker 9\n");
}

/* A process that comes while the job goes back is shown to programs only. */
static void test_a_hidden_note_is_in_the_json_only(void **state)
{
	struct output plain = {0}, json = {.json = true};

	(void)state;
	for (int hidden = 0; hidden < 2; hidden++) {
		const char *text = hidden ? "worker 0 joined" : "worker 1 joined";
		json_t *event = json_pack(
			"{ss ss sb}", "event", "note", "text", text, "hidden", hidden);

		assert_int_equal(
			!strstr(said_with(&plain, STDOUT_FILENO, json_incref(event)),
				text),
			hidden);
		assert_non_null(strstr(said_with(&json, STDOUT_FILENO, event), text));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_texts_of_peers_are_one_harmless_line),
		cmocka_unit_test(test_a_text_that_was_generated_keeps_its_lines),
		cmocka_unit_test(test_json_is_printable_ascii),
		cmocka_unit_test(test_json_says_when_and_where),
		cmocka_unit_test(test_a_hidden_note_is_in_the_json_only),
		cmocka_unit_test(test_what_is_printable_stays),
		cmocka_unit_test(test_a_progress_line_has_what_is_known),
		cmocka_unit_test(test_a_progress_line_drops_what_has_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
