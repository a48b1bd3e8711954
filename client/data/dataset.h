/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets: readers make them and models use them. A data set is read completely into
 * memory and never changes afterwards, so tasks on any thread may read it. Readers work on
 * bytes in memory (the environment has read the file): they are pure functions, easy to
 * test and to fuzz.
 */
#ifndef TERN_CLIENT_DATASET_H
#define TERN_CLIENT_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tern_data_kind {
	/* A record is `width` floats and a label: IDX images (scaled to 0..1), svmlight. */
	TERN_DATA_DENSE,
	/* A sequence of symbols: a record is `width` symbols, and its label is the
	 * symbol after them. */
	TERN_DATA_TEXT,
};

struct tern_dataset {
	enum tern_data_kind kind;
	uint64_t count; /* number of records */
	uint32_t width; /* DENSE: number of features; TEXT: number of context symbols */
	/* Labels are 0..class_count-1. The labels -1/+1 of svmlight become 0/1. */
	uint32_t class_count;
	/* DENSE: rows in compressed form: IDX keeps bytes, svmlight (index, value)
	 * pairs. */
	const struct tern_dataset_rows *rows;
	/* TEXT: the symbols, and the byte for each of the class_count symbols. */
	const uint8_t *symbols;
	uint8_t symbol_bytes[256];
	/* Index of record 0 in the storage, which a data set shares with its ranges:
	 * tern_dataset_range(). */
	uint64_t first;
	void *storage;
};

/* The bytes of a file, and its name for messages. */
struct tern_data_file {
	const char *path;
	const void *data;
	size_t bytes;
	/* Called several times a second while the file is processed: if it returns
	 * true, reading ends with -ECANCELED. May be NULL. */
	bool (*stop)(void *arg);
	void *stop_arg;
};

/* Why a reader refused a file, or a model its spec: "adult.trn.bz2: line 17: label 3:
 * expected -1, 0 or 1 ..." */
struct tern_data_error {
	char text[400];
};

/*
 * Reads a data set. The arguments tell its format: text (text_context > 0), IDX (with
 * labels), else svmlight; each plain, gzip or bzip2, recognised by the first bytes.
 * `min_width` is the
 * smallest width of svmlight rows (a test file may lack the last features). The files'
 * bytes may be freed afterwards.
 *
 * -EINVAL with error->text: file, place, what is there, what was expected; -ENOTSUP: this
 * build cannot unpack the file; -ENOMEM; -ECANCELED: data->stop() or labels->stop()
 * returned true.
 */
int tern_dataset_read(const struct tern_data_file *data,
	const struct tern_data_file *labels, uint32_t text_context, uint32_t min_width,
	struct tern_dataset **out, struct tern_data_error *error);

/*
 * Makes a data set of records first..first+count of `whole`. Both can be freed in any
 * order. -EINVAL: out of range; -ENOMEM.
 */
int tern_dataset_range(const struct tern_dataset *whole, uint64_t first, uint64_t count,
	struct tern_dataset **out);

void tern_dataset_free(struct tern_dataset *dataset);

/* Records in the form that models use. x for DENSE, ids for TEXT: [rows][width]. */
struct tern_batch {
	size_t rows;
	float *x;
	int32_t *ids;
	int32_t *labels; /* [rows] */
};

/* Fills `batch`, whose arrays have room for `rows`, with the records whose indices are
 * given; each index must be below count. */
void tern_dataset_batch(const struct tern_dataset *dataset, const uint64_t *records,
	size_t rows, struct tern_batch *batch);

/* Digest of the records: equal data give the same number on every machine of one byte
 * order, other data almost certainly another one. About 3 GB a second. */
uint64_t tern_dataset_digest(const struct tern_dataset *dataset);

#endif
