/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of events, which TensorBoard reads: scalars by step, and the starts of jobs. A file is a
 * series of records (TFRecord), each a protobuf message Event of TensorFlow; the first one has
 * the version of the format.
 *
 * A file holds whole records only, except while a write is under way: one that fails, as on a
 * full disk, is undone. So a process may be killed at any time, and a reader meets at most one
 * incomplete record, at the end, for whose rest it waits.
 */
#ifndef TERN_TOOLS_EVENT_FILE_H
#define TERN_TOOLS_EVENT_FILE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define EVENT_TAG_MAX     95u /* bytes of a tag, without the NUL */
#define EVENT_SCALARS_MAX 8u  /* scalars of one record */
/* Bytes of the largest record. A scalar has its tag, and 16 bytes; 64 are the rest. */
#define EVENT_RECORD_MAX (EVENT_SCALARS_MAX * (EVENT_TAG_MAX + 16u) + 64u)

struct event_scalar {
	const char *tag; /* at most EVENT_TAG_MAX bytes */
	float value;     /* may be infinite, or NaN */
};

/* Each function encodes one record at `out`, which has room for EVENT_RECORD_MAX bytes, and
 * returns its number of bytes. wall_s: seconds since 1970. */
size_t event_scalars(void *out, double wall_s, uint64_t step,
	const struct event_scalar *scalars, size_t count);
/* TensorBoard shows no point of this step, or of later ones, that stands before this record, in
 * this file or in an earlier one of the directory (SessionLog.START). */
size_t event_start(void *out, double wall_s, uint64_t step);

/* One thread uses an event file. Before the first event_file_open() the caller sets fd to -1, and
 * all other members to 0. */
struct event_file {
	char path[PATH_MAX];
	int fd;          /* -1: none is open */
	uint64_t bytes;  /* of whole records */
	unsigned number; /* of files that were created */
};

/* Creates the next file of the directory, with the version and, unless `start` is NULL, a record
 * event_start(*start). TensorBoard reads the files of a directory in the order of their names,
 * which begin with a time in seconds: the new name comes after those that are there, even if
 * their hosts' clocks are ahead. 0, or a negative errno; then there is no new file. */
int event_file_open(
	struct event_file *file, const char *directory, const uint64_t *start);

/* Appends whole records. 0, or a negative errno; then nothing was appended. After a failure that
 * cannot be undone the file is closed. */
int event_file_append(struct event_file *file, const void *records, size_t bytes);

/* Closes the file if one is open. 0, or a negative errno: records that were appended may not have
 * reached the disk, such as those on a full one that another host has. */
int event_file_close(struct event_file *file);

#endif
