/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of events (tools/event_file.h), for tests. Shares no code with what writes them. */
#ifndef TERN_TESTS_TOOLS_EVENT_READER_H
#define TERN_TESTS_TOOLS_EVENT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define READ_SCALARS_MAX 8u

struct read_event {
	double wall_s;
	uint64_t step;
	char version[32]; /* "": not the first record of a file */
	bool starts;      /* SessionLog.START */
	size_t scalar_count;
	struct {
		char tag[128];
		float value;
	} scalars[READ_SCALARS_MAX];
};

/* Reads whole records from `bytes` bytes, at most `limit` of them. Returns their number, and in
 * *used how many bytes they have. A test fails if a checksum or a message is wrong. */
size_t read_records(const uint8_t *data, size_t bytes, struct read_event *events,
	size_t limit, size_t *used);

/* Reads a whole file, which must end with a whole record. */
size_t read_file(const char *path, struct read_event *events, size_t limit);

/* Finds the files of events in a directory, in the order of their names. Returns their number. */
size_t list_files(const char *directory, char (*paths)[512], size_t limit);

#endif
