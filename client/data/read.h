/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the readers share. Each reader takes the plain bytes of a file, of which nothing
 * is trusted, and fills a data set whose arrays hang on its storage, or refuses with a
 * sentence.
 */
#ifndef TERN_CLIENT_READ_H
#define TERN_CLIENT_READ_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/data/dataset.h"

/* Rows of DENSE: either bytes, or (column, value) pairs. */
struct tern_dataset_rows {
	uint8_t *bytes;    /* [count][width], each a 255th */
	uint64_t *starts;  /* [count + 1], into the two below; NULL: it is bytes */
	uint32_t *columns; /* increasing within a row */
	float *values;
	uint8_t *labels; /* [count] */
};

/* What a data set and its ranges share; freed with the last of them. */
struct tern_dataset_storage {
	atomic_uint refs;
	struct tern_dataset_rows rows;
	uint8_t *symbols;
};

/* Columns of the widest row, and so what one record may take as floats: 64 MiB. */
#define TERN_DATA_WIDTH_MAX (1u << 24)

/* "PATH: ..." into error->text; -EINVAL. */
int tern_data_fail(struct tern_data_error *error, const char *path, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Up to 24 bytes of a file as they can be shown in a message. */
struct tern_data_quote {
	char text[24 * 4 + 4];
};
struct tern_data_quote tern_data_quote(const void *data, size_t bytes);

/*
 * What is in `file` when it is unpacked: gzip and bzip2 are told by their first bytes,
 * also several streams one behind the other. *plain has the file's path; *owned is to be
 * freed, and NULL if the file is plain already.
 */
int tern_data_unpack(const struct tern_data_file *file, struct tern_data_file *plain,
	void **owned, struct tern_data_error *error);

/* They fill *dataset, all zero but for `storage`. Errors as tern_dataset_read. */
int tern_data_read_idx(const struct tern_data_file *data,
	const struct tern_data_file *labels, struct tern_dataset *dataset,
	struct tern_data_error *error);
int tern_data_read_svmlight(const struct tern_data_file *data, uint32_t min_width,
	struct tern_dataset *dataset, struct tern_data_error *error);
int tern_data_read_text(const struct tern_data_file *data, uint32_t context,
	struct tern_dataset *dataset, struct tern_data_error *error);

/* Does it start as an IDX file does? */
bool tern_data_is_idx(const struct tern_data_file *data);

#endif
