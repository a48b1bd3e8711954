/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for scenarios whose parameters are a ledger: see ledger.c. */
#ifndef TERN_TESTS_SYSTEM_SIM_LEDGER_H
#define TERN_TESTS_SYSTEM_SIM_LEDGER_H

#include "client/models/layers.h"
#include "tests/system/sim/job.h"

const struct tern_dataset *ledger_data(void);
struct tern_model ledger_model(void);
/* Five steps of batches of one record. */
struct tern_ps_job ledger_plan(uint32_t slots);
/* For job.engine; `model` is its argument. */
struct tern_engine *ledger_engine(void *model, size_t rows);
/* Checks that every record was applied as often as it should be, in every chunk;
 * prints errors. */
bool ledger_is_right(const struct job *j);

#endif
