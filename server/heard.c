/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which messages a server accepts, from whom, and when. A guest, worker or server that
 * sends a message without a row in the table `words` is refused: its connection is
 * closed. If server 0 sends one, the job ends, since no server can go on without server
 * 0.
 *
 * ps/talk.h says what the messages mean.
 */
#include "server/blobs.h"
#include "server/cut.h"
#include "server/follow.h"
#include "server/membership.h"
#include "server/snapshots.h"
#include "server/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum speaker {
	GUEST = 1,
	WORKER = 2,
	SERVER = 4,     /* on server 0: another server of the job */
	ZERO = 8,       /* on the other servers: server 0 */
	RETURNING = 16, /* a worker that joins during the steps (change.c) */
	NEWCOMER = 32,  /* a server that has told its address (members.c) */
	FOLLOWER = 64,  /* follow.c */
};

enum when {
	ANY_TIME,
	BEFORE_THE_STEPS,
	SYNC_MODE,  /* in sync mode, also before the steps */
	SYNC_STEPS, /* in sync mode, during the steps */
	ASYNC_STEPS,
};

/* ---- handlers that need another prototype ---- */

static void on_second(struct server_peer *p, const json_t *message)
{
	(void)message;
	server_refuse(p, "it has joined already, as %s %u",
		p->is_worker ? "worker" : "server", p->index);
}

static void on_where(struct server_peer *p, const json_t *message)
{
	(void)message;
	spare_on_where(p);
}

static void on_done(struct server_peer *p, const json_t *message)
{
	(void)message;
	lease_on_done(p);
}

static void on_pull(struct server_peer *p, const json_t *message)
{
	(void)message;
	async_on_pull(p);
}

static void on_bye(struct server_peer *p, const json_t *message)
{
	(void)message;
	server_on_bye(p);
}

static void on_start(struct server_peer *p, const json_t *message)
{
	start_on_start(p->server, message);
}

static void on_again(struct server_peer *p, const json_t *message)
{
	(void)message;
	start_on_again(p->server);
}

static void on_given(struct server_peer *p, const json_t *message)
{
	(void)message;
	given_on_begin(p);
}

static void on_snapshot_wanted(struct server_peer *p, const json_t *message)
{
	(void)message;
	snapshots_ask(p->server);
}

static void on_abort(struct server_peer *p, const json_t *message)
{
	server_aborted(p, tern_peer_name(p->peer), message);
}

static void on_abort_by_zero(struct server_peer *p, const json_t *message)
{
	server_aborted(p, "server 0", message);
}

/* A server 0 that ends goes back, perhaps, or was asked to end, and another one will come. */
static void on_refused_by_zero(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;

	if (s->opts.goes_back && !s->running &&
		(json_is_true(json_object_get(message, "ending")) ||
			json_is_true(json_object_get(message, "later"))))
		start_on_again(s);
	else
		server_aborted(p, "server 0", message);
}

/* A worker that this server has not welcomed gives up, and will close the connection. */
static void on_giving_up(struct server_peer *p, const json_t *message)
{
	(void)p;
	(void)message;
}

static void on_removed(struct server_peer *p, const json_t *message)
{
	view_on_removed(p->server, message);
}

/* ---- the table ---- */

static const struct word {
	const char *type;
	unsigned from;
	enum when when;
	void (*on)(struct server_peer *p, const json_t *message);
} words[] = {
	{"join", GUEST, ANY_TIME, join_on_join},
	{"peer", GUEST, ANY_TIME, join_on_peer},
	{"address", GUEST | NEWCOMER, ANY_TIME, members_on_address},
	{"follow", GUEST, ANY_TIME, follow_on_follow},
	{"drain", GUEST, ANY_TIME, view_on_drain},
	{"end", GUEST, ANY_TIME, abort_on_end},
	{"status", GUEST, ANY_TIME, status_on_status},
	{"begins", GUEST, ANY_TIME, store_on_begins},
	{"read", GUEST, ANY_TIME, store_on_read},
	{"join", WORKER | SERVER | RETURNING, ANY_TIME, on_second},
	{"peer", WORKER | SERVER | RETURNING, ANY_TIME, on_second},
	{"ready", RETURNING, SYNC_STEPS, change_on_ready},
	{"gave", WORKER, SYNC_STEPS, change_on_gave},
	{"pause", ZERO, SYNC_STEPS, change_on_pause},
	{"pausing", SERVER, SYNC_STEPS, change_on_pausing},
	{"paused", SERVER, SYNC_STEPS, change_on_paused},
	{"change", ZERO, SYNC_STEPS, change_on_change},
	{"take", WORKER, SYNC_STEPS, lease_on_take},
	{"holds", WORKER, SYNC_STEPS, lease_on_holds},
	{"keep", WORKER, SYNC_STEPS, blobs_on_keep},
	{"blob", FOLLOWER, ANY_TIME, follow_on_blob},
	{"followed", SERVER | ZERO, SYNC_MODE, follow_on_followed},
	{"digests", WORKER, SYNC_STEPS, twice_on_digests},
	{"where", WORKER, SYNC_MODE, on_where},
	{"follow", WORKER, SYNC_MODE, spare_on_follow},
	{"pull", WORKER, ASYNC_STEPS, on_pull},
	{"done", WORKER, ANY_TIME, on_done},
	{"busy", WORKER, ANY_TIME, late_on_busy},
	{"progress", WORKER, ANY_TIME, progress_on_progress},
	{"leave", WORKER, ANY_TIME, leaving_on_leave},
	{"here", WORKER, ANY_TIME, leaving_on_here},
	{"failed", WORKER | RETURNING, ANY_TIME, lease_on_failed},
	{"failed", GUEST, ANY_TIME, on_giving_up},
	{"bye", WORKER, ANY_TIME, on_bye},
	{"lost", SERVER, ANY_TIME, lease_on_report},
	{"lost", ZERO, ANY_TIME, lease_on_decision},
	{"start", ZERO, ANY_TIME, on_start},
	{"again", ZERO, BEFORE_THE_STEPS, on_again},
	{"giver", ZERO, ANY_TIME, given_on_giver},
	{"given", SERVER, ANY_TIME, given_on_report},
	{"given", ZERO, ANY_TIME, on_given},
	{"snapshot", SERVER, ANY_TIME, snapshots_on_report},
	{"snapshot", ZERO, ANY_TIME, snapshots_on_begin},
	{"part", SERVER, ANY_TIME, store_on_part},
	{"part", ZERO, ANY_TIME, remote_on_part},
	{"snapshot_wanted", SERVER, ANY_TIME, on_snapshot_wanted},
	{"cut", ZERO, ASYNC_STEPS, cut_on_cut},
	{"cut", SERVER, ASYNC_STEPS, cut_on_steps},
	{"leaving", SERVER, SYNC_MODE, back_on_leaving},
	{"abort", WORKER | SERVER | RETURNING, ANY_TIME, on_abort},
	{"abort", ZERO, ANY_TIME, on_abort_by_zero},
	{"removed", ZERO, ANY_TIME, on_removed},
	{"refused", ZERO, ANY_TIME, on_refused_by_zero},
};

static enum speaker speaker_of(const struct server_peer *p)
{
	if (p == p->server->to_zero)
		return ZERO;
	if (p->is_server)
		return SERVER;
	if (p->returning)
		return RETURNING;
	if (p->address)
		return NEWCOMER;
	if (p->is_follower)
		return FOLLOWER;
	return p->is_worker ? WORKER : GUEST;
}

static const char *name_of(enum speaker speaker)
{
	switch (speaker) {
	case GUEST:
		return "a process that has not joined";
	case WORKER:
		return "a worker";
	case SERVER:
		return "a server";
	case ZERO:
		return "server 0";
	case RETURNING:
		return "a worker that is not let in yet";
	case NEWCOMER:
		return "a server that has told its address";
	case FOLLOWER:
		return "a follower";
	}
	tern_never("unknown kind of sender");
}

static const struct word *find(const char *type, enum speaker speaker)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(words); i++)
		if (words[i].from & speaker && strcmp(words[i].type, type) == 0)
			return &words[i];
	return NULL;
}

/* True if the job is of this mode and its steps may have begun. A server without a chunk
 * receives no gradients, so no process waits for it: on the other servers the steps may
 * have begun before it receives "start". */
static bool makes_steps(const struct tern_server *s, enum tern_mode mode)
{
	return s->has_job && s->job.mode == mode &&
	       (steps_have_begun(s) || s->chunk_count == 0);
}

static bool is_time(const struct tern_server *s, enum when when)
{
	switch (when) {
	case ANY_TIME:
		return true;
	case BEFORE_THE_STEPS:
		return !s->running;
	case SYNC_MODE:
		return s->job.mode == TERN_MODE_SYNC;
	case SYNC_STEPS:
		return makes_steps(s, TERN_MODE_SYNC);
	case ASYNC_STEPS:
		return makes_steps(s, TERN_MODE_ASYNC);
	}
	tern_never("unknown time of a message");
}

/* Explains why a message of this type is not accepted; `word` is NULL if it has no
 * row. */
static void explain(const struct server_peer *p, const json_t *message,
	const struct word *word, char *text, size_t bytes)
{
	const struct tern_server *s = p->server;
	const char *type = tern_talk_type(message);

	if (!message)
		snprintf(text, bytes, "%s", p->talk.fault);
	else if (!word)
		snprintf(text, bytes,
			"its message is of type \"%.40s\", which %s does not send", type,
			name_of(speaker_of(p)));
	else if (word->when == BEFORE_THE_STEPS)
		snprintf(text, bytes, "its message \"%s\" came after the steps began",
			type);
	else if ((word->when == ASYNC_STEPS) != (s->job.mode == TERN_MODE_ASYNC))
		snprintf(text, bytes, "its message \"%s\" is not sent in %s mode", type,
			tern_mode_text(s->job.mode, s->job.ssp).text);
	else
		snprintf(text, bytes, "its message \"%s\" came before the steps began",
			type);
}

void server_heard(struct tern_talk *talk, const json_t *message)
{
	struct server_peer *p = tern_container_of(talk, struct server_peer, talk);
	const struct word *word = find(tern_talk_type(message), speaker_of(p));
	struct tern_server *s = p->server;
	char text[200];

	/* The peer was cut off or refused, or this server has ended the job, while the
	 * message was in flight. */
	if (p->gone || p->refused)
		return;
	if (s->over) {
		abort_on_late(p, message);
		return;
	}
	if (change_delays(p, message) && find(tern_talk_type(message), WORKER)) {
		change_keep(p, message);
		return;
	}
	/* A worker that is asked to join here again may take part already, as server 0 says. It
	 * will be lost, since it has not joined this server in time, and come again. */
	if (p->asks_again && find(tern_talk_type(message), WORKER))
		return;
	if (word && is_time(s, word->when)) {
		word->on(p, message);
		return;
	}
	explain(p, message, word, text, sizeof(text));
	if (p == s->to_zero)
		server_fail(s, -EPROTO, "server 0: %s", text);
	else
		server_refuse(p, "%s", text);
}
