/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining the servers, and the end. Every failure of the job goes through worker_fail(),
 * and every failure of this worker alone through worker_give_up(): once, with a sentence
 * that names the process and the reason. The servers are told, connections are closed in
 * an orderly way, and ended() is called when they are closed, or after two seconds; later
 * if a file is still being written.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "ps/view.h"
#include "rendezvous/peer.h"

#define LEAVING_NS  (2 * TERN_NS_PER_S)
#define DECISION_NS (6 * TERN_NS_PER_S) /* if opts.decision_ns is 0 */
#define SLAB_BYTES  (64ull << 20)

/* ---- the end ---- */

static void tell_end(struct tern_worker *w)
{
	if (w->told || w->saving)
		return;
	w->told = true;
	tern_timer_clear(w->opts.ctx, &w->end_timer);
	w->opts.ended(w->opts.arg, w->status, w->text, &w->results);
}

static void end_call(struct tern_deferred *deferred)
{
	struct tern_worker *w = tern_container_of(deferred, struct tern_worker, end_call);

	for (uint32_t i = 0; i < w->job.server_count && !w->end_due; i++)
		if (w->servers[i].peer && !w->servers[i].gone)
			return;
	tell_end(w);
}

void worker_enter(struct tern_worker *w, enum worker_state next)
{
	static const uint8_t edges[] = {
		[WORKER_JOINING] =
			1 << WORKER_RUNNING | 1 << WORKER_FINISHING | 1 << WORKER_LEAVING,
		[WORKER_RUNNING] = 1 << WORKER_FINISHING | 1 << WORKER_LEAVING,
		[WORKER_FINISHING] = 1 << WORKER_LEAVING,
		[WORKER_LEAVING] = 0,
	};

	tern_assert(edges[w->state] >> next & 1);
	w->state = next;
}

static void end_timer(struct tern_timer *timer)
{
	struct tern_worker *w = tern_container_of(timer, struct tern_worker, end_timer);

	w->end_due = true;
	tell_end(w);
}

/* Ends the connection to a server that cannot be told anything. */
static void drop(struct worker_server *s)
{
	s->gone = true;
	tern_talk_close(&s->talk);
	tern_peer_free(TERN_TAKE(s->peer));
}

/* True if the connection is broken, and is not waited for: another process is that server now. */
static bool is_lost(const struct worker_server *s)
{
	return s->unlinked && s->is_replaced;
}

static void close_all(struct tern_worker *w, const char *type)
{
	w->over = true;
	worker_enter(w, WORKER_LEAVING);
	tern_timer_clear(w->opts.ctx, &w->leave_timer);
	tern_timer_clear(w->opts.ctx, &w->wait_timer);
	tern_timer_clear(w->opts.ctx, &w->save_timer);
	places_end(w);
	report_say(w);
	slots_revoke(w);
	for (uint32_t i = 0; i < w->job.server_count; i++) {
		struct worker_server *s = &w->servers[i];

		if (!s->peer || s->gone)
			continue;
		/* If an operator has ended the job, a server that is not reached yet would wait for
		 * workers: it may be told within LEAVING_NS. */
		if ((!s->up && !w->by_operator) || is_lost(s)) {
			drop(s);
			continue;
		}
		tern_talk_say(&s->talk,
			json_pack("{s:s, s:o, s:b, s:I, s:b, s:b, s:b, s:o*}", "type",
				type, "text", tern_talk_text(w->text), "save",
				w->interrupted, "finisher", (json_int_t)w->finisher,
				"back", w->status == -EAGAIN || w->server_is_gone,
				"asked", w->leaving, "final", w->by_operator, "view",
				json_incref(w->view)));
		tern_peer_close(s->peer);
	}
	w->end_timer.fire = end_timer;
	tern_timer_set(w->opts.ctx, &w->end_timer, tern_now_ns(w->env) + LEAVING_NS);
	tern_defer(w->opts.ctx, &w->end_call);
}

/* Ends the worker with an error. `type` is the message that tells the servers: "abort"
 * ends the job, "failed" only this worker. */
static void end_badly(struct tern_worker *w, const char *type, int status,
	const char *fmt, va_list ap) __attribute__((format(printf, 4, 0)));

static void end_badly(
	struct tern_worker *w, const char *type, int status, const char *fmt, va_list ap)
{
	if (w->over)
		return;
	w->status = status;
	vsnprintf(w->text, sizeof(w->text), fmt, ap);
	close_all(w, type);
	if (w->interrupted)
		finish_interrupted(w);
}

void worker_fail(struct tern_worker *w, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	end_badly(w, "abort", status, fmt, ap);
	va_end(ap);
}

void worker_give_up(struct tern_worker *w, int status, const char *fmt, ...)
{
	va_list ap;

	if (!w->over)
		w->results.alone = w->job.workers > 1 && w->begun;
	va_start(ap, fmt);
	end_badly(w, "failed", status, fmt, ap);
	va_end(ap);
}

void worker_failed(struct tern_worker *w, uint32_t chunk, int status)
{
	tern_talk_failed(&w->servers[w->plan.chunks[chunk].server].talk, status);
}

void worker_leave(struct tern_worker *w)
{
	if (!w->over)
		close_all(w, "bye");
}

/* ---- asked to leave ---- */

/* Server 0 has not answered "leave" for opts.decision_ns: it was asked to end too, or hangs. No
 * other process decides who saves, so each worker that waits for the decision saves,
 * unless opts.interrupted() refuses, for example because a file of the same job with as
 * many steps or more is there. */
static void leave_timer(struct tern_timer *timer)
{
	struct tern_worker *w = tern_container_of(timer, struct tern_worker, leave_timer);

	if (w->opts.ctx->ending)
		return;
	w->interrupted = true;
	w->finisher = w->opts.index;
	worker_give_up(w, -ECANCELED, "%s", w->leave_text);
	/* Usually a worker that ends gives the servers LEAVING_NS to answer its goodbye.
	 * Server 0 has not answered for long, so here it gives them less. */
	tern_timer_set(w->opts.ctx, &w->end_timer, tern_now_ns(w->env) + LEAVING_NS / 4);
}

void tern_worker_stop(struct tern_worker *w, const char *why)
{
	worker_fail(w, -ECANCELED, "%s", why);
}

bool tern_worker_is_saving(const struct tern_worker *w)
{
	return w->saving;
}

bool tern_worker_is_finisher(const struct tern_worker *w)
{
	return w->finisher == w->opts.index;
}

uint64_t tern_worker_device_bytes(const struct tern_worker *w)
{
	return tern_vector_device_bytes(&w->opts.memory, w->pool);
}

void tern_worker_ask_to_leave(struct tern_worker *w, const char *why)
{
	if (w->leaving || w->over)
		return;
	snprintf(w->leave_text, sizeof(w->leave_text), "%s", why);
	w->leaving = true;
	if (!w->begun) {
		worker_give_up(w, -ECANCELED, "%s", why);
		return;
	}
	tern_talk_say(&w->servers[0].talk,
		json_pack("{s:s, s:o}", "type", "leave", "text", tern_talk_text(why)));
	w->leave_timer.fire = leave_timer;
	tern_timer_set(w->opts.ctx, &w->leave_timer,
		tern_ns_add(tern_now_ns(w->env),
			w->opts.decision_ns ? w->opts.decision_ns : DECISION_NS));
}

void worker_saved(struct tern_worker *w)
{
	w->saving = false;
	tern_defer(w->opts.ctx, &w->end_call);
}

static void hear_newest(struct tern_worker *w, const json_t *message)
{
	if (json_integer_value(json_object_get(message, "snapshot")) > 0)
		w->results.can_resume = true;
}

/* Server 0 lets this worker go. If no other worker goes on, this one saves. */
static void may_leave(struct tern_worker *w, const json_t *message)
{
	w->results.left = true;
	w->results.job_waits = json_is_true(json_object_get(message, "last"));
	hear_newest(w, message);
	if (json_is_true(json_object_get(message, "save"))) {
		w->interrupted = w->results.was_last = true;
		w->finisher = w->opts.index;
	}
	worker_give_up(w, -ECANCELED, "%s", w->leave_text);
}

bool worker_may_go_back(const struct tern_worker *w)
{
	return w->opts.goes_back && (w->opts.returns || w->back_is_possible);
}

/* The status of what may be otherwise in a moment, for a worker that has been in the job. */
static int or_again(const struct tern_worker *w, int status)
{
	return w->opts.goes_back && w->opts.returns ? -EAGAIN : status;
}

/* Hands on a newer view of the job. False: the worker cannot go on with it. */
static bool take_view(struct tern_worker *w, const json_t *message)
{
	struct tern_view view;

	if (!tern_view_read(message, &view))
		return false;
	return view.number <= w->job.view ||
	       (w->opts.viewed && w->opts.viewed(w->opts.arg, &view));
}

/* The job has other servers now, or another number of workers. */
static void viewed(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	bool good = take_view(w, message);

	/* A server that is removed before the steps hears of it from its workers only. */
	if (good && !w->over)
		w->view = json_incref((json_t *)(uintptr_t)message);
	worker_give_up(w, good && w->opts.goes_back ? -EAGAIN : -EINVAL,
		"the job has other servers, or another number of workers, says server "
		"%u%s",
		s->number,
		good ? "" : ", and this worker does not know where the servers are");
}

static void aborted(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	json_t *view = json_object_get(message, "view");
	const json_t *finisher = json_object_get(message, "finisher");
	const json_t *replaced = json_object_get(message, "replaced");
	const char *text = json_string_value(json_object_get(message, "text"));
	bool back;

	w->interrupted = json_is_true(json_object_get(message, "save"));
	w->by_operator = json_is_true(json_object_get(message, "final"));
	hear_newest(w, message);
	for (uint32_t i = 0; i < w->job.server_count; i++)
		w->servers[i].is_replaced =
			json_is_integer(replaced) &&
			json_integer_value(replaced) == w->servers[i].number;
	if (!w->over)
		w->view = json_incref(view);
	/* The message may name another finisher, since the one that this worker knows
	 * of may be leaving. */
	if (json_is_integer(finisher) && json_integer_value(finisher) >= 0 &&
		json_integer_value(finisher) < w->job.workers)
		w->finisher = (uint32_t)json_integer_value(finisher);
	if (!text)
		text = "no reason given";
	back = !w->by_operator && w->opts.goes_back &&
	       json_is_true(json_object_get(message, "back")) &&
	       (!view || take_view(w, view));
	if (w->by_operator)
		worker_fail(w, -ECANCELED, "%s", text);
	else
		worker_fail(w, back ? -EAGAIN : -ECANCELED, "server %u%s: %s", s->number,
			back ? ": the job goes back" : " ended the job", text);
}

int worker_get_vector(struct tern_worker *w, struct tern_buf *out)
{
	struct tern_computer *computer = w->opts.computer;
	int r = tern_pool_get(w->pool, w->job.element_count * sizeof(float), out);

	if (r < 0 || !computer->ops->pin)
		return r;
	r = computer->ops->pin(computer, out->mem, w->text, sizeof(w->text));
	if (r < 0)
		tern_pool_put(w->pool, out);
	return r;
}

/* ---- joining ---- */

/* Begins to receive the first version. */
static void receive_first(struct tern_worker *w)
{
	uint64_t version = w->first_version;

	w->welcomed = true;
	w->own_version = version;
	if (w->joined_late) { /* its slots are others' now */
		w->slot_count = 0;
		w->spare = true;
	}
	if (w->spare) {
		spare_maybe_begin(w);
		return;
	}
	w->version = version;
	versions_receive(w, version);
}

/* True if a server has said welcome. */
static bool is_welcome(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (w->servers[i].welcome)
			return true;
	return false;
}

static void maybe_run(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (!w->servers[i].welcome)
			return;
	if (!w->welcomed)
		receive_first(w);
	/* The state is already FINISHING if a server without chunks sends its welcome
	 * after the last version has arrived. */
	if (w->state == WORKER_JOINING)
		worker_enter(w, WORKER_RUNNING);
	if (w->joined_late)
		change_ready(w);
}

static void say_failed(
	struct worker_server *s, const char *what, uint64_t version, json_int_t number)
{
	tern_talk_say(
		&s->talk, json_pack("{s:s, s:s, s:b, s:[I, I]}", "type", "failed", "text",
				  "the servers begin with different snapshots", "back",
				  or_again(s->worker, -EINVAL) == -EAGAIN, what,
				  (json_int_t)version, number));
}

/* A server begins with another snapshot than the first that has said welcome. If server 0 is one
 * of the two, the others are told with which one it begins, and it is told of the other one. */
static void differs(struct worker_server *s, uint64_t version, json_int_t number)
{
	struct tern_worker *w = s->worker;
	bool zero = s->index == 0, other = w->servers[0].welcome;

	for (uint32_t i = 0; (zero || other) && i < w->job.server_count; i++)
		if (!w->servers[i].gone)
			say_failed(&w->servers[i], i > 0 ? "begins" : "found",
				zero == (i > 0) ? version : w->first_version,
				zero == (i > 0) ? number : w->first_number);
	worker_give_up(w, or_again(w, -EINVAL),
		"server %u begins with snapshot %llu-%08llx, and another server with "
		"%llu-%08llx: all servers need the same --resume",
		s->number, (unsigned long long)version, (unsigned long long)number,
		(unsigned long long)w->first_version,
		(unsigned long long)w->first_number);
}

/* Not all servers have the job in memory, or not the same life of it. */
static void forget(struct worker_server *s)
{
	struct tern_worker *w = s->worker;

	if (or_again(w, -EINVAL) == -EAGAIN && places_look_for_memory(w))
		return;
	for (uint32_t i = 0; i < w->job.server_count; i++)
		if (!w->servers[i].gone)
			tern_talk_say(&w->servers[i].talk,
				json_pack("{s:s, s:s, s:b, s:b}", "type", "failed",
					"text", "not all servers have the job in memory",
					"back", or_again(w, -EINVAL) == -EAGAIN, "forget",
					1));
	worker_give_up(w, or_again(w, -EINVAL),
		"server %u and another server do not both have the job in memory",
		s->number);
}

/* A server refuses this worker. */
static void refused(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	const char *text = json_string_value(json_object_get(message, "text"));
	bool later = json_is_true(json_object_get(message, "later"));
	bool ending = json_is_true(json_object_get(message, "ending"));
	int status = later ? or_again(w, -EINVAL) : -EINVAL;
	if (status == -EAGAIN && places_look_elsewhere(s))
		return;
	worker_give_up(w, ending && w->opts.goes_back ? -EAGAIN : status,
		"server %u refused this worker: %s", s->number,
		text ? text : "no reason given");
}

static void welcomed(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	const json_t *first = json_object_get(message, "version");
	json_int_t version = json_integer_value(first);
	json_int_t number = json_integer_value(json_object_get(message, "number"));
	json_int_t life = json_integer_value(json_object_get(message, "life"));
	bool late = json_is_true(json_object_get(message, "running"));

	if (!json_is_integer(first) || version < 0 || (uint64_t)version > w->job.steps) {
		worker_fail(w, -EPROTO,
			"server %u begins with version %lld: expected 0 to %llu",
			s->number, (long long)version, (unsigned long long)w->job.steps);
		return;
	}
	if (json_is_true(json_object_get(message, "back")))
		w->back_is_possible = w->opts.goes_back;
	if (json_is_true(json_object_get(message, "returns")))
		w->opts.returns = true;
	s->claim = tern_talk_claim(message);
	s->lacks_memory = !life;
	if (json_is_true(json_object_get(message, "omits")))
		w->omits = true;
	/* The server's "abort", which names the newest snapshot too, may have come when this worker
	 * was already gone. */
	hear_newest(w, message);
	if (is_welcome(w) && w->joined_late != late) {
		worker_give_up(w, w->back_is_possible ? -EAGAIN : -EPROTO,
			"server %u says that the steps %s begun, and another server says "
			"otherwise",
			s->number, late ? "have" : "have not");
		return;
	}
	if (is_welcome(w) && w->life != life) {
		forget(s);
		return;
	}
	if (is_welcome(w) && !life &&
		(w->first_version != (uint64_t)version || w->first_number != number)) {
		differs(s, (uint64_t)version, number);
		return;
	}
	if (!keep_hear(s, message))
		return;
	if (!is_welcome(w) || (uint64_t)version < w->first_version)
		w->first_version = (uint64_t)version;
	w->first_number = number;
	w->life = life;
	w->joined_late = late;
	s->welcome = true;
	if (!w->welcomed && !life)
		receive_first(w);
	maybe_run(w);
}

static void say_join(struct worker_server *s, json_t *job)
{
	tern_talk_say(&s->talk,
		json_pack("{s:s, s:I, s:I, s:I, s:b, s:b, s:o}", "type", "join", "worker",
			(json_int_t)s->worker->opts.index, "incarnation",
			(json_int_t)s->worker->incarnation, "server",
			(json_int_t)s->index, "back", s->worker->opts.goes_back,
			"returns", s->worker->opts.has_begun, "job", json_incref(job)));
}

/* Joins again: the server had no memory for the message, or the place, or the server's
 * former job, still belonged to workers that have left or were perhaps killed. */
static void join_again(struct worker_server *s)
{
	json_t *job = tern_ps_job_json(&s->worker->job);

	if (job)
		say_join(s, job);
	else
		worker_give_up(s->worker, -ENOMEM, "no memory to join server %u again",
			s->number);
	json_decref(job);
}

/* Answers whether this worker runs, and with which parameters to save. */
static void say_here(struct worker_server *s)
{
	const struct tern_worker *w = s->worker;

	tern_talk_say(&s->talk,
		json_pack("{s:s, s:I}", "type", "here", "version",
			(json_int_t)(w->version > w->first_version ? w->version : 0)));
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct worker_server *s = tern_container_of(talk, struct worker_server, talk);
	struct tern_worker *w = s->worker;
	const char *type = tern_talk_type(message);

	if (w->over)
		return;
	if (!message) {
		worker_fail(w, -EPROTO, "server %u: %s", s->number, talk->fault);
	} else if (strcmp(type, "welcome") == 0 && !s->welcome) {
		welcomed(s, message);
	} else if (strcmp(type, "again") == 0 && !s->welcome) {
		join_again(s);
	} else if (strcmp(type, "refused") == 0) {
		refused(s, message);
	} else if (strcmp(type, "address") == 0) {
		places_on_address(s, message);
	} else if (strcmp(type, "follower") == 0) {
		places_on_follower(s, message);
	} else if (strcmp(type, "view") == 0) {
		viewed(s, message);
	} else if (strcmp(type, "lost") == 0) {
		worker_on_lost(s, message);
	} else if (strcmp(type, "leave") == 0 && w->leaving) {
		may_leave(w, message);
	} else if (strcmp(type, "there") == 0) {
		say_here(s);
	} else if (strcmp(type, "give") == 0) {
		give_on_give(s);
	} else if (strcmp(type, "done") == 0) {
		worker_on_done(s);
	} else if (strcmp(type, "applied") == 0) {
		finish_on_applied(s, message);
	} else if (strcmp(type, "finished") == 0) {
		worker_on_finished(s);
	} else if (strcmp(type, "begun") == 0) {
		spare_on_begun(s);
	} else if (strcmp(type, "yours") == 0) {
		change_on_yours(s, message);
	} else if (strcmp(type, "grown") == 0) {
		change_on_grown(s, message);
	} else if (strcmp(type, "kept") == 0) {
		keep_on_kept(s, message);
	} else if (strcmp(type, "moved") == 0) {
		change_on_moved(s, message);
	} else if (strcmp(type, "last") == 0) {
		spare_on_last(s);
	} else if (strcmp(type, "at") == 0) {
		spare_on_at(s, message);
	} else if (strcmp(type, "late") == 0) {
		worker_on_late(s, message);
	} else if (strcmp(type, "abort") == 0) {
		aborted(s, message);
	} else {
		worker_fail(w, -EPROTO,
			"server %u sent a message of type \"%.40s\", which this worker "
			"does not expect now",
			s->number, type);
	}
}

/* The connection to a server that has welcomed this worker has ended. Perhaps the server works, and
 * only the path from this worker to it has failed. So this worker gives up alone: if the server has
 * failed, the other workers notice it. */
static void gone(struct worker_server *s, int status)
{
	struct tern_worker *w = s->worker;
	bool again = worker_may_go_back(w);

	if (again)
		places_turn(s);
	worker_give_up(w,
		again    ? -EAGAIN
		: status ? status
			 : -EPIPE,
		"server %u at %s is gone: %s%s", s->number, w->job.servers[s->index],
		status ? tern_status_text(status) : "it left too early",
		w->job.workers > 1 ? ", or it goes on without this worker" : "");
}

static void server_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct worker_server *s = arg;
	struct tern_worker *w = s->worker;
	bool again = (s->up || w->opts.returns) && worker_may_go_back(w);
	char why[200];

	s->up = s->up || event == TERN_PEER_UP;
	if (event ==
		TERN_PEER_SUSPECT) /* -ETIMEDOUT: it is connected, but does not answer */
		s->unlinked = status != -ETIMEDOUT;
	if (event == TERN_PEER_RECOVERED)
		s->unlinked = false;
	if (w->over && is_lost(s)) {
		drop(s);
		tern_defer(w->opts.ctx, &w->end_call);
		return;
	}
	if (event != TERN_PEER_DOWN)
		return;
	s->gone = w->server_is_gone = true;
	tern_talk_close(&s->talk);
	/* If this worker was asked to leave, the server probably was, too. Then the job
	 * is interrupted. */
	w->interrupted = w->interrupted || w->leaving;
	if (!s->welcome && status) {
		/* The server that knows where this one is now may be at another address itself. */
		if (!again || !(places_look_elsewhere(s) || places_ask_elsewhere(s)))
			worker_give_up(w, again ? -EAGAIN : status,
				"server %u at %s: cannot be reached: %s", s->number,
				w->job.servers[s->index],
				tern_peer_why(peer, status, why, sizeof(why)));
	} else {
		gone(s, status);
	}
	tern_defer(w->opts.ctx, &w->end_call);
}

static void broken(struct tern_talk *talk, int status)
{
	struct worker_server *s = tern_container_of(talk, struct worker_server, talk);

	/* A server that was killed may fail a tensor long before its connection ends. */
	worker_give_up(s->worker, worker_may_go_back(s->worker) ? -EAGAIN : status,
		"server %u at %s: a tensor did not come through: %s", s->number,
		s->worker->job.servers[s->index], tern_status_text(status));
}

static int join(struct tern_worker *w, uint32_t index, json_t *job)
{
	struct worker_server *s = &w->servers[index];
	char name[32];
	int r;

	snprintf(name, sizeof(name), "worker %u", w->opts.index);
	s->worker = w;
	s->index = index;
	s->number = tern_view_number(&w->job, index);
	s->talk.pool = w->talk_pool;
	s->talk.ctx = w->opts.ctx;
	s->talk.heard = heard;
	s->talk.broken = broken;
	r = tern_connect(w->opts.ctx, w->job.servers[index],
		&(struct tern_peer_opts){.event = server_event, .arg = s, .name = name},
		&s->peer);
	if (r == 0)
		r = tern_channel_open(s->peer, TERN_PS_CHANNEL_DATA, &s->data);
	if (r == 0)
		r = tern_talk_open(&s->talk, s->peer);
	if (r == 0)
		say_join(s, job);
	return r;
}

static const char *why_not_dialled(int status)
{
	if (status == -EINVAL)
		return "not an address: expected HOST:PORT or auto://HOST:PORT, "
		       "tcp://HOST:PORT, verbs://HOST:PORT or shm://NAME, with a port "
		       "from 1 to 65535";
	if (status == -ENODEV)
		return "this host has no fabric of this name: tern info lists the "
		       "fabrics";
	return tern_status_text(status);
}

/* True if a worker may begin to join its servers without this one. */
static bool can_do_without(const struct worker_server *s)
{
	const struct tern_ps_job *job = &s->worker->job;

	return places_has_other(s) ||
	       (job->view && job->added[s->index] && s->worker->opts.goes_back);
}

static int join_all(struct tern_worker *w, struct tern_ps_text *why)
{
	json_t *job = tern_ps_job_json(&w->job);
	int r = job ? 0 : -ENOMEM;

	for (uint32_t i = 0; r == 0 && i < w->job.server_count; i++) {
		r = join(w, i, job);
		/* A server was added, or has a follower, at an address which is none on this host.
		 * This worker waits until the server is removed, or turns to its other address. */
		if ((r == -EINVAL || r == -ENODEV) && can_do_without(&w->servers[i])) {
			w->servers[i].gone = true;
			r = 0;
		}
		if (r < 0)
			snprintf(why->text, sizeof(why->text), "server %u at %s: %s",
				w->servers[i].number, w->job.servers[i],
				why_not_dialled(r));
	}
	json_decref(job);
	return r;
}

/* ---- making and freeing the worker ---- */

/* Number of gradient buffers that the worker needs from the start: one for each of its
 * slots, at most TERN_GRADIENT_BUFFERS. */
static uint32_t own_rooms(const struct tern_worker *w)
{
	uint32_t count = 0;

	if (w->job.mode == TERN_MODE_ASYNC)
		return 1;
	for (uint32_t i = 0; i < w->job.slots && count < TERN_GRADIENT_BUFFERS; i++)
		count += tern_slot_owner(&w->job, i) == w->opts.index;
	return count;
}

/* Sets the options of the pool for versions and gradients. -E2BIG: they cannot fit. */
static int size_pool(
	struct tern_worker *w, struct tern_pool_opts *pool, struct tern_ps_text *why)
{
	/* Buffers of two versions and of two gradients. Small ones share slabs
	 * (segments that the pool takes buffers from), so that the process has few
	 * slabs. The pool rounds sizes up, so it may need one slab more. */
	uint64_t bytes = tern_align_up(w->job.element_count * sizeof(float), 64);
	uint64_t count = 2ull + TERN_GRADIENT_BUFFERS, own = 2ull + own_rooms(w),
		 per_slab;

	*pool = (struct tern_pool_opts){
		/* The pool rounds up to pages. That must not happen after the check
		 * below. */
		.slab_bytes = tern_align_up(
			TERN_MAX(bytes + 4096, TERN_MIN(bytes * count, SLAB_BYTES)),
			PAGE_BYTES_MAX),
		.kind = w->opts.memory.kind,
		.cuda_device = w->opts.memory.cuda_device};
	per_slab = pool->slab_bytes / bytes;
	if (own > TERN_POOL_BYTES_MAX / pool->slab_bytes * per_slab) {
		snprintf(why->text, sizeof(why->text),
			"no room for the model: its parameters have %llu bytes, and this "
			"worker needs them %llu times (two versions, and the gradient of "
			"%s); it can hold %llu bytes",
			(unsigned long long)bytes, (unsigned long long)own,
			own_rooms(w) == 1 ? "one slot" : "two slots",
			TERN_POOL_BYTES_MAX);
		return -E2BIG;
	}
	/* The `own` buffers fit into TERN_POOL_BYTES_MAX. Where this limit is the smaller
	 * one, only buffers for slots of lost workers may be missing. */
	pool->max_bytes =
		TERN_MIN(pool->slab_bytes * ((count + per_slab - 1) / per_slab + 1),
			TERN_POOL_BYTES_MAX);
	return 0;
}

static int make_memory(struct tern_worker *w, const struct tern_pool_opts *pool)
{
	/* Room for the longest message to each server. */
	struct tern_pool_opts talk = {.slab_bytes = 1u << 20,
		.max_bytes = (w->job.server_count + 1ull) * TERN_PS_JOB_TEXT_MAX};
	int r = tern_pool_new(w->opts.domain, &talk, &w->talk_pool);

	if (r == 0 && !w->pool)
		r = tern_pool_new(w->opts.domain, pool, &w->pool);
	if (r == 0 && w->plan.bf16_count && !w->bf16_pool)
		r = rooms_init_bf16(w);
	if (r == 0)
		r = finish_init(w);
	if (r == 0)
		r = versions_init(w);
	if (r == 0)
		r = give_init(w);
	if (r == 0)
		r = slots_init(w);
	return r;
}

int tern_worker_new(const struct tern_worker_opts *opts, struct tern_worker **out,
	struct tern_ps_text *why)
{
	struct tern_worker *w = calloc(1, sizeof(*w));
	struct tern_pool_opts pool;
	int r;

	snprintf(why->text, sizeof(why->text), "no memory for the model");
	if (!w)
		return -ENOMEM;
	w->opts = *opts;
	if (opts->pools) {
		w->pool = TERN_TAKE(opts->pools->values);
		w->bf16_pool = TERN_TAKE(opts->pools->bf16);
	}
	w->env = tern_context_env(opts->ctx);
	w->incarnation = tern_random(w->env) >> 1; /* fits into an integer of JSON */
	w->end_call.call = end_call;
	tern_list_init(&w->end_call.node);
	r = tern_ps_job_copy(&w->job, opts->job);
	if (r == 0)
		r = size_pool(w, &pool, why);
	if (r == 0)
		r = tern_plan_init(&w->plan, &w->job);
	if (r == 0) {
		w->my_steps = tern_ps_job_steps_of(&w->job, opts->index);
		w->servers = calloc(w->job.server_count, sizeof(*w->servers));
		r = w->servers ? make_memory(w, &pool) : -ENOMEM;
	}
	if (r < 0 && *w->text) /* the computer has said why */
		snprintf(why->text, sizeof(why->text), "%.399s", w->text);
	if (r == 0)
		r = join_all(w, why);
	if (r < 0) {
		for (uint32_t i = 0; w->servers && i < w->job.server_count; i++)
			tern_peer_free(w->servers[i].peer);
		w->over = true;
		*out = w; /* the caller frees it as any other, after the context */
		return r;
	}
	spare_init(w);
	worker_wait_start(w);
	places_start(w);
	*out = w;
	return 0;
}

void tern_worker_pools_free(struct tern_worker_pools *pools)
{
	tern_pool_free(TERN_TAKE(pools->values));
	tern_pool_free(TERN_TAKE(pools->bf16));
}

void tern_worker_free_for_next(struct tern_worker *w, struct tern_worker_pools *pools)
{
	if (w->opts.computer->ops->unpin)
		w->opts.computer->ops->unpin(w->opts.computer);
	finish_fini(w);
	change_fini(w);
	slots_fini(w);
	give_fini(w);
	keep_fini(w);
	versions_fini(w);
	*pools = (struct tern_worker_pools){.values = w->pool, .bf16 = w->bf16_pool};
	tern_pool_free(w->talk_pool);
	tern_plan_fini(&w->plan);
	tern_ps_job_fini(&w->job);
	json_decref(w->view);
	free(w->servers);
	free(w);
}

void tern_worker_free(struct tern_worker *w)
{
	struct tern_worker_pools pools;

	if (!w)
		return;
	tern_worker_free_for_next(w, &pools);
	tern_worker_pools_free(&pools);
}
