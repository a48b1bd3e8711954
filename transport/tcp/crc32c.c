/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C. x86 processors since 2008 have an instruction for it (SSE4.2), which is
 * detected at run time: about 3 cycles per 8 bytes, so a frame header and a rendezvous
 * header take about 15 ns. Other processors use a table of 16 entries, one step per half
 * byte: that is slow, but the headers are short, and so is the code to verify.
 */
#include "transport/tcp/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

uint32_t tern_crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
	/* Remainders of the 16 half bytes for the reflected polynomial 0x82f63b78. */
	static const uint32_t table[16] = {
		0x00000000,
		0x105ec76f,
		0x20bd8ede,
		0x30e349b1,
		0x417b1dbc,
		0x5125dad3,
		0x61c69362,
		0x7198540d,
		0x82f63b78,
		0x92a8fc17,
		0xa24bb5a6,
		0xb21572c9,
		0xc38d26c4,
		0xd3d3e1ab,
		0xe330a81a,
		0xf36e6f75,
	};
	const uint8_t *p = data;

	crc = ~crc;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= p[i];
		crc = (crc >> 4) ^ table[crc & 15];
		crc = (crc >> 4) ^ table[crc & 15];
	}
	return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(
	uint32_t crc, const void *data, size_t bytes)
{
	const char *p = data;
	uint64_t c = ~crc;

	for (; bytes >= 8; bytes -= 8, p += 8) {
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		c = _mm_crc32_u64(c, word);
	}
	crc = (uint32_t)c;
	for (; bytes; bytes--, p++)
		crc = _mm_crc32_u8(crc, (uint8_t)*p);
	return ~crc;
}
#endif

uint32_t tern_crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("sse4.2"))
		return crc32c_sse42(crc, data, bytes);
#endif
	return tern_crc32c_portable(crc, data, bytes);
}
