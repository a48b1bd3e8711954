/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format of the messages between two peers.
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
 *         20      4  credit: credits granted to the other end in all (cumulative)
 *         24      4  channel
 *         28      2  ext_bytes, a multiple of 8
 *         30      2  status, 0 or a negative errno
 *         32      8  key
 *         40      8  step
 *         48      8  bytes: of the tensor, or of the receive buffer (POST, CTS)
 *         56      4  src: the sender's request id, 0 if none
 *         60      4  dst: the receiver's request id, 0 if none
 *
 * All fields are little-endian; the header has 64 bytes. After it comes the extension:
 * dims (rank times 8 bytes), the region (with flag REGION: 32 bytes, or 48 with flag
 * WIDE), the key's name (with flag NAME: 56 bytes, key.h). In an EAGER, a NOTIFY and a
 * WRITE without a region, `bytes` bytes of data follow the extension, and 16 bytes in an
 * OPEN or a MOVE. The extension of a HELLO is struct tern_hello. The fabric
 * protects header and extension against corruption (tcp: by a CRC, transport/tcp/wire.h).
 *
 * The decoder checks the range of each field and that the size of the shape does not
 * overflow. Decoded values are not trusted any further: code that handles a message looks
 * ids up in a table, and the fabric checks regions.
 */
#ifndef TERN_RENDEZVOUS_WIRE_H
#define TERN_RENDEZVOUS_WIRE_H

#include <tern/types.h>

#include "rendezvous/key.h"
#include "transport/fabric.h"

#define TERN_WIRE_MAGIC   0x4e54u
#define TERN_WIRE_VERSION 6u

#define TERN_HEADER_BYTES 64u
#define TERN_EXT_MAX                                                                     \
	(TERN_RANK_MAX * 8u + (unsigned)sizeof(struct tern_region) +                     \
		(unsigned)sizeof(struct tern_name))
#define TERN_EAGER_MAX 65536u
#define TERN_HEAD_MAX  (TERN_HEADER_BYTES + TERN_EXT_MAX)
/* Size of the largest message, which the fabrics are told as message_bytes. */
#define TERN_MESSAGE_MAX (TERN_HEAD_MAX + TERN_EAGER_MAX)
_Static_assert(TERN_EXT_MAX % 8 == 0, "the extension must keep the payload 8-aligned");

enum tern_message_type {
	TERN_MSG_HELLO = 1,
	TERN_MSG_EAGER = 2, /* sender: the tensor, in the message */
	TERN_MSG_POST = 3,  /* receiver: a buffer into which the sender may write */
	/* sender: a tensor is ready; the receiver may read it, or answer with a CTS */
	TERN_MSG_RTS = 4,
	/* Receiver, after an RTS: the buffer that the sender writes into. */
	TERN_MSG_CTS = 5,
	/* Sender, after its puts: all data has arrived, or `status` says why not. */
	TERN_MSG_DONE = 6,
	/* Receiver, after an RTS: the tensor was read, or is not wanted. */
	TERN_MSG_ATS = 7,
	TERN_MSG_CREDIT = 8,
	/* Either end: its request `src` is cancelled. */
	TERN_MSG_CANCEL = 9,
	TERN_MSG_CANCEL_ACK = 10,
	/* Sender, after a WANT: none of its sends that wait can answer this WANT. */
	TERN_MSG_MISS = 11,
	TERN_MSG_PING = 12,
	TERN_MSG_FIN = 13, /* goodbye: its sender ends the session */
	/* Either end, on a new link: the present region of its request `src`. Without a
	 * region: on this link, the memory of the request cannot be read. */
	TERN_MSG_RENEW = 14,
	/* receiver: one send of this triple may go without a credit; want.c */
	TERN_MSG_WANT = 15,
	/* Sender, after a MISS: a send of this triple now waits for a credit. */
	TERN_MSG_HAVE = 16,
	/*
	 * One-sided access: window.h. `key` is the window's id. OPEN: `step` and the
	 * payload prove that the sender has the descriptor, `src` is its handle. OPENED:
	 * `dst` is that handle, `channel` says what the sender may do.
	 */
	TERN_MSG_WINDOW_OPEN = 17,
	TERN_MSG_WINDOW_OPENED = 18,
	/* Bytes for the window at `step`: the payload, or (REGION) to be read there. */
	TERN_MSG_WINDOW_WRITE = 19,
	/* Bytes of the window at `step`, to be put into the region. */
	TERN_MSG_WINDOW_READ = 20,
	/* To be answered behind the puts before it. */
	TERN_MSG_WINDOW_FENCE = 21,
	/* Answers WRITE, READ and FENCE, whose `src` is its `dst`. */
	TERN_MSG_WINDOW_DONE = 22,
	/* The owner: the window is closed; no more access, please. */
	TERN_MSG_WINDOW_CLOSE = 23,
	/* The other end: it does not access the window any more. */
	TERN_MSG_WINDOW_LEFT = 24,
	TERN_MSG_NOTIFY = 25, /* a notification: the payload */
	/*
	 * Bytes between the window, at `step`, and the other end travel as a tensor:
	 * window_move.c. The payload proves that the sender has the descriptor. RECV: out of
	 * the window.
	 */
	TERN_MSG_WINDOW_MOVE = 26,
	/* The owner: its half of the MOVE whose `src` is this `dst` has ended. */
	TERN_MSG_WINDOW_MOVED = 27,
	TERN_MSG_TYPE_COUNT
};

enum tern_message_flags {
	TERN_FLAG_REGION = 1 << 0,
	TERN_FLAG_NAME = 1 << 1,
	TERN_FLAG_REPLY = 1 << 2, /* PING, and DONE of a rail: the message is an answer */
	/* CANCEL, CANCEL_ACK, RENEW: the request that the message names is a receive, not
	 * a send. MOVE: its sender receives. */
	TERN_FLAG_RECV = 1 << 3,
	/* The end that sends this message has sends that wait for credits, so the other
	 * end should grant more. */
	TERN_FLAG_STARVED = 1 << 4,
	TERN_FLAG_RAIL = 1 << 5, /* DONE that was sent on a rail: see rail.c */
	/* The end that sends this message has a receive whose WANT was answered by MISS
	 * (no such send), and which waits for a HAVE. */
	TERN_FLAG_MISSED = 1 << 6,
	/* With REGION: the region has 48 bytes instead of 32. Set by the encoder. */
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
	/* If TERN_FLAG_NAME is set; after decoding, a pointer into the message. */
	const struct tern_name *name;
	/* After decoding: tern_header_payload_bytes() bytes of the message. */
	const void *payload;
};

/* Payload of an OPEN or MOVE: the capability of a window's descriptor. */
#define TERN_CAPABILITY_BYTES 16u

/* Size of the payload, which follows the extension. */
static inline size_t tern_header_payload_bytes(const struct tern_header *h)
{
	if (tern_likely(h->type <= TERN_MSG_HAVE))
		return h->type == TERN_MSG_EAGER ? h->bytes : 0;
	if (h->type == TERN_MSG_WINDOW_OPEN || h->type == TERN_MSG_WINDOW_MOVE)
		return TERN_CAPABILITY_BYTES;
	if (h->type == TERN_MSG_WINDOW_WRITE)
		return h->flags & TERN_FLAG_REGION ? 0 : h->bytes;
	return h->type == TERN_MSG_NOTIFY ? h->bytes : 0;
}

/* True for messages of the main link that get a sequence number, are kept until the peer
 * acknowledges them, and are sent again after a reconnect. */
static inline bool tern_type_is_sequenced(uint8_t type)
{
	return type != TERN_MSG_HELLO && type != TERN_MSG_CREDIT &&
	       type != TERN_MSG_PING && type != TERN_MSG_RENEW &&
	       (type < TERN_MSG_WINDOW_OPEN || type > TERN_MSG_WINDOW_LEFT);
}

/* True for messages that the receiver may have to store in a record, so that their sender
 * needs a credit. A message with `dst` set answers a POST or a WANT, and needs none. */
static inline bool tern_type_takes_credit(uint8_t type, uint32_t dst)
{
	return type == TERN_MSG_POST ||
	       ((type == TERN_MSG_EAGER || type == TERN_MSG_RTS) && dst == 0);
}

/* Encodes header and extension into `out` (TERN_HEAD_MAX bytes, 8-aligned). Returns
 * their length. */
size_t tern_header_encode(const struct tern_header *header, void *out);

/* Replaces the epoch in an encoded message, which is sent again on a new link. */
void tern_header_restamp(void *encoded, uint32_t epoch);
/* Read a field of an encoded header: type, src, flag REGION. */
uint8_t tern_header_type(const void *encoded);
uint32_t tern_header_src(const void *encoded);
bool tern_header_has_region(const void *encoded);
/* Read a field of an encoded header: ack, credit. */
uint32_t tern_header_ack(const void *encoded);
uint32_t tern_header_credit(const void *encoded);
/* Replaces the status in an encoded message. */
void tern_header_set_status(void *encoded, int status);
/* Replaces the region in an encoded message, or removes it (NULL). Returns the new length
 * of header and extension, which may be greater by up to TERN_REGION_SPARE. */
#define TERN_REGION_SPARE 16u
size_t tern_header_set_region(
	void *encoded, size_t head_bytes, const struct tern_region *region);

/*
 * Checks and decodes a message that is not a HELLO. If it is malformed, returns -EPROTO,
 * and *why says which field is wrong (static storage).
 */
int tern_header_decode(
	const void *message, size_t bytes, struct tern_header *out, const char **why);

const char *tern_message_name(uint8_t type);

/*
 * The handshake has three messages (HELLO). In step 1 the dialler (the end that connects)
 * names its context and the session. In step 2 the acceptor answers and proves that it
 * knows the secret. In step 3 the dialler proves the same. Then the acceptor starts to
 * send immediately; the dialler of a new session starts when it has received the
 * acceptor's first message. A refusal is a step 2 with a status. The size is fixed, so
 * that an end of a newer version can be recognised and refused with a message. After
 * these fields, one byte tells the byte order of the sender's tensors (base/endian.h).
 */
struct tern_hello {
	uint8_t step; /* step of the handshake: 1 to 3 */
	uint8_t rail; /* number of the rail; 0: the main link, which carries messages */
	int16_t status;
	uint32_t epoch;
	uint64_t incarnation; /* random number of the sender's context */
	uint64_t token;       /* number of the session; 0 asks for a new session */
	/* Last seq that the sender of this HELLO has handled: the other end must send
	 * later messages again. */
	uint32_t rx_seq;
	uint32_t first_seq; /* number before that of the sender's first message */
	uint32_t credit;    /* credits granted in all (cumulative), as in the header */
	/* Largest tensor, in bytes, that the sender of this HELLO accepts in an EAGER. */
	uint32_t eager_bytes;
	uint8_t nonce[16];
	/* HMAC-SHA256; zeros without a secret, in step 1 of a new session, and in a
	 * refusal. */
	uint8_t mac[32];
	char name[64]; /* name of the sender for log lines, NUL-terminated */
};
#define TERN_HELLO_BYTES 160u

void tern_hello_encode(const struct tern_hello *hello, void *message);
/* -EPROTO: not a HELLO, or malformed; -EPROTONOSUPPORT: another version; -EILSEQ: the
 * sender has the other byte order. */
int tern_hello_decode(const void *message, size_t bytes, struct tern_hello *out);
/* The sender's version of the wire format; 0: the message is too short to tell. */
uint8_t tern_hello_version(const void *message, size_t bytes);
#define TERN_HELLO_MESSAGE_BYTES (TERN_HEADER_BYTES + TERN_HELLO_BYTES)

#endif
