/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that were sent and not yet acknowledged, oldest first, whole: what a reconnect
 * sends again. Also the queue of messages that the fabric had no room for: `sent_count`
 * of them were given to it, the others wait.
 *
 * A ring of bytes beside a ring of entries; both are empty most of the time, and then
 * start over at their beginning, so that an idle peer keeps one page of each warm.
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
	bool stale;             /* its region is of an earlier link */
	struct tern_xfer *xfer; /* DONE: whose puts go before it; NULL if it has none */
};

struct tern_retain {
	unsigned char *ring; /* NULL until first used */
	struct tern_retained *entries;
	uint32_t first, count; /* entries, modulo TERN_RETAIN_ENTRIES */
	uint32_t sent_count;
	uint32_t head; /* where the next message goes */
};

void tern_retain_fini(struct tern_retain *retain);

/*
 * Room for a message of `bytes`, contiguous and 8-aligned, as the newest entry.
 * NULL: no room now (-EAGAIN), or no memory at first use.
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

/* Forgets all that the peer has handled: seq up to and including `ack`. */
void tern_retain_ack(struct tern_retain *retain, uint32_t ack);

#endif
