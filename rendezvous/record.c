/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of a context: for each message that waits for our half, or for our answer,
 * one, with room for the data of an EAGER. They are made a slab at a time, when peers
 * come or receives ask, never when messages come, and stay until the context ends.
 *
 * Invariant: there are never fewer than the shared ones and TERN_CREDIT_OWN for each
 * peer, which is what credits may promise (credit.h), and one for each WANT (want.c) and
 * each message that answered one. So a message that had a credit, or was asked for, finds
 * a record.
 *
 * A record is some 200 bytes, its payload TERN_EAGER_MAX: of address space, of which
 * pages are taken when a message first needs them. The record that was freed last is used
 * next, and one that never was only if none is free, so that few of them are.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <sys/mman.h>

#define SLAB_PEERS 16u /* so many bring a slab together */

/* Behind the payloads, in the same mapping. */
struct slab {
	struct tern_list node; /* rdv->record_slabs: those with fresh ones come first */
	uint32_t count, used;  /* the records from `used` on are fresh */
	unsigned char *payloads;
	struct tern_record records[];
};

static size_t payloads_bytes(uint32_t count)
{
	return (size_t)count * TERN_EAGER_MAX;
}

static size_t slab_bytes(uint32_t count)
{
	return payloads_bytes(count) + sizeof(struct slab) +
	       count * sizeof(struct tern_record);
}

static int add_slab(struct tern_rdv *rdv, uint32_t count)
{
	unsigned char *base = mmap(NULL, slab_bytes(count), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct slab *slab;

	if (base == MAP_FAILED)
		return -ENOMEM;
	slab = (struct slab *)(void *)(base + payloads_bytes(count));
	slab->count = count;
	slab->payloads = base;
	rdv->record_count += count;
	tern_list_push_front(&rdv->record_slabs, &slab->node);
	return 0;
}

struct tern_list *tern_record_fresh(struct tern_rdv *rdv)
{
	struct slab *slab = tern_list_first(&rdv->record_slabs, struct slab, node);
	struct tern_record *record;

	if (!slab || slab->used == slab->count)
		return NULL;
	record = &slab->records[slab->used];
	record->payload = slab->payloads + payloads_bytes(slab->used++);
	if (slab->used == slab->count) {
		tern_list_remove(&slab->node);
		tern_list_push(&rdv->record_slabs, &slab->node);
	}
	return &record->all;
}

int tern_records_init(struct tern_rdv *rdv, uint32_t shared_count)
{
	tern_list_init(&rdv->record_slabs);
	tern_list_init(&rdv->free_records);
	rdv->credits.total = shared_count;
	return add_slab(rdv, shared_count);
}

void tern_records_fini(struct tern_rdv *rdv)
{
	struct tern_list *n;

	tern_assert(rdv->wanted_count == 0);
	while ((n = tern_list_pop(&rdv->record_slabs))) {
		struct slab *slab = tern_list_entry(n, struct slab, node);

		munmap(slab->payloads, slab_bytes(slab->count));
	}
}

/* -ENOMEM: there are not as many, and cannot be. */
static int ensure(struct tern_rdv *rdv, uint64_t peer_count, uint64_t wanted_count)
{
	uint64_t need = rdv->credits.total + peer_count * TERN_CREDIT_OWN + wanted_count;

	return rdv->record_count < need ? add_slab(rdv, SLAB_PEERS * TERN_CREDIT_OWN) : 0;
}

int tern_records_reserve(struct tern_rdv *rdv)
{
	int r = ensure(rdv, rdv->peer_count + 1, rdv->wanted_count);

	if (r == 0)
		rdv->peer_count++;
	return r;
}

int tern_records_want(struct tern_rdv *rdv)
{
	int r = ensure(rdv, rdv->peer_count, rdv->wanted_count + 1);

	if (r == 0)
		rdv->wanted_count++;
	return r;
}
