/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of a context: for each message that waits for our half, or for our answer,
 * one, with room for the data of an EAGER. They are made a slab at a time, when peers
 * come, never when messages do, and stay until the context ends.
 *
 * Invariant: there are never fewer than the shared ones and TERN_CREDIT_OWN for each
 * peer, which is what credits may promise (credit.h). So a message that had a credit
 * finds a record.
 *
 * A record is some 200 bytes. Its payload is TERN_EAGER_MAX of address space, of which
 * pages are taken when a message first needs them; the record that was freed last is used
 * next, so that few of them are.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <sys/mman.h>

#define SLAB_PEERS 16u /* so many bring a slab together */

struct slab {
	struct tern_list node; /* rdv->record_slabs */
	uint32_t count;
	unsigned char *payloads;
	struct tern_record records[];
};

static size_t payloads_bytes(uint32_t count)
{
	return (size_t)count * TERN_EAGER_MAX;
}

static int add_slab(struct tern_rdv *rdv, uint32_t count)
{
	struct slab *slab = calloc(1, sizeof(*slab) + count * sizeof(slab->records[0]));

	if (!slab)
		return -ENOMEM;
	slab->payloads = mmap(NULL, payloads_bytes(count), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (slab->payloads == MAP_FAILED) {
		free(slab);
		return -ENOMEM;
	}
	slab->count = count;
	for (uint32_t i = 0; i < count; i++) {
		struct tern_record *record = &slab->records[i];

		record->payload = slab->payloads + payloads_bytes(i);
		tern_list_init(&record->queue);
		tern_match_node_init(&record->node);
		tern_list_push(&rdv->free_records, &record->all);
	}
	rdv->record_count += count;
	tern_list_push(&rdv->record_slabs, &slab->node);
	return 0;
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

	while ((n = tern_list_pop(&rdv->record_slabs))) {
		struct slab *slab = tern_list_entry(n, struct slab, node);

		munmap(slab->payloads, payloads_bytes(slab->count));
		free(slab);
	}
}

int tern_records_reserve(struct tern_rdv *rdv)
{
	uint64_t need =
		rdv->credits.total + (uint64_t)(rdv->peer_count + 1) * TERN_CREDIT_OWN;
	int r = 0;

	if (rdv->record_count < need)
		r = add_slab(rdv, SLAB_PEERS * TERN_CREDIT_OWN);
	if (r == 0)
		rdv->peer_count++;
	return r;
}
