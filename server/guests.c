/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests: peers that connected and have not been taken as a worker or a server of the
 * job. Anybody who may connect can be one, so a guest ends alone, whatever it does, and
 * nothing of it stays.
 *
 * Bounds: a guest has GUEST_NS to join, and is cut LEAVING_NS after it was refused. There
 * are at most opts.guests_max of them: one more takes the place of the one that is here
 * longest. What they say in more than one piece takes TEXT_MAX bytes in all.
 */
#include "server/internal.h"

#include <errno.h>

#include "base/clock.h"
#include "base/util.h"

#define GUESTS_MAX 512u
#define GUEST_NS   (30 * TERN_NS_PER_S)
#define LEAVING_NS (5 * TERN_NS_PER_S)
#define NOTES_NS   (10 * TERN_NS_PER_S)
#define NOTES_MAX  16u
#define BYTES_MAX  (4ull * TERN_PS_TEXT_MAX)

int guests_keep_job(struct server_peer *p)
{
	uint64_t bytes = tern_ps_job_bytes(&p->job);

	if (bytes > p->server->guest_bytes_left) {
		tern_ps_job_fini(&p->job);
		return -ENOBUFS;
	}
	p->server->guest_bytes_left -= bytes;
	return 0;
}

void guests_forget_job(struct server_peer *p)
{
	p->server->guest_bytes_left += tern_ps_job_bytes(&p->job);
	tern_ps_job_fini(&p->job);
}

bool guests_may_note(struct tern_server *s)
{
	uint64_t now_ns = tern_now_ns(s->env);

	if (now_ns >= s->notes_ns) {
		if (s->notes_dropped)
			server_note(s, "%u more peers were refused", s->notes_dropped);
		s->notes_ns = now_ns + NOTES_NS;
		s->notes_left = NOTES_MAX;
		s->notes_dropped = 0;
	}
	s->notes_dropped += s->notes_left == 0;
	return s->notes_left && s->notes_left--;
}

static void guest_free(struct server_peer *p)
{
	if (!p->freed)
		tern_peer_free(p->peer);
	tern_timer_clear(p->server->opts.ctx, &p->guest_timer);
	tern_list_remove(&p->node);
	guests_forget_job(p);
	free(p);
}

void guests_reap(struct tern_server *s)
{
	tern_list_for_each_safe (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->gone && !server_has_joined(p) && tern_talk_is_idle(&p->talk))
			guest_free(p);
	}
}

static void time_is_up(struct tern_timer *timer);

static void set_timer(struct server_peer *p, uint64_t in_ns)
{
	struct tern_server *s = p->server;

	/* Also for a connection to server 0, which was no guest when it was made. */
	p->guest_timer.fire = time_is_up;
	tern_timer_set(s->opts.ctx, &p->guest_timer, tern_now_ns(s->env) + in_ns);
}

static void time_is_up(struct tern_timer *timer)
{
	struct server_peer *p = tern_container_of(timer, struct server_peer, guest_timer);

	if (p->gone || p->server->opts.ctx->ending)
		return;
	if (p->refused)
		server_drop(p);
	else
		server_refuse(p, "it is no part of the job after 30 s");
}

/* The oldest guest goes if there is no place for one more. */
static void make_place(struct tern_server *s)
{
	struct server_peer *oldest = NULL;
	uint32_t count = 0;

	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->gone || server_has_joined(p))
			continue;
		if (!oldest)
			oldest = p;
		count++;
	}
	if (count >= s->opts.guests_max)
		server_drop(oldest);
}

void guests_init(struct tern_server *s)
{
	if (!s->opts.guests_max)
		s->opts.guests_max = GUESTS_MAX;
	s->guest_bytes_left = BYTES_MAX;
}

void guests_enter(struct server_peer *p)
{
	struct tern_server *s = p->server;

	guests_reap(s);
	make_place(s);
	p->talk.text_left = &s->guest_bytes_left;
	set_timer(p, GUEST_NS);
}

void guests_leave(struct server_peer *p)
{
	p->talk.text_left = NULL;
	tern_timer_clear(p->server->opts.ctx, &p->guest_timer);
}

void guests_refused(struct server_peer *p)
{
	if (!server_has_joined(p))
		set_timer(p, LEAVING_NS);
}
