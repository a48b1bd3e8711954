/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fabric between the ports of one process, which copies with memcpy(). It shows the
 * least that a fabric must have, and proves that a fabric needs no other change in the
 * layers above than its row in the table of fabrics. Addresses are names.
 *
 * One lock protects all ports, which may belong to different threads. Events of a conn
 * are queued in its port's inbox and take effect in poll(), in order; `closed` is the
 * last one. Messages and the bytes of puts are copied into the peer's inbox.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <tern/context.h>

#include "base/list.h"
#include "base/util.h"
#include "transport/addr.h"
#include "transport/memory/mem.h"
#include "transport/exposure.h"

#define NAME_MAX_BYTES 80u
/* Limits of the messages and puts of a conn that its peer has not processed yet. */
#define QUEUE_MOST  256u
#define QUEUE_BYTES (8u << 20)

extern const struct tern_fabric_ops tern_loopback_fabric_ops;

struct lo_port {
	struct tern_port base;
	struct tern_exposures exposures;
	struct tern_list inbox;
	/* Listeners, conns that the port's user has dialled, and accepted conns that were
	 * reported to the port's handler. */
	unsigned user_count;
	bool armed;
	int fd;
};

struct lo_lsn {
	struct tern_lsn base;
	struct tern_list node;
	char name[NAME_MAX_BYTES + 1];
};

struct lo_conn {
	struct tern_conn base;
	/* The conn at the other end; NULL: cut, or never connected. */
	struct lo_conn *other;
	bool up, over; /* `over`: `closed` is queued in the inbox */
	/* The conn receives nothing more: its user has closed it or refused a message, or
	 * the peer made a put that is not allowed. */
	bool deaf;
	bool blocked;    /* a call returned -EAGAIN: `writable` must follow */
	unsigned queued; /* messages and puts in the inbox that are meant for this conn */
	size_t queued_bytes;
	int status;
};

enum event { ACCEPTED, UP, MESSAGE, PUT, WRITABLE, DONE, CLOSED };

struct item {
	struct tern_list node;
	enum event event;
	struct lo_conn *conn;
	struct lo_lsn *lsn;
	/* of a put: the sender's operation; NULL: it was completed before */
	struct tern_op *op;
	int status;
	/* For a put: the peer's exposure (its generation and index), and the offset in
	 * it. */
	uint64_t exposure, offset;
	size_t bytes;
	_Alignas(64) unsigned char data[];
};

static struct tern_list listeners = {&listeners, &listeners};
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void unlock(pthread_mutex_t **held)
{
	pthread_mutex_unlock(*held);
}

static pthread_mutex_t *locked(void)
{
	pthread_mutex_lock(&lock);
	return &lock;
}

/* Holds the lock until the end of the block. */
#define LOCK()                                                                           \
	TERN_CLEANUP(unlock) __attribute__((unused)) pthread_mutex_t *held = locked()

static struct lo_port *port_of(struct tern_port *base)
{
	return tern_container_of(base, struct lo_port, base);
}

static struct lo_conn *conn_of(struct tern_conn *base)
{
	return tern_container_of(base, struct lo_conn, base);
}

/* ---- what happens ---- */

static struct item *post(struct lo_conn *conn, enum event event, size_t bytes)
{
	struct lo_port *port = port_of(conn->base.port);
	struct item *item = aligned_alloc(64, tern_align_up(sizeof(*item) + bytes, 64));
	uint64_t one = 1;

	tern_assert(item);
	*item = (struct item){.event = event, .conn = conn, .bytes = bytes};
	tern_list_push(&port->inbox, &item->node);
	if (port->armed)
		tern_assert(write(port->fd, &one, sizeof(one)) == sizeof(one));
	port->armed = false;
	return item;
}

static void complete(struct tern_op *op, int status)
{
	struct item *item = post(conn_of(op->conn), DONE, 0);

	item->op = op;
	item->status = status;
}

/* Completes the puts of `conn` that its peer has not processed yet. */
static void complete_all(struct lo_conn *conn)
{
	if (!conn->other)
		return;
	tern_list_for_each (node, &port_of(conn->other->base.port)->inbox) {
		struct item *item = tern_list_entry(node, struct item, node);

		if (item->event != PUT || item->conn != conn->other)
			continue;
		complete(item->op, -ECONNRESET);
		item->op = NULL;
	}
}

static void end(struct lo_conn *conn, int status)
{
	struct lo_conn *other = conn->other;

	if (conn->over)
		return;
	conn->over = true;
	conn->status = status;
	complete_all(conn);
	if (other)
		complete_all(other);
	conn->other = NULL;
	post(conn, CLOSED, 0);
	if (!other)
		return;
	other->other = NULL;
	end(other, other->up || conn->status == 0 ? -ECONNRESET : -ECONNREFUSED);
}

static struct lo_conn *conn_new(struct lo_port *port, const char *name)
{
	struct lo_conn *conn = calloc(1, sizeof(*conn));

	tern_assert(conn);
	conn->base.port = &port->base;
	conn->base.caps = TERN_CAP_PUT;
	conn->base.eager_bytes = 16u << 10;
	conn->base.chunk_bytes = 512u << 10;
	snprintf(conn->base.name, sizeof(conn->base.name), "loopback %.60s", name);
	return conn;
}

/* Frees a conn of which its handler was never informed, since its listener or its peer
 * ended before. */
static void forget(struct lo_conn *conn)
{
	if (conn->other) {
		conn->other->other = NULL;
		end(conn->other, -ECONNREFUSED);
	}
	free(conn);
}

static void accept_conn(struct lo_port *port, struct item *item)
{
	struct lo_conn *conn = item->conn;

	if (!conn->other) {
		forget(conn);
		return;
	}
	port->user_count++;
	conn->up = conn->other->up = true;
	post(conn->other, UP, 0);
	port->base.handler->accepted(
		port->base.handler_arg, &item->lsn->base, &conn->base);
}

/* Counts an event of `bytes` bytes as processed. If the sender waits for space and there
 * is enough now, it gets `writable`. */
static void take(struct lo_conn *conn, size_t bytes)
{
	conn->queued--;
	conn->queued_bytes -= bytes;
	if (!conn->other || !conn->other->blocked || conn->queued > QUEUE_MOST / 2 ||
		conn->queued_bytes > QUEUE_BYTES / 2)
		return;
	conn->other->blocked = false;
	post(conn->other, WRITABLE, 0);
}

static void hear(struct lo_port *port, struct item *item)
{
	struct lo_conn *conn = item->conn;
	int r;

	take(conn, item->bytes);
	if (conn->deaf)
		return;
	r = port->base.handler->message(
		port->base.handler_arg, &conn->base, item->data, item->bytes);
	if (r) {
		conn->deaf = true;
		end(conn, r);
	}
}

static void land(struct lo_port *port, struct item *item)
{
	struct lo_conn *conn = item->conn;
	struct tern_exposure *exposure;
	int r;

	if (item->op)
		complete(item->op, 0);
	take(conn, item->bytes);
	if (conn->deaf)
		return;
	r = tern_exposure_find(&port->exposures, conn->base.owner,
		(uint32_t)item->exposure, (uint32_t)(item->exposure >> 32), item->offset,
		item->bytes, &exposure);
	if (r == 0) {
		memcpy(exposure->base + item->offset, item->data, item->bytes);
	} else if (r == -EPROTO) {
		/* Any other error means that the receiver has revoked the exposure
		 * meanwhile, which is no violation of the protocol. */
		tern_log(port->base.env, TERN_LOG_WARN, "%s: a put that is not allowed",
			conn->base.name);
		conn->deaf = true;
		end(conn, -EPROTO);
	}
}

static void happen(struct lo_port *port, struct item *item)
{
	const struct tern_port_handler *handler = port->base.handler;
	struct lo_conn *conn = item->conn;

	switch (item->event) {
	case ACCEPTED:
		accept_conn(port, item);
		break;
	case UP:
		if (!conn->deaf)
			handler->up(port->base.handler_arg, &conn->base);
		break;
	case MESSAGE:
		hear(port, item);
		break;
	case PUT:
		land(port, item);
		break;
	case WRITABLE:
		if (!conn->deaf)
			handler->writable(port->base.handler_arg, &conn->base);
		break;
	case DONE:
		item->op->done(item->op, item->status);
		break;
	case CLOSED:
		handler->closed(port->base.handler_arg, &conn->base, conn->status);
		port->user_count--;
		free(conn);
		break;
	}
}

static int lo_poll(struct tern_port *base, int budget)
{
	struct lo_port *port = port_of(base);
	struct tern_list *node;
	int count = 0;
	LOCK();

	port->armed = false;
	while (count < budget && (node = tern_list_pop(&port->inbox))) {
		struct item *item = tern_list_entry(node, struct item, node);

		happen(port, item);
		free(item);
		count++;
	}
	return count;
}

static int lo_arm(struct tern_port *base)
{
	struct lo_port *port = port_of(base);
	uint64_t woken;
	LOCK();

	while (read(port->fd, &woken, sizeof(woken)) > 0)
		;
	port->armed = tern_list_empty(&port->inbox);
	return port->armed ? 0 : -EAGAIN;
}

static int lo_fd(struct tern_port *base)
{
	return port_of(base)->fd;
}

/* ---- coming and going ---- */

static bool name_is_valid(const char *name)
{
	return *name && strlen(name) <= NAME_MAX_BYTES;
}

static struct lo_lsn *find(const char *name)
{
	tern_list_for_each (node, &listeners) {
		struct lo_lsn *lsn = tern_list_entry(node, struct lo_lsn, node);

		if (strcmp(lsn->name, name) == 0)
			return lsn;
	}
	return NULL;
}

static int lo_listen(struct tern_port *base, const char *address, struct tern_lsn **out)
{
	struct lo_lsn *lsn;
	LOCK();

	if (!name_is_valid(address))
		return -EINVAL;
	if (find(address))
		return -EADDRINUSE;
	lsn = calloc(1, sizeof(*lsn));
	if (!lsn)
		return -ENOMEM;
	lsn->base.port = base;
	strcpy(lsn->name, address);
	tern_list_push(&listeners, &lsn->node);
	port_of(base)->user_count++;
	*out = &lsn->base;
	return 0;
}

static const char *lo_lsn_address(struct tern_lsn *base)
{
	return tern_container_of(base, struct lo_lsn, base)->name;
}

static void lo_lsn_close(struct tern_lsn *base)
{
	struct lo_lsn *lsn = tern_container_of(base, struct lo_lsn, base);
	struct lo_port *port = port_of(base->port);
	LOCK();

	tern_list_for_each_safe (node, &port->inbox) {
		struct item *item = tern_list_entry(node, struct item, node);

		if (item->lsn != lsn)
			continue;
		forget(item->conn);
		tern_list_remove(node);
		free(item);
	}
	tern_list_remove(&lsn->node);
	port->user_count--;
	free(lsn);
}

static int lo_connect(struct tern_port *base, const char *address, struct tern_conn **out)
{
	struct lo_port *port = port_of(base);
	struct lo_conn *conn;
	struct lo_lsn *lsn;
	LOCK();

	if (!name_is_valid(address))
		return -EINVAL;
	conn = conn_new(port, address);
	port->user_count++;
	*out = &conn->base;
	lsn = find(address);
	if (!lsn) {
		end(conn, -ECONNREFUSED);
		return 0;
	}
	conn->other = conn_new(port_of(lsn->base.port), address);
	conn->other->other = conn;
	post(conn->other, ACCEPTED, 0)->lsn = lsn;
	return 0;
}

static void lo_conn_close(struct tern_conn *base, bool flush)
{
	struct lo_conn *conn = conn_of(base);
	LOCK();

	(void)flush; /* nothing to flush: sent data is already in the peer's inbox */
	if (!conn->up && conn->other) {
		/* The other end is not up: its handler has never heard of its conn, and need not
		 * hear that it ends. */
		conn->other->other = NULL;
		conn->other = NULL;
	}
	if (conn->over && !conn->deaf && conn->up)
		conn->status = 0;
	conn->deaf = true;
	end(conn, conn->up ? 0 : -ECANCELED);
}

/* ---- bytes ---- */

/* Queues an event in the inbox of the peer. -EAGAIN: the peer has too much in it, and
 * `writable` follows; -ENOTCONN: there is no peer. */
static int offer(struct lo_conn *conn, enum event event, size_t bytes, struct item **out)
{
	struct lo_conn *other = conn->other;

	if (conn->over || !other)
		return -ENOTCONN;
	if (other->queued == QUEUE_MOST || other->queued_bytes >= QUEUE_BYTES) {
		conn->blocked = true;
		return -EAGAIN;
	}
	other->queued++;
	other->queued_bytes += bytes;
	*out = post(other, event, bytes);
	return 0;
}

static int lo_send(struct tern_conn *base, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	struct lo_conn *conn = conn_of(base);
	size_t bytes = head_bytes + payload_bytes;
	struct item *item;
	int r;
	LOCK();

	if (conn->other && bytes > conn->other->base.port->message_bytes) {
		end(conn->other, -EPROTO);
		return 0;
	}
	r = offer(conn, MESSAGE, bytes, &item);
	if (r)
		return r;
	memcpy(item->data, head, head_bytes);
	if (payload_bytes)
		memcpy(item->data + head_bytes, payload, payload_bytes);
	return 0;
}

static int lo_put(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct lo_conn *conn = conn_of(base);
	struct item *item;
	int r;
	LOCK();

	r = offer(conn, PUT, bytes, &item);
	if (r)
		return r;
	item->exposure = remote->word[0];
	item->offset = remote_offset;
	memcpy(item->data, tern_mem_at(mem, offset), bytes);
	op->conn = base;
	item->op = op;
	return 0;
}

static int lo_expose(struct tern_conn *base, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	LOCK();

	if (mem->kind != TERN_MEM_HOST)
		return -ENOTSUP;
	return tern_exposure_add(&port_of(base->port)->exposures, base->owner,
		tern_mem_at(mem, offset), bytes, access, out);
}

static int lo_withdraw(
	struct tern_port *base, struct tern_op *op, const struct tern_region *region)
{
	LOCK();

	(void)op;
	tern_exposure_withdraw(&port_of(base)->exposures, region);
	return 0;
}

/* ---- fabric and port ---- */

static int lo_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	(void)domain;
	(void)opts;
	(void)why;
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

static void lo_close(struct tern_fabric *fabric)
{
	free(fabric);
}

static int lo_port_new(struct tern_fabric *fabric, const struct tern_port_opts *opts,
	struct tern_port **out)
{
	struct lo_port *port = calloc(1, sizeof(*port));

	tern_assert(port && tern_exposures_init(&port->exposures) == 0);
	port->base = (struct tern_port){.ops = &tern_loopback_fabric_ops,
		.fabric = fabric,
		.env = opts->env,
		.handler = opts->handler,
		.handler_arg = opts->arg,
		.message_bytes = opts->message_bytes};
	tern_list_init(&port->inbox);
	port->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	*out = &port->base;
	return port->fd < 0 ? -errno : 0;
}

static void lo_port_free(struct tern_port *base)
{
	struct lo_port *port = port_of(base);

	tern_assert(port->user_count == 0 && tern_list_empty(&port->inbox));
	tern_exposures_fini(&port->exposures);
	close(port->fd);
	free(port);
}

/* Makes the "auto" scheme find this fabric: under auto://, its listener has the name
 * HOST:PORT. */
static int lo_auto_dial(const char *host_port, tern_auto_add *add, void *arg)
{
	return tern_addr_is_loopback(host_port) ? add(arg, host_port) : 0;
}

static int lo_auto_listen(const char *host_port, char *out, size_t size)
{
	return snprintf(out, size, "%s", host_port) < (int)size ? 0 : -EINVAL;
}

const struct tern_fabric_ops tern_loopback_fabric_ops = {
	.name = "loopback",
	.one_host = true,
	.auto_dial = lo_auto_dial,
	.auto_listen = lo_auto_listen,
	.open = lo_open,
	.close = lo_close,
	.port_new = lo_port_new,
	.port_free = lo_port_free,
	.listen = lo_listen,
	.lsn_address = lo_lsn_address,
	.lsn_close = lo_lsn_close,
	.connect = lo_connect,
	.conn_close = lo_conn_close,
	.send = lo_send,
	.put = lo_put,
	.expose = lo_expose,
	.withdraw = lo_withdraw,
	.poll = lo_poll,
	.arm = lo_arm,
	.fd = lo_fd,
};
