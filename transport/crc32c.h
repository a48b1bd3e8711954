/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, RFC 3720 appendix B.4): what guards frame headers on fabrics whose
 * own checksum is weak. */
#ifndef TERN_TRANSPORT_CRC32C_H
#define TERN_TRANSPORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over `bytes` more: the CRC of the whole so far. */
uint32_t tern_crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same without special instructions: what tern_crc32c is checked against. */
uint32_t tern_crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
