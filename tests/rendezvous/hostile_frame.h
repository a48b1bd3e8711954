/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the tcp fabric, made by hand so that tests can corrupt them: see
 * hostile.c. */
#ifndef TERN_TESTS_RENDEZVOUS_HOSTILE_FRAME_H
#define TERN_TESTS_RENDEZVOUS_HOSTILE_FRAME_H

#include <string.h>
#include <sys/socket.h>

#include "rendezvous/wire.h"
#include "transport/tcp/wire.h"

#define HOSTILE_HEADER_BYTES TCP_FRAME_BYTES
#define HOSTILE_FRAME_MAX    (TCP_FRAME_BYTES + TERN_MESSAGE_MAX)

/* Encodes a message as a frame of the tcp fabric. The checksum does not cover its last
 * `payload` bytes. */
static inline size_t hostile_frame(
	void *out, const void *message, size_t bytes, size_t payload)
{
	struct tcp_frame frame = {
		.kind = TCP_MESSAGE,
		.bytes = bytes,
		.head_bytes = (uint32_t)(bytes - payload),
	};

	tcp_frame_put(out, &frame, message);
	memcpy((char *)out + TCP_FRAME_BYTES, message, bytes);
	return TCP_FRAME_BYTES + bytes;
}

/* Recomputes the checksum of a frame that was changed. */
static inline void hostile_mend(void *out, size_t bytes)
{
	unsigned char *p = out;
	size_t head = tern_get_le32(p + 16);
	uint32_t crc;

	tern_put_le32(p + 4, 0);
	crc = tern_crc32c(0, p, TCP_FRAME_BYTES);
	if (head <= bytes - TCP_FRAME_BYTES)
		crc = tern_crc32c(crc, p + TCP_FRAME_BYTES, head);
	tern_put_le32(p + 4, crc);
}

static inline void hostile_send_message(
	int fd, const void *message, size_t bytes, size_t payload)
{
	unsigned char frame[HOSTILE_FRAME_MAX];
	size_t frame_bytes = hostile_frame(frame, message, bytes, payload);

	send(fd, frame, frame_bytes, MSG_NOSIGNAL);
}

/* Encodes put `number` of HOSTILE_PUT_COUNT. Each of them writes into a window that the
 * server has not opened; some are huge. */
#define HOSTILE_PUT_COUNT 24u
static inline size_t hostile_put(void *out, unsigned number)
{
	static const uint64_t sizes[] = {0, 1, 4096, (uint64_t)1 << 40, UINT64_MAX};
	struct tcp_frame frame = {
		.kind = TCP_PUT,
		.bytes = sizes[number % 5],
		.entry = number < 12 ? number : UINT32_MAX - number,
		.generation = number % 3,
		.offset = number % 4 ? 0 : UINT64_MAX - number,
	};

	tcp_frame_put(out, &frame, NULL);
	memset((char *)out + TCP_FRAME_BYTES, 7, 1000);
	return TCP_FRAME_BYTES + 1000;
}

/* Reads a frame header; false unless it is that of a message of `bytes` bytes. */
static inline bool hostile_read_start(int fd, size_t bytes)
{
	unsigned char header[TCP_FRAME_BYTES];
	struct tcp_frame frame;
	uint32_t partial;

	return recv(fd, header, sizeof(header), MSG_WAITALL) == (ssize_t)sizeof(header) &&
	       tcp_frame_get(&frame, header, &partial) && frame.kind == TCP_MESSAGE &&
	       frame.bytes == bytes;
}

#endif
