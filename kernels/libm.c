/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identifies the C math library (libm) for the fingerprint. Its functions are not
 * correctly rounded, and their results differ between versions and between processors
 * (glibc has variants for processors with FMA). So the library is identified by a digest
 * of its results, for arguments of the size that layers and optimizers use.
 */
#include <string.h>

#include "base/rng.h"
#include "kernels/variants.h"

#define ARGUMENTS 1024u

static uint64_t mixed(uint64_t digest, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return tern_mix64(digest ^ bits);
}

uint32_t tern_libm_digest(const struct tern_libm *libm)
{
	uint64_t digest = 0;

	for (uint32_t i = 0; i < ARGUMENTS; i++) {
		/* A pseudo-random number in [0, 1). */
		double x = (double)(tern_mix64(i) >> 11) / (double)(1ull << 53);

		digest = mixed(digest, libm->exp(-32 * x));
		digest = mixed(digest, libm->log(1 + 1000 * x));
		digest = mixed(digest, libm->pow(x, (double)(i + 1)));
	}
	return (uint32_t)(digest >> 32);
}
