/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bound routes: a key whose tensor and room stay where they are. The room is exposed
 * once, at the first step, and not withdrawn between steps; the steps count themselves.
 * Everything else is an ordinary transfer, receiver first: its POST is the go-ahead of
 * each step, which a receiver must be able to hold back as long as it still reads the
 * last one.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

static struct tern_route *new_route(
	struct tern_channel *channel, uint64_t key, bool is_send)
{
	struct tern_route *route = calloc(1, sizeof(*route));

	if (!route)
		return NULL;
	route->channel = channel;
	route->key = key;
	route->is_send = is_send;
	tern_list_push(&channel->peer->routes, &route->node);
	return route;
}

int tern_route_bind_send(struct tern_channel *channel, uint64_t key,
	const struct tern_tensor *tensor, struct tern_route **out)
{
	struct tern_route *route;
	uint64_t bytes;
	int r = tern_shape_bytes(&tensor->shape, &bytes);

	if (r < 0 || bytes != tensor->buf.bytes)
		return -EINVAL;
	route = new_route(channel, key, true);
	if (!route)
		return -ENOMEM;
	route->tensor = *tensor;
	*out = route;
	return 0;
}

int tern_route_bind_recv(struct tern_channel *channel, uint64_t key,
	const struct tern_buf *room, struct tern_route **out)
{
	struct tern_route *route = new_route(channel, key, false);

	if (!route)
		return -ENOMEM;
	route->room = *room;
	*out = route;
	return 0;
}

int tern_route_expose(struct tern_route *route)
{
	struct tern_conn *conn = tern_peer_conn(route->channel->peer);
	int r;

	if (route->exposed)
		return 0;
	r = conn->port->ops->expose(conn, route->room.mem, route->room.offset,
		route->room.bytes, TERN_ACCESS_WRITE, &route->region);
	route->exposed = r == 0;
	return r;
}

static void nothing_left(struct tern_op *op, int status)
{
	(void)op;
	(void)status;
}

/* Only when idle or without a link: then nothing is landing. */
void tern_route_withdraw(struct tern_route *route)
{
	struct tern_port *port = route->channel->peer->port;

	if (!route->exposed)
		return;
	route->exposed = false;
	route->op.done = nothing_left;
	port->ops->withdraw(port, &route->op, &route->region);
}

int tern_route_start_sized(
	struct tern_route *route, struct tern_req *req, size_t req_bytes)
{
	int r;

	if (route->busy)
		return -EBUSY;
	route->busy = true;
	r = tern_channel_start(route, req, req_bytes);
	if (r < 0)
		route->busy = false;
	else
		route->next_step++;
	return r;
}

int tern_route_free(struct tern_route *route)
{
	if (route->busy)
		return -EBUSY;
	tern_route_withdraw(route);
	tern_list_remove(&route->node);
	free(route);
	return 0;
}
