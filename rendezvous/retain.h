/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of messages that were sent and are not acknowledged yet, oldest first: a
 * reconnect sends them again. The same queue has the messages for which the fabric had no
 * room: the first `sent_count` were passed to the fabric, the others wait.
 *
 * The queue has a ring buffer of bytes and one of entries. Both are empty most of the
 * time and then start again at their beginning, so that an idle peer keeps only one page
 * of each in use.
 */
#ifndef TERN_RENDEZVOUS_RETAIN_H
#define TERN_RENDEZVOUS_RETAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TERN_RETAIN_BYTES   (1u << 20)
#define TERN_RETAIN_ENTRIES 2048u

struct tern_xfer;

struct tern_retained {
	uint32_t offset, bytes, head_bytes;
	uint32_t seq;
	bool stale; /* the region in the message belongs to an earlier link */
	/* DONE: the send whose puts must be repeated before the DONE is; else NULL. */
	struct tern_xfer *xfer;
};

struct tern_retain {
	unsigned char *ring; /* NULL until first used */
	struct tern_retained *entries;
	uint32_t first, count; /* index of the oldest entry; number of entries */
	uint32_t sent_count;   /* how many of the oldest entries the fabric has taken */
	uint32_t head;         /* offset in `ring` of the next message */
};

void tern_retain_fini(struct tern_retain *retain);

/*
 * Adds an entry with contiguous room for a message of `bytes` bytes, aligned to 8 bytes.
 * NULL: no room now, or no memory at first use.
 */
struct tern_retained *tern_retain_add(struct tern_retain *retain, size_t bytes);

static inline void *tern_retain_data(
	const struct tern_retain *r, const struct tern_retained *e)
{
	return r->ring + e->offset;
}

static inline struct tern_retained *tern_retain_at(
	const struct tern_retain *r, uint32_t index)
{
	return &r->entries[(r->first + index) % TERN_RETAIN_ENTRIES];
}

/* Drops all messages up to the sequence number `ack`, which the peer has handled. */
void tern_retain_ack(struct tern_retain *retain, uint32_t ack);

#endif
