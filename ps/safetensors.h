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
 * A written file is a pure function of its contents: tensors are in the given order, and
 * the header is padded to a multiple of 8, so that a file of f32 tensors has its data
 * aligned.
 */
#ifndef TERN_PS_SAFETENSORS_H
#define TERN_PS_SAFETENSORS_H

#include <sys/uio.h>

#include <tern/types.h>

#include "base/endian.h"
#include "ps/job.h"

struct tern_safetensor {
	const char *name; /* UTF-8; not "__metadata__" */
	struct tern_shape shape;
	/* Written: its elements. Parsed: its bytes in the file, little-endian and with
	 * the alignment that they have there. */
	const void *data;
	uint64_t bytes; /* written: ignored, since the shape determines it */
};

struct tern_safetensors_metadata {
	const char *key, *value;
};

/*
 * Makes the parts of a file. parts[0] is the header, which the caller frees
 * (parts[0].iov_base). parts[1..count] point to the tensors' own data, or, on a
 * big-endian machine, to copies that are freed with the header. `parts` has room for
 * count + 1. -EINVAL: an invalid shape, the name "__metadata__", a name or key used
 * twice, or text that is not UTF-8; -EOVERFLOW; -ENOMEM.
 */
int tern_safetensors_build(const struct tern_safetensor *tensors, size_t count,
	const struct tern_safetensors_metadata *metadata, size_t metadata_count,
	struct iovec *parts);

/* As tern_safetensors_build(), for elements in the byte order `order`. */
int tern_safetensors_build_from(enum tern_byte_order order,
	const struct tern_safetensor *tensors, size_t count,
	const struct tern_safetensors_metadata *metadata, size_t metadata_count,
	struct iovec *parts);

struct tern_safetensors;

/*
 * Parses the file of `bytes` at `data`, which must stay in place as long as the result.
 * Everything is checked: afterwards the data of each tensor is inside the file, has the
 * length of its shape, and overlaps no other. -EINVAL with error->text: what is wrong and
 * where; -ENOMEM.
 */
int tern_safetensors_parse(const char *path, const void *data, size_t bytes,
	struct tern_safetensors **out, struct tern_ps_text *error);
void tern_safetensors_free(struct tern_safetensors *file);

/* All tensors, in the order of their data. */
const struct tern_safetensor *tern_safetensors_list(
	const struct tern_safetensors *file, size_t *count);
/* The tensor with that name; NULL: there is none. */
const struct tern_safetensor *tern_safetensors_find(
	const struct tern_safetensors *file, const char *name);
/* The metadata value of that key; NULL: there is none. */
const char *tern_safetensors_metadata(
	const struct tern_safetensors *file, const char *key);

#endif
