/* SPDX-License-Identifier: Apache-2.0 */
/*
 * svmlight and libsvm text: a line is
 *
 *     LABEL INDEX:VALUE INDEX:VALUE ... # comment
 *
 * with increasing indices. An index is the number of a column, without a shift: the
 * format does not say whether it counts from 0 or 1, and shifting would make two files of
 * one data set disagree if only one of them uses 0. Labels are -1 and +1, or 0 and 1, and
 * become 0 and 1.
 */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "client/data/read.h"

#define TOKEN_BYTES 64

struct reader {
	const struct tern_data_file *file;
	struct tern_data_error *error;
	locale_t locale; /* "C": the decimal point is "." */
	uint64_t line;
	const char *piece_end;      /* place in the file at which stop() is called next */
	bool seen_minus, seen_zero; /* which of the two labellings the file uses */
	struct tern_dataset_rows *rows;
	uint64_t count, capacity;
	uint64_t pair_count, pair_capacity;
	uint32_t width;
};

struct token {
	const char *text;
	size_t bytes;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* Returns the next token from *at on, and advances *at beyond it. The token has 0 bytes if
 * none is left before `end`. */
static struct token next_token(const char **at, const char *end)
{
	struct token token;

	while (*at < end && is_blank(**at))
		(*at)++;
	token.text = *at;
	while (*at < end && !is_blank(**at))
		(*at)++;
	token.bytes = (size_t)(*at - token.text);
	return token;
}

/* Parses a decimal number, with or without fraction and exponent, and nothing else. */
static bool parse_number(struct reader *r, struct token token, double *out)
{
	char copy[TOKEN_BYTES], *end;

	if (!token.bytes || token.bytes >= TOKEN_BYTES)
		return false;
	memcpy(copy, token.text, token.bytes);
	copy[token.bytes] = '\0';
	/* This also excludes what strtod accepts beyond numbers: hexadecimal, nan,
	 * inf, blanks. */
	if (strspn(copy, "0123456789+-.eE") != token.bytes)
		return false;
	*out = strtod_l(copy, &end, r->locale);
	return end == copy + token.bytes;
}

static int grow(void **array, uint64_t capacity, size_t element_bytes)
{
	void *grown = reallocarray(*array, capacity, element_bytes);

	if (!grown)
		return -ENOMEM;
	*array = grown;
	return 0;
}

static int make_room(struct reader *r)
{
	struct tern_dataset_rows *rows = r->rows;

	if (r->count + 1 >= r->capacity) {
		r->capacity = r->capacity ? 2 * r->capacity : 1024;
		if (grow((void **)&rows->starts, r->capacity, sizeof(*rows->starts)) ||
			grow((void **)&rows->labels, r->capacity, sizeof(*rows->labels)))
			return -ENOMEM;
	}
	if (r->pair_count == r->pair_capacity) {
		r->pair_capacity = r->pair_capacity ? 2 * r->pair_capacity : 8192;
		if (grow((void **)&rows->columns, r->pair_capacity,
			    sizeof(*rows->columns)) ||
			grow((void **)&rows->values, r->pair_capacity,
				sizeof(*rows->values)))
			return -ENOMEM;
	}
	return 0;
}

static int fail(struct reader *r, struct token token, const char *expected)
{
	return tern_data_fail(r->error, r->file->path, "line %llu: '%s': expected %s",
		(unsigned long long)r->line,
		tern_data_quote(token.text, token.bytes).text, expected);
}

/* Calls the file's stop() once per TERN_DATA_PIECE bytes. True: reading must end. */
static bool is_stopped(struct reader *r, const char *at)
{
	const char *end = (const char *)r->file->data + r->file->bytes;

	if (at < r->piece_end)
		return false;
	r->piece_end = at + TERN_MIN(TERN_DATA_PIECE, (size_t)(end - at));
	return tern_data_stopped(r->file);
}

static int read_label(struct reader *r, struct token token)
{
	double label;

	if (!parse_number(r, token, &label))
		return fail(r, token, "a number as the label");
	if (label != -1 && label != 0 && label != 1)
		return fail(r, token, "a label of -1 or +1, or of 0 or 1 (two classes)");
	r->seen_minus |= label == -1;
	r->seen_zero |= label == 0;
	if (r->seen_minus && r->seen_zero)
		return fail(r, token,
			"labels of one kind in all lines: -1 and +1, or 0 and 1");
	r->rows->labels[r->count] = label == 1;
	return 0;
}

static int parse_index(
	struct reader *r, struct token token, struct token index, uint32_t *out)
{
	uint64_t value = 0;

	for (size_t i = 0; i < index.bytes; i++) {
		if (index.text[i] < '0' || index.text[i] > '9')
			return fail(r, token, "INDEX:VALUE with a whole number as INDEX");
		value = 10 * value + (uint64_t)(index.text[i] - '0');
		if (value >= TERN_DATA_WIDTH_MAX)
			return fail(r, token, "an index below 16777216");
	}
	*out = (uint32_t)value;
	return 0;
}

static int read_pair(struct reader *r, struct token token)
{
	const char *colon = memchr(token.text, ':', token.bytes);
	struct token index = {token.text, colon ? (size_t)(colon - token.text) : 0};
	struct token number = {
		token.text + index.bytes + 1, token.bytes - index.bytes - 1};
	uint64_t first = r->rows->starts[r->count];
	uint32_t column = 0;
	double value;
	int status;

	if (is_stopped(r, token.text)) /* a line may be as long as the file */
		return -ECANCELED;
	if (!index.bytes)
		return fail(r, token, "INDEX:VALUE");
	status = parse_index(r, token, index, &column);
	if (status)
		return status;
	if (!parse_number(r, number, &value) || !isfinite((float)value))
		return fail(r, token, "INDEX:VALUE with a number as VALUE");
	if (r->pair_count > first && r->rows->columns[r->pair_count - 1] >= column)
		return fail(r, token, "indices in increasing order");
	if (make_room(r))
		return -ENOMEM;
	r->rows->columns[r->pair_count] = column;
	r->rows->values[r->pair_count++] = (float)value;
	r->width = TERN_MAX(r->width, column + 1);
	return 0;
}

static int read_line(struct reader *r, const char *at, const char *end)
{
	const char *comment = memchr(at, '#', (size_t)(end - at));
	struct token token;
	int status;

	if (comment)
		end = comment;
	token = next_token(&at, end);
	if (!token.bytes)
		return 0;
	if (make_room(r))
		return -ENOMEM;
	r->rows->starts[r->count] = r->pair_count;
	status = read_label(r, token);
	while (!status && (token = next_token(&at, end)).bytes)
		status = read_pair(r, token);
	if (status)
		return status;
	r->rows->starts[++r->count] = r->pair_count;
	return 0;
}

static int read_lines(struct reader *r)
{
	const char *at = r->file->data, *end = at + r->file->bytes;

	while (at < end) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		int status;

		if (is_stopped(r, at))
			return -ECANCELED;
		r->line++;
		status = read_line(r, at, newline ? newline : end);
		if (status)
			return status;
		at = newline ? newline + 1 : end;
	}
	if (!r->count)
		return tern_data_fail(r->error, r->file->path,
			"no records in %zu bytes: expected lines of LABEL INDEX:VALUE "
			"...",
			r->file->bytes);
	return 0;
}

int tern_data_read_svmlight(const struct tern_data_file *data, uint32_t min_width,
	struct tern_dataset *dataset, struct tern_data_error *error)
{
	struct tern_dataset_storage *storage = dataset->storage;
	struct reader r = {
		.file = data,
		.error = error,
		.piece_end = data->data,
		.rows = &storage->rows,
		.width = 1,
	};
	int status;

	r.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!r.locale)
		return -ENOMEM;
	status = read_lines(&r);
	freelocale(r.locale);
	if (status)
		return status;
	dataset->kind = TERN_DATA_DENSE;
	dataset->count = r.count;
	dataset->width = TERN_MAX(r.width, min_width);
	dataset->class_count = 2;
	dataset->rows = &storage->rows;
	return 0;
}
