/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections between the servers of a job. Each server except number 0 connects to
 * number 0 when all workers have joined it, and so tells server 0 that they have. These
 * connections carry the losses of workers (lease.c) and the shares of a norm (norm.c).
 * Through them a server also notices the loss of another server, and can name it.
 */
#include "server/membership.h"
#include "server/snapshots.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The connection to another server (p) has ended, with `status` 0 if that server has said
 * goodbye, which it does when it ends. A loss during the steps ends the
 * job, or lets it go back. A loss after the first goodbye of a worker does not, since no server has anything
 * left to do then. Nor does a loss before the steps: this server connects to server 0
 * again, or (on server 0) waits until the other server has connected again. */
void others_lost(struct server_peer *p, int status, const char *name)
{
	struct tern_server *s = p->server;

	if (s->over)
		return;
	if (!s->running && p == s->to_zero) {
		server_note(s,
			"%s cannot be reached: %s: this server tries again until it "
			"succeeds or a worker leaves",
			name, tern_status_text(status));
		s->again_count = 0;
		start_again(s);
	} else if (!s->running) {
		p->is_server = false;
	} else if (status && s->bye_count == 0) {
		back_or_fail(s, status, "%s is gone: %s", name, tern_status_text(status));
	} else {
		snapshots_on_lost(s, p->index);
		server_maybe_end(s);
	}
}

static void zero_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct server_peer *p = arg;
	struct tern_server *s = p->server;
	char name[160];

	(void)peer;
	if (event == TERN_PEER_UP)
		p->up = true;
	if (event == TERN_PEER_SUSPECT)
		server_suspects(p, status);
	if (event == TERN_PEER_RECOVERED)
		p->unlinked = false;
	if (event == TERN_PEER_DOWN) {
		p->gone = true;
		tern_talk_close(&p->talk);
		snprintf(name, sizeof(name), "server 0 at %s", p->zero);
		if (p == s->to_zero)
			others_lost(p, status, name);
		tern_defer(s->opts.ctx, &s->end_call);
	}
}

/* Sends this server's job to p, which should be server 0. p compares it with its own job:
 * only p can tell whether it is server 0 of this job. */
static int introduce(struct server_peer *p)
{
	struct tern_server *s = p->server;
	json_t *job = tern_ps_job_json(&s->job);
	json_t *incarnations = json_array();

	if (!job || !incarnations) {
		json_decref(job);
		json_decref(incarnations);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < s->job.workers; i++)
		json_array_append_new(incarnations,
			json_integer((json_int_t)s->workers[i]->incarnation));
	tern_talk_say(&p->talk,
		json_pack("{s:s, s:I, s:o, s:o, s:s, s:b, s:b, s:I, s:I, s:I}", "type",
			"peer", "server", (json_int_t)s->index, "job", job,
			"incarnations", incarnations, "arithmetic",
			s->job.clip_norm > 0 ? s->opts.updater->fingerprint : "",
			"snapshots", s->snapshots != NULL, "omits", s->opts.omits,
			"version", (json_int_t)s->first_version, "number",
			(json_int_t)s->first_number, "life", (json_int_t)memory_life(s)));
	return 0;
}

/* Called when all workers have joined: connects this server to server 0, unless it is
 * server 0 itself. */
int others_connect(struct tern_server *s)
{
	struct server_peer *p;
	char name[32];
	int r;

	if (s->index == 0 || s->to_zero)
		return 0;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	snprintf(name, sizeof(name), "server %u", view_own_number(s));
	p->server = s;
	p->talk.pool = s->talk_pool;
	p->talk.ctx = s->opts.ctx;
	p->talk.heard = server_heard;
	p->talk.broken = server_broken;
	/* Does not use the address in the job: the worker that brought the job may have left. The process that
	 * has told this server that it is server 0, and the one that the workers have joined, may be two. So
	 * every other attempt is at the workers' address. */
	snprintf(p->zero, sizeof(p->zero), "%s",
		s->tries_workers_zero ? start_find_present(s)->zero
				      : members_find_zero(s));
	r = tern_connect(s->opts.ctx, p->zero,
		&(struct tern_peer_opts){
			.event = zero_event, .arg = p, .name = name, .pool = s->staging},
		&p->peer);
	if (r < 0) {
		free(p);
		return r;
	}
	tern_list_push(&s->peers, &p->node);
	s->to_zero = p;
	r = tern_channel_open(p->peer, TERN_PS_CHANNEL_DATA, &p->data);
	if (r == 0)
		r = tern_talk_open(&p->talk, p->peer);
	if (r == 0)
		r = introduce(p);
	if (r < 0)
		server_drop(p);
	return r;
}

struct server_peer *others_find(const struct tern_server *s, uint32_t index)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->is_server && p->index == index && !p->gone)
			return p;
	}
	return NULL;
}

struct server_peer *others_find_number(const struct tern_server *s, uint32_t number)
{
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (view_number(s, i) == number)
			return others_find(s, i);
	return NULL;
}

bool others_are_connected(const struct tern_server *s)
{
	if (s->index != 0)
		return s->to_zero != NULL;
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (!others_find(s, i))
			return false;
	return true;
}

/* True if no worker has joined p and this server with different processes. One that is absent on
 * one of them counts as lost on both when the steps begin (start.c). */
static bool has_same_workers(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	for (uint32_t i = 0; i < s->job.workers; i++) {
		json_int_t theirs =
			json_integer_value(json_array_get(p->incarnations, i));

		if (theirs && !s->workers[i]->absent &&
			s->workers[i]->incarnation != (uint64_t)theirs)
			return false;
	}
	return true;
}

bool others_have_same_workers(const struct tern_server *s)
{
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (!has_same_workers(others_find(s, i)))
			return false;
	return true;
}
