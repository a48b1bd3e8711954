/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets: chooses the reader, and hands out records. The arrays never change after
 * reading. A data set and its ranges share them by reference counts, so ranges can be
 * read and freed on any thread.
 */
#include "client/data/dataset.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "client/data/read.h"

int tern_data_fail(struct tern_data_error *error, const char *path, const char *fmt, ...)
{
	va_list ap;
	int used = snprintf(error->text, sizeof(error->text), "%.200s: ", path);

	va_start(ap, fmt);
	vsnprintf(error->text + used, sizeof(error->text) - (size_t)used, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

struct tern_data_quote tern_data_quote(const void *data, size_t bytes)
{
	const unsigned char *p = data;
	struct tern_data_quote quote;
	char *out = quote.text;

	for (size_t i = 0; i < TERN_MIN(bytes, (size_t)24); i++) {
		if (p[i] >= ' ' && p[i] <= '~' && p[i] != '\\')
			*out++ = (char)p[i];
		else
			out += sprintf(out, "\\x%02x", p[i]);
	}
	strcpy(out, bytes > 24 ? "..." : "");
	return quote;
}

static int read_plain(const struct tern_data_file *data,
	const struct tern_data_file *labels, uint32_t text_context, uint32_t min_width,
	struct tern_dataset *dataset, struct tern_data_error *error)
{
	if (text_context > 0)
		return tern_data_read_text(data, text_context, dataset, error);
	if (labels)
		return tern_data_read_idx(data, labels, dataset, error);
	if (tern_data_is_idx(data))
		return tern_data_fail(error, data->path,
			"this is an IDX file: its labels are in a file of their own, "
			"which was not given");
	return tern_data_read_svmlight(data, min_width, dataset, error);
}

static struct tern_dataset *new_dataset(void)
{
	struct tern_dataset *dataset = calloc(1, sizeof(*dataset));
	struct tern_dataset_storage *storage = calloc(1, sizeof(*storage));

	if (!dataset || !storage) {
		free(dataset);
		free(storage);
		return NULL;
	}
	atomic_init(&storage->refs, 1);
	dataset->storage = storage;
	return dataset;
}

int tern_dataset_read(const struct tern_data_file *data,
	const struct tern_data_file *labels, uint32_t text_context, uint32_t min_width,
	struct tern_dataset **out, struct tern_data_error *error)
{
	void *TERN_CLEANUP(tern_cleanup_free) owned_data = NULL;
	void *TERN_CLEANUP(tern_cleanup_free) owned_labels = NULL;
	struct tern_data_file plain_data, plain_labels;
	struct tern_dataset *dataset;
	int status;

	error->text[0] = '\0';
	if (labels && text_context)
		return tern_data_fail(
			error, labels->path, "a text has no file of labels");
	status = tern_data_unpack(data, &plain_data, &owned_data, error);
	if (!status && labels)
		status = tern_data_unpack(labels, &plain_labels, &owned_labels, error);
	if (status)
		return status;
	dataset = new_dataset();
	if (!dataset)
		return -ENOMEM;
	status = read_plain(&plain_data, labels ? &plain_labels : NULL, text_context,
		min_width, dataset, error);
	if (status) {
		tern_dataset_free(dataset);
		return status;
	}
	*out = dataset;
	return 0;
}

int tern_dataset_range(const struct tern_dataset *whole, uint64_t first, uint64_t count,
	struct tern_dataset **out)
{
	struct tern_dataset_storage *storage = whole->storage;
	struct tern_dataset *dataset;

	if (first > whole->count || count > whole->count - first)
		return -EINVAL;
	dataset = malloc(sizeof(*dataset));
	if (!dataset)
		return -ENOMEM;
	*dataset = *whole;
	dataset->first = whole->first + first;
	dataset->count = count;
	atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
	*out = dataset;
	return 0;
}

void tern_dataset_free(struct tern_dataset *dataset)
{
	struct tern_dataset_storage *storage;

	if (!dataset)
		return;
	storage = dataset->storage;
	free(dataset);
	/* Acquire and release order: the thread that frees the storage does so after
	 * all others have read it. */
	if (atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) != 1)
		return;
	free(storage->rows.bytes);
	free(storage->rows.starts);
	free(storage->rows.columns);
	free(storage->rows.values);
	free(storage->rows.labels);
	free(storage->symbols);
	free(storage);
}

static void take_dense(const struct tern_dataset *dataset, uint64_t record, float *x)
{
	const struct tern_dataset_rows *rows = dataset->rows;

	if (!rows->starts) {
		const uint8_t *bytes = rows->bytes + record * dataset->width;

		for (uint32_t j = 0; j < dataset->width; j++)
			x[j] = (float)bytes[j] / 255.0f;
		return;
	}
	memset(x, 0, dataset->width * sizeof(*x));
	for (uint64_t k = rows->starts[record]; k < rows->starts[record + 1]; k++)
		x[rows->columns[k]] = rows->values[k];
}

void tern_dataset_batch(const struct tern_dataset *dataset, const uint64_t *records,
	size_t rows, struct tern_batch *batch)
{
	size_t width = dataset->width;

	batch->rows = rows;
	for (size_t i = 0; i < rows; i++) {
		uint64_t record = dataset->first + records[i];

		tern_assert(records[i] < dataset->count);
		if (dataset->kind == TERN_DATA_DENSE) {
			take_dense(dataset, record, batch->x + i * width);
			batch->labels[i] = dataset->rows->labels[record];
			continue;
		}
		for (size_t j = 0; j < width; j++)
			batch->ids[i * width + j] = dataset->symbols[record + j];
		batch->labels[i] = dataset->symbols[record + width];
	}
}

/* ---- the digest ---- */

/* Like FNV-1a, but over words instead of bytes, and with another factor. The high half is
 * also XORed into the low half: otherwise two changed sign bits could cancel each
 * other. */
static uint64_t digest_word(uint64_t digest, uint64_t word)
{
	digest = (digest ^ word) * 0x9e3779b97f4a7c15ull;
	return digest ^ digest >> 32;
}

static uint64_t digest_bytes(uint64_t digest, const void *data, uint64_t bytes)
{
	const char *p = data;
	uint64_t word = 0;

	for (; bytes >= sizeof(word); bytes -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		digest = digest_word(digest, word);
	}
	word = 0;
	if (bytes)
		memcpy(&word, p, bytes);
	return digest_word(digest, word);
}

static uint64_t digest_rows(uint64_t digest, const struct tern_dataset *dataset)
{
	const struct tern_dataset_rows *rows = dataset->rows;
	uint64_t first = dataset->first, count = dataset->count, from, pairs;

	digest = digest_bytes(digest, rows->labels + first, count);
	if (!rows->starts)
		return digest_bytes(digest, rows->bytes + first * dataset->width,
			count * dataset->width);
	from = rows->starts[first];
	pairs = rows->starts[first + count] - from;
	/* Digests the lengths of rows, not their starts, because the starts depend on the
	 * records before the range. */
	for (uint64_t i = first; i < first + count; i++)
		digest = digest_word(digest, rows->starts[i + 1] - rows->starts[i]);
	if (!pairs)
		return digest; /* columns and values may be NULL */
	digest = digest_bytes(digest, rows->columns + from, pairs * sizeof(uint32_t));
	return digest_bytes(digest, rows->values + from, pairs * sizeof(float));
}

uint64_t tern_dataset_digest(const struct tern_dataset *dataset)
{
	uint64_t digest = digest_word(dataset->kind, dataset->count);

	digest = digest_word(digest, dataset->width);
	digest = digest_word(digest, dataset->class_count);
	if (dataset->kind == TERN_DATA_DENSE)
		return digest_rows(digest, dataset);
	digest = digest_bytes(digest, dataset->symbol_bytes, dataset->class_count);
	return digest_bytes(digest, dataset->symbols + dataset->first,
		dataset->count ? dataset->count + dataset->width : 0);
}
