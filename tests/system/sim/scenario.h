/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios of sim_run. The seed determines all that a scenario does. It returns true
 * on success, and sets *hash to a hash of all events, to compare two runs. */
#ifndef TERN_TESTS_SYSTEM_SIM_SCENARIO_H
#define TERN_TESTS_SYSTEM_SIM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

/* To be used as tern_sim_opts.log: prints the line to stderr. */
void print_line(const char *line);

/* Two peers with hundreds of random requests, while connections are cut and a peer is
 * stalled or crashes. */
bool scenario_storm(uint64_t seed, bool verbose, uint64_t *hash);

/* More sends than there are credits (rights to send a message), in both directions,
 * received in another order. */
bool scenario_crowd(uint64_t seed, bool verbose, uint64_t *hash);

/* As scenario_storm(), or in some seeds scenario_crowd(), with much of the memory in a
 * simulated GPU whose copies sometimes fail. */
bool scenario_gpu_storm(uint64_t seed, bool verbose, uint64_t *hash);

/* Two peers that put into windows of each other (tern/window.h), get from them and notify,
 * with the disturbances of scenario_storm(), while windows are closed and made anew. */
bool scenario_windows(uint64_t seed, bool verbose, uint64_t *hash);
/* The same, with some of the memory in a simulated GPU. */
bool scenario_gpu_windows(uint64_t seed, bool verbose, uint64_t *hash);

/* A receiver that takes tensors from any of several senders (tern_recv_any) beside receives
 * from one of them, while connections are cut and a sender is stalled or crashes. */
bool scenario_any(uint64_t seed, bool verbose, uint64_t *hash);

/* A whole training job, while connections are cut, workers crash, leave, hang or are
 * stalled, and a server may crash or be stalled. If all servers and one worker are left,
 * the result must have the same bytes as without disturbance. */
bool scenario_train(uint64_t seed, bool verbose, uint64_t *hash);

/* A training job in async mode with the same disturbances. The saved parameters must be
 * those of the servers at the end; this is not checked if a worker was lost. */
bool scenario_async(uint64_t seed, bool verbose, uint64_t *hash);

/* A training job in either mode, in which a worker hangs or a process is stopped, but
 * none crashes. */
bool scenario_late(uint64_t seed, bool verbose, uint64_t *hash);

/* A training job in which worker 0 hangs, in some seeds together with server 0. Then the
 * other workers, or the last server, are asked to end: a worker that does not hang must save
 * the parameters. */
bool scenario_leaving(uint64_t seed, bool verbose, uint64_t *hash);

/* Workers are lost during the steps, and others come in their places: the result must have
 * the same bytes. */
bool scenario_rejoin(uint64_t seed, bool verbose, uint64_t *hash);
/* Jobs of scenario_session(), in sync mode and with its checks, whose workers are lost and
 * replaced as in scenario_rejoin(). Some servers have no parameters. */
bool scenario_rejoin_session(uint64_t seed, bool verbose, uint64_t *hash);
/* Workers are slow, some of them now and others later, and slots move to those that are not; some are
 * lost, and others come in their places: the result must have the same bytes. */
bool scenario_balance(uint64_t seed, bool verbose, uint64_t *hash);

/* Workers are lost before the training steps begin, and others take their places: the
 * result must have the same bytes. */
bool scenario_start(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs whose parameters count the records: each record must be applied once in every
 * chunk, from the version of its step, whatever was lost; in async mode at most once. */
bool scenario_ledger(uint64_t seed, bool verbose, uint64_t *hash);
bool scenario_async_ledger(uint64_t seed, bool verbose, uint64_t *hash);
bool scenario_ssp(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs in which simulated users compute the gradients, in place of engines; some fail,
 * hang or leave in the middle of a slot. Checked with the same counting parameters, in
 * sync or async mode. */
bool scenario_user(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs of simulated programs that train in sessions (tern/train.h), with the same
 * disturbances and checks as scenario_user(). The final parameters of all workers must be
 * those that one of them has saved. In most seeds some tensors have given initial values, and
 * workers are lost while they give them. */
bool scenario_session(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs that take snapshots and go on from them: all processes crash at once, at any instant,
 * and others begin in their place, also on a disk that is slow, full, or fails, and after the
 * newest snapshot was damaged. At each instant the newest published snapshot can be loaded.
 * The result must have the same bytes as without disturbance. */
bool scenario_snapshots(uint64_t seed, bool verbose, uint64_t *hash);
/* Jobs of scenario_snapshots() in async mode and in mode ssp. */
bool scenario_async_snapshots(uint64_t seed, bool verbose, uint64_t *hash);

/* Such jobs that lose up to six servers and three workers, one after the other, also while they go
 * back to a snapshot for another loss. Lost servers come again at other addresses. */
bool scenario_back(uint64_t seed, bool verbose, uint64_t *hash);
/* The same with sessions of programs, which stay when servers fall. */
bool scenario_back_session(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs as those two, some with followers, in which a slot of each step is left out, since its loss is no
 * number (server/omit.c). */
bool scenario_omit(uint64_t seed, bool verbose, uint64_t *hash);

/* Jobs of scenario_back() whose servers have followers (server/follower.h). Servers, followers and workers
 * fall, also both at once, and followers stand still. No step is made again unless a server is lost
 * that has no complete follower; a version that workers have is in the memory of a complete
 * follower, with the same bytes. */
bool scenario_follow(uint64_t seed, bool verbose, uint64_t *hash);

/* Such jobs in which one fault of any kind happens, and another one while the job recovers from it:
 * each pair of kinds, which the seed modulo the number of pairs chooses. */
bool scenario_pairs(uint64_t seed, bool verbose, uint64_t *hash);
/* Prints how often each pair was run and reached, so far. False: one was never reached. */
bool pairs_report(void);

/* Such jobs whose servers are removed and added again several times, with losses meanwhile. */
bool scenario_views(uint64_t seed, bool verbose, uint64_t *hash);
/* Prints how many new views the seeds have come to. False: most seeds have come to one at most. */
bool views_report(void);

/* Slots (gradients of one batch) are reassigned to another worker while a process learns
 * of it late. Checked with the same counting parameters. */
bool scenario_handover(uint64_t seed, bool verbose, uint64_t *hash);

/* A thousand peers dial one server at the same time, and reconnect at the same time. */
bool scenario_arrivals(uint64_t seed, bool verbose, uint64_t *hash);

/* Collective operations of two to eight ranks, while connections are cut, or one rank
 * crashes, stands still or does not call. Each other rank's error must name it, in time. */
bool scenario_collectives(uint64_t seed, bool verbose, uint64_t *hash);

#endif
