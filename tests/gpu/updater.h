/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA updater's suite, on the simulated driver (updater_on_fake.c) and on a GPU
 * (updater_on_device.c): the bits are the CPU's. */
#ifndef TERN_TESTS_GPU_UPDATER_H
#define TERN_TESTS_GPU_UPDATER_H

#include "tests/cmocka.h"

#include "ps/updater_cuda.h"

extern const struct tern_cuda_api *updater_api;

/* The number of cases that failed. */
int updater_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
