/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance list of the collectives: checks what include/tern/group.h promises, with
 * up to eight ranks in one process, on the fabrics that tests/harness/meson.build names. */
#include "tests/group/ranks.h"

#include "base/util.h"

static const char *missing(const struct instance *instance, unsigned needs)
{
	(void)instance;
	(void)needs;
	return NULL;
}

_Noreturn void conformance_child(const struct instance *instance, int in, int out)
{
	(void)instance;
	(void)in;
	(void)out;
	tern_never("this list starts no second process");
}

int main(int argc, char **argv)
{
	static const struct conformance_test *const lists[] = {
		group_results, group_failures};

	return conformance_main(argc, argv, lists, TERN_ARRAY_SIZE(lists), missing);
}
