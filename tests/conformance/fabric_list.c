/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance list of the fabrics: one program, run once per instance.
 *
 *     conformance_fabric INSTANCE [FILTER]
 *
 * Exit 77 if this machine or this build does not have the fabric. Tests of what a fabric
 * has no capability for are skipped, each on a line of its own, and counted by cmocka.
 */
#include "tests/conformance/bed.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"

static const struct conformance_test *const lists[] = {conformance_messages,
	conformance_ends, conformance_memory, conformance_regions, conformance_sleep,
	conformance_death};

struct row {
	const struct conformance_test *test;
	const struct instance *instance;
};

static void row_run(void **state)
{
	const struct row *row = *state;
	const struct instance *instance = row->instance;
	unsigned needs = row->test->needs;
	struct link *a, *b;
	struct bed *bed;
	uint32_t caps;

	bed = bed_new(instance);
	bed_pair(bed, &a, &b);
	caps = link_caps(a);
	if ((needs & NEEDS_PUT) && !(caps & TERN_CAP_PUT))
		SKIP(bed, "no put");
	if ((needs & NEEDS_GET) && !(caps & TERN_CAP_GET))
		SKIP(bed, "no get");
	if ((needs & NEEDS_PEEK) && !(caps & TERN_CAP_PEEK))
		SKIP(bed, "no peek");
	if ((needs & NEEDS_SLEEP) && !instance->can_sleep)
		SKIP(bed, "nothing to sleep on, no second process");
	bed_free(bed);
	row->test->run(instance);
}

int main(int argc, char **argv)
{
	static struct CMUnitTest tests[128];
	static struct row rows[128];
	const struct instance *instance = NULL;
	const char *why;
	size_t count = 0;

	for (unsigned i = 0; argc > 1 && conformance_instances[i]; i++)
		if (strcmp(conformance_instances[i]->name, argv[1]) == 0)
			instance = conformance_instances[i];
	if (!instance) {
		fprintf(stderr, "usage: %s INSTANCE [FILTER]\ninstances:", argv[0]);
		for (unsigned i = 0; conformance_instances[i]; i++)
			fprintf(stderr, " %s", conformance_instances[i]->name);
		fprintf(stderr, "\n");
		return 2;
	}
	why = bed_unavailable(instance);
	if (why) {
		printf("skipped: all of %s: %s\n", instance->name, why);
		return 77;
	}
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	for (unsigned l = 0; l < TERN_ARRAY_SIZE(lists); l++) {
		for (const struct conformance_test *test = lists[l]; test->name; test++) {
			tern_assert(count < TERN_ARRAY_SIZE(tests));
			rows[count] = (struct row){test, instance};
			tests[count] = (struct CMUnitTest){.name = test->name,
				.test_func = row_run,
				.initial_state = &rows[count]};
			count++;
		}
	}
	/* The macro wants an array whose length it can see. */
	return _cmocka_run_group_tests(instance->name, tests, count, NULL, NULL);
}
