/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of saved parameters. If a file is accepted, every byte of each tensor
 * is read. */
#include <stdlib.h>

#include "base/util.h"
#include "ps/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	void *text = fuzz_copy(data, bytes);
	struct tern_safetensors *file;
	struct tern_ps_text error = {{0}};
	volatile uint8_t sum = 0;
	size_t count = 0;

	if (tern_safetensors_parse("file", text, bytes, &file, &error) == 0) {
		const struct tern_safetensor *list = tern_safetensors_list(file, &count);

		for (size_t i = 0; i < count; i++)
			for (uint64_t k = 0; k < list[i].bytes; k++)
				sum = (uint8_t)(sum + ((const uint8_t *)list[i].data)[k]);
		tern_safetensors_free(file);
	} else {
		tern_assert(memchr(error.text, 0, sizeof(error.text)));
	}
	free(text);
	return 0;
}
