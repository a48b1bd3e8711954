/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, RFC 3720 appendix B.4). It protects frame headers on fabrics
 * whose own checksum is weak. */
#ifndef TERN_TRANSPORT_TCP_CRC32C_H
#define TERN_TRANSPORT_TCP_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Extends `crc` (0 at the start) by `bytes` more bytes and returns the CRC of
 * everything so far. */
uint32_t tern_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same, without special processor instructions; tests compare tern_crc32c() with
 * it. */
uint32_t tern_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
