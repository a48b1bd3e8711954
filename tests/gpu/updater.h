/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of the CUDA updater (optimizer steps on a GPU), on the simulated driver
 * (updater_on_fake.c) and on a GPU (updater_on_device.c): results must have the same bits
 * as on the CPU. */
#ifndef TERN_TESTS_GPU_UPDATER_H
#define TERN_TESTS_GPU_UPDATER_H

#include "tests/harness/cmocka.h"

#include "ps/updater_cuda.h"
#include "tests/gpu/shared.h"

extern const struct tern_cuda_api *updater_api;
/* Size and number of cases; GPU_LARGE unless a program sets it. */
extern enum gpu_scale updater_scale;

/* Segments of a step, more of them than one call of the kernels takes, whose borders are not
 * aligned to 16 bytes. */
#define UPDATER_SEGMENTS 70u
struct updater_skips {
	struct tern_optimizer rules[2];
	struct tern_updater_segment segments[UPDATER_SEGMENTS];
};

/* Makes the segments of a chunk of `count` elements for a step: one in three is skipped, and
 * the others have one of two numbers of updates. */
void updater_skip(struct updater_skips *s, const struct tern_optimizer *optimizer,
	uint64_t count, uint64_t step);

/* Runs the cases; returns the number of cases that failed. */
int updater_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown);
/* Runs the cases of chunks in the GPU's memory; returns the number that failed. */
int updater_run_resident(CMFixtureFunction setup, CMFixtureFunction teardown);
/* Runs the cases that need the simulated driver; returns the number that failed. */
int updater_run_batches(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
