/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors. */
#include "ps/safetensors.h"

#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "base/endian.h"
#include "base/util.h"
#include "ps/safetensors_format.h"

const char *const safetensors_dtypes[TERN_DTYPE_COUNT] = {NULL, "U8", "I8", "U16", "I16",
	"U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64"};

static void decref(json_t **json)
{
	json_decref(*json);
}

/* Adds the entry of a tensor whose data begins at *offset, and advances *offset. */
static int add_tensor(
	json_t *header, const struct tern_safetensor *tensor, uint64_t *offset)
{
	uint64_t bytes, first = *offset;
	json_t *shape;
	int status = tern_shape_bytes(&tensor->shape, &bytes);

	if (status)
		return status;
	if (__builtin_add_overflow(first, bytes, offset) || *offset > INT64_MAX)
		return -EOVERFLOW;
	if (strcmp(tensor->name, METADATA) == 0 || json_object_get(header, tensor->name))
		return -EINVAL;
	shape = json_array();
	for (uint32_t i = 0; i < tensor->shape.rank; i++) {
		if (tensor->shape.dims[i] > INT64_MAX) {
			json_decref(shape);
			return -EOVERFLOW;
		}
		json_array_append_new(
			shape, json_integer((json_int_t)tensor->shape.dims[i]));
	}
	/* This fails for lack of memory, or for a name that is not UTF-8. The second is
	 * more likely, so -EINVAL is returned. */
	return json_object_set_new(header, tensor->name,
		       json_pack("{s:s, s:o, s:[I, I]}", "dtype",
			       safetensors_dtypes[tensor->shape.dtype], "shape", shape,
			       "data_offsets", (json_int_t)first, (json_int_t)*offset))
		       ? -EINVAL
		       : 0;
}

static int add_metadata(
	json_t *header, const struct tern_safetensors_metadata *metadata, size_t count)
{
	json_t *object;

	if (!count)
		return 0;
	object = json_object();
	if (json_object_set_new(header, METADATA, object))
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		if (json_object_get(object, metadata[i].key) ||
			json_object_set_new(
				object, metadata[i].key, json_string(metadata[i].value)))
			return -EINVAL;
	}
	return 0;
}

/* Prints the header (its length, the JSON and the padding) into new memory, which has
 * `room` unused bytes after the header. */
static int print_header(json_t *header, uint64_t room, struct iovec *out)
{
	char *text = json_dumps(header, JSON_COMPACT);
	size_t bytes, padded;
	char *whole;

	if (!text)
		return -ENOMEM;
	bytes = strlen(text);
	padded = tern_align_up(bytes, 8);
	whole = room <= SIZE_MAX / 2 ? malloc(LENGTH_BYTES + padded + room) : NULL;
	if (whole) {
		tern_put_le64(whole, padded);
		memcpy(whole + LENGTH_BYTES, text, bytes);
		memset(whole + LENGTH_BYTES + bytes, ' ', padded - bytes);
		*out = (struct iovec){whole, LENGTH_BYTES + padded};
	}
	free(text);
	return whole ? 0 : -ENOMEM;
}

/* Copies each tensor's data to the space after the header, and swaps the bytes of each
 * element. */
static void swap_parts(
	const struct tern_safetensor *tensors, size_t count, struct iovec *parts)
{
	char *at = (char *)parts[0].iov_base + parts[0].iov_len;

	for (size_t i = 0; i < count; i++) {
		struct iovec *part = &parts[1 + i];

		tern_swap_bytes(at, part->iov_base, part->iov_len,
			tern_dtype_bytes(tensors[i].shape.dtype));
		part->iov_base = at;
		at += part->iov_len;
	}
}

int tern_safetensors_build_from(enum tern_byte_order order,
	const struct tern_safetensor *tensors, size_t count,
	const struct tern_safetensors_metadata *metadata, size_t metadata_count,
	struct iovec *parts)
{
	json_t *TERN_CLEANUP(decref) header = json_object();
	bool swapped = order != TERN_LITTLE_ENDIAN;
	uint64_t offset = 0, first;
	int status;

	if (!header)
		return -ENOMEM;
	status = add_metadata(header, metadata, metadata_count);
	for (size_t i = 0; i < count && !status; i++) {
		first = offset;
		status = add_tensor(header, &tensors[i], &offset);
		parts[1 + i].iov_base = (void *)(uintptr_t)tensors[i].data;
		parts[1 + i].iov_len = offset - first;
	}
	if (!status)
		status = print_header(header, swapped ? offset : 0, &parts[0]);
	if (!status && swapped)
		swap_parts(tensors, count, parts);
	return status;
}

int tern_safetensors_build(const struct tern_safetensor *tensors, size_t count,
	const struct tern_safetensors_metadata *metadata, size_t metadata_count,
	struct iovec *parts)
{
	return tern_safetensors_build_from(
		TERN_BYTE_ORDER, tensors, count, metadata, metadata_count, parts);
}
