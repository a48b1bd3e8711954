/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's disks, as sim.c uses them. */
#ifndef TERN_TRANSPORT_SIM_DISK_H
#define TERN_TRANSPORT_SIM_DISK_H

#include "transport/sim/sim.h"

struct tern_sim_disk {
	struct tern_list node; /* in the simulator's list of disks */
	struct tern_list files;
	struct tern_sim_disk_opts opts;
	uint64_t used_bytes, change_count; /* change_count: files made and removed */
};

struct tern_sim_disk *tern_sim_disk_make(void);
void tern_sim_disk_destroy(struct tern_sim_disk *disk);

/*
 * Executes a file operation in two parts, between which a process may crash. The first
 * returns true if the operation has ended with it: it has failed. A write has a temporary
 * file after the first part, with a piece of its contents, or all, that the seed chooses.
 */
bool tern_sim_disk_begin(
	struct tern_sim_disk *disk, struct tern_file_op *op, struct tern_rng *rng);
void tern_sim_disk_end(struct tern_sim_disk *disk, struct tern_file_op *op);

#endif
