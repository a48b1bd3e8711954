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
 *         16      4  ack: last seq that this side has handled
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
 * All little-endian, 64 bytes. The extension follows: dims (8 bytes each, rank of them),
 * the region (32 bytes, flag REGION; 48 with flag WIDE), the key's name (56 bytes, flag
 * NAME: key.h). Behind an EAGER's extension come `bytes` of data. A HELLO's extension is
 * struct tern_hello. The fabric protects the header: see fabric.h.
 *
 * Nothing decoded here is trusted further than its range: ids are looked up, regions are
 * the fabric's to check, shapes have been multiplied out.
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
/* The largest message, what fabrics are told. */
#define TERN_MESSAGE_MAX (TERN_HEAD_MAX + TERN_EAGER_MAX)
_Static_assert(TERN_EXT_MAX % 8 == 0, "extensions keep the payload aligned");

enum tern_message_type {
	TERN_MSG_HELLO = 1,
	TERN_MSG_EAGER = 2, /* sender: here is the tensor */
	TERN_MSG_POST = 3,  /* receiver: here is room, write into it */
	TERN_MSG_RTS = 4,   /* sender: I have a tensor; read it, or say where to */
	TERN_MSG_CTS = 5,   /* receiver, to an RTS: write it there */
	TERN_MSG_DONE = 6,  /* sender, behind its puts: they are all there */
	TERN_MSG_ATS = 7,   /* receiver, to an RTS: I have read it, or do not want it */
	TERN_MSG_CREDIT = 8,
	TERN_MSG_CANCEL = 9, /* the end of `src` that sends this wants out */
	TERN_MSG_CANCEL_ACK = 10,
	TERN_MSG_MISS = 11, /* sender, to a WANT: none waits */
	TERN_MSG_PING = 12,
	TERN_MSG_FIN = 13, /* nothing will follow */
	/* owner of `src`, on a new link: its region is this one from now on; without one,
	 * it cannot be read any more */
	TERN_MSG_RENEW = 14,
	TERN_MSG_WANT = 15, /* receiver: a send of this triple need not wait; want.c */
	TERN_MSG_HAVE = 16, /* sender: a send of this triple waits for a credit */
	TERN_MSG_TYPE_COUNT
};

enum tern_message_flags {
	TERN_FLAG_REGION = 1 << 0,
	TERN_FLAG_NAME = 1 << 1,
	TERN_FLAG_REPLY = 1 << 2,   /* PING, DONE of a rail: an answer */
	TERN_FLAG_RECV = 1 << 3,    /* CANCEL, CANCEL_ACK: of a receive, not a send */
	TERN_FLAG_STARVED = 1 << 4, /* sends are waiting for credit: grant more */
	TERN_FLAG_RAIL = 1 << 5,    /* DONE: of one rail only, see rail.c */
	TERN_FLAG_MISSED = 1 << 6,  /* a receive that heard MISS waits for a HAVE */
	TERN_FLAG_WIDE = 1 << 7,    /* with REGION: it has 48 bytes; set by the encoder */
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
	struct tern_region region;    /* with TERN_FLAG_REGION */
	const struct tern_name *name; /* with TERN_FLAG_NAME; decoded: in the message */
	const void *payload;          /* decoded EAGER only; `bytes` of it */
};

/* Messages that the session numbers, keeps until acknowledged, and sends again. */
static inline bool tern_type_is_sequenced(uint8_t type)
{
	return type != TERN_MSG_HELLO && type != TERN_MSG_CREDIT &&
	       type != TERN_MSG_PING && type != TERN_MSG_RENEW;
}

/* Messages that take a record at the receiver, and so a credit of the sender. With `dst`
 * they answer a POST or a WANT. */
static inline bool tern_type_takes_credit(uint8_t type, uint32_t dst)
{
	return type == TERN_MSG_POST ||
	       ((type == TERN_MSG_EAGER || type == TERN_MSG_RTS) && dst == 0);
}

/* Header and extension into `out` (TERN_HEAD_MAX bytes, 8-aligned). Their length. */
size_t tern_header_encode(const struct tern_header *header, void *out);

/* A new epoch for a message that is sent again. */
void tern_header_restamp(void *encoded, uint32_t epoch);
/* Its type, its sender's request id; does it have a region? */
uint8_t tern_header_type(const void *encoded);
uint32_t tern_header_src(const void *encoded);
bool tern_header_has_region(const void *encoded);
/* The counters that it carries. */
uint32_t tern_header_ack(const void *encoded);
uint32_t tern_header_credit(const void *encoded);
/* Another status. */
void tern_header_set_status(void *encoded, int status);
/* Another region in the place of the one that it has; NULL: none. Its new length, which
 * may be TERN_REGION_SPARE more. */
#define TERN_REGION_SPARE 16u
size_t tern_header_set_region(
	void *encoded, size_t head_bytes, const struct tern_region *region);

/*
 * Checks and decodes a message that is not a HELLO. -EPROTO, and *why says which field
 * and what is wrong with it (static storage).
 */
int tern_header_decode(
	const void *message, size_t bytes, struct tern_header *out, const char **why);

const char *tern_message_name(uint8_t type);

/*
 * The handshake. Three messages: the one who connects says who it is (step 1), the other
 * answers and proves that it knows the secret (2), the first proves the same (3). Both go
 * on at once after 2 and 3. A refusal is a step 2 with a status. Fixed size, so that a
 * newer version can be recognised and refused in words. Behind these fields a byte says
 * the byte order of the sender's tensors (base/endian.h).
 */
struct tern_hello {
	uint8_t step; /* 1..3 */
	uint8_t rail; /* 0: the connection that carries messages */
	int16_t status;
	uint32_t epoch;
	uint64_t incarnation; /* of the sender's context; random */
	uint64_t token;       /* names the session: 0 asks for a new one */
	uint32_t rx_seq;      /* last seq handled, for what must be sent again */
	uint32_t first_seq;   /* where this side's numbers start */
	uint32_t credit;      /* cumulative, as in the header */
	uint32_t eager_bytes; /* largest EAGER that this side takes */
	uint8_t nonce[16];
	uint8_t mac[32]; /* HMAC-SHA256, zeros without a secret */
	char name[64];   /* what this side is to be called; terminated */
};
#define TERN_HELLO_BYTES 160u

void tern_hello_encode(const struct tern_hello *hello, void *message);
/* -EPROTO: not a HELLO; -EPROTONOSUPPORT: of another version; -EILSEQ: from a machine of
 * the other byte order. */
int tern_hello_decode(const void *message, size_t bytes, struct tern_hello *out);
#define TERN_HELLO_MESSAGE_BYTES (TERN_HEADER_BYTES + TERN_HELLO_BYTES)

#endif
