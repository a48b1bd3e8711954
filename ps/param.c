/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/param.h"

#include <string.h>

#include "base/rng.h"

/* "param": separates this stream from other uses of the seed. */
#define STREAM 0x706172616dull

void tern_param_init(const struct tern_param *param, uint64_t seed, uint32_t index,
	uint64_t first, uint64_t count, float *out)
{
	switch (param->init) {
	case TERN_INIT_ZERO:
		memset(out, 0, count * sizeof(*out));
		return;
	case TERN_INIT_UNIFORM:
		for (uint64_t i = 0; i < count; i++) {
			float u = tern_unit_f32(
				tern_rng_at(seed, STREAM, index, first + i));

			out[i] = (2.0f * u - 1.0f) * param->scale;
		}
		return;
	}
}
