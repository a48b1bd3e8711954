/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that is asked to end (SIGTERM) says "leave" to server 0 and works on until
 * server 0 has decided about it. The decision waits a second, because whoever ends a
 * whole job (Slurm, Kubernetes) asks all its processes within a moment:
 *
 *     others stay    the leaving workers may go: each ends as one that fails alone, and
 *                    its slots go to the others (lease.c)
 *     nobody stays   the job ends, and the first worker that is here and has no leave to
 *                    go saves what it has
 *     others stay, and all of these make no progress, while somebody waits for them
 *                    undecided, until one of them goes on or all are lost (late.c)
 */
#include "server/internal.h"

#include "base/clock.h"

#define LEAVE_NS TERN_NS_PER_S

static bool is_here(const struct server_peer *worker)
{
	return !worker->lost && !worker->said_bye && !worker->gone && !worker->may_go;
}

/* Nobody stays, and nobody has saved the results yet. */
static bool all_leave(const struct tern_server *s)
{
	if (s->bye_count > 0)
		return false;
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (is_here(s->workers[i]) && !s->workers[i]->leaving)
			return false;
	return true;
}

/* Whoever makes no progress may hang, and nobody would go on with the job. */
static bool somebody_goes_on(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++) {
		const struct server_peer *p = s->workers[i];

		if (is_here(p) && !p->leaving && !(p->owes && p->late_ns))
			return true;
	}
	return false;
}

int64_t leaving_finisher(const struct tern_server *s)
{
	for (uint32_t i = 0; s->running && i < s->job.workers; i++)
		if (is_here(s->workers[i]))
			return i;
	return -1;
}

static void set_timer(struct tern_server *s);

static void decide(struct tern_server *s)
{
	tern_timer_clear(s->opts.ctx, &s->leave_timer);
	if (s->over || s->opts.ctx->ending)
		return;
	if (all_leave(s)) {
		server_interrupt(s, "every worker was asked to end");
		return;
	}
	if (!somebody_goes_on(s)) {
		set_timer(s);
		return;
	}
	for (uint32_t i = 0; i < s->job.workers; i++) {
		struct server_peer *p = s->workers[i];

		if (!is_here(p) || !p->leaving)
			continue;
		p->may_go = true;
		tern_talk_say(&p->talk, json_pack("{s:s}", "type", "leave"));
	}
}

static void leave_timer(struct tern_timer *timer)
{
	decide(tern_container_of(timer, struct tern_server, leave_timer));
}

static void set_timer(struct tern_server *s)
{
	s->leave_timer.fire = leave_timer;
	tern_timer_set(s->opts.ctx, &s->leave_timer,
		tern_now_ns(s->env) + (s->opts.leave_ns ? s->opts.leave_ns : LEAVE_NS));
}

void leaving_on_leave(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const char *text = json_string_value(json_object_get(message, "text"));

	if (s->over || p->leaving)
		return;
	/* Only server 0 decides, and only between workers that have begun. */
	if (!s->running || s->index != 0) {
		lease_lost(p, false, "%s: %s", tern_peer_name(p->peer),
			text ? text : "it leaves");
		return;
	}
	p->leaving = true;
	if (all_leave(s)) {
		decide(s);
		return;
	}
	set_timer(s);
}
