/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance list of the fabrics: tests promises of transport/fabric.h, on each fabric
 * and set of options that tests/harness/meson.build names.
 */
#include "tests/harness/bed.h"

#include "base/util.h"

static const char *missing(const struct instance *instance, unsigned needs)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;
	uint32_t caps;

	bed_pair(bed, &a, &b);
	caps = link_caps(a);
	bed_free(bed);
	if ((needs & NEEDS_PUT) && !(caps & TERN_CAP_PUT))
		return "no put";
	if ((needs & NEEDS_GET) && !(caps & TERN_CAP_GET))
		return "no get";
	if ((needs & NEEDS_PEEK) && !(caps & TERN_CAP_PEEK))
		return "no peek";
	if ((needs & NEEDS_LIES) && instance->world_new)
		return "nobody lies in the simulator";
	if ((needs & (NEEDS_LIES | NEEDS_GUARD)) && (caps & TERN_CAP_UNGUARDED))
		return "regions are kept by agreement, not by the fabric";
	if ((needs & NEEDS_SLEEP) && !instance->can_sleep)
		return "nothing to sleep on";
	if ((needs & NEEDS_PROCESS) && (instance->alone || instance->world_new))
		return "no second process";
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct conformance_test *const lists[] = {conformance_messages,
		conformance_ends, conformance_memory, conformance_regions,
		conformance_sleep, conformance_death};

	return conformance_main(argc, argv, lists, TERN_ARRAY_SIZE(lists), missing);
}
