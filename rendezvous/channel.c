/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions for channels and requests. They check the caller's arguments, then
 * call send.c and recv.c. A request that fails after it was accepted ends through done(),
 * like any other. */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/window.h"
#include "transport/memory/mem.h"

int tern_channel_open_any(
	struct tern_peer *peer, uint32_t number, struct tern_channel **out)
{
	struct tern_channel *channel;

	tern_list_for_each (n, &peer->channels) {
		channel = tern_list_entry(n, struct tern_channel, node);
		if (channel->number == number) {
			*out = channel;
			return -EEXIST;
		}
	}
	channel = calloc(1, sizeof(*channel));
	if (!channel)
		return -ENOMEM;
	channel->peer = peer;
	channel->number = number;
	tern_list_push(&peer->channels, &channel->node);
	*out = channel;
	return 0;
}

int tern_channel_open(struct tern_peer *peer, uint32_t number, struct tern_channel **out)
{
	return number == TERN_CHANNEL_WINDOWS ? -EINVAL
					      : tern_channel_open_any(peer, number, out);
}

/* True if the buffer lies inside its memory. An empty buffer needs no memory. */
static bool holds(const struct tern_buf *buf)
{
	if (buf->bytes == 0)
		return true;
	return buf->mem && tern_mem_holds(buf->mem, buf->offset, buf->bytes);
}

void tern_req_post(struct tern_req *req)
{
	req->posted = TERN_REQ_POSTED;
	req->status = -EINPROGRESS;
	req->bytes = 0;
	req->data = NULL;
	req->peeked = false;
	req->buf = (struct tern_buf){0};
}

/* Common start of sends and receives. 1: the peer is DOWN, so the request has ended, and
 * done() is called soon; 0: the request continues. */
static int begin(struct tern_xfer *x, struct tern_req *req, uint64_t key, uint64_t step,
	const char *name)
{
	struct tern_peer *peer = x->peer;

	tern_req_post(req);
	x->node.triple = tern_match_triple(&peer->match, key, step, x->channel->number);
	if (peer->state == TERN_PEER_STATE_DOWN) {
		tern_xfer_complete(x, peer->cause ? peer->cause : -ESHUTDOWN);
		return 1;
	}
	tern_peer_stir(peer);
	if (name)
		tern_name_set(&x->name, &peer->name_key, name);
	return 0;
}

/* True if tern_release() has something to give back for this request. False until done()
 * was called: a request in state HELD may still wait for that call. */
static bool has_hold(const struct tern_req *req)
{
	const struct tern_xfer *x = (const void *)req->priv;

	return req->posted == TERN_REQ_POSTED && req->status == 0 &&
	       x->req_kind == TERN_REQ_XFER && (x->state == TERN_XFER_HELD || x->pool);
}

int tern_req_check(const struct tern_req *req, size_t bytes)
{
	if (bytes < offsetof(struct tern_req, priv) + sizeof(struct tern_xfer))
		return -EOVERFLOW;
	if (req->posted != TERN_REQ_POSTED)
		return 0;
	return req->status == -EINPROGRESS || has_hold(req) ? -EBUSY : 0;
}

static bool good_name(const char *name)
{
	return !name || (*name && strlen(name) <= TERN_NAME_MAX);
}

int tern_send_sized(struct tern_channel *channel, struct tern_req *req, size_t req_bytes,
	uint64_t key, uint64_t step, const struct tern_tensor *tensor, const char *name,
	unsigned flags)
{
	struct tern_xfer *x = tern_xfer_of(req);
	struct tern_stager *stager;
	uint64_t bytes;
	int r = tern_req_check(req, req_bytes);

	if (r)
		return r;
	r = tern_shape_bytes(&tensor->shape, &bytes);
	if (r < 0 || bytes != tensor->buf.bytes || !holds(&tensor->buf) ||
		!good_name(name) || (flags & ~(unsigned)TERN_URGENT))
		return -EINVAL;
	r = tern_stage_open(channel->peer->rdv, &tensor->buf, &stager);
	if (r < 0)
		return r;
	tern_xfer_init(x, channel, true, flags);
	x->stage.stager = stager;
	x->buf = tensor->buf;
	req->shape = tensor->shape;
	if (begin(x, req, key, step, name))
		return 0;
	req->bytes = bytes;
	tern_send_begin(x);
	return 0;
}

int tern_recv_check(const struct tern_channel *channel, const struct tern_buf *room,
	const char *name, unsigned flags, struct tern_stager **stager)
{
	bool own_room = !(flags & (TERN_RECV_ALLOC | TERN_RECV_PEEK));

	*stager = NULL;
	if ((own_room && (!room || !holds(room))) || !good_name(name) ||
		(flags & ~(unsigned)(TERN_RECV_ALLOC | TERN_RECV_PEEK)) ||
		((flags & TERN_RECV_ALLOC) && !channel->peer->opts.pool))
		return -EINVAL;
	if (own_room && room->bytes && room->mem->read_only) {
		tern_log(channel->peer->rdv->ctx->env, TERN_LOG_ERROR,
			"%s: refused: a receive into memory that was wrapped read-only",
			channel->peer->name);
		return -EACCES;
	}
	return own_room ? tern_stage_open(channel->peer->rdv, room, stager) : 0;
}

void tern_recv_post(struct tern_xfer *x, uint64_t key, uint64_t step, const char *name)
{
	struct tern_req *req = tern_req_of(x);

	memset(&req->shape, 0, sizeof(req->shape));
	if (begin(x, req, key, step, name) == 0)
		tern_recv_begin(x);
}

int tern_recv_sized(struct tern_channel *channel, struct tern_req *req, size_t req_bytes,
	uint64_t key, uint64_t step, const struct tern_buf *room, const char *name,
	unsigned flags)
{
	struct tern_xfer *x = tern_xfer_of(req);
	struct tern_stager *stager;
	int r = tern_req_check(req, req_bytes);

	if (r == 0)
		r = tern_recv_check(channel, room, name, flags, &stager);
	if (r)
		return r;
	tern_xfer_init(x, channel, false, flags);
	tern_xfer_set_room(x, room, stager);
	tern_recv_post(x, key, step, name);
	return 0;
}

void tern_cancel(struct tern_req *req)
{
	struct tern_xfer *x = tern_xfer_of(req);

	if (req->status != -EINPROGRESS)
		return;
	if (x->req_kind == TERN_REQ_WINDOW)
		tern_wreq_cancel(tern_wreq_of(req));
	else if (x->req_kind == TERN_REQ_ANY)
		tern_any_cancel(x);
	else if (x->is_send)
		tern_send_cancel(x);
	else
		tern_recv_cancel(x);
}

/* Removes an ended receive from its list `held`, and if it reads the sender's memory in
 * place, releases that memory. Also called for requests that outlive their context. */
void tern_xfer_release(struct tern_xfer *x)
{
	struct tern_req *req = tern_req_of(x);
	struct tern_record *record = tern_xfer_part(x);

	tern_list_remove(&x->all);
	if (x->state == TERN_XFER_HELD) {
		tern_assert(req->status == 0);
		tern_xfer_enter(x, TERN_XFER_ENDED);
		x->port->ops->unpeek(x->port, req->data);
		if (record)
			tern_record_answer(record, TERN_MSG_ATS, 0);
		req->data = NULL;
	}
}

void tern_release(struct tern_req *req)
{
	struct tern_xfer *x = tern_xfer_of(req);

	if (!has_hold(req))
		return;
	tern_xfer_release(x);
	if (x->pool) {
		tern_pool_put(x->pool, &x->buf);
		x->pool = NULL;
		if (x->rdv)
			tern_rdv_feed(x->rdv);
	}
	req->data = NULL;
	req->buf = (struct tern_buf){0};
}
