/* SPDX-License-Identifier: Apache-2.0 */
/* One simulated GPU for both ends of a storm, new for each seed. */
#ifndef TERN_TESTS_SYSTEM_STORM_GPU_H
#define TERN_TESTS_SYSTEM_STORM_GPU_H

#include "tests/system/storm/storm.h"

const struct storm_memory *storm_gpu_open(uint64_t seed, bool ipc);
const void *storm_gpu_api(void); /* for tern_domain_hooks.cuda_api */
void storm_gpu_close(void);      /* everything that uses it must be freed */

#endif
