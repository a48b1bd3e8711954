/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types that all headers share: element types, shapes, statuses.
 *
 * A status is an int: 0 or a positive result on success, a negative errno on failure.
 * Every function that can fail returns one. tern_status_text() describes it in words.
 */
#ifndef TERN_TYPES_H
#define TERN_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/version.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_API __attribute__((visibility("default")))

/* Element types. The values travel on the wire and never change. */
enum tern_dtype {
	TERN_DTYPE_NONE = 0,
	TERN_U8 = 1,
	TERN_I8 = 2,
	TERN_U16 = 3,
	TERN_I16 = 4,
	TERN_U32 = 5,
	TERN_I32 = 6,
	TERN_U64 = 7,
	TERN_I64 = 8,
	TERN_F16 = 9,
	TERN_BF16 = 10,
	TERN_F32 = 11,
	TERN_F64 = 12,
	TERN_DTYPE_COUNT
};

/* Times are uint64_t in nanoseconds. TERN_NEVER is a duration without limit, or a point
 * in time that never comes. Sums of times that do not fit become TERN_NEVER. */
#define TERN_NEVER UINT64_MAX

#define TERN_RANK_MAX 8

/* Element type and dimensions, outermost first. Rank 0 is a scalar: one element. */
struct tern_shape {
	enum tern_dtype dtype;
	uint32_t rank;
	uint64_t dims[TERN_RANK_MAX];
};

/* Size of one element in bytes; 0 if `dtype` is not a known type. */
TERN_API size_t tern_dtype_bytes(enum tern_dtype dtype);

/* Name of an element type: "f32", "u8", ...; "?" if unknown. */
TERN_API const char *tern_dtype_name(enum tern_dtype dtype);

/*
 * Stores the size in bytes of a tensor of this shape in *bytes.
 *
 * -EINVAL: unknown dtype, or rank above TERN_RANK_MAX; -EOVERFLOW: the element size times
 * all dimensions other than 0 does not fit into 64 bits, even if a dimension is 0.
 */
TERN_API int tern_shape_bytes(const struct tern_shape *shape, uint64_t *bytes);

/* Returns the shape of a vector of `count` elements, which most transfers have. */
TERN_API struct tern_shape tern_shape_1d(enum tern_dtype dtype, uint64_t count);

TERN_API bool tern_shape_equal(const struct tern_shape *a, const struct tern_shape *b);

/* Describes a status in words, for use in messages: "cancelled". Static storage. */
TERN_API const char *tern_status_text(int status);

/* Version of the library that the process runs with, as "0.1.0". Static storage. */
TERN_API const char *tern_version(void);

#ifdef __cplusplus
}
#endif
#endif
