/* SPDX-License-Identifier: Apache-2.0 */
/* See launch.h. */
#include "tools/launch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tools/field.h"
#include "tools/info_machine.h"
#include "tools/restart.h"

_Static_assert(SUPERVISE_CHILDREN_MAX >= 2 * TERN_SERVERS_MAX + TERN_WORKERS_MAX,
	"the supervisor has room for all processes of the largest job");

#define SECRET_FD     "3"  /* SUPERVISE_SECRET_FD as text */
#define MEMORY_MS     100  /* interval of checks of free memory while processes start */
#define LEAVE_MORE_MS 1500 /* launch_leave_ms() */
#define AGAIN_MS      10 /* interval of looks whether a killed worker has left processes */
/* How long, in seconds, children wait for one that is started again: far longer than the
 * longest pause before that and the reading of a snapshot. A launcher that gives up ends them. */
#define SERVER_WAIT_S "3600"
/* Memory that must stay free on a host with 16 GiB or more; on smaller ones 1/64 of it. */
#define MEMORY_LOW (256ull << 20)

void launch_fail(struct launch *l)
{
	if (!l->failed_ns)
		l->failed_ns = tern_clock_ns();
}

/* ---- before the start ---- */

/* True if there are two cores per process, for its thread that moves bytes and its thread
 * that computes. With fewer cores, polling threads would slow down computing threads. */
static bool cores_to_spare(const struct launch_opts *opts)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
	       (uint64_t)CPU_COUNT(&cpus) >= 2 * (opts->servers + opts->workers);
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

static int check_replicas(const struct launch_settings *s, struct message *error)
{
	const char *without = NULL;

	if (s->replicas < 2)
		return 0;
	if (!s->snapshots.directory)
		without = "needs --snapshots DIR: a job without snapshots cannot go on "
			  "when a server is lost";
	else if (s->restarts == 0)
		without = "needs --restarts above 0: without restarts the job ends when "
			  "a server is lost";
	else if (s->server_device.cuda)
		without = "needs --server-device cpu: followers of servers that compute "
			  "on a GPU are not supported";
	return without ? options_refuse(error, "--replicas 2 %s", without) : 0;
}

int launch_check(
	const struct launch_opts *opts, struct secret *secret, struct message *error)
{
	const struct launch_settings *s = opts->settings;
	int r = check_replicas(s, error);

	if (r == 0)
		r = fabric_check_listen(opts->fabric, s->listen, error);
	if (r == 0)
		r = snapshots_check(&s->snapshots, error);
	if (r == 0 && s->snapshots.directory && !s->snapshots.resume)
		r = snapshots_lock(s->snapshots.directory, false, error);
	if (r == 0 && !s->snapshots.resume) /* server 0 warns, as it does by hand */
		r = logdir_check(s->logdir, error);
	if (r == 0 && !s->secret.insecure && !*secret->text)
		r = make_secret(secret, error);
	if (r == 0)
		r = secret_check_listen(
			&s->secret, secret, opts->fabric, "--listen", s->listen, error);
	if (r)
		return r;
	/* Servers on one host cannot share a port. */
	if (s->listen && opts->servers + opts->followers > 1 &&
		!opts->consecutive_ports && strcmp(port_of(s->listen), "0") != 0)
		return options_refuse(error,
			"--listen %.200s: %llu %s cannot share a port: use port 0",
			s->listen, (unsigned long long)(opts->servers + opts->followers),
			opts->followers ? "servers and followers" : "servers");
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

int launch_open(
	struct launch *l, const struct launch_opts *opts, const struct secret *secret)
{
	l->opts = *opts;
	l->secret = *secret;
	l->spin_us = cores_to_spare(opts) ? "20" : "0";
	l->sup.secret = secret_text(&l->secret);
	output_init(&l->out, opts->json);
	name_job();
	/* children must not read it: the job has its own secret, or none */
	unsetenv("TERN_SECRET_FILE");
	return supervise_init(&l->sup);
}

void launch_close(struct launch *l)
{
	supervise_fini(&l->sup);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(l->addresses); i++)
		free(l->addresses[i]);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(l->follower_addresses); i++)
		free(l->follower_addresses[i]);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(l->followed); i++)
		free(l->followed[i]);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(l->missed); i++)
		free(l->missed[i]);
	tern_omitted_fini(&l->skipped);
	secret_forget(&l->secret);
}

/* ---- starting the processes ---- */

size_t launch_add_secret(const struct launch *l, const char **args)
{
	if (!*l->secret.text)
		return 0;
	args[0] = "--secret-fd";
	args[1] = SECRET_FD;
	return 2;
}

void launch_role(
	struct launch *l, const char *role, unsigned index, const char *const *args)
{
	char name[32];
	int r;

	snprintf(name, sizeof(name), "%s %u", role, index);
	r = supervise_start(&l->sup, name, args);
	if (r) {
		snprintf(l->error, sizeof(l->error), "%s could not be started: %s", name,
			strerror(-r));
		launch_fail(l);
	}
}

/* Adds the arguments that say where and how a server computes. */
static size_t add_device(const struct launch *l, const char **args)
{
	const struct device_choice *device = &l->opts.settings->server_device;

	args[0] = "--server-device";
	args[1] = device->text;
	args[2] = device->cuda ? "--tensor-memory" : "--arithmetic";
	args[3] = device->cuda ? device_memories[l->opts.tensor_memory]
			       : device_arithmetics[l->opts.arithmetic];
	return 4;
}

const char *launch_server_wait(const struct launch *l)
{
	return l->opts.goes_back ? SERVER_WAIT_S : "0";
}

/* Writes the address at which the user wants a server to listen. */
static void write_listen(const struct launch *l, unsigned index, char *out, size_t bytes)
{
	const char *listen = l->opts.settings->listen, *port = port_of(listen);

	if (l->opts.consecutive_ports)
		snprintf(out, bytes, "%.*s%lu", (int)(port - listen), listen,
			strtoul(port, NULL, 10) + index);
	else
		snprintf(out, bytes, "%s", listen);
}

/* Adds where the server listens, and which servers it comes to. `listen` is room for text. */
static size_t add_place(const struct launch *l, unsigned index,
	const struct launch_place *place, const char **args, char *listen, size_t bytes)
{
	size_t n = 0;

	if (!place->listen && l->opts.settings->listen)
		write_listen(l, index, listen, bytes);
	if (place->listen || l->opts.settings->listen) {
		args[n++] = "--listen";
		args[n++] = place->listen ? place->listen : listen;
	}
	if (place->join) {
		args[n++] = "--join";
		args[n++] = place->join;
		args[n++] = "--replaces";
	}
	if (place->follow) {
		args[n++] = "--follow";
		args[n++] = place->follow;
	}
	if (place->view) {
		args[n++] = "--view";
		args[n++] = place->view;
	}
	return n;
}

void launch_server(struct launch *l, unsigned index, const struct launch_place *place)
{
	static const struct launch_place first = {NULL, NULL, NULL, NULL, NULL};
	const struct launch_settings *s = l->opts.settings;
	const struct fabric_settings *fabric = l->opts.fabric;
	struct snapshot_settings snapshots = s->snapshots;
	char number[16], timeout_s[32], threads[24], listen[300], workers[24],
		drain_s[32];
	struct snapshot_args snapshot_args;
	const char *args[47 + SNAPSHOT_ARGS_MAX] = {"server", "--fabric",
		fabric_name(fabric), "--spin-us", l->spin_us, "--index", number, "--json",
		"--worker-timeout", timeout_s, "--on-stall", job_on_stall[s->on_stall],
		"--on-nan", job_on_nan[s->on_nan], "--workers", workers, "--server-wait",
		launch_server_wait(l), "--drain-within", drain_s};
	size_t n = 20;

	snprintf(number, sizeof(number), "%u", index);
	snprintf(timeout_s, sizeof(timeout_s), "%.9g", s->worker_timeout_s);
	snprintf(workers, sizeof(workers), "%llu",
		(unsigned long long)l->opts.all_workers);
	snprintf(drain_s, sizeof(drain_s), "%.9g", s->drain_within_s);
	n += add_device(l, args + n);
	if (fabric->verbs) {
		args[n++] = "--verbs";
		args[n++] = fabric->verbs;
	}
	if (s->server_threads) {
		snprintf(threads, sizeof(threads), "%llu",
			(unsigned long long)s->server_threads);
		args[n++] = "--threads";
		args[n++] = threads;
	}
	n += add_place(
		l, index, place ? place : &first, args + n, listen, sizeof(listen));
	if (l->opts.log_level != TERN_LOG_DEFAULT) {
		args[n++] = "--log-level";
		args[n++] = tern_log_level_name(l->opts.log_level);
	}
	if (s->secret.insecure)
		args[n++] = "--insecure";
	n += launch_add_secret(l, args + n);
	if (place && (place->resume || place->follow))
		snapshots.resume = place->resume;
	n += snapshots_args(&snapshots, args + n, &snapshot_args);
	if (s->logdir && index == 0) { /* server 0 is the one that writes */
		args[n++] = "--logdir";
		args[n++] = s->logdir;
	}
	args[n] = NULL;
	launch_role(l, place && place->follow ? "follower" : "server", index, args);
}

static unsigned unready_count(const struct launch *l)
{
	unsigned n = 0;

	for (unsigned i = 0; i < l->sup.child_count; i++)
		n += launch_is_worker(l, &l->sup.children[i]) &&
		     l->sup.children[i].running && !l->ready[i];
	return n;
}

/* True if another process can be started now. */
static bool may_start(const struct launch *l)
{
	uint64_t servers = l->opts.servers, count = l->sup.child_count;

	if (l->failed_ns || l->sup.signal || unready_count(l) >= l->unready_max)
		return false;
	if (count < servers)
		return true;
	if (l->listening_count < servers || l->held)
		return false;
	return count < servers + l->opts.workers ||
	       (!l->followers_held && count < launch_size(l));
}

void launch_write_join(struct launch *l)
{
	size_t n = 0;

	for (uint64_t i = 0; i < l->opts.servers; i++)
		n += (size_t)snprintf(l->join + n, sizeof(l->join) - n, "%s%.120s",
			i ? "," : "", l->addresses[i]);
}

static void start_next(struct launch *l)
{
	unsigned servers = (unsigned)l->opts.servers, next = l->sup.child_count;

	if (next >= servers && !*l->join) {
		launch_write_join(l);
		l->listening(l);
	}
	if (next < servers)
		launch_server(l, next, NULL);
	else if (next < servers + l->opts.workers)
		l->start_worker(l, next - servers);
	else
		restart_start_follower(l, next - servers - (unsigned)l->opts.workers);
}

/* Fails a job that does not fit into this host's memory, while it is starting. Otherwise
 * the kernel would kill processes, perhaps some that do not belong to the job. */
static void look_at_memory(struct launch *l)
{
	uint64_t now_ns = tern_clock_ns(), total, left;

	if (l->settled || l->failed_ns || now_ns < l->memory_ns)
		return;
	l->memory_ns = now_ns + MEMORY_MS * TERN_NS_PER_MS;
	if (!info_memory("", &total, &left) || left >= TERN_MIN(MEMORY_LOW, total / 64))
		return;
	snprintf(l->error, sizeof(l->error),
		"this host's memory does not hold the job: %llu of %llu MiB are left "
		"with %u of %u processes started; use fewer --workers or --servers, or "
		"less data",
		(unsigned long long)left >> 20, (unsigned long long)total >> 20,
		l->sup.child_count, launch_size(l));
	launch_fail(l);
}

/* Returns the time until a process is started again, or timeout_ms if that is less. While a
 * job ends, none is. */
static int next_again_ms(const struct launch *l, int timeout_ms)
{
	uint64_t now_ns = tern_clock_ns();
	int ms = l->next_again_ns > now_ns
			 ? (int)((l->next_again_ns - now_ns) / TERN_NS_PER_MS) + 1
			 : AGAIN_MS;

	if (l->failed_ns || l->sup.signal || l->served_ns || l->safe)
		return timeout_ms;
	return timeout_ms < 0 || ms < timeout_ms ? ms : timeout_ms;
}

void launch_turn(struct launch *l, int timeout_ms)
{
	if (may_start(l))
		start_next(l);
	restart_turn(l);
	if (l->next_again_ns)
		timeout_ms = next_again_ms(l, timeout_ms);
	/* The caller looks at l->stranded, which no event need follow. */
	if (may_start(l) || l->stranded)
		timeout_ms = 0;
	else if (!l->settled && (timeout_ms < 0 || timeout_ms > MEMORY_MS))
		timeout_ms = MEMORY_MS;
	supervise_turn(&l->sup, timeout_ms);
	look_at_memory(l);
}

int launch_ms_left(uint64_t since_ns, uint64_t limit_ns)
{
	uint64_t waited_ns = tern_clock_ns() - since_ns;

	return waited_ns >= limit_ns ? 0
				     : (int)((limit_ns - waited_ns) / TERN_NS_PER_MS) + 1;
}

/* ---- the children ---- */

unsigned launch_number(const struct launch *l, const struct child *c)
{
	return (unsigned)(c - l->sup.children);
}

bool launch_is_worker(const struct launch *l, const struct child *c)
{
	unsigned i = launch_number(l, c);

	return i >= l->opts.servers && i < l->opts.servers + l->opts.workers;
}

bool launch_is_follower(const struct launch *l, const struct child *c)
{
	return launch_number(l, c) >= l->opts.servers + l->opts.workers;
}

struct child *launch_worker(struct launch *l, unsigned index)
{
	return &l->sup.children[l->opts.servers + index];
}

struct child *launch_follower(struct launch *l, unsigned index)
{
	return &l->sup.children[l->opts.servers + l->opts.workers + index];
}

unsigned launch_size(const struct launch *l)
{
	return (unsigned)(l->opts.servers + l->opts.workers + l->opts.followers);
}

unsigned launch_running(const struct launch *l, bool workers)
{
	unsigned n = 0;

	for (unsigned i = 0; i < l->sup.child_count; i++)
		n += l->sup.children[i].running &&
		     !launch_is_follower(l, &l->sup.children[i]) &&
		     launch_is_worker(l, &l->sup.children[i]) == workers;
	return n;
}

bool launch_workers_to_come(const struct launch *l)
{
	for (unsigned i = 0; i < l->sup.child_count; i++)
		if (launch_is_worker(l, &l->sup.children[i]) &&
			l->sup.children[i].running && !l->missed[i])
			return true;
	return false;
}

bool launch_follows(const struct launch *l, unsigned index)
{
	const char *address = l->follower_addresses[index], *told = l->followed[index];

	return address && told && strcmp(address, told) == 0;
}

/* Tells the user once that the server's follower has everything, when it has. */
static void tell_followed(struct launch *l, unsigned i)
{
	const struct child *follower = launch_follower(l, i);
	char text[160];

	if (l->told_followed[i] || !launch_follows(l, i))
		return;
	l->told_followed[i] = true;
	snprintf(text, sizeof(text),
		"%s (pid %d) has all of server %u's parameters, and takes its place when "
		"that is lost",
		follower->name, (int)follower->pid, i);
	launch_report(l, l->command->name,
		json_pack("{ss ss so}", "event", "note", "who", follower->name, "text",
			report_text(text)));
}

static void take_listening(struct launch *l, const struct child *c, const json_t *event)
{
	const char *text = json_string_value(json_object_get(event, "address"));
	unsigned i = launch_number(l, c);
	bool follows = launch_is_follower(l, c);
	char *address = text && (follows || i < l->opts.servers) ? strdup(text) : NULL;

	if (!address)
		return;
	if (follows) {
		i -= (unsigned)(l->opts.servers + l->opts.workers);
		free(l->follower_addresses[i]);
		l->follower_addresses[i] = address;
		tell_followed(l, i);
		return;
	}
	l->listening_count += !l->addresses[i];
	free(l->addresses[i]);
	l->addresses[i] = address;
	l->unheard[i] = false;
	if (*l->join)
		launch_write_join(l);
}

static void take_followed(struct launch *l, const struct child *c, const json_t *event)
{
	unsigned i = launch_number(l, c);

	if (!l->opts.followers)
		return;
	free(l->followed[i]);
	l->followed[i] = strdup(field_text(event, "address"));
	if (!launch_follows(l, i))
		l->told_followed[i] = false;
	tell_followed(l, i);
}

/* Workers that run join server 0 again when the job begins anew. If one of them does not come, server 0
 * tells its loss after "begun". Those that were killed stay lost until they are started again. */
static void forget_losses(struct launch *l)
{
	for (unsigned i = 0; i < l->sup.child_count; i++) {
		if (!launch_is_worker(l, &l->sup.children[i]) ||
			!l->sup.children[i].running)
			continue;
		free(TERN_TAKE(l->missed[i]));
		l->told[i] = false;
	}
}

void launch_take_begun(struct launch *l, const struct child *c)
{
	unsigned i = launch_number(l, c);

	l->known[i] = l->at_steps[i] = true;
	l->begun = l->begun || i == 0;
	if (i == 0)
		forget_losses(l);
	if (l->on_begun)
		l->on_begun(l);
}

static void take_back(struct launch *l, const struct child *c)
{
	l->at_steps[launch_number(l, c)] = false;
	l->undecided = true;
	if (launch_number(l, c) == 0)
		forget_losses(l);
}

struct child *launch_take_loss(struct launch *l, const json_t *event)
{
	json_int_t i = json_integer_value(json_object_get(event, "worker")) -
		       (json_int_t)l->opts.first_worker;
	const char *text = json_string_value(json_object_get(event, "text"));
	struct child *c;

	if (i < 0 || i >= (json_int_t)l->opts.workers || !text)
		return NULL;
	c = launch_worker(l, (unsigned)i);
	if (l->missed[launch_number(l, c)])
		return NULL;
	l->missed[launch_number(l, c)] = strdup(text);
	if (!l->loss_ns)
		l->loss_ns = tern_clock_ns();
	restart_late(l, c);
	return c;
}

bool launch_has_added(const struct launch *l)
{
	if (!l->at_steps[0])
		return false;
	for (unsigned i = 0; i < l->sup.child_count; i++)
		if (launch_is_worker(l, &l->sup.children[i]) &&
			(l->sup.children[i].running || !l->missed[i]))
			return false;
	return true;
}

/* A worker takes part again that was lost. */
static void take_came(struct launch *l, const char *who, json_t *event)
{
	json_int_t i = json_integer_value(json_object_get(event, "worker")) -
		       (json_int_t)l->opts.first_worker;
	unsigned child = (unsigned)(i + (json_int_t)l->opts.servers);

	json_object_set_new(event, "who", json_string(who));
	launch_report(l, who, json_incref(event));
	/* A worker that has died since then is no longer the one that came. */
	if (i < 0 || i >= (json_int_t)l->opts.workers || !l->sup.children[child].running)
		return;
	l->died[child] = l->told[child] = false;
	free(l->missed[child]);
	l->missed[child] = NULL;
}

/* A slot was left out of its step. A server that goes on from a snapshot tells of the slots again that were
 * left out before. */
static void take_skipped(struct launch *l, const char *who, json_t *event)
{
	const struct tern_omitted_slot slot = {
		(uint64_t)json_integer_value(json_object_get(event, "step")),
		(uint32_t)json_integer_value(json_object_get(event, "slot"))};

	if (tern_omitted_add(&l->skipped, slot) == 0)
		return;
	json_object_set_new(event, "who", json_string(who));
	launch_report(l, who, json_incref(event));
}

void launch_add_skipped(const struct launch *l, json_t *done)
{
	if (l->skipped.count)
		json_object_set_new(
			done, "skipped", json_integer((json_int_t)l->skipped.count));
}

void launch_report(struct launch *l, const char *who, json_t *event)
{
	const char *text = json_string_value(json_object_get(event, "text"));
	const char *name = json_string_value(json_object_get(event, "event"));

	if (!l->notes_on_stderr || l->out.json) {
		report(&l->out, who, event);
		return;
	}
	output_error(&l->out, who, "%s%s",
		name && strcmp(name, "warning") == 0 ? "warning: " : "",
		text ? text : "");
	json_decref(event);
}

void launch_tell_loss(struct launch *l, const struct child *c, const char *text)
{
	unsigned i = launch_number(l, c);

	if (l->told[i])
		return;
	l->told[i] = true;
	launch_report(l, l->command->name,
		json_pack("{ss sI ss so}", "event", "lost", "worker",
			(json_int_t)(i - l->opts.servers + l->opts.first_worker), "who",
			c->name, "text", report_text(text)));
}

static void take_saving(struct launch *l, struct child *c)
{
	c->saving = true;
	l->safe = l->safe || launch_number(l, c) == 0;
}

static void take_aborted(struct launch *l, const struct child *c, const json_t *event)
{
	l->aborted = true;
	if (!*l->error)
		snprintf(l->error, sizeof(l->error), "%s: %s", c->name,
			field_text(event, "text"));
}

/* The errors of a follower do not end the job. */
static void take_follower_event(
	struct launch *l, const struct child *c, const char *name, json_t *event)
{
	if (strcmp(name, "listening") == 0) {
		take_listening(l, c, event);
	} else if (strcmp(name, "begun") == 0) {
		restart_took_over(l, c);
	} else if (strcmp(name, "completed") == 0) {
		l->completed = true;
	} else if (strcmp(name, "skipped") == 0) {
		take_skipped(l, c->name, event);
	} else if (strcmp(name, "error") == 0 || strcmp(name, "warning") == 0) {
		json_object_set_new(event, "event", json_string("warning"));
		json_object_set_new(event, "who", json_string(c->name));
		launch_report(l, c->name, json_incref(event));
	}
}

bool launch_take_event(struct launch *l, struct child *c, const char *name, json_t *event)
{
	if (launch_is_worker(l, c))
		return false;
	if (strcmp(name, "begun") == 0) {
		job_view_take(&l->view, event);
		restart_end_removed(l);
	}
	if (launch_is_follower(l, c))
		take_follower_event(l, c, name, event);
	else if (strcmp(name, "listening") == 0)
		take_listening(l, c, event);
	else if (strcmp(name, "back") == 0)
		take_back(l, c);
	else if (strcmp(name, "followed") == 0)
		take_followed(l, c, event);
	else if (strcmp(name, "saving") == 0)
		take_saving(l, c);
	else if (strcmp(name, "aborted") == 0)
		take_aborted(l, c, event);
	else if (strcmp(name, "came") == 0)
		take_came(l, c->name, event);
	else if (strcmp(name, "skipped") == 0)
		take_skipped(l, c->name, event);
	else
		return false;
	return true;
}

void launch_take_snapshot(struct launch *l, const json_t *event)
{
	const json_t *step = json_object_get(event, "step");

	if (!step)
		return;
	l->snapshot_count++;
	if (json_object_get(event, "path"))
		l->snapshot_step = json_integer_value(step);
}

/* Asks server 0 for a snapshot, and waits until one was published or has failed. False: none was
 * in time. */
static bool wait_for_snapshot(struct launch *l, uint64_t limit_ns)
{
	uint64_t since_ns = tern_clock_ns(), count = l->snapshot_count;

	kill(l->sup.children[0].pid, SIGUSR1);
	while (l->snapshot_count == count && l->sup.children[0].running && !l->safe &&
		l->sup.interrupt_count < 2 && launch_ms_left(since_ns, limit_ns))
		supervise_turn(&l->sup, launch_ms_left(since_ns, limit_ns));
	return l->snapshot_count > count || l->safe;
}

void launch_drain(struct launch *l)
{
	const struct launch_settings *s = l->opts.settings;
	uint64_t limit_ns = job_drain_ns(s->drain_within_s, 5), begin_ns;
	char text[500], how[60], since[60] = "of this run";
	bool taken;

	if (l->sup.signal != SIGTERM || !s->snapshots.directory || !l->opts.servers ||
		!l->sup.children[0].running || l->safe)
		return;
	l->drains = true;
	begin_ns = tern_clock_ns();
	taken = wait_for_snapshot(l, limit_ns);
	l->drained_ns = TERN_MIN(tern_clock_ns() - begin_ns, limit_ns);
	l->drains = false;
	if (l->snapshot_step)
		snprintf(since, sizeof(since), "since the snapshot of step %lld",
			(long long)l->snapshot_step);
	if (l->sup.children[0].running)
		snprintf(how, sizeof(how), "within %.3g s", (double)limit_ns / 1e9);
	else
		snprintf(how, sizeof(how), "since server 0 has ended");
	if (!taken)
		snprintf(text, sizeof(text),
			"no snapshot %s: the steps %s are lost, and are made again when "
			"the job goes on",
			how, since);
	else if (l->snapshot_step)
		snprintf(text, sizeof(text),
			"snapshot of step %lld; --resume %.300s goes on from it",
			(long long)l->snapshot_step, s->snapshots.directory);
	else
		return; /* it has failed, which server 0 has told */
	launch_report(l, l->command->name,
		json_pack("{ss so}", "event", taken ? "note" : "warning", "text",
			report_text(text)));
}

int launch_signal_code(const struct launch *l)
{
	const struct snapshot_settings *snapshots = &l->opts.settings->snapshots;

	return l->sup.signal == SIGTERM && snapshots_can_resume(snapshots)
		       ? EXIT_REQUEUE
		       : 128 + l->sup.signal;
}

unsigned launch_leave_ms(const struct launch *l)
{
	return (unsigned)(l->opts.settings->drain_within_s * 1e3) + LEAVE_MORE_MS -
	       (unsigned)(l->drained_ns / TERN_NS_PER_MS);
}

void launch_tell_unsaved(struct launch *l, const char *how)
{
	char text[400];

	snprintf(text, sizeof(text),
		"%.300s: the results are complete, the last snapshot is not",
		*how ? how : "a server has ended early");
	launch_report(l, l->command->name,
		json_pack("{ss so}", "event", "warning", "text", report_text(text)));
}

int launch_say_end(struct launch *l, int code, const char *text)
{
	char more[1500];

	snprintf(more, sizeof(more), "%s", text);
	/* Server 0 says the same, but the first error may be that of another process. */
	if (code == EXIT_JOB && l->snapshot_step)
		snapshots_say_resume(
			l->opts.settings->snapshots.directory, more, sizeof(more));
	output_error(&l->out, l->command->name, "%s", more);
	if (l->out.json)
		report_failed(more, code);
	return code;
}
