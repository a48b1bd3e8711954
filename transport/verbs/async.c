/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous events of RDMA devices: a queue pair has failed, a device has failed.
 *
 * librdmacm opens each device once for the whole process, so any port of any domain may
 * read an event of another port's conn. So this file keeps process-wide lists of all
 * fabrics, all ports and all conns with a queue pair: the thread that reads an event
 * finds the objects that it concerns, and wakes their ports. Events of unknown objects
 * belong to a conn that has ended, or to another user of librdmacm in this process.
 *
 * The lock protects the lists and the lifetime of their members. Lock order: this lock
 * first, then a fabric's own lock.
 */
#include <errno.h>

#include "transport/verbs/verbs.h"

static struct {
	pthread_mutex_t lock;
	struct tern_list fabrics, ports, conns;
} all = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.fabrics = {&all.fabrics, &all.fabrics},
	.ports = {&all.ports, &all.ports},
	.conns = {&all.conns, &all.conns},
};

static void add(struct tern_list *list, struct tern_list *node)
{
	pthread_mutex_lock(&all.lock);
	tern_list_push(list, node);
	pthread_mutex_unlock(&all.lock);
}

void verbs_async_add_fabric(struct verbs_fabric *fabric)
{
	add(&all.fabrics, &fabric->node);
}

void verbs_async_add_port(struct verbs_port *port)
{
	add(&all.ports, &port->node);
}

void verbs_async_add_conn(struct verbs_conn *conn)
{
	add(&all.conns, &conn->all);
}

void verbs_async_forget(struct tern_list *node)
{
	pthread_mutex_lock(&all.lock);
	tern_list_remove(node);
	pthread_mutex_unlock(&all.lock);
}

/* Wakes a port, which may belong to another thread. The caller holds the lock of the
 * lists. */
static void wake(struct verbs_port *port)
{
	uint64_t one = 1;

	atomic_store(&port->events, true);
	/* A write fails only if the eventfd's counter is full; then wake_fd is readable
	 * anyway. */
	if (write(port->wake_fd, &one, sizeof(one)) < 0)
		return;
}

void verbs_async_died(struct ibv_context *context)
{
	pthread_mutex_lock(&all.lock);
	tern_list_for_each (node, &all.fabrics)
		verbs_device_died(
			tern_list_entry(node, struct verbs_fabric, node), context);
	tern_list_for_each (node, &all.ports)
		wake(tern_list_entry(node, struct verbs_port, node));
	pthread_mutex_unlock(&all.lock);
}

/* The caller holds the lock of the lists, without which the conn may end meanwhile. */
static struct verbs_conn *conn_of(const struct ibv_qp *qp)
{
	tern_list_for_each (node, &all.conns) {
		struct verbs_conn *conn = tern_list_entry(node, struct verbs_conn, all);

		if (conn->qp == qp)
			return conn;
	}
	return NULL;
}

static void qp_failed(const struct ibv_qp *qp, int status)
{
	struct verbs_conn *conn;

	pthread_mutex_lock(&all.lock);
	conn = conn_of(qp);
	if (conn) {
		atomic_store(&conn->async_status, status);
		wake(verbs_conn_port(conn));
	}
	pthread_mutex_unlock(&all.lock);
}

static void qp_took_last(const struct ibv_qp *qp)
{
	struct verbs_conn *conn;

	pthread_mutex_lock(&all.lock);
	conn = conn_of(qp);
	if (conn)
		atomic_store(&conn->took_last, true);
	pthread_mutex_unlock(&all.lock);
}

static void handle(struct verbs_queue *queue, const struct ibv_async_event *event)
{
	struct verbs_port *port = queue->port;

	switch ((int)event->event_type) {
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_SRQ_ERR:
		verbs_device_failed(queue, "failed");
		break;
	case IBV_EVENT_QP_FATAL:
		qp_failed(event->element.qp, -ENETDOWN);
		break;
	case IBV_EVENT_QP_REQ_ERR:
		qp_failed(event->element.qp, -EREMOTEIO);
		break;
	case IBV_EVENT_QP_ACCESS_ERR:
		qp_failed(event->element.qp, -EPROTO);
		break;
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		qp_took_last(event->element.qp);
		break;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_PORT_ACTIVE:
		tern_log(port->base.env, TERN_LOG_INFO, "verbs: %s port %d is %s",
			verbs_api_of(port)->device_name(queue->device->context),
			event->element.port_num,
			event->event_type == IBV_EVENT_PORT_ACTIVE ? "up" : "down");
		break;
	default:
		break;
	}
}

int verbs_async_read(struct verbs_queue *queue)
{
	const struct tern_verbs_api *api = verbs_api_of(queue->port);
	struct ibv_async_event event;
	int events = 0;

	while (api->get_async_event(queue->device->context, &event) == 0) {
		handle(queue, &event);
		api->ack_async_event(&event);
		events++;
	}
	return events;
}
