/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "base/util.h"

void *fuzz_copy(const void *data, size_t bytes)
{
	void *copy = NULL;

	/* Messages are aligned to 8 bytes. */
	if (posix_memalign(&copy, 8, bytes ? bytes : 1) != 0)
		tern_never("memory for a copy of the input");
	if (bytes)
		memcpy(copy, data, bytes);
	return copy;
}
