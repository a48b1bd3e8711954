/* SPDX-License-Identifier: Apache-2.0 */
#include <tern/types.h>

#include <errno.h>
#include <string.h>

static const struct {
	const char *name;
	size_t bytes;
} dtypes[TERN_DTYPE_COUNT] = {
	[TERN_U8] = {"u8", 1},
	[TERN_I8] = {"i8", 1},
	[TERN_U16] = {"u16", 2},
	[TERN_I16] = {"i16", 2},
	[TERN_U32] = {"u32", 4},
	[TERN_I32] = {"i32", 4},
	[TERN_U64] = {"u64", 8},
	[TERN_I64] = {"i64", 8},
	[TERN_F16] = {"f16", 2},
	[TERN_BF16] = {"bf16", 2},
	[TERN_F32] = {"f32", 4},
	[TERN_F64] = {"f64", 8},
};

size_t tern_dtype_bytes(enum tern_dtype dtype)
{
	return (unsigned)dtype < TERN_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *tern_dtype_name(enum tern_dtype dtype)
{
	return tern_dtype_bytes(dtype) ? dtypes[dtype].name : "?";
}

int tern_shape_bytes(const struct tern_shape *shape, uint64_t *bytes)
{
	uint64_t product = tern_dtype_bytes(shape->dtype);
	bool empty = false;

	if (!product || shape->rank > TERN_RANK_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < shape->rank; i++) {
		/* A dimension of 0 is remembered, not multiplied, since a product of 0
		 * would hide an overflow. */
		if (shape->dims[i] == 0)
			empty = true;
		else if (__builtin_mul_overflow(product, shape->dims[i], &product))
			return -EOVERFLOW;
	}
	*bytes = empty ? 0 : product;
	return 0;
}

struct tern_shape tern_shape_1d(enum tern_dtype dtype, uint64_t count)
{
	return (struct tern_shape){.dtype = dtype, .rank = 1, .dims = {count}};
}

bool tern_shape_equal(const struct tern_shape *a, const struct tern_shape *b)
{
	return a->dtype == b->dtype && a->rank == b->rank &&
	       memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

const char *tern_status_text(int status)
{
	switch (status) {
	case 0:
		return "success";
	case -EINPROGRESS:
		return "still in progress";
	case -EPROTONOSUPPORT:
		return "the peer speaks another version of the protocol";
	case -EILSEQ:
		return "the peer's machine has the other byte order";
	case -EPROTO:
		return "the peer violated the Tern protocol";
	case -EACCES:
		return "refused: another secret, or no permission";
	case -EMSGSIZE:
		return "the receiver's buffer is too small";
	case -EEXIST:
		return "already exists, or two names have the same key";
	case -ECANCELED:
		return "cancelled";
	case -ENODATA:
		return "no host has this name";
	case -ENONET:
		return "the host's name cannot be looked up now";
	case -EPIPE:
		return "the peer's process has ended";
	default:
		return strerror(status < 0 ? -status : status);
	}
}

const char *tern_version(void)
{
	return TERN_VERSION;
}
