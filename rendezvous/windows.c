/* SPDX-License-Identifier: Apache-2.0 */
/* What both halves of windows share (window.h): their part of a peer, its pump, and what
 * happens when links come and go. */
#include "rendezvous/window.h"

#include "rendezvous/rendezvous.h"

void tern_windows_init(struct tern_peer_windows *w, uint64_t secret)
{
	struct tern_list *lists[] = {&w->granted, &w->closes, &w->jobs_due, &w->remotes,
		&w->asking, &w->leaving, &w->all, &w->active, &w->saying, &w->unacked,
		&w->puts, &w->moves, &w->served, &w->spare_moves, &w->behind_moves};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(lists); i++)
		tern_list_init(lists[i]);
	tern_map_init(&w->grants, secret);
	tern_map_init(&w->handles, secret);
}

void tern_windows_fini(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_remote *remote;

	tern_moves_fini(peer);
	while ((remote = tern_list_first(&w->remotes, struct tern_remote, all)))
		tern_remote_free(remote);
	free(w->jobs);
	free(w->parts);
	tern_map_fini(&w->grants);
	tern_map_fini(&w->handles);
}

void tern_windows_due(struct tern_peer *peer)
{
	peer->windows.due = true;
}

int tern_window_say(struct tern_peer *peer, struct tern_header *h, const void *payload)
{
	int r = tern_stream_apart(peer, h, payload);

	peer->windows.starved = r < 0;
	return r;
}

/* Goes on until nothing is due any more, or something waits for room, for the end of an
 * operation of the fabric, or for an answer. An OPEN that waits for the fabric is looked
 * at again whenever the peer is pumped. */
void tern_windows_pump_now(struct tern_peer *peer)
{
	int r;

	do {
		peer->windows.due = peer->windows.starved = false;
		r = tern_window_pump_owner(peer);
		if (r == 0)
			r = tern_window_pump_access(peer);
	} while (r == 0 && peer->windows.due);
	peer->windows.due |= r < 0 || peer->windows.answer_count;
}

void tern_windows_up(struct tern_peer *peer)
{
	tern_windows_due(peer);
}

void tern_windows_lost(struct tern_peer *peer)
{
	peer->windows.starved = false;
	tern_window_lost_owner(peer);
	tern_window_lost_access(peer);
}

void tern_windows_down(struct tern_peer *peer, int status)
{
	tern_windows_lost(peer);
	tern_moves_down(peer);
	tern_window_down_access(peer, status);
}
