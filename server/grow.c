/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More workers than a job began with, in sync mode, in a job that may go back (opts.goes_back). A
 * user starts them by hand, also beside the workers of a launcher (opts.workers).
 *
 * A worker whose number is the first that the job does not have is let in between two steps, as
 * one in the place of a lost worker is (change.c). When all servers have stopped, server 0 makes
 * the next view (ps/view.h), which has one worker more, and "change" brings it to the other
 * servers. Each server makes the new place as that of a worker that is lost, and lets the
 * newcomer in there. The workers that take part are told the view ("grown") and go on; a worker
 * that comes later is told it as any newer view ("view").
 *
 * The number of workers of a job that has lost all of them, and is in the servers' memory, is that
 * of the first worker that comes (join.c). If it is another one, server 0 makes the next view with it,
 * so that former workers that come later are told. So it does if the first one that comes is to be
 * added.
 */
#include "server/membership.h"

#include <errno.h>

bool grow_is_possible(const struct tern_server *s, const struct tern_ps_job *job)
{
	return s->opts.goes_back && job->mode == TERN_MODE_SYNC;
}

/* ---- a worker comes ---- */

/* Asks the newcomer to join again in a moment, and says once why. */
static void wait_for_place(struct server_peer *p, uint32_t index)
{
	struct tern_server *s = p->server;

	guests_ask_later(p);
	if (p->waits_for_place || s->index != 0 || !guests_may_note(s))
		return;
	p->waits_for_place = true;
	if (index > s->job.workers)
		server_note(s,
			"worker %u waits until the job has a worker %u: the job has %u "
			"workers",
			index, s->job.workers, s->job.workers);
	else
		server_note(s,
			"worker %u waits for the steps: the job has %u workers so far",
			index, s->job.workers);
}

void grow_on_join(struct server_peer *p, uint32_t index, const json_t *message)
{
	struct tern_server *s = p->server;

	if (!back_is_allowed(s) || !json_is_true(json_object_get(message, "back")))
		server_refuse(p,
			"the job has %u workers and cannot have worker %u: all servers "
			"need --snapshots, and all workers a --server-wait, or a "
			"server_wait of their sessions, above 0",
			s->job.workers, index);
	else if (!s->running || index > s->job.workers ||
		 (s->view.number > s->job.view &&
			 !tern_view_has_servers_of(&s->view, &s->job)))
		wait_for_place(p, index);
	else
		change_on_join(p, index, message);
}

/* ---- the new place ---- */

static int make_publications(struct tern_server *s, uint32_t index)
{
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		if (chunk_make_publications(&s->chunks[i], index, index + 1) == 0)
			continue;
		while (i-- > 0)
			free(s->chunks[i].publications[index]);
		return -ENOMEM;
	}
	return 0;
}

/* Makes the place of a worker that is lost, behind all others. -ENOMEM: nothing has changed. */
static int add_place(struct tern_server *s)
{
	uint32_t index = s->job.workers;
	struct server_peer **workers =
		realloc(s->workers, (index + 1ull) * sizeof(struct server_peer *));
	int r;

	if (!workers)
		return -ENOMEM;
	s->workers = workers;
	r = start_set_absent(s, index);
	if (r == 0)
		r = make_publications(s, index);
	if (r < 0)
		return r;
	s->workers[index]->lost = true;
	s->lost_count++;
	s->job.workers = index + 1;
	return 0;
}

static void tell_workers(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if ((p->is_worker || p->returning) && !p->gone && !p->refused)
			tern_talk_say(&p->talk, tern_view_json(&s->view, "grown"));
	}
}

int grow_for(struct tern_server *s, const struct server_peer *newcomer)
{
	int r;

	if (newcomer->index < s->job.workers)
		return 0;
	r = add_place(s);
	if (r < 0)
		return r;
	view_grow(s);
	tell_workers(s);
	server_note(s, "the job has %u workers now", s->job.workers);
	return 0;
}

int grow_on_change(struct tern_server *s, const json_t *message)
{
	const json_t *json = json_object_get(message, "view");
	struct tern_view view;
	int r;

	if (!json)
		return 0;
	if (!s->change.reached || !tern_view_read(json, &view) ||
		view.workers != s->job.workers + 1 ||
		!tern_view_has_servers_of(&view, &s->job))
		return -EPROTO;
	r = add_place(s);
	if (r == 0)
		view_take_grown(s, &view);
	return r;
}
