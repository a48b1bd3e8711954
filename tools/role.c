/* SPDX-License-Identifier: Apache-2.0 */
/* See role.h. */
#include "tools/role.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "tools/host_env.h"
#include "tools/log.h"
#include "tools/secret.h"
#include "tools/signals.h"

#define SIGNAL_TURNS 1024
#define DRAIN_NS     (7 * TERN_NS_PER_S)
#define FILES_FEW    64 /* fewer open files than a server or worker needs */
/* How long a process that has failed, or was asked to end, waits for its threads, which
 * may compute; then it exits without waiting for them. */
#define THREADS_MS 2000
/* How long the end of a process that has failed, or was asked to end, waits for peers
 * that still read its memory. */
#define CUT_NS TERN_NS_PER_S
/* How long a role sleeps before it is made anew: for PAUSE_MS at first, and twice as long each
 * further time. */
#define PAUSE_MS     5
#define PAUSE_MAX_MS 200
/* The time between two looks whether the process may end, while a role is made anew. */
#define BACK_LOOK_MS 200

/* Prints a log line as an event. Threads that run tasks log too, hence the lock. */
static void log_line(enum tern_log_level level, const char *line, void *arg)
{
	struct role *role = arg;
	char time[LOG_TIME_BYTES];

	flockfile(stdout);
	report(&role->out, role->name,
		json_pack("{ss ss ss so}", "event", "log", "time", log_time(time),
			"level", tern_log_level_name(level), "text", report_text(line)));
	funlockfile(stdout);
}

/* Makes the domain, and checks that the fabric of --fabric works. */
static int open_domain(struct role *role, const struct fabric_settings *fabric)
{
	struct tern_domain_opts opts = fabric_domain_opts(fabric);
	const char *why;
	int r = tern_domain_new(&opts, &role->domain);

	if (r)
		return r;
	why = fabric_missing(fabric, role->domain);
	if (!why)
		return 0;
	role_fail(role, true, "--fabric %s: %s", fabric_name(fabric), why);
	return -ENODEV;
}

/* The launcher's children run /proc/self/exe, so without this their name would be "exe". */
void role_name_process(const char *what, uint64_t index)
{
	/* the kernel keeps 15 characters: "tern-worker4095" fits without a space */
	char name[16];

	snprintf(name, sizeof(name), "tern-%.6s%s%llu", what, index < 1000 ? " " : "",
		(unsigned long long)index);
	prctl(PR_SET_NAME, name);
}

/* Begins to print and to catch signals. */
static int open_ends(struct role *role, bool json)
{
	output_init(&role->out, json);
	role->signal_fd = signals_open();
	signals_abort_on_second();
	log_redirect(log_line, role);
	return role->signal_fd;
}

static int fail_start(struct role *role, int status)
{
	char why[200];

	if (status < 0)
		role_fail(
			role, false, "starting: %s", role_why(status, why, sizeof(why)));
	return status;
}

int role_open_alone(struct role *role, const struct command *command, bool json)
{
	char title[16];
	int r;

	*role = (struct role){.command = command, .signal_fd = -1};
	snprintf(title, sizeof(title), "tern-%.10s", command->name);
	prctl(PR_SET_NAME, title);
	snprintf(role->name, sizeof(role->name), "%s", command->name);
	r = open_ends(role, json);
	return r < 0 ? fail_start(role, r) : 0;
}

/* Makes what role_cut() ends. */
static int begin(struct role *role, uint64_t connect_s)
{
	struct tern_context_opts opts = {.secret = secret_text(&role->secret),
		.connect_ns = connect_s * TERN_NS_PER_S};
	int r = host_env_new(
		&(struct host_env_opts){.task_thread_count = role->threads}, &role->env);

	return r ? r : tern_context_new_in(role->domain, &opts, role->env, &role->ctx);
}

int role_open(struct role *role, const struct command *command, uint64_t index,
	const struct fabric_settings *fabric, const char *secret, uint64_t spin_us,
	uint64_t connect_s, unsigned threads, bool json)
{
	int r;

	*role = (struct role){.command = command,
		.signal_fd = -1,
		.threads = threads,
		.drain_ns = DRAIN_NS};
	if (secret)
		snprintf(role->secret.text, sizeof(role->secret.text), "%s", secret);
	snprintf(role->name, sizeof(role->name), "%s %llu", command->name,
		(unsigned long long)index);
	role_name_process(command->name, index);
	role->spin_ns = spin_us * TERN_NS_PER_US;
	r = open_ends(role, json);
	if (r >= 0)
		r = open_domain(role, fabric);
	if (r == 0)
		r = begin(role, connect_s);
	return fail_start(role, r);
}

const char *role_why(int status, char *text, size_t bytes)
{
	struct rlimit size, files;
	size_t n = (size_t)snprintf(text, bytes, "%s",
		status == -EACCES ? "Permission denied" : tern_status_text(status));

	if (status != -ENOMEM || getrlimit(RLIMIT_FSIZE, &size) < 0 ||
		getrlimit(RLIMIT_NOFILE, &files) < 0)
		return text;
	if (size.rlim_cur != RLIM_INFINITY)
		snprintf(text + n, bytes - n,
			": a file or shared memory may have at most %llu KiB (ulimit -f)",
			(unsigned long long)size.rlim_cur >> 10);
	else if (files.rlim_cur < FILES_FEW)
		snprintf(text + n, bytes - n, ": only %llu files may be open (ulimit -n)",
			(unsigned long long)files.rlim_cur);
	return text;
}

/* ---- the event loop ---- */

static void say_status(struct role *role)
{
	char text[600] = "it is starting";

	if (role->describe)
		role->describe(role, text, sizeof(text));
	report(&role->out, role->name,
		json_pack("{ss so}", "event", "status", "text", report_text(text)));
}

static void look_for_signal(struct role *role)
{
	int number = signals_take(role->signal_fd);
	char why[60], line[120];

	if (number == SIGUSR1)
		say_status(role);
	if (!signals_is_end(number) || role->signal)
		return;
	role->signal = number;
	snprintf(why, sizeof(why), "asked to end (%s)", signals_name(number));
	snprintf(line, sizeof(line), "%s: %s%s", role->name, why,
		number == SIGINT ? "; Ctrl-C again aborts" : "");
	if (number != SIGUSR2)
		role_note(role, line);
	if (role->stop)
		role->stop(role, why, number != SIGUSR2);
	else
		role->over = true;
}

bool role_is_asked(void *arg)
{
	struct role *role = arg;

	look_for_signal(role);
	return role->signal != 0;
}

/* Sleeps until the context has work or a signal has arrived, at most until the time
 * `limit_ns` (UINT64_MAX: no limit), and handles the signal. */
static void sleep_until_event(struct role *role, uint64_t limit_ns)
{
	struct pollfd fds[] = {
		{.fd = tern_context_fd(role->ctx), .events = POLLIN},
		{.fd = role->signal_fd, .events = POLLIN},
	};
	uint64_t now_ns = tern_clock_ns();
	int ms = -1, r = tern_arm(role->ctx);

	if (r == -EAGAIN)
		return;
	if (r < 0) {
		role_fail(role, false, "waiting: %s", tern_status_text(r));
		return;
	}
	if (limit_ns != UINT64_MAX)
		ms = now_ns < limit_ns ? (int)((limit_ns - now_ns) / TERN_NS_PER_MS) + 1
				       : 0;
	poll(fds, 2, ms);
	look_for_signal(role);
}

static bool is_busy(struct role *role)
{
	return role->is_busy && role->is_busy(role);
}

/* Called when the time that a signal leaves for the end has passed: ends the loop, unless
 * the role is still saving. Returns the time of the next check. */
static uint64_t limit_passed(struct role *role)
{
	role->over = !is_busy(role);
	return tern_clock_ns() + TERN_NS_PER_S;
}

void role_loop(struct role *role)
{
	uint64_t busy_ns = 0, limit_ns = UINT64_MAX;

	for (unsigned turn = 1; !role->over; turn++) {
		int n = tern_progress(role->ctx);

		/* sleep_until_event() looks for signals too, but a busy context never
		 * sleeps. */
		if (turn % SIGNAL_TURNS == 0)
			look_for_signal(role);
		if (role->signal && limit_ns == UINT64_MAX)
			limit_ns = tern_ns_add(tern_clock_ns(), role->drain_ns);
		if (limit_ns != UINT64_MAX && tern_clock_ns() >= limit_ns)
			limit_ns = limit_passed(role);
		else if (n < 0)
			role_fail(role, false, "%s", tern_status_text(n));
		else if (n > 0)
			busy_ns = role->spin_ns ? tern_clock_ns() : 0;
		else if (role->spin_ns && tern_clock_ns() - busy_ns < role->spin_ns)
			tern_cpu_relax();
		else if (!role->over)
			sleep_until_event(role, limit_ns);
	}
}

/* ---- the job goes back ---- */

int role_open_again(struct role *role, uint64_t connect_s)
{
	char why[200];
	int r;

	host_env_free(TERN_TAKE(role->env));
	role->over = role->again = false;
	role->stop = NULL;
	role->describe = NULL;
	role->is_busy = NULL;
	role->back_timer = (struct tern_timer){0};
	role->cut_timer = (struct tern_timer){0};
	r = begin(role, connect_s);
	if (r)
		role_fail(
			role, false, "starting again: %s", role_why(r, why, sizeof(why)));
	return r;
}

void role_back_begin(struct role *role, uint64_t wait_s)
{
	if (role->back_ns || !wait_s)
		return;
	role->back_ns = tern_clock_ns();
	role->back_limit_ns = role->back_ns + wait_s * TERN_NS_PER_S;
}

bool role_goes_back(struct role *role, uint64_t wait_s, const char *why, const char *what)
{
	char line[1000];

	if (role->signal || !wait_s ||
		(role->back_ns && tern_clock_ns() >= role->back_limit_ns))
		return false;
	if (!role->back_ns) {
		snprintf(line, sizeof(line), "%s: %.480s: %s", role->name, why, what);
		role_report(role,
			json_pack("{ss so}", "event", "back", "text", report_text(line)));
	} else if (strncmp(why, role->back_why, sizeof(role->back_why) - 1) != 0) {
		snprintf(line, sizeof(line), "%s: %.480s", role->name, why);
		role_note(role, line);
	}
	snprintf(role->back_why, sizeof(role->back_why), "%s", why);
	role_back_begin(role, wait_s);
	role->again = role->over = true;
	return true;
}

static void back_timer(struct tern_timer *timer)
{
	struct role *role = tern_container_of(timer, struct role, back_timer);
	char text[600] = "";

	if (role->describe)
		role->describe(role, text, sizeof(text));
	role_fail(role, false, "the job has not gone on for %llu s: %s%s%s",
		(unsigned long long)((tern_clock_ns() - role->back_ns) / TERN_NS_PER_S),
		text, *role->back_why ? "; the last attempt ended with: " : "",
		role->back_why);
}

void role_back_wait(struct role *role)
{
	if (!role->back_ns)
		return;
	role->back_timer.fire = back_timer;
	tern_timer_set(role->ctx, &role->back_timer, role->back_limit_ns);
}

void role_begun(struct role *role, json_t *event, uint64_t step)
{
	char text[200];

	if (role->back_ns || role->comes) {
		snprintf(text, sizeof(text), "%s: the steps go on from step %llu",
			role->name, (unsigned long long)step);
		json_object_set_new(event, "text", report_text(text));
	}
	role->back_ns = 0;
	role->comes = false;
	role->back_pause_ms = 0;
	tern_timer_clear(role->ctx, &role->back_timer);
	role_report(role, event);
}

bool role_back_pause(struct role *role)
{
	struct pollfd fd = {.fd = role->signal_fd, .events = POLLIN};

	role->back_pause_ms = role->back_pause_ms
				      ? TERN_MIN(2 * role->back_pause_ms, PAUSE_MAX_MS)
				      : PAUSE_MS;
	poll(&fd, 1, role->back_pause_ms);
	return !role_is_asked(role);
}

/* ---- ending the process ---- */

static int exit_code(const struct role *role)
{
	if (role->signal && !role->left)
		return role->signal == SIGTERM && role->can_resume ? EXIT_REQUEUE
								   : 128 + role->signal;
	return role->code;
}

static void say_end(struct role *role)
{
	role_report(role, json_pack("{ss si}", "event", "end", "code", exit_code(role)));
}

static _Noreturn void exit_now(struct role *role)
{
	say_end(role);
	fflush(NULL);
	_exit(exit_code(role));
}

/* A role that is made anew waits for its threads and its peers, also for long, unless a signal
 * asks the process to end, or the time for going back is over. */
static void exit_if_asked(struct role *role, const char *awaited)
{
	if (!role_is_asked(role) && tern_clock_ns() < role->back_limit_ns)
		return;
	role_fail(role, false, "cannot go back: %s", awaited);
	exit_now(role);
}

static void cut_timer(struct tern_timer *timer);

static void set_cut_timer(struct role *role, uint64_t in_ns)
{
	role->cut_timer.fire = cut_timer;
	tern_timer_set(role->ctx, &role->cut_timer, tern_now_ns(role->env) + in_ns);
}

static void cut_timer(struct tern_timer *timer)
{
	struct role *role = tern_container_of(timer, struct role, cut_timer);

	if (role->signal || role->code)
		exit_now(role);
	exit_if_asked(role, "a process that has stopped still reads this one's memory");
	set_cut_timer(role, BACK_LOOK_MS * TERN_NS_PER_MS);
}

/* Limits how long tern_context_free() may wait. It waits for peers that read this
 * process's memory, and a peer that hangs would keep it waiting for ever. Exiting is
 * safe: memory that peers have mapped outlives the process. */
static void limit_cut(struct role *role)
{
	bool ends = role->signal || role->code;

	if (ends || role->again)
		set_cut_timer(role, ends ? CUT_NS : BACK_LOOK_MS * TERN_NS_PER_MS);
}

void role_cut(struct role *role)
{
	while (role->env && role->again && !host_env_ends(role->env, BACK_LOOK_MS))
		exit_if_asked(role, "its computation does not end");
	/* A thread that computes cannot be interrupted, and may need minutes: the process
	 * then exits without it. */
	if (role->env && (role->signal || role->code) &&
		!host_env_ends(role->env, THREADS_MS))
		exit_now(role);
	if (role->env)
		host_env_stop(role->env);
	if (role->ctx)
		limit_cut(role);
	tern_context_free(TERN_TAKE(role->ctx));
}

int role_close(struct role *role)
{
	role_cut(role);
	tern_domain_free(role->domain);
	host_env_free(role->env);
	log_redirect(NULL, NULL);
	if (role->signal_fd >= 0)
		signals_close(role->signal_fd);
	secret_forget(&role->secret);
	say_end(role);
	return exit_code(role);
}

void role_fail(struct role *role, bool input, const char *fmt, ...)
{
	char text[1200];
	va_list ap;

	role->over = true;
	if (role->code || role->signal)
		return;
	role->code = input ? EXIT_INPUT : EXIT_JOB;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	role_report(role, json_pack("{ss so sb}", "event", "error", "text",
				  report_text(text), "input", input));
}

void role_report(struct role *role, json_t *event)
{
	flockfile(stdout);
	report(&role->out, role->command->name, event);
	funlockfile(stdout);
}

void role_note(struct role *role, const char *text)
{
	role_report(
		role, json_pack("{ss so}", "event", "note", "text", report_text(text)));
}

void role_server_note(void *arg, const char *text, bool comes)
{
	struct role *role = arg;

	if (!comes)
		role_note(role, text);
	else
		role_report(role, json_pack("{ss so sb}", "event", "note", "text",
					  report_text(text), "hidden",
					  role->back_ns || role->comes));
}
