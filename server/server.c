/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections, goodbyes and failures. A worker that leaves before the steps begin ends
 * alone (start.c); later losses of workers are handled by lease.c, and the loss of a
 * server during the steps ends the job, or lets it go back to a snapshot (others.c, back.c).
 *
 * The end: `over` is set once, after a failure with a status and a sentence that gives
 * the reason, which the workers and servers of the job are told. Guests are refused,
 * connections are closed in an orderly way, and ended() is called when they are closed,
 * or after two seconds.
 */
#include "server/blobs.h"
#include "server/follow.h"
#include "server/membership.h"
#include "server/memory.h"
#include "server/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define LEAVING_NS    (2 * TERN_NS_PER_S)
#define STAGING_BYTES (256ull << 20)
#define STAGING_SLAB  (64ull << 20)
/* Limit of the pool for control messages: pieces that are received, and what is sent. */
#define TALK_BYTES (512ull << 20)
/* Limit of the pool for pieces of snapshots: two for each other server, and those that are read. */
#define PIECES_BYTES (1ull << 30)
#define PIECES_SLAB  (4ull << 20)

static void note(struct tern_server *s, bool comes, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));

static void note(struct tern_server *s, bool comes, const char *fmt, va_list ap)
{
	char text[400];

	vsnprintf(text, sizeof(text), fmt, ap);
	if (s->opts.note)
		s->opts.note(s->opts.arg, text, comes);
}

void server_note(struct tern_server *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	note(s, false, fmt, ap);
	va_end(ap);
}

void server_note_coming(struct tern_server *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	note(s, true, fmt, ap);
	va_end(ap);
}

void server_warn(struct tern_server *s, const char *fmt, ...)
{
	char text[500];
	va_list ap;

	if (!s->opts.warning)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	s->opts.warning(s->opts.arg, text);
}

void server_tell_joined(struct tern_server *s)
{
	if (s->opts.joined)
		s->opts.joined(s->opts.arg, s->joined_count, s->job.workers);
}

void server_updater_note(struct tern_server *s)
{
	char text[400];

	tern_updater_take_note(s->opts.updater, text, sizeof(text));
	if (*text)
		server_note(s, "%s", text);
}

/* ---- the end ---- */

static bool all_gone(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers)
		if (!tern_list_entry(n, struct server_peer, node)->gone)
			return false;
	return members_are_gone(s);
}

static void tell_end(struct tern_server *s)
{
	if (s->told)
		return;
	s->told = true;
	tern_timer_clear(s->opts.ctx, &s->end_timer);
	tern_timer_clear(s->opts.ctx, &s->late_timer);
	tern_timer_clear(s->opts.ctx, &s->progress_timer);
	tern_timer_clear(s->opts.ctx, &s->back_timer);
	tern_timer_clear(s->opts.ctx, &s->absent_timer);
	snapshots_end(s);
	follow_end(s);
	guests_end(s);
	members_end(s);
	remote_end(s);
	s->opts.ended(s->opts.arg, s->status, s->text);
}

static void end_call(struct tern_deferred *deferred)
{
	struct tern_server *s = tern_container_of(deferred, struct tern_server, end_call);

	if (s->over && all_gone(s) && !abort_lingers(s))
		tell_end(s);
	guests_reap(s);
}

static void end_timer(struct tern_timer *timer)
{
	tell_end(tern_container_of(timer, struct tern_server, end_timer));
}

/* Only processes that have joined are told why the job ends. If an operator has ended it, a guest's
 * next message decides what the guest is told (abort_on_late()). */
static void say_end(struct server_peer *p)
{
	const struct tern_server *s = p->server;

	/* A process that waits to be a server of this job, and has been one before. */
	if (s->status == 0 && p->has_begun) {
		tern_talk_say(&p->talk, json_pack("{s:s}", "type", "complete"));
		tern_peer_close(p->peer);
		return;
	}
	if (!server_has_joined(p) || p->returning) {
		if (!s->by_operator)
			server_refuse_for_now(p, "the server is ending");
		else if (p->returning)
			abort_tell(p);
		return;
	}
	if (s->status < 0)
		tern_talk_say(&p->talk,
			json_pack("{s:s, s:o, s:b, s:I, s:I, s:b, s:b, s:I, s:b, s:b, "
				  "s:b, s:o*}",
				"type", "abort", "text", tern_talk_text(s->text), "save",
				s->save, "snapshot", (json_int_t)back_newest(s),
				"finisher", (json_int_t)s->finisher, "back",
				s->status == -EAGAIN, "forget", s->forgets, "replaced",
				s->forgets ? (json_int_t)s->replaced : -1, "no_workers",
				s->no_workers, "final", s->by_operator, "ends", s->asked,
				"view", view_for(s)));
	else if (p->address)
		server_refuse(p, "the job is complete");
	else if (p->is_follower)
		tern_talk_say(&p->talk, json_pack("{s:s}", "type", "complete"));
	if (!p->refused)
		tern_peer_close(p->peer);
}

/* The listener is not closed: a lost connection may have to be restored for the
 * goodbye. Whoever connects now belongs to the next job, and tries again until the next
 * server listens. */
static void leave(struct tern_server *s)
{
	if (s->status == -EAGAIN)
		status_goes_back(s);
	if (!abort_lingers(s))
		tern_listener_refuse_new(s->listener);
	members_leave(s);
	remote_rest(s);
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (!p->gone && !p->refused)
			say_end(p);
	}
	s->end_timer.fire = end_timer;
	tern_timer_set(s->opts.ctx, &s->end_timer, tern_now_ns(s->env) + LEAVING_NS);
	tern_defer(s->opts.ctx, &s->end_call);
}

void server_fail_args(struct tern_server *s, int status, const char *fmt, va_list ap)
{
	if (s->over)
		return;
	s->over = true;
	/* Only a job that goes back has -EAGAIN. */
	s->status = status == -EAGAIN && !s->opts.goes_back ? -EIO : status;
	if (s->by_operator && s->status == -EAGAIN)
		s->status = -ECANCELED;
	s->save = s->save || s->interrupting;
	if (s->index == 0)
		s->finisher = leaving_finisher(s);
	vsnprintf(s->text, sizeof(s->text), fmt, ap);
	if (s->status == -EAGAIN)
		view_go(s);
	if (s->by_operator && s->opts.aborted)
		s->opts.aborted(s->opts.arg, s->text);
	leave(s);
}

void server_fail(struct tern_server *s, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	server_fail_args(s, status, fmt, ap);
	va_end(ap);
}

void server_interrupt(struct tern_server *s, const char *why)
{
	s->save = s->save || !s->over;
	server_fail(s, -ECANCELED, "%s", why);
}

void tern_server_stop(struct tern_server *s, const char *why, bool save)
{
	s->asked = true;
	if (save && back_is_possible(s))
		back_leave(s, why);
	else if (save)
		leaving_interrupt(s, why);
	else
		server_fail(s, -ECANCELED, "%s", why);
}

/* ---- who leaves ---- */

bool server_has_joined(const struct server_peer *p)
{
	return p->is_worker || p->is_server || p->returning || p->address ||
	       p->is_follower || p == p->server->to_zero;
}

static void refuse(struct server_peer *p, bool later, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));

static void refuse(struct server_peer *p, bool later, const char *fmt, va_list ap)
{
	char text[400];

	vsnprintf(text, sizeof(text), fmt, ap);
	p->refused = true;
	p->returning = p->ready = p->chosen = false;
	if (p->address)
		members_left(p);
	if (p->is_follower)
		follow_left(p, text);
	tern_talk_deafen(&p->talk);
	if (server_has_joined(p) || guests_may_note(p->server))
		(p->server->over ? server_note_coming : server_note)(
			p->server, "%s was refused: %s", tern_peer_name(p->peer), text);
	tern_talk_say(
		&p->talk, json_pack("{s:s, s:o, s:b, s:b}", "type", "refused", "text",
				  tern_talk_text(text), "later", later, "ending",
				  p->server->over && p->server->status == -EAGAIN));
	tern_peer_close(p->peer);
	guests_refused(p);
}

void server_refuse(struct server_peer *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	refuse(p, false, fmt, ap);
	va_end(ap);
}

void server_refuse_for_now(struct server_peer *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	refuse(p, true, fmt, ap);
	va_end(ap);
}

/* Cuts p off: closes its connection at once, without a goodbye. No event of p is reported
 * any more. */
void server_drop(struct server_peer *p)
{
	p->gone = p->freed = true;
	tern_talk_close(&p->talk);
	tern_peer_free(p->peer);
	tern_defer(p->server->opts.ctx, &p->server->end_call);
}

/* True if the worker has no steps left. A worker that said goodbye earlier would leave
 * slots behind that no other worker is given. */
static bool may_say_bye(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	if (given_is_awaited(s))
		return false;
	return s->job.mode == TERN_MODE_ASYNC ? async_is_done(p) : sync_is_done(s);
}

void server_on_bye(struct server_peer *p)
{
	struct tern_server *s = p->server;

	if (p->said_bye)
		return;
	if (!may_say_bye(p)) {
		lease_lost(p, false, "%s: it said goodbye before the last step",
			tern_peer_name(p->peer));
		return;
	}
	p->said_bye = true;
	s->bye_count++;
	lease_on_bye(s);
	server_maybe_end(s);
}

/* Ends the server if every worker has said goodbye or is lost. A worker says goodbye when
 * it knows that the results are safe. */
void server_maybe_end(struct tern_server *s)
{
	if (s->over || !s->running || s->bye_count + s->lost_count < s->job.workers ||
		change_is_awaited(s))
		return;
	if (s->bye_count == 0) {
		/* Server 0 may have let a worker in, of which this server does not know yet. */
		if (s->index == 0 || s->to_zero->gone)
			back_without_workers(s);
		return;
	}
	if (snapshots_hold_end(s)) {
		if (!s->held && s->opts.saving)
			s->opts.saving(s->opts.arg);
		s->held = true;
		return;
	}
	progress_end(s);
	skip_warn(s);
	s->over = true;
	leave(s);
}

/* Handles "abort", and "refused" from server 0: another server, or a worker, ends the
 * job. The "abort" of a worker before the steps ends only this worker. */
void server_aborted(struct server_peer *p, const char *name, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	const json_t *finisher = json_object_get(message, "finisher");
	bool save = json_is_true(json_object_get(message, "save"));
	bool final = json_is_true(json_object_get(message, "final")) && !p->server->over;
	char why[400];

	/* The text of an operator says who has ended the job: by which way this server hears of
	 * it does not matter. */
	if (final)
		snprintf(why, sizeof(why), "%s", text ? text : "no reason given");
	else
		snprintf(why, sizeof(why), "%s: %s", name, text ? text : "it gave up");
	/* A worker may pass on server 0's choice of the finisher before server 0's own
	 * message arrives. */
	if (!p->server->over && p->server->index != 0 && json_is_integer(finisher))
		p->server->finisher = json_integer_value(finisher);
	back_hear_newest(p->server, message);
	if (final)
		p->server->by_operator = save = true;
	if (!final && ((!p->server->running && p->is_worker) || p->returning))
		lease_lost(p, false, "%s", why);
	else if (!final && json_is_true(json_object_get(message, "back")))
		back_on_abort(p->server, message, why);
	else if (save && p->server->index == 0)
		leaving_interrupt(p->server, why);
	else if (save)
		server_interrupt(p->server, why);
	else
		server_fail(p->server, -ECANCELED, "%s", why);
}

void server_suspects(struct server_peer *p, int status)
{
	/* -ETIMEDOUT: the peer is connected, but does not answer. */
	p->unlinked = status != -ETIMEDOUT;
	p->broken_ns = tern_now_ns(p->server->env);
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct server_peer *p = arg;
	struct tern_server *s = p->server;

	(void)peer;
	switch (event) {
	case TERN_PEER_UP:
		break;
	case TERN_PEER_SUSPECT:
		server_suspects(p, status);
		if (server_has_joined(p))
			server_note(s, "%s is silent: %s", tern_peer_name(peer),
				tern_status_text(status));
		break;
	case TERN_PEER_RECOVERED:
		p->unlinked = false;
		start_on_recovered(s);
		if (server_has_joined(p))
			server_note(s, "%s answers again", tern_peer_name(peer));
		break;
	case TERN_PEER_DOWN:
		p->gone = true;
		tern_talk_close(&p->talk);
		if ((p->is_worker && !p->said_bye) || p->returning)
			lease_lost(p, false, "%s is gone: %s", tern_peer_name(peer),
				status ? tern_status_text(status) : "it left too early");
		if (p->is_server && server_has_joined(p))
			others_lost(p, status, tern_peer_name(peer));
		if (p->address)
			members_left(p);
		if (p->is_follower)
			follow_left(p, status ? tern_status_text(status) : "it has left");
		tern_defer(s->opts.ctx, &s->end_call);
		break;
	}
}

/* A request with this peer has failed, so the server cannot go on with it. */
void server_broken(struct tern_talk *talk, int status)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);
	char text[300];

	snprintf(text, sizeof(text), "a tensor did not come through: %s",
		tern_status_text(status));
	if (p->server->over)
		return;
	if (p->is_worker || p->returning)
		lease_lost(p, false, "%s: %s", tern_peer_name(p->peer), text);
	else if (p->is_follower)
		server_refuse_for_now(p, "%s", text);
	else if (server_has_joined(p) && !p->address)
		server_fail(p->server, status, "%s: %s", tern_peer_name(p->peer), text);
	else
		server_refuse(p, "%s", text);
}

static void idle(struct tern_talk *talk)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);

	/* If p is a guest, end_call() frees it. */
	tern_defer(p->server->opts.ctx, &p->server->end_call);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct tern_server *s = arg;
	struct server_peer *p = calloc(1, sizeof(*p));
	char name[32];

	if (!p) {
		tern_peer_free(peer);
		return;
	}
	p->server = s;
	p->peer = peer;
	p->talk.pool = s->talk_pool;
	p->talk.ctx = s->opts.ctx;
	p->talk.heard = server_heard;
	p->talk.broken = server_broken;
	p->talk.idle = idle;
	snprintf(name, sizeof(name), "server");
	tern_peer_set_opts(peer,
		&(struct tern_peer_opts){
			.event = on_event, .arg = p, .name = name, .pool = s->staging});
	guests_enter(p);
	tern_list_push(&s->peers, &p->node);
	if (tern_channel_open(peer, TERN_PS_CHANNEL_DATA, &p->data) < 0 ||
		tern_talk_open(&p->talk, peer) < 0)
		server_drop(p);
}

/* ---- birth and death ---- */

int tern_server_new(const struct tern_server_opts *opts, struct tern_server **out)
{
	struct tern_server *s = calloc(1, sizeof(*s));
	struct tern_pool_opts pool = {.slab_bytes = STAGING_SLAB};
	struct tern_pool_opts talk = {.slab_bytes = 1u << 20, .max_bytes = TALK_BYTES};
	struct tern_pool_opts pieces = {
		.slab_bytes = PIECES_SLAB, .max_bytes = PIECES_BYTES};
	struct tern_peer_opts peer = {.name = "server"};
	int r;

	if (!s)
		return -ENOMEM;
	s->opts = *opts;
	s->finisher = -1;
	if (opts->view)
		s->view = *opts->view;
	s->env = tern_context_env(opts->ctx);
	s->made_ns = tern_now_ns(s->env);
	tern_list_init(&s->peers);
	tern_list_init(&s->holding);
	tern_list_init(&s->extras);
	tern_list_init(&s->readings);
	tern_list_init(&s->end_call.node);
	s->end_call.call = end_call;
	if (!s->opts.staging_bytes)
		s->opts.staging_bytes = STAGING_BYTES;
	pool.max_bytes = TERN_POOL_BYTES_MAX; /* the staging budget limits it further */
	guests_init(s);
	status_init(s);
	r = memory_init(s);
	if (r == 0)
		r = tern_pool_new(opts->domain, &pool, &s->staging);
	if (r == 0)
		r = tern_pool_new(opts->domain, &talk, &s->talk_pool);
	if (r == 0)
		r = tern_pool_new(opts->domain, &pieces, &s->pieces);
	if (r == 0)
		r = tern_listen(
			opts->ctx, opts->listen, &peer, on_accept, s, &s->listener);
	if (r == 0)
		r = resume_init(s);
	if (r == 0)
		r = members_init(s);
	if (r < 0) {
		tern_listener_free(s->listener);
		members_fini(s);
		resume_fini(s);
		remote_end(s);
		remote_fini(s);
		blobs_fini(s);
		tern_pool_free(s->talk_pool);
		tern_pool_free(s->pieces);
		tern_pool_free(s->staging);
		free(s);
		return r;
	}
	*out = s;
	return 0;
}

const char *tern_server_address(const struct tern_server *s)
{
	return s->listener ? tern_listener_address(s->listener) : "";
}

void tern_server_stats(const struct tern_server *s, struct tern_server_stats *out)
{
	*out = s->stats;
	out->has_job = s->has_job;
	out->goes_back = back_is_allowed(s);
	if (s->has_job)
		out->mode = tern_mode_text(s->job.mode, s->job.ssp);
	out->no_workers = s->no_workers;
	out->index = view_own_number(s);
	out->server_count = s->has_job ? s->job.server_count : 0;
	out->snapshot_step = back_newest(s);
	out->steps = s->chunk_count ? UINT64_MAX : s->first_version;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		out->steps = TERN_MIN(out->steps, s->chunks[i].version);
}

const struct tern_view *tern_server_view(const struct tern_server *s)
{
	return &s->view;
}

void tern_server_take_snapshot(struct tern_server *s)
{
	snapshots_ask(s);
}

void tern_server_free(struct tern_server *s)
{
	struct tern_list *n;

	if (!s)
		return;
	while ((n = tern_list_pop(&s->peers))) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		free(p->pull);
		free(p->address);
		json_decref(p->kept);
		json_decref(p->incarnations);
		free(p);
	}
	store_fini(s);
	members_fini(s);
	join_forget_job(s);
	resume_fini(s);
	remote_fini(s);
	tern_omitted_fini(&s->own_history.omitted);
	tern_server_memory_free(s->from_memory);
	blobs_fini(s);
	tern_pool_free(s->talk_pool);
	tern_pool_free(s->pieces);
	tern_pool_free(s->staging);
	free(s);
}
