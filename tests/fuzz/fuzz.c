/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "base/util.h"

void *fuzz_copy(const void *data, size_t bytes)
{
	void *copy = NULL;

	/* The copy is aligned to 8 bytes, as messages are. */
	if (posix_memalign(&copy, 8, bytes ? bytes : 1) != 0)
		tern_never("memory for a copy of the input");
	if (bytes)
		memcpy(copy, data, bytes);
	return copy;
}
