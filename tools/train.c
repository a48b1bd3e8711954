/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern train`: runs a whole job on this machine.
 *
 *     SERVERS --all of them listen--> WORKERS --done, servers ended--> finished
 *        \________________________________/
 *             something went wrong -> FAILED -> all processes are ended
 *
 * Servers and workers are processes of this same program, `tern server` and `tern
 * worker`, each with the arguments that concern it. They report events as JSON lines,
 * which this process reads. When one process dies, others report errors too, in an order
 * that does not show which error caused the others. So the launcher waits up to
 * LAUNCH_PATIENCE_NS after the first failure. If a process was killed by a signal, that is
 * reported as the cause, rather than the error of another process.
 *
 * A worker may die once the steps have begun: the servers continue with the other
 * workers. The loss is reported in a line, after the same wait, unless the job has failed
 * by then. A job with --snapshots in sync mode also goes on after a server or the last worker
 * was killed: it is started again, and all others stay (restart.h). With --replicas 2 each server
 * has a follower, which takes the place of a killed server.
 *
 * At most UNREADY_MAX workers are starting at once. A worker that has started has its data
 * in memory, so the free memory then shows whether more workers fit. The limit also leaves
 * processor time for this process.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/util.h"
#include "tools/launch.h"
#include "tools/restart.h"
#include "tools/signals.h"

/* Largest number of workers that have started but still read their data. */
#define UNREADY_MAX 64

struct train_settings {
	struct job_settings job; /* must be first: JOB_OPTIONS has offsets into it */
	struct launch_settings launch;
};

static const struct option options[] = {
	JOB_OPTIONS,
	LAUNCH_OPTIONS(struct train_settings, launch),
	OPTION(TEXT, "secret-file", "PATH",
		"file with the secret of the job, instead of one that is made for it: "
		"whoever has it can join the job, and ask it (tern status)",
		struct train_settings, launch.secret.file),
	OPTION_END,
};

struct train {
	struct launch l;
	struct job_settings *job;
	struct launch_settings *launch;
	struct tern_recent *restarts;
	/* Over all servers: sums of gradients applied and refused and of their staleness,
	 * and the largest staleness. */
	double applied, refused, staleness_sum, staleness_max;
	int argc; /* command line of the user, passed on to the workers */
	char **argv;
	bool begun;       /* the steps have begun: from now on a worker may be lost */
	unsigned speaker; /* index of the worker whose progress is printed */
	char *complaints[SUPERVISE_CHILDREN_MAX]; /* [child]: this worker's first error */
	bool input_error;                         /* the user made the error in l.error */
	/* The first process that was killed by a signal, else the first that exited with a
	 * failure. */
	char dead[160];
	bool killed; /* the process of `dead` was, or is as good as (restart_has_failed()) */
	/* The job is being ended: failures of children are only a consequence. */
	bool ending;
	/* The event "done" of the finisher, and the last one of a worker that was not the finisher. */
	json_t *done, *left;
	time_t since; /* when the processes were started */
	/* The last events "progress" of server 0, and of the speaker as it was shown. */
	json_t *served, *shown;
	double slot_losses[TERN_SLOTS_MAX];
	bool has_loss[TERN_SLOTS_MAX];
	/* Last step shown, and number of steps; in async mode those of the speaker. */
	uint64_t step, steps;
	bool saved;
};

static bool is_for_servers(const struct train *t, const char *arg)
{
	static const char *const names[] = {"--listen", "--server-device",
		"--server-threads", "--worker-timeout", "--on-stall", "--on-nan",
		"--snapshots", "--snapshot-every", "--snapshot-keep", "--resume",
		"--logdir", "--restarts", "--secret-file", "--replicas"};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++)
		if (options_is(arg, names[i]))
			return true;
	/* Workers without a GPU would refuse it. */
	return options_is(arg, "--tensor-memory") && !t->job->device.cuda;
}

/* Starts a worker with the user's options, except those for servers. */
static void start_worker(struct launch *l, unsigned index)
{
	const struct train *t = l->sup.arg;
	const char *args[SUPERVISE_ARGS_MAX + 1];
	char number[16];
	size_t n = 0;

	snprintf(number, sizeof(number), "%u", index);
	args[n++] = "worker";
	for (int i = 0; i < t->argc; i++) {
		if (is_for_servers(t, t->argv[i]))
			i += !strchr(t->argv[i], '=');
		else if (strcmp(t->argv[i], "--insecure") != 0)
			args[n++] = t->argv[i];
	}
	if (!t->job->json)
		args[n++] = "--json";
	args[n++] = "--index";
	args[n++] = number;
	args[n++] = "--join";
	args[n++] = l->join;
	args[n++] = "--spin-us";
	args[n++] = l->spin_us;
	args[n++] = "--server-wait";
	args[n++] = launch_server_wait(l);
	n += launch_add_secret(l, args + n);
	args[n] = NULL;
	launch_role(l, "worker", index, args);
}

static void report_start(struct launch *l)
{
	const struct job_settings *job = ((struct train *)l->sup.arg)->job;

	report(&l->out, "train",
		json_pack("{ss ss ss sI sI sI sI ss}", "event", "start", "model",
			job->model, "fabric", fabric_name(&job->fabric), "servers",
			(json_int_t)job->servers, "replicas",
			(json_int_t)l->opts.settings->replicas, "workers",
			(json_int_t)job->workers, "slots", (json_int_t)job->slots, "join",
			l->join));
}

/* ---- events of the children ---- */

static void take_error(struct train *t, const struct child *c, const json_t *event)
{
	const char *text = json_string_value(json_object_get(event, "text"));

	if (!*t->l.error) {
		t->input_error = json_is_true(json_object_get(event, "input"));
		/* If the user gave a wrong option, the name of the process that found it
		 * is left out. */
		snprintf(t->l.error, sizeof(t->l.error), "%s%s%s",
			t->input_error ? "" : c->name, t->input_error ? "" : ": ",
			text ? text : "failed");
	}
	/* An error of a worker ends the job only if the user made it; otherwise the
	 * servers decide whether the job continues without this worker. */
	if (!launch_is_worker(&t->l, c) || t->input_error) {
		launch_fail(&t->l);
	} else if (text && !t->complaints[launch_number(&t->l, c)]) {
		t->complaints[launch_number(&t->l, c)] = strdup(text);
	}
}

/* Chooses the worker whose progress is printed: the first that runs and is not lost. */
static void choose_speaker(struct train *t)
{
	for (unsigned i = 0; i < t->job->workers; i++) {
		const struct child *c = launch_worker(&t->l, i);

		if (c->running && !t->l.missed[launch_number(&t->l, c)]) {
			t->speaker = i;
			return;
		}
	}
}

/* The loss of a worker that a user has added by hand is told as server 0 says it. */
static void take_loss(struct train *t, const struct child *c, json_t *event)
{
	const struct child *lost = launch_take_loss(&t->l, event);
	json_int_t worker = json_integer_value(json_object_get(event, "worker"));

	if (worker >= (json_int_t)t->job->workers && launch_number(&t->l, c) == 0) {
		json_object_set_new(event, "who", json_string(c->name));
		launch_report(&t->l, c->name, json_incref(event));
	}
	if (lost && lost == launch_worker(&t->l, t->speaker))
		choose_speaker(t);
}

/* Takes the event "applied" of a server at its end, and adds its numbers to the sums. */
static void take_applied(struct train *t, const json_t *event)
{
	double gradients = json_number_value(json_object_get(event, "gradients"));

	t->applied += gradients;
	t->refused += json_number_value(json_object_get(event, "gradients_refused"));
	t->staleness_sum +=
		gradients * json_number_value(json_object_get(event, "staleness_mean"));
	t->staleness_max = TERN_MAX(t->staleness_max,
		json_number_value(json_object_get(event, "staleness_max")));
}

/* Adds the sums to the event "done". In sync mode gradients are never stale. */
static void set_applied(struct train *t)
{
	json_object_set_new(
		t->done, "gradients_refused", json_integer((json_int_t)t->refused));
	if (t->job->mode.kind != TERN_MODE_ASYNC || t->applied == 0)
		return;
	json_object_set_new(
		t->done, "staleness_mean", json_real(t->staleness_sum / t->applied));
	json_object_set_new(
		t->done, "staleness_max", json_integer((json_int_t)t->staleness_max));
}

static void take_slot_losses(struct train *t, const json_t *event)
{
	const json_t *list = json_object_get(event, "slot_losses");
	const json_t *one;
	size_t i;

	json_array_foreach(list, i, one)
	{
		json_int_t slot = json_integer_value(json_array_get(one, 0));

		if (slot < 0 || slot >= TERN_SLOTS_MAX)
			continue;
		t->slot_losses[slot] = json_number_value(json_array_get(one, 1));
		t->has_loss[slot] = true;
	}
}

/* Sets the job's loss: the mean over the slots (the gradients of a step). Slots are added
 * in their order, so that the sum does not depend on which worker computed which slot. */
static void set_loss_of_all_slots(struct train *t)
{
	double sum = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < TERN_SLOTS_MAX; i++)
		if (t->has_loss[i]) {
			sum += t->slot_losses[i];
			n++;
		}
	if (n)
		json_object_set_new(t->done, "loss", json_real(sum / n));
	json_object_del(t->done, "slot_losses");
}

/* Adds to the speaker's progress what only server 0 knows. Without --eval-every it leaves out the
 * metrics, which are only the results after the last step: the event "done" has these. */
static void add_served(struct train *t, json_t *event)
{
	static const char *const names[] = {
		"metrics", "lr", "staleness_mean", "staleness_max"};

	for (size_t i = t->job->eval_every ? 0 : 1; i < TERN_ARRAY_SIZE(names); i++) {
		json_t *value = json_object_get(t->served, names[i]);

		if (value && !json_object_get(event, names[i]))
			json_object_set(event, names[i], value);
	}
}

static void take_progress(struct train *t, json_t *event)
{
	add_served(t, event);
	json_decref(t->shown);
	t->shown = json_incref(event);
	t->step = (uint64_t)json_integer_value(json_object_get(event, "step"));
	t->steps = (uint64_t)json_integer_value(json_object_get(event, "steps"));
}

/* Writes the last step shown: "step 12 of 4000". */
static void describe_step(const struct train *t, char *text, size_t bytes)
{
	size_t n = (size_t)snprintf(text, bytes, "step %llu of %llu",
		(unsigned long long)t->step,
		(unsigned long long)(t->steps ? t->steps : t->job->steps));

	if (t->job->mode.kind == TERN_MODE_ASYNC && t->steps)
		snprintf(text + n, bytes - n, " of worker %u", t->speaker);
}

/* Takes the progress that server 0 reports. The speaker's is shown, with a part of it, unless
 * the job stands still: then the speaker says nothing. */
static void take_served(struct train *t, const struct child *c, json_t *event)
{
	static const char *const of_speaker[] = {"step", "steps", "loss"};

	json_decref(t->served);
	t->served = json_incref(event);
	if (!json_object_get(event, "waits_for") || !t->shown)
		return;
	event = json_deep_copy(event);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(of_speaker); i++)
		json_object_set(
			event, of_speaker[i], json_object_get(t->shown, of_speaker[i]));
	json_object_set_new(event, "who", json_string(c->name));
	report(&t->l.out, c->name, event);
}

/* Forgets who was killed and which errors there were: they cannot be the cause if the job fails
 * later. */
static void forget_causes(struct train *t)
{
	t->killed = false;
	*t->dead = *t->l.error = '\0';
}

/* A worker may save a later step than the last one that was shown: while the job is being ended, "progress" is
 * not shown. In async mode the event names the worker whose steps it counts, unless these are final. */
static void take_saved_step(struct train *t, const json_t *event)
{
	uint64_t step = (uint64_t)json_integer_value(json_object_get(event, "step"));
	const json_t *worker = json_object_get(event, "worker");

	if (t->job->mode.kind == TERN_MODE_SYNC ||
		(worker && json_integer_value(worker) == (json_int_t)t->speaker))
		t->step = TERN_MAX(t->step, step);
}

static void take_worker_event(
	struct train *t, const struct child *c, const char *name, json_t *event)
{
	bool speaks =
		c == launch_worker(&t->l, t->speaker) && strcmp(name, "progress") == 0;

	if (strcmp(name, "ready") == 0) {
		t->l.ready[launch_number(&t->l, c)] = true;
	} else if (strcmp(name, "begun") == 0) {
		t->begun = t->l.settled = true;
		if (t->l.went_back && !t->l.failed_ns)
			forget_causes(t);
	} else if (strcmp(name, "done") == 0) {
		take_slot_losses(t, event);
		/* The finisher is the worker that tests and saves the parameters. Its
		 * result is printed when all processes have ended. */
		if (json_is_true(json_object_get(event, "finisher"))) {
			json_decref(t->done);
			t->done = json_incref(event);
		} else {
			json_decref(t->left);
			t->left = json_incref(event);
		}
	} else if (speaks || strcmp(name, "saved") == 0 || strcmp(name, "unsaved") == 0 ||
		   strcmp(name, "evaluated") == 0 || strcmp(name, "generated") == 0) {
		if (speaks)
			take_progress(t, event);
		t->saved = t->saved || strcmp(name, "saved") == 0;
		if (strcmp(name, "saved") == 0)
			take_saved_step(t, event);
		json_object_set_new(event, "who", json_string(c->name));
		report(&t->l.out, c->name, json_incref(event));
	}
}

/* True for events that are printed as they arrive, from servers and workers alike. Most
 * notes come from every server, so of servers only the notes of server 0 are printed. */
static bool is_for_all(struct train *t, const struct child *c, const char *name)
{
	return strcmp(name, "log") == 0 || strcmp(name, "device") == 0 ||
	       (strcmp(name, "status") == 0 && !t->l.drains) ||
	       strcmp(name, "warning") == 0 || strcmp(name, "snapshot") == 0 ||
	       (strcmp(name, "note") == 0 &&
		       (launch_is_worker(&t->l, c) || launch_number(&t->l, c) == 0));
}

/* Takes an event while the job is being ended: only events about saving are printed.
 * Releases the event. */
static void take_last_event(struct train *t, const struct child *c, json_t *event)
{
	const char *name = json_string_value(json_object_get(event, "event"));
	bool saved = name && strcmp(name, "saved") == 0;

	t->saved = t->saved || saved;
	if (saved)
		take_saved_step(t, event);
	if (saved || (name && strcmp(name, "unsaved") == 0)) {
		json_object_set_new(event, "who", json_string(c->name));
		report(&t->l.out, c->name, event);
	} else {
		if (name && strcmp(name, "applied") == 0)
			take_applied(t, event);
		json_decref(event);
	}
}

/* Sets child->saving, which protects the child from supervise_end(). A child may begin to
 * save before the job is being ended. */
static void note_saving(struct child *c, const char *name)
{
	if (!name)
		return;
	if (strcmp(name, "saving") == 0)
		c->saving = true;
	else if (strcmp(name, "saved") == 0 || strcmp(name, "unsaved") == 0)
		c->saving = false;
}

static void on_line(void *arg, struct child *c, const char *line)
{
	struct train *t = arg;
	json_t *event = json_loads(line, 0, NULL);
	const char *name = json_string_value(json_object_get(event, "event"));

	note_saving(c, name);
	if (name && (strcmp(name, "snapshot") == 0 || strcmp(name, "warning") == 0))
		launch_take_snapshot(&t->l, event);
	if (t->ending) {
		take_last_event(t, c, event);
		return;
	}
	if (!name) {
		output_error(&t->l.out, c->name, "%s", line);
	} else if (launch_take_event(&t->l, c, name, event)) {
		/* it means the same to each launcher, and launch.c has taken it */
	} else if (strcmp(name, "error") == 0) {
		take_error(t, c, event);
	} else if (is_for_all(t, c, name)) {
		json_object_set_new(event, "who", json_string(c->name));
		report(&t->l.out, c->name, json_incref(event));
	} else if (launch_is_worker(&t->l, c)) {
		take_worker_event(t, c, name, event);
	} else if (strcmp(name, "begun") == 0) {
		launch_take_begun(&t->l, c);
	} else if (strcmp(name, "lost") == 0) {
		take_loss(t, c, event);
	} else if (strcmp(name, "progress") == 0) {
		take_served(t, c, event);
	} else if (strcmp(name, "applied") == 0) {
		take_applied(t, event);
	}
	json_decref(event);
}

/* Reports the status of the job, on SIGUSR1. The children report their own. */
static void on_status(void *arg)
{
	struct train *t = arg;
	char text[160], step[80];

	describe_step(t, step, sizeof(step));
	snprintf(text, sizeof(text), "%s, %u of %u processes run", step,
		supervise_running(&t->l.sup), t->l.sup.child_count);
	report(&t->l.out, "train", json_pack("{ss ss}", "event", "status", "text", text));
}

/* ---- lost processes ---- */

static void on_exit_of(void *arg, struct child *c)
{
	struct train *t = arg;
	bool input = WIFEXITED(c->status) && WEXITSTATUS(c->status) == EXIT_INPUT;
	bool killed = WIFSIGNALED(c->status) || restart_has_failed(&t->l, c), taken;

	if (t->ending)
		return;
	if (launch_is_follower(&t->l, c)) {
		restart_follower(&t->l, c);
		return;
	}
	taken = !t->done && restart_takes(&t->l, c);
	if (taken && !launch_is_worker(&t->l, c))
		return;
	/* The last server that runs may be one that was removed, while others are about to come again. */
	if (!launch_is_worker(&t->l, c) && !launch_running(&t->l, false) &&
		!restart_server_is_pending(&t->l))
		t->l.served_ns = tern_clock_ns();
	if (WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0)
		return;
	if (!*t->dead || (killed && !t->killed)) {
		supervise_describe(c, t->dead, sizeof(t->dead));
		t->killed = killed;
	}
	if (!launch_is_worker(&t->l, c) && t->l.safe)
		return;
	if (!launch_is_worker(&t->l, c) || (input && !t->begun) ||
		(!launch_running(&t->l, true) && !t->done && !taken)) {
		launch_fail(&t->l);
		return;
	}
	t->l.died[launch_number(&t->l, c)] = true;
	if (!t->l.loss_ns)
		t->l.loss_ns = tern_clock_ns();
	if (c == launch_worker(&t->l, t->speaker))
		choose_speaker(t);
}

static void tell_loss(struct train *t, unsigned i)
{
	const struct child *c = &t->l.sup.children[i];
	bool alone = t->job->mode.kind == TERN_MODE_ASYNC;
	const char *complaint = WIFSIGNALED(c->status) ? NULL : t->complaints[i];
	char text[1000], how[160], again[120] = "";

	supervise_describe(c, how, sizeof(how));
	if (!alone && !t->ending && !t->l.told[i])
		restart_worker(&t->l, c, again, sizeof(again));
	if (!t->l.died[i])
		snprintf(text, sizeof(text), "%s (pid %d): %s", c->name, (int)c->pid,
			t->l.missed[i]);
	else
		snprintf(text, sizeof(text), "%s%s%s: %s%s", how, complaint ? ": " : "",
			complaint ? complaint : "",
			alone ? "the others go on without it"
			      : "its slots go to the other workers",
			again);
	launch_tell_loss(&t->l, c, text);
}

/* Reports losses that did not end the job, and forgets their errors: they cannot be the
 * cause if the job fails later. */
static void tell_losses(struct train *t)
{
	for (unsigned i = 0; i < t->l.sup.child_count; i++)
		if (t->l.died[i] || t->l.missed[i])
			tell_loss(t, i);
	t->l.loss_ns = 0;
	forget_causes(t);
}

static void settle_losses(struct train *t)
{
	if (!t->l.loss_ns || t->l.failed_ns ||
		tern_clock_ns() - t->l.loss_ns < LAUNCH_PATIENCE_NS)
		return;
	if (t->l.aborted ||
		(t->l.opts.goes_back && t->begun && !launch_running(&t->l, true) &&
			!launch_has_added(&t->l)))
		t->l.loss_ns = 0; /* no loss, or told when server 0 goes back */
	else if (t->begun)
		tell_losses(t);
	else
		launch_fail(&t->l);
}

/* Fails the job if it cannot go on in place after a process was killed. */
static void settle_stranded(struct train *t)
{
	if (!t->l.stranded || t->l.failed_ns)
		return;
	supervise_describe(t->l.stranded, t->dead, sizeof(t->dead));
	t->killed = true;
	launch_fail(&t->l);
}

/* ---- the course of a job, and its end ---- */

/* Milliseconds to wait for further events, -1: no limit. After a failure its cause may
 * still be reported; after the last server's end workers may still be ending. */
static int turn_ms(const struct train *t)
{
	if (t->l.failed_ns)
		return launch_ms_left(t->l.failed_ns, LAUNCH_PATIENCE_NS);
	if (t->l.loss_ns)
		return launch_ms_left(t->l.loss_ns, LAUNCH_PATIENCE_NS);
	if (t->l.served_ns)
		return launch_ms_left(t->l.served_ns, LAUNCH_LINGER_NS);
	return -1;
}

/* The results are there, or no worker is left, but a server in the place of a lost one waits for its
 * job: nobody comes any more. */
static void settle_done(struct train *t)
{
	if (!t->l.went_back || t->l.served_ns)
		return;
	if (!t->done && (launch_running(&t->l, true) || restart_is_pending(&t->l)))
		return;
	for (unsigned i = 0; i < t->l.opts.servers; i++)
		if (t->l.sup.children[i].running && t->l.at_steps[i])
			return;
	t->l.served_ns = tern_clock_ns();
}

static bool has_waited(const struct train *t)
{
	if (t->l.failed_ns)
		return turn_ms(t) == 0 || t->killed || t->input_error;
	return t->l.served_ns &&
	       (!launch_workers_to_come(&t->l) ||
		       launch_ms_left(t->l.served_ns, LAUNCH_LINGER_NS) == 0);
}

static void run(struct train *t)
{
	do {
		launch_turn(&t->l, turn_ms(t));
		settle_stranded(t);
		settle_losses(t);
		settle_done(t);
	} while ((supervise_running(&t->l.sup) || restart_is_pending(&t->l)) &&
		 !t->l.sup.signal && !has_waited(t));
}

static int conclude_interrupted(struct train *t)
{
	char text[300], where[80];

	if (t->begun)
		describe_step(t, where, sizeof(where));
	else
		snprintf(where, sizeof(where),
			"its start, with %u of %u processes started",
			t->l.sup.child_count, launch_size(&t->l));
	snprintf(text, sizeof(text), "ended by %s at %s%s", signals_name(t->l.sup.signal),
		where, t->job->save && !t->saved ? ": nothing was saved" : "");
	return launch_say_end(&t->l, launch_signal_code(&t->l), text);
}

/* Ends all processes after a signal. Workers agree with the servers on who saves. A server that may
 * go back would keep them from that when it is asked to end: it takes a snapshot first, and lets
 * them wait. So such servers end last. */
static void end_interrupted(struct train *t)
{
	unsigned grace_ms = t->begun ? launch_leave_ms(&t->l) : LAUNCH_GRACE_MS;

	if (!t->l.opts.goes_back) {
		supervise_end(&t->l.sup, 0, SIGTERM, grace_ms);
		return;
	}
	supervise_end(&t->l.sup, (unsigned)t->l.opts.servers, SIGTERM, grace_ms);
	supervise_end(&t->l.sup, 0, SIGUSR2, LAUNCH_GRACE_MS);
}

/* True if the file with the results has been written since the processes were started. */
static bool has_results(const struct train *t)
{
	char path[4200];
	struct stat found;

	snprintf(path, sizeof(path), "%.4000s/" JOB_SAVED, t->job->save);
	return stat(path, &found) == 0 && found.st_mtime >= t->since;
}

/* The job is complete. Its finisher may be a worker that a user has added: the last worker of this
 * launcher was lost, and has come again later. */
static int conclude_done(struct train *t)
{
	static const char elsewhere[] = "a worker that was added by hand has finished "
					"the job, and tells its results";
	char text[4300];

	if (!t->done && t->job->save && !has_results(t)) {
		snprintf(text, sizeof(text), "%s: it has not saved them in %.4000s",
			elsewhere, t->job->save);
		return launch_say_end(&t->l, EXIT_JOB, text);
	}
	if (!t->done) {
		t->done = TERN_TAKE(t->left);
		launch_report(&t->l, "train",
			json_pack("{ss ss}", "event", "note", "text", elsewhere));
	}
	if (*t->dead && t->l.safe)
		launch_tell_unsaved(&t->l, t->dead);
	tell_losses(t);
	json_object_del(t->done, "finisher");
	set_loss_of_all_slots(t);
	set_applied(t);
	launch_add_skipped(&t->l, t->done);
	report(&t->l.out, "train", json_incref(t->done));
	return EXIT_OK;
}

/* conclude() returns this if the job is to be started again. */
#define AGAIN -1

static int conclude(struct train *t)
{
	if (t->l.sup.signal && t->begun)
		launch_drain(&t->l);
	t->ending = true;
	if (t->l.sup.signal) {
		end_interrupted(t);
		return conclude_interrupted(t);
	}
	/* SIGUSR2: end without saving. The job has failed, or is over: what was to be saved
	 * is saved already. */
	supervise_end(&t->l.sup, 0, SIGUSR2, LAUNCH_GRACE_MS);
	if (!t->l.failed_ns && (t->done || (t->left && !*t->dead)))
		return conclude_done(t);
	/* A job that is started anew after a kill has begun before. */
	if ((t->begun || t->restarts->count > 0) && t->killed &&
		restart_is_due(&t->l, t->launch, t->restarts, t->dead))
		return AGAIN;
	if (t->killed || !*t->l.error)
		return launch_say_end(
			&t->l, EXIT_JOB, *t->dead ? t->dead : "the workers ended early");
	return launch_say_end(&t->l, t->input_error ? EXIT_INPUT : EXIT_JOB, t->l.error);
}

static int check(struct train_settings *s, const struct launch_opts *opts,
	struct secret *secret, struct message *error)
{
	int r = job_check(&s->job, error);

	if (r == 0 && s->job.mode.kind != TERN_MODE_SYNC &&
		s->launch.on_nan != JOB_NAN_STOP)
		r = options_refuse(error,
			"--on-nan skip needs --mode sync: in async mode a slot is a step "
			"of its own");
	if (r == 0 && s->job.mode.kind != TERN_MODE_SYNC && s->launch.replicas > 1)
		r = options_refuse(error,
			"--replicas 2 needs --mode sync: a follower takes the place of a "
			"server in sync mode only");
	if (r == 0)
		r = device_check_memory(s->job.tensor_memory,
			s->job.device.cuda || s->launch.server_device.cuda, error);
	if (r == 0 && s->launch.secret.file)
		r = secret_read(&s->launch.secret, secret, error);
	return r ? r : launch_check(opts, secret, error);
}

static struct launch_opts launch_opts(const struct train_settings *s)
{
	return (struct launch_opts){
		.settings = &s->launch,
		.fabric = &s->job.fabric,
		.arithmetic = s->job.arithmetic,
		.tensor_memory = s->job.tensor_memory,
		.log_level = s->job.log_level,
		.servers = s->job.servers,
		.workers = s->job.workers,
		.all_workers = s->job.workers,
		.followers = s->launch.replicas == 2 ? s->job.servers : 0,
		.goes_back = restart_is_wanted(&s->launch) &&
			     s->job.mode.kind == TERN_MODE_SYNC,
		.json = s->job.json,
	};
}

static int run_and_conclude(struct train *t)
{
	int code;

	run(t);
	code = conclude(t);
	launch_close(&t->l);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(t->complaints); i++)
		free(t->complaints[i]);
	json_decref(t->done);
	json_decref(t->left);
	json_decref(t->served);
	json_decref(t->shown);
	return code;
}

/* Runs the job once. Returns an exit code, or AGAIN. */
static int run_once(struct train_settings *s, const struct secret *secret, int argc,
	char **argv, struct tern_recent *restarts)
{
	const struct launch_opts opts = launch_opts(s);
	struct train *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return command_fail(&train_command, "%s", strerror(ENOMEM));
	t->job = &s->job;
	t->launch = &s->launch;
	t->restarts = restarts;
	t->since = time(NULL);
	t->argc = argc;
	t->argv = argv;
	t->l.command = &train_command;
	t->l.listening = report_start;
	t->l.start_worker = start_worker;
	t->l.unready_max = UNREADY_MAX;
	t->l.sup.on_line = on_line;
	t->l.sup.on_exit = on_exit_of;
	t->l.sup.on_status = on_status;
	t->l.sup.arg = t;
	r = launch_open(&t->l, &opts, secret);
	r = r ? command_fail(&train_command, "%s", strerror(-r)) : run_and_conclude(t);
	free(t);
	return r;
}

static int train_run(int argc, char **argv)
{
	struct train_settings s = {.launch.restarts = UINT64_MAX};
	struct tern_recent restarts = {0};
	struct secret secret = {""};
	struct launch_opts opts;
	struct message error;
	int r;

	if (options_parse(options, argc, argv, &s, &error) ||
		log_open("train", s.job.log_level, &error))
		return command_refuse(&train_command, "%s", error.text);
	opts = launch_opts(&s);
	if (check(&s, &opts, &secret, &error))
		return command_refuse(&train_command, "%s", error.text);
	if (argc + 16 > SUPERVISE_ARGS_MAX)
		return command_refuse(&train_command, "too many arguments");
	while ((r = run_once(&s, &secret, argc, argv, &restarts)) == AGAIN)
		restart_pause(&restarts);
	secret_forget(&secret);
	return r;
}

const struct command train_command = {
	.name = "train",
	.usage = "--model SPEC --data PATH [options]",
	.summary = "run a whole training job on this machine",
	.options = options,
	.run = train_run,
};
