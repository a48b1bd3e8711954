/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The byte stream of a tcp conn: frames, one after the other. All numbers are
 * little-endian.
 *
 *     0  u16 magic
 *     2  u8  kind
 *     3  u8  zero
 *     4  u32 crc           CRC32C of these 32 bytes (with crc = 0) and, in a MESSAGE, of
 *                          `head`
 *     8  u64 bytes         number of bytes that follow the header
 *
 *             MESSAGE       PUT
 *    16  u32  head_bytes    entry         index of the exposure in the receiver's table
 *    20  u32  zero          generation    of that entry
 *    24  u64  zero          offset        from the exposure's start
 *
 * A MESSAGE consists of head and payload. `head` has the headers of the layer above. The
 * payload, like the bytes of a PUT, is protected by TCP's checksum only, since it is
 * tensor data. A frame never carries an address: a PUT names an exposure that the
 * receiver has made.
 */
#ifndef TERN_TRANSPORT_TCP_WIRE_H
#define TERN_TRANSPORT_TCP_WIRE_H

#include <stdbool.h>

#include "base/endian.h"
#include "transport/tcp/crc32c.h"

#define TCP_MAGIC       0x5e72
#define TCP_FRAME_BYTES 32

enum tcp_kind {
	TCP_MESSAGE = 1,
	TCP_PUT = 2,
};

struct tcp_frame {
	uint8_t kind; /* enum tcp_kind; validated by tcp_frame_get() */
	uint32_t crc;
	uint64_t bytes;
	uint32_t head_bytes;        /* used in a MESSAGE */
	uint32_t entry, generation; /* used in a PUT */
	uint64_t offset;
};

/* Encodes the 32-byte header, with the CRC over the header and `head`. */
static inline void tcp_frame_put(
	uint8_t *p, const struct tcp_frame *frame, const void *head)
{
	bool message = frame->kind == TCP_MESSAGE;
	uint32_t crc;

	tern_put_le16(p, TCP_MAGIC);
	p[2] = frame->kind;
	p[3] = 0;
	tern_put_le32(p + 4, 0);
	tern_put_le64(p + 8, frame->bytes);
	tern_put_le32(p + 16, message ? frame->head_bytes : frame->entry);
	tern_put_le32(p + 20, message ? 0 : frame->generation);
	tern_put_le64(p + 24, message ? 0 : frame->offset);
	crc = tern_crc32c(0, p, TCP_FRAME_BYTES);
	if (message && frame->head_bytes)
		crc = tern_crc32c(crc, head, frame->head_bytes);
	tern_put_le32(p + 4, crc);
}

/* Decodes a header. False: the bytes are no valid header. *partial is the CRC of the
 * header alone: for a MESSAGE, extend it over the head before comparing it with
 * frame->crc. */
static inline bool tcp_frame_get(
	struct tcp_frame *frame, const uint8_t *p, uint32_t *partial)
{
	static const uint8_t zero[4];
	uint32_t word = tern_get_le32(p + 16);

	*frame = (struct tcp_frame){
		.kind = p[2],
		.crc = tern_get_le32(p + 4),
		.bytes = tern_get_le64(p + 8),
		.head_bytes = word,
		.entry = word,
		.generation = tern_get_le32(p + 20),
		.offset = tern_get_le64(p + 24),
	};
	*partial = tern_crc32c(0, p, 4);
	*partial = tern_crc32c(*partial, zero, sizeof(zero));
	*partial = tern_crc32c(*partial, p + 8, TCP_FRAME_BYTES - 8);
	if (tern_get_le16(p) != TCP_MAGIC || p[3] != 0)
		return false;
	if (frame->kind == TCP_MESSAGE)
		return frame->generation == 0 && frame->offset == 0;
	return frame->kind == TCP_PUT;
}

#endif
