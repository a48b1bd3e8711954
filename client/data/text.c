/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain text for the character model: a symbol is a byte that occurs, numbered in the
 * order of the bytes' values, so the alphabet depends on which bytes occur and on nothing
 * else. Record i is symbols i..i+context-1, its label symbol i+context.
 */
#include <errno.h>

#include "base/util.h"
#include "client/data/read.h"

int tern_data_read_text(const struct tern_data_file *data, uint32_t context,
	struct tern_dataset *dataset, struct tern_data_error *error)
{
	struct tern_dataset_storage *storage = dataset->storage;
	const uint8_t *bytes = data->data;
	uint8_t symbol_of[256] = {0};
	bool seen[256] = {false};

	if (data->bytes <= context)
		return tern_data_fail(error, data->path,
			"%zu bytes of text: expected more than the %u of context",
			data->bytes, context);
	storage->symbols = malloc(data->bytes);
	if (!storage->symbols)
		return -ENOMEM;
	for (size_t i = 0; i < data->bytes; i++)
		seen[bytes[i]] = true;
	for (unsigned byte = 0; byte < 256; byte++) {
		if (!seen[byte])
			continue;
		symbol_of[byte] = (uint8_t)dataset->class_count;
		dataset->symbol_bytes[dataset->class_count++] = (uint8_t)byte;
	}
	for (size_t i = 0; i < data->bytes; i++)
		storage->symbols[i] = symbol_of[bytes[i]];
	dataset->kind = TERN_DATA_TEXT;
	dataset->count = data->bytes - context;
	dataset->width = context;
	dataset->symbols = storage->symbols;
	return 0;
}
