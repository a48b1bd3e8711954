/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk with the snapshots of a simulated job, and what must hold of it: at each instant the
 * newest snapshot that was ever published, or a newer one, can be loaded, unless the test itself has
 * damaged it. There is one history at a time.
 */
#ifndef TERN_TESTS_SYSTEM_SIM_HISTORY_H
#define TERN_TESTS_SYSTEM_SIM_HISTORY_H

#include "ps/snapshot.h"
#include "tests/system/sim/job.h"
#include "transport/sim/disk.h"

#define HISTORY_DIRECTORY "snapshots"

struct history {
	struct job *job;
	struct tern_sim_disk *disk, *other_disk;
	bool faults;          /* the disk is sometimes full, or fails */
	bool apart;           /* the last server has another disk */
	uint64_t changes;     /* of the disk, when it was last looked at */
	unsigned whole_count; /* snapshots that can be loaded */
	uint64_t published;   /* the newest step that can be loaded; 0: none */
	bool crashes; /* this life ends in a crash, when the disk has changed so often, */
	uint64_t crash_changes, crash_ns; /* or at that time */
	bool crashed, damaged;
	uint64_t damaged_step;  /* of the snapshot that was damaged last */
	uint64_t calm_instants; /* until a clock jumps; 0: none does any more */
	bool fell;              /* a server has crashed, and all others must end */
};

extern struct history history;

/* A random number below n, of the simulator of the history's job. */
uint64_t history_below(uint64_t n);
/* Says what is wrong, and lets the job fail. */
void history_complain(const char *what, uint64_t step);
/* The names of the files, as TERN_FILE_LIST gives them; the caller frees op.data. */
struct tern_file_op history_list(void);
/* A file of the snapshots. NULL: it is not there. */
const void *history_contents(struct tern_snapshot_name name, size_t *bytes);
/* True if the snapshot can be loaded. */
bool history_is_whole(struct tern_snapshot_id id);
/* The newest snapshot that can be loaded, and how many can. False: there is none. */
bool history_newest(struct tern_snapshot_id *newest, unsigned *count);
/* Checks the disk, if it has changed. */
void history_look(void);
/* The job's servers, whose number is set, keep their snapshots on history.disk, at steps or times that
 * the seed chooses. */
void history_keep(struct job *j);
/* Cuts, changes or removes a file of the newest snapshot. False: there is no older one, and nothing
 * was done. */
bool history_damage(void);

#endif
