/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading safetensors, in two passes: first each entry on its own, then all entries in the
 * order of their data, where each tensor must begin exactly where the one before it ended.
 * This excludes overlaps, gaps and bytes that belong to no tensor.
 */
#include "ps/safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/endian.h"
#include "base/escape.h"
#include "base/util.h"
#include "ps/safetensors_format.h"

#define HEADER_BYTES_MAX (100u << 20) /* the limit of the reference implementation */

struct tern_safetensors {
	const char *path;
	struct tern_ps_text *error; /* used only by the parser */
	json_t *header;             /* owns the names */
	const char *data;
	uint64_t data_bytes;
	struct tern_safetensor *tensors;
	const struct tern_safetensor **by_name; /* sorted by name */
	size_t count;
};

static int fail(struct tern_safetensors *file, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int fail(struct tern_safetensors *file, const char *fmt, ...)
{
	struct tern_ps_text *error = file->error;
	int used = snprintf(error->text, sizeof(error->text), "%.200s: ", file->path);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(error->text + used, sizeof(error->text) - (size_t)used, fmt, ap);
	va_end(ap);
	return -EINVAL;
}

static int fail_tensor(struct tern_safetensors *file, const char *name, const char *what)
{
	return fail(file, "tensor '%s': %s", TERN_SHOWN(name), what);
}

static enum tern_dtype dtype_of(const char *name)
{
	for (unsigned i = 1; i < TERN_DTYPE_COUNT; i++) {
		if (name && strcmp(name, safetensors_dtypes[i]) == 0)
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
		return fail_tensor(file, name,
			"its data_offsets are outside of the file's data "
			"(is the file whole?)");
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
		return fail(file, METADATA ": expected an object");
	json_object_foreach(metadata, key, value)
	{
		if (!json_is_string(value))
			return fail(file, METADATA ": '%s': expected a string",
				TERN_SHOWN(key));
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

static int compare_names(const void *a, const void *b)
{
	return strcmp((*(const struct tern_safetensor *const *)a)->name,
		(*(const struct tern_safetensor *const *)b)->name);
}

static int sort_names(struct tern_safetensors *file)
{
	file->by_name = calloc(file->count + 1, sizeof(*file->by_name));
	if (!file->by_name)
		return -ENOMEM;
	for (size_t i = 0; i < file->count; i++)
		file->by_name[i] = &file->tensors[i];
	qsort(file->by_name, file->count, sizeof(*file->by_name), compare_names);
	return 0;
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
		return fail(file,
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
	status = check_layout(file);
	return status ? status : sort_names(file);
}

static int parse_header(struct tern_safetensors *file, const char *bytes, size_t count)
{
	uint64_t header_bytes = count < LENGTH_BYTES ? 0 : tern_get_le64(bytes);
	json_error_t json_error;

	if (count < LENGTH_BYTES)
		return fail(file, "%zu bytes: too short for a safetensors file", count);
	if (header_bytes > HEADER_BYTES_MAX || header_bytes > count - LENGTH_BYTES)
		return fail(file,
			"byte 0: a header of %llu bytes: the file has %zu more (is it a "
			"safetensors file, and whole?)",
			(unsigned long long)header_bytes, count - LENGTH_BYTES);
	file->data = bytes + LENGTH_BYTES + header_bytes;
	file->data_bytes = count - LENGTH_BYTES - header_bytes;
	file->header = json_loadb(
		bytes + LENGTH_BYTES, header_bytes, JSON_REJECT_DUPLICATES, &json_error);
	if (!file->header)
		return fail(file, "byte %d: the header is not JSON: %s",
			LENGTH_BYTES + json_error.position, json_error.text);
	if (!json_is_object(file->header))
		return fail(
			file, "byte %d: the header is not a JSON object", LENGTH_BYTES);
	return 0;
}

int tern_safetensors_parse(const char *path, const void *data, size_t bytes,
	struct tern_safetensors **out, struct tern_ps_text *error)
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
	free(file->by_name);
	free(file->tensors);
	free(file);
}

const struct tern_safetensor *tern_safetensors_list(
	const struct tern_safetensors *file, size_t *count)
{
	*count = file->count;
	return file->tensors;
}

static int compare_to_name(const void *name, const void *tensor)
{
	return strcmp(name, (*(const struct tern_safetensor *const *)tensor)->name);
}

const struct tern_safetensor *tern_safetensors_find(
	const struct tern_safetensors *file, const char *name)
{
	const struct tern_safetensor *const *found =
		file->count ? bsearch(name, file->by_name, file->count,
				      sizeof(*file->by_name), compare_to_name)
			    : NULL;

	return found ? *found : NULL;
}

const char *tern_safetensors_metadata(
	const struct tern_safetensors *file, const char *key)
{
	return json_string_value(
		json_object_get(json_object_get(file->header, METADATA), key));
}
