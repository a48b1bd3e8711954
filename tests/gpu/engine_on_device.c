/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of the CUDA engine (computation of gradients), on the first GPU of this
 * machine; skipped if there is none. */
#include <stdio.h>

#include "tests/gpu/engine.h"

int main(void)
{
	const char *why;

	if (tern_cuda_load(&suite.api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	if (tern_cublas_load(suite.api, &suite.blas, &why) < 0)
		print_message("without cuBLAS: %s\n", why);
	suite.scale = gpu_scale_asked_for();
	return engine_run_cases(NULL, NULL);
}
