/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two ids are connected and disconnected. The states are those of the kernel; the
 * user's queue pair follows when the user fetches the event, as in librdmacm:
 *
 *     active:  ROUTE_RESOLVED -connect-> REQ_SENT -peer accepts-> REP_RECEIVED
 *              -fetches the response-> CONNECTED (QP: RTS; the peer gets an event)
 *     passive: REQ_RECEIVED -accept-> REP_SENT (QP: RTS) -peer fetches-> CONNECTED
 *
 * So the first message of the active side may arrive before the passive side's event
 * ESTABLISHED. An id gets the state DISCONNECTED when its user ends the connection, when
 * the peer is told of an end (not across a cut wire), or with CONNECT_ERROR. If an id
 * gets an event for that, its queue pair (QP) is in ERR after the user has fetched the
 * event. Invariant: connected ids point to each other with `peer`, until one of them is
 * destroyed.
 */
#include "tests/fakes/verbs/verbs_world.h"

enum { REJ_TIMEOUT = 4, REJ_INVALID_SERVICE_ID = 8, REJ_CONSUMER_DEFINED = 28 };

static struct fake_qp *qp_of(struct fake_id *id)
{
	return id->base.qp ? FAKE_QP(id->base.qp) : NULL;
}

static bool cut_between(const struct fake_id *a, const struct fake_id *b)
{
	return fake_wire_is_cut(FAKE_DEVICE(a->base.verbs), FAKE_DEVICE(b->base.verbs));
}

static void set_private(
	struct fake_event *event, const void *data, size_t bytes, size_t padded)
{
	tern_assert(bytes <= padded && padded <= sizeof(event->private_data));
	if (bytes > 0)
		memcpy(event->private_data, data, bytes);
	event->base.param.conn.private_data = event->private_data;
	event->base.param.conn.private_data_len = (uint8_t)padded;
}

static void tell_rejected(struct fake_id *id, int reason, const void *data, size_t bytes)
{
	struct fake_event *event = fake_event_new(id, RDMA_CM_EVENT_REJECTED);

	id->state = FAKE_ID_DISCONNECTED;
	event->base.status = reason;
	set_private(event, data, bytes, FAKE_PRIVATE_REJ_BYTES);
	fake_event_post(event);
}

static void tell_disconnected(struct fake_id *id)
{
	id->state = FAKE_ID_DISCONNECTED;
	fake_id_tell(id, RDMA_CM_EVENT_DISCONNECTED, 0);
	if (fake.opts.timewait_exit)
		fake_id_tell(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
}

/* The peer does not answer: the connect fails after opts.retry_steps, or never if that is
 * 0. */
static void tell_unreachable(struct fake_id *id)
{
	struct fake_event *event = fake_event_new(id, RDMA_CM_EVENT_UNREACHABLE);

	event->base.status = -ETIMEDOUT;
	event->due_step = fake.opts.retry_steps;
	if (fake.opts.retry_steps > 0)
		fake_event_post(event);
	else
		free(event);
}

/* Ends the connection of `id`. If `id` was connected, its peer gets DISCONNECTED; before
 * that, REJECTED; nothing if the wire between them is cut. */
void fake_id_cut(struct fake_id *id)
{
	struct fake_id *peer = id->peer;
	enum fake_id_state state = id->state;

	id->state = FAKE_ID_DISCONNECTED;
	if (!peer)
		return;
	if (peer->state != FAKE_ID_DISCONNECTED && !cut_between(id, peer)) {
		if (state == FAKE_ID_CONNECTED)
			tell_disconnected(peer);
		else if (state == FAKE_ID_REQ_SENT)
			tell_rejected(peer, REJ_TIMEOUT, NULL, 0);
		else if (state != FAKE_ID_DISCONNECTED)
			tell_rejected(peer, REJ_CONSUMER_DEFINED, NULL, 0);
	}
	peer->peer = NULL;
	id->peer = NULL;
}

/* Sets the connection's limits of READs in flight. A limit of 255 means as many as the
 * device can have; returns -EINVAL for any other limit above that. */
static int depths(const struct rdma_conn_param *param, struct rdma_conn_param *out)
{
	uint8_t most = (uint8_t)fake.opts.max_rd_atomic;

	*out = (struct rdma_conn_param){.responder_resources = most,
		.initiator_depth = most,
		.retry_count = 7,
		.rnr_retry_count = 7};
	if (!param)
		return 0;
	*out = *param;
	out->private_data = NULL;
	if (out->responder_resources == RDMA_MAX_RESP_RES)
		out->responder_resources = most;
	if (out->initiator_depth == RDMA_MAX_INIT_DEPTH)
		out->initiator_depth = most;
	return out->responder_resources > most || out->initiator_depth > most ? -EINVAL
									      : 0;
}

/* Fills in the event's connection parameters: those of `id`, as its peer sees them. */
static void set_conn(struct fake_event *event, const struct fake_id *id)
{
	struct rdma_conn_param *conn = &event->base.param.conn;

	conn->responder_resources = id->conn.initiator_depth;
	conn->initiator_depth = id->conn.responder_resources;
	conn->flow_control = id->conn.flow_control;
	conn->retry_count = id->conn.retry_count;
	conn->rnr_retry_count = id->conn.rnr_retry_count;
	conn->srq = id->base.qp->srq != NULL;
	conn->qp_num = id->base.qp->qp_num;
}

static void request(struct fake_id *active, struct fake_id *listener,
	struct fake_device *device, const void *data, size_t bytes)
{
	struct fake_id *id =
		fake_id_new(FAKE_CHANNEL(listener->base.channel), listener->base.context);
	struct fake_event *event = fake_event_new(id, RDMA_CM_EVENT_CONNECT_REQUEST);

	id->state = FAKE_ID_REQ_RECEIVED;
	id->passive = true;
	id->base.verbs = &device->base;
	id->base.port_num = 1;
	id->base.route.addr.src_storage = active->base.route.addr.dst_storage;
	id->base.route.addr.dst_storage = active->base.route.addr.src_storage;
	id->peer = active;
	active->peer = id;
	event->owner = listener;
	event->base.listen_id = &listener->base;
	set_private(event, data, bytes, FAKE_PRIVATE_REQ_BYTES);
	set_conn(event, active);
	fake_event_post(event);
}

/* Connects. An id without a queue pair is not supported. */
int fake_connect(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	struct fake_id *id = FAKE_ID(base);
	size_t bytes = param ? param->private_data_len : 0;

	FAKE_ENTER("connect");
	if (id->state != FAKE_ID_ROUTE_RESOLVED || !base->qp ||
		base->qp->state != IBV_QPS_INIT || bytes > FAKE_PRIVATE_REQ_BYTES)
		return -EINVAL;
	if (FAKE_DEVICE(base->verbs)->removed)
		return -ENODEV;
	int r = depths(param, &id->conn);
	if (r)
		return r;
	id->state = FAKE_ID_REQ_SENT;
	struct fake_device *device = fake_addr_device(&base->route.addr.dst_addr);
	if (!device || fake_wire_is_cut(FAKE_DEVICE(base->verbs), device)) {
		tell_unreachable(id);
		return 0;
	}
	struct fake_id *listener = fake_addr_listener(&base->route.addr.dst_addr);
	if (listener)
		request(id, listener, device, param ? param->private_data : NULL, bytes);
	else
		tell_rejected(id, REJ_INVALID_SERVICE_ID, NULL, 0);
	return 0;
}

static void agree(struct fake_id *active, struct fake_id *passive)
{
	struct fake_qp *a = qp_of(active), *p = qp_of(passive);

	a->init_depth = p->resp_depth =
		TERN_MIN(active->conn.initiator_depth, passive->conn.responder_resources);
	p->init_depth = a->resp_depth =
		TERN_MIN(passive->conn.initiator_depth, active->conn.responder_resources);
	a->rnr_retry = passive->conn.rnr_retry_count & 7;
	p->rnr_retry = active->conn.rnr_retry_count & 7;
	fake_qp_connect(a, p);
}

int fake_accept(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	struct fake_id *id = FAKE_ID(base), *active = id->peer;
	size_t bytes = param ? param->private_data_len : 0;

	FAKE_ENTER("accept");
	if (id->state != FAKE_ID_REQ_RECEIVED || !base->qp ||
		base->qp->state != IBV_QPS_INIT || bytes > FAKE_PRIVATE_REP_BYTES)
		return -EINVAL;
	if (FAKE_DEVICE(base->verbs)->removed)
		return -ENODEV;
	int r = depths(param, &id->conn);
	if (r)
		return r;
	id->state = FAKE_ID_REP_SENT;
	base->qp->state = IBV_QPS_RTS;
	if (!active || cut_between(id, active)) {
		tell_unreachable(id);
		if (active)
			tell_unreachable(active);
		return 0;
	}
	active->state = FAKE_ID_REP_RECEIVED;
	if (active->base.qp)
		agree(active, id);
	struct fake_event *event = fake_event_new(active, RDMA_CM_EVENT_CONNECT_RESPONSE);
	set_private(
		event, param ? param->private_data : NULL, bytes, FAKE_PRIVATE_REP_BYTES);
	set_conn(event, id);
	fake_event_post(event);
	return 0;
}

int fake_reject(struct rdma_cm_id *base, const void *data, uint8_t bytes)
{
	struct fake_id *id = FAKE_ID(base), *peer = id->peer;

	FAKE_ENTER("reject");
	if (id->state != FAKE_ID_REQ_RECEIVED || bytes > FAKE_PRIVATE_REJ_BYTES)
		return -EINVAL;
	id->state = FAKE_ID_DISCONNECTED;
	if (peer && !cut_between(id, peer))
		tell_rejected(peer, REJ_CONSUMER_DEFINED, data, bytes);
	return 0;
}

/* Disconnects. It also succeeds if the connection has ended in the meantime, as in the
 * kernel. */
int fake_disconnect(struct rdma_cm_id *base)
{
	struct fake_id *id = FAKE_ID(base);

	FAKE_ENTER("disconnect");
	if (id->state < FAKE_ID_REQ_SENT)
		return -EINVAL;
	if (base->qp)
		fake_qp_error(FAKE_QP(base->qp));
	if (id->state != FAKE_ID_CONNECTED)
		return 0;
	tell_disconnected(id);
	if (id->peer && id->peer->state == FAKE_ID_CONNECTED &&
		!cut_between(id, id->peer))
		tell_disconnected(id->peer);
	return 0;
}

/* Reports that data has arrived (IBV_EVENT_COMM_EST). This establishes the connection if
 * the message that would do so was lost. */
int fake_notify(struct rdma_cm_id *base, enum ibv_event_type type)
{
	struct fake_id *id = FAKE_ID(base);

	FAKE_ENTER("notify");
	if (type != IBV_EVENT_COMM_EST || !id->passive)
		return -EINVAL;
	if (id->established_lost) {
		id->established_lost = false;
		fake_id_tell(id, RDMA_CM_EVENT_ESTABLISHED, 0);
		return 0;
	}
	return id->state == FAKE_ID_CONNECTED ? -EISCONN : -EINVAL;
}

static void establish(struct fake_event *event, struct fake_id *id)
{
	struct fake_qp *qp = qp_of(id);

	if (id->state == FAKE_ID_REP_RECEIVED && id->peer && qp &&
		qp->base.state == IBV_QPS_INIT && qp->peer) {
		qp->base.state = IBV_QPS_RTS;
		fake_qp_activate(qp->peer);
		id->state = id->peer->state = FAKE_ID_CONNECTED;
		fake_id_tell(id->peer, RDMA_CM_EVENT_ESTABLISHED, 0);
		event->base.event = RDMA_CM_EVENT_ESTABLISHED;
		return;
	}
	fake_id_cut(id);
	id->connect_error = true;
	event->base.event = RDMA_CM_EVENT_CONNECT_ERROR;
	event->base.status = -EINVAL;
	if (qp)
		fake_qp_error(qp);
}

/* Updates the id as librdmacm does when the user fetches `event`. False: the event is not
 * for the user. */
bool fake_id_fetches(struct fake_event *event)
{
	struct fake_id *id = FAKE_ID(event->base.id);

	if (event->base.event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
		establish(event, id);
	} else if (event->base.event == RDMA_CM_EVENT_REJECTED ||
		   event->base.event == RDMA_CM_EVENT_DISCONNECTED) {
		if (id->connect_error)
			return false;
		if (id->base.qp) {
			fake_cqes_hasten(FAKE_QP(id->base.qp));
			fake_qp_error(FAKE_QP(id->base.qp));
		}
	} else {
		fake_addr_fetched(id, event->base.event);
	}
	return true;
}
