/* SPDX-License-Identifier: Apache-2.0 */
/* How the children of `tern run` have ended: which workers are lost, and the one cause of a
 * failure. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tools/run_state.h"

bool run_all_started(const struct run *r)
{
	return r->l.sup.child_count >= r->l.opts.servers + r->l.opts.workers;
}

uint64_t run_others_running(const struct run *r)
{
	return place_has_servers(&r->place) ? place_others(&r->place) : 0;
}

bool run_all_workers_ended(const struct run *r)
{
	return run_all_started(r) && !launch_running(&r->l, true) &&
	       !run_others_running(r);
}

/* ---- a job that goes on in place ---- */

/* True if the job has gone back, and its steps have not begun again on all servers. */
static bool is_back(const struct run *r)
{
	if (!r->l.opts.goes_back || !r->l.begun)
		return false;
	/* A server of which nothing was heard yet may only be late with its first "begun". */
	for (unsigned i = 0; i < r->l.opts.servers; i++)
		if (!r->l.at_steps[i] && (r->l.known[i] || *r->fallen))
			return true;
	return false;
}

bool run_awaits_worker(const struct run *r)
{
	if (restart_is_pending(&r->l))
		return true;
	/* Server 0 will say that it goes back, unless the worker had finished. */
	return r->last_taken && r->l.at_steps[0] && !r->l.completed && !r->l.failed_ns &&
	       !r->l.served_ns && !r->l.safe;
}

void run_on_step(struct run *r, json_int_t step)
{
	if (step <= r->reached)
		return;
	r->reached = step;
	/* If the job fails from now on, the process that was killed is not the cause. */
	if (!is_back(r))
		*r->fallen = '\0';
}

void run_take_begun(struct run *r, const struct child *c, const json_t *event)
{
	static const char text[] = "a program does not go back with its job "
				   "(TERN_SERVER_WAIT, or server_wait "
				   "of its session): if a server or the last worker is "
				   "killed, all processes "
				   "are started again";

	const char *mode = json_string_value(json_object_get(event, "mode"));

	launch_take_begun(&r->l, c);
	if (!r->l.opts.goes_back || !json_is_false(json_object_get(event, "goes_back")))
		return;
	r->l.opts.goes_back = false;
	/* In async and ssp mode no job goes back in place, whatever its programs wait for. */
	if (mode && strcmp(mode, "sync") == 0)
		launch_report(&r->l, "run",
			json_pack("{ss ss}", "event", "note", "text", text));
}

void run_on_begun(struct launch *l)
{
	struct run *r = l->sup.arg;

	r->begun = l->begun;
	if (!l->opts.goes_back || is_back(r) || !l->went_back || l->failed_ns)
		return;
	*r->cause = '\0';
	r->last_taken = false;
}

/* Fails the job: one more process has ended, as `how` says, and the others would wait for it in
 * vain. A process was killed before, so all may be started again. */
static void give_up(struct run *r, const char *how)
{
	snprintf(r->dead_server, sizeof(r->dead_server), "%s, and then %s", r->fallen,
		how);
	r->server_killed = true;
	launch_fail(&r->l);
}

/* True after a process was killed, until the job has made a step that it had not made before. */
static bool goes_on_again(const struct run *r)
{
	return *r->fallen && !r->l.failed_ns && !r->l.safe && !r->l.completed &&
	       !r->l.aborted && !r->input_error;
}

/* True if the process was killed and the job goes on in place with another one. */
static bool takes(struct run *r, const struct child *c)
{
	if (r->l.completed || r->l.aborted || !restart_takes(&r->l, c))
		return false;
	if (!*r->fallen && (!launch_is_worker(&r->l, c) || !launch_running(&r->l, true)))
		supervise_describe(c, r->fallen, sizeof(r->fallen));
	return true;
}

/* Fails the job if it cannot go on in place after a process was killed. */
static void settle_stranded(struct run *r)
{
	if (!r->l.stranded || r->l.failed_ns)
		return;
	supervise_describe(r->l.stranded, r->dead_server, sizeof(r->dead_server));
	r->server_killed = true;
	launch_fail(&r->l);
}

/* ---- what workers have printed ---- */

void run_look_for_reason(struct reason *reason, const char *text, size_t bytes)
{
	static const char first[] = "Traceback (most recent call last):";

	if (bytes == sizeof(first) - 1 && memcmp(text, first, bytes) == 0) {
		reason->in_traceback = true;
	} else if (reason->in_traceback && bytes && *text != ' ') {
		reason->in_traceback = false;
		snprintf(reason->text, sizeof(reason->text), "%.*s", (int)bytes, text);
	}
}

/* ---- the ends of children ---- */

static bool is_well(const struct child *c)
{
	return WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0;
}

/* The reason that a worker has printed for its exit code; NULL: none. */
static const char *reason_of(const struct run *r, const struct child *c)
{
	const char *reason = r->reasons[launch_number(&r->l, c)].text;

	/* 1 is the code of an exception that was not caught */
	return WEXITSTATUS(c->status) == 1 && *reason ? reason : NULL;
}

/* Describes how a worker has ended: "worker 1 exited with code 1: ValueError: x". */
static void describe(const struct run *r, const struct child *c, char *text, size_t bytes)
{
	const char *reason = reason_of(r, c);
	int code = WEXITSTATUS(c->status);

	if (WIFSIGNALED(c->status))
		snprintf(text, bytes, "%s was killed by signal %d (%s)", c->name,
			WTERMSIG(c->status), strsignal(WTERMSIG(c->status)));
	else if (reason)
		snprintf(
			text, bytes, "%s exited with code %d: %s", c->name, code, reason);
	else
		snprintf(text, bytes, "%s exited with code %d", c->name, code);
}

static void on_exit_of_server(struct run *r, const struct child *c)
{
	char how[160];

	if (takes(r, c))
		return;
	if (!launch_running(&r->l, false))
		r->l.served_ns = tern_clock_ns();
	/* without workers, servers end with a failure */
	if (is_well(c) || (run_all_workers_ended(r) && !r->l.safe))
		return;
	if (goes_on_again(r)) {
		supervise_describe(c, how, sizeof(how));
		give_up(r, *r->l.error ? r->l.error : how);
		return;
	}
	if (!*r->dead_server || (WIFSIGNALED(c->status) && !r->server_killed)) {
		supervise_describe(c, r->dead_server, sizeof(r->dead_server));
		r->server_killed = WIFSIGNALED(c->status);
	}
	if (!r->l.safe)
		launch_fail(&r->l);
}

static void on_exit_of_worker(struct run *r, const struct child *c)
{
	char how[640];

	r->last_taken = takes(r, c);
	if (!r->last_taken && goes_on_again(r) && (is_back(r) || !is_well(c))) {
		describe(r, c, how, sizeof(how));
		give_up(r, how);
	}
	if (is_well(c)) {
		r->succeeded++;
		return;
	}
	if (!*r->cause || r->l.told[r->cause_of]) {
		describe(r, c, r->cause, sizeof(r->cause));
		r->cause_of = launch_number(&r->l, c);
		r->cause_is_code = WIFEXITED(c->status) && !reason_of(r, c);
		r->cause_is_signal = WIFSIGNALED(c->status);
	}
	r->l.died[launch_number(&r->l, c)] = true;
	if (!r->l.loss_ns)
		r->l.loss_ns = tern_clock_ns();
}

void run_on_exit_of(void *arg, struct child *c)
{
	struct run *r = arg;

	if (r->ending)
		return;
	if (launch_is_follower(&r->l, c)) {
		restart_follower(&r->l, c);
		return;
	}
	if (!launch_is_worker(&r->l, c)) {
		on_exit_of_server(r, c);
		return;
	}
	if (!r->begun && !*r->early)
		describe(r, c, r->early, sizeof(r->early));
	on_exit_of_worker(r, c);
}

/* ---- lost workers ---- */

static void tell_loss(struct run *r, unsigned i)
{
	const struct child *c = &r->l.sup.children[i];
	char text[1000], how[640], again[120] = "";

	if (r->l.died[i] && !r->ending && !r->l.told[i] &&
		restart_worker(&r->l, c, again, sizeof(again)) && r->cause_of == i)
		*r->cause = '\0';
	if (r->l.died[i]) {
		describe(r, c, how, sizeof(how));
		snprintf(text, sizeof(text), "%s: the job goes on without it%s", how,
			again);
	} else {
		snprintf(text, sizeof(text), "%s (pid %d): %s", c->name, (int)c->pid,
			r->l.missed[i]);
	}
	launch_tell_loss(&r->l, c, text);
}

void run_tell_losses(struct run *r)
{
	for (unsigned i = (unsigned)r->l.opts.servers; i < r->l.sup.child_count; i++) {
		const struct child *c = &r->l.sup.children[i];
		bool well = !c->running && is_well(c);

		if (r->l.died[i] || (r->l.missed[i] && !well))
			tell_loss(r, i);
	}
	r->l.loss_ns = 0;
}

bool run_has_passed(uint64_t since_ns, uint64_t ns)
{
	return since_ns && launch_ms_left(since_ns, ns) == 0;
}

/* Fails the job if workers wait in vain for one that has ended before the steps. */
static void look_for_waiting(struct run *r)
{
	if (!*r->early || r->begun || !r->joined ||
		(!launch_running(&r->l, true) && !run_others_running(r)))
		r->early_ns = 0;
	else if (!r->early_ns)
		r->early_ns = tern_clock_ns();
	if (run_has_passed(r->early_ns, LAUNCH_PATIENCE_NS))
		launch_fail(&r->l);
}

void run_settle_losses(struct run *r)
{
	if (r->l.aborted)
		r->l.loss_ns = 0; /* its end is no loss */
	if (r->last_taken && !launch_running(&r->l, true) && !launch_has_added(&r->l))
		r->l.loss_ns = 0; /* told when server 0 goes back */
	settle_stranded(r);
	if (!r->l.failed_ns)
		look_for_waiting(r);
	if (!r->l.failed_ns && (r->begun || !*r->early) &&
		(!run_all_workers_ended(r) || launch_has_added(&r->l)) &&
		run_has_passed(r->l.loss_ns, LAUNCH_PATIENCE_NS))
		run_tell_losses(r);
}

uint64_t run_patience_ns(const struct run *r)
{
	if (r->server_killed || r->early_ns || r->input_error)
		return 0;
	return r->blames_workers ? LAUNCH_LINGER_NS : LAUNCH_PATIENCE_NS;
}

void run_name_cause(const struct run *r, char *text, size_t bytes)
{
	if (r->server_killed) {
		snprintf(text, bytes, "%s", r->dead_server);
	} else if (r->early_ns) {
		snprintf(text, bytes, "the steps could not begin: %s", r->early);
	} else if (*r->cause && (!*r->l.error || r->blames_workers)) {
		bool more = r->cause_is_code && *r->l.error;

		snprintf(text, bytes, "%s%s%s", r->cause, more ? "; " : "",
			more ? r->l.error : "");
	} else if (*r->l.error && !(r->succeeded && r->blames_workers)) {
		snprintf(text, bytes, "%s", r->l.error);
	} else if (run_all_workers_ended(r)) {
		snprintf(text, bytes, "the job was not completed: %s%s%s",
			!r->joined && !r->begun ? "no worker has joined its servers"
			: !r->begun ? "workers have ended before the steps began"
				    : "its workers have ended before its end",
			*r->l.error ? ": " : "", r->l.error);
	} else {
		snprintf(text, bytes, "%s",
			*r->dead_server ? r->dead_server
					: "the servers ended before the workers");
	}
}

bool run_was_killed(const struct run *r)
{
	/* A job that is started anew after a kill has begun before. */
	return (r->begun || r->restarts->count > 0) && !place_is_ranked(&r->place) &&
	       (r->server_killed ||
		       (*r->cause && r->cause_is_signal && !r->l.told[r->cause_of]));
}

bool run_has_succeeded(const struct run *r)
{
	if (!place_has_servers(&r->place))
		return r->succeeded && !r->l.failed_ns;
	return r->succeeded && (r->l.completed || r->l.safe) &&
	       (!r->l.failed_ns || r->blames_workers);
}
