/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the readers of formats share. A reader takes the unpacked bytes of a
 * file, none of which is trusted. It fills a data set, whose arrays belong to its
 * storage, or refuses with a sentence.
 */
#ifndef TERN_CLIENT_READ_H
#define TERN_CLIENT_READ_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/data/dataset.h"

/* Rows of DENSE data: either bytes, or (column, value) pairs. */
struct tern_dataset_rows {
	uint8_t *bytes;   /* [count][width], each byte in units of 1/255 */
	uint64_t *starts; /* [count + 1], indices into the next two arrays; NULL: bytes */
	uint32_t *columns; /* increasing within a row */
	float *values;
	uint8_t *labels; /* [count] */
};

/* Memory that a data set and its ranges share; freed with the last of them. */
struct tern_dataset_storage {
	atomic_uint refs;
	struct tern_dataset_rows rows;
	uint8_t *symbols;
};

/* Largest number of columns: one record as floats then takes 64 MiB. */
#define TERN_DATA_WIDTH_MAX (1u << 24)

/* About so many bytes are processed between two calls of stop(). bzip2, the slowest
 * format, unpacks about 30 MB a second. */
#define TERN_DATA_PIECE ((size_t)4 << 20)

static inline bool tern_data_stopped(const struct tern_data_file *file)
{
	return file->stop && file->stop(file->stop_arg);
}

/* Sets error->text to "PATH: ..." and returns -EINVAL. */
int tern_data_fail(struct tern_data_error *error, const char *path, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Up to 24 bytes of a file, escaped for a message. */
struct tern_data_quote {
	char text[24 * 4 + 4];
};
struct tern_data_quote tern_data_quote(const void *data, size_t bytes);

/*
 * Unpacks `file`. gzip and bzip2 are recognised by their first bytes; several streams may
 * follow each other. *plain keeps the file's path. The caller frees *owned, which is NULL
 * if the file is not packed.
 */
int tern_data_unpack(const struct tern_data_file *file, struct tern_data_file *plain,
	void **owned, struct tern_data_error *error);

/* The readers fill *dataset, which is zero except for `storage`. Errors as
 * tern_dataset_read(). */
int tern_data_read_idx(const struct tern_data_file *data,
	const struct tern_data_file *labels, struct tern_dataset *dataset,
	struct tern_data_error *error);
int tern_data_read_svmlight(const struct tern_data_file *data, uint32_t min_width,
	struct tern_dataset *dataset, struct tern_data_error *error);
int tern_data_read_text(const struct tern_data_file *data, uint32_t context,
	struct tern_dataset *dataset, struct tern_data_error *error);

/* True if the file starts as an IDX file does. */
bool tern_data_is_idx(const struct tern_data_file *data);

#endif
