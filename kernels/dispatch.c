/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the tables of kernels.h once (find_out()), and chooses one for this processor.
 * Any thread may read the tables afterwards. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/variants.h"

enum { AVX512, AVX2, PORTABLE, TABLE_COUNT };

static struct tern_kernels tables[TABLE_COUNT] = {
	[AVX512] = {.name = "avx512"},
	[AVX2] = {.name = "avx2"},
	[PORTABLE] = {.name = "portable"},
};
static bool supported[TABLE_COUNT];
static char fingerprints[TABLE_COUNT][128];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_out(void)
{
	static const struct tern_libm libm = {.exp = exp, .log = log, .pow = pow};

	supported[PORTABLE] = true;
	tern_elementwise_portable(&tables[PORTABLE]);
#if defined(__x86_64__)
	supported[AVX2] = __builtin_cpu_supports("avx2");
	supported[AVX512] =
		__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
	tern_elementwise_avx2(&tables[AVX2]);
	tern_elementwise_avx512(&tables[AVX512]);
#endif
	tern_matmul_init();
	for (int i = 0; i < TABLE_COUNT; i++) {
		tern_layers_fill(&tables[i], i == PORTABLE);
		snprintf(fingerprints[i], sizeof(fingerprints[i]), "%s %s libm %08x",
			tables[i].name,
			i == PORTABLE ? TERN_MATMUL_PORTABLE : tern_matmul_name(),
			tern_libm_digest(&libm));
	}
}

const struct tern_kernels *tern_kernels_named(const char *name)
{
	pthread_once(&once, find_out);
	for (int i = 0; i < TABLE_COUNT; i++)
		if (supported[i] && strcmp(name, tables[i].name) == 0)
			return &tables[i];
	return NULL;
}

const struct tern_kernels *tern_kernels_cpu(void)
{
	const char *asked = getenv("TERN_KERNELS");
	const struct tern_kernels *k = asked ? tern_kernels_named(asked) : NULL;

	pthread_once(&once, find_out);
	for (int i = 0; !k; i++)
		if (supported[i])
			k = &tables[i];
	return k;
}

const char *tern_kernels_fingerprint(const struct tern_kernels *kernels)
{
	return fingerprints[kernels - tables];
}
