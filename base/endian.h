/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian loads and stores at any alignment. All headers of Tern are little-endian
 * on the wire; only the shm fabric's own notes and areas, which never leave a machine,
 * have that machine's byte order. Tensors travel in the byte order of the sender's
 * memory, since swapping needs their element type. So each end announces its byte order
 * in the handshake, and a peer of different byte order is refused.
 */
#ifndef TERN_BASE_ENDIAN_H
#define TERN_BASE_ENDIAN_H

#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#define TERN_ENDIAN_PAIR(bits)                                                           \
	static inline uint##bits##_t tern_get_le##bits(const void *p)                    \
	{                                                                                \
		uint##bits##_t v;                                                        \
		memcpy(&v, p, sizeof(v));                                                \
		return le##bits##toh(v);                                                 \
	}                                                                                \
	static inline void tern_put_le##bits(void *p, uint##bits##_t v)                  \
	{                                                                                \
		v = htole##bits(v);                                                      \
		memcpy(p, &v, sizeof(v));                                                \
	}

/* Byte orders, as one byte of the handshake; TERN_BYTE_ORDER is that of this machine. */
enum tern_byte_order {
	TERN_LITTLE_ENDIAN = 1,
	TERN_BIG_ENDIAN = 2,
	TERN_BYTE_ORDER = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? TERN_BIG_ENDIAN
								 : TERN_LITTLE_ENDIAN,
};

/* Checks the byte order that a peer announced. 0: that of this machine; -EILSEQ: the
 * opposite one; -EPROTO: not a valid value. */
static inline int tern_byte_order_check(uint8_t theirs)
{
	if (theirs != TERN_LITTLE_ENDIAN && theirs != TERN_BIG_ENDIAN)
		return -EPROTO;
	return theirs == TERN_BYTE_ORDER ? 0 : -EILSEQ;
}

TERN_ENDIAN_PAIR(16)
TERN_ENDIAN_PAIR(32)
TERN_ENDIAN_PAIR(64)

/* Copies elements of `width` bytes, and reverses the bytes of each. */
static inline void tern_swap_bytes(
	void *to, const void *from, uint64_t bytes, size_t width)
{
	const char *in = from;
	char *out = to;

	for (uint64_t at = 0; at < bytes; at += width)
		for (size_t i = 0; i < width; i++)
			out[at + i] = in[at + width - 1 - i];
}

static inline uint32_t tern_get_be32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return be32toh(v);
}

#endif
