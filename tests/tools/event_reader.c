/* SPDX-License-Identifier: Apache-2.0 */
/* See event_reader.h. */
#include "tests/tools/event_reader.h"

#include "tests/harness/cmocka.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct span {
	const uint8_t *at, *end;
};

static uint64_t little(const uint8_t *at, unsigned bytes)
{
	uint64_t n = 0;

	while (bytes--)
		n = n << 8 | at[bytes];
	return n;
}

/* CRC32C bit by bit, by its reversed polynomial, and masked as TFRecord has it. */
static uint32_t checksum(const uint8_t *data, size_t bytes)
{
	uint32_t crc = 0xffffffff;

	for (size_t i = 0; i < bytes; i++) {
		crc ^= data[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	crc = ~crc;
	return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static uint64_t take(struct span *s, unsigned bytes)
{
	uint64_t n;

	assert_true(s->end - s->at >= (ptrdiff_t)bytes);
	n = little(s->at, bytes);
	s->at += bytes;
	return n;
}

static uint64_t take_varint(struct span *s)
{
	uint64_t n = 0;

	for (unsigned shift = 0; shift < 70; shift += 7) {
		uint64_t byte = take(s, 1);

		n |= (byte & 0x7f) << shift;
		if (byte < 0x80)
			return n;
	}
	fail_msg("a varint has more than ten bytes");
	return 0;
}

static struct span take_span(struct span *s)
{
	uint64_t bytes = take_varint(s);
	struct span inner = {s->at, s->at + bytes};

	assert_true((uint64_t)(s->end - s->at) >= bytes);
	s->at += bytes;
	return inner;
}

static void read_text(struct span s, char *out, size_t room)
{
	size_t bytes = (size_t)(s.end - s.at);

	assert_true(bytes < room);
	memcpy(out, s.at, bytes);
	out[bytes] = '\0';
}

static void read_scalar(struct span s, struct read_event *e)
{
	size_t i = e->scalar_count++;
	uint32_t bits;

	assert_true(i < READ_SCALARS_MAX);
	assert_int_equal(take_varint(&s), 1 << 3 | 2);
	read_text(take_span(&s), e->scalars[i].tag, sizeof(e->scalars[i].tag));
	assert_int_equal(take_varint(&s), 2 << 3 | 5);
	bits = (uint32_t)take(&s, 4);
	memcpy(&e->scalars[i].value, &bits, sizeof(bits));
	assert_ptr_equal(s.at, s.end);
}

static void read_summary(struct span s, struct read_event *e)
{
	while (s.at < s.end) {
		assert_int_equal(take_varint(&s), 1 << 3 | 2);
		read_scalar(take_span(&s), e);
	}
}

static void read_log(struct span s, struct read_event *e)
{
	assert_int_equal(take_varint(&s), 1 << 3);
	assert_int_equal(take_varint(&s), 1);
	assert_ptr_equal(s.at, s.end);
	e->starts = true;
}

static void read_message(struct span s, struct read_event *e)
{
	uint64_t bits;

	memset(e, 0, sizeof(*e));
	while (s.at < s.end) {
		switch (take_varint(&s)) {
		case 1 << 3 | 1:
			bits = take(&s, 8);
			memcpy(&e->wall_s, &bits, sizeof(bits));
			break;
		case 2 << 3:
			e->step = take_varint(&s);
			break;
		case 3 << 3 | 2:
			read_text(take_span(&s), e->version, sizeof(e->version));
			break;
		case 5 << 3 | 2:
			read_summary(take_span(&s), e);
			break;
		case 7 << 3 | 2:
			read_log(take_span(&s), e);
			break;
		default:
			fail_msg("an event has a field that is not expected");
		}
	}
}

size_t read_records(const uint8_t *data, size_t bytes, struct read_event *events,
	size_t limit, size_t *used)
{
	size_t count = 0, at = 0;

	while (bytes - at >= 12) {
		uint64_t n = little(data + at, 8);

		assert_int_equal(little(data + at + 8, 4), checksum(data + at, 8));
		if (bytes - at - 12 < n + 4)
			break;
		assert_int_equal(little(data + at + 12 + n, 4),
			checksum(data + at + 12, (size_t)n));
		assert_true(count < limit);
		read_message((struct span){data + at + 12, data + at + 12 + n},
			&events[count++]);
		at += (size_t)n + 16;
	}
	*used = at;
	return count;
}

size_t read_file(const char *path, struct read_event *events, size_t limit)
{
	static uint8_t data[1 << 20];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, data, sizeof(data));
	size_t used, count;

	assert_true(n >= 0 && n < (ssize_t)sizeof(data));
	close(fd);
	count = read_records(data, (size_t)n, events, limit, &used);
	assert_int_equal(used, n);
	return count;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

size_t list_files(const char *directory, char (*paths)[512], size_t limit)
{
	DIR *dir = opendir(directory);
	const struct dirent *entry;
	size_t count = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		if (*entry->d_name == '.')
			continue;
		assert_non_null(strstr(entry->d_name, "tfevents"));
		assert_true(count < limit);
		snprintf(paths[count++], sizeof(*paths), "%s/%s", directory,
			entry->d_name);
	}
	closedir(dir);
	qsort(paths, count, sizeof(*paths), by_name);
	return count;
}
