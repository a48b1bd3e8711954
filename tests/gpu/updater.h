/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of the CUDA updater, on the simulated driver (updater_on_fake.c) and on a
 * GPU (updater_on_device.c): results have the CPU's bits. */
#ifndef TERN_TESTS_GPU_UPDATER_H
#define TERN_TESTS_GPU_UPDATER_H

#include "tests/harness/cmocka.h"

#include "ps/updater_cuda.h"

extern const struct tern_cuda_api *updater_api;

/* Returns the number of cases that failed. */
int updater_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
