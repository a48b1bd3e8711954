/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots. A history is a job of several lives: in each but the last one all processes crash
 * at once, or one server does, at an instant that the seed chooses, in most seeds while a file is
 * written. The next life has other numbers of servers and workers, and goes on from the newest
 * snapshot if there is one. In each life a clock jumps.
 *
 * In some lives servers fall, or are asked to end, and workers crash, one after the other, and the
 * others go back to a snapshot, and wait for new ones at other addresses (again.c).
 *
 * In async mode all lives have the same number of workers, and each snapshot is checked (cuts.h). The
 * last life, if it loses no worker, ends with every step of every worker in every chunk, once.
 *
 * In a quarter of the jobs only server 0 has a disk, and keeps the parts of the others.
 *
 * At each instant the newest snapshot that was ever published, or a newer one, can be loaded
 * from the disk, unless the test itself has damaged it.
 */
#include "tests/system/sim/scenario.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/system/sim/cuts.h"
#include "tests/system/sim/history.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/program.h"
#include "tests/system/sim/train.h"

#define LIVES_MAX 4u

/* ---- a life ---- */

/* The disk is full for a while, or fails. Not before the steps: then a server could not read
 * what another one can. */
static void trouble_disk(struct job *j)
{
	struct tern_sim_disk_opts *opts = tern_sim_disk_opts(history.disk);

	if (!history.faults || !j->members[0].server->running)
		return;
	opts->fail_permille = 30;
	if (opts->capacity_bytes)
		opts->capacity_bytes = history_below(20) ? opts->capacity_bytes : 0;
	else if (history_below(100) == 0)
		opts->capacity_bytes = history.disk->used_bytes + history_below(40000);
}

static bool is_time_to_crash(const struct job *j)
{
	return history.crashes && (history.disk->change_count >= history.crash_changes ||
					  tern_sim_now_ns(j->sim) >= history.crash_ns);
}

/* True if the steps have begun on all servers: one that has not heard of it waits for others. */
static bool all_run(const struct job *j)
{
	for (unsigned i = 0; i < j->servers; i++)
		if (!j->members[i].server->running)
			return false;
	return true;
}

/* All processes crash, or a server: then the others end, with an error unless a worker has
 * saved the results already. */
static void crash(struct job *j)
{
	struct member *m = &j->members[history_below(j->servers)];

	if (j->goes_back || history_below(3) || !all_run(j) || m->ended) {
		job_crash(j);
		j->goes_back = false; /* the life has ended */
		history.crashed = true;
		return;
	}
	tern_sim_crash(m->process);
	j->doomed = history.fell = true;
}

/* A worker crashes while it sends a gradient, so that its step is torn. */
static void tear_step(struct job *j)
{
	struct member *m =
		j->losses && tern_sim_dice(j->sim, 300) ? cuts_find_torn(j) : NULL;

	if (!m)
		return;
	j->losses--;
	tern_sim_crash(m->process);
}

static bool live(void *arg)
{
	struct job *j = arg;
	bool ended;

	history_look();
	if (j->async && !history.crashed && !history.fell)
		tear_step(j);
	trouble_disk(j);
	if (is_time_to_crash(j) && !history.crashed && !history.fell)
		crash(j);
	if (history.calm_instants && --history.calm_instants == 0)
		tern_sim_jump(j->members[history_below(j->count)].process,
			history_below(20 * TERN_NS_PER_MS));
	ended = job_disturb(j);
	history_look();
	return ended;
}

/* In this life the job goes back when servers fall. */
static void let_fall(struct job *j)
{
	j->goes_back = true;
	j->adds = j->sessions ? (unsigned)history_below(4) : 0;
	j->launched = j->adds && history_below(2);
	if (history_below(3) ==
		0) { /* all servers live, so the job goes on from memory */
		j->loses_all = true;
		j->losses = 2 * j->workers + (unsigned)history_below(6);
		return;
	}
	j->falls = 1 + (unsigned)history_below(6);
	j->drains = j->followed ? 0 : (unsigned)history_below(4);
	j->losses = (unsigned)history_below(4);
}

static void perform(struct job *j, const struct tern_dataset *data);

/* Gives the next life its processes. */
static void be_born(struct job *j, const struct job *first, unsigned life)
{
	struct tern_snapshot_id newest;
	unsigned count;
	bool broken = j->broken;

	*j = *first;
	j->broken = broken;
	j->generation = life;
	j->servers = 1 + (unsigned)history_below(3);
	if (!j->async)
		j->workers = 1 + (unsigned)history_below(4);
	j->losses = TERN_MIN(j->losses, j->workers - 1);
	history_keep(j);
	if (history.apart && j->servers > 1)
		j->disks[j->servers - 1] = history.other_disk;
	j->resumes =
		history_newest(&newest, &count) && !(history.apart && j->servers > 1);
	history.faults = first->perform == perform && history_below(3) == 0;
	j->goes_back = false;
	if (first->goes_back && !history.apart && !history.damaged && !history.faults)
		let_fall(j);
	history.crash_changes = history.disk->change_count + 1 + history_below(24);
	history.crash_ns = tern_sim_now_ns(j->sim) + history_below(8 * TERN_NS_PER_MS);
	if (history_below(2))
		history.crash_ns = UINT64_MAX;
	tern_sim_disk_remove(tern_sim_disk(j->sim), "result");
}

/* The last life has ended: its last step is saved, and nothing is left that is not needed. */
static void check_end(struct job *j)
{
	struct tern_file_op op = history_list();
	struct tern_snapshot_id id;
	unsigned manifests = 0;
	uint32_t part;

	if (history.published < j->plan.steps &&
		!(j->async && job_workers_left(j) < j->workers))
		history_complain("the last step is not saved", history.published);
	for (size_t at = 0; at < op.bytes; at += strlen((char *)op.data + at) + 1) {
		if (!tern_snapshot_name_read((char *)op.data + at, &id, &part))
			continue;
		manifests += part == TERN_SNAPSHOT_MANIFEST;
		if (part != TERN_SNAPSHOT_MANIFEST && !history_is_whole(id))
			history_complain("a part without a manifest is left", id.step);
	}
	if (manifests > j->snapshots.keep)
		history_complain("more are left than should be kept", manifests);
	free(op.data);
}

/* True if the seed is one of those in which only server 0 has a disk. */
static bool is_via(uint64_t seed)
{
	return tern_mix64(seed ^ 0xd15c) % 4 == 0;
}

static void check_others(struct job *j)
{
	if (j->via && !tern_list_empty(&history.other_disk->files))
		history_complain("a server without a directory has written a file", 0);
}

static void perform(struct job *j, const struct tern_dataset *data)
{
	const struct job first = *j;
	unsigned lives;

	history = (struct history){.job = j,
		.disk = tern_sim_disk_new(j->sim),
		.other_disk = tern_sim_disk_new(j->sim)};
	history.apart = history_below(16) == 0 && !j->via;
	lives = 2 + (unsigned)history_below(LIVES_MAX - 1);
	for (unsigned life = 0; life < lives && !j->broken; life++) {
		if (life > 0) {
			job_finish(j);
			if (history_below(4))
				history_damage();
		}
		be_born(j, &first, life);
		history.crashes = life + 1 < lives;
		/* Most last lives of async jobs make the steps that were lost before. */
		if (j->async && !history.crashes && history_below(4))
			j->losses = 0;
		history.crashed = history.fell = false;
		history.calm_instants = history_below(2000);
		job_start(j, data);
		tern_sim_run(j->sim, live, j, 60 * TERN_NS_PER_S);
		if (!history.crashed && !job_judge(j))
			j->broken = true;
		check_others(j);
	}
	/* A job that was done when it was resumed takes no snapshot, and removes none; one that
	 * loses a server at its end does not take its last one. */
	if (!j->has_lost && !history.faults && !history.damaged && !history.apart &&
		!j->broken && j->members[0].server->first_version < j->plan.steps)
		check_end(j);
}

/* Runs a job of one life: its servers and workers fall and come again, but never all at once. */
static void perform_back(struct job *j, const struct tern_dataset *data)
{
	const struct job first = *j;

	history = (struct history){.job = j,
		.disk = tern_sim_disk_new(j->sim),
		.other_disk = tern_sim_disk_new(j->sim)};
	be_born(j, &first, 0);
	job_start(j, data);
	tern_sim_run(j->sim, live, j, 60 * TERN_NS_PER_S);
	check_others(j);
}

static struct job back_job(uint64_t seed)
{
	return (struct job){.servers = 1,
		.workers = 1,
		.cut_permille = seed % 5 == 1 ? 50 : 0,
		.nap_permille = seed % 7 == 1 ? 20 : 0,
		.goes_back = true,
		.via = is_via(seed),
		.perform = perform_back};
}

bool scenario_back(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct job job = back_job(seed);

	return seed % 2 ? train_run(&opts, &job, (unsigned)(seed / 2 % 16), hash)
			: ledger_run(&job, seed, verbose, hash);
}

bool scenario_back_session(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct job job = back_job(seed);

	program_describe(&job, seed % 4 ? (unsigned)(seed / 4 % 128) : 0);
	program_choose_types(&job, seed / 2);
	return ledger_run(&job, seed, verbose, hash);
}

bool scenario_omit(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct job job = back_job(seed);

	job.omits = true;
	if (seed % 3 == 0) {
		program_describe(&job, seed % 4 ? (unsigned)(seed / 4 % 128) : 0);
		program_choose_types(&job, seed / 2);
	} else if (seed / 3 % 2) {
		job.followed = true;
		job.worker_timeout_ns = TERN_NS_PER_S;
	}
	return seed % 3 == 2 ? train_run(&opts, &job, (unsigned)(seed / 3 % 16), hash)
			     : ledger_run(&job, seed, verbose, hash);
}

bool scenario_follow(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct job job = back_job(seed);

	job.followed = true;
	job.worker_timeout_ns = TERN_NS_PER_S;
	return seed % 2 ? train_run(&opts, &job, (unsigned)(seed / 2 % 16), hash)
			: ledger_run(&job, seed, verbose, hash);
}

bool scenario_snapshots(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct job job = {.servers = 1,
		.workers = 1,
		.cut_permille = seed % 4 != 2 && seed % 5 == 1 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed % 7 == 1 ? 20 : 0,
		.losses = seed % 3 == 2,
		/* scenario_back_session() has sessions of programs */
		.goes_back = seed % 4 >= 2 && seed / 4 % 4 < 3,
		.via = is_via(seed),
		.perform = perform};

	if (seed % 4 < 2) {
		program_describe(&job, seed / 4 % 4 ? (unsigned)(seed / 16 % 128) : 0);
		program_choose_types(&job, seed / 2);
	}
	if (seed % 4 < 3)
		return ledger_run(&job, seed, verbose, hash);
	return train_run(&opts, &job, (unsigned)(seed / 4 % 8), hash);
}

bool scenario_async_snapshots(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct job job = {.servers = 1,
		.workers = 1 + (unsigned)(seed / 2 % 4),
		.cut_permille = seed % 4 != 2 && seed % 5 == 1 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed % 7 == 1 ? 20 : 0,
		.losses = (unsigned)(seed % 3),
		.async = true,
		.ssp = seed % 4 == 3 ? 1 + seed / 4 % 3 : 0,
		.via = is_via(seed),
		.perform = perform};

	return ledger_run(&job, seed, verbose, hash);
}
