/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See event_file.h. The messages are few and small, so they are encoded by hand. Fields of Event:
 * 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log; of Summary: 1 value; of a value:
 * 1 tag, 2 simple_value; of SessionLog: 1 status.
 */
#include "tools/event_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/endian.h"
#include "transport/tcp/crc32c.h"

#define PREFIX "events.out.tfevents."

/* ---- messages ---- */

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

#define SESSION_START 1u /* a status of SessionLog */

static uint8_t *put_varint(uint8_t *at, uint64_t n)
{
	for (; n >= 0x80; n >>= 7)
		*at++ = (uint8_t)(n | 0x80);
	*at++ = (uint8_t)n;
	return at;
}

static uint8_t *put_key(uint8_t *at, unsigned field, enum wire_type type)
{
	return put_varint(at, field << 3 | type);
}

static uint8_t *put_bytes(uint8_t *at, unsigned field, const void *bytes, size_t count)
{
	at = put_varint(put_key(at, field, BYTES), count);
	memcpy(at, bytes, count);
	return at + count;
}

static uint8_t *put_head(uint8_t *at, double wall_s, uint64_t step)
{
	uint64_t bits;

	memcpy(&bits, &wall_s, sizeof(bits));
	at = put_key(at, 1, FIXED64);
	tern_put_le64(at, bits);
	return put_varint(put_key(at + 8, 2, VARINT), step);
}

static uint8_t *put_scalar(uint8_t *at, const struct event_scalar *scalar)
{
	uint8_t value[EVENT_TAG_MAX + 16], *end;
	uint32_t bits;

	memcpy(&bits, &scalar->value, sizeof(bits));
	end = put_bytes(value, 1, scalar->tag, strlen(scalar->tag));
	end = put_key(end, 2, FIXED32);
	tern_put_le32(end, bits);
	return put_bytes(at, 1, value, (size_t)(end + 4 - value));
}

/* ---- records ---- */

/* Length and its checksum stand before the message, and that of the message behind it. */
#define BEFORE 12u
#define BEHIND 4u

/* TFRecord masks its checksums: a plain CRC of bytes that contain CRCs would say little. */
static uint32_t masked(const void *data, size_t bytes)
{
	uint32_t crc = tern_crc32c(0, data, bytes);

	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Frames the message that lies at out + BEFORE, and ends at `end`. */
static size_t frame(uint8_t *out, uint8_t *end)
{
	size_t bytes = (size_t)(end - (out + BEFORE));

	tern_put_le64(out, bytes);
	tern_put_le32(out + 8, masked(out, 8));
	tern_put_le32(end, masked(out + BEFORE, bytes));
	return BEFORE + bytes + BEHIND;
}

size_t event_scalars(void *out, double wall_s, uint64_t step,
	const struct event_scalar *scalars, size_t count)
{
	uint8_t summary[EVENT_RECORD_MAX], *end = summary, *at = (uint8_t *)out + BEFORE;

	for (size_t i = 0; i < count; i++)
		end = put_scalar(end, &scalars[i]);
	at = put_head(at, wall_s, step);
	return frame(out, put_bytes(at, 5, summary, (size_t)(end - summary)));
}

size_t event_start(void *out, double wall_s, uint64_t step)
{
	uint8_t log[4], *end = put_varint(put_key(log, 1, VARINT), SESSION_START);
	uint8_t *at = put_head((uint8_t *)out + BEFORE, wall_s, step);

	return frame(out, put_bytes(at, 7, log, (size_t)(end - log)));
}

static size_t event_version(void *out, double wall_s)
{
	static const char version[] = "brain.Event:2";
	uint8_t *at = put_head((uint8_t *)out + BEFORE, wall_s, 0);

	return frame(out, put_bytes(at, 3, version, sizeof(version) - 1));
}

/* ---- files ---- */

/* The time in the names that come after those of the directory: now, unless one of them has this
 * time or a later one. */
static long long next_seconds(const char *directory, long long now_s)
{
	static const long long limit_s = 9999999999; /* names sort as their times do */
	DIR *dir = opendir(directory);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		long long s = -1;

		if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0)
			s = strtoll(entry->d_name + strlen(PREFIX), NULL, 10);
		if (s >= now_s && s < limit_s)
			now_s = s + 1;
	}
	if (dir)
		closedir(dir);
	return now_s;
}

static int create(struct event_file *file, const char *directory)
{
	char host[65] = "";
	long long s = next_seconds(directory, (long long)time(NULL));

	if (gethostname(host, sizeof(host) - 1) < 0 || !*host || strchr(host, '/'))
		strcpy(host, "localhost");
	if (snprintf(file->path, sizeof(file->path), "%s/" PREFIX "%010lld.%s.%d.%u",
		    directory, s, host, (int)getpid(),
		    file->number) >= (int)sizeof(file->path))
		return -ENAMETOOLONG;
	file->bytes = 0;
	file->fd = open(
		file->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
	if (file->fd < 0)
		return -errno;
	file->number++;
	return 0;
}

int event_file_open(struct event_file *file, const char *directory, const uint64_t *start)
{
	uint8_t records[2 * EVENT_RECORD_MAX];
	struct timespec now;
	double wall_s;
	size_t n;
	int r = create(file, directory);

	if (r < 0)
		return r;
	clock_gettime(CLOCK_REALTIME, &now);
	wall_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
	n = event_version(records, wall_s);
	if (start)
		n += event_start(records + n, wall_s, *start);
	r = event_file_append(file, records, n);
	if (r < 0) {
		event_file_close(file);
		unlink(file->path);
	}
	return r;
}

int event_file_append(struct event_file *file, const void *records, size_t bytes)
{
	const uint8_t *at = records;
	size_t left = bytes;

	while (left) {
		ssize_t n = write(file->fd, at, left);
		int error = errno;

		if (n < 0 && error == EINTR)
			continue;
		if (n < 0) {
			/* What follows half a record could not be read. */
			if (ftruncate(file->fd, (off_t)file->bytes) < 0)
				event_file_close(file);
			return -error;
		}
		at += n;
		left -= (size_t)n;
	}
	file->bytes += bytes;
	return 0;
}

int event_file_close(struct event_file *file)
{
	int r = 0;

	/* Linux has closed the file also after EINTR. */
	if (file->fd >= 0 && close(file->fd) < 0 && errno != EINTR)
		r = -errno;
	file->fd = -1;
	return r;
}
