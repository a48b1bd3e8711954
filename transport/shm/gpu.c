/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory between two processes of one host, by CUDA IPC: the reader's GPU copies it
 * directly, and no tensor bytes go through shared memory.
 *
 * The owner offers each GPU memory once on each conn, with the CUDA IPC handle of its
 * allocation. The reader opens it, or answers why it cannot. The owner exposes regions
 * only of memory that the reader has opened. So such a region can always be read; other
 * memory is transferred in another way from the start.
 *
 *     owner                                 reader
 *     offer():   OFFER mem_id, handle   ->  opens it
 *     writable   <-                         TAKEN mem_id, status
 *     expose()   (the region, in an RTS) -> borrow(), copies, repay()
 *     memory is freed: GONE mem_id      ->  closes it
 *
 * A reader refuses with -ENODEV if it uses no GPU yet, and with -EBUSY if an earlier
 * memory at the same addresses is still open. When that may have changed it sends AGAIN,
 * and the owner then repeats the refused offers.
 *
 * Open memory is closed when the conn ends or the memory is freed, but never during a
 * copy: then the last repay() closes it. The owner sends GONE in its next poll(), or
 * before its next offer, since newly offered memory may have the same addresses. The
 * owner does not wait for the reader (docs/decisions/gpu.md).
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "transport/domain.h"

/* GPU memory that the peer has offered and this process has opened. */
struct shm_view {
	struct tern_list node; /* in conn->views */
	struct shm_fabric *fabric;
	/* NULL: the conn has ended, but copies from the memory are in flight */
	struct shm_conn *conn;
	uint32_t mem_id;
	uint32_t loan_count;
	struct tern_ipc_mapping mapping;
};

static struct shm_fabric *fabric_of(const struct shm_conn *conn)
{
	return tern_container_of(conn->base.port->fabric, struct shm_fabric, base);
}

/* ---- the owner ---- */

static struct shm_note note_of(enum shm_note_type type, uint32_t mem_id, int status)
{
	return (struct shm_note){
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = (uint16_t)type,
		.mem_id = mem_id,
		.status = status,
	};
}

static void offer_make(struct shm_conn *conn, struct shm_offer *offer)
{
	const struct shm_note note = note_of(SHM_OFFER, offer->known->mem_id, 0);

	/* If the socket is full, the next poll() tries again. If the socket was closed,
	 * epoll reports that. */
	if (shm_offer_send(conn->fd, &note, &offer->known->handle) != -EAGAIN)
		shm_offer_enter(conn, offer, SHM_OFFER_MADE);
}

static struct shm_offer *offer_new(struct shm_conn *conn, struct shm_known *known)
{
	struct shm_offer *offer = shm_offer_new(conn, known, SHM_OFFER_WANTED);

	if (!offer)
		return NULL;
	/* Send GONE first: memory that was freed and that the peer still has open may
	 * have had the same addresses as the offered memory. */
	shm_gone_look(shm_conn_port(conn));
	if (!conn->gone_waits)
		offer_make(conn, offer);
	return offer;
}

int shm_offer(struct tern_conn *base, const struct tern_mem *mem)
{
	struct shm_conn *conn = shm_conn_of(base);
	struct shm_known *known = tern_mem_reg(mem, base->port->fabric->index);
	struct shm_offer *offer;

	if (conn->state != SHM_UP)
		return -ENOTCONN;
	if (!known || mem->kind != TERN_MEM_CUDA || !(base->caps & TERN_CAP_LEND))
		return -ENOTSUP;
	offer = shm_offer_find(conn, known->mem_id);
	if (!offer)
		offer = offer_new(conn, known);
	if (!offer)
		return -ENOTSUP;
	if (offer->state <= SHM_OFFER_MADE)
		return -EAGAIN;
	return offer->state == SHM_OFFER_TAKEN ? 0 : -ENOTSUP;
}

bool shm_offer_was_taken(struct shm_conn *conn, const struct tern_mem *mem)
{
	const struct shm_offer *offer = shm_offer_find(conn, mem->id);

	return offer && offer->state == SHM_OFFER_TAKEN;
}

/* Handles TAKEN. Answers about memory that was freed meanwhile are ignored. */
void shm_offer_answered(struct shm_conn *conn, const struct shm_note *note)
{
	struct shm_port *port = shm_conn_port(conn);
	struct shm_offer *offer = shm_offer_find(conn, note->mem_id);

	if (!offer || offer->state != SHM_OFFER_MADE)
		return;
	offer->status = note->status;
	shm_offer_enter(conn, offer, note->status ? SHM_OFFER_REFUSED : SHM_OFFER_TAKEN);
	port->base.handler->writable(port->base.handler_arg, &conn->base);
}

/* Handles AGAIN: the peer has registered GPU memory, or has closed memory of a peer, so
 * it may now be able to open what it refused. Forgets offers that the peer has refused
 * with -ENODEV or -EBUSY, so that they are repeated. */
void shm_offer_again(struct shm_conn *conn)
{
	tern_list_for_each_safe (node, &conn->offers) {
		struct shm_offer *offer = tern_list_entry(node, struct shm_offer, node);

		if (offer->state == SHM_OFFER_REFUSED &&
			(offer->status == -ENODEV || offer->status == -EBUSY))
			shm_offer_free(conn, offer);
	}
}

bool shm_offers_make(struct shm_conn *conn)
{
	bool left;

	if (conn->gone_waits)
		shm_gone_say(conn);
	left = conn->gone_waits;
	tern_list_for_each (node, &conn->offers) {
		struct shm_offer *offer = tern_list_entry(node, struct shm_offer, node);

		if (offer->state == SHM_OFFER_WANTED && !conn->gone_waits)
			offer_make(conn, offer);
		left |= offer->state == SHM_OFFER_WANTED;
	}
	return left;
}

/* ---- the reader ---- */

static struct shm_view *view_find(struct shm_conn *conn, uint32_t mem_id)
{
	tern_list_for_each (node, &conn->views) {
		struct shm_view *view = tern_list_entry(node, struct shm_view, node);

		if (view->mem_id == mem_id)
			return view;
	}
	return NULL;
}

static int view_new(
	struct shm_conn *conn, uint32_t mem_id, const struct tern_ipc_handle *handle)
{
	struct tern_domain *domain = conn->base.port->fabric->domain;
	struct shm_view *view;
	int status;

	if (conn->base.lent_count == SHM_VIEW_COUNT)
		return -ENOSPC;
	view = calloc(1, sizeof(*view));
	if (!view)
		return -ENOMEM;
	status = tern_ipc_open(domain, handle,
		conn->pid == getpid() && !domain->hooks.cuda_ipc_self, &view->mapping);
	if (status) {
		free(view);
		return status;
	}
	view->fabric = fabric_of(conn);
	view->conn = conn;
	view->mem_id = mem_id;
	tern_list_push_front(&conn->views, &view->node);
	conn->base.lent_count++;
	return 0;
}

static void view_close(struct shm_view *view)
{
	tern_ipc_close(&view->mapping);
	atomic_fetch_add(&view->fabric->chance_count, 1);
	free(view);
}

static void view_free(struct shm_conn *conn, struct shm_view *view)
{
	tern_list_remove(&view->node);
	conn->base.lent_count--;
	view->conn = NULL;
	if (view->loan_count == 0)
		view_close(view);
}

void shm_offer_arrived(struct shm_conn *conn, const struct shm_note *note,
	const struct tern_ipc_handle *handle)
{
	uint32_t chances = atomic_load(&fabric_of(conn)->chance_count);
	int status;

	if (!(conn->base.caps & TERN_CAP_LEND) || view_find(conn, note->mem_id)) {
		shm_conn_blame(
			conn, "it offers GPU memory twice, or without support for it");
		return;
	}
	status = view_new(conn, note->mem_id, handle);
	if ((status == -ENODEV || status == -EBUSY) && !conn->refused_for_now) {
		conn->refused_for_now = true;
		conn->chance_seen = chances;
	}
	shm_answer(conn, SHM_TAKEN, note->mem_id, status);
}

bool shm_view_gone(struct shm_conn *conn, uint32_t mem_id)
{
	struct shm_view *view = view_find(conn, mem_id);

	if (view && view->loan_count)
		shm_conn_blame(conn, "it freed GPU memory that is being received");
	else if (view)
		view_free(conn, view);
	return view;
}

int shm_borrow(struct tern_conn *base, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, struct tern_loan *out)
{
	struct shm_conn *conn = shm_conn_of(base);
	struct shm_region region;
	struct shm_view *view;
	int status;

	status = shm_region_take(conn, remote, remote_offset, bytes, &region);
	if (status)
		return status;
	if (region.kind != SHM_REGION_GPU)
		return -ENOTSUP;
	view = view_find(conn, region.mem_id);
	if (!view || region.start + region.bytes > view->mapping.bytes) {
		shm_conn_blame(
			conn, "it sent a region of GPU memory that it never offered");
		return -ENOTCONN;
	}
	view->loan_count++;
	*out = (struct tern_loan){
		.gpu = view->mapping.gpu,
		.address = view->mapping.address + region.start + remote_offset,
		.priv = view,
	};
	return 0;
}

int shm_repay(struct tern_loan *loan)
{
	struct shm_view *view = loan->priv;
	struct shm_conn *conn = view->conn;

	*loan = (struct tern_loan){0};
	view->loan_count--;
	if (!conn) {
		if (view->loan_count == 0)
			view_close(view);
		return -ECONNRESET;
	}
	if (conn->state == SHM_CLOSED)
		return -ECONNRESET;
	if (!shm_peer_gone(conn))
		return 0;
	shm_conn_part(conn, true);
	return -ECONNRESET;
}

/* ---- both ---- */

void shm_gpu_chance(struct shm_conn *conn)
{
	struct shm_fabric *fabric = fabric_of(conn);
	const struct shm_note again = note_of(SHM_AGAIN, 0, 0);

	if (conn->chance_seen != atomic_load(&fabric->chance_count) &&
		shm_note_send(conn->fd, &again, -1) != -EAGAIN)
		conn->refused_for_now = false;
}

void shm_gpu_end(struct shm_conn *conn)
{
	tern_list_for_each_safe (node, &conn->offers)
		shm_offer_free(conn, tern_list_entry(node, struct shm_offer, node));
	tern_list_for_each_safe (node, &conn->views)
		view_free(conn, tern_list_entry(node, struct shm_view, node));
}
