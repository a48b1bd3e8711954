/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which mathematical library this is, for the fingerprint. Its functions are not rounded
 * correctly, and not the same in every version or on every processor (glibc has one for
 * those with FMA). So they are known by what they return: for arguments of the size that
 * layers and optimizers use.
 */
#include <string.h>

#include "base/rng.h"
#include "kernels/internal.h"

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
		/* In [0, 1). */
		double x = (double)(tern_mix64(i) >> 11) / (double)(1ull << 53);

		digest = mixed(digest, libm->exp(-32 * x));
		digest = mixed(digest, libm->log(1 + 1000 * x));
		digest = mixed(digest, libm->pow(x, (double)(i + 1)));
	}
	return (uint32_t)(digest >> 32);
}
