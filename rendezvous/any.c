/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern_recv_any(): a receive from any of several peers.
 *
 * If tensors of its triple (channel, key, step) have arrived, it is a receive on the
 * channel of the one that arrived first. Otherwise it posts a proxy on each channel: a
 * receive that waits in the peer's matching table like any other. The first proxy for
 * which an EAGER or RTS arrives is replaced by the request, and the others are cancelled.
 *
 *     tern_recv_any --+-- proxy on channel 0                    cancelled
 *                     +-- proxy on channel 1  <-- EAGER or RTS  the request goes on here
 *                     +-- proxy on channel 2                    cancelled
 *
 * So a proxy has its place among the receives of its peer; it asks a starved peer by a
 * WANT, ends with its peer, and survives lost links. No message of the protocol knows of
 * it. Two things differ. It has no room, and so is never advertised: a peer that has got a
 * POST writes into the room without asking, and only one of the peers may write there. And
 * when it has sent a WANT and its request has ended, it stays until the WANT is answered,
 * as a cancelled receive does; the answer goes to the next receive of the triple.
 *
 * Invariant: each proxy of a request that waits is in the list `proxies` of this request,
 * and the request ends with the last one. A proxy is freed by its own done(), so a request
 * that has ended leaves nothing behind except proxies with a WANT, of which a peer has at
 * most TERN_WANTS_MAX.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

struct proxy {
	struct tern_req req;
	struct tern_list node;   /* in `proxies` of the owner */
	struct tern_xfer *owner; /* NULL: its request does not wait any more */
};

static struct proxy *proxy_of(struct tern_xfer *x)
{
	return tern_container_of(tern_req_of(x), struct proxy, req);
}

/* Cancels the proxies of a request that does not wait any more. */
static void let_go(struct tern_xfer *own)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&own->proxies))) {
		struct proxy *proxy = tern_list_entry(n, struct proxy, node);

		proxy->owner = NULL;
		tern_recv_cancel(tern_xfer_of(&proxy->req));
	}
}

static void end_unmatched(struct tern_xfer *own, int status)
{
	tern_xfer_enter(own, TERN_XFER_ENDED);
	let_go(own);
	tern_xfer_report(own, status);
}

/* Called when the request has lost a peer. The status of a peer that has failed is better
 * to report than that of one that was closed in an orderly way. */
static void go_on_without(struct tern_xfer *own, int source, int status)
{
	bool failed = status != -ESHUTDOWN;

	if (own->source < 0 || (failed && own->result == -ESHUTDOWN)) {
		own->source = source;
		own->result = status;
	}
	if (tern_list_empty(&own->proxies) || (failed && own->flags & TERN_ANY_NEEDS_ALL))
		end_unmatched(own, own->result);
}

/* If the request still waits, the proxy has ended since its peer is down, or will send
 * nothing any more. */
static void proxy_done(struct tern_req *req)
{
	struct proxy *proxy = tern_container_of(req, struct proxy, req);

	if (proxy->owner) {
		tern_list_remove(&proxy->node);
		go_on_without(proxy->owner, tern_xfer_of(req)->source, req->status);
	}
	free(proxy);
}

struct tern_xfer *tern_any_take(struct tern_xfer *x)
{
	struct proxy *proxy = proxy_of(x);
	struct tern_xfer *own = TERN_TAKE(proxy->owner);

	if (own)
		tern_list_remove(&proxy->node);
	/* Before let_go(), which may send messages: no WANT may ask for x any more. */
	tern_xfer_end(x, -ECANCELED);
	if (own) {
		let_go(own);
		own->source = x->source;
		own->result = 0;
		own->name = x->name;
		own->node.triple = x->node.triple;
		tern_xfer_join(own, x->channel);
	}
	return own;
}

void tern_any_cancel(struct tern_xfer *x)
{
	if (x->state == TERN_XFER_ENDED)
		return;
	x->source = -1;
	end_unmatched(x, -ECANCELED);
}

/* ---- posting ---- */

static int check(struct tern_channel *const *channels, size_t count,
	const struct tern_buf *room, const char *name, unsigned flags,
	struct tern_stager **stager)
{
	int r = count > 0 && count <= INT_MAX ? 0 : -EINVAL;

	for (size_t i = 0; r == 0 && i < count; i++) {
		if (channels[i]->peer->rdv != channels[0]->peer->rdv)
			return -EINVAL;
		r = tern_recv_check(channels[i], room, name,
			flags & ~(unsigned)TERN_ANY_NEEDS_ALL, stager);
	}
	return r;
}

/* Returns the channel on which the tensor of (key, step) that no receive has taken has
 * arrived first. -1: there is none. */
static int first_arrival(
	struct tern_channel *const *channels, size_t count, uint64_t key, uint64_t step)
{
	uint64_t number = UINT64_MAX;
	int first = -1;

	for (size_t i = 0; i < count; i++) {
		const struct tern_match *match = &channels[i]->peer->match;
		const struct tern_triple triple =
			tern_match_triple(match, key, step, channels[i]->number);
		struct tern_match_node *n =
			tern_match_find(match, &triple, TERN_MATCH_ARRIVAL);
		const struct tern_record *record =
			n ? tern_container_of(n, struct tern_record, node) : NULL;

		if (record && record->number < number &&
			channels[i]->peer->state != TERN_PEER_STATE_DOWN) {
			number = record->number;
			first = (int)i;
		}
	}
	return first;
}

/* Allocates this many proxies. -ENOMEM: `out` is empty. */
static int make_proxies(struct tern_list *out, size_t count)
{
	struct tern_list *n;

	tern_list_init(out);
	while (count--) {
		struct proxy *proxy = calloc(1, sizeof(*proxy));

		if (!proxy) {
			while ((n = tern_list_pop(out)))
				free(tern_list_entry(n, struct proxy, node));
			return -ENOMEM;
		}
		proxy->req.done = proxy_done;
		tern_list_push(out, &proxy->node);
	}
	return 0;
}

static void post_proxies(struct tern_xfer *own, struct tern_channel *const *channels,
	uint64_t key, uint64_t step, const char *name)
{
	int source = 0;

	tern_list_for_each (n, &own->proxies) {
		struct proxy *proxy = tern_list_entry(n, struct proxy, node);
		struct tern_xfer *x = tern_xfer_of(&proxy->req);

		proxy->owner = own;
		tern_xfer_init(x, channels[source], false, 0);
		x->proxy = true;
		x->source = source++;
		tern_recv_post(x, key, step, name);
	}
}

int tern_recv_any_sized(struct tern_channel *const *channels, size_t count,
	struct tern_req *req, size_t req_bytes, uint64_t key, uint64_t step,
	const struct tern_buf *room, const char *name, unsigned flags)
{
	struct tern_xfer *x = tern_xfer_of(req);
	struct tern_list proxies;
	struct tern_stager *stager;
	int first, r = tern_req_check(req, req_bytes);

	if (r == 0)
		r = check(channels, count, room, name, flags, &stager);
	if (r)
		return r;
	first = first_arrival(channels, count, key, step);
	if (first >= 0) {
		tern_xfer_init(x, channels[first], false, flags);
		x->source = first;
		tern_xfer_set_room(x, room, stager);
		tern_recv_post(x, key, step, name);
		return 0;
	}
	r = make_proxies(&proxies, count);
	if (r < 0)
		return r;
	tern_req_post(req);
	memset(&req->shape, 0, sizeof(req->shape));
	tern_xfer_init_apart(x, channels[0]->peer->rdv, flags);
	x->source = -1;
	tern_xfer_set_room(x, room, stager);
	tern_list_splice(&x->proxies, &proxies);
	post_proxies(x, channels, key, step, name);
	return 0;
}

int tern_recv_source(const struct tern_req *req)
{
	const struct tern_xfer *x = (const void *)req->priv;

	if (req->posted != TERN_REQ_POSTED || x->req_kind == TERN_REQ_WINDOW)
		return -1;
	return x->source;
}
