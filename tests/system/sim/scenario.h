/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios of sim_run. Each is a function of the seed: returns true on success;
 * *hash is a hash of everything that happened. */
#ifndef TERN_TESTS_SYSTEM_SIM_SCENARIO_H
#define TERN_TESTS_SYSTEM_SIM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

/* For tern_sim_opts.log: prints to stderr. */
void print_line(const char *line);

/* Two peers in a storm of requests, while connections are cut, and peers are stalled
 * or die. */
bool scenario_storm(uint64_t seed, bool verbose, uint64_t *hash);

/* More sends than credits, in both directions, received in another order. */
bool scenario_crowd(uint64_t seed, bool verbose, uint64_t *hash);

/* The storm with much of the memory in a simulated GPU, whose copies fail now and
 * then. */
bool scenario_gpu_storm(uint64_t seed, bool verbose, uint64_t *hash);

/* A whole training job, while connections are cut, and workers crash or are stalled:
 * the same bytes as without disturbance, as long as one worker is left. */
bool scenario_train(uint64_t seed, bool verbose, uint64_t *hash);

/* The same in async mode: the saved parameters are the result of all remaining
 * workers. */
bool scenario_async(uint64_t seed, bool verbose, uint64_t *hash);

/* Either mode, while a worker hangs or a process is stopped, but none dies. */
bool scenario_late(uint64_t seed, bool verbose, uint64_t *hash);

/* All workers except one that is stalled are asked to end: the others save. */
bool scenario_leaving(uint64_t seed, bool verbose, uint64_t *hash);

/* Workers are lost before the steps begin, and others take their places: the same
 * bytes. */
bool scenario_start(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs whose parameters count: each record is applied once in every chunk, from the
 * version of its step, whatever was lost; in async mode at most once. */
bool scenario_ledger(uint64_t seed, bool verbose, uint64_t *hash);
bool scenario_async_ledger(uint64_t seed, bool verbose, uint64_t *hash);

/* Slots change hands while a process learns of it late: the same ledger. */
bool scenario_handover(uint64_t seed, bool verbose, uint64_t *hash);

/* Hundreds of peers dial one server at once, and return at once. */
bool scenario_arrivals(uint64_t seed, bool verbose, uint64_t *hash);

#endif
