/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/retain.h"

#include <stdlib.h>

#include "base/util.h"

void tern_retain_fini(struct tern_retain *retain)
{
	free(retain->ring);
	free(retain->entries);
	*retain = (struct tern_retain){0};
}

static bool first_use(struct tern_retain *r)
{
	r->ring = malloc(TERN_RETAIN_BYTES);
	r->entries = malloc(TERN_RETAIN_ENTRIES * sizeof(*r->entries));
	if (r->ring && r->entries)
		return true;
	tern_retain_fini(r);
	return false;
}

/*
 * Finds where `bytes` bytes fit contiguously in the ring buffer. Let `tail` be the oldest
 * byte in use and `head` the first free one. The free space is [head, end) and [0, tail),
 * or [head, tail) once head has wrapped. One byte always stays free, so that head == tail
 * never means full.
 */
static bool place(const struct tern_retain *r, uint32_t bytes, uint32_t *offset)
{
	uint32_t tail = r->count ? tern_retain_at(r, 0)->offset : r->head;

	if (r->head >= tail) {
		if (TERN_RETAIN_BYTES - r->head >= bytes) {
			*offset = r->head;
			return true;
		}
		*offset = 0;
		return tail > bytes;
	}
	*offset = r->head;
	return tail - r->head > bytes;
}

struct tern_retained *tern_retain_add(struct tern_retain *r, size_t bytes)
{
	uint32_t rounded = (uint32_t)tern_align_up(bytes, 8), offset;
	struct tern_retained *e;

	if (!r->ring && !first_use(r))
		return NULL;
	if (r->count == 0)
		r->head = r->first = 0;
	if (r->count == TERN_RETAIN_ENTRIES || !place(r, rounded, &offset))
		return NULL;
	e = tern_retain_at(r, r->count++);
	*e = (struct tern_retained){.offset = offset, .bytes = (uint32_t)bytes};
	r->head = offset + rounded;
	return e;
}

void tern_retain_ack(struct tern_retain *r, uint32_t ack)
{
	while (r->count && !tern_seq_before(ack, tern_retain_at(r, 0)->seq)) {
		r->first = (r->first + 1) % TERN_RETAIN_ENTRIES;
		r->count--;
		if (r->sent_count)
			r->sent_count--;
	}
}
