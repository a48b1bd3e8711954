/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slabs: shared memory segments of one end, from which its pools allocate tensors. The
 * other end maps a slab, whole and read-only, when it first reads from the slab.
 *
 *     reader                             owner
 *     get() or peek(): SLAB_ASK mem_id -> passes the descriptor if any of it is exposed
 *     maps it                          <- SLAB mem_id, status
 *     unmaps it                        <- GONE mem_id: the slab was freed
 *
 * A mapping is kept for the next get, and keeps the owner's memory allocated. It ends
 * when the owner frees the slab, when the conn ends, or when another slab must be mapped
 * and there are too many (the least recently used one is evicted, and asked for again at
 * its next use). A mapping that is being read stays until the last reader has finished.
 * Each conn can map port->slab_max slabs. Peeks last as long as the application likes, so
 * they use at most half of these. Gets end by themselves, so a get that can map no
 * further slab waits until a slab is no longer in use.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <sys/mman.h>

static struct tern_list *bucket_of(struct shm_conn *conn, uint32_t mem_id)
{
	return &conn->slab_buckets[mem_id % SHM_SLAB_BUCKETS];
}

static struct shm_slab *find(struct shm_conn *conn, uint32_t mem_id)
{
	tern_list_for_each (node, bucket_of(conn, mem_id)) {
		struct shm_slab *slab = tern_list_entry(node, struct shm_slab, bucket);

		if (slab->mem_id == mem_id)
			return slab;
	}
	return NULL;
}

static void slab_unmap(struct shm_slab *slab)
{
	if (slab->base)
		munmap((void *)(uintptr_t)slab->base, slab->bytes);
	free(slab);
}

/* Removes the slab from its conn; unmaps and frees it unless it is being read. */
static void slab_free(struct shm_slab *slab)
{
	struct shm_conn *conn = slab->conn;

	tern_list_remove(&slab->node);
	tern_list_remove(&slab->bucket);
	conn->slab_count--;
	if (slab->user_count || slab->state != SHM_SLAB_MAPPED)
		conn->busy_count--;
	if (slab->peek_count) {
		conn->peek_count--;
		conn->held_count++;
		slab->reader = conn;
	}
	slab->conn = NULL;
	if (!slab->user_count)
		slab_unmap(slab);
}

/* Unmaps the least recently used slab, so that another one can be mapped. False: every
 * slab is in use or is not mapped yet. */
static bool evict(struct shm_conn *conn)
{
	if (conn->busy_count == conn->slab_count)
		return false;
	for (struct tern_list *node = conn->slabs.prev; node != &conn->slabs;
		node = node->prev) {
		struct shm_slab *slab = tern_list_entry(node, struct shm_slab, node);

		if (!slab->user_count) {
			slab_free(slab);
			return true;
		}
	}
	tern_never("all slabs are in use");
}

static bool evict_among(struct tern_list *conns)
{
	tern_list_for_each (node, conns)
		if (evict(tern_list_entry(node, struct shm_conn, node)))
			return true;
	return false;
}

bool shm_slab_roomy(const struct shm_conn *conn)
{
	return conn->slab_count < shm_conn_port(conn)->slab_max ||
	       conn->busy_count < conn->slab_count;
}

static struct shm_slab *slab_new(struct shm_conn *conn, uint32_t mem_id)
{
	struct shm_slab *slab;

	if (conn->slab_count >= shm_conn_port(conn)->slab_max && !evict(conn))
		return NULL;
	slab = calloc(1, sizeof(*slab));
	if (!slab)
		return NULL;
	slab->conn = conn;
	slab->mem_id = mem_id;
	tern_list_init(&slab->waiting);
	tern_list_init(&slab->peeked);
	tern_list_push(&conn->asking, &slab->node);
	tern_list_push(bucket_of(conn, mem_id), &slab->bucket);
	conn->slab_count++;
	conn->busy_count++;
	conn->asking_count++;
	shm_conn_settle(conn);
	shm_slab_ask(conn, slab);
	return slab;
}

struct shm_slab *shm_slab_of(struct shm_conn *conn, const struct shm_region *region)
{
	struct shm_slab *slab = find(conn, region->mem_id);

	if (!slab)
		return slab_new(conn, region->mem_id);
	if (slab->state == SHM_SLAB_MAPPED && conn->slabs.next != &slab->node) {
		tern_list_remove(&slab->node);
		tern_list_push_front(&conn->slabs, &slab->node);
	}
	return slab;
}

void shm_slab_hold(struct shm_slab *slab)
{
	if (slab->user_count++ == 0)
		slab->conn->busy_count++;
}

void shm_slab_drop(struct shm_slab *slab)
{
	if (--slab->user_count > 0)
		return;
	if (slab->conn)
		slab->conn->busy_count--;
	else
		slab_unmap(slab);
}

int shm_slab_peek(struct shm_slab *slab)
{
	struct shm_conn *conn = slab->conn;
	struct shm_port *port = shm_conn_port(conn);

	if (!slab->peek_count) {
		if (conn->peek_count >= port->slab_max / 2)
			return -ENOTSUP;
		conn->peek_count++;
		shm_conn_say_reading(conn);
		/* The reader's half of a handshake with shm_conn_reap() of the peer: if
		 * the peer sets `gone` and then finds `reading` unset, this thread sees
		 * `gone` here. */
		atomic_thread_fence(memory_order_seq_cst);
		if (shm_peer_gone(conn)) {
			conn->peek_count--;
			shm_conn_say_reading(conn);
			shm_conn_part(conn, true);
			return -ENOTCONN;
		}
		tern_list_push(&port->peeked, &slab->peeked);
	}
	slab->peek_count++;
	shm_slab_hold(slab);
	return 0;
}

static void read_no_more(struct shm_slab *slab)
{
	if (slab->conn) {
		slab->conn->peek_count--;
		shm_conn_say_reading(slab->conn);
	} else {
		shm_conn_drop(slab->reader);
	}
}

/* A linear search is fast enough: a port usually reads from few slabs at a time, one or
 * two per peer. */
void shm_unpeek(struct tern_port *port, const void *data)
{
	tern_list_for_each (node, &shm_port_of(port)->peeked) {
		struct shm_slab *slab = tern_list_entry(node, struct shm_slab, peeked);
		const char *byte = data;

		if (byte < slab->base || byte >= slab->base + slab->bytes)
			continue;
		if (--slab->peek_count == 0) {
			tern_list_remove(&slab->peeked);
			read_no_more(slab);
		}
		shm_slab_drop(slab);
		return;
	}
	tern_never("unpeek() without peek()");
}

void shm_slab_ask(struct shm_conn *conn, struct shm_slab *slab)
{
	const struct shm_note note = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_SLAB_ASK,
		.mem_id = slab->mem_id,
	};
	int status = shm_note_send(conn->fd, &note, -1);

	/* If the socket is full, the next poll() tries again. If the socket was closed,
	 * epoll reports that. */
	slab->state = status == -EAGAIN ? SHM_SLAB_WANTED : SHM_SLAB_ASKED;
}

/* Finds memory `mem_id` if any part of it is exposed for reading to the peer of
 * `conn`. */
static const struct tern_mem *exposed(struct shm_conn *conn, uint32_t mem_id)
{
	struct shm_port *port = shm_conn_port(conn);

	for (uint32_t slot = 0; slot < port->exposure_top; slot++) {
		const struct shm_exposure *exposure = &port->exposures[slot];

		if (exposure->mem && exposure->mem->id == mem_id && exposure->readable &&
			exposure->owner == conn->base.owner)
			return exposure->mem;
	}
	return NULL;
}

/* Adds an entry to conn->offers, so that the peer is sent GONE when the slab is freed. */
static int note_passing(struct shm_conn *conn, const struct tern_mem *mem)
{
	struct shm_known *known = tern_mem_reg(mem, conn->base.port->fabric->index);

	if (shm_offer_find(conn, mem->id))
		return 0; /* the peer has unmapped the slab and asks for it again */
	return shm_offer_new(conn, known, SHM_OFFER_TAKEN) ? 0 : -ENOMEM;
}

int shm_slab_pass(struct shm_conn *conn, uint32_t mem_id)
{
	const struct tern_mem *mem = exposed(conn, mem_id);
	bool slab = mem && tern_mem_is_slab(mem);
	struct shm_note note = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_SLAB,
		.mem_id = mem_id,
		.status = slab ? note_passing(conn, mem) : -EACCES,
	};

	return shm_note_send(conn->fd, &note, note.status ? -1 : mem->fd);
}

/* Maps a slab of the peer. If this process can have no more mappings, unused slabs of
 * this port's conns are unmapped until it can. */
static int map(struct shm_conn *conn, struct shm_slab *slab, int fd)
{
	struct shm_port *port = shm_conn_port(conn);
	void *base;
	int status;

	do
		status = shm_memory_map(fd, 1, &base, &slab->bytes);
	while (status == -ENOMEM &&
		(evict(conn) || evict_among(&port->conns) || evict_among(&port->dozing)));
	if (!status)
		slab->base = base;
	return status;
}

void shm_slab_arrived(struct shm_conn *conn, const struct shm_note *note, int fd)
{
	struct shm_slab *slab = find(conn, note->mem_id);
	struct tern_list waiting;
	int status = note->status ? -EACCES : 0;

	if (!slab || slab->state != SHM_SLAB_ASKED) {
		shm_conn_blame(conn, "it sent a memory segment that was not requested");
		return;
	}
	if (!status && (status = map(conn, slab, fd))) {
		tern_log(conn->base.port->env, TERN_LOG_WARN,
			"%s: cannot map its memory segment %u: %s", conn->base.name,
			slab->mem_id, tern_status_text(status));
		shm_conn_fail(conn, status);
		return;
	}
	conn->asking_count--;
	tern_list_init(&waiting);
	tern_list_splice(&waiting, &slab->waiting);
	if (status) {
		/* The peer did not send the slab's descriptor. Forget the slab: when the
		 * peer sends another region in it, this end requests it again. */
		slab_free(slab);
		slab = NULL;
	} else {
		slab->state = SHM_SLAB_MAPPED;
		conn->busy_count--;
		tern_list_remove(&slab->node);
		tern_list_push_front(&conn->slabs, &slab->node);
	}
	shm_conn_settle(conn);
	shm_op_release(conn, slab, &waiting, status);
}

/* Handles GONE: unmaps a slab that the peer has freed. A slab that was unmapped before
 * and requested again is not mapped yet; the answer to that request will come. */
void shm_slab_gone(struct shm_conn *conn, uint32_t mem_id)
{
	struct shm_slab *slab = find(conn, mem_id);

	if (slab && slab->state == SHM_SLAB_MAPPED)
		slab_free(slab);
}

void shm_slab_free_all(struct shm_conn *conn)
{
	tern_list_for_each_safe (node, &conn->asking)
		slab_free(tern_list_entry(node, struct shm_slab, node));
	tern_list_for_each_safe (node, &conn->slabs)
		slab_free(tern_list_entry(node, struct shm_slab, node));
}
