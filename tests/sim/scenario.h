/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios of sim_run. Each is a function of the seed: true if all was well; *hash
 * of all that happened. */
#ifndef TERN_TESTS_SIM_SCENARIO_H
#define TERN_TESTS_SIM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

/* For tern_sim_opts.log: to stderr. */
void print_line(const char *line);

/* Two peers in a storm of requests, while connections are cut, peers stand still or die.
 */
bool scenario_storm(uint64_t seed, bool verbose, uint64_t *hash);

/* More sends than credits, both ways, received in an order of its own. */
bool scenario_crowd(uint64_t seed, bool verbose, uint64_t *hash);

/* The same with much of the memory in a simulated GPU, whose copies fail now and then. */
bool scenario_gpu_storm(uint64_t seed, bool verbose, uint64_t *hash);

/* A whole training job, while connections are cut, and workers crash or stand still: the
 * same bytes as undisturbed, as long as one of them is left. */
bool scenario_train(uint64_t seed, bool verbose, uint64_t *hash);

/* The same in async mode: what is saved is what all that are left have made of it. */
bool scenario_async(uint64_t seed, bool verbose, uint64_t *hash);

/* Either mode, while a worker hangs or a process is stopped, without any that dies. */
bool scenario_late(uint64_t seed, bool verbose, uint64_t *hash);

/* All workers but one that stands still are asked to end: the others save. */
bool scenario_leaving(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs whose parameters count: each record is applied once in every chunk, from the
 * version of its step, whatever was lost; in async mode at most once. */
bool scenario_ledger(uint64_t seed, bool verbose, uint64_t *hash);
bool scenario_async_ledger(uint64_t seed, bool verbose, uint64_t *hash);

/* Slots change hands while the news of it is late somewhere: the same ledger. */
bool scenario_handover(uint64_t seed, bool verbose, uint64_t *hash);

#endif
