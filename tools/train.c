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
 * PATIENCE_NS after the first failure. If a process was killed by a signal, that is
 * reported as the cause, rather than the error of another process.
 *
 * A worker may die once the steps have begun: the servers continue with the other
 * workers. The loss is reported in a line, after the same wait, unless the job has failed
 * by then.
 *
 * The loop starts at most one process per turn, so a signal or a failure can end a job of
 * thousands of workers while they start. At most UNREADY_MAX workers are starting at
 * once. A worker that has started has its data in memory, so the free memory then shows
 * whether more workers fit. The limit also leaves processor time for this process.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/util.h"
#include "tools/info_machine.h"
#include "tools/job.h"
#include "tools/report.h"
#include "tools/secret.h"
#include "tools/signals.h"
#include "tools/supervise.h"

_Static_assert(SUPERVISE_CHILDREN_MAX >= TERN_SERVERS_MAX + TERN_WORKERS_MAX,
	"the supervisor has room for all processes of the largest job");

#define PATIENCE_NS (300 * TERN_NS_PER_MS)
#define LINGER_NS   (5 * TERN_NS_PER_S) /* for workers, after the last server has ended */
#define SECRET_FD   "3"                 /* SUPERVISE_SECRET_FD as text */
#define GRACE_MS    2500 /* time to end, for children that have nothing to save */
#define LEAVE_MS    9500 /* time to end, for children that may have to save */
/* Largest number of workers that have started but still read their data. */
#define UNREADY_MAX 64
#define MEMORY_MS   100 /* interval of checks of free memory while processes start */
/* Memory that must stay free on a host with 16 GiB or more; on smaller ones 1/64 of it. */
#define MEMORY_LOW (256ull << 20)

struct train_settings {
	struct job_settings job; /* must be first: JOB_OPTIONS has offsets into it */
	const char *listen;
	struct secret_settings secret; /* --insecure; the other members are unused */
	struct device_choice server_device;
	double worker_timeout_s;
	uint64_t server_threads;
};

static const struct option options[] = {
	JOB_OPTIONS,
	OPTION(ADDRESS, "listen", "HOST:PORT",
		"address at which servers listen; default 127.0.0.1:0, for verbs the "
		"first device's address",
		struct train_settings, listen),
	INSECURE_OPTION(struct train_settings, secret),
	OPTION(CUSTOM, "server-device", "cpu|cuda[:N]",
		"where servers compute updates; cuda: server I uses GPU I modulo the "
		"number of GPUs",
		struct train_settings, server_device, .initial = "cpu",
		.parse = device_parse),
	THREADS_OPTION("server-threads", struct train_settings, server_threads),
	WORKER_TIMEOUT_OPTION(struct train_settings, worker_timeout_s),
	OPTION_END,
};

struct train {
	struct job_settings *job;
	const char *listen;   /* --listen of the servers; NULL: their default */
	struct secret secret; /* secret of this job, given to its children */
	const char *server_device;
	char worker_timeout_s[32];
	char server_threads[24]; /* --server-threads; "": not given */
	/* Over all servers: sums of gradients applied and refused and of their staleness,
	 * and the largest staleness. */
	double applied, refused, staleness_sum, staleness_max;
	bool insecure;
	int argc; /* command line of the user, passed on to the workers */
	char **argv;
	const char *spin_us; /* --spin-us of servers and workers */
	struct output out;
	struct supervisor sup;
	unsigned listening_count;
	char *addresses[TERN_SERVERS_MAX];
	/* The servers' addresses, for the workers' --join; "": some are not known yet. */
	char join[TERN_SERVERS_MAX * 122];
	bool ready[SUPERVISE_CHILDREN_MAX]; /* [child]: this worker has read its data */
	uint64_t memory_ns; /* time of the next check of the host's free memory */
	bool begun;         /* the steps have begun: from now on a worker may be lost */
	unsigned speaker;   /* index of the worker whose progress is printed */
	/* Lost workers, by child number. died: the process has ended with a failure.
	 * missed: a server's text about a lost worker, which may still run. told: the
	 * loss was reported to the user. */
	uint64_t loss_ns; /* time of the first loss that is not yet reported; 0: none */
	bool died[SUPERVISE_CHILDREN_MAX], told[SUPERVISE_CHILDREN_MAX];
	char *missed[SUPERVISE_CHILDREN_MAX];
	char *complaints[SUPERVISE_CHILDREN_MAX]; /* [child]: this worker's first error */
	uint64_t served_ns; /* time when the last server ended; 0: one still runs */
	/* error: the first error, of a child or of this process. dead: the first process
	 * that was killed by a signal, else the first that exited with a failure. */
	uint64_t failed_ns; /* time when the job failed; 0: it has not failed */
	char error[512];
	bool input_error;
	char dead[160];
	bool killed; /* the process of `dead` was killed by a signal */
	/* The job is being ended: failures of children are only a consequence. */
	bool ending;
	json_t *done;
	double slot_losses[TERN_SLOTS_MAX];
	bool has_loss[TERN_SLOTS_MAX];
	/* Last step shown, and number of steps; in async mode those of the speaker. */
	uint64_t step, steps;
	bool saved;
};

static void failed(struct train *t)
{
	if (!t->failed_ns)
		t->failed_ns = tern_clock_ns();
}

/* ---- starting the processes ---- */

/* Adds the arguments that let a child read the secret. Returns how many were added. */
static size_t add_secret(const struct train *t, const char **args)
{
	if (!*t->secret.text)
		return 0;
	args[0] = "--secret-fd";
	args[1] = SECRET_FD;
	return 2;
}

static void start_role(
	struct train *t, const char *role, unsigned index, const char **args)
{
	char name[32];
	int r;

	snprintf(name, sizeof(name), "%s %u", role, index);
	r = supervise_start(&t->sup, name, args);
	if (r) {
		snprintf(t->error, sizeof(t->error), "%s could not be started: %s", name,
			strerror(-r));
		failed(t);
	}
}

static void start_server(struct train *t, unsigned index)
{
	const struct fabric_settings *fabric = &t->job->fabric;
	const char *args[32] = {"server", "--fabric", fabric_name(fabric), "--spin-us",
		t->spin_us, "--index", NULL, "--json", NULL};
	char number[16];
	size_t n = 8;

	snprintf(number, sizeof(number), "%u", index);
	args[6] = number;
	if (fabric->verbs) {
		args[n++] = "--verbs";
		args[n++] = fabric->verbs;
	}
	args[n++] = "--server-device";
	args[n++] = t->server_device;
	if (strcmp(t->server_device, "cpu") == 0) {
		args[n++] = "--arithmetic";
		args[n++] = device_arithmetics[t->job->arithmetic];
	} else {
		args[n++] = "--tensor-memory";
		args[n++] = device_memories[t->job->tensor_memory];
	}
	args[n++] = "--worker-timeout";
	args[n++] = t->worker_timeout_s;
	if (*t->server_threads) {
		args[n++] = "--threads";
		args[n++] = t->server_threads;
	}
	if (t->listen) {
		args[n++] = "--listen";
		args[n++] = t->listen;
	}
	if (t->job->log_level != TERN_LOG_DEFAULT) {
		args[n++] = "--log-level";
		args[n++] = tern_log_level_name(t->job->log_level);
	}
	if (t->insecure)
		args[n++] = "--insecure";
	n += add_secret(t, args + n);
	args[n] = NULL;
	start_role(t, "server", index, args);
}

static bool is_for_servers(const struct train *t, const char *arg)
{
	static const char *const names[] = {
		"--listen", "--server-device", "--server-threads", "--worker-timeout"};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++)
		if (options_is(arg, names[i]))
			return true;
	/* Workers without a GPU would refuse it. */
	return options_is(arg, "--tensor-memory") && !t->job->device.cuda;
}

/* Starts a worker with the user's options, except those for servers. */
static void start_worker(struct train *t, unsigned index)
{
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
	args[n++] = t->join;
	args[n++] = "--spin-us";
	args[n++] = t->spin_us;
	n += add_secret(t, args + n);
	args[n] = NULL;
	start_role(t, "worker", index, args);
}

/* Called when all servers listen: builds the workers' --join, and reports the start. */
static void prepare_workers(struct train *t)
{
	size_t n = 0;

	for (uint64_t i = 0; i < t->job->servers; i++)
		n += (size_t)snprintf(t->join + n, sizeof(t->join) - n, "%s%.120s",
			i ? "," : "", t->addresses[i]);
	report(&t->out, "train",
		json_pack("{ss ss ss sI sI sI}", "event", "start", "model", t->job->model,
			"fabric", fabric_name(&t->job->fabric), "servers",
			(json_int_t)t->job->servers, "workers",
			(json_int_t)t->job->workers, "slots", (json_int_t)t->job->slots));
}

static unsigned unready_count(const struct train *t)
{
	unsigned n = 0;

	for (unsigned i = (unsigned)t->job->servers; i < t->sup.child_count; i++)
		n += t->sup.children[i].running && !t->ready[i];
	return n;
}

/* True if another server or worker can be started now. */
static bool may_start(const struct train *t)
{
	uint64_t servers = t->job->servers, count = t->sup.child_count;

	if (t->failed_ns || t->sup.signal || unready_count(t) >= UNREADY_MAX)
		return false;
	return count < servers ||
	       (t->listening_count == servers && count < servers + t->job->workers);
}

static void start_next(struct train *t)
{
	unsigned servers = (unsigned)t->job->servers, next = t->sup.child_count;

	if (next >= servers && !*t->join)
		prepare_workers(t);
	if (next < servers)
		start_server(t, next);
	else
		start_worker(t, next - servers);
}

/* Fails a job that does not fit into this host's memory, while it is starting. Otherwise
 * the kernel would kill processes, perhaps some that do not belong to the job. */
static void look_at_memory(struct train *t)
{
	uint64_t now_ns = tern_clock_ns(), total, left;

	if (t->begun || t->failed_ns || now_ns < t->memory_ns)
		return;
	t->memory_ns = now_ns + MEMORY_MS * TERN_NS_PER_MS;
	if (!info_memory("", &total, &left) || left >= TERN_MIN(MEMORY_LOW, total / 64))
		return;
	snprintf(t->error, sizeof(t->error),
		"this host's memory does not hold the job: %llu of %llu MiB are left "
		"with %u of %llu processes started; use fewer --workers or --servers, or "
		"less data",
		(unsigned long long)left >> 20, (unsigned long long)total >> 20,
		t->sup.child_count,
		(unsigned long long)(t->job->servers + t->job->workers));
	failed(t);
}

/* ---- events of the children ---- */

static unsigned number_of(const struct train *t, const struct child *c)
{
	return (unsigned)(c - t->sup.children);
}

static bool is_worker(const struct train *t, const struct child *c)
{
	/* servers have the lower child numbers */
	return number_of(t, c) >= t->job->servers;
}

static struct child *worker(struct train *t, unsigned index)
{
	return &t->sup.children[t->job->servers + index];
}

static void take_error(struct train *t, const struct child *c, const json_t *event)
{
	const char *text = json_string_value(json_object_get(event, "text"));

	if (!*t->error) {
		t->input_error = json_is_true(json_object_get(event, "input"));
		/* If the user gave a wrong option, the name of the process that found it
		 * is left out. */
		snprintf(t->error, sizeof(t->error), "%s%s%s",
			t->input_error ? "" : c->name, t->input_error ? "" : ": ",
			text ? text : "failed");
	}
	/* An error of a worker ends the job only if the user made it; otherwise the
	 * servers decide whether the job continues without this worker. */
	if (!is_worker(t, c) || t->input_error) {
		failed(t);
	} else if (text && !t->complaints[number_of(t, c)]) {
		t->complaints[number_of(t, c)] = strdup(text);
	}
}

static void take_listening(struct train *t, const struct child *c, const json_t *event)
{
	const char *address = json_string_value(json_object_get(event, "address"));
	unsigned i = number_of(t, c);

	if (!address || i >= t->job->servers || t->addresses[i])
		return;
	t->addresses[i] = strdup(address);
	t->listening_count++;
}

/* Chooses the worker whose progress is printed: the first that runs and is not lost. */
static void choose_speaker(struct train *t)
{
	for (unsigned i = 0; i < t->job->workers; i++)
		if (worker(t, i)->running && !t->missed[number_of(t, worker(t, i))]) {
			t->speaker = i;
			return;
		}
}

static void take_loss(struct train *t, const json_t *event)
{
	json_int_t i = json_integer_value(json_object_get(event, "worker"));
	const char *text = json_string_value(json_object_get(event, "text"));
	unsigned n;

	if (i < 0 || i >= (json_int_t)t->job->workers || !text)
		return;
	n = number_of(t, worker(t, (unsigned)i));
	if (t->missed[n])
		return;
	t->missed[n] = strdup(text);
	if (t->speaker == i)
		choose_speaker(t);
	if (!t->loss_ns)
		t->loss_ns = tern_clock_ns();
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
	if (t->job->mode != TERN_MODE_ASYNC || t->applied == 0)
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

static void take_step(struct train *t, const json_t *event)
{
	t->step = (uint64_t)json_integer_value(json_object_get(event, "step"));
	t->steps = (uint64_t)json_integer_value(json_object_get(event, "steps"));
}

/* Writes the last step shown: "step 12 of 4000". */
static void describe_step(const struct train *t, char *text, size_t bytes)
{
	size_t n = (size_t)snprintf(text, bytes, "step %llu of %llu",
		(unsigned long long)t->step,
		(unsigned long long)(t->steps ? t->steps : t->job->steps));

	if (t->job->mode == TERN_MODE_ASYNC && t->steps)
		snprintf(text + n, bytes - n, " of worker %u", t->speaker);
}

static void take_worker_event(
	struct train *t, const struct child *c, const char *name, json_t *event)
{
	bool speaks = c == worker(t, t->speaker) && strcmp(name, "progress") == 0;

	if (strcmp(name, "ready") == 0) {
		t->ready[number_of(t, c)] = true;
	} else if (strcmp(name, "begun") == 0) {
		t->begun = true;
	} else if (strcmp(name, "done") == 0) {
		take_slot_losses(t, event);
		/* The finisher is the worker that tests and saves the parameters. Its
		 * result is printed when all processes have ended. */
		if (json_is_true(json_object_get(event, "finisher"))) {
			json_decref(t->done);
			t->done = json_incref(event);
		}
	} else if (speaks || strcmp(name, "saved") == 0 || strcmp(name, "unsaved") == 0 ||
		   strcmp(name, "generated") == 0) {
		if (speaks)
			take_step(t, event);
		t->saved = t->saved || strcmp(name, "saved") == 0;
		json_object_set_new(event, "who", json_string(c->name));
		report(&t->out, c->name, json_incref(event));
	}
}

/* True for events that are printed as they arrive, from servers and workers alike. Most
 * notes come from every server, so of servers only the notes of server 0 are printed. */
static bool is_for_all(struct train *t, const struct child *c, const char *name)
{
	return strcmp(name, "log") == 0 || strcmp(name, "device") == 0 ||
	       strcmp(name, "status") == 0 ||
	       (strcmp(name, "note") == 0 && (is_worker(t, c) || number_of(t, c) == 0));
}

/* Takes an event while the job is being ended: only events about saving are printed.
 * Releases the event. */
static void take_last_event(struct train *t, const struct child *c, json_t *event)
{
	const char *name = json_string_value(json_object_get(event, "event"));
	bool saved = name && strcmp(name, "saved") == 0;

	t->saved = t->saved || saved;
	if (saved || (name && strcmp(name, "unsaved") == 0)) {
		json_object_set_new(event, "who", json_string(c->name));
		report(&t->out, c->name, event);
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
	if (t->ending) {
		take_last_event(t, c, event);
		return;
	}
	if (!name) {
		output_error(&t->out, c->name, "%s", line);
	} else if (strcmp(name, "error") == 0) {
		take_error(t, c, event);
	} else if (is_for_all(t, c, name)) {
		json_object_set_new(event, "who", json_string(c->name));
		report(&t->out, c->name, json_incref(event));
	} else if (is_worker(t, c)) {
		take_worker_event(t, c, name, event);
	} else if (strcmp(name, "listening") == 0) {
		take_listening(t, c, event);
	} else if (strcmp(name, "lost") == 0) {
		take_loss(t, event);
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
		supervise_running(&t->sup), t->sup.child_count);
	report(&t->out, "train", json_pack("{ss ss}", "event", "status", "text", text));
}

/* ---- lost workers ---- */

static unsigned running_count(struct train *t, bool workers)
{
	unsigned n = 0;

	for (unsigned i = 0; i < t->sup.child_count; i++)
		n += t->sup.children[i].running &&
		     is_worker(t, &t->sup.children[i]) == workers;
	return n;
}

static void on_exit_of(void *arg, struct child *c)
{
	struct train *t = arg;
	bool input = WIFEXITED(c->status) && WEXITSTATUS(c->status) == EXIT_INPUT;

	if (t->ending)
		return;
	if (!is_worker(t, c) && !running_count(t, false))
		t->served_ns = tern_clock_ns();
	if (WIFEXITED(c->status) && WEXITSTATUS(c->status) == 0)
		return;
	if (!*t->dead || (WIFSIGNALED(c->status) && !t->killed)) {
		supervise_describe(c, t->dead, sizeof(t->dead));
		t->killed = WIFSIGNALED(c->status);
	}
	if (!is_worker(t, c) || input || (!running_count(t, true) && !t->done)) {
		failed(t);
		return;
	}
	t->died[number_of(t, c)] = true;
	if (!t->loss_ns)
		t->loss_ns = tern_clock_ns();
	if (c == worker(t, t->speaker))
		choose_speaker(t);
}

static void tell_loss(struct train *t, unsigned i)
{
	const struct child *c = &t->sup.children[i];
	bool alone = t->job->mode == TERN_MODE_ASYNC;
	const char *complaint = WIFSIGNALED(c->status) ? NULL : t->complaints[i];
	char text[900], how[160];

	if (t->told[i])
		return;
	t->told[i] = true;
	supervise_describe(c, how, sizeof(how));
	if (!t->died[i])
		snprintf(text, sizeof(text), "%s (pid %d): %s", c->name, (int)c->pid,
			t->missed[i]);
	else
		snprintf(text, sizeof(text), "%s%s%s: %s", how, complaint ? ": " : "",
			complaint ? complaint : "",
			alone ? "the others go on without it"
			      : "its slots go to the other workers");
	report(&t->out, "train",
		json_pack("{ss sI ss so}", "event", "lost", "worker",
			(json_int_t)(i - t->job->servers), "who", c->name, "text",
			report_text(text)));
}

/* Reports losses that did not end the job, and forgets their errors: they cannot be the
 * cause if the job fails later. */
static void tell_losses(struct train *t)
{
	for (unsigned i = 0; i < t->sup.child_count; i++)
		if (t->died[i] || t->missed[i])
			tell_loss(t, i);
	t->loss_ns = 0;
	t->killed = false;
	*t->dead = *t->error = '\0';
}

static void settle_losses(struct train *t)
{
	if (!t->loss_ns || t->failed_ns || tern_clock_ns() - t->loss_ns < PATIENCE_NS)
		return;
	if (t->begun)
		tell_losses(t);
	else
		failed(t);
}

/* ---- the course of a job, and its end ---- */

/* Returns the milliseconds until limit_ns after the time since_ns. */
static int ms_left(uint64_t since_ns, uint64_t limit_ns)
{
	uint64_t waited_ns = tern_clock_ns() - since_ns;

	return waited_ns >= limit_ns ? 0
				     : (int)((limit_ns - waited_ns) / TERN_NS_PER_MS) + 1;
}

/* Milliseconds to wait for further events, -1: no limit. After a failure its cause may
 * still be reported; after the last server's end workers may still be ending. */
static int turn_ms(const struct train *t)
{
	if (t->failed_ns)
		return ms_left(t->failed_ns, PATIENCE_NS);
	if (t->loss_ns)
		return ms_left(t->loss_ns, PATIENCE_NS);
	if (t->served_ns)
		return ms_left(t->served_ns, LINGER_NS);
	return t->begun ? -1 : MEMORY_MS;
}

/* True if a worker runs that is not lost. A worker that was lost because it hangs would
 * never end by itself. */
static bool workers_to_come(const struct train *t)
{
	for (unsigned i = (unsigned)t->job->servers; i < t->sup.child_count; i++)
		if (t->sup.children[i].running && !t->missed[i])
			return true;
	return false;
}

static bool has_waited(const struct train *t)
{
	if (t->failed_ns)
		return turn_ms(t) == 0 || t->killed || t->input_error;
	return t->served_ns &&
	       (!workers_to_come(t) || ms_left(t->served_ns, LINGER_NS) == 0);
}

static void run(struct train *t)
{
	do {
		if (may_start(t))
			start_next(t);
		supervise_turn(&t->sup, may_start(t) ? 0 : turn_ms(t));
		settle_losses(t);
		look_at_memory(t);
	} while (supervise_running(&t->sup) && !t->sup.signal && !has_waited(t));
}

/* Reports the unsuccessful end of the job on stderr, and with --json as the last event.
 * Returns `code`. */
static int say_end(struct train *t, int code, const char *text)
{
	output_error(&t->out, "train", "%s", text);
	if (t->out.json)
		report_failed(text, code);
	return code;
}

static int conclude_interrupted(struct train *t)
{
	char text[300], where[80];

	if (t->begun)
		describe_step(t, where, sizeof(where));
	else
		snprintf(where, sizeof(where),
			"its start, with %u of %llu processes started",
			t->sup.child_count,
			(unsigned long long)(t->job->servers + t->job->workers));
	snprintf(text, sizeof(text), "ended by %s at %s%s", signals_name(t->sup.signal),
		where, t->job->save && !t->saved ? ": nothing was saved" : "");
	return say_end(t, 128 + t->sup.signal, text);
}

static int conclude(struct train *t)
{
	t->ending = true;
	if (t->sup.signal) {
		supervise_end(&t->sup, SIGTERM, t->begun ? LEAVE_MS : GRACE_MS);
		return conclude_interrupted(t);
	}
	/* SIGUSR2: end without saving. The job has failed, or is over: what was to be saved
	 * is saved already. */
	supervise_end(&t->sup, SIGUSR2, GRACE_MS);
	if (!t->failed_ns && t->done) {
		tell_losses(t);
		json_object_del(t->done, "finisher");
		set_loss_of_all_slots(t);
		set_applied(t);
		report(&t->out, "train", json_incref(t->done));
		return EXIT_OK;
	}
	if (t->killed || !*t->error)
		return say_end(
			t, EXIT_JOB, *t->dead ? t->dead : "the workers ended early");
	return say_end(t, t->input_error ? EXIT_INPUT : EXIT_JOB, t->error);
}

/* True if there are two cores per process, for its thread that moves bytes and its thread
 * that computes. With fewer cores, polling threads would slow down computing threads. */
static bool cores_to_spare(const struct job_settings *job)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
	       (uint64_t)CPU_COUNT(&cpus) >= 2 * (job->servers + job->workers);
}

/* Makes the secret of the job, so that no other process can join, such as one of another
 * user of this host. */
static int make_secret(struct secret *secret, struct message *error)
{
	int r = secret_make(secret);

	if (r < 0)
		return options_refuse(error,
			"no secret for this job: the system gives no random numbers: %s",
			strerror(-r));
	return 0;
}

/* Returns the port of HOST:PORT. */
static const char *port_of(const char *address)
{
	const char *colon = strrchr(address, ':');

	return colon ? colon + 1 : address;
}

static int check(struct train_settings *s, struct secret *secret, struct message *error)
{
	int r = job_check(&s->job, error);

	if (r == 0)
		r = device_check_memory(s->job.tensor_memory,
			s->job.device.cuda || s->server_device.cuda, error);
	if (r == 0)
		r = fabric_check_listen(&s->job.fabric, s->listen, error);
	if (r == 0 && !s->secret.insecure)
		r = make_secret(secret, error);
	if (r == 0)
		r = secret_check_listen(
			&s->secret, secret, &s->job.fabric, "--listen", s->listen, error);
	if (r)
		return r;
	/* Servers on one host cannot share a port. */
	if (s->listen && s->job.servers > 1 && strcmp(port_of(s->listen), "0") != 0) {
		snprintf(error->text, sizeof(error->text),
			"--listen %.200s: %llu servers cannot share a port: use port 0",
			s->listen, (unsigned long long)s->job.servers);
		return -EINVAL;
	}
	return 0;
}

/* Sets the environment variable TERN_JOB to a random name, unless the user has set it.
 * Events carry it, so that the events of several jobs can be told apart. */
static void name_job(void)
{
	char name[17];

	snprintf(name, sizeof(name), "%016llx",
		(unsigned long long)tern_random(tern_env_system()));
	setenv(REPORT_JOB, name, false);
}

static int train_run(int argc, char **argv)
{
	struct train_settings s = {0};
	struct secret secret = {""};
	struct train *t;
	struct message error;
	int r;

	if (options_parse(options, argc, argv, &s, &error) ||
		log_open("train", s.job.log_level, &error) || check(&s, &secret, &error))
		return command_refuse(&train_command, "%s", error.text);
	if (argc + 14 > SUPERVISE_ARGS_MAX)
		return command_refuse(&train_command, "too many arguments");
	t = calloc(1, sizeof(*t));
	if (!t)
		return command_fail(&train_command, "%s", strerror(ENOMEM));
	t->job = &s.job;
	t->listen = s.listen;
	t->insecure = s.secret.insecure;
	t->secret = secret;
	t->server_device = s.server_device.text;
	if (s.server_threads)
		snprintf(t->server_threads, sizeof(t->server_threads), "%llu",
			(unsigned long long)s.server_threads);
	snprintf(t->worker_timeout_s, sizeof(t->worker_timeout_s), "%.9g",
		s.worker_timeout_s);
	t->argc = argc;
	t->argv = argv;
	t->spin_us = cores_to_spare(&s.job) ? "20" : "0";
	t->sup.on_line = on_line;
	t->sup.on_exit = on_exit_of;
	t->sup.on_status = on_status;
	t->sup.arg = t;
	t->sup.secret = secret_text(&t->secret);
	output_init(&t->out, s.job.json);
	name_job();
	/* children must not read it: the job has its own secret, or none */
	unsetenv("TERN_SECRET_FILE");
	r = supervise_init(&t->sup);
	if (r) {
		free(t);
		return command_fail(&train_command, "%s", strerror(-r));
	}
	run(t);
	r = conclude(t);
	supervise_fini(&t->sup);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(t->addresses); i++)
		free(t->addresses[i]);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(t->missed); i++) {
		free(t->missed[i]);
		free(t->complaints[i]);
	}
	json_decref(t->done);
	secret_forget(&t->secret);
	free(t);
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
