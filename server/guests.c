/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests: peers that connected and have not been taken as a worker or a server of the
 * job. Anybody who may connect can be one, so a guest ends alone, whatever it does, and
 * nothing of it stays.
 */
#include "server/internal.h"

static bool is_guest(const struct server_peer *p)
{
	return !p->is_worker && !p->is_server && p != p->server->to_zero;
}

static void guest_free(struct server_peer *p)
{
	if (!p->freed)
		tern_peer_free(p->peer);
	tern_list_remove(&p->node);
	tern_ps_job_fini(&p->job);
	free(p);
}

void guests_reap(struct tern_server *s)
{
	tern_list_for_each_safe (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->gone && is_guest(p) && tern_talk_is_idle(&p->talk))
			guest_free(p);
	}
}
