/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of the CUDA updater (optimizer steps), on the first GPU of this machine;
 * skipped if there is none. */
#include <stdio.h>

#include "tests/gpu/updater.h"

int main(void)
{
	const char *why;

	if (tern_cuda_load(&updater_api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	updater_scale = gpu_scale_asked_for();
	return updater_run_cases(NULL, NULL) + updater_run_resident(NULL, NULL);
}
