/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports what this worker waits for, when it has done no step for QUIET_NS, and again
 * after twice that time, four times, and so on. A worker that has no slot yet makes no
 * steps and reports nothing. A worker of a job that has not begun for so long leaves a server that
 * another one may have replaced (places.c).
 */
#include "client/worker_state.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"

#define QUIET_NS (10 * TERN_NS_PER_S)

static bool is_missing(const struct tern_worker *w, uint32_t server)
{
	unsigned next = (w->version + 1) & 1;

	for (uint32_t i = 0; i < w->plan.chunk_count; i++)
		if (w->plan.chunks[i].server == server &&
			w->parts[next][i].req.status == -EINPROGRESS)
			return true;
	return false;
}

static void name_servers(const struct tern_worker *w, char *text, size_t bytes)
{
	size_t n = (size_t)snprintf(text, bytes, "parameters from server");

	for (uint32_t i = 0; i < w->job.server_count && n < bytes - 20; i++)
		if (is_missing(w, i))
			n += (size_t)snprintf(text + n, bytes - n, " %u", i);
}

static bool has_all_parameters(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (is_missing(w, i))
			return false;
	return true;
}

static const struct worker_server *unwelcome(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (!w->servers[i].welcome)
			return &w->servers[i];
	return NULL;
}

static void name_cause(const struct tern_worker *w, char *text, size_t bytes)
{
	const struct worker_server *s = unwelcome(w);

	if (w->state == WORKER_FINISHING && w->results.finisher)
		snprintf(text, bytes, "this worker's own evaluation or saving");
	else if (w->state == WORKER_FINISHING)
		snprintf(
			text, bytes, "worker %u, which evaluates and saves", w->finisher);
	else if (s)
		snprintf(text, bytes, "server %u at %s to let it join", s->number,
			w->job.servers[s->index]);
	else if (!w->begun && w->joined_late)
		snprintf(text, bytes, "the servers to let it in between two steps");
	else if (!w->begun)
		snprintf(text, bytes, "%s",
			w->has_given ? "other workers or servers to join, or the initial "
				       "values that a worker gives"
				     : "other workers or servers to join");
	else if (w->keep.awaited)
		snprintf(text, bytes, "server 0 to keep the blob of step %llu",
			(unsigned long long)w->version + 1);
	else if (w->computing)
		snprintf(text, bytes, "its own computation");
	else if (has_all_parameters(w))
		snprintf(text, bytes, "servers to take its gradients");
	else
		name_servers(w, text, bytes);
}

void tern_worker_describe(const struct tern_worker *w, char *text, size_t bytes)
{
	char cause[260];

	name_cause(w, cause, sizeof(cause));
	snprintf(text, bytes, "step %llu of %llu, this worker waits for %s",
		(unsigned long long)w->version, (unsigned long long)w->my_steps,
		w->over ? "its connections to end" : cause);
}

static void fire(struct tern_timer *timer)
{
	struct tern_worker *w = tern_container_of(timer, struct tern_worker, wait_timer);
	char cause[260], text[400];

	if (w->over || w->opts.ctx->ending)
		return;
	if ((w->spare && w->begun) || w->begun != w->wait_begun ||
		w->version != w->wait_version) {
		worker_wait_start(w);
		return;
	}
	if (!w->begun && places_turn_at_last(w))
		return;
	name_cause(w, cause, sizeof(cause));
	snprintf(text, sizeof(text), "no step for %llu s: this worker waits for %s",
		(unsigned long long)(w->wait_ns / TERN_NS_PER_S), cause);
	if (w->opts.waiting)
		w->opts.waiting(w->opts.arg, text);
	/* The next report comes when the time without a step has doubled. */
	tern_timer_set(w->opts.ctx, &w->wait_timer, tern_now_ns(w->env) + w->wait_ns);
	w->wait_ns *= 2;
}

void worker_wait_start(struct tern_worker *w)
{
	w->wait_begun = w->begun;
	w->wait_version = w->version;
	w->wait_ns = QUIET_NS;
	w->wait_timer.fire = fire;
	tern_timer_set(w->opts.ctx, &w->wait_timer, tern_now_ns(w->env) + QUIET_NS);
}
