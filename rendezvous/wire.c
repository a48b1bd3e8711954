/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes messages, and checks and decodes received ones. wire.h describes the layout. */
#include "rendezvous/wire.h"

#include <errno.h>
#include <string.h>

#include <tern/window.h>

#include "base/endian.h"
#include "base/util.h"

enum {
	OFF_MAGIC = 0,
	OFF_VERSION = 2,
	OFF_TYPE = 3,
	OFF_FLAGS = 4,
	OFF_DTYPE = 6,
	OFF_RANK = 7,
	OFF_EPOCH = 8,
	OFF_SEQ = 12,
	OFF_ACK = 16,
	OFF_CREDIT = 20,
	OFF_CHANNEL = 24,
	OFF_EXT_BYTES = 28,
	OFF_STATUS = 30,
	OFF_KEY = 32,
	OFF_STEP = 40,
	OFF_BYTES = 48,
	OFF_SRC = 56,
	OFF_DST = 60,
};

#define WORDS      4u
#define WORDS_WIDE 6u
_Static_assert(sizeof(struct tern_region) == WORDS_WIDE * 8 &&
		       TERN_REGION_SPARE == (WORDS_WIDE - WORDS) * 8,
	"struct tern_region must match the wire format");

static bool is_wide(const struct tern_region *region)
{
	return region->word[4] | region->word[5];
}

static unsigned char *encode_region(
	unsigned char *p, const struct tern_region *region, bool wide)
{
	for (unsigned i = 0; i < (wide ? WORDS_WIDE : WORDS); i++, p += 8)
		tern_put_le64(p, region->word[i]);
	return p;
}

static size_t encode_ext(const struct tern_header *h, bool wide, unsigned char *out)
{
	unsigned char *p = out;

	for (uint32_t i = 0; i < h->shape.rank; i++, p += 8)
		tern_put_le64(p, h->shape.dims[i]);
	if (h->flags & TERN_FLAG_REGION)
		p = encode_region(p, &h->region, wide);
	if (h->flags & TERN_FLAG_NAME) {
		memcpy(p, h->name, sizeof(*h->name));
		p += sizeof(*h->name);
	}
	return (size_t)(p - out);
}

/* Stores two 32-bit fields that are adjacent on the wire as one 64-bit word. */
static void put_pair(unsigned char *p, uint32_t low, uint32_t high)
{
	tern_put_le64(p, low | (uint64_t)high << 32);
}

/* Encodes in words of 8 bytes. The message is copied soon after, and a load that is
 * larger than the recent stores to its bytes would stall the processor. */
size_t tern_header_encode(const struct tern_header *h, void *out)
{
	unsigned char *p = out;
	bool wide = (h->flags & TERN_FLAG_REGION) && is_wide(&h->region);
	size_t ext_bytes = encode_ext(h, wide, p + TERN_HEADER_BYTES);

	put_pair(p + OFF_MAGIC,
		TERN_WIRE_MAGIC | TERN_WIRE_VERSION << 16 | (uint32_t)h->type << 24,
		h->flags | (wide ? TERN_FLAG_WIDE : 0u) |
			(uint32_t)(uint8_t)h->shape.dtype << 16 | h->shape.rank << 24);
	put_pair(p + OFF_EPOCH, h->epoch, h->seq);
	put_pair(p + OFF_ACK, h->ack, h->credit);
	put_pair(p + OFF_CHANNEL, h->channel,
		(uint32_t)ext_bytes | (uint32_t)(uint16_t)h->status << 16);
	tern_put_le64(p + OFF_KEY, h->key);
	tern_put_le64(p + OFF_STEP, h->step);
	tern_put_le64(p + OFF_BYTES, h->bytes);
	put_pair(p + OFF_SRC, h->src, h->dst);
	return TERN_HEADER_BYTES + ext_bytes;
}

void tern_header_restamp(void *encoded, uint32_t epoch)
{
	tern_put_le32((unsigned char *)encoded + OFF_EPOCH, epoch);
}

uint8_t tern_header_type(const void *encoded)
{
	return ((const unsigned char *)encoded)[OFF_TYPE];
}

uint32_t tern_header_src(const void *encoded)
{
	return tern_get_le32((const unsigned char *)encoded + OFF_SRC);
}

bool tern_header_has_region(const void *encoded)
{
	return tern_get_le16((const unsigned char *)encoded + OFF_FLAGS) &
	       TERN_FLAG_REGION;
}

uint32_t tern_header_ack(const void *encoded)
{
	return tern_get_le32((const unsigned char *)encoded + OFF_ACK);
}

uint32_t tern_header_credit(const void *encoded)
{
	return tern_get_le32((const unsigned char *)encoded + OFF_CREDIT);
}

void tern_header_set_status(void *encoded, int status)
{
	tern_put_le16((unsigned char *)encoded + OFF_STATUS, (uint16_t)status);
}

size_t tern_header_set_region(
	void *encoded, size_t head_bytes, const struct tern_region *region)
{
	unsigned char *p = encoded;
	unsigned char *at = p + TERN_HEADER_BYTES + p[OFF_RANK] * 8u;
	uint16_t flags = tern_get_le16(p + OFF_FLAGS);
	size_t was = (flags & TERN_FLAG_WIDE ? WORDS_WIDE : WORDS) * 8u, is = 0;

	tern_assert(flags & TERN_FLAG_REGION);
	if (region && is_wide(region))
		flags |= TERN_FLAG_WIDE;
	else if (!region)
		flags &= (uint16_t) ~(TERN_FLAG_REGION | TERN_FLAG_WIDE);
	if (region)
		is = (flags & TERN_FLAG_WIDE ? WORDS_WIDE : WORDS) * 8u;
	memmove(at + is, at + was, head_bytes - (size_t)(at - p) - was);
	if (region)
		encode_region(at, region, flags & TERN_FLAG_WIDE);
	tern_put_le16(p + OFF_FLAGS, flags);
	tern_put_le16(p + OFF_EXT_BYTES,
		(uint16_t)(tern_get_le16(p + OFF_EXT_BYTES) + is - was));
	return head_bytes + is - was;
}

static int refuse(const char **why, const char *text)
{
	*why = text;
	return -EPROTO;
}

/* COMMON_FLAGS: flags that every message may have. own_flags: further flags that messages
 * of each type may have. */
#define COMMON_FLAGS (TERN_FLAG_STARVED | TERN_FLAG_MISSED)
#define REGION_FLAGS (TERN_FLAG_REGION | TERN_FLAG_WIDE)
static const uint16_t own_flags[TERN_MSG_TYPE_COUNT] = {
	[TERN_MSG_EAGER] = TERN_FLAG_NAME,
	[TERN_MSG_POST] = REGION_FLAGS | TERN_FLAG_NAME,
	[TERN_MSG_RTS] = REGION_FLAGS | TERN_FLAG_NAME,
	[TERN_MSG_CTS] = REGION_FLAGS,
	[TERN_MSG_DONE] = TERN_FLAG_RAIL | TERN_FLAG_REPLY,
	[TERN_MSG_CANCEL] = TERN_FLAG_RECV,
	[TERN_MSG_CANCEL_ACK] = TERN_FLAG_RECV,
	[TERN_MSG_PING] = TERN_FLAG_REPLY,
	[TERN_MSG_RENEW] = REGION_FLAGS | TERN_FLAG_RECV,
	[TERN_MSG_WINDOW_OPENED] = REGION_FLAGS,
	[TERN_MSG_WINDOW_WRITE] = REGION_FLAGS,
	[TERN_MSG_WINDOW_READ] = REGION_FLAGS,
	[TERN_MSG_WINDOW_MOVE] = TERN_FLAG_RECV,
};

/* Checks that the status of a message is one that a request can end with, and that it is
 * 0 in messages that end no request. */
static int check_status(uint8_t type, int status, const char **why)
{
	bool ends = type == TERN_MSG_DONE || type == TERN_MSG_ATS ||
		    type == TERN_MSG_CANCEL_ACK || type == TERN_MSG_WINDOW_OPENED ||
		    type == TERN_MSG_WINDOW_DONE || type == TERN_MSG_WINDOW_MOVED;

	if (!tern_status_may_end(status) || (status && !ends))
		return refuse(why, "a status that is not allowed for its type");
	return 0;
}

static int check_start(const unsigned char *p, size_t bytes, const char **why)
{
	if (bytes < TERN_HEADER_BYTES)
		return refuse(why, "shorter than a header");
	if (tern_get_le16(p + OFF_MAGIC) != TERN_WIRE_MAGIC)
		return refuse(why, "wrong magic");
	if (p[OFF_VERSION] != TERN_WIRE_VERSION)
		return refuse(why, "wrong version");
	if (p[OFF_TYPE] == TERN_MSG_HELLO || p[OFF_TYPE] == 0 ||
		p[OFF_TYPE] >= TERN_MSG_TYPE_COUNT)
		return refuse(why, "unexpected type");
	if (tern_get_le16(p + OFF_FLAGS) & ~(own_flags[p[OFF_TYPE]] | COMMON_FLAGS))
		return refuse(why, "a flag that is not allowed for its type");
	if (tern_get_le16(p + OFF_EXT_BYTES) > bytes - TERN_HEADER_BYTES)
		return refuse(why, "extension longer than the message");
	if (p[OFF_RANK] > TERN_RANK_MAX)
		return refuse(why, "rank above 8");
	return 0;
}

static int decode_name(
	struct tern_header *h, const unsigned char *p, size_t left, const char **why)
{
	const struct tern_name *name = (const void *)p;

	if (left < sizeof(*name))
		return refuse(why, "extension too short for a name");
	if (name->bytes == 0 || name->bytes > sizeof(name->text))
		return refuse(why, "malformed name");
	h->name = name;
	return 0;
}

static int decode_ext(
	struct tern_header *h, const unsigned char *p, size_t left, const char **why)
{
	if (left < h->shape.rank * 8u)
		return refuse(why, "extension too short for its dims");
	for (uint32_t i = 0; i < h->shape.rank; i++, p += 8, left -= 8)
		h->shape.dims[i] = tern_get_le64(p);
	if (h->flags & TERN_FLAG_REGION) {
		unsigned words = h->flags & TERN_FLAG_WIDE ? WORDS_WIDE : WORDS;

		if (left < words * 8u)
			return refuse(why, "extension too short for a region");
		for (unsigned i = 0; i < words; i++, p += 8, left -= 8)
			h->region.word[i] = tern_get_le64(p);
	} else if (h->flags & TERN_FLAG_WIDE) {
		return refuse(why, "flag WIDE without a region");
	}
	if (h->flags & TERN_FLAG_NAME) {
		int r = decode_name(h, p, left, why);

		if (r < 0)
			return r;
		left -= sizeof(*h->name);
	}
	return left ? refuse(why, "extension longer than its fields") : 0;
}

/* Checks the shape: a message that describes a tensor must have a valid shape of h->bytes
 * bytes, and other messages none. */
static int check_shape(const struct tern_header *h, const char **why)
{
	bool described = h->type == TERN_MSG_EAGER || h->type == TERN_MSG_RTS ||
			 (h->type == TERN_MSG_DONE && !(h->flags & TERN_FLAG_RAIL));
	uint64_t bytes;

	if (h->type == TERN_MSG_DONE && h->status < 0 &&
		h->shape.dtype == TERN_DTYPE_NONE)
		described = false; /* the transfer failed before the shape was known */
	if (!described)
		return h->shape.rank
			       ? refuse(why, "dimensions in a message that has no shape")
			       : 0;
	if (tern_shape_bytes(&h->shape, &bytes) < 0)
		return refuse(why, "impossible dtype or shape");
	if (bytes != h->bytes)
		return refuse(why, "shape and bytes differ");
	return 0;
}

int tern_header_decode(
	const void *message, size_t bytes, struct tern_header *h, const char **why)
{
	const unsigned char *p = message;
	size_t ext_bytes, rest;
	int r = check_start(p, bytes, why);

	if (r < 0)
		return r;
	*h = (struct tern_header){
		.type = p[OFF_TYPE],
		.flags = tern_get_le16(p + OFF_FLAGS),
		.status = (int16_t)tern_get_le16(p + OFF_STATUS),
		.epoch = tern_get_le32(p + OFF_EPOCH),
		.seq = tern_get_le32(p + OFF_SEQ),
		.ack = tern_get_le32(p + OFF_ACK),
		.credit = tern_get_le32(p + OFF_CREDIT),
		.channel = tern_get_le32(p + OFF_CHANNEL),
		.key = tern_get_le64(p + OFF_KEY),
		.step = tern_get_le64(p + OFF_STEP),
		.bytes = tern_get_le64(p + OFF_BYTES),
		.src = tern_get_le32(p + OFF_SRC),
		.dst = tern_get_le32(p + OFF_DST),
		.shape = {.dtype = (enum tern_dtype)p[OFF_DTYPE], .rank = p[OFF_RANK]},
	};
	r = check_status(h->type, h->status, why);
	if (r < 0)
		return r;
	ext_bytes = tern_get_le16(p + OFF_EXT_BYTES);
	r = decode_ext(h, p + TERN_HEADER_BYTES, ext_bytes, why);
	if (r == 0)
		r = check_shape(h, why);
	if (r < 0)
		return r;
	rest = bytes - TERN_HEADER_BYTES - ext_bytes;
	if (h->type == TERN_MSG_NOTIFY && h->bytes > TERN_NOTE_MAX)
		return refuse(why, "a notification of more than 4096 bytes");
	if (rest != tern_header_payload_bytes(h))
		return refuse(why, "wrong length for its type");
	h->payload = p + TERN_HEADER_BYTES + ext_bytes;
	return 0;
}

const char *tern_message_name(uint8_t type)
{
	static const char *const names[TERN_MSG_TYPE_COUNT] = {"?", "HELLO", "EAGER",
		"POST", "RTS", "CTS", "DONE", "ATS", "CREDIT", "CANCEL", "CANCEL_ACK",
		"MISS", "PING", "FIN", "RENEW", "WANT", "HAVE", "WINDOW_OPEN",
		"WINDOW_OPENED", "WINDOW_WRITE", "WINDOW_READ", "WINDOW_FENCE",
		"WINDOW_DONE", "WINDOW_CLOSE", "WINDOW_LEFT", "NOTIFY", "WINDOW_MOVE",
		"WINDOW_MOVED"};

	return names[type < TERN_MSG_TYPE_COUNT ? type : 0];
}

/* A HELLO message is an ordinary header with type HELLO, then the fields of struct
 * tern_hello one after the other. */

#define OFF_HELLO_ORDER 152u

void tern_hello_encode(const struct tern_hello *hello, void *message)
{
	struct tern_header header = {.type = TERN_MSG_HELLO};
	unsigned char *p = message;

	memset(p, 0, TERN_HELLO_MESSAGE_BYTES);
	tern_header_encode(&header, p);
	tern_put_le16(p + OFF_EXT_BYTES, TERN_HELLO_BYTES);
	p += TERN_HEADER_BYTES;
	p[0] = hello->step;
	p[1] = hello->rail;
	tern_put_le16(p + 2, (uint16_t)hello->status);
	tern_put_le32(p + 4, hello->epoch);
	tern_put_le64(p + 8, hello->incarnation);
	tern_put_le64(p + 16, hello->token);
	tern_put_le32(p + 24, hello->rx_seq);
	tern_put_le32(p + 28, hello->first_seq);
	tern_put_le32(p + 32, hello->credit);
	tern_put_le32(p + 36, hello->eager_bytes);
	memcpy(p + 40, hello->nonce, 16);
	memcpy(p + 56, hello->mac, 32);
	memcpy(p + 88, hello->name, 64);
	p[OFF_HELLO_ORDER] = TERN_BYTE_ORDER;
}

uint8_t tern_hello_version(const void *message, size_t bytes)
{
	return bytes < TERN_HEADER_BYTES ? 0
					 : ((const unsigned char *)message)[OFF_VERSION];
}

int tern_hello_decode(const void *message, size_t bytes, struct tern_hello *out)
{
	const unsigned char *p = message;

	if (bytes < TERN_HEADER_BYTES ||
		tern_get_le16(p + OFF_MAGIC) != TERN_WIRE_MAGIC ||
		p[OFF_TYPE] != TERN_MSG_HELLO)
		return -EPROTO;
	if (p[OFF_VERSION] != TERN_WIRE_VERSION)
		return -EPROTONOSUPPORT;
	if (bytes != TERN_HELLO_MESSAGE_BYTES ||
		tern_get_le16(p + OFF_EXT_BYTES) != TERN_HELLO_BYTES)
		return -EPROTO;
	p += TERN_HEADER_BYTES;
	*out = (struct tern_hello){
		.step = p[0],
		.rail = p[1],
		.status = (int16_t)tern_get_le16(p + 2),
		.epoch = tern_get_le32(p + 4),
		.incarnation = tern_get_le64(p + 8),
		.token = tern_get_le64(p + 16),
		.rx_seq = tern_get_le32(p + 24),
		.first_seq = tern_get_le32(p + 28),
		.credit = tern_get_le32(p + 32),
		.eager_bytes = tern_get_le32(p + 36),
	};
	memcpy(out->nonce, p + 40, 16);
	memcpy(out->mac, p + 56, 32);
	memcpy(out->name, p + 88, 64);
	if (out->step < 1 || out->step > 3 || !tern_status_may_end(out->status) ||
		out->name[sizeof(out->name) - 1])
		return -EPROTO;
	return tern_byte_order_check(p[OFF_HELLO_ORDER]);
}
