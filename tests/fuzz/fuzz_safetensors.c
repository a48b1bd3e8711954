/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of saved parameters. If a file is accepted, every byte of each tensor
 * is read, and the file is read as the parameters of a model with tensors of these names. */
#include <stdlib.h>

#include "base/util.h"
#include "ps/params_file.h"
#include "tests/fuzz/fuzz.h"

#define PARAMS_MAX 16u

/* Reads the first tensors of the file as all tensors of a model. With more tensors in the file
 * they are refused by their names. */
static void read_params(const struct tern_safetensors *file,
	const struct tern_safetensor *list, size_t tensors)
{
	uint32_t count = (uint32_t)TERN_MIN(tensors, (size_t)PARAMS_MAX);
	struct tern_param params[PARAMS_MAX] = {{.name = NULL}};
	struct tern_ps_text why = {""};
	uint64_t first = 0;
	float *flat;

	for (uint32_t i = 0; i < count; i++) {
		size_t bytes = tern_dtype_bytes(list[i].shape.dtype);

		params[i].name = list[i].name;
		params[i].shape = list[i].shape;
		params[i].shape.dtype = TERN_F32;
		params[i].first = first;
		params[i].count = list[i].bytes / bytes;
		first += params[i].count;
	}
	flat = calloc(first + 1, sizeof(*flat));
	if (tern_params_file_read(file, params, count, flat, &why) < 0)
		tern_assert(memchr(why.text, 0, sizeof(why.text)) && *why.text);
	free(flat);
}

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
		read_params(file, list, count);
		tern_safetensors_free(file);
	} else {
		tern_assert(memchr(error.text, 0, sizeof(error.text)));
	}
	free(text);
	return 0;
}
