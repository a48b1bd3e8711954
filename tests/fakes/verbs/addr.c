/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and ports of the simulated network: which device has an address, which id
 * listens at it, and address resolution. Invariant: two ids that own the same port have
 * different addresses, none of them a wildcard, unless both allow sharing (reuse of
 * addresses) and at most one of them listens.
 */
#include "tests/fakes/verbs/verbs_world.h"

#include <arpa/inet.h>

#define PORT_FIRST 40000u
#define PORT_COUNT 20000u

enum kind { ANY, LOCAL, UNRESOLVED, NO_ROUTE, SILENT, FOREIGN };

static enum kind kind_of_v4(uint32_t ip)
{
	if (ip == INADDR_ANY)
		return ANY;
	if (ip == INADDR_LOOPBACK || (ip >> 8 == 0x0a0700 && (ip & 255) != 0))
		return LOCAL;
	switch (ip >> 8) {
	case 0xc00002: /* 192.0.2.0/24: does not resolve */
		return UNRESOLVED;
	case 0xc63364: /* 198.51.100.0/24: has no route */
		return NO_ROUTE;
	case 0xcb0071: /* 203.0.113.0/24: does not answer */
		return SILENT;
	}
	return FOREIGN;
}

static const struct sockaddr_in *v4(const struct sockaddr *addr)
{
	return (const void *)addr;
}

static const struct sockaddr_in6 *v6(const struct sockaddr *addr)
{
	return (const void *)addr;
}

static enum kind kind_of(const struct sockaddr *addr)
{
	if (addr->sa_family == AF_INET)
		return kind_of_v4(ntohl(v4(addr)->sin_addr.s_addr));
	if (memcmp(&v6(addr)->sin6_addr, &in6addr_any, 16) == 0)
		return ANY;
	return memcmp(&v6(addr)->sin6_addr, &in6addr_loopback, 16) == 0 ? LOCAL : FOREIGN;
}

static bool has_family(const struct sockaddr *addr)
{
	return addr->sa_family == AF_INET || addr->sa_family == AF_INET6;
}

static in_port_t *port_of(const struct sockaddr *addr)
{
	struct sockaddr *a = (struct sockaddr *)(uintptr_t)addr;

	return a->sa_family == AF_INET ? &((struct sockaddr_in *)(void *)a)->sin_port
				       : &((struct sockaddr_in6 *)(void *)a)->sin6_port;
}

static void addr_copy(struct sockaddr_storage *to, const struct sockaddr *from)
{
	memset(to, 0, sizeof(*to));
	memcpy(to, from,
		from->sa_family == AF_INET ? sizeof(struct sockaddr_in)
					   : sizeof(struct sockaddr_in6));
}

/* The device that has the address; NULL: no device has it, or the device was removed. */
struct fake_device *fake_addr_device(const struct sockaddr *addr)
{
	unsigned index = 0;

	if (kind_of(addr) != LOCAL || fake.device_count == 0)
		return NULL;
	if (addr->sa_family == AF_INET &&
		ntohl(v4(addr)->sin_addr.s_addr) != INADDR_LOOPBACK)
		index = (ntohl(v4(addr)->sin_addr.s_addr) & 255) - 1;
	struct fake_device *device = fake.devices[index % fake.device_count];
	return device->removed ? NULL : device;
}

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	return a->sa_family == AF_INET
		       ? v4(a)->sin_addr.s_addr == v4(b)->sin_addr.s_addr
		       : memcmp(&v6(a)->sin6_addr, &v6(b)->sin6_addr, 16) == 0;
}

static bool overlap(const struct sockaddr *a, const struct sockaddr *b)
{
	return *port_of(a) == *port_of(b) &&
	       (kind_of(a) == ANY || kind_of(b) == ANY || same_host(a, b));
}

struct fake_id *fake_addr_listener(const struct sockaddr *addr)
{
	tern_list_for_each (n, &fake.ids) {
		struct fake_id *id = tern_list_entry(n, struct fake_id, node);

		if (id->state == FAKE_ID_LISTEN &&
			overlap(&id->base.route.addr.src_addr, addr))
			return id;
	}
	return NULL;
}

/* True if another id owns the port of `addr`, at an address that overlaps with `addr`,
 * and does not share it with `id`. `listening`: `id` is about to listen. */
static bool in_use(const struct fake_id *id, const struct sockaddr *addr, bool listening)
{
	tern_list_for_each (n, &fake.ids) {
		const struct fake_id *other = tern_list_entry(n, struct fake_id, node);
		bool shared = id->reuse_addr && other->reuse_addr &&
			      !(listening && other->state == FAKE_ID_LISTEN);

		if (other != id && other->owns_port && !shared &&
			overlap(&other->base.route.addr.src_addr, addr))
			return true;
	}
	return false;
}

static int take_port(struct fake_id *id)
{
	struct sockaddr *addr = &id->base.route.addr.src_addr;

	if (*port_of(addr) != 0)
		return in_use(id, addr, false) ? -EADDRINUSE : 0;
	for (unsigned i = 0; i < PORT_COUNT; i++) {
		*port_of(addr) =
			htons((uint16_t)(PORT_FIRST + fake.next_port++ % PORT_COUNT));
		if (!in_use(id, addr, false))
			return 0;
	}
	return -EADDRNOTAVAIL;
}

static int bind_to(struct fake_id *id, const struct sockaddr *addr)
{
	if (!has_family(addr))
		return -EAFNOSUPPORT;
	if (kind_of(addr) != ANY && !fake_addr_device(addr))
		return -EADDRNOTAVAIL;
	addr_copy(&id->base.route.addr.src_storage, addr);
	int r = take_port(id);
	if (r) {
		memset(&id->base.route.addr.src_storage, 0,
			sizeof(id->base.route.addr.src_storage));
		return r;
	}
	if (kind_of(addr) == LOCAL) {
		id->base.verbs = &fake_addr_device(addr)->base;
		id->base.port_num = 1;
	}
	id->owns_port = true;
	id->state = FAKE_ID_BOUND;
	return 0;
}

static int bind_any(struct fake_id *id, sa_family_t family)
{
	struct sockaddr_storage any = {.ss_family = family};

	return bind_to(id, (const struct sockaddr *)(const void *)&any);
}

int fake_bind_addr(struct rdma_cm_id *base, struct sockaddr *addr)
{
	FAKE_ENTER("bind_addr");
	return FAKE_ID(base)->state == FAKE_ID_IDLE ? bind_to(FAKE_ID(base), addr)
						    : -EINVAL;
}

int fake_listen(struct rdma_cm_id *base, int backlog)
{
	struct fake_id *id = FAKE_ID(base);
	int r = 0;

	FAKE_ENTER("listen");
	(void)backlog;
	if (id->state == FAKE_ID_IDLE)
		r = bind_any(id, AF_INET);
	if (r)
		return r;
	if (id->state != FAKE_ID_BOUND)
		return -EINVAL;
	if (in_use(id, &base->route.addr.src_addr, true))
		return -EADDRINUSE;
	id->state = FAKE_ID_LISTEN;
	id->passive = true;
	return 0;
}

/* Chooses the source address of `id`: the address to which it is bound. If that is a
 * wildcard: the destination itself if a device here has it, as in the kernel; otherwise
 * 10.7.0.1. -ENODEV: no device has the source address, or that device was removed. */
static int choose_source(struct fake_id *id, const struct sockaddr *to)
{
	struct sockaddr *from = &id->base.route.addr.src_addr;
	in_port_t port = *port_of(from);
	struct sockaddr_in first = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a070001)};

	if (kind_of(from) == ANY) {
		addr_copy(&id->resolved_from,
			kind_of(to) == LOCAL ? to : (struct sockaddr *)(void *)&first);
		*port_of((struct sockaddr *)(void *)&id->resolved_from) = port;
	} else {
		addr_copy(&id->resolved_from, from);
	}
	return fake_addr_device((struct sockaddr *)(void *)&id->resolved_from) ? 0
									       : -ENODEV;
}

int fake_resolve_addr(struct rdma_cm_id *base, struct sockaddr *from, struct sockaddr *to,
	int timeout_ms)
{
	struct fake_id *id = FAKE_ID(base);
	int r = 0;

	FAKE_ENTER("resolve_addr");
	(void)timeout_ms;
	if (!has_family(to) || (from && from->sa_family != to->sa_family))
		return -EINVAL;
	if (kind_of(to) == NO_ROUTE)
		return -ENETUNREACH;
	if (id->state == FAKE_ID_IDLE)
		r = from ? bind_to(id, from) : bind_any(id, to->sa_family);
	if (r)
		return r;
	if (id->state != FAKE_ID_BOUND)
		return -EINVAL;
	addr_copy(&base->route.addr.dst_storage, to);
	if (kind_of(to) == ANY) { /* a wildcard means this machine */
		struct sockaddr_in loop = {.sin_family = AF_INET,
			.sin_port = *port_of(to),
			.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

		addr_copy(
			&base->route.addr.dst_storage, (struct sockaddr *)(void *)&loop);
	}
	to = &base->route.addr.dst_addr;
	if (kind_of(to) == UNRESOLVED || kind_of(to) == FOREIGN) {
		fake_id_tell(id, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
		return 0;
	}
	r = choose_source(id, to);
	if (r)
		return r;
	id->state = FAKE_ID_ADDR_QUERY;
	fake_id_tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	return 0;
}

int fake_resolve_route(struct rdma_cm_id *base, int timeout_ms)
{
	struct fake_id *id = FAKE_ID(base);

	FAKE_ENTER("resolve_route");
	(void)timeout_ms;
	if (id->state != FAKE_ID_ADDR_RESOLVED)
		return -EINVAL;
	id->state = FAKE_ID_ROUTE_QUERY;
	fake_id_tell(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return 0;
}

/* Sets the id's addresses and device, when the user fetches the event: librdmacm sets
 * them then, not earlier. */
void fake_addr_fetched(struct fake_id *id, enum rdma_cm_event_type type)
{
	if (type == RDMA_CM_EVENT_ADDR_RESOLVED && id->state == FAKE_ID_ADDR_QUERY) {
		struct sockaddr *from = (struct sockaddr *)(void *)&id->resolved_from;

		addr_copy(&id->base.route.addr.src_storage, from);
		if (fake_addr_device(from))
			id->base.verbs = &fake_addr_device(from)->base;
		id->base.port_num = 1;
		id->state = FAKE_ID_ADDR_RESOLVED;
	} else if (type == RDMA_CM_EVENT_ROUTE_RESOLVED &&
		   id->state == FAKE_ID_ROUTE_QUERY) {
		id->state = FAKE_ID_ROUTE_RESOLVED;
	}
}

static int set_id_option(struct fake_id *id, int name, const void *value, size_t bytes)
{
	int on = 0;

	switch (name) {
	case RDMA_OPTION_ID_TOS:
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		return bytes == sizeof(uint8_t) ? 0 : -EINVAL;
	case RDMA_OPTION_ID_REUSEADDR:
	case RDMA_OPTION_ID_AFONLY:
		if (bytes != sizeof(on) || id->state != FAKE_ID_IDLE)
			return -EINVAL;
		memcpy(&on, value, sizeof(on));
		if (name == RDMA_OPTION_ID_REUSEADDR)
			id->reuse_addr = on != 0;
		return 0;
	}
	return -ENOSYS;
}

int fake_set_option(
	struct rdma_cm_id *base, int level, int name, void *value, size_t bytes)
{
	FAKE_ENTER("set_option");
	return level == RDMA_OPTION_ID ? set_id_option(FAKE_ID(base), name, value, bytes)
				       : -ENOSYS;
}
