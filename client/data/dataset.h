/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data sets: what the readers make and the models eat. A data set is read whole into
 * memory and never changes afterwards, so jobs on any thread may read it. Readers work on
 * bytes that are in memory already (the environment read the file): pure functions, easy
 * to test and to fuzz.
 */
#ifndef TERN_CLIENT_DATASET_H
#define TERN_CLIENT_DATASET_H

#include <stddef.h>
#include <stdint.h>

enum tern_data_kind {
	TERN_DATA_DENSE, /* width floats and a label: IDX images (scaled to 0..1),
			    svmlight */
	TERN_DATA_TEXT,  /* a sequence of symbols: a record is `width` of them, the label
			    the next */
};

struct tern_dataset {
	enum tern_data_kind kind;
	uint64_t count; /* records */
	uint32_t width; /* DENSE: features; TEXT: symbols of context */
	uint32_t
		class_count; /* labels are 0..class_count-1. svmlight -1/+1 becomes 0/1 */
	/* DENSE: rows in compressed form; IDX keeps bytes, svmlight (index, value) pairs.
	 */
	const struct tern_dataset_rows *rows;
	/* TEXT: symbols, and what byte each stands for. class_count of them. */
	const uint8_t *symbols;
	uint8_t symbol_bytes[256];
	/* A range of a data set shares its storage: see tern_dataset_range. */
	uint64_t first;
	void *storage;
};

/* One file's bytes and how to call it in messages. */
struct tern_data_file {
	const char *path;
	const void *data;
	size_t bytes;
};

/* What a reader refused: "adult.trn.bz2: line 17: label 3: expected -1, 0 or 1 ..." */
struct tern_data_error {
	char text[400];
};

/*
 * Reads a data set; the format is told from the contents: IDX (labels given), svmlight
 * (labels NULL), text (text_context > 0), each plain, gzip or bzip2. `min_width` widens
 * svmlight rows (a test file may lack the last features). The files' bytes may be freed
 * afterwards. -EINVAL with error->text: file, place, what stands there, what was
 * expected; -ENOTSUP: what it is packed with was not built in; -ENOMEM.
 */
int tern_dataset_read(const struct tern_data_file *data,
	const struct tern_data_file *labels, uint32_t text_context, uint32_t min_width,
	struct tern_dataset **out, struct tern_data_error *error);

/*
 * Records first..first+count of `whole` as a data set of its own; frees independently, in
 * any order. -EINVAL: out of range; -ENOMEM.
 */
int tern_dataset_range(const struct tern_dataset *whole, uint64_t first, uint64_t count,
	struct tern_dataset **out);

void tern_dataset_free(struct tern_dataset *dataset);

/* Records as the models take them. x for DENSE, ids for TEXT: [rows][width]. */
struct tern_batch {
	size_t rows;
	float *x;
	int32_t *ids;
	int32_t *labels; /* [rows] */
};

/* Fills `batch` (its arrays have room for `rows`) with the records named; indices are
 * below count. */
void tern_dataset_batch(const struct tern_dataset *dataset, const uint64_t *records,
	size_t rows, struct tern_batch *batch);

/* A number of what the records say: equal data give the same on every machine (all of
 * them are little-endian), others almost surely another one. Some 3 GB a second. */
uint64_t tern_dataset_digest(const struct tern_dataset *dataset);

/*
 * Record number n of the endless sequence of seeded permutations, one per epoch, of
 * 0..count-1: a keyed bijection (a Feistel network with cycle walking), so any place of
 * it is computed alone and nothing is stored.
 */
uint64_t tern_permutation_at(uint64_t seed, uint64_t count, uint64_t n);

#endif
