/* SPDX-License-Identifier: Apache-2.0 */
/* See conformance_main() in bed.h: runs lists of tests on one instance. */
#include "tests/harness/bed.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tern-config.h"

#define TESTS_MAX 192u

struct row {
	const struct conformance_test *test;
	const struct instance *instance;
	const char *(*missing)(const struct instance *instance, unsigned needs);
};

static void row_run(void **state)
{
	const struct row *row = *state;
	const char *why = row->missing(row->instance, row->test->needs);

	if (why) {
		print_message("skipped: %s\n", why);
		skip();
	}
	row->test->run(row->instance);
}

pid_t conformance_spawn(const struct instance *instance, int in, int out)
{
	char in_text[16], out_text[16];
	pid_t pid;

	snprintf(in_text, sizeof(in_text), "%d", in);
	snprintf(out_text, sizeof(out_text), "%d", out);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		execl("/proc/self/exe", "conformance", instance->name, "--child", in_text,
			out_text, (char *)NULL);
		_exit(4);
	}
	return pid;
}

static int usage(const char *program)
{
	fprintf(stderr, "usage: %s INSTANCE [FILTER|PART/PARTS]\ninstances:", program);
	for (const struct instance *i = instance_first(); i; i = i->next)
		fprintf(stderr, " %s", i->name);
	fprintf(stderr,
		"\nand each of them with -gpu, -gpu-a, -gpu-b, -gpu-staged, -ipc, "
		"-ipc-a, -ipc-host or -address appended\n");
	return 2;
}

/* True if `text` is a part such as "2/3", the second of three. Each of three parts has
 * every third test, so that all parts take about as long. */
static bool is_part(const char *text, unsigned *part, unsigned *parts)
{
	char behind;

	return sscanf(text, "%u/%u%c", part, parts, &behind) == 2 && *part >= 1 &&
	       *part <= *parts;
}

int conformance_main(int argc, char **argv, const struct conformance_test *const lists[],
	size_t list_count,
	const char *(*missing)(const struct instance *instance, unsigned needs))
{
	static struct CMUnitTest tests[TESTS_MAX];
	static struct row rows[TESTS_MAX];
	const struct instance *instance = NULL;
	const char *why;
	unsigned part = 1, parts = 1;
	const char *pattern = "*";
	size_t count = 0, seen = 0;

	if (argc > 1)
		instance = instance_find(argv[1], strlen(argv[1]));
#if TERN_HAVE_CUDA
	if (!instance && argc > 1)
		instance = conformance_with_gpus(argv[1]);
#endif
	if (!instance)
		return usage(argv[0]);
	why = bed_unavailable(instance);
	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	if (argc == 5 && strcmp(argv[2], "--child") == 0)
		conformance_child(instance, atoi(argv[3]), atoi(argv[4]));
	if (argc > 2 && !is_part(argv[2], &part, &parts))
		pattern = argv[2];
	for (size_t l = 0; l < list_count; l++) {
		for (const struct conformance_test *test = lists[l]; test->name; test++) {
			if (seen++ % parts != part - 1 || fnmatch(pattern, test->name, 0))
				continue;
			tern_assert(count < TESTS_MAX);
			rows[count] = (struct row){test, instance, missing};
			tests[count] = (struct CMUnitTest){.name = test->name,
				.test_func = row_run,
				.initial_state = &rows[count]};
			count++;
		}
	}
	if (count == 0) {
		fprintf(stderr, "no test is named like %s\n", pattern);
		return 2;
	}
	/* Called directly, since cmocka's public macro takes the count from an array of
	 * fixed size. */
	return _cmocka_run_group_tests(instance->name, tests, count, NULL, NULL);
}
