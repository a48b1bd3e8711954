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
 * The operator's command asks again and again until the steps have begun with a view that does not have the
 * server. Then all processes of the job know that view. If server 0 is lost before, the next question begins
 * the change anew. A server or worker that is to be added asks again, too. So no view needs to be on a disk.
 *
 * A worker that has an older view, since it was away, is told the newest ("view"), and joins
 * anew; a server takes it over. A worker may also have a newer one than a server that was away. So
 * the newest view is known for as long as one process of the job lives that has it.
 */
#include "server/membership.h"

#include <stdio.h>

/* The number of a view is at most so much above that of the view before. */
#define NUMBER_STEP 1024u

/* ---- which view is the newest ---- */

void view_say(struct server_peer *p)
{
	tern_talk_say(&p->talk, tern_view_json(&p->server->view, "view"));
}

/* The number of a server that is connected with server 0 or has told its address; UINT32_MAX: p is
 * none. */
static uint32_t number_of(const struct server_peer *p)
{
	if (p->is_server)
		return view_number(p->server, p->index);
	return p->address ? p->index : UINT32_MAX;
}

/* Takes over a newer view before the steps. Workers with an older one are told, and so are the servers
 * that have told their addresses: if this server is lost now, they know of the view. */
static void take(struct tern_server *s, const struct tern_view *view)
{
	s->view = *view;
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);
		uint32_t number = number_of(p);

		if (p->gone || p->refused)
			continue;
		if (p->is_worker)
			view_say(p);
		else if (number != UINT32_MAX &&
			 tern_view_find(view, number) == UINT32_MAX)
			view_say_removed(p);
		else if (p->address && !p->is_server)
			view_say(p);
	}
}

/* True if the worker's job is another one than this server's, whatever their views. */
static bool is_other_job(const struct server_peer *worker, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	const struct tern_server *s = worker->server;
	struct tern_ps_job same = *job;

	same.server_count = s->job.server_count;
	same.workers = s->job.workers;
	return tern_ps_job_differs(&s->job, &same, tern_peer_name(worker->peer), why);
}

bool view_is_settled(struct server_peer *worker, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	struct tern_server *s = worker->server;
	struct tern_view view;

	if (s->has_job && s->job.view != job->view && is_other_job(worker, job, why))
		return false;
	if (job->view < s->view.number) {
		view_say(worker);
		return false;
	}
	if (!s->has_job || s->job.view == job->view)
		return true;
	tern_view_of_job(job, &view);
	/* The job has gone back, and on without the process that knew of one worker more. */
	if (s->running && tern_view_has_servers_of(&view, &s->job))
		return true;
	if (job->view > s->view.number && !s->running)
		take(s, &view);
	/* The workers of the job that this server has leave it, since its view is older. */
	guests_ask_later(worker);
	return false;
}

void view_on_adopt(struct tern_server *s)
{
	if (s->job.view > s->view.number)
		tern_view_of_job(&s->job, &s->view);
	/* Servers have come before it was known whether they are to be added. */
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (!p->address || p->gone || p->refused || view_has(s, p->index))
			continue;
		free(TERN_TAKE(p->address));
		guests_ask_later(p);
	}
}

uint32_t view_number(const struct tern_server *s, uint32_t index)
{
	return tern_view_number(&s->job, index);
}

uint32_t view_own_number(const struct tern_server *s)
{
	return s->has_job ? view_number(s, s->index) : s->opts.index;
}

/* The newest view; false: none is known. The job may be one that its workers leave, since its view
 * is older. */
static bool find_newest(const struct tern_server *s, struct tern_view *out)
{
	if (s->has_job && s->job.view == s->view.number)
		tern_view_of_job(&s->job, out);
	else if (s->view.number)
		*out = s->view;
	else
		return false;
	return true;
}

bool view_has(const struct tern_server *s, uint32_t number)
{
	struct tern_view view;

	return !find_newest(s, &view) || tern_view_find(&view, number) != UINT32_MAX;
}

void view_moved(struct tern_server *s, uint32_t number, const char *address)
{
	uint32_t i = s->view.number ? tern_view_find(&s->view, number) : UINT32_MAX;

	if (i != UINT32_MAX && s->view.added[i])
		snprintf(s->view.servers[i], sizeof(s->view.servers[i]), "%s", address);
	i = tern_view_find(&s->next_view, number);
	if (i != UINT32_MAX && s->next_view.added[i])
		snprintf(s->next_view.servers[i], sizeof(s->next_view.servers[i]), "%s",
			address);
}

/* ---- the next view ---- */

/* A number above that of the newest view. If server 0 is lost after it has told hardly anybody its last
 * view, another server 0 makes one without knowing of it: random steps keep both from having the same
 * number. Then the view with the higher number counts. */
static uint32_t next_number(const struct tern_server *s)
{
	return s->view.number + 1 + (uint32_t)(tern_random(s->env) % NUMBER_STEP);
}

/* Makes the next view, or goes on with one that waits for its snapshot already. False: the present
 * one is not known. */
static bool prepare_next(struct tern_server *s)
{
	if (s->next_view.number > s->view.number)
		return true;
	if (!find_newest(s, &s->next_view))
		return false;
	s->next_view.number = next_number(s);
	return true;
}

/* Takes the next view at once before the steps; during the steps after a snapshot. */
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
	struct tern_view view;

	if (!tern_view_read(json_object_get(message, "view"), &view) ||
		view.number <= s->view.number)
		return false;
	s->view = view;
	s->stats.drained = (s->running || s->opts.has_begun) &&
			   tern_view_find(&view, view_own_number(s)) == UINT32_MAX;
	return true;
}

void view_say_removed(struct server_peer *p)
{
	tern_talk_say(&p->talk,
		json_pack("{s:s, s:o*, s:b}", "type", "removed", "view",
			view_for(p->server), "zero", view_own_number(p->server) == 0));
}

bool view_on_removed(struct tern_server *s, const json_t *message)
{
	struct tern_view view;

	if (!tern_view_read(json_object_get(message, "view"), &view) ||
		view.number <= s->view.number ||
		tern_view_find(&view, view_own_number(s)) != UINT32_MAX)
		return false;
	s->view = view;
	s->stats.drained = true;
	server_fail(s, -EAGAIN, "this server was removed from the job");
	return true;
}

void view_hear(struct tern_server *s, const json_t *message)
{
	struct tern_view view;

	if (!s->running && !s->over && tern_view_read(message, &view) &&
		view.number > s->view.number &&
		tern_view_find(&view, view_own_number(s)) != UINT32_MAX)
		take(s, &view);
}

void view_drop(struct tern_server *s)
{
	s->next_view.number = 0;
}

/* ---- more workers ---- */

void view_take_grown(struct tern_server *s, const struct tern_view *view)
{
	bool waits = s->next_view.number > s->view.number;

	if (view->number > s->view.number)
		s->view = *view;
	tern_view_set_job(view, &s->job);
	if (waits) { /* it is for the same servers as before */
		s->next_view.number = next_number(s);
		s->next_view.workers = view->workers;
	}
}

void view_grow(struct tern_server *s)
{
	struct tern_view view;

	tern_view_of_job(&s->job, &view);
	view.number = next_number(s);
	view_take_grown(s, &view);
}

void view_set_workers(
	struct server_peer *worker, const struct tern_ps_job *job, uint32_t count)
{
	struct tern_server *s = worker->server;
	struct tern_view view;

	tern_view_of_job(job, &view);
	view.number = next_number(s);
	view.workers = count;
	server_note(s, "the job has %u workers now", count);
	take(s, &view);
	view_say(worker);
}

/* ---- adding ---- */

bool view_may_add(struct server_peer *p, uint32_t number)
{
	struct tern_server *s = p->server;
	const struct server_peer *worker = start_find_present(s);

	if (s->index != 0)
		server_refuse_for_now(p,
			"server %u is not in the job, and only server 0 adds servers: "
			"--join %s",
			number, worker ? worker->zero : "its address");
	else if (!s->running || s->over)
		guests_ask_later(p);
	else if (!back_is_possible(s))
		server_refuse(p,
			"the job cannot go on from a snapshot, and so not with another "
			"server: all servers need --snapshots, and nobody --server-wait "
			"0");
	else if (!prepare_next(s) || s->next_view.count == TERN_SERVERS_MAX ||
		 tern_view_find(&s->next_view, number) != UINT32_MAX)
		guests_ask_later(p); /* another newcomer has this number */
	else
		return true;
	return false;
}

void view_add(struct server_peer *newcomer)
{
	char why[300];

	tern_view_add(&newcomer->server->next_view, newcomer->index, newcomer->address);
	snprintf(why, sizeof(why), "server %u at %s is added", newcomer->index,
		newcomer->address);
	change(newcomer->server, why);
}

void view_newcomer_left(struct server_peer *p)
{
	struct tern_server *s = p->server;
	uint32_t index = tern_view_find(&s->next_view, p->index);

	if (!s->over && s->running && s->next_view.number > s->view.number &&
		index != UINT32_MAX && !view_has(s, p->index)) {
		tern_view_remove(&s->next_view, index);
		if (!s->back_timer.place &&
			tern_view_has_servers_of(&s->next_view, &s->job))
			back_stay(s);
	}
}

/* ---- removing ---- */

/* Says why no server can be removed now, or not this one. NULL: it can. */
static const char *why_not(struct tern_server *s, uint32_t number)
{
	if (s->has_job ? s->index != 0 : s->opts.index != 0)
		return "only server 0 removes servers: --join has its address";
	if (s->has_job && s->job.mode != TERN_MODE_SYNC)
		return "a job that is not in sync mode gets other servers only when all "
		       "its processes are started again, with --resume";
	if (!s->opts.goes_back ||
		(s->running ? !back_is_possible(s) : s->has_job && !back_is_allowed(s)))
		return "the job cannot go on from a snapshot, and so not with fewer "
		       "servers: all servers need --snapshots, and nobody --server-wait "
		       "0";
	if (s->over || s->bye_count > 0)
		return "the job is ending";
	if (number == 0)
		return "server 0 decides which servers the job has, and stays";
	if (!view_has(s, number))
		return "the job has no server of this number";
	if (!prepare_next(s))
		return "no worker has told it the job yet";
	return NULL;
}

const char *tern_server_drain(struct tern_server *s, uint32_t number)
{
	const char *text = why_not(s, number);
	char why[100];
	uint32_t index;

	if (text)
		return text;
	index = tern_view_find(&s->next_view, number);
	if (index == UINT32_MAX) /* it is to be removed already */
		return NULL;
	tern_view_remove(&s->next_view, index);
	snprintf(why, sizeof(why), "server %u is removed from the job", number);
	change(s, why);
	return NULL;
}

/* True if the newest view is known, and does not have this server. */
static bool is_removed(const struct tern_server *s, uint32_t number)
{
	struct tern_view view;

	return find_newest(s, &view) && tern_view_find(&view, number) == UINT32_MAX;
}

/* An operator asks again after server 0 was lost, perhaps: what it knew, this process may not know yet.
 * Returns why the server cannot be removed, as why_not() says it. */
static const char *drain_again(struct tern_server *s, uint32_t number)
{
	return is_removed(s, number) ? NULL : tern_server_drain(s, number);
}

void view_on_drain(struct server_peer *p, const json_t *message)
{
	const json_t *number = json_object_get(message, "server");
	bool again = json_is_true(json_object_get(message, "again"));
	const char *text = "its message \"drain\" has no number of a server";
	json_int_t n = json_integer_value(number);
	struct tern_server *s = p->server;
	struct tern_view view;

	if (json_is_integer(number) && n >= 0 && n < TERN_SERVERS_MAX)
		text = again ? drain_again(s, (uint32_t)n)
			     : tern_server_drain(s, (uint32_t)n);
	/* A server that goes back knows no job until a worker has joined it: the operator asks again. */
	if (text && (again || s->opts.returns) && !find_newest(s, &view))
		server_refuse_for_now(p, "%s", text);
	else if (text)
		server_refuse(p, "%s", text);
	else
		tern_talk_say(
			&p->talk, json_pack("{s:s, s:b}", "type", "draining", "done",
					  s->running && s->job.view == s->view.number &&
						  is_removed(s, (uint32_t)n)));
}
