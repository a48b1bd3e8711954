/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A verbs conn, from making its queue pair to its end.
 *
 * verbs_conn_end() only marks the conn; verbs_poll() does the rest, because handlers may
 * be called only there. First the queue pair is destroyed: from then on the device
 * accesses no memory for this conn. Its completions are handled before and after that, so
 * that then no entry in the completion queue belongs to the conn. Then unfinished ops are
 * completed with the conn's status (-ECANCELED if that is 0), and `closed` is called
 * last.
 *
 * The librdmacm id is kept for a while as a "zombie", unless the peer has disconnected or
 * the conn was never connected. As long as an id exists, the kernel retransmits its
 * disconnect if that was lost, and librdmacm keeps the device open.
 */
#include <errno.h>
#include <string.h>

#include "transport/verbs/verbs.h"

#define TABLE_FIRST 16u

/* Longest wait for a stopped queue pair: await_last(). */
#define LAST_NS (5 * TERN_NS_PER_MS)

/* ---- the table ---- */

static int table_add(struct verbs_port *port, struct verbs_conn *conn)
{
	uint32_t i = 0, count = port->table_count;
	struct verbs_conn **table;

	while (i < count && port->table[i])
		i++;
	if (i == count) {
		count = count ? 2 * count : TABLE_FIRST;
		table = realloc(port->table, count * sizeof(struct verbs_conn *));
		if (!table)
			return -ENOMEM;
		memset(&table[i], 0, (count - i) * sizeof(struct verbs_conn *));
		port->table = table;
		port->table_count = count;
	}
	port->table[i] = conn;
	conn->index = i;
	return 0;
}

static struct verbs_conn **bucket(const struct verbs_conn *conn)
{
	return &conn->queue->hash[conn->qp_num % TERN_ARRAY_SIZE(conn->queue->hash)];
}

static void hash_remove(struct verbs_conn *conn)
{
	struct verbs_conn **at = bucket(conn);

	while (*at != conn)
		at = &(*at)->hash_next;
	*at = conn->hash_next;
}

/* ---- birth ---- */

struct verbs_conn *verbs_conn_new(struct verbs_port *port, enum verbs_state state)
{
	struct verbs_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->state = state;
	conn->base.port = &port->base;
	conn->base.eager_bytes = VERBS_EAGER_BYTES;
	conn->base.chunk_bytes = VERBS_CHUNK_BYTES;
	tern_list_init(&conn->node);
	tern_list_init(&conn->all);
	tern_list_init(&conn->dirty);
	tern_list_init(&conn->blocked);
	tern_list_init(&conn->ending);
	tern_list_init(&conn->puts);
	tern_list_init(&conn->gets);
	tern_list_init(&conn->half_open.node);
	conn->deadline_ns = UINT64_MAX;
	if (table_add(port, conn)) {
		free(conn);
		return NULL;
	}
	tern_list_push(&port->conns, &conn->node);
	port->conn_count++;
	return conn;
}

static uint32_t receive_count(const struct verbs_conn *conn)
{
	return conn->granted + VERBS_CONTROL;
}

static int make_qp(struct verbs_conn *conn)
{
	struct verbs_queue *queue = conn->queue;
	struct verbs_port *port = queue->port;
	uint32_t inline_max = verbs_port_fabric(port)->opts.inline_max;
	struct ibv_qp_init_attr attr = {
		.qp_context = conn,
		.send_cq = queue->cq,
		.recv_cq = queue->cq,
		.srq = conn->shares_srq ? queue->srq : NULL,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = TERN_MIN(
				conn->depth, (uint32_t)queue->device->attr.max_qp_wr),
			.max_recv_wr = conn->shares_srq ? 0 : receive_count(conn),
			.max_send_sge = 2,
			.max_recv_sge = 1,
			.max_inline_data = inline_max},
	};
	const struct ibv_qp_cap wanted = attr.cap;
	const struct tern_verbs_api *api = verbs_api_of(port);
	int r = api->create_qp(conn->id, queue->device->pd, &attr);

	if (r && inline_max > 0) {
		/* Some devices refuse the request instead of granting less inline
		 * data. */
		attr.cap = wanted;
		attr.cap.max_inline_data = 0;
		r = api->create_qp(conn->id, queue->device->pd, &attr);
	}
	if (r)
		return r;
	conn->depth = TERN_MIN(wanted.max_send_wr, attr.cap.max_send_wr);
	conn->inline_max = TERN_MIN(attr.cap.max_inline_data, VERBS_INLINE);
	conn->qp = conn->id->qp;
	conn->qp_num = conn->qp->qp_num;
	verbs_async_add_conn(conn);
	conn->hash_next = *bucket(conn);
	*bucket(conn) = conn;
	return conn->depth > VERBS_CONTROL ? 0 : -ENOSPC;
}

static int make_ring(struct verbs_conn *conn)
{
	conn->ring_size = 1;
	while (conn->ring_size < conn->depth)
		conn->ring_size *= 2;
	conn->ring = calloc(conn->ring_size, sizeof(*conn->ring));
	conn->stage = calloc(VERBS_BATCH, sizeof(*conn->stage));
	return conn->ring && conn->stage ? 0 : -ENOMEM;
}

static int post_receives(struct verbs_conn *conn)
{
	struct verbs_queue *queue = conn->queue;

	if (!conn->shares_srq)
		return verbs_slots_post(conn, receive_count(conn));
	verbs_queue_books(queue, 0, (int)receive_count(conn));
	conn->in_srq = true;
	return verbs_slots_refill(queue);
}

static void find_limits(struct verbs_conn *conn)
{
	struct verbs_queue *queue = conn->queue;
	struct ibv_port_attr port_attr;

	conn->piece_bytes = 1u << 20;
	if (verbs_api_of(queue->port)
				->query_port(queue->device->context, conn->id->port_num,
					&port_attr) == 0 &&
		port_attr.max_msg_sz)
		conn->piece_bytes = port_attr.max_msg_sz;
	conn->read_max = TERN_MIN(verbs_port_fabric(queue->port)->opts.read_max,
		(uint32_t)queue->device->attr.max_qp_init_rd_atom);
}

int verbs_conn_open(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);
	const struct verbs_opts *opts = &verbs_port_fabric(port)->opts;
	int entries, r = verbs_queue_get(port, conn->id->verbs, &conn->queue);

	if (r) {
		conn->queue = NULL;
		return r;
	}
	conn->queue->conn_count++;
	conn->queue->slots.reserved += VERBS_SEND_SLOTS;
	conn->granted = port->conn_count <= VERBS_FEW ? VERBS_WINDOW : VERBS_WINDOW_MANY;
	conn->shares_srq =
		conn->queue->srq &&
		conn->queue->wanted + receive_count(conn) <= conn->queue->srq_max;
	r = verbs_slots_grow(conn->queue, receive_count(conn));
	if (r)
		return r;
	conn->depth = port->conn_count <= VERBS_FEW
			      ? opts->depth
			      : TERN_MAX(opts->depth / 4, VERBS_DEPTH_MIN);
	entries = (int)(conn->depth + receive_count(conn));
	r = verbs_queue_reserve(conn->queue, entries);
	if (r)
		return r;
	conn->cq_entries = entries;
	find_limits(conn);
	return make_qp(conn) ?: make_ring(conn) ?: post_receives(conn);
}

void verbs_conn_enter(struct verbs_conn *conn, enum verbs_state next)
{
	static const uint8_t edges[] = {
		[VERBS_RESOLVING] = 1 << VERBS_ROUTING | 1 << VERBS_ENDING,
		[VERBS_ROUTING] = 1 << VERBS_CONNECTING | 1 << VERBS_ENDING,
		[VERBS_CONNECTING] = 1 << VERBS_UP | 1 << VERBS_ENDING,
		[VERBS_ACCEPTING] = 1 << VERBS_UP | 1 << VERBS_ENDING,
		[VERBS_UP] = 1 << VERBS_FLUSHING | 1 << VERBS_ENDING,
		[VERBS_FLUSHING] = 1 << VERBS_ENDING,
		[VERBS_ENDING] = 0,
	};

	tern_assert(edges[conn->state] >> next & 1);
	conn->state = next;
}

/* ---- the end ---- */

void verbs_conn_end(struct verbs_conn *conn, int status)
{
	struct verbs_port *port = verbs_conn_port(conn);

	if (conn->state == VERBS_ENDING)
		return;
	if (conn->by_user)
		status = conn->connected ? 0 : -ECANCELED;
	tern_admission_remove(&port->half_open, &conn->half_open);
	verbs_conn_enter(conn, VERBS_ENDING);
	conn->status = status;
	tern_list_remove(&conn->dirty);
	tern_list_remove(&conn->blocked);
	tern_list_push(&port->ending, &conn->ending);
}

void verbs_conn_blame(struct verbs_conn *conn, const char *what)
{
	if (conn->state == VERBS_ENDING)
		return;
	tern_log(conn->base.port->env, TERN_LOG_WARN, "%s: protocol error: %s",
		conn->base.name, what);
	verbs_conn_end(conn, -EPROTO);
}

void verbs_conn_close(struct tern_conn *base, bool flush)
{
	struct verbs_conn *conn = verbs_conn_of(base);

	if (conn->by_user || conn->state == VERBS_ENDING)
		return;
	conn->by_user = true;
	if (!flush || conn->state != VERBS_UP || conn->eof) {
		verbs_conn_end(conn, 0);
		return;
	}
	verbs_conn_enter(conn, VERBS_FLUSHING);
	conn->deadline_ns = tern_now_ns(base->port->env) + VERBS_FLUSH_NS;
	verbs_port_deadline(verbs_conn_port(conn), conn->deadline_ns);
	verbs_tx_farewell(conn);
}

void verbs_zombie_free(struct verbs_port *port, struct verbs_zombie *zombie)
{
	tern_list_remove(&zombie->node);
	verbs_api_of(port)->retire_id(zombie->id);
	free(zombie);
}

static void let_id_go(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);
	bool dead = conn->queue && atomic_load(&conn->queue->device->dead);
	bool wait = dead || (conn->connected && !conn->peer_gone);
	struct verbs_zombie *zombie;

	if (!conn->id)
		return;
	conn->id->context = NULL;
	zombie = wait ? calloc(1, sizeof(*zombie)) : NULL;
	if (!zombie) {
		verbs_api_of(port)->retire_id(conn->id);
		return;
	}
	zombie->id = conn->id;
	/* On a dead device, the id must only outlive the verbs_queue, which this poll
	 * frees. So the next poll frees the zombie. */
	zombie->deadline_ns = tern_now_ns(port->base.env) + (dead ? 0 : VERBS_LINGER_NS);
	verbs_port_deadline(port, zombie->deadline_ns);
	tern_list_push(&port->zombies, &zombie->node);
}

/* Gives back the resources that verbs_conn_open() has taken. */
static void release(struct verbs_conn *conn)
{
	struct verbs_queue *queue = conn->queue;

	if (conn->slots_held || !conn->shares_srq)
		verbs_slots_reclaim(queue, conn);
	queue->slots.reserved -= VERBS_SEND_SLOTS;
	if (conn->in_srq)
		verbs_queue_books(queue, 0, -(int)receive_count(conn));
	queue->cq_used -= conn->cq_entries;
	queue->conn_count--;
}

/*
 * Waits until the stopped queue pair takes no more receives of the SRQ. The completions of
 * those that it has taken may be lost when it is destroyed, and with them their slots, until
 * the SRQ is empty and no connection receives anything any more. The InfiniBand
 * specification has the event "Last WQE Reached" for this. Devices report it within
 * microseconds; one that does not is waited for once.
 */
static void await_last(struct verbs_conn *conn)
{
	struct verbs_queue *queue = conn->queue;
	struct tern_env *env = queue->port->base.env;
	uint64_t until_ns = tern_now_ns(env) + LAST_NS;

	if (!conn->connected || !conn->shares_srq)
		return;
	while (!atomic_load(&conn->took_last) && !atomic_load(&queue->device->dead) &&
		!atomic_load(&queue->device->keeps_quiet)) {
		if (tern_now_ns(env) > until_ns)
			atomic_store(&queue->device->keeps_quiet, true);
		verbs_queue_drain(queue);
		verbs_async_read(queue);
	}
}

static void destroy_qp(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);

	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	if (!conn->qp)
		return;
	/* rdma_disconnect() also stops the queue pair. If that fails, or the conn was
	 * never connected, modify_qp() stops the queue pair. */
	if (!conn->connected || verbs_api_of(port)->disconnect(conn->id))
		verbs_api_of(port)->modify_qp(conn->qp, &error, IBV_QP_STATE);
	await_last(conn);
	/* Handle completions first: on some devices, destroying a queue pair drops its
	 * completions from the CQ. */
	verbs_queue_drain(conn->queue);
	verbs_async_forget(&conn->all);
	verbs_api_of(port)->destroy_qp(conn->id);
	conn->qp = NULL;
	hash_remove(conn);
	verbs_queue_drain(conn->queue);
}

static void end_one(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);

	destroy_qp(conn);
	tern_list_remove(&conn->dirty);
	tern_list_remove(&conn->blocked);
	verbs_tx_abort(conn, conn->status ? conn->status : -ECANCELED);
	port->table[conn->index] = NULL;
	let_id_go(conn);
	if (conn->queue)
		release(conn);
	if (conn->announced)
		port->base.handler->closed(
			port->base.handler_arg, &conn->base, conn->status);
	tern_list_remove(&conn->node);
	port->conn_count--;
	free(conn->addrs);
	free(conn->assembly);
	free(conn->ring);
	free(conn->stage);
	free(conn);
}

int verbs_end_all(struct verbs_port *port)
{
	struct tern_list *node;
	int events = 0;

	for (; (node = tern_list_pop(&port->ending)); events++)
		end_one(tern_list_entry(node, struct verbs_conn, ending));
	return events;
}

void verbs_conn_expire(struct verbs_port *port, uint64_t now_ns)
{
	port->deadline_ns = UINT64_MAX;
	tern_list_for_each (node, &port->conns) {
		struct verbs_conn *conn = tern_list_entry(node, struct verbs_conn, node);

		if (conn->state == VERBS_ENDING)
			continue;
		if (conn->deadline_ns <= now_ns)
			verbs_conn_end(conn, -ETIMEDOUT);
		else
			verbs_port_deadline(port, conn->deadline_ns);
	}
	tern_list_for_each_safe (node, &port->zombies) {
		struct verbs_zombie *zombie =
			tern_list_entry(node, struct verbs_zombie, node);

		if (zombie->deadline_ns <= now_ns)
			verbs_zombie_free(port, zombie);
		else
			verbs_port_deadline(port, zombie->deadline_ns);
	}
	verbs_lsn_expire(port, now_ns);
}
