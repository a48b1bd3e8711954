/* SPDX-License-Identifier: Apache-2.0 */
/* One simulated GPU for both ends of a storm, new for each seed. */
#ifndef TERN_TESTS_SYSTEM_STORM_GPU_H
#define TERN_TESTS_SYSTEM_STORM_GPU_H

#include "tests/system/storm/storm.h"

const struct storm_memory *storm_gpu_open(uint64_t seed, bool ipc);
const void *storm_gpu_api(void); /* to be set as tern_domain_hooks.cuda_api */
/* All memory and domains that use the GPU must be freed before. */
void storm_gpu_close(void);

#endif
