/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A digest is a sum with one term for each element, a mixed function of its bits and its
 * number. So the loop has no chain of dependent operations, and 1 GiB takes a fraction of
 * a second. It protects against mistakes, and not against somebody who looks for values
 * with a given digest.
 */
#include "ps/given.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tern/channel.h>

#include "base/rng.h"
#include "base/util.h"

#define GOLDEN 0x9e3779b97f4a7c15ull /* the step of splitmix64's counter */

uint64_t tern_given_key(void)
{
	return tern_key("given");
}

uint64_t tern_given_digest(const float *values, uint64_t count)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &values[i], sizeof(bits));
		sum += tern_mix64(i * GOLDEN + bits);
	}
	return sum ? sum : 1;
}

uint64_t tern_given_first_wrong(const float *values, uint64_t count)
{
	uint64_t i = 0;

	while (i < count && isfinite(values[i]))
		i++;
	return i;
}

int tern_given_describe(struct tern_ps_job *job, const float *const *given, bool compare,
	struct tern_ps_text *why)
{
	for (uint32_t i = 0; i < job->param_count; i++) {
		struct tern_param *p = &job->params[i];
		uint64_t wrong;

		if (p->init != TERN_INIT_GIVEN)
			continue;
		wrong = tern_given_first_wrong(given[i], p->count);
		if (wrong < p->count) {
			snprintf(why->text, sizeof(why->text),
				"tensor %s: initial value %llu is %g: expected finite "
				"numbers",
				p->name, (unsigned long long)wrong,
				(double)given[i][wrong]);
			return -EINVAL;
		}
		p->digest = compare ? tern_given_digest(given[i], p->count) : 0;
	}
	return 0;
}

bool tern_given_any(const struct tern_ps_job *job)
{
	for (uint32_t i = 0; i < job->param_count; i++)
		if (job->params[i].init == TERN_INIT_GIVEN)
			return true;
	return false;
}

bool tern_given_next(const struct tern_ps_job *job, const struct tern_chunk *chunk,
	uint64_t from, struct tern_given_range *out)
{
	uint64_t at = TERN_MAX(from, chunk->first), end = chunk->first + chunk->count;

	*out = (struct tern_given_range){at, 0};
	if (at >= end)
		return false;
	for (uint32_t i = tern_ps_job_tensor_at(job, at); at < end; i++) {
		const struct tern_param *p = &job->params[i];
		uint64_t to = TERN_MIN(p->first + p->count, end);

		if (p->init == TERN_INIT_GIVEN)
			out->count += to - at;
		else if (out->count)
			break;
		else
			out->first = to;
		at = to;
	}
	return out->count > 0;
}
