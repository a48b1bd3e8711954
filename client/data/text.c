/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain text for the character model. A symbol is a byte that occurs in the text; symbols
 * are numbered in the order of the bytes' values, so the alphabet depends only on which
 * bytes occur. Record i is symbols i..i+context-1, and its label symbol i+context.
 */
#include <errno.h>

#include "base/util.h"
#include "client/data/read.h"

/* Sets seen[b] for each byte b that occurs in the text. */
static int find_bytes(const struct tern_data_file *data, bool seen[256])
{
	const uint8_t *bytes = data->data;

	for (size_t at = 0, end; at < data->bytes; at = end) {
		end = TERN_MIN(at + TERN_DATA_PIECE, data->bytes);
		for (size_t i = at; i < end; i++)
			seen[bytes[i]] = true;
		if (tern_data_stopped(data))
			return -ECANCELED;
	}
	return 0;
}

static int map_bytes(
	const struct tern_data_file *data, const uint8_t symbol_of[256], uint8_t *symbols)
{
	const uint8_t *bytes = data->data;

	for (size_t at = 0, end; at < data->bytes; at = end) {
		end = TERN_MIN(at + TERN_DATA_PIECE, data->bytes);
		for (size_t i = at; i < end; i++)
			symbols[i] = symbol_of[bytes[i]];
		if (tern_data_stopped(data))
			return -ECANCELED;
	}
	return 0;
}

int tern_data_read_text(const struct tern_data_file *data, uint32_t context,
	struct tern_dataset *dataset, struct tern_data_error *error)
{
	struct tern_dataset_storage *storage = dataset->storage;
	uint8_t symbol_of[256] = {0};
	bool seen[256] = {false};
	int status;

	if (data->bytes <= context)
		return tern_data_fail(error, data->path,
			"%zu bytes of text: expected more than the %u of context",
			data->bytes, context);
	storage->symbols = malloc(data->bytes);
	if (!storage->symbols)
		return -ENOMEM;
	status = find_bytes(data, seen);
	if (status)
		return status;
	for (unsigned byte = 0; byte < 256; byte++) {
		if (!seen[byte])
			continue;
		symbol_of[byte] = (uint8_t)dataset->class_count;
		dataset->symbol_bytes[dataset->class_count++] = (uint8_t)byte;
	}
	status = map_bytes(data, symbol_of, storage->symbols);
	if (status)
		return status;
	dataset->kind = TERN_DATA_TEXT;
	dataset->count = data->bytes - context;
	dataset->width = context;
	dataset->symbols = storage->symbols;
	return 0;
}
