/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending on a verbs conn.
 *
 * The ring (conn->ring) has one entry for each work request in the send queue, in the
 * same order. Completions arrive in this order too, and one completion covers all
 * requests before it. So only some requests ask for a completion: the last piece of every
 * put, every read, every probe, the BYE, and one in several of the others (more often if
 * they hold slots, because a slot is freed only by a completion).
 *
 * Work requests are collected and posted together, with one doorbell: when the batch is
 * full, at the beginning and the end of every poll, and in arm().
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "transport/verbs/verbs.h"

#define PUT_BYTES  (VERBS_PAYLOAD - (uint32_t)sizeof(struct verbs_put))
#define FRAME      ((uint32_t)sizeof(struct verbs_frame))
#define READ_BYTES (1u << 20)

static uint32_t room(const struct verbs_conn *conn)
{
	return conn->depth - (conn->tail - conn->head);
}

/* Number of work requests that may be used for anything except control frames. */
static uint32_t free_room(const struct verbs_conn *conn)
{
	return room(conn) - TERN_MIN(room(conn), VERBS_CONTROL);
}

static uint32_t credits(const struct verbs_conn *conn)
{
	return conn->window - (conn->sent - conn->heard_credit);
}

static int block(struct verbs_conn *conn, uint32_t need)
{
	struct verbs_port *port = verbs_conn_port(conn);

	conn->need = need;
	if (!tern_list_linked(&conn->blocked))
		tern_list_push(&port->blocked, &conn->blocked);
	return -EAGAIN;
}

/* True if a message of `frames` frames can be sent now, and would not overtake a waiting
 * put. */
static bool fits(const struct verbs_conn *conn, uint32_t frames)
{
	return conn->put_count == 0 && free_room(conn) >= frames &&
	       credits(conn) >= frames && verbs_slot_count(conn) >= frames;
}

bool verbs_tx_open(const struct verbs_conn *conn)
{
	if (conn->state != VERBS_UP)
		return false;
	return conn->need ? fits(conn, conn->need) : conn->put_count < VERBS_PUTS_MAX;
}

/* ---- work requests ---- */

void verbs_tx_flush(struct verbs_conn *conn)
{
	struct ibv_send_wr *bad;
	int r;

	struct verbs_queue *queue = conn->queue;
	uint32_t count = conn->wait_count;

	tern_list_remove(&conn->dirty);
	conn->wait_count = 0;
	if (count == 0 || conn->state == VERBS_ENDING)
		return;
	/* Post receives first: the credits in these frames promise the peer that slots
	 * are posted for its messages. */
	if (queue->srq && queue->posted < queue->wanted && verbs_slots_refill(queue)) {
		verbs_device_failed(queue, "no longer accepts receive requests");
		return;
	}
	conn->wr[count - 1].next = NULL;
	r = ibv_post_send(conn->id->qp, conn->wr, &bad);
	if (r) {
		tern_log(conn->base.port->env, TERN_LOG_WARN,
			"%s: the device refuses work requests: %s", conn->base.name,
			tern_status_text(r > 0 ? -r : -EIO));
		verbs_conn_end(conn, -ENETDOWN);
	}
}

/* Appends a work request to the ring and to the batch to be posted. The caller must fill
 * it in before the next call. Its data pieces (at most two) are conn->sge[index]. */
static struct ibv_send_wr *next(struct verbs_conn *conn, const struct verbs_wr *entry)
{
	struct verbs_port *port = verbs_conn_port(conn);
	struct ibv_send_wr *wr;
	uint32_t i;

	if (conn->wait_count == VERBS_BATCH)
		verbs_tx_flush(conn);
	i = conn->wait_count++;
	wr = &conn->wr[i];
	*wr = (struct ibv_send_wr){
		.wr_id = verbs_id_send(conn, conn->tail),
		.next = i + 1 < VERBS_BATCH ? &conn->wr[i + 1] : NULL,
		.sg_list = conn->sge[i],
		.num_sge = 1,
	};
	conn->ring[conn->tail++ & (conn->ring_size - 1)] = *entry;
	if (!tern_list_linked(&conn->dirty) && conn->state != VERBS_ENDING)
		tern_list_push(&port->dirty, &conn->dirty);
	return wr;
}

/* Number of work requests of which at least one asks for a completion. */
static uint32_t signal_limit(const struct verbs_conn *conn)
{
	return TERN_MIN(conn->depth / 4, 64u);
}

static void maybe_signal(
	struct verbs_conn *conn, struct ibv_send_wr *wr, bool slot, bool last)
{
	uint32_t limit = signal_limit(conn);

	conn->unsignalled += slot ? TERN_MAX(limit / 8, 1u) : 1;
	if (!last && conn->unsignalled < limit)
		return;
	conn->unsignalled = 0;
	wr->send_flags |= IBV_SEND_SIGNALED;
}

/* ---- does the remote NIC answer? ---- */

/*
 * Probes whether the remote NIC answers. The result is always 0: a reliable queue pair
 * itself detects that the remote NIC does not answer, and the conn then ends with
 * -ETIMEDOUT, but only while something is in flight. So this call, which is made when the
 * peer is silent, posts an RDMA WRITE of 0 bytes. This needs no receive slot, no credit
 * and no key, and the peer's program takes no part in the acknowledgement.
 */
uint64_t verbs_unanswered_ns(struct tern_conn *base)
{
	struct verbs_conn *conn = verbs_conn_of(base);
	bool asked = conn->probe_at - conn->head < conn->tail - conn->head;
	struct ibv_send_wr *wr;

	if (conn->state != VERBS_UP || asked || !free_room(conn))
		return 0;
	conn->probe_at = conn->tail;
	wr = next(conn, &(struct verbs_wr){.work = VERBS_WORK_WRITE});
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->num_sge = 0;
	maybe_signal(conn, wr, false, true);
	return 0;
}

/* ---- frames ---- */

static struct verbs_frame frame(struct verbs_conn *conn, enum verbs_frame_type type)
{
	conn->told = conn->received;
	return (struct verbs_frame){
		.credit = htole32(conn->received), .type = (uint8_t)type};
}

/* Begins a frame with `bytes` of payload, and returns the address where the caller must
 * put the payload. If the frame is too long to be sent inline, a slot must be free. */
static char *begin(struct verbs_conn *conn, enum verbs_frame_type type, uint32_t bytes)
{
	const struct verbs_frame head = frame(conn, type);
	bool in_line = FRAME + bytes <= conn->inline_max;
	struct verbs_wr entry = {.work = VERBS_WORK_SEND};
	struct ibv_send_wr *wr;
	char *at;

	if (!in_line)
		entry.slot = (uint32_t)verbs_slot_take(conn) + 1;
	wr = next(conn, &entry);
	wr->opcode = IBV_WR_SEND;
	if (in_line) {
		at = conn->stage[wr - conn->wr];
		wr->sg_list[0] =
			(struct ibv_sge){.addr = (uintptr_t)at, .length = FRAME + bytes};
		wr->send_flags = IBV_SEND_INLINE;
	} else {
		wr->sg_list[0] =
			verbs_slot_sge(conn->queue, entry.slot - 1, FRAME + bytes);
		at = verbs_slot_at(conn->queue, entry.slot - 1);
	}
	maybe_signal(conn, wr, !in_line, type == VERBS_BYE);
	memcpy(at, &head, sizeof(head));
	return at + FRAME;
}

int verbs_tx_control(struct verbs_conn *conn, enum verbs_frame_type type)
{
	if (room(conn) == 0 || (conn->inline_max < FRAME && !verbs_slot_count(conn)))
		return -EAGAIN;
	begin(conn, type, 0);
	return 0;
}

/* Sends a message in several frames. The payload follows the head immediately. */
static void send_parts(struct verbs_conn *conn, const char *head, size_t head_bytes,
	const char *payload, size_t payload_bytes)
{
	while (head_bytes + payload_bytes > 0 && conn->state != VERBS_ENDING) {
		size_t total = TERN_MIN(head_bytes + payload_bytes, VERBS_PAYLOAD);
		size_t first = TERN_MIN(head_bytes, total);
		bool last = total == head_bytes + payload_bytes;
		char *to =
			begin(conn, last ? VERBS_MESSAGE : VERBS_MORE, (uint32_t)total);

		memcpy(to, head, first);
		if (total > first)
			memcpy(to + first, payload, total - first);
		head += first;
		head_bytes -= first;
		payload += total - first;
		payload_bytes -= total - first;
		conn->sent++;
	}
}

int verbs_send(struct tern_conn *base, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	struct verbs_conn *conn = verbs_conn_of(base);
	size_t bytes = head_bytes + payload_bytes;
	uint32_t frames = (uint32_t)((bytes + VERBS_PAYLOAD - 1) / VERBS_PAYLOAD);

	if (conn->state != VERBS_UP)
		return -ENOTCONN;
	tern_assert(bytes > 0 && bytes <= base->port->message_bytes);
	if (!fits(conn, frames))
		return block(conn, frames);
	send_parts(conn, head, head_bytes, payload_bytes ? payload : "", payload_bytes);
	return 0;
}

/* ---- puts ---- */

static uint32_t key_of(const struct verbs_conn *conn, const struct verbs_op *v)
{
	return verbs_lkey(v->mem, conn->queue->device, conn->base.port->fabric);
}

/* True if the device cannot read the put's source memory, so that the CPU must copy the
 * bytes to a slot first. */
static bool is_copied(const struct verbs_conn *conn, const struct verbs_op *v)
{
	return v->mem->kind == TERN_MEM_HOST && key_of(conn, v) == 0 &&
	       !atomic_load(&conn->queue->device->dead);
}

/* Scatter/gather entry for the next `bytes` of the op's memory. If the device has no key
 * for the memory, the device is dead (see is_copied()), and the conn ends. */
static struct ibv_sge sge_of(
	struct verbs_conn *conn, const struct verbs_op *v, uint64_t bytes)
{
	uint32_t key = key_of(conn, v);

	if (key == 0)
		verbs_conn_end(conn, -ENETDOWN);
	return (struct ibv_sge){
		.addr = verbs_address(v->mem, v->offset),
		.length = (uint32_t)bytes,
		.lkey = key,
	};
}

static void advance(struct verbs_op *v, uint64_t bytes)
{
	v->offset += bytes;
	v->remote += bytes;
	v->left -= bytes;
}

/* Posts the next `bytes` of a put or get as RDMA WRITE or READ. The local memory is that
 * of the op, or, if `slot` is not 0, slot number `slot` - 1. */
static struct ibv_send_wr *post_rdma(struct verbs_conn *conn, struct tern_op *op,
	enum verbs_work work, uint64_t bytes, uint32_t slot)
{
	struct verbs_op *v = verbs_op_of(op);
	const struct verbs_wr entry = {
		.work = work, .last = bytes == v->left, .slot = slot, .op = op};
	struct ibv_send_wr *wr = next(conn, &entry);

	wr->opcode = work == VERBS_WORK_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = v->remote;
	wr->wr.rdma.rkey = v->key;
	wr->sg_list[0] = slot ? verbs_slot_sge(conn->queue, slot - 1, (uint32_t)bytes)
			      : sge_of(conn, v, bytes);
	advance(v, bytes);
	return wr;
}

static void post_write(struct verbs_conn *conn, struct tern_op *op)
{
	struct verbs_op *v = verbs_op_of(op);
	uint64_t bytes = TERN_MIN(v->left, conn->piece_bytes);
	struct ibv_send_wr *wr = post_rdma(conn, op, VERBS_WORK_WRITE, bytes, 0);

	maybe_signal(conn, wr, false, v->left == 0);
}

/* Posts the next piece of a put from memory that the device cannot read: copies the bytes
 * to a slot, and posts an RDMA WRITE from the slot. */
static void post_copied(struct verbs_conn *conn, struct tern_op *op)
{
	struct verbs_op *v = verbs_op_of(op);
	uint64_t bytes = TERN_MIN(v->left, VERBS_PAYLOAD);
	uint32_t slot = (uint32_t)verbs_slot_take(conn);
	struct ibv_send_wr *wr;

	memcpy(verbs_slot_at(conn->queue, slot), tern_mem_at(v->mem, v->offset), bytes);
	wr = post_rdma(conn, op, VERBS_WORK_WRITE, bytes, slot + 1);
	maybe_signal(conn, wr, true, v->left == 0);
}

/* Posts the next piece of a put into a guarded region, as one message: a PUT frame in a
 * slot, followed by the bytes, either directly from the op's memory or copied into the
 * slot. */
static void post_guarded(struct verbs_conn *conn, struct tern_op *op)
{
	struct verbs_op *v = verbs_op_of(op);
	uint64_t bytes = TERN_MIN(v->left, PUT_BYTES);
	bool last = bytes == v->left;
	struct verbs_put put = {.slot = htole32(v->key),
		.generation = htole32(v->generation),
		.offset = htole64(v->remote)};
	const struct verbs_frame head = frame(conn, VERBS_PUT);
	uint32_t slot = (uint32_t)verbs_slot_take(conn);
	struct ibv_send_wr *wr = next(conn, &(struct verbs_wr){.work = VERBS_WORK_WRITE,
						    .last = last,
						    .slot = slot + 1,
						    .op = op});
	char *at = verbs_slot_at(conn->queue, slot);

	memcpy(at, &head, sizeof(head));
	memcpy(at + FRAME, &put, sizeof(put));
	wr->opcode = IBV_WR_SEND;
	wr->sg_list[0] = verbs_slot_sge(conn->queue, slot, FRAME + sizeof(put));
	if (is_copied(conn, v)) {
		memcpy(at + FRAME + sizeof(put), tern_mem_at(v->mem, v->offset), bytes);
		wr->sg_list[0].length += (uint32_t)bytes;
	} else {
		wr->sg_list[1] = sge_of(conn, v, bytes);
		wr->num_sge = 2;
	}
	maybe_signal(conn, wr, true, last);
	conn->sent++;
	advance(v, bytes);
}

/* Posts pieces of a put as long as send queue, slots and credits suffice. True: the whole
 * put is posted. */
static bool pump_put(struct verbs_conn *conn, struct verbs_op *v)
{
	struct tern_op *op = tern_container_of(v, struct tern_op, priv);

	while (v->left > 0 && free_room(conn) > 0 && conn->state != VERBS_ENDING) {
		if (!v->guarded && !is_copied(conn, v)) {
			post_write(conn, op);
			continue;
		}
		if (verbs_slot_count(conn) == 0 || (v->guarded && credits(conn) == 0))
			return false;
		if (v->guarded)
			post_guarded(conn, op);
		else
			post_copied(conn, op);
	}
	return v->left == 0;
}

static void pump_puts(struct verbs_conn *conn)
{
	while (!tern_list_empty(&conn->puts)) {
		struct verbs_op *v =
			tern_list_entry(conn->puts.next, struct verbs_op, node);

		if (!pump_put(conn, v))
			return;
		tern_list_remove(&v->node);
		conn->put_count--;
	}
}

/* Decodes a region that the peer has sent, and checks that it permits `access` and contains
 * (offset, bytes). -ENOTCONN: it does not, so the conn ends. A write into a guarded region
 * goes as messages: its owner checks it when the bytes arrive. */
static int take_region(struct verbs_conn *conn, const struct tern_region *wire,
	uint64_t offset, uint64_t bytes, enum tern_access access,
	struct verbs_region *region)
{
	uint64_t end;

	verbs_region_decode(wire, region);
	if (conn->peer_guarded || (region->guarded && access == TERN_ACCESS_WRITE)) {
		region->guarded = 1;
		return 0;
	}
	if (region->guarded || !(region->access & access))
		verbs_conn_blame(
			conn, "it sent a region that does not permit this access");
	else if (offset > region->bytes || bytes > region->bytes - offset)
		verbs_conn_blame(conn, "it sent a region smaller than what it announced");
	else if (__builtin_add_overflow(region->start, region->bytes, &end))
		verbs_conn_blame(
			conn, "it sent a region that wraps around the address space");
	/* No key means that the peer's device of this conn could not register the
	 * memory. */
	else if (region->keys[conn->peer_device] == 0)
		verbs_conn_end(conn, -ECONNRESET);
	else
		return 0;
	return -ENOTCONN;
}

static void op_init(struct verbs_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct verbs_region *region,
	uint64_t remote_offset)
{
	struct verbs_op *v = verbs_op_of(op);

	op->conn = &conn->base;
	*v = (struct verbs_op){.mem = mem, .offset = offset, .left = bytes};
	tern_list_init(&v->node);
	v->guarded = region->guarded;
	if (v->guarded) {
		v->key = (uint32_t)region->start;
		v->generation = (uint32_t)(region->start >> 32);
		v->remote = remote_offset;
	} else {
		v->key = region->keys[conn->peer_device];
		v->remote = region->start + remote_offset;
	}
}

int verbs_put(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct verbs_conn *conn = verbs_conn_of(base);
	struct verbs_region region;
	int r;

	if (conn->state != VERBS_UP)
		return -ENOTCONN;
	tern_assert(bytes > 0 && tern_mem_holds(mem, offset, bytes));
	r = take_region(conn, remote, remote_offset, bytes, TERN_ACCESS_WRITE, &region);
	if (r)
		return r;
	if (conn->put_count == VERBS_PUTS_MAX)
		return block(conn, 0);
	op_init(conn, op, mem, offset, bytes, &region, remote_offset);
	tern_list_push(&conn->puts, &verbs_op_of(op)->node);
	conn->put_count++;
	pump_puts(conn);
	return 0;
}

/* ---- gets ---- */

/* Posts RDMA READs for one piece of each get in turn, so that a large get does not delay
 * the others. */
static void pump_gets(struct verbs_conn *conn)
{
	while (!tern_list_empty(&conn->gets) && conn->reads < conn->read_max &&
		free_room(conn) > 0 && conn->state != VERBS_ENDING) {
		struct verbs_op *v = tern_list_entry(
			tern_list_pop(&conn->gets), struct verbs_op, node);
		struct tern_op *op = tern_container_of(v, struct tern_op, priv);
		uint64_t most = TERN_MIN(conn->piece_bytes, READ_BYTES);
		struct ibv_send_wr *wr =
			post_rdma(conn, op, VERBS_WORK_READ, TERN_MIN(v->left, most), 0);

		wr->send_flags = IBV_SEND_SIGNALED;
		conn->unsignalled = 0;
		conn->reads++;
		if (v->left > 0)
			tern_list_push(&conn->gets, &v->node);
	}
}

int verbs_get(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct verbs_conn *conn = verbs_conn_of(base);
	struct verbs_region region;
	int r;

	if (conn->state != VERBS_UP)
		return -ENOTCONN;
	tern_assert(bytes > 0 && tern_mem_holds(mem, offset, bytes) &&
		    (base->caps & TERN_CAP_GET));
	r = take_region(conn, remote, remote_offset, bytes, TERN_ACCESS_READ, &region);
	if (r)
		return r;
	op_init(conn, op, mem, offset, bytes, &region, remote_offset);
	tern_list_push(&conn->gets, &verbs_op_of(op)->node);
	pump_gets(conn);
	return 0;
}

/* ---- progress ---- */

void verbs_tx_farewell(struct verbs_conn *conn)
{
	pump_puts(conn);
	if (conn->put_count == 0 && !conn->bye_sent)
		conn->bye_sent = verbs_tx_control(conn, VERBS_BYE) == 0;
	if (conn->bye_sent && conn->head == conn->tail)
		verbs_conn_end(conn, 0);
}

static void pump(struct verbs_conn *conn)
{
	if (conn->state == VERBS_FLUSHING) {
		verbs_rx_settle(conn);
		verbs_tx_farewell(conn);
	} else if (conn->state == VERBS_UP) {
		pump_puts(conn);
		pump_gets(conn);
		verbs_rx_settle(conn);
	}
}

void verbs_tx_credit(struct verbs_conn *conn, uint32_t credit)
{
	if (tern_seq_before(conn->sent, credit)) {
		verbs_conn_blame(conn, "it acknowledges more messages than were sent");
		return;
	}
	if (!tern_seq_before(conn->heard_credit, credit))
		return;
	conn->heard_credit = credit;
	if (conn->put_count)
		pump(conn);
}

void verbs_tx_done(struct verbs_conn *conn, uint32_t at)
{
	if (at - conn->head >= conn->tail - conn->head)
		return;
	while (conn->head != at + 1) {
		struct verbs_wr wr = conn->ring[conn->head++ & (conn->ring_size - 1)];

		if (wr.slot)
			verbs_slot_give(conn->queue, wr.slot - 1);
		if (wr.work == VERBS_WORK_READ)
			conn->reads--;
		if (wr.last)
			wr.op->done(wr.op, 0);
	}
	pump(conn);
}

static void abort_list(struct tern_list *list, int status)
{
	struct tern_list *node;

	while ((node = tern_list_pop(list))) {
		struct verbs_op *v = tern_list_entry(node, struct verbs_op, node);
		struct tern_op *op = tern_container_of(v, struct tern_op, priv);

		op->done(op, status);
	}
}

void verbs_tx_abort(struct verbs_conn *conn, int status)
{
	while (conn->head != conn->tail) {
		struct verbs_wr wr = conn->ring[conn->head++ & (conn->ring_size - 1)];

		if (wr.last)
			wr.op->done(wr.op, status);
	}
	abort_list(&conn->puts, status);
	abort_list(&conn->gets, status);
}
