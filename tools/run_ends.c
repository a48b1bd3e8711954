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
	return r->l.sup.child_count == r->l.opts.servers + r->l.opts.workers;
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
	if (!launch_running(&r->l, false))
		r->l.served_ns = tern_clock_ns();
	/* without workers, servers end with a failure */
	if (is_well(c) || (run_all_workers_ended(r) && !r->l.safe))
		return;
	if (!*r->dead_server || (WIFSIGNALED(c->status) && !r->server_killed)) {
		supervise_describe(c, r->dead_server, sizeof(r->dead_server));
		r->server_killed = WIFSIGNALED(c->status);
	}
	if (!r->l.safe)
		launch_fail(&r->l);
}

void run_on_exit_of(void *arg, struct child *c)
{
	struct run *r = arg;

	if (r->ending)
		return;
	if (!launch_is_worker(&r->l, c)) {
		on_exit_of_server(r, c);
		return;
	}
	if (!r->begun && !*r->early)
		describe(r, c, r->early, sizeof(r->early));
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
		if (*again)
			r->reasons[i] = (struct reason){0};
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
	if (!r->l.failed_ns)
		look_for_waiting(r);
	if (!r->l.failed_ns && (r->begun || !*r->early) && !run_all_workers_ended(r) &&
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
	return r->begun && !place_is_ranked(&r->place) &&
	       (r->server_killed ||
		       (*r->cause && r->cause_is_signal && !r->l.told[r->cause_of]));
}

bool run_has_succeeded(const struct run *r)
{
	if (!place_has_servers(&r->place))
		return r->succeeded && !r->l.failed_ns;
	return r->succeeded && (r->completed || r->l.safe) &&
	       (!r->l.failed_ns || r->blames_workers);
}
