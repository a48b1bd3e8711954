/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacks gzip (RFC 1952) and bzip2 in memory. Both formats allow several streams one
 * after the other, which parallel packers write. A small file can be made to unpack to
 * any size, so the size is limited to far more than honest data needs.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/util.h"
#include "client/data/read.h"
#include "tern-config.h"

#if TERN_HAVE_ZLIB
#include <zlib.h>
#endif
#if TERN_HAVE_BZIP2
#include <bzlib.h>
#endif

/* Limit of the unpacked size: this many times the packed size, and BYTES_SPARE more. Text
 * is typically packed to between a third and a tenth, images of digits to a fifth. */
#define RATIO_MAX   256u
#define BYTES_SPARE (64ull << 20)

struct unpacker {
	const struct tern_data_file *file;
	struct tern_data_error *error;
	const char *format;
	size_t taken; /* bytes of the file that were unpacked */
	char *out;
	size_t bytes, capacity, limit;
};

#if TERN_HAVE_ZLIB || TERN_HAVE_BZIP2
/* Makes room for the next piece of output; *room is its size. */
static int make_room(struct unpacker *u, unsigned *room)
{
	if (tern_data_stopped(u->file))
		return -ECANCELED;
	if (u->bytes == u->limit)
		return tern_data_fail(u->error, u->file->path,
			"unpacks to more than %zu bytes from %zu: this is not data, but "
			"made to exhaust memory",
			u->limit, u->file->bytes);
	if (u->bytes == u->capacity) {
		size_t capacity = TERN_MIN(2 * u->capacity, u->limit);
		char *grown = realloc(u->out, capacity);

		if (!grown)
			return -ENOMEM;
		u->out = grown;
		u->capacity = capacity;
	}
	*room = (unsigned)TERN_MIN(u->capacity - u->bytes, TERN_DATA_PIECE);
	return 0;
}

static unsigned input_left(const struct unpacker *u)
{
	return (unsigned)TERN_MIN(u->file->bytes - u->taken, (size_t)INT_MAX);
}

static char *input_at(const struct unpacker *u)
{
	return (char *)(uintptr_t)u->file->data + u->taken;
}

static int fail_corrupt(struct unpacker *u, const char *why)
{
	return tern_data_fail(u->error, u->file->path,
		"byte %zu: the %s data is corrupt (%s), after %zu bytes of contents",
		u->taken, u->format, why, u->bytes);
}

static int fail_truncated(struct unpacker *u)
{
	return tern_data_fail(u->error, u->file->path,
		"ends at byte %zu in the middle of the %s data, after %zu bytes of "
		"contents",
		u->file->bytes, u->format, u->bytes);
}

#endif

static bool is_gzip(const struct tern_data_file *file, size_t at)
{
	return file->bytes - at >= 2 &&
	       memcmp((const char *)file->data + at, "\x1f\x8b", 2) == 0;
}

static bool is_bzip2(const struct tern_data_file *file, size_t at)
{
	const char *p = (const char *)file->data + at;

	/* A text may start with BZh too. But in bzip2 the digits of pi follow, which
	 * begin a block, or those of its square root, which begin the end of a
	 * stream. */
	return file->bytes - at >= 10 && memcmp(p, "BZh", 3) == 0 && p[3] >= '1' &&
	       p[3] <= '9' &&
	       (memcmp(p + 4, "1AY&SY", 6) == 0 || memcmp(p + 4, "\x17rE8P\x90", 6) == 0);
}

#if !TERN_HAVE_ZLIB || !TERN_HAVE_BZIP2
static int fail_left_out(struct unpacker *u)
{
	tern_data_fail(u->error, u->file->path,
		"is packed with %s, which was not built in: unpack it first", u->format);
	return -ENOTSUP;
}
#endif

#if TERN_HAVE_ZLIB
/* Unpacks some more of a gzip stream. 0: not at the end yet; 1: the stream has ended;
 * else an error. */
static int inflate_some(struct unpacker *u, z_stream *z)
{
	unsigned room = 0, had = input_left(u);
	int status = make_room(u, &room), result;

	if (status)
		return status;
	z->next_in = (Bytef *)input_at(u);
	z->avail_in = had;
	z->next_out = (Bytef *)u->out + u->bytes;
	z->avail_out = room;
	result = inflate(z, Z_NO_FLUSH);
	u->taken += had - z->avail_in;
	u->bytes += room - z->avail_out;
	if (result == Z_STREAM_END)
		return 1;
	if (result == Z_MEM_ERROR)
		return -ENOMEM;
	if (result != Z_OK && result != Z_BUF_ERROR)
		return fail_corrupt(u, z->msg ? z->msg : "it needs a dictionary");
	if (u->taken == u->file->bytes && z->avail_out > 0)
		return fail_truncated(u);
	return 0;
}

static int unpack_gzip(struct unpacker *u)
{
	z_stream z = {0};
	int status;

	if (inflateInit2(&z, 15 + 16) != Z_OK)
		return -ENOMEM;
	do {
		status = inflate_some(u, &z);
		if (status == 1 && is_gzip(u->file, u->taken))
			status = inflateReset(&z) == Z_OK ? 0 : -ENOMEM;
	} while (status == 0);
	inflateEnd(&z);
	return status < 0 ? status : 0;
}
#else
static int unpack_gzip(struct unpacker *u)
{
	return fail_left_out(u);
}
#endif

#if TERN_HAVE_BZIP2
static int bunzip_some(struct unpacker *u, bz_stream *z)
{
	unsigned room = 0, had = input_left(u);
	int status = make_room(u, &room), result;

	if (status)
		return status;
	z->next_in = input_at(u);
	z->avail_in = had;
	z->next_out = u->out + u->bytes;
	z->avail_out = room;
	result = BZ2_bzDecompress(z);
	u->taken += had - z->avail_in;
	u->bytes += room - z->avail_out;
	if (result == BZ_STREAM_END)
		return 1;
	if (result == BZ_MEM_ERROR)
		return -ENOMEM;
	if (result != BZ_OK)
		return fail_corrupt(u, result == BZ_DATA_ERROR ? "checksum" : "header");
	if (u->taken == u->file->bytes && z->avail_out > 0)
		return fail_truncated(u);
	return 0;
}

static int unpack_bzip2(struct unpacker *u)
{
	int status;

	do {
		bz_stream z = {0};

		if (BZ2_bzDecompressInit(&z, 0, 0) != BZ_OK)
			return -ENOMEM;
		do
			status = bunzip_some(u, &z);
		while (status == 0);
		BZ2_bzDecompressEnd(&z);
	} while (status == 1 && is_bzip2(u->file, u->taken));
	return status < 0 ? status : 0;
}
#else
static int unpack_bzip2(struct unpacker *u)
{
	return fail_left_out(u);
}
#endif

/* Checks what follows the last stream. Only zeros may, since programs that write to tapes
 * fill the last block with zeros. */
static int check_rest(struct unpacker *u)
{
	const char *p = u->file->data;

	for (size_t i = u->taken; i < u->file->bytes; i++) {
		if (p[i])
			return tern_data_fail(u->error, u->file->path,
				"byte %zu: '%s' after the end of the %s data", i,
				tern_data_quote(p + i, u->file->bytes - i).text,
				u->format);
	}
	return 0;
}

int tern_data_unpack(const struct tern_data_file *file, struct tern_data_file *plain,
	void **owned, struct tern_data_error *error)
{
	struct unpacker u = {.file = file, .error = error};
	bool gzip = is_gzip(file, 0);
	int status;

	*owned = NULL;
	*plain = *file;
	if (!gzip && !is_bzip2(file, 0))
		return 0;
	u.format = gzip ? "gzip" : "bzip2";
	u.limit = file->bytes > SIZE_MAX / RATIO_MAX - BYTES_SPARE
			  ? SIZE_MAX / 2
			  : file->bytes * RATIO_MAX + BYTES_SPARE;
	u.capacity = TERN_MIN(8 * file->bytes + 4096, u.limit);
	u.out = malloc(u.capacity);
	if (!u.out)
		return -ENOMEM;
	status = gzip ? unpack_gzip(&u) : unpack_bzip2(&u);
	if (!status)
		status = check_rest(&u);
	if (status) {
		free(u.out);
		return status;
	}
	plain->data = *owned = u.out;
	plain->bytes = u.bytes;
	return 0;
}
