/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting and accepting through librdmacm, which finds the device and the path for an
 * IP address, and transports a greeting (struct verbs_greeting) in each direction.
 *
 * Every event is copied and acknowledged before it is handled, since destroying an id
 * waits until its events are acknowledged. When the conn of an id is freed, the id's
 * context becomes NULL. Later events of the id are ignored, except those that allow the
 * id to be destroyed (struct verbs_zombie).
 */
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs.h"

#define RESOLVE_MS       2000
#define REJECTED_NOBODY  8  /* IB_CM_REJ_INVALID_SERVICE_ID */
#define REJECTED_BY_USER 28 /* IB_CM_REJ_CONSUMER_DEFINED */
#define RNR_40_US        4  /* 40 us in InfiniBand's encoding */
/* Value of rnr_retry_count: the device retries without limit while the peer has no
 * receive posted (receiver not ready, RNR). Credits prevent that case. */
#define RETRY_FOR_EVER 7

/* ---- greetings ---- */

static struct verbs_greeting greeting(const struct verbs_conn *conn, int status)
{
	const struct verbs_port *port = verbs_conn_port(conn);

	return (struct verbs_greeting){
		.magic = htole32(VERBS_MAGIC),
		.version = htole16(VERBS_VERSION),
		.flags = htole16(verbs_port_fabric(port)->opts.guard ? VERBS_GUARDED : 0),
		.status = (int32_t)htole32((uint32_t)status),
		.message_bytes = htole32(port->base.message_bytes),
		.window = htole32(conn->granted),
		.device = htole32(conn->queue ? conn->queue->device->index : 0),
	};
}

/* Decodes the peer's greeting. 0, or the reason to reject it. librdmacm may append zeros
 * to private data, so only too few bytes are an error. */
static int read_greeting(const struct rdma_conn_param *param, struct verbs_greeting *out)
{
	if (!param->private_data || param->private_data_len < sizeof(*out))
		return -EPROTO;
	memcpy(out, param->private_data, sizeof(*out));
	out->flags = le16toh(out->flags);
	out->status = (int32_t)le32toh((uint32_t)out->status);
	out->message_bytes = le32toh(out->message_bytes);
	out->window = le32toh(out->window);
	out->device = le32toh(out->device);
	if (le32toh(out->magic) != VERBS_MAGIC)
		return -EPROTO;
	return le16toh(out->version) == VERBS_VERSION ? 0 : -EPROTONOSUPPORT;
}

static int take_greeting(struct verbs_conn *conn, const struct rdma_conn_param *param)
{
	struct verbs_greeting theirs;
	int r = read_greeting(param, &theirs);

	if (r)
		return r;
	if (theirs.message_bytes != conn->base.port->message_bytes ||
		theirs.window < VERBS_WINDOW_MANY || theirs.window > UINT16_MAX ||
		theirs.device >= VERBS_DEVICES_MAX)
		return -EPROTO;
	conn->window = theirs.window;
	conn->peer_device = theirs.device;
	conn->peer_guarded = theirs.flags & VERBS_GUARDED;
	return 0;
}

static struct rdma_conn_param conn_param(
	const struct verbs_conn *conn, const struct verbs_greeting *mine)
{
	const struct verbs_opts *opts = &verbs_port_fabric(verbs_conn_port(conn))->opts;
	const struct ibv_device_attr *attr = &conn->queue->device->attr;

	return (struct rdma_conn_param){
		.private_data = mine,
		.private_data_len = sizeof(*mine),
		.responder_resources = (uint8_t)TERN_MIN(attr->max_qp_rd_atom, 255),
		.initiator_depth = (uint8_t)conn->read_max,
		.flow_control = 1,
		.retry_count = (uint8_t)opts->retry_count,
		.rnr_retry_count = RETRY_FOR_EVER,
		.srq = conn->shares_srq,
	};
}

/* ---- names and options ---- */

static void name_conn(struct verbs_conn *conn)
{
	char text[VERBS_NAME_MAX];
	struct tern_addr peer = {.len = sizeof(struct sockaddr_in)};

	if (conn->id->route.addr.dst_addr.sa_family == AF_INET6)
		peer.len = sizeof(struct sockaddr_in6);
	memcpy(&peer.sa, &conn->id->route.addr.dst_storage, peer.len);
	tern_addr_print(&peer, text, sizeof(text));
	snprintf(conn->base.name, sizeof(conn->base.name), "verbs %s", text);
}

static void set_options(struct verbs_port *port, struct rdma_cm_id *id)
{
	const struct verbs_opts *opts = &verbs_port_fabric(port)->opts;
	uint8_t value = (uint8_t)opts->traffic_class;

	/* Both options are optional: it does not matter if a device or a kernel lacks
	 * them. */
	if (opts->traffic_class >= 0)
		verbs_api_of(port)->set_option(
			id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, sizeof(value));
	value = (uint8_t)opts->timeout_exponent;
	verbs_api_of(port)->set_option(
		id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, sizeof(value));
}

/* ---- up ---- */

static bool is_iwarp(const struct verbs_conn *conn)
{
	return conn->queue->device->context->device->transport_type ==
	       IBV_TRANSPORT_IWARP;
}

static void come_up(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);
	bool guard = verbs_port_fabric(port)->opts.guard;

	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .min_rnr_timer = RNR_40_US};

	/* Sets how long the peer's device pauses when no receive is posted at this end.
	 * Credits prevent that case, so an error is ignored. librdmacm's default would be
	 * 0.65 s. */
	verbs_api_of(port)->modify_qp(
		conn->qp, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
	conn->deadline_ns = UINT64_MAX;
	verbs_conn_enter(conn, VERBS_UP);
	conn->base.caps = TERN_CAP_PUT;
	if (!guard && !conn->peer_guarded && conn->read_max > 0)
		conn->base.caps |= TERN_CAP_GET;
	if (!guard && !conn->peer_guarded)
		conn->base.caps |= TERN_CAP_DEVICE;
	/* The completion of an iWARP write says only that its buffer may be used again
	 * (RFC 5040, "Ordering and Completions"). Over InfiniBand and RoCE the peer's
	 * device has acknowledged it. */
	if (!guard && !conn->peer_guarded && !is_iwarp(conn))
		conn->base.caps |= TERN_CAP_LANDS;
	if (!guard || !conn->peer_guarded)
		conn->base.caps |= TERN_CAP_UNGUARDED;
}

static void accepted(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);

	conn->half_open.has_spoken = true;
	come_up(conn);
	conn->announced = true;
	port->base.handler->accepted(
		port->base.handler_arg, &conn->lsn->base, &conn->base);
}

void verbs_cm_heard(struct verbs_conn *conn)
{
	/* Tell the kernel that the connection is established. Otherwise it waits for the
	 * peer's RTU ("ready to use") packet, which may have been lost. */
	verbs_api_of(verbs_conn_port(conn))->notify(conn->id, IBV_EVENT_COMM_EST);
	accepted(conn);
}

static void on_established(struct verbs_conn *conn, const struct rdma_conn_param *param)
{
	struct verbs_port *port = verbs_conn_port(conn);
	int r;

	if (conn->state == VERBS_ACCEPTING) {
		accepted(conn);
		return;
	}
	if (conn->state != VERBS_CONNECTING)
		return;
	conn->connected = true;
	r = take_greeting(conn, param);
	if (r) {
		tern_log(port->base.env, TERN_LOG_WARN,
			"%s: it does not speak this "
			"version of Tern's verbs fabric",
			conn->base.name);
		verbs_conn_end(conn, r);
		return;
	}
	conn->read_max = TERN_MIN(conn->read_max, (uint32_t)param->initiator_depth);
	come_up(conn);
	port->base.handler->up(port->base.handler_arg, &conn->base);
}

/* ---- accepting ---- */

/* Removes conns that have joined a session from the half-open conns. */
static void forget_owned(struct verbs_port *port)
{
	tern_list_for_each_safe (node, &port->half_open.all) {
		struct verbs_conn *conn =
			tern_list_entry(node, struct verbs_conn, half_open.node);

		if (conn->base.owner)
			tern_admission_remove(&port->half_open, &conn->half_open);
	}
}

/* Adds the conn to the half-open conns. If there are too many, one is cut. -EMFILE: this
 * conn must be cut. */
static int admit(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);
	uint64_t now_ns = tern_now_ns(port->base.env);
	struct tern_half_open *excess;

	if (port->half_open.count >= VERBS_HALF_OPEN_MAX)
		forget_owned(port);
	tern_admission_add(&port->half_open, &conn->half_open, conn->base.name, now_ns);
	excess = tern_admission_excess(
		&port->half_open, &conn->half_open, VERBS_HALF_OPEN_MAX, now_ns);
	if (excess == &conn->half_open)
		return -EMFILE;
	if (excess)
		verbs_conn_end(
			tern_container_of(excess, struct verbs_conn, half_open), -EMFILE);
	return 0;
}

static int accept_request(struct verbs_conn *conn, const struct rdma_conn_param *param)
{
	struct verbs_port *port = verbs_conn_port(conn);
	struct verbs_greeting mine;
	struct rdma_conn_param answer;
	int r = take_greeting(conn, param);

	if (!r)
		r = admit(conn);
	if (!r)
		r = verbs_conn_open(conn);
	if (r)
		return r;
	conn->read_max = TERN_MIN(conn->read_max, (uint32_t)param->initiator_depth);
	mine = greeting(conn, 0);
	answer = conn_param(conn, &mine);
	if (answer.responder_resources > param->responder_resources)
		answer.responder_resources = param->responder_resources;
	answer.initiator_depth = (uint8_t)conn->read_max;
	conn->deadline_ns = tern_now_ns(port->base.env) + VERBS_ACCEPT_NS;
	verbs_port_deadline(port, conn->deadline_ns);
	r = verbs_api_of(port)->accept(conn->id, &answer);
	if (r == 0)
		conn->connected = true;
	return r;
}

static void on_request(struct verbs_port *port, struct verbs_lsn *lsn,
	struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct verbs_conn *conn = lsn ? verbs_conn_new(port, VERBS_ACCEPTING) : NULL;
	struct verbs_greeting mine;
	int r;

	if (!conn) {
		verbs_api_of(port)->reject(id, NULL, 0);
		verbs_api_of(port)->destroy_id(id);
		return;
	}
	conn->id = id;
	conn->lsn = lsn;
	id->context = conn;
	name_conn(conn);
	set_options(port, id);
	r = accept_request(conn, param);
	if (r == 0)
		return;
	tern_log_stranger(
		port->base.env, "%s: refused: %s", conn->base.name, tern_status_text(r));
	mine = greeting(conn, r);
	verbs_api_of(port)->reject(id, &mine, sizeof(mine));
	verbs_conn_end(conn, r);
}

/* ---- connecting ---- */

static void fail(struct verbs_conn *conn, const char *what, int status)
{
	if (conn->state == VERBS_ENDING)
		return;
	tern_log(conn->base.port->env, TERN_LOG_INFO, "%s: %s: %s", conn->base.name, what,
		tern_status_text(status));
	verbs_conn_end(conn, status);
}

/* Starts to connect to the next address of the host name. -EHOSTUNREACH: none is left. */
static int resolve_next(struct verbs_conn *conn)
{
	struct verbs_port *port = verbs_conn_port(conn);
	struct tern_addr from =
		conn->from.len ? conn->from : verbs_port_fabric(port)->opts.from;
	char text[VERBS_NAME_MAX];

	while (conn->addrs && conn->addrs->next < conn->addrs->count) {
		struct tern_addr to = conn->addrs->addr[conn->addrs->next++];

		tern_addr_print(&to, text, sizeof(text));
		snprintf(conn->base.name, sizeof(conn->base.name), "verbs %s", text);
		if (verbs_api_of(port)->resolve_addr(conn->id,
			    from.len ? (struct sockaddr *)&from.sa : NULL,
			    (struct sockaddr *)&to.sa, RESOLVE_MS) == 0)
			return 0;
	}
	return -EHOSTUNREACH;
}

static void resolve_or_fail(struct verbs_conn *conn)
{
	if (conn->state == VERBS_RESOLVING && resolve_next(conn))
		fail(conn, "no RDMA device of this machine reaches it", -EHOSTUNREACH);
}

static int resolve_route(struct verbs_conn *conn)
{
	verbs_conn_enter(conn, VERBS_ROUTING);
	return verbs_api_of(verbs_conn_port(conn))->resolve_route(conn->id, RESOLVE_MS);
}

static int request(struct verbs_conn *conn)
{
	struct rdma_conn_param param;
	struct verbs_greeting mine;
	int r = verbs_conn_open(conn);

	if (r)
		return r;
	mine = greeting(conn, 0);
	param = conn_param(conn, &mine);
	verbs_conn_enter(conn, VERBS_CONNECTING);
	return verbs_api_of(verbs_conn_port(conn))->connect(conn->id, &param);
}

static void on_rejected(
	struct verbs_conn *conn, int reason, const struct rdma_conn_param *param)
{
	struct verbs_greeting theirs;
	char what[40];

	if (reason == REJECTED_BY_USER && read_greeting(param, &theirs) == 0 &&
		theirs.status < 0 && tern_status_may_end(theirs.status))
		fail(conn, "refused by the other end", theirs.status);
	else if (reason == REJECTED_NOBODY)
		verbs_conn_end(conn, -ECONNREFUSED);
	else {
		/* The numbers are those of the InfiniBand specification, section
		 * 12.6.7.2. */
		snprintf(what, sizeof(what), "rejected for reason %d", reason);
		fail(conn, what, -ECONNREFUSED);
	}
}

/* ---- events ---- */

static void on_disconnected(struct verbs_conn *conn)
{
	conn->peer_gone = true;
	/* The device put the peer's last messages into the completion queue before it
	 * processed the disconnect, so they can be handled now. */
	if (conn->queue)
		verbs_queue_drain(conn->queue);
	verbs_conn_end(conn, -ECONNRESET);
}

static void on_removal(struct verbs_conn *conn)
{
	/* The peer cannot get a disconnect, so do not wait for its acknowledgement. */
	conn->peer_gone = true;
	fail(conn, "its device was removed", -ENETDOWN);
}

static void conn_event(struct verbs_conn *conn, const struct rdma_cm_event *event)
{
	int status = event->status < 0 ? event->status : -EHOSTUNREACH;
	int r = 0;

	if (conn->state == VERBS_ENDING) {
		bool left = event->event == RDMA_CM_EVENT_DISCONNECTED;

		if (left && conn->status == -ENETDOWN)
			/* the work requests failed because the peer has disconnected, not
			 * because of the network */
			conn->status = -ECONNRESET;
		conn->peer_gone |= left || event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
		return;
	}
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		r = resolve_route(conn);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		r = request(conn);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
		resolve_or_fail(conn);
		break;
	case RDMA_CM_EVENT_ROUTE_ERROR:
		fail(conn, "no route", -EHOSTUNREACH);
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		fail(conn, "no answer", status == -EHOSTUNREACH ? status : -ETIMEDOUT);
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		fail(conn, "the connection was not established", -ECONNRESET);
		break;
	case RDMA_CM_EVENT_REJECTED:
		on_rejected(conn, event->status, &event->param.conn);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		on_established(conn, &event->param.conn);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		on_disconnected(conn);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		on_removal(conn);
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_MULTICAST_JOIN:
	case RDMA_CM_EVENT_MULTICAST_ERROR:
	case RDMA_CM_EVENT_ADDR_CHANGE:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	}
	if (r)
		fail(conn, "cannot connect", r);
}

static void zombie_event(struct verbs_port *port, const struct rdma_cm_event *event)
{
	if (event->event != RDMA_CM_EVENT_DISCONNECTED &&
		event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT &&
		event->event != RDMA_CM_EVENT_DEVICE_REMOVAL)
		return;
	tern_list_for_each (node, &port->zombies) {
		struct verbs_zombie *zombie =
			tern_list_entry(node, struct verbs_zombie, node);

		if (zombie->id == event->id) {
			verbs_zombie_free(port, zombie);
			return;
		}
	}
}

/* Ends the conns on a removed device. It must not wait for the device's own asynchronous
 * event, since another domain of this process may read that. */
static void device_removed(struct verbs_port *port, const struct ibv_context *context)
{
	tern_list_for_each (node, &port->queues) {
		struct verbs_queue *queue =
			tern_list_entry(node, struct verbs_queue, node);

		if (queue->device->context == context)
			verbs_device_failed(queue, "was removed");
	}
}

static void handle(struct verbs_port *port, const struct rdma_cm_event *event)
{
	struct verbs_lsn *lsn;

	if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		device_removed(port, event->id->verbs);

	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		on_request(port, verbs_lsn_find(port, event->listen_id), event->id,
			&event->param.conn);
		return;
	}
	lsn = verbs_lsn_find(port, event->id);
	if (lsn)
		verbs_lsn_event(lsn, event);
	else if (event->id->context)
		conn_event(event->id->context, event);
	else
		zombie_event(port, event);
}

int verbs_cm_poll(struct verbs_port *port)
{
	struct rdma_cm_event *event;
	int events = 0;

	while (verbs_api_of(port)->get_cm_event(port->channel, &event) == 0) {
		struct rdma_cm_event copy = *event;
		char data[UINT8_MAX + 1];

		if (copy.param.conn.private_data &&
			(copy.event == RDMA_CM_EVENT_CONNECT_REQUEST ||
				copy.event == RDMA_CM_EVENT_ESTABLISHED ||
				copy.event == RDMA_CM_EVENT_REJECTED)) {
			memcpy(data, copy.param.conn.private_data,
				copy.param.conn.private_data_len);
			copy.param.conn.private_data = data;
		} else {
			memset(&copy.param, 0, sizeof(copy.param));
		}
		verbs_api_of(port)->ack_cm_event(event);
		handle(port, &copy);
		events++;
	}
	return events;
}

/* ---- connect() of the vtable ---- */

int verbs_connect(struct tern_port *base, const char *address, struct tern_conn **out)
{
	struct verbs_port *port = verbs_port_of(base);
	struct verbs_choice choice;
	struct tern_addrs addrs;
	struct verbs_conn *conn;
	int r = verbs_choose(port, address, &choice);

	if (!r)
		r = tern_addr_resolve(choice.address, false, &addrs);
	if (r)
		return r;
	conn = verbs_conn_new(port, VERBS_RESOLVING);
	if (!conn)
		return -ENOMEM;
	conn->announced = true;
	conn->from = choice.own;
	conn->addrs = malloc(sizeof(addrs));
	if (conn->addrs)
		*conn->addrs = addrs;
	r = verbs_api_of(port)->create_id(port->channel, &conn->id, conn);
	if (r) {
		conn->id = NULL;
		verbs_conn_end(conn, r);
	} else {
		set_options(port, conn->id);
		resolve_or_fail(conn);
	}
	*out = &conn->base;
	return 0;
}
