/* SPDX-License-Identifier: Apache-2.0 */
/* Known contents of memory. Tests fill and check gigabytes, so this takes whole words. */
#ifndef TERN_TESTS_PATTERN_H
#define TERN_TESTS_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

/* pattern_fill() fills memory with a pseudo-random stream that depends on `seed`, from
 * byte number `start` of the stream on; pattern_holds() checks for these bytes. */
void pattern_fill(void *to, uint64_t bytes, uint64_t seed, uint64_t start);
bool pattern_holds(const void *at, uint64_t bytes, uint64_t seed, uint64_t start);

/* True if each byte is `value`. */
bool pattern_is_one_byte(const void *at, uint64_t bytes, uint8_t value);

#endif
