/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format of the rendezvous: one page.
 *
 *     offset  bytes  field
 *          0      2  magic 0x4e54
 *          2      1  version
 *          3      1  type
 *          4      2  flags
 *          6      1  dtype
 *          7      1  rank, 0..8
 *          8      4  epoch of the connection: grows with each reconnect
 *         12      4  seq: of this message in its direction, over all epochs
 *         16      4  ack: last seq that the sender of this header has handled
 *         20      4  credit: messages the other side may have sent in all (cumulative)
 *         24      4  channel
 *         28      2  ext_bytes, a multiple of 8
 *         30      2  status, 0 or a negative errno
 *         32      8  key
 *         40      8  step
 *         48      8  bytes: of the tensor, or of the room
 *         56      4  src: the sender's request id, 0 if none
 *         60      4  dst: the receiver's request id, 0 if none
 *
 * All fields are little-endian; the header has 64 bytes. The extension follows: dims
 * (rank times 8 bytes), the region (with flag REGION: 32 bytes, or 48 with flag WIDE),
 * the key's name (with flag NAME: 56 bytes, key.h). In an EAGER, `bytes` bytes of data
 * follow the extension. The extension of a HELLO is struct tern_hello. The fabric
 * protects the header against corruption: see fabric.h.
 *
 * The decoder checks the range of each field and that the shape's size does not overflow.
 * Beyond that decoded values are not trusted: ids are looked up, and the fabric checks
 * regions.
 */
#ifndef TERN_RENDEZVOUS_WIRE_H
#define TERN_RENDEZVOUS_WIRE_H

#include <tern/types.h>

#include "rendezvous/key.h"
#include "transport/fabric.h"

#define TERN_WIRE_MAGIC   0x4e54u
#define TERN_WIRE_VERSION 4u

#define TERN_HEADER_BYTES 64u
#define TERN_EXT_MAX                                                                     \
	(TERN_RANK_MAX * 8u + (unsigned)sizeof(struct tern_region) +                     \
		(unsigned)sizeof(struct tern_name))
#define TERN_EAGER_MAX 65536u
#define TERN_HEAD_MAX  (TERN_HEADER_BYTES + TERN_EXT_MAX)
/* Largest message: the message_bytes of the fabrics. */
#define TERN_MESSAGE_MAX (TERN_HEAD_MAX + TERN_EAGER_MAX)
_Static_assert(TERN_EXT_MAX % 8 == 0, "extensions keep the payload aligned");

enum tern_message_type {
	TERN_MSG_HELLO = 1,
	TERN_MSG_EAGER = 2, /* sender: here is the tensor */
	TERN_MSG_POST = 3,  /* receiver: here is room, write into it */
	/* sender: I have a tensor; read it, or tell me where to write it. */
	TERN_MSG_RTS = 4,
	TERN_MSG_CTS = 5,  /* receiver, after an RTS: write it there */
	TERN_MSG_DONE = 6, /* sender, behind its puts: all data is there */
	TERN_MSG_ATS = 7,  /* receiver, after an RTS: I have read it, or do not want it */
	TERN_MSG_CREDIT = 8,
	/* The request `src` of the sender of this message is cancelled. */
	TERN_MSG_CANCEL = 9,
	TERN_MSG_CANCEL_ACK = 10,
	TERN_MSG_MISS = 11, /* sender, after a WANT: no such send waits */
	TERN_MSG_PING = 12,
	TERN_MSG_FIN = 13, /* goodbye: nothing follows */
	/* Owner of `src`, on a new link: its region is now this one; without a region,
	 * it can no longer be read. */
	TERN_MSG_RENEW = 14,
	/* receiver: a send of this triple need not wait for a credit; want.c. */
	TERN_MSG_WANT = 15,
	TERN_MSG_HAVE = 16, /* sender: a send of this triple waits for a credit */
	TERN_MSG_TYPE_COUNT
};

enum tern_message_flags {
	TERN_FLAG_REGION = 1 << 0,
	TERN_FLAG_NAME = 1 << 1,
	TERN_FLAG_REPLY = 1 << 2, /* PING, and DONE of a rail: this is an answer */
	TERN_FLAG_RECV = 1 << 3,  /* CANCEL, CANCEL_ACK: concerns a receive, not a send */
	TERN_FLAG_STARVED = 1 << 4, /* sends wait for credits: grant more */
	TERN_FLAG_RAIL = 1 << 5,    /* DONE of a single rail: see rail.c */
	/* A receive that was answered by MISS waits for a HAVE. */
	TERN_FLAG_MISSED = 1 << 6,
	/* With REGION: the region has 48 bytes; set by the encoder. */
	TERN_FLAG_WIDE = 1 << 7,
};

struct tern_header {
	uint8_t type;
	uint16_t flags;
	int16_t status;
	uint32_t epoch, seq, ack, credit;
	uint32_t channel;
	uint64_t key, step, bytes;
	uint32_t src, dst;
	struct tern_shape shape;
	struct tern_region region; /* if TERN_FLAG_REGION is set */
	/* If TERN_FLAG_NAME is set; after decoding it points into the message. */
	const struct tern_name *name;
	const void *payload; /* decoded EAGER only: `bytes` bytes of data */
};

/* True for messages that the session numbers, keeps until acknowledged, and sends
 * again after a reconnect. */
static inline bool tern_type_is_sequenced(uint8_t type)
{
	return type != TERN_MSG_HELLO && type != TERN_MSG_CREDIT &&
	       type != TERN_MSG_PING && type != TERN_MSG_RENEW;
}

/* True for messages that use a record at the receiver, and so a credit of the sender.
 * A message with `dst` set answers a POST or a WANT, and uses none. */
static inline bool tern_type_takes_credit(uint8_t type, uint32_t dst)
{
	return type == TERN_MSG_POST ||
	       ((type == TERN_MSG_EAGER || type == TERN_MSG_RTS) && dst == 0);
}

/* Encodes header and extension into `out` (TERN_HEAD_MAX bytes, 8-aligned). Returns
 * their length. */
size_t tern_header_encode(const struct tern_header *header, void *out);

/* Sets the epoch of a message that is sent again. */
void tern_header_restamp(void *encoded, uint32_t epoch);
/* Accessors of an encoded header: type, src, REGION flag. */
uint8_t tern_header_type(const void *encoded);
uint32_t tern_header_src(const void *encoded);
bool tern_header_has_region(const void *encoded);
/* Accessors of an encoded header: ack and credit. */
uint32_t tern_header_ack(const void *encoded);
uint32_t tern_header_credit(const void *encoded);
/* Replaces the status in an encoded header. */
void tern_header_set_status(void *encoded, int status);
/* Replaces the region of an encoded message, or removes it (NULL). Returns the new
 * length, which may be up to TERN_REGION_SPARE more. */
#define TERN_REGION_SPARE 16u
size_t tern_header_set_region(
	void *encoded, size_t head_bytes, const struct tern_region *region);

/*
 * Checks and decodes a message that is not a HELLO. -EPROTO, and *why names the bad field
 * and the error (static storage).
 */
int tern_header_decode(
	const void *message, size_t bytes, struct tern_header *out, const char **why);

const char *tern_message_name(uint8_t type);

/*
 * The handshake has three messages. In step 1 the dialler says who it is. In step 2 the
 * acceptor answers and proves that it knows the secret. In step 3 the dialler proves the
 * same. Then the acceptor starts to send at once; the dialler of a new session starts
 * when it has heard from the acceptor. A refusal is a step 2 with a status. The size is
 * fixed, so that a newer version can be recognised and refused with a message. After
 * these fields, one byte tells the byte order of the sender's tensors (base/endian.h).
 */
struct tern_hello {
	uint8_t step; /* 1 to 3 */
	uint8_t rail; /* 0: the main link, which carries messages */
	int16_t status;
	uint32_t epoch;
	uint64_t incarnation; /* random number of the sender's context */
	uint64_t token;       /* names the session; 0 asks for a new one */
	uint32_t rx_seq;      /* last seq handled: later messages must be sent again */
	uint32_t first_seq;   /* start of this side's sequence numbers */
	uint32_t credit;      /* cumulative, as in the header */
	uint32_t eager_bytes; /* largest EAGER that this side accepts */
	uint8_t nonce[16];
	uint8_t mac[32]; /* HMAC-SHA256; zeros without a secret */
	char name[64];   /* name of this side for messages, NUL-terminated */
};
#define TERN_HELLO_BYTES 160u

void tern_hello_encode(const struct tern_hello *hello, void *message);
/* -EPROTO: not a HELLO; -EPROTONOSUPPORT: another version; -EILSEQ: the sender has the
 * other byte order. */
int tern_hello_decode(const void *message, size_t bytes, struct tern_hello *out);
#define TERN_HELLO_MESSAGE_BYTES (TERN_HEADER_BYTES + TERN_HELLO_BYTES)

#endif
