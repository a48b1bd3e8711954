/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that ends on a context that lives on, as that of a program whose job goes back
 * (session_back.c). All peers are freed, which ends every request in later rounds of progress, when
 * nothing can access its memory any more. Timers are cleared, and nothing sets them again, since
 * the worker is over. Only then the worker's memory may be freed or used again.
 */
#include "client/worker_state.h"

#include <errno.h>

static bool is_moving(const struct tern_req *req)
{
	return req->status == -EINPROGRESS;
}

static bool receives(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->plan.chunk_count; i++)
		if (is_moving(&w->parts[0][i].req) || is_moving(&w->parts[1][i].req))
			return true;
	return false;
}

static bool sends(const struct tern_worker *w)
{
	for (uint32_t k = 0; k < w->room_count; k++)
		for (uint32_t i = 0; i < w->plan.chunk_count; i++)
			if (is_moving(&w->rooms[k].parts[i].req))
				return true;
	return give_is_moving(w);
}

/* Each message that is being sent has a buffer, and so has the receive of each server. */
static bool talks(const struct tern_worker *w)
{
	struct tern_pool_stats stats;

	tern_pool_stats(w->talk_pool, &stats);
	return stats.used_count > 0;
}

bool tern_worker_let_go(struct tern_worker *w)
{
	tern_assert(w->told);
	for (uint32_t i = 0; i < w->job.server_count; i++) {
		struct worker_server *s = &w->servers[i];

		if (!s->peer)
			continue;
		s->gone = true;
		tern_talk_close(&s->talk);
		tern_peer_free(TERN_TAKE(s->peer));
	}
	tern_timer_clear(w->opts.ctx, &w->end_timer);
	if (w->end_call.node.next)
		tern_list_remove(&w->end_call.node);
	return !w->checking && !receives(w) && !sends(w) && !talks(w);
}
