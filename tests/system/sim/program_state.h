/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated program, for its files: program.c (what it does) and program_results.c (what must
 * come of it). */
#ifndef TERN_TESTS_SYSTEM_SIM_PROGRAM_STATE_H
#define TERN_TESTS_SYSTEM_SIM_PROGRAM_STATE_H

#include <tern/train.h>

#include "base/util.h"
#include "tests/system/sim/program.h"

/* The tensors, in their order in the job: those of whole cache lines first, each kind in
 * the order of the names. They have the elements of the ledger, and their bounds are not
 * those of chunks. */
static const struct {
	const char *name;
	uint64_t first, count;
} tensors[] = {{"layer.1", 0, 4096}, {"bias", 4096, 900}, {"bias.rare", 4996, 100},
	{"layer.2", 5096, 5000}, {"scale", 10096, 2}, {"scale.mean", 10098, 2},
	{"table", 10100, 2188}};

#define AHEAD      6
#define EVAL_EVERY 3

#define TENSORS  TERN_ARRAY_SIZE(tensors)
#define ELEMENTS (10100u + 2188u)

/* The bit of a mask of tensors that an element belongs to. */
static inline bool is_in(unsigned mask, uint64_t element)
{
	for (unsigned k = 0; k < TENSORS; k++)
		if (element >= tensors[k].first &&
			element < tensors[k].first + tensors[k].count)
			return mask >> k & 1;
	return false;
}

struct program {
	struct tern_session *session;
	struct job *job;
	struct member *member;
	struct tern_timer timer; /* set until the program goes on */
	uint32_t ids[TENSORS];   /* of the tensors, in the order of `tensors` */
	struct tern_slot *slot;  /* the slot that it holds; NULL: none */
	struct tern_slot_info info;
	unsigned order[TENSORS], pushed; /* of the slot: order of pushes, number made */
	uint64_t digest;                 /* of the slot's parameters */
	/* An early slot, whose parameters are not all here: the digests of those tensors
	 * that were, or 0. */
	bool early;
	uint64_t seen[TENSORS];
	/* Slots that are still to be computed twice. `again`: the slot of `info`, whose
	 * parameters and gradients were those of `digest`, is to come once more. */
	uint64_t verify_left;
	bool again;
	uint64_t computed; /* slots whose results were handed in */
	bool gave;         /* a blob, in the slot that was handed in last */
	/* The slots that come, as the session said when the program got its slot, and the
	 * number of slots that the worker had at the start. */
	struct tern_slot_info ahead[AHEAD];
	int ahead_count;
	uint64_t own_slots; /* sum_of_slots() when `ahead` was said */
	/* A program that is not deterministic: the tensor with a wrong gradient, how many it
	 * has made, and whether two of one slot have been handed in. */
	unsigned odd;
	unsigned noises;
	bool caught;
	float room[ELEMENTS], final[ELEMENTS];
	float given[ELEMENTS]; /* initial values that it has, until the start */
	bool has_final;
	/* Going back: the session's worker; whether that is another one since the last slot; one
	 * more than the step of that slot; and what rolled_back() was told since then. */
	uint64_t incarnation;
	bool is_anew;
	uint64_t reached, told_from, told_to;
	uint64_t kept_by; /* incarnation of the worker whose blob was looked at */
	bool gone;        /* its process has crashed, and another one is in its place */
	/* The file with the results. */
	struct tern_file_op file;
	struct iovec parts[TENSORS + 1];
	bool saving, has_saved;
	bool has_finished; /* has called tern_session_finished(): it takes no slot any more */
};

/* The value that a worker gives for an element of a given tensor. */
static inline float value_of(const struct job *j, unsigned worker, uint64_t element)
{
	/* Some of the values are none of bf16. */
	return (float)(1 + element % 5 + (j->from_first ? 8 * worker : 0)) +
	       (float)(element % 3) / 1024;
}

/* The value of an element after an update with `count` as the sum of its gradients. */
static inline float updated(const struct job *j, float initial, float count)
{
	float scale = j->async ? 1 : 1.0f / (float)job_slots_counted(j);

	return initial - count * scale;
}

#endif
