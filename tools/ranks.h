/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out from the environment whether a launcher of somebody else (srun, mpirun,
 * torchrun) has started this process as one of several, its ranks.
 *
 * Launchers can be nested: mpirun starts its daemons through srun, and torchrun is started
 * once per host by srun or mpirun. Each one leaves its variables in the environment of
 * what it starts, so the innermost launcher counts:
 *
 *     torchrun   RANK, WORLD_SIZE, if TORCHELASTIC_RUN_ID is set
 *     Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
 *     PMI        PMI_RANK, PMI_SIZE (MPICH, Intel MPI)
 *     Slurm      SLURM_PROCID, and SLURM_STEP_NUM_TASKS or else SLURM_NTASKS, in a step
 *                that srun has started
 *     by hand    RANK, WORLD_SIZE; they must agree with a launcher above if there is one
 *
 * A shell in an allocation of salloc, and the script of sbatch, are no ranks, although
 * SLURM_NTASKS is set there: the size is that of the allocation, and no other process of
 * the kind runs. Slurm gives those no SLURM_STEP_ID, or one that is above all of srun's.
 *
 * A process that is the only one (size 1) is no rank either: it starts whole jobs, as it
 * would without a launcher.
 */
#ifndef TERN_TOOLS_RANKS_H
#define TERN_TOOLS_RANKS_H

#include "tools/options.h"

struct ranks {
	uint64_t rank, size;   /* size: 1 if this process is not one of several */
	const char *launcher;  /* for messages: "Open MPI"; NULL if size is 1 */
	const char *rank_name; /* the variables that say so */
	const char *size_name;
	bool by_hand;  /* no launcher is known: somebody has set RANK and WORLD_SIZE */
	bool one_host; /* the launcher says that all ranks are on this host */
	/* Name of this run of the launcher, for file names, from the launcher's variables and
	 * TERN_JOB. named: it tells this run from others at the same time. */
	char job[128];
	bool named;
};

/* Reads the environment. -EINVAL: values are malformed or contradict each other; `error`
 * has one line. */
int ranks_find(struct ranks *out, struct message *error);

#endif
