/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the readers of data sets. The first byte of the input chooses how the rest is
 * read: as one file, with a width of 16, with a context of 8, or as a file of labels and
 * one of data. */
#include <stdlib.h>

#include "base/util.h"
#include "client/data/dataset.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fuzz f = {data, bytes};
	unsigned how = fuzz_below(&f, 4);
	size_t label_bytes = how == 3 ? TERN_MIN(fuzz_take(&f, 2), f.bytes) : 0;
	char *labels = fuzz_copy(f.data, label_bytes);
	char *text = fuzz_copy(f.data + label_bytes, f.bytes - label_bytes);
	const struct tern_data_file file = {
		.path = "data", .data = text, .bytes = f.bytes - label_bytes};
	const struct tern_data_file label_file = {
		.path = "labels", .data = labels, .bytes = label_bytes};
	struct tern_data_error error = {{0}};
	struct tern_dataset *set;

	if (tern_dataset_read(&file, how == 3 ? &label_file : NULL, how == 2 ? 8 : 0,
		    how == 1 ? 16 : 0, &set, &error) == 0)
		tern_dataset_free(set);
	else
		tern_assert(memchr(error.text, 0, sizeof(error.text)));
	free(labels);
	free(text);
	return 0;
}
