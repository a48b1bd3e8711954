/* SPDX-License-Identifier: Apache-2.0 */
/* The results of jobs of simulated programs, and what they must be. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/system/sim/bf16_numbers.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/program_state.h"
#include "tests/system/sim/rare.h"

/* ---- given initial values ---- */

/* The worker whose values the job began with, as far as the results show that. */
static unsigned giver(const struct job *j)
{
	const float *result = job_result(j);

	for (uint64_t i = 0; result && j->from_first && i < ELEMENTS; i++)
		if (is_in(j->given, i) && !ledger_counts(i) && !rare_has(i))
			return (unsigned)(result[i] - 1) / 8;
	return 0;
}

static float initial(const struct job *j, uint64_t element)
{
	static const struct job *of;
	static unsigned worker;

	if (element == 0 || of != j)
		worker = giver(j);
	of = j;
	return is_in(j->given, element) ? value_of(j, worker, element) : 0;
}

/* Checks the elements that no gradient changes: all of them have the values of one worker,
 * and a worker is passed over only if it was lost. */
static bool began_right(const struct job *j)
{
	const float *result = job_result(j);
	unsigned lost = j->workers - job_workers_left(j);

	for (uint64_t i = 0; result && i < ELEMENTS; i++) {
		if (result[i] == initial(j, i) || ledger_counts(i) || rare_has(i))
			continue;
		fprintf(stderr, "program: element %u ends as %g, and began as %g\n",
			(unsigned)i, (double)result[i], (double)initial(j, i));
		return false;
	}
	return result && (giver(j) <= lost);
}

/* Checks that the gradients were rounded to the numbers that they were made from: the
 * results have the bits of a job whose gradients are not rounded. */
static bool rounded_right(const struct job *j)
{
	const float *result = job_result(j);

	for (uint64_t i = 0; result && i < ELEMENTS; i++) {
		float scale = j->async ? 1 : 1.0f / (float)job_slots_counted(j);
		float count = roundf((initial(j, i) - result[i]) / scale);

		if (rare_has(i) || result[i] == updated(j, initial(j, i), count))
			continue;
		fprintf(stderr, "program: element %u ends as %.9g, not %.9g\n",
			(unsigned)i, (double)result[i],
			(double)updated(j, initial(j, i), count));
		return false;
	}
	return result;
}

/* ---- jobs of programs ---- */

/* Sync mode: all workers that have reached the end have the parameters that were
 * saved. */
static bool all_have_the_result(const struct job *j)
{
	const float *result = job_result(j);

	for (unsigned i = j->servers; result && i < j->count && !j->async; i++) {
		const struct program *p = j->members[i].program;

		if (!p->has_final || memcmp(p->final, result, sizeof(p->final)) == 0)
			continue;
		fprintf(stderr, "program: member %u ended with other parameters\n", i);
		return false;
	}
	return result && (!j->given || began_right(j)) && rounded_right(j) &&
	       rare_are_right(j);
}

void program_choose_types(struct job *j, uint64_t seed)
{
	uint64_t random = tern_mix64(seed);
	unsigned type = random % 4; /* push: 2, pull: 1 */

	for (unsigned k = 0; k < TENSORS; k++) {
		if (k == 1 && !j->async) /* the first one that is not of whole lines */
			type = 0;
		if (k > 0 && !j->async && random >> (2 * k) & 1)
			type = TERN_MIN(type + 1, 3u);
		j->push_bf16 |= (type >> 1) << k;
		j->pull_bf16 |= (type & 1) << k;
	}
}

void program_describe(struct job *j, unsigned given)
{
	j->sessions = true;
	j->given = given;
	j->initial = initial;
	j->apart = rare_has;
	j->also = all_have_the_result;
}
