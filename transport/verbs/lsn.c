/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners of the verbs fabric. librdmacm ends a listener that is bound to a device's
 * address when the device is removed. When the device returns (its driver was loaded
 * again, or its firmware restarted), the listener is opened again, so that peers can
 * reconnect to the same address. A listener that is bound to every address of the machine
 * keeps working, and gets no event.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "transport/verbs/verbs.h"

#define BACKLOG  512
#define AGAIN_NS (TERN_NS_PER_S / 2)

/* Listens at one address. On failure, lsn->id is NULL. */
static int listen_at(struct verbs_lsn *lsn, const struct tern_addr *addr)
{
	struct verbs_port *port = verbs_port_of(lsn->base.port);
	const struct tern_verbs_api *api = verbs_api_of(port);
	struct sockaddr_storage sa = addr->sa;
	int r = api->create_id(port->channel, &lsn->id, lsn);

	if (r) {
		lsn->id = NULL;
		return r;
	}
	r = api->bind_addr(lsn->id, (struct sockaddr *)&sa);
	if (r == 0)
		r = api->listen(lsn->id, BACKLOG);
	if (r)
		api->destroy_id(TERN_TAKE(lsn->id));
	return r;
}

static int listen_at_any(struct verbs_lsn *lsn, const struct tern_addrs *addrs)
{
	int r = -EADDRNOTAVAIL;

	for (unsigned i = 0; i < addrs->count; i++) {
		r = listen_at(lsn, &addrs->addr[i]);
		if (r != -EADDRNOTAVAIL && r != -ENODEV)
			return r;
	}
	/* The addresses belong to this machine, but to none of its RDMA devices. */
	return -EADDRNOTAVAIL;
}

static bool is_any(const struct tern_addr *addr)
{
	if (addr->sa.ss_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(
			&((const struct sockaddr_in6 *)(const void *)&addr->sa)
				 ->sin6_addr);
	return ((const struct sockaddr_in *)(const void *)&addr->sa)->sin_addr.s_addr ==
	       htonl(INADDR_ANY);
}

static in_port_t port_of(const struct tern_addr *addr)
{
	return addr->sa.ss_family == AF_INET6
		       ? ((const struct sockaddr_in6 *)(const void *)&addr->sa)->sin6_port
		       : ((const struct sockaddr_in *)(const void *)&addr->sa)->sin_port;
}

static void set_port(struct tern_addr *addr, in_port_t port)
{
	if (addr->sa.ss_family == AF_INET6)
		((struct sockaddr_in6 *)(void *)&addr->sa)->sin6_port = port;
	else
		((struct sockaddr_in *)(void *)&addr->sa)->sin_port = port;
}

/* Sets lsn->address to the address that peers can connect to. If the listener is bound to
 * every address of the machine, that is the address of one device. */
static void name_lsn(struct verbs_lsn *lsn)
{
	struct tern_addr any = verbs_port_fabric(verbs_port_of(lsn->base.port))->own;
	struct tern_addr own = {.len = sizeof(struct sockaddr_in)};
	in_port_t port;

	if (lsn->id->route.addr.src_addr.sa_family == AF_INET6)
		own.len = sizeof(struct sockaddr_in6);
	memcpy(&own.sa, &lsn->id->route.addr.src_storage, own.len);
	lsn->bound = own;
	port = port_of(&own);
	if (is_any(&own) && any.len) {
		own = any;
		set_port(&own, port);
	}
	tern_addr_print(&own, lsn->address, sizeof(lsn->address));
}

/* If the user chose a device, replaces "every address of this machine" by the device's
 * address. */
static void narrow(struct tern_addrs *addrs, const struct verbs_choice *choice)
{
	in_port_t port = port_of(&addrs->addr[0]);

	if (!choice->own.len || !is_any(&addrs->addr[0]))
		return;
	addrs->addr[0] = choice->own;
	set_port(&addrs->addr[0], port);
	addrs->count = 1;
}

int verbs_listen(struct tern_port *base, const char *address, struct tern_lsn **out)
{
	struct verbs_port *port = verbs_port_of(base);
	struct verbs_choice choice;
	struct tern_addrs addrs;
	struct verbs_lsn *lsn;
	int r = verbs_choose(port, address, &choice);

	if (!r)
		r = tern_addr_resolve(choice.address, true, &addrs);
	if (r)
		return r;
	narrow(&addrs, &choice);
	lsn = calloc(1, sizeof(*lsn));
	if (!lsn)
		return -ENOMEM;
	lsn->base.port = base;
	r = listen_at_any(lsn, &addrs);
	if (r == 0 && !verbs_is_choice(port, &choice, lsn->id->verbs)) {
		verbs_api_of(port)->destroy_id(lsn->id);
		/* The address belongs to another device than the chosen one. */
		r = -EADDRNOTAVAIL;
	}
	if (r) {
		free(lsn);
		return r;
	}
	name_lsn(lsn);
	tern_list_push(&port->lsns, &lsn->node);
	*out = &lsn->base;
	return 0;
}

const char *verbs_lsn_address(struct tern_lsn *base)
{
	return tern_container_of(base, struct verbs_lsn, base)->address;
}

void verbs_lsn_close(struct tern_lsn *base)
{
	struct verbs_lsn *lsn = tern_container_of(base, struct verbs_lsn, base);
	struct verbs_port *port = verbs_port_of(base->port);

	tern_list_for_each (node, &port->conns) {
		struct verbs_conn *conn = tern_list_entry(node, struct verbs_conn, node);

		if (conn->lsn != lsn)
			continue;
		conn->lsn = NULL;
		if (conn->state == VERBS_ACCEPTING)
			verbs_conn_end(conn, -ECANCELED);
	}
	tern_list_remove(&lsn->node);
	if (lsn->id)
		verbs_api_of(port)->destroy_id(lsn->id);
	free(lsn);
}

/* ---- devices go and return ---- */

struct verbs_lsn *verbs_lsn_find(struct verbs_port *port, const struct rdma_cm_id *id)
{
	tern_list_for_each (node, &port->lsns) {
		struct verbs_lsn *lsn = tern_list_entry(node, struct verbs_lsn, node);

		if (lsn->id == id)
			return lsn;
	}
	return NULL;
}

static void try_later(struct verbs_lsn *lsn)
{
	struct verbs_port *port = verbs_port_of(lsn->base.port);

	lsn->again_ns = tern_now_ns(port->base.env) + AGAIN_NS;
	verbs_port_deadline(port, lsn->again_ns);
}

void verbs_lsn_event(struct verbs_lsn *lsn, const struct rdma_cm_event *event)
{
	struct verbs_port *port = verbs_port_of(lsn->base.port);

	if (event->event != RDMA_CM_EVENT_DEVICE_REMOVAL)
		return;
	tern_log(port->base.env, TERN_LOG_WARN,
		"verbs: nobody can connect at %s until its device is back: the device "
		"was "
		"removed",
		lsn->address);
	verbs_api_of(port)->destroy_id(TERN_TAKE(lsn->id));
	try_later(lsn);
}

void verbs_lsn_expire(struct verbs_port *port, uint64_t now_ns)
{
	tern_list_for_each (node, &port->lsns) {
		struct verbs_lsn *lsn = tern_list_entry(node, struct verbs_lsn, node);

		if (lsn->id)
			continue;
		if (lsn->again_ns > now_ns)
			verbs_port_deadline(port, lsn->again_ns);
		else if (listen_at(lsn, &lsn->bound) == 0)
			tern_log(port->base.env, TERN_LOG_WARN,
				"verbs: listening at %s again: its device is back",
				lsn->address);
		else
			try_later(lsn);
	}
}
