/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of the peer's windows, and the functions of tern/window.h that post requests on
 * them: they check the caller's arguments. access.c does the rest. */
#include "rendezvous/window.h"

#include <errno.h>

#include "rendezvous/rendezvous.h"
#include "transport/memory/mem.h"

/* ---- handles ---- */

/* True if the owner takes both descriptors for that of the same window. It has one grant
 * for each window and peer, which the first LEFT ends, so there must be one handle. */
static bool is_same(const struct tern_window_desc *a, const struct tern_window_desc *b)
{
	return a->incarnation == b->incarnation && a->id == b->id &&
	       a->capability[0] == b->capability[0] &&
	       a->capability[1] == b->capability[1] && a->bytes == b->bytes;
}

static struct tern_remote *find_remote(
	struct tern_peer *peer, const struct tern_window_desc *desc)
{
	tern_list_for_each (n, &peer->windows.remotes) {
		struct tern_remote *remote = tern_list_entry(n, struct tern_remote, all);

		if (remote->state != TERN_REMOTE_OVER && is_same(&remote->desc, desc))
			return remote;
	}
	return NULL;
}

static struct tern_remote *remote_new(
	struct tern_peer *peer, const struct tern_window_desc *desc)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_remote *remote = calloc(1, sizeof(*remote));

	if (!remote)
		return NULL;
	remote->peer = peer;
	remote->desc = *desc;
	do
		remote->id = ++w->last_handle;
	while (!remote->id || tern_map_find(&w->handles, remote->id));
	tern_list_init(&remote->waiting);
	tern_list_init(&remote->queue);
	tern_map_node_init(&remote->by_id);
	tern_map_add(&w->handles, &remote->by_id, remote->id);
	tern_list_push(&w->remotes, &remote->all);
	if (peer->state == TERN_PEER_STATE_DOWN) {
		remote->state = TERN_REMOTE_OVER;
		remote->status = peer->cause ? peer->cause : -ESHUTDOWN;
	} else {
		tern_list_push(&w->asking, &remote->queue);
	}
	return remote;
}

void tern_remote_free(struct tern_remote *remote)
{
	tern_list_remove(&remote->all);
	tern_list_remove(&remote->queue);
	tern_map_remove(&remote->peer->windows.handles, &remote->by_id);
	free(remote);
}

int tern_remote_open(struct tern_peer *peer, const struct tern_window_desc *desc,
	struct tern_remote **out)
{
	struct tern_remote *remote = find_remote(peer, desc);

	if (!remote)
		remote = remote_new(peer, desc);
	if (!remote)
		return -ENOMEM;
	/* A descriptor may claim more rights than the window gives: the owner says which
	 * ones there are. */
	remote->desc.access |= desc->access;
	if (remote->users++ == 0 && remote->state == TERN_REMOTE_OPEN)
		tern_list_remove(&remote->queue); /* LEFT was due, and is not any more */
	*out = remote;
	tern_peer_stir(peer);
	tern_windows_due(peer);
	tern_peer_pump(peer);
	return 0;
}

int tern_remote_close(struct tern_remote *remote)
{
	struct tern_peer *peer;

	if (!remote)
		return 0;
	peer = remote->peer;
	if (remote->access_count && remote->users == 1)
		return -EBUSY;
	if (--remote->users)
		return 0;
	if (remote->state == TERN_REMOTE_OPEN) {
		tern_list_push(&peer->windows.leaving, &remote->queue);
		tern_windows_due(peer);
		tern_peer_pump(peer);
	} else if (remote->state != TERN_REMOTE_ASKED && !remote->left_due) {
		tern_remote_free(remote);
	}
	return 0;
}

/* ---- posting ---- */

/* Checks one range of a put or get. */
static int check_piece(
	const struct tern_remote *remote, const struct tern_piece *piece, bool get)
{
	const struct tern_buf *local = &piece->local;
	uint64_t bytes = remote->desc.bytes;
	struct tern_stager *stager;

	if (piece->remote_offset > bytes || local->bytes > bytes - piece->remote_offset)
		return -ERANGE;
	if (local->bytes == 0)
		return 0;
	if (!local->mem || !tern_mem_holds(local->mem, local->offset, local->bytes))
		return -EINVAL;
	if (get && local->mem->read_only)
		return -EACCES;
	return tern_stage_open(remote->peer->rdv, local, &stager);
}

static int check_note(const struct tern_note *note)
{
	return note && (note->bytes > TERN_NOTE_MAX || (note->bytes && !note->data))
		       ? -EINVAL
		       : 0;
}

static int check(const struct tern_remote *remote, const struct tern_piece *pieces,
	size_t count, bool get, const struct tern_note *note)
{
	unsigned right = get ? TERN_WINDOW_READ : TERN_WINDOW_WRITE;
	int r = check_note(note);

	if (r == 0 && !(remote->desc.access & right))
		r = -EACCES;
	for (size_t i = 0; r == 0 && i < count; i++)
		r = check_piece(remote, &pieces[i], get);
	return r;
}

static void enlist(struct tern_wreq *x, struct tern_peer *peer)
{
	x->peer = peer;
	tern_list_push(&peer->windows.all, &x->all);
	tern_peer_stir(peer);
}

/* The parts that are under way at once lie in a table of the peer. */
static int make_parts(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;

	if (w->parts)
		return 0;
	w->parts = calloc(TERN_PARTS_MAX, sizeof(*w->parts));
	if (!w->parts)
		return -ENOMEM;
	for (uint32_t i = 0; i < TERN_PARTS_MAX; i++) {
		w->parts[i].next = i + 1;
		w->parts[i].generation = 1;
		w->parts[i].peer = peer;
	}
	return 0;
}

/* `one`: the request keeps the only range itself. */
static int post(struct tern_remote *remote, struct tern_req *req, bool get,
	const struct tern_piece *pieces, size_t count, bool one,
	const struct tern_note *note)
{
	struct tern_peer *peer = remote->peer;
	struct tern_wreq *x =
		tern_wreq_init(req, peer->rdv, get ? TERN_WREQ_GET : TERN_WREQ_PUT);

	x->remote = remote;
	x->pieces = one ? &x->one : pieces;
	x->count = count;
	if (one)
		x->one = *pieces;
	x->has_note = note;
	if (note)
		x->note = *note;
	for (size_t i = 0; i < count; i++) {
		const struct tern_buf *local = &pieces[i].local;

		req->bytes += local->bytes;
		x->moves |= local->bytes && local->mem->kind != TERN_MEM_HOST;
	}
	remote->access_count++;
	remote->moving++;
	enlist(x, peer);
	if (!get) {
		x->number = ++peer->windows.last_put;
		tern_list_push(&peer->windows.puts, &x->puts);
	}
	if (remote->state == TERN_REMOTE_OVER)
		tern_wreq_complete(x, remote->status);
	else if (remote->state == TERN_REMOTE_OPEN)
		tern_wreq_begin(x);
	else
		tern_list_push(&remote->waiting, &x->queue);
	tern_peer_pump(peer);
	return 0;
}

static int post_checked(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, bool get, const struct tern_piece *pieces, size_t count,
	bool one, const struct tern_note *note)
{
	int r = tern_req_check(req, req_bytes);

	if (r == 0)
		r = check(remote, pieces, count, get, note);
	if (r == 0)
		r = make_parts(remote->peer);
	return r < 0 ? r : post(remote, req, get, pieces, count, one, note);
}

int tern_put_sized(struct tern_remote *remote, struct tern_req *req, size_t req_bytes,
	const struct tern_buf *from, uint64_t remote_offset, const struct tern_note *note)
{
	const struct tern_piece piece = {*from, remote_offset};

	return post_checked(remote, req, req_bytes, false, &piece, 1, true, note);
}

int tern_get_sized(struct tern_remote *remote, struct tern_req *req, size_t req_bytes,
	const struct tern_buf *to, uint64_t remote_offset)
{
	const struct tern_piece piece = {*to, remote_offset};

	return post_checked(remote, req, req_bytes, true, &piece, 1, true, NULL);
}

int tern_put_list_sized(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, const struct tern_piece *pieces, size_t count,
	const struct tern_note *note)
{
	return post_checked(remote, req, req_bytes, false, pieces, count, false, note);
}

int tern_get_list_sized(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, const struct tern_piece *pieces, size_t count)
{
	return post_checked(remote, req, req_bytes, true, pieces, count, false, NULL);
}

int tern_notify_sized(struct tern_peer *peer, struct tern_req *req, size_t req_bytes,
	const struct tern_note *note)
{
	int r = tern_req_check(req, req_bytes);
	struct tern_wreq *x;

	if (r == 0)
		r = note ? check_note(note) : -EINVAL;
	if (r < 0)
		return r;
	x = tern_wreq_init(req, peer->rdv, TERN_WREQ_NOTIFY);
	x->note = *note;
	x->number = peer->windows.last_put;
	x->state = TERN_WREQ_SAYING;
	enlist(x, peer);
	if (peer->state == TERN_PEER_STATE_DOWN) {
		tern_wreq_complete(x, peer->cause ? peer->cause : -ESHUTDOWN);
		return 0;
	}
	tern_list_push(&peer->windows.saying, &x->queue);
	tern_windows_due(peer);
	tern_peer_pump(peer);
	return 0;
}

void tern_wreq_cancel(struct tern_wreq *x)
{
	struct tern_peer *peer = x->peer;

	switch ((enum tern_wreq_state)x->state) {
	case TERN_WREQ_OPENING:
	case TERN_WREQ_SAYING:
		if (x->kind != TERN_WREQ_CLOSE)
			tern_wreq_complete(x, -ECANCELED);
		break;
	case TERN_WREQ_MOVING:
		tern_wreq_stop(x, -ECANCELED);
		break;
	case TERN_WREQ_UNACKED: /* too late */
	case TERN_WREQ_ENDED:
		break;
	}
	if (peer)
		tern_peer_pump(peer);
}
