/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining. The first message of a process says which worker or server it is. The job is
 * taken from the first worker's message, and the jobs in later messages must agree with
 * it (tern_ps_job_differs()). Workers are welcomed when this server's chunks are made.
 * The steps start on all servers when all workers have joined every server.
 */
#include "server/membership.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/blobs.h"
#include "server/follow.h"
#include "server/memory.h"
#include "server/store.h"

/* At least so long a server keeps a snapshot of another job than its workers'. */
#define LOOK_AGAIN_NS TERN_NS_PER_S

/* ---- the job ---- */

void join_forget_job(struct tern_server *s)
{
	s->opts.index = view_own_number(s);
	follow_fini(s);
	snapshots_fini(s);
	given_fini(s);
	shard_fini(s);
	lease_fini(s);
	norm_fini(s);
	tern_plan_fini(&s->plan);
	tern_ps_job_fini(&s->job);
	free(s->workers);
	s->workers = NULL;
	s->has_job = false;
	progress_forget(s);
	guests_know_job(s, NULL);
}

/* Takes over a job: makes everything that depends on it, except the contents of the
 * chunks (shard_make()). If that fails, the server waits for another job. */
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
	r = s->workers ? tern_plan_init(&s->plan, &s->job) : -ENOMEM;
	if (r == 0)
		r = shard_init(s);
	if (r == 0)
		r = snapshots_init(s);
	if (r == 0)
		r = given_init(s);
	if (r == 0)
		r = lease_init(s);
	if (r == 0 && job->clip_norm > 0)
		r = norm_init(s);
	if (r < 0)
		join_forget_job(s);
	else
		view_on_adopt(s);
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

static bool adopt_in_words(struct tern_server *s, const struct tern_ps_job *job,
	uint32_t index, struct tern_ps_text *why)
{
	const char *error = s->opts.updater->error;
	int r = adopt(s, job, index, why);

	if (r < 0 && !*why->text)
		snprintf(why->text, sizeof(why->text),
			"no room for the parameters: %.300s",
			*error ? error : tern_status_text(r));
	return r == 0;
}

/* Reads the number of the worker that joins, and the number that this server has in the
 * worker's list of servers. */
static bool read_numbers(const struct tern_server *s, const json_t *message,
	const struct tern_ps_job *job, uint32_t *worker, uint32_t *server,
	struct tern_ps_text *why)
{
	bool grows = grow_is_possible(s, job);
	const json_t *numbers[] = {
		json_object_get(message, "worker"), json_object_get(message, "server")};
	json_int_t i = json_integer_value(numbers[0]), j = json_integer_value(numbers[1]);

	*worker = (uint32_t)i;
	*server = (uint32_t)j;
	if (!json_is_integer(numbers[0]) || i < 0 ||
		i >= (grows ? TERN_WORKERS_MAX : job->workers))
		snprintf(why->text, sizeof(why->text),
			"worker: expected an integer from 0 to %u%s",
			(grows ? TERN_WORKERS_MAX : job->workers) - 1,
			grows ? ""
			      : ": only a job in sync mode gets more workers, whose "
				"servers have --snapshots and no --server-wait 0");
	else if (!json_is_integer(numbers[1]) || j < 0 || j >= job->server_count)
		snprintf(why->text, sizeof(why->text),
			"server: expected an integer from 0 to %u",
			job->server_count - 1);
	else
		return true;
	return false;
}

/* True unless this server was started with an option that the job's mode does not have. */
static bool has_right_mode(const struct tern_server *s, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	if (job->mode == TERN_MODE_SYNC || !s->opts.omits)
		return true;
	snprintf(why->text, sizeof(why->text),
		"mode: this server has --on-nan skip, which needs sync, and the job has "
		"%s",
		tern_mode_text(job->mode, job->ssp).text);
	return false;
}

/* True if this server can go on with the job from what it has in memory, or from a snapshot, or has
 * neither. The number of workers may be another one. */
static bool goes_on_with(const struct server_peer *p, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	struct tern_server *s = p->server;
	const char *who = tern_peer_name(p->peer);
	struct tern_ps_job same = *job;

	if (!s->from_memory)
		return !resume_differs(s, job, who, why);
	same.workers = s->from_memory->job.workers;
	return !tern_ps_job_differs(&s->from_memory->job, &same, who, why);
}

/* True if server 0 has the job in memory with another number of workers than the first worker of the
 * same view describes. */
static bool has_other_number(const struct tern_server *s, const struct tern_ps_job *job)
{
	return s->from_memory && job->view == s->from_memory->job.view &&
	       job->workers != s->from_memory->job.workers;
}

/* True if the worker's job is that of this server. The numbers of workers may be others if the worker
 * knows another view. */
static bool is_same_job(const struct server_peer *p, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	const struct tern_server *s = p->server;
	struct tern_ps_job same = *job;

	if (job->view != s->job.view)
		same.workers = s->job.workers;
	return !tern_ps_job_differs(&s->job, &same, tern_peer_name(p->peer), why);
}

/* False: the first worker's job has other servers than the one in memory, which this server forgets:
 * it goes on from a snapshot. */
static bool fits_memory(
	struct tern_server *s, const struct tern_ps_job *job, uint32_t server)
{
	if (s->has_job || !s->from_memory || memory_fits(s, job, server))
		return true;
	memory_forget(s, "the job has other servers now");
	return false;
}

/* Adopts the job of the first worker, which must be the one that is in memory, if one is. True for
 * a later worker if its job and its number for this server are the same. */
static bool agree(struct server_peer *p, const struct tern_ps_job *job, uint32_t index,
	struct tern_ps_text *why)
{
	struct tern_server *s = p->server;

	/* A user's wrong option costs that worker only, and no step. */
	if (!s->has_job && !(has_right_mode(s, job, why) && goes_on_with(p, job, why)))
		return false;
	if (!s->has_job && index == 0 && has_other_number(s, job)) {
		view_set_workers(p, job, job->workers);
		return false;
	}
	if (!s->has_job)
		return adopt_in_words(s, job, index, why);
	if (s->index == index)
		return is_same_job(p, job, why);
	snprintf(why->text, sizeof(why->text),
		"this server is number %u in its --join, and number %u in the job: all "
		"must name the servers in the same order",
		index, s->index);
	return false;
}

/* True unless this server was made for a job that begins with another number of workers. A newer view
 * has the number that server 0 has made of it. */
static bool has_workers(const struct server_peer *p, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	uint32_t workers = p->server->opts.workers;

	if (!workers || (job->view ? job->workers >= workers : job->workers == workers))
		return true;
	snprintf(why->text, sizeof(why->text),
		"workers: %s describes a job of %u, and this server was started for %u "
		"(--workers)",
		tern_peer_name(p->peer), job->workers, workers);
	return false;
}

/* False: the number of this worker is beyond those of its job, and no other worker is here. It joins
 * again in a moment; or, if the job goes back, once server 0 has told it the next view, which has
 * one worker more. */
static bool may_be_first(struct server_peer *p, const struct tern_ps_job *job,
	uint32_t worker, uint32_t server, struct tern_ps_text *why)
{
	struct tern_server *s = p->server;

	if (s->has_job || worker < job->workers)
		return true;
	if (server != 0 || !s->opts.returns || worker > job->workers)
		guests_ask_later(p);
	else if (goes_on_with(p, job, why))
		view_set_workers(p, job, worker + 1);
	return false;
}

/* True unless this server would be server 0, and has no directory. */
static bool has_right_place(
	const struct tern_server *s, uint32_t index, struct tern_ps_text *why)
{
	if (index != 0 || !s->opts.snapshots.via)
		return true;
	snprintf(why->text, sizeof(why->text),
		"this server is server 0 of the job, which needs --snapshots DIR in "
		"place of --snapshots-via %.120s",
		s->opts.snapshots.via);
	return false;
}

/* False: this server of a job that goes back has found a snapshot of another job than that of the worker, which
 * has been in a job. The worker comes again, and the server is made anew to look again, at most once a second:
 * the worker may have come to the wrong job. */
static bool has_own_snapshot(
	struct server_peer *p, const json_t *message, const struct tern_ps_job *job)
{
	struct tern_server *s = p->server;
	struct tern_ps_text why;

	if (s->has_job || !json_is_true(json_object_get(message, "returns")) ||
		!resume_is_foreign(p, job, &why))
		return true;
	if (tern_now_ns(s->env) - s->made_ns >= LOOK_AGAIN_NS)
		server_fail(s, -EAGAIN, "%s", why.text);
	else
		server_refuse_for_now(p, "%s", why.text);
	return false;
}

/* True unless this server was started with another number than it has in the worker's job: a server that
 * comes again later with that number would be taken for another one. */
static bool has_right_number(struct server_peer *p, const struct tern_ps_job *job,
	uint32_t worker, uint32_t index, struct tern_ps_text *why)
{
	const struct tern_server *s = p->server;
	uint32_t number = tern_view_number(job, index);

	if (!s->opts.has_number || number == s->opts.index)
		return true;
	snprintf(why->text, sizeof(why->text),
		"this server was started with --index %u, and is number %u in the --join "
		"of worker %u: all workers must name the servers in the order of their "
		"numbers, which begin with 0",
		s->opts.index, number, worker);
	/* The job may have got other servers before this one came: server 0 tells both the view. */
	if (s->opts.returns && !s->view.number && !s->has_job) {
		server_refuse_for_now(p, "%s", why->text);
		*why->text = '\0';
	}
	return false;
}

/* False: p may not join now. If `why` is empty then, p was told what it needs to know. */
static bool may_be_worker(struct server_peer *p, const json_t *message, uint32_t *index,
	struct tern_ps_text *why)
{
	struct tern_ps_job job = {0};
	uint32_t server;
	bool good;

	if (decode_job(message, &job, why) < 0)
		return false;
	good = has_workers(p, &job, why) &&
	       read_numbers(p->server, message, &job, index, &server, why) &&
	       has_right_place(p->server, server, why) && view_is_settled(p, &job, why) &&
	       has_right_number(p, &job, *index, server, why) &&
	       fits_memory(p->server, &job, server) &&
	       has_own_snapshot(p, message, &job) &&
	       may_be_first(p, &job, *index, server, why) && agree(p, &job, server, why);
	if (good)
		snprintf(p->zero, sizeof(p->zero), "%s", job.servers[0]);
	tern_ps_job_fini(&job);
	return good;
}

/* ---- workers ---- */

void join_meet_zero(struct tern_server *s)
{
	int r = others_connect(s);

	if (r < 0)
		server_fail(s, r, "server 0 at %s: %s", start_find_present(s)->zero,
			r == -EINVAL ? "not an address" : tern_status_text(r));
}

void join_say_welcome(struct server_peer *p, bool running)
{
	const struct tern_server *s = p->server;

	tern_talk_say(&p->talk,
		json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:I, s:b}",
			"type", "welcome", "blobs", blobs_json(s, UINT64_MAX), "version",
			(json_int_t)resume_step_of(s, p->index), "number",
			(json_int_t)s->first_number, "life", (json_int_t)memory_life(s),
			"snapshot", (json_int_t)back_newest(s), "back",
			s->opts.goes_back && s->job.mode == TERN_MODE_SYNC, "returns",
			s->opts.returns, "running", running, "claim",
			(json_int_t)members_claim(s), "omits", s->opts.omits));
	follow_tell(p);
}

static void welcome(struct server_peer *p)
{
	struct tern_server *s = p->server;

	p->welcome = true;
	s->joined_count++;
	join_say_welcome(p, false);
	server_note_coming(s, "%s joined, %u of %u", tern_peer_name(p->peer),
		s->joined_count, s->job.workers);
	server_tell_joined(s);
	start_count_absent(s);
	if (start_all_here(s))
		join_meet_zero(s);
	start_maybe(s);
}

/* Logs how much device memory the server holds. */
static void note_memory(struct tern_server *s)
{
	uint64_t bytes = tern_updater_held_bytes(s->opts.updater) +
			 tern_vector_device_bytes(&s->opts.memory, s->store) +
			 tern_vector_device_bytes(&s->opts.memory, s->rooms);

	server_updater_note(s);
	if (bytes)
		server_note(s, "server %u holds %llu bytes on %s", view_own_number(s),
			(unsigned long long)bytes, s->opts.updater->name);
}

/* The chunks are made: welcomes the workers that have joined while they were made. */
void join_shard_made(struct tern_server *s)
{
	note_memory(s);
	for (uint32_t i = 0; i < s->job.workers && !s->over; i++)
		if (s->workers[i] && !s->workers[i]->absent)
			welcome(s->workers[i]);
}

/* True if the steps have not begun and worker p has left or was perhaps killed: then its
 * place may be free soon. */
static bool may_go_soon(const struct server_peer *p)
{
	return !p->server->running && (p->unlinked || p->left || p->gone);
}

/* True if the server may soon forget the job, because the places of all of its workers may
 * soon be free. */
static bool job_may_go_soon(const struct tern_server *s)
{
	for (uint32_t i = 0; s->has_job && i < s->job.workers; i++)
		if (s->workers[i] && !may_go_soon(s->workers[i]))
			return false;
	return s->has_job;
}

/* The place belongs to another process, which was perhaps lost. */
static void want_place(struct server_peer *p, uint32_t index, const json_t *message)
{
	const struct server_peer *holder = p->server->workers[index];

	if (may_go_soon(holder))
		guests_ask_later(p);
	else if (p->server->running)
		change_on_join(p, index, message);
	else
		server_refuse_for_now(p, "worker %u has joined already", index);
}

void join_on_join(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	struct tern_ps_text why = {""};
	bool first = !s->has_job;
	uint32_t index;

	members_tell(p);
	remote_hear_zero(s, message);
	if (resume_is_searching(s)) {
		guests_ask_later(p);
		return;
	}
	if (!may_be_worker(p, message, &index, &why)) {
		if (!*why.text)
			return;
		if (job_may_go_soon(s))
			guests_ask_later(p);
		else
			server_refuse(p, "%s", why.text);
		return;
	}
	if (index >= s->job.workers) {
		grow_on_join(p, index, message);
		return;
	}
	if (s->workers[index]) {
		want_place(p, index, message);
		return;
	}
	p->is_worker = true;
	p->goes_back = json_is_true(json_object_get(message, "back"));
	if (s->opts.goes_back && json_is_true(json_object_get(message, "returns")))
		s->opts.returns = true;
	guests_leave(p);
	p->index = index;
	p->incarnation =
		(uint64_t)json_integer_value(json_object_get(message, "incarnation"));
	s->workers[index] = p;
	if (first) {
		guests_know_job(s, p);
		start_wait(s);
		shard_make(s);
	} else if (shard_is_made(s)) {
		welcome(p);
	}
}

/* ---- other servers ---- */

/* True if p may be server `index` of this job. p has connected to the address of server 0
 * that a worker gave it, and that address may lead to another server. */
static bool is_one_of_us(const struct server_peer *p, uint32_t index,
	const struct tern_ps_job *job, struct tern_ps_text *why)
{
	const struct tern_server *s = p->server;

	if (s->index != 0) {
		snprintf(why->text, sizeof(why->text),
			"%s leads server %u to server %u: the first of --join must be "
			"right on every host",
			job->servers[0], tern_view_number(job, index),
			view_own_number(s));
		return false;
	}
	if (tern_ps_job_differs(&s->job, job, tern_peer_name(p->peer), why))
		return false;
	if (!others_find(s, index) || s->opts.goes_back)
		return true;
	snprintf(why->text, sizeof(why->text), "server %u has joined already",
		view_number(s, index));
	return false;
}

/* True if server `index` has the same arithmetic (fingerprint) as this server.
 * `arithmetic` is NULL or empty if the job needs no norm over all servers; then any
 * arithmetic will do. */
static bool adds_up_alike(const struct tern_server *s, uint32_t index,
	const char *arithmetic, struct tern_ps_text *why)
{
	const char *mine = s->opts.updater->fingerprint;

	if (!arithmetic || !*arithmetic || strcmp(arithmetic, mine) == 0)
		return true;
	snprintf(why->text, sizeof(why->text),
		"server %u computes with \"%.120s\", server 0 with \"%s\": both must be "
		"the same, since norms are added up from both",
		view_number(s, index), arithmetic, mine);
	return false;
}

/* True if another server begins with the same snapshot, or both with what they have in memory of the
 * same life (memory.c). */
static bool begins_alike(const struct tern_server *s, const json_t *message)
{
	uint64_t life = memory_life(s);

	if ((json_int_t)life != json_integer_value(json_object_get(message, "life")))
		return false;
	return life || (json_integer_value(json_object_get(message, "version")) ==
				       (json_int_t)s->first_version &&
			       json_integer_value(json_object_get(message, "number")) ==
				       (json_int_t)s->first_number);
}

/* True if server `index` leaves slots out if this one does. */
static bool omits_alike(const struct tern_server *s, uint32_t index,
	const json_t *message, struct tern_ps_text *why)
{
	bool omits = json_is_true(json_object_get(message, "omits"));

	if (omits == s->opts.omits)
		return true;
	snprintf(why->text, sizeof(why->text),
		"server %u was started with --on-nan %s, and server 0 with --on-nan %s: "
		"give all servers the same",
		view_number(s, index), omits ? "skip" : "stop",
		s->opts.omits ? "skip" : "stop");
	return false;
}

/* True if server `index` begins with the same version, and takes snapshots if this one does. */
static bool saves_alike(const struct tern_server *s, uint32_t index,
	const json_t *message, struct tern_ps_text *why)
{
	bool takes = json_is_true(json_object_get(message, "snapshots"));

	if (takes != !!s->snapshots)
		snprintf(why->text, sizeof(why->text),
			"server %u was started %s --snapshots, and server 0 %s it: give "
			"all "
			"servers the same directory, or all but server 0 --snapshots-via",
			view_number(s, index), takes ? "with" : "without",
			takes ? "without" : "with");
	else if (!begins_alike(s, message))
		snprintf(why->text, sizeof(why->text),
			"server %u begins with snapshot %lld-%08llx, and server 0 with "
			"%llu-%08x: all servers need the same --resume",
			view_number(s, index),
			(long long)json_integer_value(
				json_object_get(message, "version")),
			(unsigned long long)json_integer_value(
				json_object_get(message, "number")),
			(unsigned long long)s->first_version, s->first_number);
	else
		return true;
	return false;
}

/* True if the job that another server has brought is in the view that this server's job has. A
 * server with an older one will have no workers soon. */
static bool has_same_view(const struct tern_server *s, const json_t *message)
{
	const json_t *job = json_object_get(message, "job");

	return json_integer_value(json_object_get(job, "view")) ==
	       (json_int_t)s->job.view;
}

static bool may_be_server(struct server_peer *p, const json_t *message, uint32_t *index,
	struct tern_ps_text *why)
{
	const json_t *number = json_object_get(message, "server");
	json_int_t i = json_integer_value(number);
	struct tern_ps_job job = {0};
	bool good = false;

	if (decode_job(message, &job, why) < 0)
		return false;
	*index = (uint32_t)i;
	if (!json_is_integer(number) || i < 1 || i >= job.server_count)
		snprintf(why->text, sizeof(why->text),
			"server: expected an integer from 1 to %u", job.server_count - 1);
	else
		good = is_one_of_us(p, *index, &job, why) &&
		       adds_up_alike(p->server, *index,
			       json_string_value(json_object_get(message, "arithmetic")),
			       why) &&
		       omits_alike(p->server, *index, message, why) &&
		       saves_alike(p->server, *index, message, why);
	tern_ps_job_fini(&job);
	return good;
}

void join_on_peer(struct server_peer *p, const json_t *message)
{
	struct tern_ps_text why = {""};
	uint32_t index;

	if (!p->server->has_job || (p->server->running && p->server->opts.goes_back) ||
		!has_same_view(p->server, message)) {
		/* This server has no job yet, or goes on with one whose server of that number is
		 * lost, which it will know soon. */
		start_send_away(p);
	} else if (!begins_alike(p->server, message) &&
		   (p->server->opts.returns ||
			   json_integer_value(json_object_get(message, "life")))) {
		/* A server that has a job in memory goes back with it, also if this server and all
		 * workers were started anew, and do not know that. */
		back_send_away(p, message);
	} else if (!may_be_server(p, message, &index, &why)) {
		server_refuse(p, "%s", why.text);
	} else if (others_find(p->server, index)) {
		/* A former connection of this server is not known to be lost yet. */
		start_send_away(p);
	} else {
		p->is_server = true;
		p->index = index;
		p->incarnations = json_incref(json_object_get(message, "incarnations"));
		p->begins_at =
			(uint64_t)json_integer_value(json_object_get(message, "version"));
		guests_leave(p);
		start_maybe(p->server);
	}
}
