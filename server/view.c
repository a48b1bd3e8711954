/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers are added to a job that may go back (opts.goes_back), and removed from it. The job goes
 * back to a snapshot that is taken for that, and goes on with another view (ps/view.h), which
 * server 0 makes. As a snapshot may be loaded by any number of servers, nothing else has to move.
 *
 *     process                      server 0
 *     "address", with the number
 *     that the next server has -->                  a server that is to be added (members.c)
 *     "drain", with a number   -->                  an operator (tern drain)
 *                                  takes a snapshot
 *                              <--  "abort" with "back" and "view", to all
 *
 * A worker that has an older view, since it was away, is told the newest ("view"), and joins
 * anew. A worker may also have a newer one than a server that was away. So the newest view is known
 * for as long as one process of the job lives that has it.
 */
#include "server/server_state.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* ---- which view is the newest ---- */

static void say_view(struct server_peer *worker)
{
	tern_talk_say(&worker->talk, tern_view_json(&worker->server->view, "view"));
}

/* Takes over a newer view before the steps: workers with an older one are told. */
static void take(struct tern_server *s, const struct tern_view *view)
{
	s->view = *view;
	for (uint32_t i = 0; s->has_job && i < s->job.workers; i++)
		if (s->workers[i] && !s->workers[i]->absent && !s->workers[i]->gone)
			say_view(s->workers[i]);
}

bool view_is_settled(struct server_peer *worker, const struct tern_ps_job *job)
{
	struct tern_server *s = worker->server;
	struct tern_view view;

	if (job->view < s->view.number) {
		say_view(worker);
		return false;
	}
	if (job->view > s->view.number && !s->running) {
		tern_view_of_job(job, &view);
		take(s, &view);
	}
	/* The workers of the job that this server has leave it, since its view is older. */
	if (!s->has_job || s->job.view == job->view)
		return true;
	guests_ask_later(worker);
	return false;
}

void view_moved(struct tern_server *s, uint32_t index, const char *address)
{
	if (index < s->view.count && tern_view_is_added(s->view.ids[index]))
		snprintf(s->view.servers[index], sizeof(s->view.servers[0]), "%s",
			address);
}

/* False: there is no job, or the workers leave it, since its view is older. */
static bool job_is_newest(const struct tern_server *s)
{
	return s->has_job && s->job.view == s->view.number;
}

uint32_t view_id(const struct tern_server *s, uint32_t index)
{
	if (!job_is_newest(s))
		return index < s->view.count ? s->view.ids[index] : UINT32_MAX;
	if (index >= s->job.server_count)
		return UINT32_MAX;
	return s->job.view ? s->job.ids[index] : index;
}

/* Before the steps a worker with an old view may have brought the job. */
uint32_t view_own_id(const struct tern_server *s)
{
	if (s->running)
		return view_id(s, s->index);
	return s->opts.has_id ? s->opts.id : UINT32_MAX;
}

uint32_t view_number(const struct tern_server *s, const json_t *id, uint32_t index)
{
	json_int_t n = json_integer_value(id);

	if (!json_is_integer(id) || n < 0 || s->view.number == 0 || n >= s->view.id_count)
		return index;
	return tern_view_find(&s->view, (uint32_t)n);
}

/* ---- the next view ---- */

/* The next view is one behind the present one: makes it, or goes on with one that waits for its
 * snapshot already. False: the present one is not known. */
static bool prepare_next(struct tern_server *s)
{
	struct tern_view *next = &s->next_view;

	if (next->number > s->view.number)
		return true;
	if (job_is_newest(s))
		tern_view_of_job(&s->job, next);
	else if (s->view.number)
		*next = s->view;
	else
		return false;
	next->number++;
	return true;
}

/* The next view is complete so far. */
static void change(struct tern_server *s, const char *why)
{
	server_note(s, "%s", why);
	if (s->running)
		back_when_saved(s, why);
	else
		take(s, &s->next_view);
}

void view_go(struct tern_server *s)
{
	if (s->index == 0 && s->next_view.number > s->view.number)
		s->view = s->next_view;
}

json_t *view_for(const struct tern_server *s)
{
	return s->view.number ? tern_view_json(&s->view, "view") : NULL;
}

bool view_on_abort(struct tern_server *s, const json_t *message)
{
	uint32_t id = view_own_id(s);
	struct tern_view view;

	if (!tern_view_read(json_object_get(message, "view"), &view) ||
		view.number <= s->view.number)
		return false;
	s->view = view;
	if (id == UINT32_MAX)
		return true;
	s->next_index = tern_view_find(&view, id);
	s->stats.drained = s->next_index == UINT32_MAX;
	return true;
}

/* ---- adding ---- */

bool view_is_next(const struct tern_server *s, uint32_t index)
{
	return s->opts.goes_back && s->has_job && index >= s->job.server_count;
}

bool view_may_add(struct server_peer *p, uint32_t index)
{
	struct tern_server *s = p->server;
	const struct server_peer *worker = start_find_present(s);

	if (s->index != 0)
		server_refuse_for_now(p,
			"it is to be added, and only server 0 adds servers: --join %s",
			worker ? worker->zero : "its address");
	else if (!s->running || s->over)
		guests_ask_later(p);
	else if (!back_is_possible(s))
		server_refuse(p,
			"the job cannot go on from a snapshot, and so not with another "
			"server: all servers need --snapshots, and nobody --server-wait "
			"0");
	else if (!prepare_next(s) || index > s->next_view.count)
		server_refuse_for_now(p,
			"the job has the servers 0 to %u, and the next one is server %u",
			s->next_view.count - 1, s->next_view.count);
	else if (index < s->next_view.count) /* another newcomer has this number */
		guests_ask_later(p);
	else
		return true;
	return false;
}

void view_add(struct server_peer *newcomer)
{
	struct tern_view *next = &newcomer->server->next_view;
	char why[300];

	newcomer->added_id = next->id_count;
	tern_view_add(next, newcomer->address);
	snprintf(why, sizeof(why), "server %u at %s is added", newcomer->index,
		newcomer->address);
	change(newcomer->server, why);
}

void view_newcomer_left(struct server_peer *p)
{
	struct tern_server *s = p->server;
	uint32_t index = tern_view_find(&s->next_view, p->added_id);

	if (!s->over && s->next_view.number > s->view.number && index != UINT32_MAX)
		tern_view_remove(&s->next_view, index);
}

/* ---- removing ---- */

/* Says why no server can be removed now, or not this one. NULL: it can. */
static const char *why_not(struct tern_server *s, uint32_t index)
{
	if (s->has_job ? s->index != 0 : s->opts.index != 0)
		return "only server 0 removes servers: --join has its address";
	if (!s->opts.goes_back || (s->running && !back_is_possible(s)))
		return "the job cannot go on from a snapshot, and so not with fewer "
		       "servers: all servers need --snapshots, and nobody --server-wait "
		       "0";
	if (s->over || s->bye_count > 0)
		return "the job is ending";
	if (index == 0)
		return "server 0 decides which servers the job has, and stays";
	if (!prepare_next(s))
		return "no worker has told it the job yet";
	if (view_id(s, index) == UINT32_MAX)
		return "the job has no server of this number";
	return NULL;
}

const char *tern_server_drain(struct tern_server *s, uint32_t index)
{
	const char *text = why_not(s, index);
	char why[100];
	uint32_t at;

	if (text)
		return text;
	at = tern_view_find(&s->next_view, view_id(s, index));
	if (at == UINT32_MAX) /* it is removed already */
		return NULL;
	tern_view_remove(&s->next_view, at);
	snprintf(why, sizeof(why), "server %u is removed from the job", index);
	change(s, why);
	return NULL;
}

void view_on_drain(struct server_peer *p, const json_t *message)
{
	const json_t *number = json_object_get(message, "server");
	json_int_t index = json_integer_value(number);
	const char *text = "its message \"drain\" has no number of a server";

	if (json_is_integer(number) && index >= 0 && index < TERN_SERVERS_MAX)
		text = tern_server_drain(p->server, (uint32_t)index);
	if (text)
		server_refuse(p, "%s", text);
	else
		tern_talk_say(&p->talk, json_pack("{s:s}", "type", "draining"));
}
