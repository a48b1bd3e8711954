/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of scenario_train(), for other scenarios. */
#ifndef TERN_TESTS_SYSTEM_SIM_TRAIN_H
#define TERN_TESTS_SYSTEM_SIM_TRAIN_H

#include "tests/system/sim/job.h"

/* Completes the description of a job in sync mode, whose model, clipping, number of slots
 * and number of steps (4, or 150) follow from `kind`, which is below 16; runs it, and
 * checks that it saves the bytes of an undisturbed job of one server and one worker. */
bool train_run(
	const struct tern_sim_opts *opts, struct job *j, unsigned kind, uint64_t *hash);

#endif
