/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is here. A process says what it is in its first message; the first worker's message
 * is the job, and later ones are compared with it. They are welcome when the shard is
 * made. The steps start on all servers when all workers have joined everywhere. Who
 * leaves before that leaves alone (start.c); later losses are lease.c's (workers), or the
 * end of the job (servers).
 *
 * The end: `over` is set once, with its status and sentence; workers that need to know
 * are told, connections are closed in order, and ended() is called when they are or after
 * two seconds.
 */
#include "server/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define LEAVING_NS    (2 * TERN_NS_PER_S)
#define STAGING_BYTES (256ull << 20)
#define STAGING_SLAB  (64ull << 20)

void server_note(struct tern_server *s, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	if (!s->opts.note)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	s->opts.note(s->opts.arg, text);
}

void server_updater_note(struct tern_server *s)
{
	char note[400];

	tern_updater_take_note(s->opts.updater, note, sizeof(note));
	if (*note)
		server_note(s, "%s", note);
}

/* What a device holds for this server. */
static void note_memory(struct tern_server *s)
{
	uint64_t bytes = tern_updater_held_bytes(s->opts.updater);

	server_updater_note(s);
	if (bytes)
		server_note(s, "server %u holds %llu bytes on %s", s->index,
			(unsigned long long)bytes, s->opts.updater->name);
}

/* ---- the end ---- */

static bool all_gone(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers)
		if (!tern_list_entry(n, struct server_peer, node)->gone)
			return false;
	return true;
}

static void tell_end(struct tern_server *s)
{
	if (s->told)
		return;
	s->told = true;
	tern_timer_clear(s->opts.ctx, &s->end_timer);
	tern_timer_clear(s->opts.ctx, &s->late_timer);
	s->opts.ended(s->opts.arg, s->status, s->text);
}

static void end_call(struct tern_deferred *deferred)
{
	struct tern_server *s = tern_container_of(deferred, struct tern_server, end_call);

	if (s->over && all_gone(s))
		tell_end(s);
	guests_reap(s);
}

static void end_timer(struct tern_timer *timer)
{
	tell_end(tern_container_of(timer, struct tern_server, end_timer));
}

/* The listener stays as long as the context: a goodbye may need a connection to be
 * restored. */
static void leave(struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->gone)
			continue;
		if (s->status < 0)
			tern_talk_say(&p->talk,
				json_pack("{s:s, s:o, s:b, s:I}", "type", "abort", "text",
					tern_talk_text(s->text), "save", s->save,
					"finisher", (json_int_t)s->finisher));
		tern_peer_close(p->peer);
	}
	s->end_timer.fire = end_timer;
	tern_timer_set(s->opts.ctx, &s->end_timer, tern_now_ns(s->env) + LEAVING_NS);
	tern_defer(s->opts.ctx, &s->end_call);
}

void server_fail(struct tern_server *s, int status, const char *fmt, ...)
{
	va_list ap;

	if (s->over)
		return;
	s->over = true;
	s->status = status;
	if (s->index == 0)
		s->finisher = leaving_finisher(s);
	va_start(ap, fmt);
	vsnprintf(s->text, sizeof(s->text), fmt, ap);
	va_end(ap);
	leave(s);
}

void server_interrupt(struct tern_server *s, const char *why)
{
	s->save = s->save || !s->over;
	server_fail(s, -ECANCELED, "%s", why);
}

void tern_server_stop(struct tern_server *s, const char *why, bool save)
{
	if (save)
		server_interrupt(s, why);
	else
		server_fail(s, -ECANCELED, "%s", why);
}

/* ---- joining ---- */

bool server_has_joined(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	return p->is_worker || (p->is_server && s->has_job) || p == s->to_zero;
}

void server_refuse(struct server_peer *p, const char *text)
{
	p->refused = p->talk.deaf = true;
	p->is_server &= server_has_joined(p);
	if (server_has_joined(p) || guests_may_note(p->server))
		server_note(
			p->server, "%s was refused: %s", tern_peer_name(p->peer), text);
	tern_talk_say(&p->talk,
		json_pack("{s:s, s:o}", "type", "refused", "text", tern_talk_text(text)));
	tern_peer_close(p->peer);
	guests_refused(p);
}

/* It ends without a word or an event. */
void server_drop(struct server_peer *p)
{
	p->gone = p->freed = true;
	tern_talk_close(&p->talk);
	tern_peer_free(p->peer);
	tern_defer(p->server->opts.ctx, &p->server->end_call);
}

void server_forget_job(struct tern_server *s)
{
	shard_fini(s);
	lease_fini(s);
	norm_fini(s);
	tern_plan_fini(&s->plan);
	tern_ps_job_fini(&s->job);
	free(s->workers);
	s->workers = NULL;
	s->has_job = false;
}

/* A job's first mention: everything that depends on it is made. If that fails, the server
 * waits for another one. */
static int adopt(struct tern_server *s, const struct tern_ps_job *job, uint32_t index,
	struct tern_ps_text *why)
{
	int r = shard_check(s, job, index, why);

	if (r == 0)
		r = tern_ps_job_copy(&s->job, job);
	if (r < 0)
		return r;
	s->has_job = true;
	s->index = index;
	*s->opts.updater->error = '\0';
	s->workers = calloc(job->workers, sizeof(struct server_peer *));
	r = s->workers ? tern_plan_init(&s->plan, job->element_count, job->server_count)
		       : -ENOMEM;
	if (r == 0)
		r = shard_init(s);
	if (r == 0)
		r = lease_init(s);
	if (r == 0 && job->clip_norm > 0)
		r = norm_init(s);
	if (r < 0)
		server_forget_job(s);
	return r;
}

static int decode_job(
	const json_t *message, struct tern_ps_job *job, struct tern_ps_text *why)
{
	int r = tern_ps_job_read(json_object_get(message, "job"), job, why);

	if (r == -ENOMEM)
		snprintf(why->text, sizeof(why->text), "no memory for the job");
	return r;
}

static bool take_job(struct server_peer *p, const json_t *message, uint32_t *index,
	struct tern_ps_text *why)
{
	struct tern_server *s = p->server;
	const json_t *worker = json_object_get(message, "worker");
	const json_t *server = json_object_get(message, "server");
	struct tern_ps_job job = {0};
	bool good = false;
	json_int_t i = json_integer_value(worker), j = json_integer_value(server);

	if (decode_job(message, &job, why) < 0)
		return false;
	if (!json_is_integer(worker) || i < 0 || i >= job.workers) {
		snprintf(why->text, sizeof(why->text), "worker: expected 0 to %u",
			job.workers - 1);
	} else if (!json_is_integer(server) || j < 0 || j >= job.server_count) {
		snprintf(why->text, sizeof(why->text), "server: expected 0 to %u",
			job.server_count - 1);
	} else if (!s->has_job) {
		int r = adopt(s, &job, (uint32_t)j, why);

		good = r == 0;
		if (!good && !*why->text)
			snprintf(why->text, sizeof(why->text),
				"no room for the parameters: %.300s",
				*s->opts.updater->error ? s->opts.updater->error
							: tern_status_text(r));
	} else if (s->index != j) {
		snprintf(why->text, sizeof(why->text),
			"it lists this server as number %d, the job as number %u", (int)j,
			s->index);
	} else {
		good = !tern_ps_job_differs(&s->job, &job, tern_peer_name(p->peer), why);
	}
	*index = (uint32_t)i;
	if (good)
		snprintf(p->zero, sizeof(p->zero), "%s", job.servers[0]);
	tern_ps_job_fini(&job);
	return good;
}

void server_meet_zero(struct tern_server *s)
{
	int r = others_connect(s);

	if (r < 0)
		server_fail(s, r, "server 0 at %s: %s", s->workers[0]->zero,
			r == -EINVAL ? "not an address" : tern_status_text(r));
}

static void welcome(struct server_peer *p)
{
	struct tern_server *s = p->server;

	p->welcome = true;
	s->joined_count++;
	tern_talk_say(&p->talk, json_pack("{s:s}", "type", "welcome"));
	server_note(s, "%s joined, %u of %u", tern_peer_name(p->peer), s->joined_count,
		s->job.workers);
	if (s->joined_count == s->job.workers)
		server_meet_zero(s);
	start_maybe(s);
}

/* For those who came meanwhile. */
void server_shard_made(struct tern_server *s)
{
	note_memory(s);
	for (uint32_t i = 0; i < s->job.workers && !s->over; i++)
		if (s->workers[i])
			welcome(s->workers[i]);
}

/* Another server takes this one for number 0 of its job. The address that it went to was
 * spelt by a worker, perhaps on another host. */
static void check_server(struct server_peer *p)
{
	struct tern_server *s = p->server;
	struct tern_ps_text why = {""};

	if (s->index != 0) {
		snprintf(why.text, sizeof(why.text),
			"%s leads server %u to server %u: the first of --join must be "
			"right on every host",
			p->job.servers[0], p->index, s->index);
	} else if (!tern_ps_job_differs(
			   &s->job, &p->job, tern_peer_name(p->peer), &why)) {
		if (others_find(s, p->index) == p) {
			guests_leave(p);
			guests_forget_job(p);
			return;
		}
		snprintf(why.text, sizeof(why.text),
			"a server of number %u is here already", p->index);
	}
	p->is_server = false;
	server_refuse(p, why.text);
}

static void check_servers(struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->is_server && !p->gone)
			check_server(p);
	}
}

static void on_join(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	struct tern_ps_text why = {""};
	bool first = !s->has_job;
	uint32_t index;

	if (s->over || p->is_worker || p->is_server)
		return;
	if (!take_job(p, message, &index, &why)) {
		server_refuse(p, why.text);
		return;
	}
	if (s->workers[index]) {
		server_refuse(p,
			s->workers[index]->lost
				? "the worker of that number was lost, and none may take "
				  "its place"
				: "a worker of that number is here already");
		return;
	}
	p->is_worker = true;
	guests_leave(p);
	p->index = index;
	s->workers[index] = p;
	if (first) {
		check_servers(s); /* those that came before the job did */
		start_wait(s);
		shard_make(s);
	} else if (shard_is_made(s)) {
		welcome(p);
	}
}

/* `arithmetic` is empty where no norm is added up. */
static void on_peer(struct server_peer *p, const json_t *message)
{
	const json_t *server = json_object_get(message, "server");
	const char *arithmetic =
		json_string_value(json_object_get(message, "arithmetic"));
	const char *mine = p->server->opts.updater->fingerprint;
	struct tern_ps_text why;
	char text[400];

	if (p->is_worker || p->is_server) {
		server_refuse(p, "it says twice what it is");
		return;
	}
	if (decode_job(message, &p->job, &why) < 0) {
		server_refuse(p, why.text);
		return;
	}
	if (guests_keep_job(p) < 0) {
		server_refuse(p, "no room for the jobs of so many servers");
		return;
	}
	if (!json_is_integer(server) || json_integer_value(server) < 1 ||
		json_integer_value(server) >= p->job.server_count) {
		server_refuse(p, "a server says its number, from 1");
		return;
	}
	if (arithmetic && *arithmetic && strcmp(arithmetic, mine) != 0) {
		snprintf(text, sizeof(text),
			"server %d computes with \"%.120s\", server 0 with \"%s\": norms "
			"are added up from both, and need the same",
			(int)json_integer_value(server), arithmetic, mine);
		server_refuse(p, text);
		return;
	}
	p->is_server = true;
	p->index = (uint32_t)json_integer_value(server);
	if (p->server->has_job)
		check_server(p);
	start_maybe(p->server);
}

/* A goodbye in the middle would leave slots to nobody, and a place that nobody gets. */
static bool may_say_bye(const struct server_peer *p)
{
	const struct tern_server *s = p->server;

	return s->over ||
	       (s->job.mode == TERN_MODE_ASYNC ? async_is_done(p) : sync_is_done(s));
}

static void on_bye(struct server_peer *p)
{
	struct tern_server *s = p->server;

	if (p->said_bye)
		return;
	if (!may_say_bye(p)) {
		lease_lost(p, false, "%s: it says goodbye before the last step",
			tern_peer_name(p->peer));
		return;
	}
	p->said_bye = true;
	s->bye_count++;
	lease_on_bye(s);
	server_maybe_end(s);
}

/* Everybody is accounted for. One who said goodbye saw the results safe. */
void server_maybe_end(struct tern_server *s)
{
	if (s->over || !s->running || s->bye_count + s->lost_count < s->job.workers)
		return;
	if (s->bye_count == 0) {
		server_fail(s, -EPIPE, "no worker is left: %s", s->first_loss);
		return;
	}
	s->over = true;
	leave(s);
}

/* Another server, or a worker, ends the job. */
void server_aborted(struct server_peer *p, const char *name, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	const json_t *finisher = json_object_get(message, "finisher");
	char why[400];

	snprintf(why, sizeof(why), "%s: %s", name, text ? text : "it gave up");
	/* A worker may pass on what server 0 has said before server 0 is heard itself. */
	if (!p->server->over && p->server->index != 0 && json_is_integer(finisher))
		p->server->finisher = json_integer_value(finisher);
	if (!p->server->running && p->is_worker)
		lease_lost(p, false, "%s", why);
	else if (json_is_true(json_object_get(message, "save")))
		server_interrupt(p->server, why);
	else
		server_fail(p->server, -ECANCELED, "%s", why);
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);
	const char *type = tern_talk_type(message);
	const char *text = json_string_value(json_object_get(message, "text"));

	if (p->gone || p->refused)
		return; /* it was cut off, or refused, while this was on its way */
	if (strcmp(type, "join") == 0) {
		on_join(p, message);
	} else if (strcmp(type, "peer") == 0) {
		on_peer(p, message);
	} else if (strcmp(type, "bye") == 0 && p->is_worker) {
		on_bye(p);
	} else if (strcmp(type, "take") == 0 && p->is_worker) {
		lease_on_take(p, message);
	} else if (strcmp(type, "holds") == 0 && p->is_worker) {
		lease_on_holds(p, message);
	} else if (strcmp(type, "where") == 0 && p->is_worker) {
		spare_on_where(p);
	} else if (strcmp(type, "follow") == 0 && p->is_worker) {
		spare_on_follow(p, message);
	} else if (strcmp(type, "done") == 0 && p->is_worker) {
		lease_on_done(p);
	} else if (strcmp(type, "pull") == 0 && p->is_worker) {
		async_on_pull(p);
	} else if (strcmp(type, "leave") == 0 && p->is_worker) {
		leaving_on_leave(p, message);
	} else if (strcmp(type, "busy") == 0 && p->is_worker) {
		late_on_busy(p, message);
	} else if (strcmp(type, "failed") == 0 && p->is_worker) {
		lease_lost(p, false, "%s: %s", tern_peer_name(p->peer),
			text ? text : "it gave up");
	} else if (strcmp(type, "lost") == 0 && p->is_server) {
		lease_on_lost(p, message);
	} else if (strcmp(type, "abort") == 0 && server_has_joined(p)) {
		server_aborted(p, tern_peer_name(p->peer), message);
	} else {
		server_refuse(p, talk->overrun
					 ? "it says more than a job can have"
					 : "a message that this server does not know");
	}
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
		if (server_has_joined(p))
			server_note(s, "%s is silent: %s", tern_peer_name(peer),
				tern_status_text(status));
		break;
	case TERN_PEER_RECOVERED:
		if (server_has_joined(p))
			server_note(s, "%s is back", tern_peer_name(peer));
		break;
	case TERN_PEER_DOWN:
		p->gone = true;
		tern_talk_close(&p->talk);
		if (p->is_worker && !p->said_bye)
			lease_lost(p, false, "%s is gone: %s", tern_peer_name(peer),
				status ? tern_status_text(status) : "it left too early");
		if (p->is_server && server_has_joined(p))
			others_lost(p, status, tern_peer_name(peer));
		tern_defer(s->opts.ctx, &s->end_call);
		break;
	}
}

/* It cannot go on with this peer. */
void server_broken(struct tern_talk *talk, int status)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);
	char text[300];

	snprintf(text, sizeof(text), "a tensor did not come through: %s",
		tern_status_text(status));
	if (p->server->over)
		return;
	if (p->is_worker)
		lease_lost(p, false, "%s: %s", tern_peer_name(p->peer), text);
	else if (server_has_joined(p))
		server_fail(p->server, status, "%s: %s", tern_peer_name(p->peer), text);
	else
		server_refuse(p, text);
}

static void idle(struct tern_talk *talk)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);

	tern_defer(p->server->opts.ctx, &p->server->end_call); /* to free it */
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct tern_server *s = arg;
	struct server_peer *p = s->over ? NULL : calloc(1, sizeof(*p));
	char name[32];

	if (!p) {
		tern_peer_free(peer);
		return;
	}
	p->server = s;
	p->peer = peer;
	p->talk.pool = s->talk_pool;
	p->talk.ctx = s->opts.ctx;
	p->talk.heard = heard;
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
	struct tern_pool_opts talk = {
		.slab_bytes = 1u << 20, .max_bytes = TERN_PS_SAID_MAX};
	struct tern_peer_opts peer = {.name = "server"};
	int r;

	if (!s)
		return -ENOMEM;
	s->opts = *opts;
	s->finisher = -1;
	s->env = tern_context_env(opts->ctx);
	tern_list_init(&s->peers);
	tern_list_init(&s->holding);
	tern_list_init(&s->extras);
	tern_list_init(&s->end_call.link);
	s->end_call.call = end_call;
	if (!s->opts.staging_bytes)
		s->opts.staging_bytes = STAGING_BYTES;
	pool.max_bytes = TERN_POOL_BYTES_MAX; /* the budget is what bounds it */
	guests_init(s);
	r = tern_pool_new(opts->domain, &pool, &s->staging);
	if (r == 0)
		r = tern_pool_new(opts->domain, &talk, &s->talk_pool);
	if (r == 0)
		r = tern_listen(
			opts->ctx, opts->listen, &peer, on_accept, s, &s->listener);
	if (r < 0) {
		tern_pool_free(s->talk_pool);
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
	out->steps = s->chunk_count ? UINT64_MAX : 0;
	for (uint32_t i = 0; i < s->chunk_count; i++)
		out->steps = TERN_MIN(out->steps, s->chunks[i].version);
}

void tern_server_free(struct tern_server *s)
{
	struct tern_list *n;

	if (!s)
		return;
	while ((n = tern_list_pop(&s->peers))) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		tern_ps_job_fini(&p->job);
		free(p->pull);
		free(p);
	}
	server_forget_job(s);
	tern_pool_free(s->talk_pool);
	tern_pool_free(s->staging);
	free(s);
}
