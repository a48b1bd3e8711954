/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian loads and stores at any alignment: the wire is little-endian. */
#ifndef TERN_BASE_ENDIAN_H
#define TERN_BASE_ENDIAN_H

#include <endian.h>
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

TERN_ENDIAN_PAIR(16)
TERN_ENDIAN_PAIR(32)
TERN_ENDIAN_PAIR(64)

static inline uint32_t tern_get_be32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return be32toh(v);
}

#endif
