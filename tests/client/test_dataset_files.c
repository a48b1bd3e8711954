/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the readers of data sets on real files, if TERN_DATA_DIR names their folder,
 * and on thousands of small files with a few changed bytes: each file must be read, or
 * refused with a sentence.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "client/data/dataset.h"
#include "tern-config.h"

#if TERN_HAVE_ZLIB
#include <zlib.h>
#endif
#if TERN_HAVE_BZIP2
#include <bzlib.h>
#endif

static struct tern_data_error error;

/* ---- real files ---- */

static int skipped;

#if TERN_HAVE_ZLIB || TERN_HAVE_BZIP2
/* Reads a file; skips the test if TERN_DATA_DIR is not set. The caller frees the
 * bytes. */
static struct tern_data_file load(const char *name)
{
	const char *folder = getenv("TERN_DATA_DIR");
	struct tern_data_file file = {.path = name};
	char path[4096];
	FILE *stream;
	void *data;

	if (!folder) {
		print_message("SKIP: TERN_DATA_DIR is not set: no %s\n", name);
		skipped++;
		skip();
	}
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	stream = fopen(path, "rb");
	if (!stream)
		fail_msg("%s: %s", path, strerror(errno));
	data = malloc(16 << 20);
	file.bytes = fread(data, 1, 16 << 20, stream);
	file.data = data;
	fclose(stream);
	return file;
}

static void unload(struct tern_data_file *file)
{
	free((void *)(uintptr_t)file->data);
}
#endif

#if !TERN_HAVE_ZLIB || !TERN_HAVE_BZIP2
static void skip_packed(const char *format)
{
	print_message("SKIP: %s is not built in\n", format);
	skipped++;
	skip();
}
#endif

#if TERN_HAVE_ZLIB
static void test_mnist_is_read(void **state)
{
	struct tern_data_file images = load("t10k-images-idx3-ubyte.gz");
	struct tern_data_file labels = load("t10k-labels-idx1-ubyte.gz");
	struct tern_dataset *dataset;
	int32_t label[4];
	float x[4 * 784];
	struct tern_batch batch = {.x = x, .labels = label};
	double sum = 0;

	(void)state;
	if (tern_dataset_read(&images, &labels, 0, 0, &dataset, &error))
		fail_msg("%s", error.text);
	unload(&images);
	unload(&labels);
	assert_int_equal(dataset->count, 10000);
	assert_int_equal(dataset->width, 784);
	assert_int_equal(dataset->class_count, 10);
	/* The first labels of MNIST's test set are 7, 2, 1, 0. */
	tern_dataset_batch(dataset, (uint64_t[]){0, 1, 2, 3}, 4, &batch);
	assert_memory_equal(label, ((int32_t[]){7, 2, 1, 0}), sizeof(label));
	for (size_t i = 0; i < TERN_ARRAY_SIZE(x); i++) {
		assert_true(x[i] >= 0 && x[i] <= 1);
		sum += x[i];
	}
	assert_true(sum > 4 * 30 && sum < 4 * 300);
	tern_dataset_free(dataset);
}
#else
static void test_mnist_is_read(void **state)
{
	(void)state;
	skip_packed("gzip");
}
#endif

#if TERN_HAVE_BZIP2
static void check_adult(const char *name, uint64_t count, uint64_t positive_count)
{
	struct tern_data_file file = load(name);
	struct tern_dataset *dataset;
	float x[123];
	int32_t label;
	struct tern_batch batch = {.x = x, .labels = &label};
	uint64_t positives = 0;

	if (tern_dataset_read(&file, NULL, 0, 123, &dataset, &error))
		fail_msg("%s", error.text);
	unload(&file);
	assert_int_equal(dataset->count, count);
	assert_int_equal(dataset->width, 123);
	assert_int_equal(dataset->class_count, 2);
	for (uint64_t i = 0; i < count; i++) {
		tern_dataset_batch(dataset, &i, 1, &batch);
		positives += (uint64_t)label;
		for (size_t j = 0; j < TERN_ARRAY_SIZE(x); j++)
			assert_true(x[j] == 0 || x[j] == 1);
	}
	assert_int_equal(positives, positive_count);
	tern_dataset_free(dataset);
}

static void test_adult_is_read(void **state)
{
	(void)state;
	check_adult("adult.trn.bz2", 32561, 7841);
	check_adult("adult.tst.bz2", 16281, 3846);
}
#else
static void test_adult_is_read(void **state)
{
	(void)state;
	skip_packed("bzip2");
}
#endif

/* ---- changed files ---- */

struct sample {
	unsigned char data[512];
	size_t bytes;
	uint32_t context;
	bool has_labels;
};

static const char images[] = "\0\0\x08\x03\0\0\0\x04\0\0\0\x02\0\0\0\x03"
			     "abcdefghijklmnopqrstuvwx";
static const char labels[] = "\0\0\x08\x01\0\0\0\x04\x00\x01\x02\x09";
static const char rows[] =
	"+1 0:1 5:-2.25e-1 # comment\n-1 3:7\r\n\n-1 1:1 2:0.5 122:3\n";

#if TERN_HAVE_ZLIB
static size_t gzip(void *out, size_t room, const void *data, size_t bytes)
{
	z_stream z = {.next_in = (Bytef *)(uintptr_t)data,
		.avail_in = (unsigned)bytes,
		.next_out = out,
		.avail_out = (unsigned)room};

	assert_int_equal(
		deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}
#endif

static size_t make_samples(struct sample *samples)
{
	size_t count = 0;
	struct sample *s;

	s = &samples[count++];
	*s = (struct sample){.bytes = sizeof(images) - 1, .has_labels = true};
	memcpy(s->data, images, s->bytes);
	s = &samples[count++];
	*s = (struct sample){.bytes = sizeof(rows) - 1};
	memcpy(s->data, rows, s->bytes);
	s = &samples[count++];
	*s = (struct sample){.bytes = sizeof(rows) - 1, .context = 3};
	memcpy(s->data, rows, s->bytes);
#if TERN_HAVE_ZLIB
	s = &samples[count++];
	*s = (struct sample){.has_labels = true};
	s->bytes = gzip(s->data, sizeof(s->data), images, sizeof(images) - 1);
	s = &samples[count++];
	*s = (struct sample){0};
	s->bytes = gzip(s->data, sizeof(s->data), rows, 30);
	s->bytes += gzip(s->data + s->bytes, sizeof(s->data) - s->bytes, rows + 30,
		sizeof(rows) - 31);
#endif
#if TERN_HAVE_BZIP2
	unsigned room = sizeof(s->data);

	s = &samples[count++];
	*s = (struct sample){0};
	assert_int_equal(BZ2_bzBuffToBuffCompress((char *)s->data, &room,
				 (char *)(uintptr_t)rows, sizeof(rows) - 1, 1, 0, 0),
		BZ_OK);
	s->bytes = room;
#endif
	return count;
}

/* Makes one to four random changes to a file: repeats, removes or sets a byte, flips a
 * bit, or cuts off the rest of the file. Returns the new size. */
static size_t mutate(struct tern_rng *rng, unsigned char *data, size_t bytes, size_t room)
{
	static const char spice[] = "\0\xff\x7f\x80\n :#-+.e9";

	for (uint64_t times = 1 + tern_rng_below(rng, 4); times > 0; times--) {
		size_t at = bytes ? tern_rng_below(rng, bytes) : 0;

		switch (tern_rng_below(rng, 6)) {
		case 0:
			bytes = at;
			break;
		case 1:
			if (bytes && bytes < room) {
				memmove(data + at + 1, data + at, bytes - at);
				bytes++;
			}
			break;
		case 2:
			if (bytes)
				memmove(data + at, data + at + 1, --bytes - at);
			break;
		case 3:
			if (bytes)
				data[at] = (unsigned char)
					spice[tern_rng_below(rng, sizeof(spice))];
			break;
		default:
			if (bytes)
				data[at] ^= (unsigned char)(1u << tern_rng_below(rng, 8));
		}
	}
	return bytes;
}

/* Reads the first records of an accepted data set, at most four. */
static void use(struct tern_dataset *dataset)
{
	float *x = malloc(dataset->width * sizeof(*x));
	int32_t *ids = malloc(dataset->width * sizeof(*ids));
	int32_t label;
	struct tern_batch batch = {.x = x, .ids = ids, .labels = &label};

	assert_true(dataset->count > 0);
	assert_true(dataset->width > 0 && dataset->class_count > 0);
	for (uint64_t i = 0; i < TERN_MIN(dataset->count, (uint64_t)4); i++) {
		tern_dataset_batch(dataset, &i, 1, &batch);
		assert_in_range(label, 0, dataset->class_count - 1);
	}
	free(x);
	free(ids);
}

static void try_sample(const struct sample *sample, uint64_t seed, int *accepted)
{
	struct tern_rng rng = {.seed = seed};
	unsigned char changed[600];
	size_t bytes = sample->bytes;
	struct tern_data_file file = {.path = "sample", .data = NULL, .bytes = 0};
	struct tern_data_file labels_file = {
		.path = "labels", .data = labels, .bytes = sizeof(labels) - 1};
	struct tern_dataset *dataset = NULL;
	void *exact;
	int status;

	memcpy(changed, sample->data, bytes);
	if (seed)
		bytes = mutate(&rng, changed, bytes, sizeof(changed));
	/* The copy has exactly its size, so that a sanitizer notices a read beyond the
	 * end. */
	exact = malloc(bytes + !bytes);
	memcpy(exact, changed, bytes);
	file.data = exact;
	file.bytes = bytes;
	status = tern_dataset_read(&file, sample->has_labels ? &labels_file : NULL,
		sample->context, 0, &dataset, &error);
	free(exact);
	if (status == 0) {
		use(dataset);
		tern_dataset_free(dataset);
		(*accepted)++;
		return;
	}
	if (status != -EINVAL || !error.text[0])
		fail_msg("seed %llu: status %d, '%s'", (unsigned long long)seed, status,
			error.text);
}

static void test_changed_files_are_read_or_refused(void **state)
{
	struct sample *samples = calloc(8, sizeof(*samples));
	size_t count = make_samples(samples);
	int accepted = 0, refused;

	(void)state;
	for (size_t i = 0; i < count; i++)
		try_sample(&samples[i], 0, &accepted);
	assert_int_equal(accepted, count);
	for (uint64_t seed = 1; seed <= 6000; seed++)
		try_sample(&samples[seed % count], seed, &accepted);
	/* The test would prove nothing if nearly all files were accepted, or nearly all
	 * refused. */
	refused = 6000 + (int)count - accepted;
	assert_true(accepted > 600 && refused > 3000);
	free(samples);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mnist_is_read),
		cmocka_unit_test(test_adult_is_read),
		cmocka_unit_test(test_changed_files_are_read_or_refused),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	return failed ? failed : skipped ? 77 : 0;
}
