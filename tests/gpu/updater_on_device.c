/* SPDX-License-Identifier: Apache-2.0 */
/* The updater's suite on the first GPU of this machine; skipped where there is none. */
#include <stdio.h>

#include "tests/gpu/updater.h"

int main(void)
{
	const char *why;

	if (tern_cuda_load(&updater_api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	return updater_run_cases(NULL, NULL);
}
