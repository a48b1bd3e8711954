/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing and reading safetensors. See the header for the format. Reading takes two
 * passes: first each entry on its own, then all entries in the order of their data, where
 * each tensor must begin exactly where the one before it ended. This excludes overlaps,
 * gaps and bytes that belong to no tensor.
 */
#include "client/safetensors.h"

#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "base/endian.h"
#include "base/util.h"
#include "client/data/read.h"

#define LENGTH_BYTES     8
#define HEADER_BYTES_MAX (100u << 20) /* the limit of the reference implementation */
#define METADATA         "__metadata__"

/* In the order of enum tern_dtype. */
static const char *const dtype_names[TERN_DTYPE_COUNT] = {NULL, "U8", "I8", "U16", "I16",
	"U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64"};

struct tern_safetensors {
	const char *path;
	struct tern_data_error *error; /* used only by the parser */
	json_t *header;                /* owns the names */
	const char *data;
	uint64_t data_bytes;
	struct tern_safetensor *tensors;
	size_t count;
};

static void decref(json_t **json)
{
	json_decref(*json);
}

/* ---- writing ---- */

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
			       dtype_names[tensor->shape.dtype], "shape", shape,
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

/* ---- reading ---- */

static int fail_tensor(struct tern_safetensors *file, const char *name, const char *what)
{
	return tern_data_fail(file->error, file->path, "tensor '%s': %s",
		tern_data_quote(name, strlen(name)).text, what);
}

static enum tern_dtype dtype_of(const char *name)
{
	for (unsigned i = 1; i < TERN_DTYPE_COUNT; i++) {
		if (name && strcmp(name, dtype_names[i]) == 0)
			return (enum tern_dtype)i;
	}
	return TERN_DTYPE_NONE;
}

static int parse_shape(struct tern_safetensors *file, const char *name,
	const json_t *entry, struct tern_shape *shape)
{
	const json_t *dims = json_object_get(entry, "shape");

	shape->dtype = dtype_of(json_string_value(json_object_get(entry, "dtype")));
	if (!shape->dtype)
		return fail_tensor(file, name, "expected a dtype like \"F32\"");
	if (!json_is_array(dims) || json_array_size(dims) > TERN_RANK_MAX)
		return fail_tensor(
			file, name, "expected a shape of at most 8 dimensions");
	shape->rank = (uint32_t)json_array_size(dims);
	for (uint32_t i = 0; i < shape->rank; i++) {
		const json_t *dim = json_array_get(dims, i);

		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return fail_tensor(
				file, name, "expected whole numbers as the shape");
		shape->dims[i] = (uint64_t)json_integer_value(dim);
	}
	return 0;
}

static int parse_tensor(
	struct tern_safetensors *file, const char *name, const json_t *entry)
{
	struct tern_safetensor *tensor = &file->tensors[file->count];
	const json_t *offsets = json_object_get(entry, "data_offsets");
	const json_t *first = json_array_get(offsets, 0),
		     *end = json_array_get(offsets, 1);
	json_int_t at, bytes;
	uint64_t expected;
	int status = parse_shape(file, name, entry, &tensor->shape);

	if (status)
		return status;
	if (json_array_size(offsets) != 2 || !json_is_integer(first) ||
		!json_is_integer(end))
		return fail_tensor(
			file, name, "expected data_offsets of two whole numbers");
	at = json_integer_value(first);
	if (at < 0 || json_integer_value(end) < at ||
		(uint64_t)json_integer_value(end) > file->data_bytes)
		return fail_tensor(
			file, name, "its data_offsets are outside of the file's data");
	bytes = json_integer_value(end) - at;
	if (tern_shape_bytes(&tensor->shape, &expected) || expected != (uint64_t)bytes)
		return fail_tensor(
			file, name, "its data_offsets do not agree with its shape");
	tensor->name = name;
	tensor->data = file->data + at;
	tensor->bytes = (uint64_t)bytes;
	file->count++;
	return 0;
}

static int check_metadata(struct tern_safetensors *file, json_t *metadata)
{
	const char *key;
	json_t *value;

	if (!json_is_object(metadata))
		return tern_data_fail(
			file->error, file->path, METADATA ": expected an object");
	json_object_foreach(metadata, key, value)
	{
		if (!json_is_string(value))
			return tern_data_fail(file->error, file->path,
				METADATA ": '%s': expected a string",
				tern_data_quote(key, strlen(key)).text);
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct tern_safetensor *x = a, *y = b;

	if (x->data != y->data)
		return (const char *)x->data < (const char *)y->data ? -1 : 1;
	/* Empty tensors come before the tensor that begins at the same place. */
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int check_layout(struct tern_safetensors *file)
{
	const char *end = file->data;

	if (file->count)
		qsort(file->tensors, file->count, sizeof(*file->tensors), compare);
	for (size_t i = 0; i < file->count; i++) {
		const struct tern_safetensor *tensor = &file->tensors[i];

		if (tensor->data != end)
			return fail_tensor(file, tensor->name,
				(const char *)tensor->data < end
					? "its data overlaps another's"
					: "there is a gap before its data");
		end += tensor->bytes;
	}
	if (end != file->data + file->data_bytes)
		return tern_data_fail(file->error, file->path,
			"the file has %llu bytes of data, but its tensors are %llu bytes "
			"in all",
			(unsigned long long)file->data_bytes,
			(unsigned long long)(end - file->data));
	return 0;
}

static int parse_entries(struct tern_safetensors *file)
{
	const char *name;
	json_t *entry;
	int status = 0;

	file->tensors =
		calloc(json_object_size(file->header) + 1, sizeof(*file->tensors));
	if (!file->tensors)
		return -ENOMEM;
	json_object_foreach(file->header, name, entry)
	{
		status = strcmp(name, METADATA) == 0 ? check_metadata(file, entry)
						     : parse_tensor(file, name, entry);
		if (status)
			return status;
	}
	return check_layout(file);
}

static int parse_header(struct tern_safetensors *file, const char *bytes, size_t count)
{
	uint64_t header_bytes = count < LENGTH_BYTES ? 0 : tern_get_le64(bytes);
	json_error_t json_error;

	if (count < LENGTH_BYTES)
		return tern_data_fail(file->error, file->path,
			"%zu bytes: too short for a safetensors file", count);
	if (header_bytes > HEADER_BYTES_MAX || header_bytes > count - LENGTH_BYTES)
		return tern_data_fail(file->error, file->path,
			"byte 0: a header of %llu bytes: the file has %zu more (is it a "
			"safetensors file, and whole?)",
			(unsigned long long)header_bytes, count - LENGTH_BYTES);
	file->data = bytes + LENGTH_BYTES + header_bytes;
	file->data_bytes = count - LENGTH_BYTES - header_bytes;
	file->header = json_loadb(
		bytes + LENGTH_BYTES, header_bytes, JSON_REJECT_DUPLICATES, &json_error);
	if (!file->header)
		return tern_data_fail(file->error, file->path,
			"byte %d: the header is not JSON: %s",
			LENGTH_BYTES + json_error.position, json_error.text);
	if (!json_is_object(file->header))
		return tern_data_fail(file->error, file->path,
			"byte %d: the header is not a JSON object", LENGTH_BYTES);
	return 0;
}

int tern_safetensors_parse(const char *path, const void *data, size_t bytes,
	struct tern_safetensors **out, struct tern_data_error *error)
{
	struct tern_safetensors *file = calloc(1, sizeof(*file));
	int status;

	if (!file)
		return -ENOMEM;
	file->path = path;
	file->error = error;
	status = parse_header(file, data, bytes);
	if (!status)
		status = parse_entries(file);
	if (status) {
		tern_safetensors_free(file);
		return status;
	}
	*out = file;
	return 0;
}

void tern_safetensors_free(struct tern_safetensors *file)
{
	if (!file)
		return;
	json_decref(file->header);
	free(file->tensors);
	free(file);
}

const struct tern_safetensor *tern_safetensors_list(
	const struct tern_safetensors *file, size_t *count)
{
	*count = file->count;
	return file->tensors;
}

const struct tern_safetensor *tern_safetensors_find(
	const struct tern_safetensors *file, const char *name)
{
	for (size_t i = 0; i < file->count; i++) {
		if (strcmp(file->tensors[i].name, name) == 0)
			return &file->tensors[i];
	}
	return NULL;
}

const char *tern_safetensors_metadata(
	const struct tern_safetensors *file, const char *key)
{
	return json_string_value(
		json_object_get(json_object_get(file->header, METADATA), key));
}
