/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going back with the job (server_wait_s in struct tern_session_opts). A job whose servers take
 * snapshots goes back to the newest one when a server is lost (server/back.c), and each process is
 * made anew for that. A session makes its worker anew on the program's context:
 *
 * - The slot that the program holds is revoked. Its parameters lie in buffers of the old worker, so
 *   the old worker stays until the program has ended the slot.
 * - The old worker frees its peers and waits until none of its requests is under way (let_go.c).
 *   Timers ask for that, since nothing here may block.
 * - The next worker takes over the memory of the old one. So the session needs no more memory, and
 *   mappings of the parameters (tern_slot_map()) stay right.
 *
 * A finisher that has the final parameters does not go back: it uses them, and so the job is
 * complete for its program, also if the worker ends only after that. Others that wait for it make
 * the last steps again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/session.h"
#include "client/session_state.h"
#include "ps/given.h"

#define ASK_NS       TERN_NS_PER_MS /* between two looks whether the old worker is gone */
#define PAUSE_NS     (5 * TERN_NS_PER_MS)
#define PAUSE_MAX_NS (200 * TERN_NS_PER_MS)
/* How often a worker comes again that was lost while it lived, in how long. */
#define CUT_MOST      3u
#define CUT_WINDOW_NS (600 * TERN_NS_PER_S)

static uint64_t now_ns(const struct tern_session *s)
{
	return tern_now_ns(tern_context_env(s->ctx));
}

static void tell(struct tern_session *s)
{
	if (s->opts.event)
		s->opts.event(s->opts.arg);
}

const struct tern_view *session_view(const struct tern_session *s)
{
	return s->back.view;
}

/* ---- what the worker says ---- */

/* A server is at a new address. */
static void moved(void *arg, uint32_t server, const char *address)
{
	struct tern_session *s = arg;
	struct tern_view *view = s->back.view;
	uint32_t index = tern_view_find(view, server);

	snprintf(view->servers[index], sizeof(view->servers[0]), "%s", address);
	if (!view->added[index])
		snprintf(
			s->job.servers[server], sizeof(s->job.servers[0]), "%s", address);
	tell(s);
}

/* The job has other servers. */
static bool viewed(void *arg, const struct tern_view *view)
{
	struct tern_session *s = arg;
	struct tern_view located = *view;

	if (!tern_view_locate(&located, s->job.servers, s->job.server_count))
		return false;
	*s->back.view = located;
	tell(s);
	return true;
}

/* The steps begin. If that is further back than the program was, it is told so. */
static void begun(void *arg, uint64_t first)
{
	struct tern_session *s = arg;
	struct session_back *b = &s->back;
	unsigned long long from = b->reached, to = first;
	char text[200];

	b->has_begun = true;
	b->limit_ns = b->pause_ns = 0;
	*b->why = '\0';
	tern_timer_clear(s->ctx, &b->limit_timer);
	b->rolled_from = from > to ? from : 0;
	if (!b->rolled_from)
		return;
	snprintf(text, sizeof(text),
		"the job goes on from step %llu: %llu step%s made again", to, from - to,
		from - to == 1 ? " is" : "s are");
	session_note(s, text);
	if (s->opts.rolled_back)
		s->opts.rolled_back(s->opts.arg, from, to);
}

void session_back_join(
	struct tern_session *s, struct tern_worker_opts *opts, struct tern_ps_job *job)
{
	struct session_back *b = &s->back;

	if (!b->wait_ns)
		return;
	opts->goes_back = true;
	opts->returns = b->limit_ns > 0;
	opts->has_begun = b->has_begun;
	opts->begun = begun;
	opts->places = b->places;
	opts->moved = moved;
	opts->viewed = viewed;
	job->servers = b->view->servers;
	job->server_count = b->view->count;
	tern_view_set_job(b->view, job);
}

/* ---- the old worker ends, and another one takes its place ---- */

static void end(struct tern_session *s, int status, const char *text)
{
	s->back.state = BACK_AT_WORK;
	tern_timer_clear(s->ctx, &s->back.timer);
	tern_timer_clear(s->ctx, &s->back.limit_timer);
	session_end(s, status, text);
}

static void make_worker(struct tern_session *s)
{
	struct tern_worker_pools pools;
	int r;

	tern_worker_free_for_next(TERN_TAKE(s->worker), &pools);
	s->back.state = BACK_AT_WORK;
	r = session_join(s, (const float *const *)s->back.given, &pools);
	tern_worker_pools_free(&pools);
	if (r < 0)
		end(s, r, s->text);
	else
		tell(s);
}

static void ask(struct tern_timer *timer)
{
	struct tern_session *s =
		tern_container_of(timer, struct tern_session, back.timer);
	struct session_back *b = &s->back;
	bool gone;

	if (s->ctx->ending || b->state != BACK_ENDING)
		return;
	gone = tern_worker_let_go(s->worker);
	if (gone && s->slot.held)
		return; /* session_back_slot_ended() asks again */
	if (gone && now_ns(s) >= b->next_ns)
		make_worker(s);
	else
		tern_timer_set(s->ctx, timer,
			gone ? b->next_ns : tern_ns_add(now_ns(s), ASK_NS));
}

static void ask_now(struct tern_session *s)
{
	s->back.timer.fire = ask;
	tern_timer_set(s->ctx, &s->back.timer, now_ns(s));
}

void session_back_slot_ended(struct tern_session *s)
{
	if (s->back.state == BACK_ENDING)
		ask_now(s);
}

/* The session is to end, when the worker has ended, unless that has happened already. */
static void end_with_worker(struct tern_session *s, int status, const char *text)
{
	struct session_back *b = &s->back;

	if (b->state != BACK_AT_WORK) {
		end(s, status, text);
		return;
	}
	b->ends = true;
	b->end_status = status;
	snprintf(b->end_why, sizeof(b->end_why), "%s", text);
}

static void give_up(struct tern_timer *timer)
{
	struct tern_session *s =
		tern_container_of(timer, struct tern_session, back.limit_timer);
	char what[300], text[400];

	if (s->ctx->ending || s->ended || s->back.state == BACK_ALONE)
		return;
	tern_session_describe(s, what, sizeof(what));
	snprintf(text, sizeof(text), "the job has not gone on for %llu s: %s",
		(unsigned long long)(s->back.wait_ns / TERN_NS_PER_S), what);
	end_with_worker(s, -ETIMEDOUT, text);
	if (!s->ended)
		tern_worker_ask_to_leave(s->worker, text);
}

/* Says why the session goes back, each reason once in a row, and at most one a second: reasons may
 * alternate. `cut`: no server is lost, but the others have gone on without this worker. */
static void tell_why(struct tern_session *s, const char *why, bool cut)
{
	struct session_back *b = &s->back;
	uint64_t now = now_ns(s);
	char text[700];

	if (b->limit_ns &&
		(now < b->next_note_ns || strncmp(why, b->why, sizeof(b->why) - 1) == 0))
		return;
	if (b->limit_ns)
		snprintf(text, sizeof(text), "%.511s", why);
	else if (cut)
		snprintf(text, sizeof(text), "%.511s: this worker comes again", why);
	else
		snprintf(text, sizeof(text),
			"%.420s: this worker waits up to %llu s for all servers, and "
			"goes on with them from what they have in memory, or from their "
			"newest snapshot",
			why, (unsigned long long)(b->wait_ns / TERN_NS_PER_S));
	session_note(s, text);
	b->next_note_ns = tern_ns_add(now, TERN_NS_PER_S);
	snprintf(b->why, sizeof(b->why), "%s", why);
}

static void begin(struct tern_session *s, const char *why, bool cut)
{
	struct session_back *b = &s->back;

	tell_why(s, why, cut);
	if (!b->limit_ns) {
		b->limit_ns = tern_ns_add(now_ns(s), b->wait_ns);
		b->limit_timer.fire = give_up;
		tern_timer_set(s->ctx, &b->limit_timer, b->limit_ns);
	}
	b->pause_ns = b->pause_ns ? TERN_MIN(2 * b->pause_ns, PAUSE_MAX_NS) : PAUSE_NS;
	b->next_ns = tern_ns_add(now_ns(s), b->pause_ns);
	b->state = BACK_ENDING;
	s->final = NULL;
	s->was_finisher = false;
	ask_now(s);
}

/* The others go on without this worker, which lives. True: it may come again, unless that
 * happens time and again, since it is too slow, say. */
static bool may_come_again(struct tern_session *s)
{
	return tern_recent_count(&s->back.cuts, CUT_WINDOW_NS, CUT_MOST, now_ns(s));
}

bool session_back_ended(struct tern_session *s, int status, const char *text, bool cut)
{
	struct session_back *b = &s->back;

	if (!b->wait_ns)
		return false;
	if (b->finished && (status == -EAGAIN || cut))
		end(s, 0, "");
	else if (b->ends && (status == -EAGAIN || status == -ECANCELED))
		end(s, b->end_status, b->end_why);
	else if (status == -EAGAIN && s->evaluation)
		b->state = BACK_ALONE;
	else if (status == -EAGAIN ||
		 (cut && !b->ends && !s->evaluation && may_come_again(s)))
		begin(s, text, status != -EAGAIN);
	else
		return false;
	return true;
}

/* ---- what the program does ---- */

uint64_t session_back_given(struct tern_session *s, uint64_t step)
{
	uint64_t from = s->back.rolled_from;

	s->back.rolled_from = 0;
	s->back.reached = step + 1;
	/* A spare worker may get its first slot when the job has made those steps again: then nothing is made
	 * again with it. */
	return from > step ? from : 0;
}

bool session_back_leave(struct tern_session *s, const char *why)
{
	if (!s->back.wait_ns)
		return false;
	end_with_worker(s, -ECANCELED, why);
	return s->ended;
}

bool session_back_finished(struct tern_session *s, const char *text)
{
	struct session_back *b = &s->back;

	if (!b->wait_ns)
		return false;
	if (text)
		end_with_worker(s, -ECANCELED, text);
	else if (b->state == BACK_ALONE)
		end(s, 0, "");
	else
		b->finished = true;
	return s->ended;
}

bool session_back_describe(const struct tern_session *s, char *text, size_t bytes)
{
	if (s->back.state == BACK_AT_WORK)
		return false;
	snprintf(text, bytes,
		s->back.state == BACK_ALONE
			? "all steps are done, and the program uses the results"
		: s->slot.held ? "this worker joins the job again, when its program has "
				 "ended a slot that was revoked"
			       : "this worker joins the job again, when its connections "
				 "have ended");
	return true;
}

/* ---- making and freeing ---- */

/* Copies the given values, since the job may go back to its first step. */
static int copy_given(struct tern_session *s, const float *const *given)
{
	struct session_back *b = &s->back;

	if (!tern_given_any(&s->job))
		return 0;
	b->given = calloc(s->job.param_count, sizeof(*b->given));
	if (!b->given)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->job.param_count; i++) {
		size_t bytes = s->job.params[i].count * sizeof(float);

		if (s->job.params[i].init != TERN_INIT_GIVEN)
			continue;
		b->given[i] = malloc(bytes);
		if (!b->given[i])
			return -ENOMEM;
		memcpy(b->given[i], given[i], bytes);
	}
	return 0;
}

int session_back_init(struct tern_session *s, const float *const *given)
{
	struct session_back *b = &s->back;

	if (s->opts.server_wait_s <= 0 || s->job.mode != TERN_MODE_SYNC)
		return 0;
	b->wait_ns = (uint64_t)s->opts.server_wait_s * TERN_NS_PER_S;
	b->view = malloc(sizeof(*b->view));
	b->places = calloc(TERN_SERVERS_MAX, sizeof(*b->places));
	if (!b->view || !b->places || copy_given(s, given) < 0)
		return session_complain(
			s, -ENOMEM, "no memory for what the session keeps to go back");
	tern_view_of_job(&s->job, b->view);
	return 0;
}

void session_back_fini(struct tern_session *s)
{
	for (uint32_t i = 0; s->back.given && i < s->job.param_count; i++)
		free(s->back.given[i]);
	free(s->back.given);
	free(s->back.view);
	free(s->back.places);
}
