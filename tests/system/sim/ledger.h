/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for scenarios whose parameters count how often each record was used: see
 * ledger.c. */
#ifndef TERN_TESTS_SYSTEM_SIM_LEDGER_H
#define TERN_TESTS_SYSTEM_SIM_LEDGER_H

#include "client/compute.h"
#include "client/models/layers.h"
#include "tests/system/sim/job.h"

#define LEDGER_CHUNKS 3u

const struct tern_dataset *ledger_data(void);
struct tern_model ledger_model(void);
/* Description of a job of five steps, whose batches have one record. */
struct tern_ps_job ledger_plan(uint32_t slots);
/* To be set as job.engine, with the name of a model as engine_arg. */
struct tern_engine *ledger_engine(void *model, size_t rows);
/* Computes a gradient, as the engine does. */
int ledger_count_records(struct tern_engine *engine,
	const struct tern_engine_params *params, float *grads,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result);
/* Async mode: how many steps of one worker the chunk has in the parameters `w`. They are
 * applied in order. */
uint64_t ledger_steps_in(
	const struct job *j, const float *w, unsigned worker, unsigned chunk);
/* Async mode: true if the chunk, whose parameters begin at `chunk`, has the first `steps` steps of the
 * worker once each, and no other of it. */
bool ledger_has_steps(
	const struct job *j, const float *chunk, unsigned worker, uint64_t steps);
/* Writes to `gradient` the elements first to first + count - 1 of the gradient of a slot
 * that has this one record, computed from this version. */
void ledger_fill(uint64_t record, uint64_t version, float *gradient, uint64_t first,
	uint64_t count);
/* True if the gradient of some record may change the element. */
bool ledger_counts(uint64_t element);
/* Checks that every record was applied in every chunk as often as it should be; prints
 * the first error. */
bool ledger_is_right(const struct job *j);
/* Completes the description of a job, runs the job on a rough network, and checks it. */
bool ledger_run(struct job *job, uint64_t seed, bool verbose, uint64_t *hash);

#endif
