/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of a context: preallocated structures that store a message (EAGER, RTS,
 * POST) which waits for our half of the rendezvous or for our answer, with room for the
 * data of an EAGER. They are allocated in slabs (blocks of many records): the shared ones
 * with the context, others when it dials or is dialled, or when receives send a WANT.
 * After the handshake, no message that arrives allocates any. They stay until the context
 * is freed. All peers that have not proved themselves together cause at most one slab:
 * when one starts its handshake, there must be records for one more peer, but they are
 * not reserved.
 *
 * Invariant: the number of records is at least the sum of: the records that all peers
 * share, TERN_CREDIT_OWN for each peer that may send (together these cover all credits,
 * credit.h), and one for each WANT (want.c) and for each message that answered one. So a
 * message that had a credit, or that answers a WANT, always finds a free record.
 *
 * A record takes about 350 bytes. Its payload takes TERN_EAGER_MAX bytes of address
 * space, whose pages are allocated when a message first needs them. The record that was
 * freed last is used next, and a record that was never used only if no other is free, so
 * that few pages are touched.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <sys/mman.h>

#define SLAB_PEERS 16u /* number of peers whose records share a slab */

/* A slab of records: one memory mapping that holds first the payloads of all its records,
 * then this structure. */
struct slab {
	/* Node in rdv->record_slabs, where slabs with records that were never used come
	 * first. */
	struct tern_list node;
	uint32_t count, used; /* records[used] and later ones were never used */
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

static struct tern_list *fresh(struct tern_rdv *rdv)
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

/* Makes sure that there are enough records for this number of peers and of answers to
 * WANTs. -ENOMEM. */
static int ensure(struct tern_rdv *rdv, uint64_t peer_count, uint64_t wanted_count)
{
	uint64_t need = rdv->credits.total + peer_count * TERN_CREDIT_OWN + wanted_count;

	return rdv->record_count < need ? add_slab(rdv, SLAB_PEERS * TERN_CREDIT_OWN) : 0;
}

int tern_records_spare(struct tern_rdv *rdv)
{
	return ensure(rdv, rdv->peer_count + 1, rdv->wanted_count);
}

int tern_records_reserve(struct tern_peer *peer)
{
	int r = tern_records_spare(peer->rdv);

	if (r == 0) {
		peer->has_records = true;
		peer->rdv->peer_count++;
	}
	return r;
}

void tern_records_release(struct tern_peer *peer)
{
	if (peer->has_records)
		peer->rdv->peer_count--;
	peer->has_records = false;
}

int tern_records_want(struct tern_rdv *rdv)
{
	int r = ensure(rdv, rdv->peer_count, rdv->wanted_count + 1);

	if (r == 0)
		rdv->wanted_count++;
	return r;
}

/* ---- records in use ---- */

void tern_xfer_meet(struct tern_xfer *x, struct tern_record *record)
{
	x->record = record;
	record->xfer = x;
}

struct tern_record *tern_xfer_part(struct tern_xfer *x)
{
	struct tern_record *record = TERN_TAKE(x->record);

	if (record)
		record->xfer = NULL;
	return record;
}

struct tern_record *tern_record_by_id(struct tern_peer *peer, bool is_recv, uint32_t id)
{
	struct tern_map_node *n = tern_map_find(&peer->theirs,
		tern_theirs_key(is_recv ? TERN_THEIR_RECV : TERN_THEIR_SEND, id));

	return n ? tern_container_of(n, struct tern_record, theirs) : NULL;
}

static void know_by_id(struct tern_record *record)
{
	tern_map_node_init(&record->theirs);
	if (record->type == TERN_MSG_EAGER)
		return;
	tern_map_add(&record->peer->theirs, &record->theirs,
		tern_theirs_key(
			record->type == TERN_MSG_POST ? TERN_THEIR_RECV : TERN_THEIR_SEND,
			record->src));
}

struct tern_record *tern_record_new(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_list *n = tern_list_pop(&peer->rdv->free_records);
	struct tern_record *record;

	if (!n)
		n = fresh(peer->rdv);
	/* There is always a record: neither credits nor WANTs promise the peers more
	 * records than there are. */
	tern_assert(n);
	record = tern_list_entry(n, struct tern_record, all);
	record->peer = peer;
	record->shape = h->shape;
	record->region = h->region;
	record->has_region = h->flags & TERN_FLAG_REGION;
	record->name.bytes = 0;
	if (h->flags & TERN_FLAG_NAME)
		record->name = *h->name;
	record->stale = false;
	record->wanted = !tern_type_takes_credit(h->type, h->dst);
	record->late = false;
	record->bytes = h->bytes;
	record->src = h->src;
	record->type = h->type;
	record->xfer = NULL;
	know_by_id(record);
	tern_match_node_init(&record->node);
	record->node.triple = tern_header_triple(peer, h);
	tern_list_init(&record->queue);
	tern_list_push(&peer->records, &record->all);
	return record;
}

void tern_record_free(struct tern_record *record)
{
	struct tern_peer *peer = record->peer;

	tern_match_remove(&peer->match, &record->node);
	tern_map_remove(&peer->theirs, &record->theirs);
	tern_list_remove(&record->queue);
	tern_list_remove(&record->all);
	tern_list_push_front(&peer->rdv->free_records, &record->all);
	if (record->wanted) {
		peer->rdv->wanted_count--;
		if (record->late)
			tern_want_late_is_over(peer);
		return;
	}
	tern_credit_release(&peer->stream.credit_rx);
	if (tern_credit_worth_telling(&peer->stream.credit_rx))
		tern_stream_tell(peer);
}

void tern_record_answer(struct tern_record *record, uint8_t type, int status)
{
	record->answer = type;
	record->status = (int16_t)status;
	tern_list_push(&record->peer->pump.answers, &record->queue);
	tern_peer_pump(record->peer);
}
