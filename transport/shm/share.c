/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of this process that peers may have open, and notes to the peers when it is
 * freed.
 *
 * A peer maps our slabs (memory segments, slab.c) and opens memory of our GPUs (gpu.c).
 * Pages live as long as any process has them mapped, so freed memory returns to the
 * system only when each peer has released it too. Each conn therefore keeps a list of
 * what its peer may have open (struct shm_offer), and sends a GONE note when such memory
 * is freed.
 *
 * Memory can be freed on any thread. The port notices by a counter in its next poll() or
 * arm(), and then searches the lists of its conns, dozing ones included. Freeing memory
 * that was never passed to a peer does not change the counter. An entry of the list holds
 * a reference to the struct shm_known of its memory, so the search takes no lock.
 *
 * Bound: a list has at most one entry for each live memory, and those whose GONE waits
 * for room in the socket. A peer that does not read its socket gets one new entry at most
 * by asking.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <string.h>

/* Largest number of requests of a peer that wait for an answer: SHM_SLAB_COUNT requests
 * for slabs, and SHM_VIEW_COUNT offers of GPU memory. A peer with more is cut. */
#define OWED_COUNT (SHM_SLAB_COUNT + SHM_VIEW_COUNT)

static struct shm_fabric *fabric_of(const struct shm_port *port)
{
	return tern_container_of(port->base.fabric, struct shm_fabric, base);
}

static void known_put(struct shm_known *known)
{
	if (atomic_fetch_sub(&known->ref_count, 1) == 1)
		free(known);
}

int shm_mem_register(struct tern_fabric *base, struct tern_mem *mem, void **reg)
{
	struct shm_fabric *fabric = tern_container_of(base, struct shm_fabric, base);
	bool gpu = mem->kind == TERN_MEM_CUDA;
	struct shm_known *known;

	*reg = NULL;
	if (gpu)
		atomic_fetch_add(&fabric->chance_count, 1);
	else if (!tern_mem_is_slab(mem))
		return 0;
	known = calloc(1, sizeof(*known));
	if (!known)
		return -ENOMEM;
	if (gpu && tern_ipc_export(mem->gpu, mem->address, mem->bytes, &known->handle)) {
		free(known);
		return 0;
	}
	known->mem_id = mem->id;
	atomic_init(&known->ref_count, 1);
	*reg = known;
	return 0;
}

void shm_mem_unregister(struct tern_fabric *base, struct tern_mem *mem, void *reg)
{
	struct shm_fabric *fabric = tern_container_of(base, struct shm_fabric, base);
	struct shm_known *known = reg;

	(void)mem;
	if (!known)
		return;
	/* Set `gone` before the counter: a port that sees the new count must also see
	 * `gone`. */
	atomic_store(&known->gone, true);
	if (atomic_load(&known->ref_count) > 1)
		atomic_fetch_add(&fabric->gone_count, 1);
	known_put(known);
}

struct shm_offer *shm_offer_find(struct shm_conn *conn, uint32_t mem_id)
{
	tern_list_for_each (node, &conn->offers) {
		struct shm_offer *offer = tern_list_entry(node, struct shm_offer, node);

		if (offer->known->mem_id != mem_id)
			continue;
		tern_list_remove(&offer->node);
		tern_list_push_front(&conn->offers, &offer->node);
		return offer;
	}
	return NULL;
}

struct shm_offer *shm_offer_new(
	struct shm_conn *conn, struct shm_known *known, enum shm_offer_state state)
{
	struct shm_offer *offer = calloc(1, sizeof(*offer));

	if (!offer)
		return NULL;
	atomic_fetch_add(&known->ref_count, 1);
	offer->known = known;
	offer->state = state;
	if (state <= SHM_OFFER_MADE)
		conn->asking_count++;
	tern_list_push_front(&conn->offers, &offer->node);
	shm_conn_settle(conn);
	return offer;
}

/* Changes the state of an offer. While it is WANTED or MADE an answer is awaited, so the
 * conn is unsettled: every poll() checks its socket. */
void shm_offer_enter(
	struct shm_conn *conn, struct shm_offer *offer, enum shm_offer_state next)
{
	static const uint8_t edges[] = {
		[SHM_OFFER_WANTED] = 1 << SHM_OFFER_MADE | 1 << SHM_OFFER_GONE,
		[SHM_OFFER_MADE] = 1 << SHM_OFFER_TAKEN | 1 << SHM_OFFER_REFUSED |
				   1 << SHM_OFFER_GONE,
		[SHM_OFFER_TAKEN] = 1 << SHM_OFFER_GONE,
		[SHM_OFFER_REFUSED] = 1 << SHM_OFFER_GONE,
		/* An offer that was marked GONE earlier is freed now. */
		[SHM_OFFER_GONE] = 1 << SHM_OFFER_GONE,
	};
	bool waited = offer->state <= SHM_OFFER_MADE, waits = next <= SHM_OFFER_MADE;

	tern_assert(edges[offer->state] >> next & 1);
	offer->state = next;
	if (waited && !waits)
		conn->asking_count--;
	shm_conn_settle(conn);
}

void shm_offer_free(struct shm_conn *conn, struct shm_offer *offer)
{
	shm_offer_enter(conn, offer, SHM_OFFER_GONE);
	tern_list_remove(&offer->node);
	known_put(offer->known);
	free(offer);
}

static void mark_what_is_gone(struct shm_conn *conn)
{
	tern_list_for_each (node, &conn->offers) {
		struct shm_offer *offer = tern_list_entry(node, struct shm_offer, node);

		if (atomic_load(&offer->known->gone)) {
			conn->gone_waits = true;
			shm_offer_enter(conn, offer, SHM_OFFER_GONE);
		}
	}
}

void shm_gone_say(struct shm_conn *conn)
{
	conn->gone_waits = false;
	tern_list_for_each_safe (node, &conn->offers) {
		struct shm_offer *offer = tern_list_entry(node, struct shm_offer, node);
		const struct shm_note note = {
			.magic = SHM_NOTE_MAGIC,
			.version = SHM_NOTE_VERSION,
			.type = SHM_GONE,
			.mem_id = offer->known->mem_id,
		};

		if (offer->state != SHM_OFFER_GONE)
			continue;
		if (shm_note_send(conn->fd, &note, -1) == -EAGAIN) {
			conn->gone_waits = true;
			return;
		}
		shm_offer_free(conn, offer);
	}
}

static int answer_say(struct shm_conn *conn, const struct shm_owed *owed)
{
	const struct shm_note note = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = owed->type,
		.mem_id = owed->mem_id,
		.status = owed->status,
	};

	/* Whether the peer may have the slab is decided now, not when the peer asked. */
	if (owed->type == SHM_SLAB)
		return shm_slab_pass(conn, owed->mem_id);
	return shm_note_send(conn->fd, &note, -1);
}

void shm_answers_say(struct shm_conn *conn)
{
	uint32_t said = 0;

	while (said < conn->owed_count && answer_say(conn, &conn->owed[said]) != -EAGAIN)
		said++;
	conn->owed_count -= said;
	if (said)
		memmove(conn->owed, conn->owed + said,
			conn->owed_count * sizeof(*conn->owed));
}

void shm_answer(
	struct shm_conn *conn, enum shm_note_type type, uint32_t mem_id, int status)
{
	const struct shm_owed owed = {(uint16_t)type, status, mem_id};

	if (!conn->owed_count && answer_say(conn, &owed) != -EAGAIN)
		return;
	if (!conn->owed)
		conn->owed = calloc(OWED_COUNT, sizeof(*conn->owed));
	if (!conn->owed)
		shm_conn_fail(conn, -ENOMEM);
	else if (conn->owed_count == OWED_COUNT)
		shm_conn_blame(conn, "it sends more requests than may be unanswered");
	else
		conn->owed[conn->owed_count++] = owed;
}

static void look_among(struct tern_list *conns)
{
	tern_list_for_each_safe (node, conns) {
		struct shm_conn *conn = tern_list_entry(node, struct shm_conn, node);

		if (conn->state != SHM_UP)
			continue;
		mark_what_is_gone(conn);
		if (conn->gone_waits)
			shm_gone_say(conn);
		/* Wake the conn from dozing, so that each poll() tries again to send
		 * GONE. */
		if (conn->gone_waits)
			shm_conn_rouse(conn);
	}
}

void shm_gone_look_now(struct shm_port *port)
{
	port->gone_seen = atomic_load(&fabric_of(port)->gone_count);
	look_among(&port->conns);
	look_among(&port->dozing);
}
