/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IDX, the format of MNIST (yann.lecun.com/exdb/mnist): two zero bytes, a type, the
 * number of dimensions, each dimension as a big-endian 32-bit number, then the elements.
 * The reader accepts files of unsigned bytes: records of 1 to 7 dimensions, and a vector
 * of labels. The header must give exactly the length of the file.
 */
#include <errno.h>
#include <string.h>

#include "base/endian.h"
#include "base/util.h"
#include "client/data/read.h"

#define TYPE_U8      0x08
#define HEADER_BYTES 4

struct idx {
	uint64_t count; /* the first dimension */
	uint64_t width; /* the product of the other dimensions */
	const uint8_t *elements;
};

bool tern_data_is_idx(const struct tern_data_file *data)
{
	return data->bytes >= HEADER_BYTES && memcmp(data->data, "\0\0", 2) == 0;
}

static const char *type_name(uint8_t type)
{
	switch (type) {
	case 0x09:
		return "signed bytes";
	case 0x0b:
		return "16-bit integers";
	case 0x0c:
		return "32-bit integers";
	case 0x0d:
		return "32-bit floats";
	case 0x0e:
		return "64-bit floats";
	default:
		return "an unknown type";
	}
}

/* Checks the type and the number of dimensions. `what`: "images" or "labels". */
static int check_magic(const struct tern_data_file *file, const char *what,
	bool want_vector, struct tern_data_error *error)
{
	const uint8_t *p = file->data;

	if (!tern_data_is_idx(file))
		return tern_data_fail(error, file->path,
			"byte 0: '%s': expected an IDX file of %s, which starts with "
			"'\\x00\\x00\\x08%s'",
			tern_data_quote(p, TERN_MIN(file->bytes, (size_t)4)).text, what,
			want_vector ? "\\x01" : "\\x03");
	if (p[2] != TYPE_U8)
		return tern_data_fail(error, file->path,
			"byte 2: type 0x%02x (%s): expected 0x08, unsigned bytes", p[2],
			type_name(p[2]));
	if (want_vector && p[3] != 1)
		return tern_data_fail(error, file->path,
			"byte 3: %u dimensions: expected 1, since these are labels",
			p[3]);
	if (!want_vector && (p[3] < 2 || p[3] > 8))
		return tern_data_fail(error, file->path,
			"byte 3: %u dimensions: expected 2 to 8%s", p[3],
			p[3] == 1 ? " (is this the file of labels?)" : "");
	return 0;
}

static int parse(const struct tern_data_file *file, const char *what, bool want_vector,
	struct idx *out, struct tern_data_error *error)
{
	const uint8_t *p = file->data;
	size_t header_bytes;
	uint64_t total;
	int status = check_magic(file, what, want_vector, error);

	if (status)
		return status;
	header_bytes = HEADER_BYTES + 4u * p[3];
	if (file->bytes < header_bytes)
		return tern_data_fail(error, file->path,
			"ends at byte %zu, within the header of %zu bytes", file->bytes,
			header_bytes);
	out->count = tern_get_be32(p + HEADER_BYTES);
	out->width = 1;
	for (unsigned i = 1; i < p[3]; i++) {
		uint32_t dim = tern_get_be32(p + HEADER_BYTES + 4 * i);

		/* The product cannot overflow: each factor is below 2^32, and the
		 * product so far at most 2^24. */
		out->width *= dim;
		if (out->width == 0 || out->width > TERN_DATA_WIDTH_MAX)
			return tern_data_fail(error, file->path,
				"byte %u: dimension %u is %u: expected 1 to %u elements "
				"per record",
				HEADER_BYTES + 4 * i, i, dim, TERN_DATA_WIDTH_MAX);
	}
	total = out->count * out->width;
	if (file->bytes - header_bytes != total)
		return tern_data_fail(error, file->path,
			"ends at byte %zu: expected %llu, a header of %zu and %llu x "
			"%llu "
			"bytes of %s",
			file->bytes, (unsigned long long)(header_bytes + total),
			header_bytes, (unsigned long long)out->count,
			(unsigned long long)out->width, what);
	if (!out->count)
		return tern_data_fail(error, file->path, "byte 4: no %s", what);
	out->elements = p + header_bytes;
	return 0;
}

static int copy_of(const struct tern_data_file *file, const uint8_t *elements,
	uint64_t bytes, uint8_t **copy)
{
	*copy = malloc(bytes);
	if (!*copy)
		return -ENOMEM;
	for (uint64_t at = 0, n; at < bytes; at += n) {
		n = TERN_MIN(bytes - at, (uint64_t)TERN_DATA_PIECE);
		memcpy(*copy + at, elements + at, n);
		if (tern_data_stopped(file))
			return -ECANCELED;
	}
	return 0;
}

int tern_data_read_idx(const struct tern_data_file *data,
	const struct tern_data_file *labels, struct tern_dataset *dataset,
	struct tern_data_error *error)
{
	struct tern_dataset_storage *storage = dataset->storage;
	struct idx images, classes;
	int status = parse(data, "images", false, &images, error);

	if (!status)
		status = parse(labels, "labels", true, &classes, error);
	if (status)
		return status;
	if (images.count != classes.count)
		return tern_data_fail(error, labels->path,
			"byte 4: %llu labels: expected %llu, one per image of %.100s",
			(unsigned long long)classes.count,
			(unsigned long long)images.count, data->path);
	status = copy_of(
		data, images.elements, images.count * images.width, &storage->rows.bytes);
	if (!status)
		status = copy_of(
			labels, classes.elements, classes.count, &storage->rows.labels);
	if (status)
		return status;
	dataset->kind = TERN_DATA_DENSE;
	dataset->count = images.count;
	dataset->width = (uint32_t)images.width;
	dataset->class_count = 2;
	for (uint64_t i = 0; i < classes.count; i++)
		dataset->class_count =
			TERN_MAX(dataset->class_count, classes.elements[i] + 1u);
	dataset->rows = &storage->rows;
	return 0;
}
