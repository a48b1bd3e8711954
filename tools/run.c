/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern run`: starts the servers of a job on this machine, and a program of the user as
 * each of its workers. The program finds its place in the environment: TERN_JOIN,
 * TERN_INDEX, TERN_WORKERS, and the secret of the job in TERN_SECRET_FILE; and
 * TERN_VERIFY_FIRST and TERN_EVAL_EVERY, if they are options.
 *
 *     SERVERS --all of them listen--> WORKERS --all of them ended--> servers are ended
 *
 * This process knows the workers only by what they print, by their exit codes, and by what
 * the servers say about them. The job has succeeded if server 0 says that it was completed,
 * and one worker has ended with exit code 0. A worker that ends otherwise is lost, and the
 * others go on without it, with one exception: while some workers have joined the servers
 * and wait for the steps to begin, a worker that ends is one that they would wait for in
 * vain, so the job fails.
 *
 * With --snapshots a server or the last worker that was killed is started again, and the
 * programs stay and go back (restart.h), if all of their sessions do: TERN_SERVER_WAIT asks them
 * to. If one does not, or ends meanwhile, all processes are started again. With --replicas 2 each
 * server has a follower, which takes the place of a killed server. Only the programs know whether
 * their job can have followers, so these are started when the first program has joined.
 *
 * If srun, mpirun or torchrun has started this process as one of several (place.h), each
 * starts one worker, and rank 0 the servers. The exit code is then that of the own worker:
 * rank 0 also fails if the job does.
 *
 * Stdout is the workers' stdout. This process prints on stderr, except with --json.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "tools/run_state.h"
#include "tools/signals.h"

/* The variable that lets the sessions of the programs go back with their job. */
#define SERVER_WAIT "TERN_SERVER_WAIT"

struct run_settings {
	struct launch_settings launch;
	struct fabric_settings fabric;
	struct place_settings place;
	uint64_t servers, workers;         /* workers: 0 if --workers was not given */
	uint64_t verify_first, eval_every; /* UINT64_MAX: not given */
	int tensor_memory; /* --tensor-memory: index into device_memories */
	int arithmetic;    /* --arithmetic: index into device_arithmetics */
	bool json;
	enum tern_log_level log_level;
};

static const struct option options[] = {
	OPTION(COUNT, "servers", "S", "servers of the job", struct run_settings, servers,
		.initial = "1", .min = 1, .max = TERN_SERVERS_MAX),
	OPTION(COUNT, "workers", "N",
		"how many times PROGRAM is started, as a worker; default 1; under srun, "
		"mpirun or torchrun as many as these start",
		struct run_settings, workers, .min = 1, .max = TERN_WORKERS_MAX),
	OPTION(COUNT, "verify-first", "K",
		"each worker computes its first K slots twice, and leaves the job if the "
		"gradients differ; 0: none; not given: as PROGRAM says, else 1",
		struct run_settings, verify_first, .min = 0, .max = UINT32_MAX),
	OPTION(COUNT, "eval-every", "T",
		"one slot of every T-th step is marked, and PROGRAM evaluates the "
		"parameters "
		"there; 0: none; not given: as PROGRAM says, else none",
		struct run_settings, eval_every, .min = 0, .max = UINT32_MAX),
	FABRIC_OPTIONS(struct run_settings, fabric),
	LAUNCH_OPTIONS(struct run_settings, launch),
	OPTION(TEXT, "secret-file", "PATH",
		"file with the secret of the job, instead of one that is made for it; "
		"needed by ranks on several hosts",
		struct run_settings, launch.secret.file),
	PLACE_OPTIONS(struct run_settings, place),
	TENSOR_MEMORY_OPTION(struct run_settings, tensor_memory),
	ARITHMETIC_OPTION(struct run_settings, arithmetic),
	OPTION(FLAG, "json", NULL,
		"one JSON object per line, for each line of a worker, too",
		struct run_settings, json),
	LOG_LEVEL_OPTION(struct run_settings, log_level),
	OPTION_END,
};

/* ---- starting the workers ---- */

static int worker_index(const struct run *r, const struct child *c)
{
	return (int)(launch_number(&r->l, c) - r->l.opts.servers +
		     r->l.opts.first_worker);
}

/* Number of workers of the job, also of those that other processes start. */
static unsigned long long worker_count(const struct run *r)
{
	return place_is_ranked(&r->place) ? r->place.ranks.size : r->l.opts.workers;
}

static void set_number(const char *name, unsigned long long value)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", value);
	setenv(name, text, true);
}

/* Sets what all workers find in their environment. The servers have been started before.
 *
 * With more threads than cores the workers would be slow, and the number of threads
 * changes the bits of some computations: with one thread each they do not depend on the
 * number of workers. */
static void prepare_environment(const struct run *r)
{
	const struct launch *l = &r->l;
	static const char *const threads[] = {
		"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"};

	set_number("TERN_WORKERS", worker_count(r));
	if (r->verify_first != UINT64_MAX)
		set_number("TERN_VERIFY_FIRST", r->verify_first);
	if (r->eval_every != UINT64_MAX)
		set_number("TERN_EVAL_EVERY", r->eval_every);
	if (l->opts.goes_back)
		setenv(SERVER_WAIT, launch_server_wait(l), false);
	if (secret_text(&l->secret))
		setenv("TERN_SECRET_FILE", SUPERVISE_SECRET_PATH, true);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(threads); i++)
		setenv(threads[i], "1", false);
}

static void say_start(struct run *r)
{
	const struct ranks *ranks = &r->place.ranks;
	const struct launch *l = &r->l;
	char text[700];
	size_t n;

	/* what rank 0 says to people is true for all */
	if (!place_has_servers(&r->place) && !l->out.json)
		return;
	n = (size_t)snprintf(text, sizeof(text),
		"%llu server%s at %.400s%s, %llu worker%s",
		(unsigned long long)l->opts.servers, l->opts.servers == 1 ? "" : "s",
		l->join, strlen(l->join) > 400 ? "..." : "", worker_count(r),
		worker_count(r) == 1 ? "" : "s");
	if (place_is_ranked(&r->place))
		snprintf(text + n, sizeof(text) - n, " started by %s (%s=%llu, %s=%llu)",
			ranks->launcher, ranks->rank_name,
			(unsigned long long)ranks->rank, ranks->size_name,
			(unsigned long long)ranks->size);
	launch_report(&r->l, "run",
		json_pack("{ss ss sI sI sI ss so so}", "event", "start", "fabric",
			fabric_name(l->opts.fabric), "servers",
			(json_int_t)l->opts.servers, "replicas",
			(json_int_t)l->opts.settings->replicas, "workers",
			(json_int_t)worker_count(r), "join", l->join, "program",
			report_text(r->program[0]), "text", report_text(text)));
}

static void fail_by(struct run *r, const struct message *error)
{
	if (!*r->l.error)
		snprintf(r->l.error, sizeof(r->l.error), "%s", error->text);
	launch_fail(&r->l);
}

/* Called when the servers' addresses are known, on every rank. */
static void on_listening(struct launch *l)
{
	struct run *r = l->sup.arg;
	struct message error;

	if (place_has_servers(&r->place) &&
		place_publish(&r->place, l->join, sizeof(l->join),
			secret_text(&l->secret), &error)) {
		fail_by(r, &error);
		return;
	}
	prepare_environment(r);
	say_start(r);
}

static void start_worker(struct launch *l, unsigned index)
{
	struct run *r = l->sup.arg;
	char name[32];
	int error;

	if (l->failed_ns)
		return;
	/* Lines that the worker before this one has printed are no reason for the end of this one. */
	r->reasons[l->opts.servers + index] = (struct reason){0};
	index += (unsigned)l->opts.first_worker;
	set_number("TERN_INDEX", index);
	/* A server that was started again may listen at another address than before. */
	setenv("TERN_JOIN", l->join, true);
	snprintf(name, sizeof(name), "worker %u", index);
	error = supervise_start_program(&l->sup, name, r->program, environ);
	if (error) {
		snprintf(l->error, sizeof(l->error), "%s could not be started: %s", name,
			strerror(-error));
		launch_fail(l);
	}
}

/* ---- what the workers print ---- */

static void report_output(
	struct run *r, const struct child *c, int fd, char *text, size_t bytes)
{
	/* a JSON string cannot be made of text with a NUL in it */
	for (char *nul = text; (nul = memchr(nul, 0, bytes - (size_t)(nul - text)));)
		*nul = '?';
	report(&r->l.out, c->name,
		json_pack("{ss si ss so si}", "event", "output", "worker",
			worker_index(r, c), "stream",
			fd == STDOUT_FILENO ? "stdout" : "stderr", "text",
			report_text(text), "pid", (int)c->pid));
}

/* Passes on a line of a worker, in one write. */
static void on_text(void *arg, struct child *c, int fd, const char *text, size_t bytes)
{
	char line[sizeof(c->name) + SUPERVISE_TEXT_MAX + 4];
	struct run *r = arg;
	size_t n = 0;

	if (fd == STDERR_FILENO)
		run_look_for_reason(&r->reasons[launch_number(&r->l, c)], text, bytes);
	if (!r->l.out.json)
		n = (size_t)snprintf(line, sizeof(line), "%s: ", c->name);
	memcpy(line + n, text, bytes);
	line[n + bytes] = '\0';
	if (r->l.out.json) {
		report_output(r, c, fd, line, bytes);
		return;
	}
	line[n + bytes] = '\n';
	output_end_line(&r->l.out);
	output_put(fd, line, n + bytes + 1);
}

/* ---- events of the servers ---- */

static void take_error(struct run *r, const struct child *c, const json_t *event)
{
	const char *text = json_string_value(json_object_get(event, "text"));

	if (*r->l.error)
		return;
	r->input_error = json_is_true(json_object_get(event, "input"));
	/* If the user gave a wrong option, the name of the process that found it is left
	 * out. */
	snprintf(r->l.error, sizeof(r->l.error), "%s%s%s", r->input_error ? "" : c->name,
		r->input_error ? "" : ": ", text ? text : "failed");
	if (r->input_error)
		launch_fail(&r->l);
	r->blames_workers = run_all_started(r) && !launch_workers_to_come(&r->l);
}

/* Takes the event "lost" of a server. What becomes of this process's own workers is told
 * later, together with their exit codes. */
static void take_loss(struct run *r, const struct child *c, json_t *event)
{
	json_int_t i = json_integer_value(json_object_get(event, "worker")) -
		       (json_int_t)r->l.opts.first_worker;

	if (i >= 0 && i < (json_int_t)r->l.opts.workers) {
		launch_take_loss(&r->l, event);
	} else if (launch_number(&r->l, c) == 0) {
		json_object_set_new(event, "who", json_string(c->name));
		launch_report(&r->l, "run", json_incref(event));
	}
}

/* Shows the progress that server 0 reports, and keeps it for the event "done". */
static void take_progress(struct run *r, const struct child *c, json_t *event)
{
	json_decref(r->progress);
	r->progress = json_deep_copy(event);
	run_on_step(r, json_integer_value(json_object_get(event, "step")));
	json_object_set_new(event, "who", json_string(c->name));
	report(&r->l.out, c->name, json_incref(event));
}

/* Ends the job if its programs exclude the followers that the user asks for. */
static void take_joined(struct run *r, const json_t *event)
{
	const char *mode = json_string_value(json_object_get(event, "mode"));

	r->joined = json_integer_value(json_object_get(event, "count"));
	if (!r->l.opts.followers || !r->joined || r->l.failed_ns)
		return;
	r->l.followers_held = false;
	if (mode && strcmp(mode, "sync") != 0)
		snprintf(r->l.error, sizeof(r->l.error),
			"--replicas 2 needs sync mode, and the job of the programs is in "
			"%s mode: a follower takes the place of a server in sync mode "
			"only",
			mode);
	else if (json_is_false(json_object_get(event, "goes_back")))
		snprintf(r->l.error, sizeof(r->l.error),
			"--replicas 2 needs programs that go back with their job, and a "
			"session has server_wait=0: leave server_wait out");
	else
		return;
	r->input_error = true;
	launch_fail(&r->l);
}

static void on_line(void *arg, struct child *c, const char *line)
{
	struct run *r = arg;
	json_t *event = json_loads(line, 0, NULL);
	const char *name = json_string_value(json_object_get(event, "event"));
	bool first = launch_number(&r->l, c) == 0;

	if (r->ending) {
		/* what servers say at their end is a consequence */
	} else if (!name) {
		output_error(&r->l.out, c->name, "%s", line);
	} else if (launch_take_event(&r->l, c, name, event)) {
		/* it means the same to each launcher, and launch.c has taken it */
	} else if (strcmp(name, "error") == 0) {
		take_error(r, c, event);
	} else if (strcmp(name, "progress") == 0) {
		take_progress(r, c, event);
	} else if (strcmp(name, "status") == 0 && r->l.drains) {
		/* the answer to launch_drain(), which asks for a snapshot only */
	} else if (strcmp(name, "log") == 0 || strcmp(name, "status") == 0) {
		json_object_set_new(event, "who", json_string(c->name));
		report(&r->l.out, c->name, json_incref(event));
	} else if (strcmp(name, "device") == 0 || strcmp(name, "warning") == 0 ||
		   strcmp(name, "snapshot") == 0 ||
		   (strcmp(name, "note") == 0 && first)) {
		if (strcmp(name, "snapshot") == 0 || strcmp(name, "warning") == 0)
			launch_take_snapshot(&r->l, event);
		json_object_set_new(event, "who", json_string(c->name));
		launch_report(&r->l, c->name, json_incref(event));
	} else if (strcmp(name, "lost") == 0) {
		take_loss(r, c, event);
	} else if (strcmp(name, "joined") == 0 && first) {
		take_joined(r, event);
	} else if (strcmp(name, "begun") == 0) {
		run_take_begun(r, c, event);
	} else if (strcmp(name, "completed") == 0 && first) {
		r->l.completed = true;
	}
	json_decref(event);
}

/* Reports the status of the job, on SIGUSR1. The servers report their own. */
static void on_status(void *arg)
{
	struct run *r = arg;
	char text[80];

	snprintf(text, sizeof(text), "%u of %llu workers and %u of %llu servers run",
		launch_running(&r->l, true), (unsigned long long)r->l.opts.workers,
		launch_running(&r->l, false), (unsigned long long)r->l.opts.servers);
	launch_report(
		&r->l, "run", json_pack("{ss ss}", "event", "status", "text", text));
}

/* ---- the course of a job, and its end ---- */

/* True while a server writes the last snapshot. */
static bool is_saving(const struct run *r)
{
	for (unsigned i = 0; i < r->l.sup.child_count; i++)
		if (r->l.sup.children[i].running && r->l.sup.children[i].saving)
			return true;
	return false;
}

static int own_turn_ms(const struct run *r)
{
	if (r->ended_ns && is_saving(r))
		return -1;
	if (r->ended_ns)
		return r->begun ? launch_ms_left(r->ended_ns, LAUNCH_LINGER_NS) : 0;
	if (r->l.failed_ns)
		return launch_ms_left(r->l.failed_ns, run_patience_ns(r));
	if (r->early_ns)
		return launch_ms_left(r->early_ns, LAUNCH_PATIENCE_NS);
	if (r->l.loss_ns)
		return launch_ms_left(r->l.loss_ns, LAUNCH_PATIENCE_NS);
	if (r->l.served_ns && !launch_workers_to_come(&r->l))
		return launch_ms_left(r->l.served_ns, LAUNCH_LINGER_NS);
	return -1;
}

static int turn_ms(const struct run *r)
{
	int own_ms = own_turn_ms(r), place_ms = place_turn_ms(&r->place);

	return own_ms < 0 || (place_ms >= 0 && place_ms < own_ms) ? place_ms : own_ms;
}

/* All workers have ended. Do the servers have to be heard yet, whether the job was
 * completed? What they have printed before the last worker ended is read in one more turn;
 * and servers that have begun the steps end by themselves when nobody is left. */
static bool awaits_servers(struct run *r)
{
	if (!place_has_servers(&r->place) || r->l.completed || r->l.failed_ns)
		return false;
	/* Server 0 has gone back, so the job is not complete, and waits for workers. */
	if (r->l.opts.goes_back && r->l.known[0] && !r->l.at_steps[0])
		return false;
	if (!r->ended_ns) {
		r->ended_ns = tern_clock_ns();
		return true;
	}
	return r->begun && !r->l.served_ns &&
	       (is_saving(r) || !run_has_passed(r->ended_ns, LAUNCH_LINGER_NS));
}

static bool is_over(struct run *r)
{
	if (r->l.sup.signal)
		return true;
	if (run_all_workers_ended(r) && !run_awaits_worker(r))
		return !awaits_servers(r);
	if (r->l.failed_ns)
		return run_has_passed(r->l.failed_ns, run_patience_ns(r));
	/* the workers of other ranks need no server any more */
	if (run_others_running(r) && r->l.served_ns && !launch_running(&r->l, true))
		return true;
	/* workers that hang were lost, and the others have ended */
	return !launch_workers_to_come(&r->l) &&
	       run_has_passed(r->l.served_ns, LAUNCH_LINGER_NS);
}

/* Does what is due between the ranks. */
static void turn_place(struct run *r)
{
	struct message error;
	char text[800];
	int n = place_turn(&r->place, r->l.join, sizeof(r->l.join), &r->l.secret, &error);

	if (n < 0)
		fail_by(r, &error);
	if (n == 1) {
		r->l.held = false;
		r->l.sup.secret = secret_text(&r->l.secret);
		on_listening(&r->l);
	}
	if (!r->l.sup.signal && place_is_orphaned(&r->place))
		r->l.sup.signal = SIGTERM;
	if (place_has_note(&r->place, text, sizeof(text)))
		launch_report(&r->l, "run",
			json_pack("{ss so}", "event", "note", "text", report_text(text)));
	if (!r->begun && !*r->early)
		snprintf(r->early, sizeof(r->early), "%s", r->place.first_end);
}

static void run(struct run *r)
{
	do {
		launch_turn(&r->l, turn_ms(r));
		r->l.settled = r->l.sup.child_count == launch_size(&r->l);
		turn_place(r);
		run_settle_losses(r);
	} while (!is_over(r));
}

/* Rank 0 was asked to end, and so were the other ranks by the same launcher: their workers
 * may need the servers for their own end, such as to agree who saves. */
static void wait_for_others(struct run *r, uint64_t limit_ns)
{
	uint64_t since_ns = tern_clock_ns();

	while (r->begun && run_others_running(r) && !r->l.served_ns &&
		r->l.sup.interrupt_count < 2 && !run_has_passed(since_ns, limit_ns)) {
		int left_ms = launch_ms_left(since_ns, limit_ns);
		int place_ms = place_turn_ms(&r->place);

		supervise_turn(
			&r->l.sup, place_ms < 0 ? left_ms : TERN_MIN(place_ms, left_ms));
		if (!launch_running(&r->l, false))
			r->l.served_ns = tern_clock_ns();
		turn_place(r);
	}
}

/* Ends the workers and what they have left, then the servers, which the workers may need
 * for their own end. */
static void end_all(struct run *r, int signal, unsigned grace_ms)
{
	unsigned servers = TERN_MIN((unsigned)r->l.opts.servers, r->l.sup.child_count);

	r->ending = true;
	supervise_end(&r->l.sup, servers, signal, grace_ms);
	if (r->l.sup.signal)
		wait_for_others(r, launch_leave_ms(&r->l) * TERN_NS_PER_MS);
	supervise_end(&r->l.sup, 0, SIGUSR2, LAUNCH_GRACE_MS);
}

static int conclude_interrupted(struct run *r)
{
	int signal = r->l.sup.signal;
	char text[200];

	snprintf(text, sizeof(text), "ended by %s: %u of %llu workers were running",
		signals_name(signal), launch_running(&r->l, true),
		(unsigned long long)r->l.opts.workers);
	if (r->begun)
		launch_drain(&r->l);
	/* Programs that clean up at their end do it for one of these two. */
	end_all(r, signal == SIGINT ? SIGINT : SIGTERM, launch_leave_ms(&r->l));
	return launch_say_end(&r->l, launch_signal_code(&r->l), text);
}

static void report_done(struct run *r)
{
	static const char *const names[] = {"steps", "loss", "metrics"};
	json_t *event = json_pack("{ss sI sI}", "event", "done", "workers",
		(json_int_t)worker_count(r), "succeeded", (json_int_t)r->succeeded);

	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		json_t *value = json_object_get(r->progress, names[i]);

		if (value)
			json_object_set(event, names[i], value);
	}
	launch_add_skipped(&r->l, event);
	report(&r->l.out, "run", event);
}

/* conclude() returns this if the job is to be started again. */
#define AGAIN -1

static int conclude(struct run *r)
{
	char text[1200];

	if (r->l.sup.signal)
		return conclude_interrupted(r);
	end_all(r, SIGTERM, LAUNCH_GRACE_MS);
	if (!run_has_succeeded(r)) {
		run_name_cause(r, text, sizeof(text));
		if (run_was_killed(r) &&
			restart_is_due(&r->l, r->settings, r->restarts, text))
			return AGAIN;
		return launch_say_end(
			&r->l, r->input_error ? EXIT_INPUT : EXIT_JOB, text);
	}
	run_tell_losses(r);
	if (!r->l.completed && place_has_servers(&r->place))
		launch_tell_unsaved(&r->l, r->dead_server);
	if (r->l.out.json)
		report_done(r);
	return EXIT_OK;
}

/* ---- the command line ---- */

/* Checks that the file can be executed. Returns 0 or a negative errno. */
static int check_file(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	return access(path, X_OK) < 0 ? -errno : 0;
}

/* Looks for the program where execvp() will, before any process is started. */
static int find_program(const char *name, struct message *error)
{
	const char *path = getenv("PATH");
	char file[PATH_MAX];
	int r = -ENOENT, here;

	if (strchr(name, '/')) {
		r = check_file(name);
		return r ? options_refuse(error, "%.300s: %s", name, strerror(-r)) : 0;
	}
	for (const char *p = path ? path : "/bin:/usr/bin"; *name && r; p++) {
		size_t n = strcspn(p, ":");

		snprintf(file, sizeof(file), "%.*s%s%s", (int)n, p, n ? "/" : "", name);
		here = check_file(file);
		r = here == 0 || here == -EACCES ? here : r;
		p += n;
		if (!*p)
			break;
	}
	if (r == -EACCES)
		return options_refuse(error, "%.300s: %s", name, strerror(EACCES));
	return r ? options_refuse(error, "%.300s: no program of this name in PATH",
			   *name ? name : "''")
		 : 0;
}

/* Reads the options, which end at "--". Returns the index of the program in argv. */
static int parse(int argc, char **argv, struct run_settings *s, struct message *error)
{
	int n = 0;

	while (n < argc && strcmp(argv[n], "--") != 0) {
		if (options_is(argv[n], "--init-from"))
			return options_refuse(error,
				"--init-from: only tern train and tern worker have this "
				"option: here PROGRAM declares the tensors, and gives "
				"their first values itself, as session.tensor(..., "
				"init=ARRAY)");
		n++;
	}
	/* Without "--", the program that was meant is no option. */
	if (options_parse(options, n, argv, s, error) &&
		(n < argc || strncmp(error->text, "--", 2) == 0))
		return -EINVAL;
	if (n + 1 < argc)
		return n + 1;
	return options_refuse(error,
		"no program: it stands after --, as in tern run --workers 2 -- python3 "
		"train.py");
}

/* True if the user wants the programs to end when a server is lost. */
static bool programs_end(void)
{
	const char *wait = getenv(SERVER_WAIT);

	return wait && strcmp(wait, "0") == 0;
}

static struct launch_opts launch_opts(
	const struct run_settings *s, const struct place *place)
{
	bool ranked = place_is_ranked(place);

	return (struct launch_opts){
		.settings = &s->launch,
		.fabric = &s->fabric,
		.arithmetic = s->arithmetic,
		.tensor_memory = s->tensor_memory,
		.log_level = s->log_level,
		.servers = place_has_servers(place) ? s->servers : 0,
		.workers = ranked || !s->workers ? 1 : s->workers,
		.all_workers = ranked       ? place->ranks.size
			       : s->workers ? s->workers
					    : 1,
		.first_worker = place->ranks.rank,
		.followers = s->launch.replicas == 2 ? s->servers : 0,
		.goes_back = !ranked && restart_is_wanted(&s->launch) && !programs_end(),
		.consecutive_ports = s->place.port != 0,
		.json = s->json,
	};
}

/* Finds the place among other processes, and with it where the servers listen. */
static int find_place(struct run_settings *s, struct place *place, struct secret *secret,
	struct message *error)
{
	struct place_opts opts = {
		.settings = &s->place,
		.fabric = &s->fabric,
		.secret = &s->launch.secret,
		.listen = s->launch.listen,
		.servers = s->servers,
		.workers = s->workers,
	};
	int r = place_find(place, &opts, secret, error);

	if (r == 0)
		s->launch.listen = place_listen(place, &opts);
	return r;
}

/* Refuses followers in a job that never goes on in place. */
static int check_replicas(
	const struct run_settings *s, const struct place *place, struct message *error)
{
	const struct ranks *ranks = &place->ranks;

	if (s->launch.replicas < 2)
		return 0;
	if (place_is_ranked(place))
		return options_refuse(error,
			"--replicas 2: %s=%llu of this process were started (%s), and as "
			"one of several, tern run starts nothing again: leave --replicas "
			"out; or give --alone to start all workers here",
			ranks->size_name, (unsigned long long)ranks->size,
			ranks->launcher);
	if (programs_end())
		return options_refuse(error,
			"--replicas 2 needs programs that go back with their job: "
			"unset " SERVER_WAIT "=0, which ends them when a server is lost");
	return 0;
}

static int check(const struct run_settings *s, const struct launch_opts *opts,
	const struct place *place, const char *program, struct secret *secret,
	struct message *error)
{
	const struct device_choice *device = &s->launch.server_device;
	int r = check_replicas(s, place, error);

	if (r == 0)
		r = device_check_arithmetic(s->arithmetic, device, error);

	if (r == 0)
		r = device_check_memory(s->tensor_memory, device->cuda, error);
	if (r == 0)
		r = find_program(program, error);
	/* ranks other than 0 have no servers, and get the secret from rank 0 */
	return r || !opts->servers ? r : launch_check(opts, secret, error);
}

static int run_and_conclude(struct run *r)
{
	struct message error;
	int code;

	if (place_open(&r->place, &error))
		code = command_refuse(&run_command, "%s", error.text);
	else {
		run(r);
		code = conclude(r);
		if (code != AGAIN)
			place_say_end(&r->place, r->l.sup.signal,
				*r->early ? r->early : r->l.error);
	}
	output_end_line(&r->l.out);
	place_close(&r->place);
	launch_close(&r->l);
	json_decref(r->progress);
	return code;
}

/* Sets what struct run needs before launch_open(). */
static void prepare(struct run *r, const struct place *place, char **program)
{
	r->place = *place;
	r->program = program;
	r->l.command = &run_command;
	r->l.listening = on_listening;
	r->l.start_worker = start_worker;
	r->l.on_begun = run_on_begun;
	r->l.held = !place_has_servers(place);
	r->l.followers_held = true;
	r->l.unready_max = UINT_MAX;
	r->l.notes_on_stderr = true;
	r->l.sup.on_line = on_line;
	r->l.sup.on_text = on_text;
	r->l.sup.on_exit = run_on_exit_of;
	r->l.sup.on_status = on_status;
	r->l.sup.arg = r;
	if (!place_is_ranked(place))
		return;
	/* the ranks' events have one name of the job, and so have those of the servers */
	setenv(REPORT_JOB, place->ranks.job, false);
	place_watch_launcher(&r->place);
}

/* Runs the job once. Returns an exit code, or AGAIN. */
static int run_once(struct run_settings *s, const struct place *place, char **program,
	const struct secret *secret, struct tern_recent *restarts)
{
	const struct launch_opts opts = launch_opts(s, place);
	struct run *r = calloc(1, sizeof(*r));
	int code;

	if (!r)
		return command_fail(&run_command, "%s", strerror(ENOMEM));
	prepare(r, place, program);
	r->settings = &s->launch;
	r->restarts = restarts;
	r->verify_first = s->verify_first;
	r->eval_every = s->eval_every;
	code = launch_open(&r->l, &opts, secret);
	code = code ? command_fail(&run_command, "%s", strerror(-code))
		    : run_and_conclude(r);
	free(r);
	return code;
}

static int run_run(int argc, char **argv)
{
	struct run_settings s = {.verify_first = UINT64_MAX,
		.eval_every = UINT64_MAX,
		.launch.restarts = UINT64_MAX};
	struct secret secret = {""};
	struct launch_opts opts;
	struct tern_recent restarts = {0};
	struct place place;
	struct message error;
	int program = parse(argc, argv, &s, &error), code;

	if (program < 0 || log_open("run", s.log_level, &error))
		return command_refuse(&run_command, "%s", error.text);
	if (fabric_check(&s.fabric, &error) || find_place(&s, &place, &secret, &error))
		return command_refuse(&run_command, "%s", error.text);
	opts = launch_opts(&s, &place);
	if (check(&s, &opts, &place, argv[program], &secret, &error))
		return command_refuse(&run_command, "%s", error.text);
	while ((code = run_once(&s, &place, argv + program, &secret, &restarts)) == AGAIN)
		restart_pause(&restarts);
	secret_forget(&secret);
	return code;
}

const struct command run_command = {
	.name = "run",
	.usage = "[options] -- PROGRAM ARGS...",
	.summary = "start servers, and a program of yours as each of the workers",
	.options = options,
	.run = run_run,
};
