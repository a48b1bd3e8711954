/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the readers of data sets: which files they accept, the sentence with which they
 * refuse any other file, and when they stop. Also tests of a data set's digest, and of the
 * order in which records are used. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/data/dataset.h"
#include "client/data/permutation.h"
#include "client/data/read.h"
#include "tern-config.h"

#if TERN_HAVE_ZLIB
#include <zlib.h>
#endif
#if TERN_HAVE_BZIP2
#include <bzlib.h>
#endif

struct bytes {
	size_t bytes;
	unsigned char *data;
};

/* Returns a copy of the data in memory of exactly their size, so that a sanitizer notices
 * a read beyond the end. */
static struct bytes copy_of(const void *data, size_t bytes)
{
	struct bytes b = {bytes, malloc(bytes + !bytes)};

	memcpy(b.data, data, bytes);
	return b;
}

#if TERN_HAVE_ZLIB || TERN_HAVE_BZIP2
static struct bytes join(struct bytes a, struct bytes b)
{
	struct bytes both = {a.bytes + b.bytes, malloc(a.bytes + b.bytes)};

	memcpy(both.data, a.data, a.bytes);
	memcpy(both.data + a.bytes, b.data, b.bytes);
	free(a.data);
	free(b.data);
	return both;
}
#endif

#if TERN_HAVE_ZLIB
static struct bytes gzip(const void *data, size_t bytes)
{
	struct bytes b = {0, malloc(bytes + 100)};
	z_stream z = {.next_in = (Bytef *)(uintptr_t)data,
		.avail_in = (unsigned)bytes,
		.next_out = b.data,
		.avail_out = (unsigned)bytes + 100};

	assert_int_equal(
		deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	b.bytes = z.total_out;
	deflateEnd(&z);
	return b;
}
#endif

static struct tern_data_error error;

static int read_bytes(struct bytes data, const struct bytes *labels, uint32_t context,
	struct tern_dataset **out)
{
	struct tern_data_file data_file = {
		.path = "data", .data = data.data, .bytes = data.bytes};
	struct tern_data_file labels_file = {.path = "labels"};

	if (labels) {
		labels_file.data = labels->data;
		labels_file.bytes = labels->bytes;
	}
	return tern_dataset_read(
		&data_file, labels ? &labels_file : NULL, context, 0, out, &error);
}

static struct tern_dataset *read_text(const char *text, uint32_t context)
{
	struct bytes data = copy_of(text, strlen(text));
	struct tern_dataset *dataset = NULL;
	int status = read_bytes(data, NULL, context, &dataset);

	if (status)
		fail_msg("%d: %s", status, error.text);
	free(data.data);
	return dataset;
}

/* Checks that the data is refused with exactly this sentence. Frees the bytes. */
static void refuse(struct bytes data, const struct bytes *labels, uint32_t context,
	const char *sentence)
{
	struct tern_dataset *dataset = NULL;

	assert_int_equal(read_bytes(data, labels, context, &dataset), -EINVAL);
	assert_null(dataset);
	assert_string_equal(error.text, sentence);
	free(data.data);
}

static void refuse_text(const char *text, uint32_t context, const char *sentence)
{
	refuse(copy_of(text, strlen(text)), NULL, context, sentence);
}

/* ---- IDX ---- */

#define IMAGES "\0\0\x08\x03\0\0\0\x03\0\0\0\x01\0\0\0\x02"
#define LABELS "\0\0\x08\x01\0\0\0\x03"

#define LITERAL(s) copy_of(s, sizeof(s) - 1)

static void test_idx_images_become_floats_from_0_to_1(void **state)
{
	struct bytes data = LITERAL(IMAGES "\x00\xff\x33\x01\x02\x03");
	struct bytes labels = LITERAL(LABELS "\x04\x00\x02");
	struct tern_dataset *dataset;
	float x[6];
	int32_t y[3];
	struct tern_batch batch = {.x = x, .labels = y};

	(void)state;
	assert_int_equal(read_bytes(data, &labels, 0, &dataset), 0);
	free(data.data);
	free(labels.data);
	assert_int_equal(dataset->kind, TERN_DATA_DENSE);
	assert_int_equal(dataset->count, 3);
	assert_int_equal(dataset->width, 2);
	assert_int_equal(dataset->class_count, 5);
	tern_dataset_batch(dataset, (uint64_t[]){2, 0, 1}, 3, &batch);
	assert_int_equal(batch.rows, 3);
	assert_true(x[0] == 2 / 255.0f && x[1] == 3 / 255.0f);
	assert_true(x[2] == 0 && x[3] == 1 && x[4] == 0.2f);
	assert_int_equal(y[0], 2);
	assert_int_equal(y[1], 4);
	assert_int_equal(y[2], 0);
	tern_dataset_free(dataset);
}

static void test_idx_errors_say_where_and_what(void **state)
{
	struct bytes labels = LITERAL(LABELS "\x04\x00\x02");
	struct bytes two_labels = LITERAL("\0\0\x08\x01\0\0\0\x02\x01\x01");
	struct bytes short_labels = LITERAL(LABELS "\x04\x00");
	struct bytes image_labels = LITERAL(IMAGES "123456");

	(void)state;
	refuse(LITERAL("hello"), &labels, 0,
		"data: byte 0: 'hell': expected an IDX file of images, which starts with "
		"'\\x00\\x00\\x08\\x03'");
	refuse(LITERAL(""), &labels, 0,
		"data: byte 0: '': expected an IDX file of images, which starts with "
		"'\\x00\\x00\\x08\\x03'");
	refuse(LITERAL("\0\0\x0d\x03"), &labels, 0,
		"data: byte 2: type 0x0d (32-bit floats): expected 0x08, unsigned bytes");
	refuse(LITERAL("\0\0\x42\x03"), &labels, 0,
		"data: byte 2: type 0x42 (an unknown type): expected 0x08, unsigned "
		"bytes");
	refuse(LITERAL(LABELS "\x04\x00\x02"), &labels, 0,
		"data: byte 3: 1 dimensions: expected 2 to 8 (is this the file of "
		"labels?)");
	refuse(LITERAL("\0\0\x08\xff"), &labels, 0,
		"data: byte 3: 255 dimensions: expected 2 to 8");
	refuse(LITERAL("\0\0\x08\x03\0\0\0\x03"), &labels, 0,
		"data: ends at byte 8, within the header of 16 bytes");
	refuse(LITERAL("\0\0\x08\x03\0\0\0\x03\0\0\0\x00\0\0\0\x02"), &labels, 0,
		"data: byte 8: dimension 1 is 0: expected 1 to 16777216 elements per "
		"record");
	refuse(LITERAL("\0\0\x08\x03\0\0\0\x03\0\1\0\x00\0\1\0\x02"), &labels, 0,
		"data: byte 12: dimension 2 is 65538: expected 1 to 16777216 elements "
		"per "
		"record");
	refuse(LITERAL(IMAGES "12345"), &labels, 0,
		"data: ends at byte 21: expected 22, a header of 16 and 3 x 2 bytes of "
		"images");
	refuse(LITERAL(IMAGES "1234567"), &labels, 0,
		"data: ends at byte 23: expected 22, a header of 16 and 3 x 2 bytes of "
		"images");
	refuse(LITERAL("\0\0\x08\x02\0\0\0\0\0\0\0\x05"), &labels, 0,
		"data: byte 4: no images");
	refuse(LITERAL(IMAGES "123456"), &image_labels, 0,
		"labels: byte 3: 3 dimensions: expected 1, since these are labels");
	refuse(LITERAL(IMAGES "123456"), &short_labels, 0,
		"labels: ends at byte 10: expected 11, a header of 8 and 3 x 1 bytes of "
		"labels");
	refuse(LITERAL(IMAGES "123456"), &two_labels, 0,
		"labels: byte 4: 2 labels: expected 3, one per image of data");
	refuse(LITERAL(IMAGES "123456"), NULL, 0,
		"data: this is an IDX file: its labels are in a file of their own, which "
		"was "
		"not given");
	refuse(LITERAL("text"), &labels, 2, "labels: a text has no file of labels");
	free(labels.data);
	free(two_labels.data);
	free(short_labels.data);
	free(image_labels.data);
}

/* ---- svmlight ---- */

static void test_svmlight_rows_become_dense(void **state)
{
	struct tern_dataset *dataset = read_text("# a comment\n"
						 "+1 0:1 2:-2.5e1 # another\r\n"
						 "\n"
						 "-1\n"
						 "-1.0\t1:.5   4:7",
		0);
	float x[15];
	int32_t y[3];
	struct tern_batch batch = {.x = x, .labels = y};
	static const float expected[15] = {
		1, 0, -25, 0, 0, 0, 0, 0, 0, 0, 0, 0.5f, 0, 0, 7};

	(void)state;
	assert_int_equal(dataset->count, 3);
	assert_int_equal(dataset->width, 5);
	assert_int_equal(dataset->class_count, 2);
	memset(x, 0x77, sizeof(x));
	tern_dataset_batch(dataset, (uint64_t[]){0, 1, 2}, 3, &batch);
	assert_memory_equal(x, expected, sizeof(x));
	assert_int_equal(y[0], 1);
	assert_int_equal(y[1], 0);
	assert_int_equal(y[2], 0);
	tern_dataset_free(dataset);
}

static void test_svmlight_rows_are_widened_when_asked(void **state)
{
	struct tern_data_file file = {
		.path = "data", .data = "1 3:1\n0 1:1\n", .bytes = 12};
	struct tern_dataset *dataset;

	(void)state;
	assert_int_equal(tern_dataset_read(&file, NULL, 0, 123, &dataset, &error), 0);
	assert_int_equal(dataset->width, 123);
	tern_dataset_free(dataset);
	assert_int_equal(tern_dataset_read(&file, NULL, 0, 2, &dataset, &error), 0);
	assert_int_equal(dataset->width, 4);
	tern_dataset_free(dataset);
}

static void test_svmlight_errors_say_where_and_what(void **state)
{
	(void)state;
	refuse_text("", 0,
		"data: no records in 0 bytes: expected lines of LABEL INDEX:VALUE ...");
	refuse_text("\n # none\n", 0,
		"data: no records in 9 bytes: expected lines of LABEL INDEX:VALUE ...");
	refuse_text("1 0:1\nspam 0:1\n", 0,
		"data: line 2: 'spam': expected a number as the label");
	refuse_text("3 0:1\n", 0,
		"data: line 1: '3': expected a label of -1 or +1, or of 0 or 1 (two "
		"classes)");
	refuse_text(
		"nan 0:1\n", 0, "data: line 1: 'nan': expected a number as the label");
	refuse_text("-1 0:1\n+1\n0 1:1\n", 0,
		"data: line 3: '0': expected labels of one kind in all lines: -1 and +1, "
		"or 0 and 1");
	refuse_text("1 7\n", 0, "data: line 1: '7': expected INDEX:VALUE");
	refuse_text("1 :7\n", 0, "data: line 1: ':7': expected INDEX:VALUE");
	refuse_text("1 qid:7\n", 0,
		"data: line 1: 'qid:7': expected INDEX:VALUE with a whole number as "
		"INDEX");
	refuse_text("1 -1:7\n", 0,
		"data: line 1: '-1:7': expected INDEX:VALUE with a whole number as "
		"INDEX");
	refuse_text("1 16777216:7\n", 0,
		"data: line 1: '16777216:7': expected an index below 16777216");
	refuse_text("1 99999999999999999999999999:7\n", 0,
		"data: line 1: '999999999999999999999999...': expected an index below "
		"16777216");
	refuse_text("1 1:\n", 0,
		"data: line 1: '1:': expected INDEX:VALUE with a number as VALUE");
	refuse_text("1 1:two\n", 0,
		"data: line 1: '1:two': expected INDEX:VALUE with a number as VALUE");
	refuse_text("1 1:0x1\n", 0,
		"data: line 1: '1:0x1': expected INDEX:VALUE with a number as VALUE");
	refuse_text("1 1:inf\n", 0,
		"data: line 1: '1:inf': expected INDEX:VALUE with a number as VALUE");
	refuse_text("1 1:1e99\n", 0,
		"data: line 1: '1:1e99': expected INDEX:VALUE with a number as VALUE");
	refuse_text("1 1:1-1\n", 0,
		"data: line 1: '1:1-1': expected INDEX:VALUE with a number as VALUE");
	refuse_text("1 2:1 2:1\n", 0,
		"data: line 1: '2:1': expected indices in increasing order");
	refuse_text("1 2:1 1:1\n", 0,
		"data: line 1: '1:1': expected indices in increasing order");
	refuse_text("1 1:\x01\xff\n", 0,
		"data: line 1: '1:\\x01\\xff': expected INDEX:VALUE with a number as "
		"VALUE");
}

/* ---- text ---- */

static void test_text_records_are_overlapping_windows(void **state)
{
	struct tern_dataset *dataset = read_text("banana", 2);
	int32_t ids[8], y[4];
	struct tern_batch batch = {.ids = ids, .labels = y};

	(void)state;
	assert_int_equal(dataset->kind, TERN_DATA_TEXT);
	assert_int_equal(dataset->count, 4);
	assert_int_equal(dataset->width, 2);
	assert_int_equal(dataset->class_count, 3);
	assert_memory_equal(dataset->symbol_bytes, "abn", 3);
	tern_dataset_batch(dataset, (uint64_t[]){0, 1, 2, 3}, 4, &batch);
	assert_memory_equal(ids, ((int32_t[]){1, 0, 0, 2, 2, 0, 0, 2}), sizeof(ids));
	assert_memory_equal(y, ((int32_t[]){2, 0, 2, 0}), sizeof(y));
	tern_dataset_free(dataset);
	refuse_text(
		"ba", 2, "data: 2 bytes of text: expected more than the 2 of context");
	refuse_text("", 8, "data: 0 bytes of text: expected more than the 8 of context");
}

static void test_ranges_share_and_outlive_the_whole(void **state)
{
	struct tern_dataset *whole = read_text("0 0:0\n0 0:1\n0 0:2\n1 0:3\n", 0);
	struct tern_dataset *tail, *last, *none;
	float x[1];
	int32_t y[1];
	struct tern_batch batch = {.x = x, .labels = y};

	(void)state;
	assert_int_equal(tern_dataset_range(whole, 5, 0, &tail), -EINVAL);
	assert_int_equal(tern_dataset_range(whole, 1, 4, &tail), -EINVAL);
	assert_int_equal(tern_dataset_range(whole, 1, UINT64_MAX, &tail), -EINVAL);
	assert_int_equal(tern_dataset_range(whole, 4, 0, &none), 0);
	assert_int_equal(tern_dataset_range(whole, 1, 3, &tail), 0);
	tern_dataset_free(whole);
	assert_int_equal(tern_dataset_range(tail, 2, 1, &last), 0);
	tern_dataset_free(tail);
	tern_dataset_batch(last, (uint64_t[]){0}, 1, &batch);
	assert_true(x[0] == 3);
	assert_int_equal(y[0], 1);
	tern_dataset_free(none);
	tern_dataset_free(last);
	tern_dataset_free(NULL);
}

/* ---- the digest ---- */

/* Digest of the records from number `first` on. */
static uint64_t digest_of(const char *text, uint32_t context, uint64_t first)
{
	struct tern_dataset *whole = read_text(text, context), *range;
	uint64_t digest;

	assert_int_equal(
		tern_dataset_range(whole, first, whole->count - first, &range), 0);
	digest = tern_dataset_digest(range);
	tern_dataset_free(whole);
	tern_dataset_free(range);
	return digest;
}

static void test_the_digest_is_of_the_records_alone(void **state)
{
	static const char *const others[] = {
		"1 0:1 3:2\n0 1:3 2:5\n",
		"1 0:1 3:2\n0 1:3 2:4\n0\n",
		"1 0:1 3:2\n1 1:3 2:4\n",
		"1 0:1 2:2\n0 1:3 3:4\n",
		"1 0:1 1:3 3:2\n0 2:4\n",
		"1 0:1 3:-2\n0 1:3 2:-4\n",
		"0 1:3 2:4\n1 0:1 3:2\n",
	};
	uint64_t digest = digest_of("1 0:1 3:2\n0 1:3 2:4\n", 0, 0);
	struct tern_dataset *whole, *range;
	struct bytes images = LITERAL(IMAGES "abcdef"), same = LITERAL(IMAGES "__cdef");
	struct bytes labels = LITERAL(LABELS "\0\1\2"), more = LITERAL(LABELS "\3\1\2");
	uint64_t digests[2];

	(void)state;
	assert_true(digest_of("0 0:9\n1 0:1 3:2\n0 1:3 2:4\n", 0, 1) == digest);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(others); i++)
		assert_true(digest_of(others[i], 0, 0) != digest);
	assert_true(digest_of("1\n0\n", 0, 0) != digest_of("0\n0\n", 0, 0));

	assert_true(digest_of("xabcabca", 3, 1) != digest_of("abcabca", 3, 0));
	assert_true(digest_of("cabcabca", 3, 1) == digest_of("abcabca", 3, 0));
	assert_true(digest_of("abcabcb", 3, 0) != digest_of("abcabca", 3, 0));

	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			read_bytes(i ? same : images, i ? &more : &labels, 0, &whole), 0);
		whole->class_count = 4;
		assert_int_equal(tern_dataset_range(whole, 1, 2, &range), 0);
		digests[i] = tern_dataset_digest(range);
		assert_true(tern_dataset_digest(whole) != digests[i]);
		tern_dataset_free(whole);
		tern_dataset_free(range);
	}
	assert_true(digests[0] == digests[1]);
	free(images.data);
	free(same.data);
	free(labels.data);
	free(more.data);
}

/* ---- compressed files ---- */

#if TERN_HAVE_ZLIB || TERN_HAVE_BZIP2
static void check_banana(struct bytes packed)
{
	struct tern_dataset *dataset;
	int status = read_bytes(packed, NULL, 2, &dataset);

	if (status)
		fail_msg("%s", error.text);
	assert_int_equal(dataset->count, 4);
	assert_memory_equal(dataset->symbols, "\1\0\2\0\2\0", 6);
	tern_dataset_free(dataset);
	free(packed.data);
}
#endif

#if TERN_HAVE_ZLIB
static void test_gzip_is_unpacked_member_by_member(void **state)
{
	(void)state;
	check_banana(gzip("banana", 6));
	check_banana(join(gzip("ban", 3), gzip("ana", 3)));
	check_banana(join(join(gzip("ban", 3), gzip("", 0)), gzip("ana", 3)));
	check_banana(join(gzip("banana", 6), LITERAL("\0\0\0\0")));
}

static void test_gzip_errors_say_where_and_what(void **state)
{
	struct bytes packed = gzip("banana", 6);
	char sentence[200];

	(void)state;
	refuse(copy_of(packed.data, 11), NULL, 2,
		"data: ends at byte 11 in the middle of the gzip data, after 0 bytes of "
		"contents");
	snprintf(sentence, sizeof(sentence),
		"data: ends at byte %zu in the middle of the gzip data, after 6 bytes of "
		"contents",
		packed.bytes - 1);
	refuse(copy_of(packed.data, packed.bytes - 1), NULL, 2, sentence);
	snprintf(sentence, sizeof(sentence),
		"data: byte %zu: 'tail' after the end of the gzip data", packed.bytes);
	refuse(join(copy_of(packed.data, packed.bytes), LITERAL("tail")), NULL, 2,
		sentence);
	packed.data[packed.bytes - 8] ^= 1;
	assert_int_equal(
		read_bytes(packed, NULL, 2, &(struct tern_dataset *){NULL}), -EINVAL);
	assert_non_null(strstr(error.text, "the gzip data is corrupt (incorrect data "
					   "check), after 6 bytes of contents"));
	packed.data[2] = 9;
	refuse(packed, NULL, 2,
		"data: byte 4: the gzip data is corrupt (unknown compression method), "
		"after 0 "
		"bytes of contents");
}

static void test_a_bomb_is_refused(void **state)
{
	size_t bytes = 100u << 20;
	void *zeros = calloc(1, bytes);
	struct bytes bomb = gzip(zeros, bytes);
	struct tern_dataset *dataset;

	(void)state;
	free(zeros);
	assert_int_equal(read_bytes(bomb, NULL, 8, &dataset), -EINVAL);
	assert_non_null(
		strstr(error.text, "this is not data, but made to exhaust memory"));
	free(bomb.data);
}
#endif

#if !TERN_HAVE_ZLIB || !TERN_HAVE_BZIP2
static void check_left_out(struct bytes data, const char *sentence)
{
	struct tern_dataset *dataset;

	assert_int_equal(read_bytes(data, NULL, 2, &dataset), -ENOTSUP);
	assert_string_equal(error.text, sentence);
	free(data.data);
}
#endif

#if !TERN_HAVE_ZLIB
static void test_gzip_says_that_it_is_not_built_in(void **state)
{
	(void)state;
	check_left_out(LITERAL("\x1f\x8b\x08xxxx"),
		"data: is packed with gzip, which was not built in: unpack it first");
}
#endif

static void test_text_that_starts_like_bzip2_is_text(void **state)
{
	(void)state;
	tern_dataset_free(read_text("BZh9 is how bzip2 files start", 3));
}

#if TERN_HAVE_BZIP2
static struct bytes bzip2_of(const void *data, size_t bytes)
{
	unsigned packed = (unsigned)bytes + 1000;
	struct bytes b = {0, malloc(packed)};

	assert_int_equal(BZ2_bzBuffToBuffCompress((char *)b.data, &packed,
				 (char *)(uintptr_t)data, (unsigned)bytes, 9, 0, 0),
		BZ_OK);
	b.bytes = packed;
	return b;
}

static struct bytes bzip2(const char *text)
{
	return bzip2_of(text, strlen(text));
}

static void test_bzip2_is_unpacked_stream_by_stream(void **state)
{
	(void)state;
	check_banana(bzip2("banana"));
	check_banana(join(bzip2("ban"), bzip2("ana")));
	check_banana(join(join(bzip2("ban"), bzip2("")), bzip2("ana")));
}

static void test_bzip2_errors_say_where_and_what(void **state)
{
	struct bytes packed = bzip2("banana");

	(void)state;
	refuse(copy_of(packed.data, 20), NULL, 2,
		"data: ends at byte 20 in the middle of the bzip2 data, after 0 bytes of "
		"contents");
	packed.data[12] ^= 1;
	assert_int_equal(
		read_bytes(packed, NULL, 2, &(struct tern_dataset *){NULL}), -EINVAL);
	assert_non_null(strstr(error.text, "the bzip2 data is corrupt (checksum)"));
	free(packed.data);
}
#else
static void test_bzip2_says_that_it_is_not_built_in(void **state)
{
	(void)state;
	check_left_out(LITERAL("BZh91AY&SYxxxx"),
		"data: is packed with bzip2, which was not built in: unpack it first");
}
#endif

/* ---- permutation ---- */

static void test_every_epoch_is_a_permutation_of_its_own(void **state)
{
	static const uint64_t counts[] = {1, 2, 3, 5, 64, 65, 1000, 4096, 10007};
	bool *seen = malloc(10007);

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(counts); i++) {
		uint64_t count = counts[i], same = 0, fixed = 0;

		for (uint64_t epoch = 0; epoch < 3; epoch++) {
			memset(seen, 0, count);
			for (uint64_t n = 0; n < count; n++) {
				uint64_t at =
					tern_permutation_at(1, count, epoch * count + n);

				assert_true(at < count && !seen[at]);
				seen[at] = true;
				fixed += at == n;
				same += at == tern_permutation_at(1, count, n) &&
					epoch > 0;
			}
		}
		/* Three random permutations have about 3 fixed points in all, and the
		 * last two agree with the first in about 2 places. */
		if (count >= 64) {
			assert_true(fixed < 20);
			assert_true(same < 20);
		}
	}
	free(seen);
}

static void test_the_permutation_depends_on_the_seed_alone(void **state)
{
	uint64_t differing = 0;

	(void)state;
	for (uint64_t n = 0; n < 1000; n++)
		differing += tern_permutation_at(1, 1000, n) !=
			     tern_permutation_at(2, 1000, n);
	assert_true(differing > 950);
	/* The order of the records determines every result of training, so these values
	 * must never change. */
	assert_int_equal(tern_permutation_at(1, 60000, 0), 796);
	assert_int_equal(tern_permutation_at(1, 60000, 59999), 55326);
	assert_int_equal(
		tern_permutation_at(7, 1ull << 40, 12345678901234), 623073715624);
}

/* ---- stopping ------------------------------------------------------------------------
 */

#define STOP_PIECES 3

struct patience {
	unsigned asked, most;
};

static bool is_out(void *arg)
{
	struct patience *p = arg;

	return ++p->asked > p->most;
}

/* Checks that the reader asks at least STOP_PIECES times whether it should stop, and stops
 * if it is told to. Frees the bytes. */
static void check_stops(struct bytes data, struct bytes labels, uint32_t context)
{
	struct patience p = {0};
	struct tern_data_file files[] = {
		{.path = "data", .data = data.data, .bytes = data.bytes},
		{.path = "labels", .data = labels.data, .bytes = labels.bytes}};
	struct tern_dataset *dataset = NULL;
	int status;

	for (size_t i = 0; i < TERN_ARRAY_SIZE(files); i++) {
		files[i].stop = is_out;
		files[i].stop_arg = &p;
	}
	for (;; p.most = 2 * p.most + 1) {
		p.asked = 0;
		status = tern_dataset_read(&files[0], labels.bytes ? &files[1] : NULL,
			context, 0, &dataset, &error);
		if (status == 0)
			break;
		assert_int_equal(status, -ECANCELED);
		assert_null(dataset);
	}
	assert_true(p.asked >= STOP_PIECES);
	tern_dataset_free(dataset);
	free(data.data);
	free(labels.data);
}

static struct bytes repeated(const char *text)
{
	size_t bytes = strlen(text);
	struct bytes b = {STOP_PIECES * TERN_DATA_PIECE / bytes * bytes, NULL};

	b.data = malloc(b.bytes);
	for (size_t at = 0; at < b.bytes; at += bytes)
		memcpy(b.data + at, text, bytes);
	return b;
}

static void test_reading_text_stops_when_asked(void **state)
{
	(void)state;
	check_stops(repeated("abc"), (struct bytes){0}, 8);
}

static void test_reading_idx_stops_when_asked(void **state)
{
	/* According to its header, the file has 0x00600000 images of 1 x 2 bytes. */
	unsigned char images[] = IMAGES, labels[] = LABELS, number[] = {0, 0x60, 0, 0};
	uint32_t count = 0x600000;
	struct bytes data = {16 + 2 * (size_t)count, calloc(2, count + 8)};
	struct bytes classes = {8 + (size_t)count, calloc(1, count + 8)};

	(void)state;
	memcpy(images + 4, number, 4);
	memcpy(labels + 4, number, 4);
	memcpy(data.data, images, 16);
	memcpy(classes.data, labels, 8);
	check_stops(data, classes, 0);
}

static void test_reading_svmlight_stops_when_asked(void **state)
{
	(void)state;
	check_stops(repeated("1 1:0.5 2:3\n"), (struct bytes){0}, 0);
	check_stops(repeated("# no record\n1 1:1\n"), (struct bytes){0}, 0);
}

static void test_reading_a_long_line_stops_when_asked(void **state)
{
	size_t room = STOP_PIECES * TERN_DATA_PIECE + 100;
	struct bytes line = {0, malloc(room)};

	(void)state;
	line.bytes = (size_t)sprintf((char *)line.data, "1");
	for (unsigned i = 0; line.bytes < STOP_PIECES * TERN_DATA_PIECE; i++)
		line.bytes += (size_t)snprintf(
			(char *)line.data + line.bytes, room - line.bytes, " %u:1", i);
	check_stops(line, (struct bytes){0}, 0);
}

#if TERN_HAVE_ZLIB
static void test_unpacking_gzip_stops_when_asked(void **state)
{
	struct bytes text = repeated("abc");
	struct bytes packed = gzip(text.data, text.bytes);

	(void)state;
	free(text.data);
	check_stops(packed, (struct bytes){0}, 8);
}
#endif

#if TERN_HAVE_BZIP2
static void test_unpacking_bzip2_stops_when_asked(void **state)
{
	struct bytes text = repeated("abc");
	struct bytes packed = bzip2_of(text.data, text.bytes);

	(void)state;
	free(text.data);
	check_stops(packed, (struct bytes){0}, 8);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_idx_images_become_floats_from_0_to_1),
		cmocka_unit_test(test_idx_errors_say_where_and_what),
		cmocka_unit_test(test_svmlight_rows_become_dense),
		cmocka_unit_test(test_svmlight_rows_are_widened_when_asked),
		cmocka_unit_test(test_svmlight_errors_say_where_and_what),
		cmocka_unit_test(test_text_records_are_overlapping_windows),
		cmocka_unit_test(test_ranges_share_and_outlive_the_whole),
		cmocka_unit_test(test_the_digest_is_of_the_records_alone),
#if TERN_HAVE_ZLIB
		cmocka_unit_test(test_gzip_is_unpacked_member_by_member),
		cmocka_unit_test(test_gzip_errors_say_where_and_what),
		cmocka_unit_test(test_a_bomb_is_refused),
#else
		cmocka_unit_test(test_gzip_says_that_it_is_not_built_in),
#endif
		cmocka_unit_test(test_text_that_starts_like_bzip2_is_text),
#if TERN_HAVE_BZIP2
		cmocka_unit_test(test_bzip2_is_unpacked_stream_by_stream),
		cmocka_unit_test(test_bzip2_errors_say_where_and_what),
#else
		cmocka_unit_test(test_bzip2_says_that_it_is_not_built_in),
#endif
		cmocka_unit_test(test_reading_text_stops_when_asked),
		cmocka_unit_test(test_reading_idx_stops_when_asked),
		cmocka_unit_test(test_reading_svmlight_stops_when_asked),
		cmocka_unit_test(test_reading_a_long_line_stops_when_asked),
#if TERN_HAVE_ZLIB
		cmocka_unit_test(test_unpacking_gzip_stops_when_asked),
#endif
#if TERN_HAVE_BZIP2
		cmocka_unit_test(test_unpacking_bzip2_stops_when_asked),
#endif
		cmocka_unit_test(test_every_epoch_is_a_permutation_of_its_own),
		cmocka_unit_test(test_the_permutation_depends_on_the_seed_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
