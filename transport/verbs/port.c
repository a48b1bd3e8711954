/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll and arm of the verbs fabric.
 *
 * A poll reads the completion queues. All other events (of librdmacm, asynchronous events
 * of devices, the timer) are reported by one epoll descriptor, which is checked once in
 * VERBS_ASK_POLLS polls, and after every sleep. Work requests that were collected during
 * a poll are posted at its end, after freed slots (receive buffers) have been posted
 * again: so there is a posted slot for each credit that is sent.
 *
 * Before sleep, a notification is requested from each completion queue and the queue is
 * then polled once more. Completions found then are kept in the stash, because arm() may
 * call no handler.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "transport/verbs/verbs.h"

/* ---- queues ---- */

#define CQ_FIRST 4096

static int watch(struct verbs_port *port, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};

	return epoll_ctl(port->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static void queue_free(struct verbs_queue *queue)
{
	const struct tern_verbs_api *api = verbs_api_of(queue->port);

	if (queue->srq) {
		api->destroy_srq(queue->srq);
		verbs_slots_reclaim(queue, queue);
		verbs_queue_books(queue, -(int)queue->posted, -(int)queue->wanted);
	}
	if (queue->cq)
		api->destroy_cq(queue->cq);
	if (queue->channel) {
		epoll_ctl(queue->port->epoll_fd, EPOLL_CTL_DEL, queue->channel->fd, NULL);
		api->destroy_comp_channel(queue->channel);
	}
	/* Remove the descriptor from this port's epoll only: other ports may watch the
	 * same descriptor. */
	epoll_ctl(queue->port->epoll_fd, EPOLL_CTL_DEL, queue->device->context->async_fd,
		NULL);
	verbs_slots_fini(queue);
	verbs_device_put(verbs_port_fabric(queue->port), queue->device);
	tern_list_remove(&queue->node);
	free(queue);
}

static int make_srq(struct verbs_queue *queue)
{
	const struct ibv_device_attr *attr = &queue->device->attr;
	struct ibv_srq_init_attr init = {.attr = {.max_sge = 1}};
	int max = TERN_MIN(attr->max_srq_wr, 32768);

	if (verbs_port_fabric(queue->port)->opts.no_srq || attr->max_srq < 1 || max < 64)
		return 0;
	init.attr.max_wr = (uint32_t)max;
	if (verbs_api_of(queue->port)->create_srq(queue->device->pd, &init, &queue->srq) <
		0)
		/* Each queue pair then has a receive queue of its own. */
		queue->srq = NULL;
	queue->srq_max = init.attr.max_wr;
	return 0;
}

static int queue_fill(struct verbs_queue *queue)
{
	const struct tern_verbs_api *api = verbs_api_of(queue->port);
	struct ibv_context *context = queue->device->context;
	int entries = TERN_MIN(CQ_FIRST, queue->device->attr.max_cqe);
	int r = api->create_comp_channel(context, &queue->channel);

	if (r)
		return r;
	r = watch(queue->port, queue->channel->fd);
	if (!r)
		r = api->create_cq(context, entries, queue->channel, &queue->cq);
	if (r)
		return r;
	queue->cq_entries = TERN_MIN(entries, queue->cq->cqe);
	r = watch(queue->port, context->async_fd);
	return r == -EEXIST || r == 0 ? make_srq(queue) : r;
}

static int queue_new(
	struct verbs_port *port, struct verbs_device *device, struct verbs_queue **out)
{
	struct verbs_queue *queue = calloc(1, sizeof(*queue));
	int r;

	if (!queue) {
		verbs_device_put(verbs_port_fabric(port), device);
		return -ENOMEM;
	}
	queue->port = port;
	queue->device = device;
	tern_list_push(&port->queues, &queue->node);
	r = queue_fill(queue);
	if (r) {
		queue_free(queue);
		return r;
	}
	*out = queue;
	return 0;
}

int verbs_queue_get(
	struct verbs_port *port, struct ibv_context *context, struct verbs_queue **out)
{
	struct verbs_device *device;
	int r;

	/* If the device was removed meanwhile, librdmacm leaves the id without a
	 * device. */
	if (!context)
		return -ENODEV;
	tern_list_for_each (node, &port->queues) {
		struct verbs_queue *queue =
			tern_list_entry(node, struct verbs_queue, node);

		if (queue->device->context != context)
			continue;
		*out = queue;
		return atomic_load(&queue->device->dead) ? -ENODEV : 0;
	}
	r = verbs_device_use(verbs_port_fabric(port), context, port->base.env, &device);
	return r ? r : queue_new(port, device, out);
}

int verbs_queue_reserve(struct verbs_queue *queue, int entries)
{
	int need = queue->cq_used + entries, size = queue->cq_entries;
	int r;

	if (need > queue->device->attr.max_cqe)
		return -ENOSPC;
	while (size < need)
		size = size > queue->device->attr.max_cqe / 2
			       ? queue->device->attr.max_cqe
			       : 2 * size;
	if (size > queue->cq_entries) {
		r = verbs_api_of(queue->port)->resize_cq(queue->cq, size);
		if (r)
			return r;
		queue->cq_entries = size;
	}
	queue->cq_used = need;
	return 0;
}

/* ---- completions ---- */

/* Ends a conn whose work request was flushed or failed. The connection manager may know
 * the reason, so `turn` makes the poll read its events, mostly before `closed` is called:
 * conn_event() may change the status. */
static void flushed(struct verbs_conn *conn, int status)
{
	verbs_conn_port(conn)->turn = VERBS_ASK_POLLS;
	verbs_conn_end(
		conn, conn->peer_gone && status == -ENETDOWN ? -ECONNRESET : status);
}

static void receive(struct verbs_queue *queue, const struct ibv_wc *wc)
{
	struct verbs_conn *conn = verbs_conn_by_qp(queue, wc->qp_num);
	uint32_t slot = (uint32_t)wc->wr_id;
	bool shared;

	if (conn && wc->status == IBV_WC_SUCCESS)
		verbs_rx(conn, slot, wc->byte_len);
	else if (conn && wc->status == IBV_WC_LOC_LEN_ERR)
		verbs_conn_blame(conn, "it sent a frame larger than a receive buffer");
	else if (conn)
		flushed(conn, -ENETDOWN);
	shared = verbs_slot_is_shared(queue, slot);
	verbs_slot_arrived(queue, slot);
	if (shared)
		verbs_queue_books(queue, -1, 0);
	if (conn && conn->state != VERBS_ENDING && !shared && verbs_slots_post(conn, 1))
		verbs_conn_end(conn, -EIO);
}

/*
 * Translates the status of a failed completion to the status of the conn. It never
 * returns -ECONNRESET, which means that the peer has sent BYE or disconnected. If the
 * local queue pair or device fails, the peer may be alive and need some time to notice:
 * that is -ENETDOWN, for which the session waits longer.
 */
static int status_of(enum ibv_wc_status status)
{
	switch ((int)status) {
	/* This end's requests are correct. So the peer has unregistered its memory
	 * without notice, or packets reached it in the wrong order (which happens when
	 * Soft-RoCE (rxe) retransmits packets). */
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return -EREMOTEIO;
	case IBV_WC_RETRY_EXC_ERR:
		return -ETIMEDOUT;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_LEN_ERR:
		return -EIO;
	default:
		/* Including LOC_QP_OP_ERR, which rxe reports when its network interface
		 * is down. */
		return -ENETDOWN;
	}
}

static void sent(struct verbs_queue *queue, const struct ibv_wc *wc)
{
	struct verbs_port *port = queue->port;
	uint32_t index = (uint32_t)(wc->wr_id >> 32);
	struct verbs_conn *conn = index < port->table_count ? port->table[index] : NULL;

	if (!conn || conn->queue != queue)
		return;
	if (wc->status == IBV_WC_SUCCESS) {
		verbs_tx_done(conn, (uint32_t)wc->wr_id);
		return;
	}
	if (conn->state != VERBS_ENDING && wc->status != IBV_WC_WR_FLUSH_ERR)
		tern_log(port->base.env, conn->by_user ? TERN_LOG_DEBUG : TERN_LOG_WARN,
			"%s: %s", conn->base.name,
			verbs_api_of(port)->wc_status_str(wc->status));
	flushed(conn, status_of(wc->status));
}

static void handle(struct verbs_queue *queue, const struct ibv_wc *wc, int count)
{
	for (int i = 0; i < count; i++) {
		if (wc[i].wr_id & VERBS_ID_RECV)
			receive(queue, &wc[i]);
		else
			sent(queue, &wc[i]);
	}
}

static int take_stash(struct verbs_queue *queue)
{
	int count = queue->stash_count;

	queue->stash_count = 0;
	handle(queue, queue->stash, count);
	return count;
}

/* Stops reading the CQ forever, after an error: entries that would be read later may
 * belong to conns that are freed by then. */
static void break_queue(struct verbs_queue *queue)
{
	queue->broken = true;
	verbs_device_failed(queue, "cannot read its completion queue");
}

/* Handles at most about `budget` completions. */
static int queue_poll(struct verbs_queue *queue, int budget)
{
	struct ibv_wc wc[VERBS_BATCH];
	int events = tern_unlikely(queue->stash_count) ? take_stash(queue) : 0;
	int n;

	do {
		n = queue->broken ? 0 : ibv_poll_cq(queue->cq, VERBS_BATCH, wc);
		if (tern_unlikely(n < 0))
			break_queue(queue);
		if (n <= 0)
			break;
		handle(queue, wc, n);
		events += n;
	} while (n == (int)VERBS_BATCH && events < budget);
	return events;
}

void verbs_queue_drain(struct verbs_queue *queue)
{
	/* The budget is the number of completions that the CQ can hold now. Without a
	 * limit this loop might never end, since requests of other conns go on
	 * completing. */
	queue_poll(queue, queue->cq_entries + (int)VERBS_BATCH);
}

struct verbs_conn *verbs_conn_by_qp(struct verbs_queue *queue, uint32_t number)
{
	struct verbs_conn *conn = queue->hash[number % TERN_ARRAY_SIZE(queue->hash)];

	while (conn && conn->qp_num != number)
		conn = conn->hash_next;
	return conn;
}

/* ---- other events ---- */

void verbs_device_failed(struct verbs_queue *queue, const char *what)
{
	struct verbs_port *port = queue->port;

	atomic_store(&queue->device->dead, true);
	if (!atomic_exchange(&queue->device->told, true)) {
		tern_log(port->base.env, TERN_LOG_WARN, "verbs: device %s %s",
			verbs_api_of(port)->device_name(queue->device->context), what);
		verbs_async_died(queue->device->context);
	}
	port->bereft = true;
	tern_list_for_each (node, &port->conns) {
		struct verbs_conn *conn = tern_list_entry(node, struct verbs_conn, node);

		if (conn->queue == queue)
			verbs_conn_end(conn, -ENETDOWN);
	}
}

static void read_channel(struct verbs_queue *queue)
{
	const struct tern_verbs_api *api = verbs_api_of(queue->port);
	struct ibv_cq *cq;

	while (api->get_cq_event(queue->channel, &cq) == 0) {
		api->ack_cq_events(cq, 1);
		queue->notified = false;
	}
}

static int conns_failed(struct verbs_port *port)
{
	int events = 0;

	if (!atomic_exchange(&port->events, false))
		return 0;
	tern_list_for_each (node, &port->queues) {
		struct verbs_queue *queue =
			tern_list_entry(node, struct verbs_queue, node);

		if (atomic_load(&queue->device->dead))
			verbs_device_failed(queue, "failed");
	}
	tern_list_for_each (node, &port->conns) {
		struct verbs_conn *conn = tern_list_entry(node, struct verbs_conn, node);
		int status = atomic_exchange(&conn->async_status, 0);

		if (status == -EPROTO)
			verbs_conn_blame(
				conn, "it accessed memory that is not exposed to it");
		else if (status)
			verbs_conn_end(conn, status);
		events += status != 0;
	}
	return events;
}

static int others(struct verbs_port *port)
{
	struct epoll_event ready;
	int events = 0;
	uint64_t count;

	port->turn = 0;
	if (epoll_wait(port->epoll_fd, &ready, 1, 0) <= 0)
		return 0;
	if (read(port->timer_fd, &count, sizeof(count)) > 0)
		port->timer_fd_ns = UINT64_MAX;
	tern_list_for_each (node, &port->queues) {
		struct verbs_queue *queue =
			tern_list_entry(node, struct verbs_queue, node);

		read_channel(queue);
		events += verbs_async_read(queue);
	}
	/* Read wake_fd after the devices' events, because handling these may write to
	 * wake_fd. */
	while (read(port->wake_fd, &count, sizeof(count)) > 0)
		;
	events += conns_failed(port);
	return events + verbs_cm_poll(port);
}

/* ---- turns ---- */

void verbs_port_deadline(struct verbs_port *port, uint64_t at_ns)
{
	if (at_ns < port->deadline_ns)
		port->deadline_ns = at_ns;
}

/* Calls `writable` for conns that may send again. The list is emptied first, because a
 * handler may block its conn again, or end other conns. */
static int call_writable(struct verbs_port *port)
{
	struct tern_list todo, *node;
	int events = 0;

	tern_list_init(&todo);
	tern_list_splice(&todo, &port->blocked);
	while ((node = tern_list_pop(&todo))) {
		struct verbs_conn *conn =
			tern_list_entry(node, struct verbs_conn, blocked);

		if (!verbs_tx_open(conn)) {
			tern_list_push(&port->blocked, node);
			continue;
		}
		port->base.handler->writable(port->base.handler_arg, &conn->base);
		events++;
	}
	return events;
}

static void flush_all(struct verbs_port *port)
{
	struct tern_list *node;

	tern_list_for_each (q, &port->queues) {
		struct verbs_queue *queue = tern_list_entry(q, struct verbs_queue, node);

		if (queue->srq && queue->posted < queue->wanted &&
			verbs_slots_refill(queue))
			verbs_device_failed(queue, "no longer accepts receive requests");
	}
	while ((node = tern_list_pop(&port->dirty)))
		verbs_tx_flush(tern_list_entry(node, struct verbs_conn, dirty));
}

static void free_idle_queues(struct verbs_port *port)
{
	port->bereft = false;
	tern_list_for_each_safe (node, &port->queues) {
		struct verbs_queue *queue =
			tern_list_entry(node, struct verbs_queue, node);

		if (!atomic_load(&queue->device->dead))
			continue;
		if (queue->conn_count == 0)
			queue_free(queue);
		else
			port->bereft = true;
	}
}

static int poll_all(struct verbs_port *port, int budget)
{
	int events = 0;

	flush_all(port);
	tern_list_for_each (node, &port->queues)
		events += queue_poll(
			tern_list_entry(node, struct verbs_queue, node), budget);
	if (port->armed || ++port->turn >= VERBS_ASK_POLLS) {
		port->armed = false;
		events += others(port);
	}
	if (port->deadline_ns != UINT64_MAX) {
		uint64_t now_ns = tern_now_ns(port->base.env);

		if (now_ns >= port->deadline_ns)
			verbs_conn_expire(port, now_ns);
	}
	if (!tern_list_empty(&port->ending))
		events += verbs_end_all(port);
	if (port->bereft)
		free_idle_queues(port);
	if (!tern_list_empty(&port->blocked))
		events += call_writable(port);
	flush_all(port);
	return events;
}

int verbs_poll(struct tern_port *base, int budget)
{
	struct verbs_port *port = verbs_port_of(base);
	int events;

	port->polling = true;
	events = poll_all(port, budget);
	port->polling = false;
	return events;
}

static bool blocked_open(const struct verbs_port *port)
{
	tern_list_for_each (node, &port->blocked)
		if (verbs_tx_open(tern_list_entry(node, struct verbs_conn, blocked)))
			return true;
	return false;
}

static int arm_queue(struct verbs_queue *queue)
{
	int n;

	if (queue->stash_count)
		return -EAGAIN;
	if (queue->broken)
		return 0;
	if (!queue->notified && ibv_req_notify_cq(queue->cq, 0)) {
		break_queue(queue);
		return -EAGAIN;
	}
	queue->notified = true;
	n = ibv_poll_cq(queue->cq, VERBS_BATCH, queue->stash);
	if (n > 0)
		queue->stash_count = n;
	if (n < 0)
		break_queue(queue);
	return n ? -EAGAIN : 0;
}

static int set_timer(struct verbs_port *port)
{
	struct itimerspec spec = {0};
	uint64_t now_ns, in_ns = 0;

	if (port->deadline_ns == port->timer_fd_ns)
		return 0;
	if (port->deadline_ns != UINT64_MAX) {
		now_ns = tern_now_ns(port->base.env);
		in_ns = port->deadline_ns > now_ns ? port->deadline_ns - now_ns : 1;
	}
	spec.it_value.tv_sec = (time_t)(in_ns / TERN_NS_PER_S);
	spec.it_value.tv_nsec = (long)(in_ns % TERN_NS_PER_S);
	if (timerfd_settime(port->timer_fd, 0, &spec, NULL))
		return -errno;
	port->timer_fd_ns = port->deadline_ns;
	return 0;
}

int verbs_arm(struct tern_port *base)
{
	struct verbs_port *port = verbs_port_of(base);
	int r = 0;

	/* This call comes from a handler: poll() has not finished handling its events. */
	if (port->polling)
		return -EAGAIN;
	flush_all(port);
	if (!tern_list_empty(&port->ending) || port->bereft || blocked_open(port))
		return -EAGAIN;
	tern_list_for_each (node, &port->queues) {
		r = arm_queue(tern_list_entry(node, struct verbs_queue, node));
		if (r)
			return r;
	}
	r = set_timer(port);
	port->armed = true;
	return r;
}

int verbs_fd(struct tern_port *base)
{
	return verbs_port_of(base)->epoll_fd;
}

/* ---- birth and death ---- */

static int open_fds(struct verbs_port *port)
{
	port->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (port->epoll_fd < 0)
		return -errno;
	port->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (port->timer_fd < 0)
		return -errno;
	port->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (port->wake_fd < 0)
		return -errno;
	return watch(port, port->timer_fd) ?: watch(port, port->wake_fd);
}

void verbs_port_free(struct tern_port *base)
{
	struct verbs_port *port = verbs_port_of(base);

	tern_assert(tern_list_empty(&port->lsns));
	/* Conns may be left that the layer above never got to know. */
	tern_list_for_each (node, &port->conns) {
		struct verbs_conn *conn = tern_list_entry(node, struct verbs_conn, node);

		tern_assert(!conn->announced);
		verbs_conn_end(conn, -ECANCELED);
	}
	verbs_end_all(port);
	/* Free the verbs_queues before the ids: when the last id of a removed device is
	 * destroyed, librdmacm may close the device. */
	tern_list_for_each_safe (node, &port->queues)
		queue_free(tern_list_entry(node, struct verbs_queue, node));
	tern_list_for_each_safe (node, &port->zombies)
		verbs_zombie_free(port, tern_list_entry(node, struct verbs_zombie, node));
	if (port->channel)
		verbs_api_of(port)->destroy_event_channel(port->channel);
	tern_exposures_fini(&port->exposures);
	verbs_async_forget(&port->node);
	tern_cleanup_close(&port->wake_fd);
	tern_cleanup_close(&port->timer_fd);
	tern_cleanup_close(&port->epoll_fd);
	free(port->table);
	free(port);
}

int verbs_port_new(struct tern_fabric *base, const struct tern_port_opts *opts,
	struct tern_port **out)
{
	struct verbs_fabric *fabric = verbs_fabric_of(base);
	struct verbs_port *port = calloc(1, sizeof(*port));
	struct tern_list *lists[] = {&port->queues, &port->lsns, &port->conns,
		&port->zombies, &port->dirty, &port->blocked, &port->ending};
	int r;

	if (!port)
		return -ENOMEM;
	port->base = (struct tern_port){
		.ops = base->ops,
		.fabric = base,
		.env = opts->env,
		.handler = opts->handler,
		.handler_arg = opts->arg,
		.message_bytes = opts->message_bytes,
	};
	for (size_t i = 0; i < TERN_ARRAY_SIZE(lists); i++)
		tern_list_init(lists[i]);
	tern_list_init(&port->node);
	tern_admission_init(&port->half_open, tern_random(opts->env));
	if (opts->device)
		snprintf(port->device, sizeof(port->device), "%s", opts->device);
	port->epoll_fd = port->timer_fd = port->wake_fd = -1;
	port->deadline_ns = port->timer_fd_ns = UINT64_MAX;
	r = open_fds(port);
	if (!r)
		r = fabric->api->create_event_channel(&port->channel);
	if (!r)
		r = watch(port, port->channel->fd);
	if (!r)
		r = verbs_start(fabric, opts->env);
	if (r) {
		verbs_port_free(&port->base);
		return r;
	}
	verbs_async_add_port(port);
	*out = &port->base;
	return 0;
}
