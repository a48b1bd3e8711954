/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots that were left out of their steps (tern server --on-nan skip, server/omit.c): a list in the
 * order of steps, and of slots within a step. Each slot is in it once.
 */
#ifndef TERN_PS_OMITTED_H
#define TERN_PS_OMITTED_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Most slots of a list. A job that leaves out more has something else wrong, and ends. */
#define TERN_OMITTED_MAX 10000u

struct tern_omitted_slot {
	uint64_t step; /* counted from 1: the step makes the version of this number */
	uint32_t slot;
};

struct tern_omitted { /* all zeros: empty */
	struct tern_omitted_slot *slots;
	uint32_t count, room;
};

/* Adds a slot. 1: it was added; 0: it was there; -E2BIG: the list is full; -ENOMEM. */
int tern_omitted_add(struct tern_omitted *list, struct tern_omitted_slot slot);
/* The slots of steps up to `last` as JSON: [[step, slot], ...]. NULL: there are none, or no
 * memory. */
json_t *tern_omitted_json(const struct tern_omitted *list, uint64_t last);
/* Adds the slots of such JSON; NULL: none. -EINVAL: it is malformed, or has a step beyond `last`, or a
 * slot that is not below `slots`; errors of tern_omitted_add(). */
int tern_omitted_read(
	struct tern_omitted *list, const json_t *json, uint64_t last, uint32_t slots);
void tern_omitted_fini(struct tern_omitted *list);

#endif
