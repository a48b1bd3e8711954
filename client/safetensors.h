/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors, the format in which parameters are saved
 * (github.com/huggingface/safetensors):
 *
 *     8 bytes    length of the header, little-endian
 *     header     JSON: {"__metadata__": {"key": "value"}, "name": {"dtype": "F32",
 *                "shape": [2, 3], "data_offsets": [first, end]}, ...}, padded with spaces
 *     data       the tensors, row-major, little-endian, without a gap
 *
 * Written files are a pure function of what is in them: tensors in the order given, the
 * header padded to a multiple of 8, so the data of f32 tensors stands aligned in the
 * file.
 */
#ifndef TERN_CLIENT_SAFETENSORS_H
#define TERN_CLIENT_SAFETENSORS_H

#include <sys/uio.h>

#include <tern/types.h>

#include "base/endian.h"
#include "client/data/dataset.h"

struct tern_safetensor {
	const char *name; /* UTF-8; not "__metadata__" */
	struct tern_shape shape;
	const void *data; /* written: its elements; parsed: its bytes in the file, which
			     are little-endian, and aligned no better than there */
	uint64_t bytes;   /* written: ignored, the shape says it */
};

struct tern_safetensors_metadata {
	const char *key, *value;
};

/*
 * The parts of a file: parts[0] is the header, which the caller frees
 * (parts[0].iov_base), parts[1..count] point to the tensors' own data; on a big-endian
 * machine to copies, which go with the header. `parts` has room
 * for count + 1. -EINVAL: a shape that is none, a name twice or not UTF-8; -EOVERFLOW;
 * -ENOMEM.
 */
int tern_safetensors_build(const struct tern_safetensor *tensors, size_t count,
	const struct tern_safetensors_metadata *metadata, size_t metadata_count,
	struct iovec *parts);

/* Like tern_safetensors_build(), for elements that lie in memory in the byte order
 * `order`. */
int tern_safetensors_build_from(enum tern_byte_order order,
	const struct tern_safetensor *tensors, size_t count,
	const struct tern_safetensors_metadata *metadata, size_t metadata_count,
	struct iovec *parts);

struct tern_safetensors;

/*
 * What is in the file of `bytes` at `data`, which must stay in place as long as the
 * result. Everything is checked: afterwards each tensor's data lies within the file, has
 * the length that its shape says, and overlaps no other. -EINVAL with error->text: what
 * is wrong where; -ENOMEM.
 */
int tern_safetensors_parse(const char *path, const void *data, size_t bytes,
	struct tern_safetensors **out, struct tern_data_error *error);
void tern_safetensors_free(struct tern_safetensors *file);

/* In the order of their data. */
const struct tern_safetensor *tern_safetensors_list(
	const struct tern_safetensors *file, size_t *count);
/* NULL: there is none of that name. */
const struct tern_safetensor *tern_safetensors_find(
	const struct tern_safetensors *file, const char *name);
/* NULL: there is none of that key. */
const char *tern_safetensors_metadata(
	const struct tern_safetensors *file, const char *key);

#endif
