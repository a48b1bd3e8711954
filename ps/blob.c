/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/blob.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tern/train.h>

static const char digits[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int tern_blob_set(struct tern_blob *blob, uint64_t step, const void *data, size_t bytes)
{
	void *copy = bytes ? malloc(bytes) : NULL;

	if (bytes && !copy)
		return -ENOMEM;
	if (bytes)
		memcpy(copy, data, bytes);
	free(blob->data);
	*blob = (struct tern_blob){.step = step, .data = copy, .bytes = bytes};
	return 0;
}

int tern_blob_copy(struct tern_blob *to, const struct tern_blob *from)
{
	return tern_blob_set(to, from->step, from->data, from->bytes);
}

void tern_blob_fini(struct tern_blob *blob)
{
	free(blob->data);
	*blob = (struct tern_blob){0};
}

/* ---- base64 ---- */

static size_t text_bytes(size_t bytes)
{
	return (bytes + 2) / 3 * 4;
}

static void encode(const uint8_t *from, size_t bytes, char *to)
{
	for (size_t i = 0; i < bytes; i += 3) {
		size_t left = bytes - i;
		uint32_t group = (uint32_t)from[i] << 16;

		group |= left > 1 ? (uint32_t)from[i + 1] << 8 : 0;
		group |= left > 2 ? from[i + 2] : 0;
		*to++ = digits[group >> 18];
		*to++ = digits[group >> 12 & 63];
		*to++ = left > 1 ? digits[group >> 6 & 63] : '=';
		*to++ = left > 2 ? digits[group & 63] : '=';
	}
}

/* Decodes 4 digits to 1 to 3 bytes. False: they are none, or bits that belong to no byte are set. */
static bool decode_group(const char *from, uint8_t *to, size_t bytes)
{
	uint32_t group = 0;

	for (size_t i = 0; i < 4; i++) {
		const char *digit = i <= bytes ? strchr(digits, from[i]) : digits;

		if (!digit || !from[i] || (i > bytes && from[i] != '='))
			return false;
		group = group << 6 | (uint32_t)(digit - digits);
	}
	for (size_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)(group >> (16 - 8 * i));
	return (group & (0xffffffu >> (8 * bytes))) == 0;
}

static bool decode(const char *from, uint8_t *to, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 3, from += 4)
		if (!decode_group(from, to + i, bytes - i < 3 ? bytes - i : 3))
			return false;
	return true;
}

/* ---- JSON ---- */

json_t *tern_blob_json(const struct tern_blob *blob)
{
	size_t length = text_bytes(blob->bytes);
	char *text = blob->step ? malloc(length + 1) : NULL;
	json_t *root;

	if (!text)
		return NULL;
	encode(blob->data, blob->bytes, text);
	root = json_pack("{s:I, s:I, s:s%}", "step", (json_int_t)blob->step, "bytes",
		(json_int_t)blob->bytes, "data", text, length);
	free(text);
	return root;
}

int tern_blob_read(const json_t *root, uint64_t most, struct tern_blob *out)
{
	json_int_t step = 0, bytes = -1;
	const char *text = NULL;
	size_t length = 0;

	*out = (struct tern_blob){0};
	if (json_unpack((json_t *)(uintptr_t)root, "{s:I, s:I, s:s%}", "step", &step,
		    "bytes", &bytes, "data", &text, &length) < 0 ||
		step < 1 || (uint64_t)step > most || bytes < 0 ||
		bytes > (json_int_t)TERN_KEEP_MAX || length != text_bytes((size_t)bytes))
		return -EINVAL;
	if (bytes) {
		out->data = malloc((size_t)bytes);
		if (!out->data)
			return -ENOMEM;
	}
	out->step = (uint64_t)step;
	out->bytes = (size_t)bytes;
	if (decode(text, out->data, out->bytes))
		return 0;
	tern_blob_fini(out);
	return -EINVAL;
}
