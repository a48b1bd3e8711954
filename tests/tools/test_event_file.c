/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the files that TensorBoard reads: a reader that shares no code with them reads them
 * back, also while they are written, and after a write has failed. */
#include "tests/tools/event_reader.h"

#include "tests/harness/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/event_file.h"

static char directory[64];
static struct read_event events[200];
static char paths[8][512];

static int setup(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/tern-event-file-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", directory);
	return system(command);
}

static size_t put_loss(struct event_file *file, uint64_t step, float value, int expected)
{
	uint8_t record[EVENT_RECORD_MAX];
	size_t n = event_scalars(
		record, 7.5, step, &(struct event_scalar){"loss", value}, 1);

	assert_int_equal(event_file_append(file, record, n), expected);
	return n;
}

static void test_a_file_begins_with_version_and_start(void **state)
{
	struct event_file file = {.fd = -1};
	uint64_t start = 301;

	(void)state;
	assert_int_equal(event_file_open(&file, directory, &start), 0);
	event_file_close(&file);
	assert_int_equal(read_file(file.path, events, 200), 2);
	assert_string_equal(events[0].version, "brain.Event:2");
	assert_true(events[1].starts && events[1].step == 301);
	assert_true(events[1].wall_s > 1.7e9);

	assert_int_equal(event_file_open(&file, directory, NULL), 0);
	event_file_close(&file);
	assert_int_equal(read_file(file.path, events, 200), 1);
}

static void test_scalars_are_read_back(void **state)
{
	struct event_file file = {.fd = -1};
	struct event_scalar scalars[EVENT_SCALARS_MAX];
	uint8_t record[EVENT_RECORD_MAX];
	char tag[EVENT_TAG_MAX + 1];
	uint64_t step = 1ull << 62;
	size_t n;

	(void)state;
	memset(tag, 'm', EVENT_TAG_MAX);
	tag[EVENT_TAG_MAX] = '\0';
	for (unsigned i = 0; i < EVENT_SCALARS_MAX; i++)
		scalars[i] = (struct event_scalar){tag, (float)i / 3};
	scalars[0].value = (float)NAN;
	scalars[1].value = -(float)INFINITY;
	assert_int_equal(event_file_open(&file, directory, NULL), 0);
	n = event_scalars(record, 1795924936.25, step, scalars, EVENT_SCALARS_MAX);
	assert_true(n <= EVENT_RECORD_MAX);
	assert_int_equal(event_file_append(&file, record, n), 0);
	event_file_close(&file);
	assert_int_equal(read_file(file.path, events, 200), 2);
	assert_true(events[1].wall_s == 1795924936.25 && events[1].step == step);
	assert_int_equal(events[1].scalar_count, EVENT_SCALARS_MAX);
	assert_true(isnan(events[1].scalars[0].value));
	assert_true(events[1].scalars[1].value == -(float)INFINITY);
	assert_true(events[1].scalars[7].value == 7.0f / 3);
	assert_string_equal(events[1].scalars[7].tag, tag);
}

/* The bytes that TensorBoard's own RecordWriter makes of the same messages. */
static void test_records_have_the_bytes_of_another_writer(void **state)
{
	static const uint8_t scalars[] = {0x34, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
		0x5e, 0x33, 0x17, 0x5c, 0x09, 0x00, 0x00, 0x10, 0xf2, 0xe8, 0xc2, 0xda,
		0x41, 0x10, 0xac, 0x02, 0x2a, 0x26, 0x0a, 0x0b, 0x0a, 0x04, 0x6c, 0x6f,
		0x73, 0x73, 0x15, 0x00, 0x00, 0x00, 0x3f, 0x0a, 0x17, 0x0a, 0x10, 0x6d,
		0x65, 0x74, 0x72, 0x69, 0x63, 0x73, 0x2f, 0x61, 0x63, 0x63, 0x75, 0x72,
		0x61, 0x63, 0x79, 0x15, 0x00, 0x00, 0x40, 0x3f, 0x0c, 0xb0, 0x15, 0xf2};
	static const uint8_t start[] = {0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
		0x95, 0xfb, 0xfe, 0x18, 0x09, 0x00, 0x00, 0x10, 0xf2, 0xe8, 0xc2, 0xda,
		0x41, 0x10, 0xad, 0x02, 0x3a, 0x02, 0x08, 0x01, 0xea, 0x0e, 0x6c, 0xb0};
	const struct event_scalar both[] = {{"loss", 0.5f}, {"metrics/accuracy", 0.75f}};
	uint8_t record[EVENT_RECORD_MAX];

	(void)state;
	assert_int_equal(
		event_scalars(record, 1795924936.25, 300, both, 2), sizeof(scalars));
	assert_memory_equal(record, scalars, sizeof(scalars));
	assert_int_equal(event_start(record, 1795924936.25, 301), sizeof(start));
	assert_memory_equal(record, start, sizeof(start));
}

/* A program that reads the file while it is written, or after the writer was killed, sees whole
 * records and perhaps a part of the next one. */
static void test_each_part_of_a_file_can_be_read(void **state)
{
	struct event_file file = {.fd = -1};
	uint8_t data[4096];
	ssize_t bytes;
	size_t used, before = 0;
	int fd;

	(void)state;
	assert_int_equal(event_file_open(&file, directory, NULL), 0);
	for (uint64_t step = 1; step <= 20; step++)
		put_loss(&file, step, 1 / (float)step, 0);
	event_file_close(&file);
	fd = open(file.path, O_RDONLY | O_CLOEXEC);
	bytes = read(fd, data, sizeof(data));
	close(fd);
	assert_true(bytes > 0 && bytes < (ssize_t)sizeof(data));
	for (size_t n = 0; n <= (size_t)bytes; n++) {
		size_t count = read_records(data, n, events, 200, &used);

		assert_true(count == before || count == before + 1);
		before = count;
	}
	assert_int_equal(before, 21);
}

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
	setrlimit(RLIMIT_FSIZE, &limit);
}

/* A limit of the file's size is met in the middle of a record, as the end of a disk is. */
static void test_half_a_record_is_taken_back(void **state)
{
	struct event_file file = {.fd = -1};
	struct stat st;
	uint64_t whole;

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(event_file_open(&file, directory, NULL), 0);
	put_loss(&file, 1, 1, 0);
	whole = file.bytes;
	limit_files(whole + 10);
	put_loss(&file, 2, 0.5f, -EFBIG);
	put_loss(&file, 3, 0.4f, -EFBIG);
	assert_int_equal(stat(file.path, &st), 0);
	assert_int_equal(st.st_size, whole);
	limit_files(RLIM_INFINITY);
	put_loss(&file, 4, 0.25f, 0);
	event_file_close(&file);
	assert_int_equal(read_file(file.path, events, 200), 3);
	assert_int_equal(events[2].step, 4);
}

static void test_a_file_that_cannot_be_begun_leaves_nothing(void **state)
{
	struct event_file file = {.fd = -1};

	(void)state;
	limit_files(20);
	assert_int_equal(event_file_open(&file, directory, NULL), -EFBIG);
	limit_files(RLIM_INFINITY);
	assert_int_equal(list_files(directory, paths, 8), 0);
	assert_int_equal(event_file_open(&file, "/nonexistent", NULL), -ENOENT);
	assert_int_equal(file.fd, -1);
}

static void test_the_newest_file_has_the_last_name(void **state)
{
	struct event_file file = {.fd = -1};
	char path[600];

	(void)state;
	/* The file of a process on a host whose clock is an hour ahead. */
	snprintf(path, sizeof(path), "%s/events.out.tfevents.%010lld.other.7.0",
		directory, (long long)time(NULL) + 3600);
	close(creat(path, 0666));
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(event_file_open(&file, directory, NULL), 0);
		event_file_close(&file);
		assert_int_equal(list_files(directory, paths, 8), i + 2);
		assert_string_equal(paths[i + 1], file.path);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_a_file_begins_with_version_and_start, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_scalars_are_read_back, setup, teardown),
		cmocka_unit_test(test_records_have_the_bytes_of_another_writer),
		cmocka_unit_test_setup_teardown(
			test_each_part_of_a_file_can_be_read, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_half_a_record_is_taken_back, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_file_that_cannot_be_begun_leaves_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_the_newest_file_has_the_last_name, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
