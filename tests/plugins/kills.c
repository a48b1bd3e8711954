/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/kills.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned number(const char *name, unsigned otherwise, unsigned least)
{
	const char *text = getenv(name);
	unsigned long value;

	if (!text)
		return otherwise;
	value = strtoul(text, NULL, 10);
	if (*text && strspn(text, "0123456789") == strlen(text) && value >= least &&
		value <= 1000000)
		return (unsigned)value;
	fprintf(stderr, "%s=%s: expected a number from %u to 1000000\n", name, text,
		least);
	exit(2);
}

unsigned kills_count(void)
{
	return number("TERN_PLUGIN_KILLS", 20, 1);
}

uint64_t kills_seed(void)
{
	return number("TERN_PLUGIN_SEED", 7, 0);
}

void kills_tell(unsigned count)
{
	printf("# %u processes killed, seed %llu\n", count,
		(unsigned long long)kills_seed());
	fflush(stdout);
}
