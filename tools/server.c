/* SPDX-License-Identifier: Apache-2.0 */
/* `tern server`: runs one parameter server. The first worker that joins tells it the
 * job's options. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/metric.h"
#include "server/memory.h"
#include "server/server.h"
#include "tools/follow.h"
#include "tools/info_machine.h"
#include "tools/job_view.h"
#include "tools/logdir.h"
#include "tools/role.h"
#include "tools/server_settings.h"

/* How long the first worker that comes to a job without workers waits for others at most. */
#define FIRST_WORKER_NS TERN_NS_PER_S

#define RECENT 16u /* number of progress reports that are kept */

struct server_role {
	struct role role;
	/* The newest progress reports, a ring; the rates are those since the oldest. */
	struct mark {
		uint64_t ns, step;
	} recent[RECENT];
	uint64_t recent_count;
	struct logdir *logdir; /* NULL: no --logdir */
	struct device device;
	struct tern_updater *updater;
	struct tern_server *server;
	const struct server_settings *settings;
	bool resumable; /* this process has published a snapshot, as server 0 */
	/* Manifest that server 0 has named: when this server is made anew, it goes on from that.
	 * "": none, and find_resume() chooses. */
	char told[4096];
	bool has_begun;     /* the steps have begun once */
	bool no_workers;    /* no worker was left when the job last went back */
	bool follows_again; /* the server of --follow lives */
	char address[300];  /* where it listens; "": nowhere yet */
	struct tern_server_history history;
	struct servers members;  /* of --join, or the others of --follow's job */
	struct servers followed; /* --follow */
	struct servers via;      /* --snapshots-via */
	struct standby standby;
	struct tern_server_memory *memory; /* what the next server begins with */
	struct tern_view view; /* newest one that is known of the job's servers */
	char zero[128];        /* newest address of server 0 that is known; "": none is */
	uint32_t index; /* its number: --index, until the job's workers say another */
};

/* Default number of threads with --server-device cuda. A GPU is busy only if several
 * chunks are copied to it, copied back and computed at the same time. Each chunk occupies
 * a thread, which sleeps meanwhile. */
#define GPU_THREADS 16u

static unsigned thread_count(const struct server_settings *settings)
{
	if (settings->threads)
		return (unsigned)settings->threads;
	return settings->device.cuda ? GPU_THREADS : 1;
}

/* True if this process knows of a snapshot that the job can go on from. The directory is not read: a
 * disk that does not answer must not keep the server from telling the others that it ends. */
static bool knows_snapshot(const struct server_role *s)
{
	const struct snapshot_settings *snapshots = &s->settings->snapshots;
	struct tern_server_stats stats;

	tern_server_stats(s->server, &stats);
	return snapshots_are_on(snapshots) && (snapshots->resume || stats.snapshot_step);
}

static void stop(struct role *role, const char *why, bool save)
{
	struct server_role *s = (struct server_role *)role;
	struct tern_server_stats stats;
	char text[120];

	if (s->standby.follower) {
		standby_stop(&s->standby, why);
		return;
	}
	tern_server_stats(s->server, &stats);
	role->can_resume = knows_snapshot(s);
	/* if no worker has ever joined, nothing is lost */
	role->left = !stats.has_job && !role->back_ns;
	snprintf(text, sizeof(text), "it was %s", why);
	tern_server_stop(s->server, text, save);
}

/* SIGUSR1 also asks for a snapshot. */
static void describe(struct role *role, char *text, size_t bytes)
{
	struct server_role *s = (struct server_role *)role;

	if (s->standby.follower) {
		standby_describe(&s->standby, text, bytes);
		return;
	}
	tern_server_describe(s->server, text, bytes);
	tern_server_take_snapshot(s->server);
}

static void warning(void *arg, const char *text)
{
	role_report(
		arg, json_pack("{ss so}", "event", "warning", "text", report_text(text)));
}

static void joined(void *arg, uint32_t count, uint32_t workers)
{
	struct server_role *s = arg;
	struct tern_server_stats stats;

	tern_server_stats(s->server, &stats);
	role_report(arg, json_pack("{ss sI sI ss sb}", "event", "joined", "count",
				 (json_int_t)count, "workers", (json_int_t)workers,
				 "mode", stats.mode.text, "goes_back", stats.goes_back));
}

/* Warns if the curves of --logdir have gaps. */
static void tell_logdir(struct server_role *s)
{
	char text[600];

	if (logdir_has_warning(s->logdir, tern_clock_ns(), text, sizeof(text)))
		warning(&s->role, text);
}

/* Steps per second since the oldest report that is kept; NAN: not known yet. */
static double take_rate(struct server_role *s, uint64_t step)
{
	const struct mark now = {.ns = tern_clock_ns(), .step = step};
	const struct mark *oldest =
		&s->recent[s->recent_count < RECENT ? 0 : s->recent_count % RECENT];
	double rate = s->recent_count == 0 || now.ns <= oldest->ns
			      ? (double)NAN
			      : (double)(step - oldest->step) * 1e9 /
					(double)(now.ns - oldest->ns);

	s->recent[s->recent_count++ % RECENT] = now;
	return rate;
}

/* Sets a number of an event, if it is known. */
static void set_known(json_t *event, const char *name, double value)
{
	if (!isnan(value))
		json_object_set_new(event, name, json_real(value));
}

static void progress(void *arg, const struct tern_server_progress *p)
{
	struct server_role *s = arg;
	json_t *event = json_pack("{ss sI sI}", "event", "progress", "step",
		(json_int_t)p->step, "steps", (json_int_t)p->steps);
	double rate = take_rate(s, p->step);

	set_known(event, "loss", p->loss);
	if (p->metrics->count)
		json_object_set_new(event, "metrics", tern_metrics_json(p->metrics));
	set_known(event, "lr", p->lr);
	set_known(event, "steps_per_s", rate);
	if (p->batch)
		set_known(event, "samples_per_s", rate * p->slots * p->batch);
	set_known(event, "staleness_mean", p->staleness_mean);
	if (!isnan(p->staleness_mean))
		json_object_set_new(event, "staleness_max",
			json_integer((json_int_t)p->staleness_max));
	if (*p->waits_for)
		json_object_set_new(event, "waits_for", report_text(p->waits_for));
	role_report(&s->role, event);
	logdir_add(s->logdir, tern_clock_ns(), p, rate);
	tell_logdir(s);
}

static void begun(void *arg)
{
	struct server_role *s = arg;
	struct tern_server_stats stats;

	tern_server_stats(s->server, &stats);
	s->has_begun = true;
	s->no_workers = false;
	s->recent_count = 0;
	s->recent[s->recent_count++] =
		(struct mark){.ns = tern_clock_ns(), .step = stats.steps};
	logdir_begin(s->logdir, stats.steps);
	role_begun(arg,
		json_pack("{ss ss sb so*}", "event", "begun", "mode", stats.mode.text,
			"goes_back", stats.goes_back, "view",
			job_view_json(tern_server_view(s->server))),
		stats.steps);
}

/* The launcher must not end this process before it has saved. */
static void saving(void *arg)
{
	role_report(arg, json_pack("{ss}", "event", "saving"));
}

static void snapshot(void *arg, const struct tern_server_snapshot *n)
{
	struct server_role *s = arg;
	char text[700];

	if (!n->path) {
		snprintf(text, sizeof(text),
			"no snapshot of step %llu: %s: nothing else is lost, and the "
			"snapshots before stay",
			(unsigned long long)n->step, n->why);
		role_report(arg, json_pack("{ss sI so}", "event", "warning", "step",
					 (json_int_t)n->step, "text", report_text(text)));
		return;
	}
	s->resumable = true;
	snprintf(text, sizeof(text), "snapshot of step %llu: %.400s, %.1f MB in %.2f s",
		(unsigned long long)n->step, n->path, (double)n->bytes / 1e6,
		(double)n->ns / 1e9);
	role_report(arg, json_pack("{ss sI sI sf so so}", "event", "snapshot", "step",
				 (json_int_t)n->step, "bytes", (json_int_t)n->bytes,
				 "seconds", (double)n->ns / 1e9, "path",
				 report_text(n->path), "text", report_text(text)));
}

static void lost(void *arg, uint32_t worker, const char *text)
{
	char line[500];

	snprintf(line, sizeof(line), "%s: the job goes on without worker %u", text,
		worker);
	role_report(arg, json_pack("{ss sI so}", "event", "lost", "worker",
				 (json_int_t)worker, "text", report_text(line)));
}

static void came(void *arg, uint32_t worker, const char *text)
{
	role_report(arg, json_pack("{ss sI so}", "event", "came", "worker",
				 (json_int_t)worker, "text", report_text(text)));
}

static void omitted(void *arg, uint64_t step, uint32_t slot)
{
	char text[160];

	snprintf(text, sizeof(text),
		"slot %u of step %llu is left out: its loss is no longer a number "
		"(--on-nan skip)",
		slot, (unsigned long long)step);
	role_report(arg,
		json_pack("{ss sI sI so}", "event", "skipped", "step", (json_int_t)step,
			"slot", (json_int_t)slot, "text", report_text(text)));
}

static void aborted(void *arg, const char *text)
{
	role_report(
		arg, json_pack("{ss so}", "event", "aborted", "text", report_text(text)));
}

/* Tells which process can take the place of this one. A launcher names it in words of its own. */
static void followed(void *arg, const char *address)
{
	char text[300];

	if (!*address) {
		role_report(arg,
			json_pack("{ss ss}", "event", "followed", "address", address));
		return;
	}
	snprintf(text, sizeof(text),
		"the follower at %s has all of this server's parameters, and takes its "
		"place when it is lost",
		address);
	role_report(arg, json_pack("{ss ss so}", "event", "followed", "address", address,
				 "text", report_text(text)));
}

/* Reports how many gradients were applied. A gradient is counted once for each of its
 * chunks on this server. */
static void report_applied(struct server_role *s)
{
	struct tern_server_stats stats;

	tern_server_stats(s->server, &stats);
	if (!stats.gradients_added)
		return;
	role_report(&s->role,
		json_pack("{ss sI sI sf sI}", "event", "applied", "gradients",
			(json_int_t)stats.gradients_added, "gradients_refused",
			(json_int_t)stats.gradients_refused, "staleness_mean",
			(double)stats.staleness_sum / (double)stats.gradients_added,
			"staleness_max", (json_int_t)stats.staleness_max));
}

/* Takes the snapshot that server 0 has named, if it has. */
static void follow(struct server_role *s, const struct tern_server_stats *stats)
{
	const struct tern_snapshot_id id = {stats->told_step, stats->told_number};

	*s->told = '\0';
	if (id.step && s->settings->snapshots.directory)
		snprintf(s->told, sizeof(s->told), "%.4000s/%s",
			s->settings->snapshots.directory,
			tern_snapshot_manifest_name(id).text);
}

/* Tells what the user can do. True: this server waits for the others. */
static bool goes_back(struct server_role *s, const char *text)
{
	const struct server_settings *settings = s->settings;
	struct tern_server_stats stats;
	char line[600];
	size_t n;

	tern_server_stats(s->server, &stats);
	s->index = stats.index;
	s->no_workers = s->no_workers || stats.no_workers;
	s->follows_again = stats.follows_again;
	s->view = *tern_server_view(s->server);
	if (tern_server_zero(s->server))
		snprintf(s->zero, sizeof(s->zero), "%s", tern_server_zero(s->server));
	follow(s, &stats);
	if (stats.drained) {
		s->role.left = s->role.over = true;
		role_note(&s->role,
			"this server was removed from the job, which goes on without it");
		return true;
	}
	if (stats.replaced) {
		s->role.left = s->role.over = true;
		role_note(&s->role, text);
		return true;
	}
	if (stats.follows_again && !s->role.signal) {
		role_note(&s->role, text);
		s->role.again = s->role.over = true;
		return true;
	}
	if (s->role.signal) {
		role_note(&s->role,
			"the job waits for this server: when it is started again, it "
			"goes on from its newest snapshot");
		return false;
	}
	n = (size_t)snprintf(line, sizeof(line),
		"the job goes on from what its servers have in memory, or else from "
		"its newest snapshot, and waits up to %llu s for %s",
		(unsigned long long)settings->server_wait_s,
		s->no_workers ? "a worker" : "all its processes");
	if (stats.server_count > 1)
		snprintf(line + n, sizeof(line) - n,
			". A server that is lost may come again on any host: tern server "
			"--listen HOST:PORT --join %.120s --index I --snapshots%s %.150s",
			s->address, settings->snapshots.via ? "-via" : "",
			settings->snapshots.via ? settings->snapshots.via
						: settings->snapshots.directory);
	return role_goes_back(&s->role, settings->server_wait_s, text, line);
}

static void ended(void *arg, int status, const char *text)
{
	struct role *role = arg;
	struct server_role *s = arg;
	struct tern_server_stats stats;
	char words[1000];

	/* All others have been told. Only server 0 knows of each snapshot: the directory tells the rest,
	 * if the exit code depends on it. */
	role->can_resume = knows_snapshot(s) ||
			   (role->signal == SIGTERM &&
				   snapshots_can_resume(&s->settings->snapshots));
	report_applied(s);
	tern_server_stats(s->server, &stats);
	logdir_flush(s->logdir, tern_clock_ns());
	if (status == -EAGAIN && goes_back(s, text))
		return;
	snprintf(words, sizeof(words), "%s", text);
	if (status && s->resumable)
		snapshots_say_resume(
			s->settings->snapshots.directory, words, sizeof(words));
	if (status)
		role_fail(role, stats.misused && !s->resumable, "%s", words);
	else
		role_report(role, json_pack("{ss}", "event", "completed"));
	role->over = true;
}

static int make_updater(struct server_role *s, const struct server_settings *settings)
{
	struct message error;
	int r = device_find("server-device", &settings->device, s->index,
		settings->arithmetic, &s->device, &error);

	if (r == 0)
		r = device_updater(&s->device, &s->updater, &error);
	if (r)
		role_fail(&s->role, r == -EINVAL, "%s", error.text);
	return r;
}

static void report_device(struct server_role *s)
{
	char device[24];

	if (!s->device.api)
		return;
	device_name(&s->device, device, sizeof(device));
	role_report(&s->role, json_pack("{ss ss sI ss so}", "event", "device", "role",
				      "server", "index", (json_int_t)s->index, "device",
				      device, "text", report_text(s->updater->name)));
}

/* Chooses the snapshot to go on from. A server that was made anew, or comes in the place of a lost
 * one, takes the one that server 0 has named, or else the newest of the job. If there is none yet,
 * the job begins as it did before. */
static const char *find_resume(const struct server_role *s)
{
	const struct snapshot_settings *snapshots = &s->settings->snapshots;
	struct tern_snapshot_id id;
	int r;

	if (!s->role.back_ns || snapshots->via)
		return snapshots->resume;
	if (*s->told)
		return s->told;
	r = snapshots_newest(snapshots->directory, &id);
	/* After another error the server itself looks again, and tells it. */
	return r == -ENOENT && !s->resumable ? snapshots->resume : snapshots->directory;
}

/* How long a job that goes back waits for workers once the first one has come. */
static uint64_t absent_ns(const struct server_role *s)
{
	uint64_t timeout_ns = (uint64_t)(s->settings->worker_timeout_s * 1e9);

	return s->no_workers ? TERN_MIN(timeout_ns, FIRST_WORKER_NS) : timeout_ns;
}

/* The options of the next server, but for its addresses. */
static struct tern_server_opts server_opts(struct server_role *s)
{
	const struct server_settings *settings = s->settings;

	return (struct tern_server_opts){
		.domain = s->role.domain,
		.ctx = s->role.ctx,
		.memory_bytes = info_memory_allowed(),
		.guests_max = info_guests_allowed(),
		.workers = (uint32_t)settings->workers,
		.updater = s->updater,
		.memory = device_memory(&s->device, settings->tensor_memory),
		.worker_timeout_ns = (uint64_t)(settings->worker_timeout_s * 1e9),
		.on_stall = (enum tern_on_stall)settings->on_stall,
		.omits = settings->on_nan == JOB_NAN_SKIP,
		.drain_ns = job_drain_ns(settings->drain_within_s, 5),
		.note = role_server_note,
		.warning = warning,
		.joined = joined,
		.begun = begun,
		.progress = progress,
		.snapshots = snapshots_opts(&settings->snapshots),
		.resume = s->memory ? NULL : find_resume(s),
		.goes_back =
			settings->server_wait_s && snapshots_are_on(&settings->snapshots),
		.returns = s->has_begun || settings->join || settings->follow ||
			   settings->view.number,
		.has_begun = s->has_begun,
		.replaces = settings->replaces,
		.from_memory = s->memory,
		.absent_ns = absent_ns(s),
		.follows =
			settings->follow && !s->has_begun ? s->followed.address[0] : NULL,
		.view = &s->view,
		.zero = s->has_begun && *s->zero ? s->zero : NULL,
		.index = s->index,
		.has_number = settings->index != UINT64_MAX,
		.history = &s->history,
		.saving = saving,
		.snapshot = snapshot,
		.lost = lost,
		.came = came,
		.omitted = omitted,
		.aborted = aborted,
		.followed = followed,
		.ended = ended,
		.arg = &s->role,
	};
}

static int start(struct server_role *s)
{
	const struct server_settings *settings = s->settings;
	const char *members[TERN_SERVERS_MAX];
	struct tern_server_opts opts = server_opts(s);
	bool again = *s->address;
	char why[200];
	int r;

	for (uint32_t i = 0; i < s->members.count; i++)
		members[i] = s->members.address[i];
	if (!again)
		fabric_listen_address(&settings->fabric, settings->listen, "tern-server",
			s->address, sizeof(s->address));
	opts.listen = s->address;
	if (s->via.count)
		opts.snapshots.via = *s->zero ? s->zero : s->via.address[0];
	opts.members = members;
	opts.member_count = s->members.count;
	r = tern_server_new(&opts, &s->server);
	if (r == 0)
		s->memory = NULL; /* it is the server's now */
	if (r && again && r != -EINVAL && tern_clock_ns() < s->role.back_limit_ns) {
		s->role.again = true; /* the port is taken just now, say */
		return 0;
	}
	if (r) {
		role_fail(&s->role, r == -EINVAL, "--listen %s: %s",
			settings->listen && !again ? settings->listen : s->address,
			r == -EINVAL ? "not an address of this host"
				     : role_why(r, why, sizeof(why)));
		return r;
	}
	snprintf(s->address, sizeof(s->address), "%s", tern_server_address(s->server));
	s->role.stop = stop;
	s->role.describe = describe;
	role_back_wait(&s->role);
	if (again)
		return 0;
	report_device(s);
	role_report(&s->role,
		json_pack("{ss ss}", "event", "listening", "address", s->address));
	return 0;
}

/* Keeps for the next server what this one has in memory. */
static void keep(struct server_role *s)
{
	char text[300];
	int r;

	if (!s->server)
		return; /* it could not be made, and what it was to begin with is still here */
	r = tern_server_keep(s->server, &s->memory);
	if (r == 0)
		return;
	snprintf(text, sizeof(text),
		"this server cannot keep its parameters in memory: %s: the job goes back "
		"to its newest snapshot",
		tern_status_text(r));
	role_note(&s->role, text);
}

/* Takes what is known of the job from the server that was followed. */
static void know_job(struct server_role *s)
{
	const struct tern_ps_job *job = &s->memory->job;

	s->index = tern_view_number(job, s->memory->index);
	snprintf(s->role.name, sizeof(s->role.name), "server %u", s->index);
	role_name_process("server", s->index);
	tern_view_of_job(job, &s->view);
	s->members.count = 0;
	for (uint32_t i = 0; i < job->server_count; i++)
		if (i != s->memory->index)
			snprintf(s->members.address[s->members.count++],
				sizeof(s->members.address[0]), "%s", job->servers[i]);
}

/* --follow: follows the server until it is lost. 0: this process comes in its place now. */
static int stand_by(struct server_role *s)
{
	const struct server_settings *settings = s->settings;
	int r;

	if (!*s->address)
		fabric_listen_address(&settings->fabric, settings->listen,
			"tern-follower", s->address, sizeof(s->address));
	snprintf(s->role.name, sizeof(s->role.name), "follower");
	s->standby.role = &s->role;
	s->standby.stop = stop;
	s->standby.describe = describe;
	s->standby.updater = s->updater;
	s->standby.server = s->followed.address[0];
	s->standby.has_index = settings->index != UINT64_MAX;
	s->standby.index = s->index;
	s->standby.listen = s->address;
	s->standby.listen_bytes = sizeof(s->address);
	s->standby.memory_bytes = info_memory_allowed();
	s->standby.omits = s->settings->on_nan == JOB_NAN_SKIP;
	s->standby.via = s->settings->snapshots.via;
	s->standby.wait_s = settings->server_wait_s;
	s->standby.memory = TERN_TAKE(s->memory);
	r = standby_run(&s->standby);
	if (r)
		return r;
	s->memory = TERN_TAKE(s->standby.memory);
	know_job(s);
	return 0;
}

/* True if this process follows, now or again. */
static bool follows(const struct server_role *s)
{
	return s->settings->follow && !s->has_begun;
}

/* Runs the server until it has ended, each time that its job goes back. */
static void serve(struct server_role *s)
{
	int r = follows(s) ? stand_by(s) : 0;

	if (r == 0)
		r = start(s);

	while (r == 0) {
		if (!s->role.again)
			role_loop(&s->role);
		if (!s->role.again)
			return;
		role_cut(&s->role);
		keep(s);
		tern_server_free(TERN_TAKE(s->server));
		r = role_open_again(&s->role, 0);
		if (!role_back_pause(&s->role))
			return;
		if (r == 0 && s->follows_again)
			r = stand_by(s);
		if (r == 0)
			r = start(s);
	}
}

static int open_logdir(struct server_role *s)
{
	const char *directory = s->settings->logdir;
	int r = directory ? logdir_open(directory, &s->logdir) : 0;

	if (r)
		role_fail(&s->role, false,
			"--logdir %.300s: no thread to write there: %s", directory,
			strerror(-r));
	return r;
}

static int server_run(int argc, char **argv)
{
	struct server_settings settings;
	struct server_role s = {.settings = &settings};
	struct secret secret;
	struct message error;
	int r;

	if (server_settings_parse(argc, argv, &settings, &secret, &error))
		return command_refuse(&server_command, "%s", error.text);
	s.index = settings.index == UINT64_MAX ? 0 : (uint32_t)settings.index;
	s.view = settings.view;
	r = role_open(&s.role, &server_command, s.index, &settings.fabric,
		secret_text(&secret), settings.spin_us, 0, thread_count(&settings),
		settings.json);
	s.role.drain_ns = job_drain_ns(settings.drain_within_s, 7);
	s.role.comes = settings.join != NULL;
	if (r == 0) /* after role_open(), which reports a fabric that does not work */
		r = secret_check_listen(&settings.secret, &secret, &settings.fabric,
			"--listen", settings.listen, &error);
	if (r == 0)
		r = server_settings_join(&settings, s.role.domain, &s.members, &error);
	if (r == 0)
		r = server_settings_follow(&settings, s.role.domain, &s.followed, &error);
	if (r == 0)
		r = servers_read_one("snapshots-via", settings.snapshots.via,
			&settings.fabric, s.role.domain, &s.via, &error);
	if (r && !s.role.code)
		role_fail(&s.role, true, "%s", error.text);
	secret_forget(&secret);
	if (r == 0)
		r = make_updater(&s, &settings);
	if (r == 0)
		r = open_logdir(&s);
	if (r == 0 && settings.join)
		role_back_begin(&s.role, settings.server_wait_s);
	if (r == 0)
		serve(&s);
	role_cut(&s.role);
	standby_fini(&s.standby);
	tern_server_free(s.server);
	tern_server_memory_free(s.memory);
	tern_omitted_fini(&s.history.omitted);
	tern_updater_free(s.updater);
	logdir_end(s.logdir);
	tell_logdir(&s);
	logdir_free(s.logdir);
	return role_close(&s.role);
}

const struct command server_command = {
	.name = "server",
	.usage = "--listen HOST:PORT [options]",
	.summary = "run one parameter server",
	.options = server_options,
	.run = server_run,
};
