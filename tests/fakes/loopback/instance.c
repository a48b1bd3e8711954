/* SPDX-License-Identifier: Apache-2.0 */
/* The loopback fabric as an instance for the conformance lists: its addresses, and what
 * it can do. */
#include "tests/harness/instance.h"

#include <stdio.h>

static void address(char *out, unsigned number)
{
	static unsigned count;

	if (number == 0)
		count++;
	snprintf(out, BED_ADDRESS_MAX, "name-%u-%u", count, number);
}

static void nobody(char *out)
{
	snprintf(out, BED_ADDRESS_MAX, "nobody");
}

static const char *const malformed[] = {"", NULL};

INSTANCE(loopback) = {
	.name = "loopback",
	.fabric = "loopback",
	.can_sleep = true,
	.alone = true,
	.address = address,
	.nobody = nobody,
	.malformed = malformed,
};
