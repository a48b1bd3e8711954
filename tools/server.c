/* SPDX-License-Identifier: Apache-2.0 */
/* `tern server`: one parameter server. It learns the job from the first worker. */
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/util.h"
#include "server/server.h"
#include "tools/info_machine.h"
#include "tools/job.h"
#include "tools/log.h"
#include "tools/role.h"
#include "tools/secret.h"

struct server_settings {
	const char *listen; /* NULL: see fabric_listen_address() */
	struct fabric_settings fabric;
	struct secret_settings secret;
	struct device_choice device;
	int arithmetic; /* index into device_arithmetics */
	uint64_t index, spin_us, threads;
	double worker_timeout_s;
	bool json;
	enum tern_log_level log_level;
};

static const struct option options[] = {
	OPTION(ADDRESS, "listen", "HOST:PORT",
		"where workers join, not for shm; port 0: the system picks one; default "
		"127.0.0.1:0, for verbs the first device's address",
		struct server_settings, listen),
	FABRIC_OPTIONS(struct server_settings, fabric),
	SECRET_OPTIONS(struct server_settings, secret),
	INSECURE_OPTION(struct server_settings, secret),
	OPTION(CUSTOM, "server-device", "cpu|cuda[:N]",
		"where updates are computed; cuda: server I on device I modulo how many "
		"there are",
		struct server_settings, device, .initial = "cpu", .parse = device_parse),
	OPTION(COUNT, "index", "I", "which server this is, from 0: its name in messages",
		struct server_settings, index, .initial = "0", .max = 255),
	ARITHMETIC_OPTION(struct server_settings, arithmetic),
	THREADS_OPTION("threads", struct server_settings, threads),
	WORKER_TIMEOUT_OPTION(struct server_settings, worker_timeout_s),
	OPTION(COUNT, "spin-us", "US", "how long to poll before sleeping",
		struct server_settings, spin_us, .initial = "0", .max = 1000000),
	OPTION(FLAG, "json", NULL, "one JSON object per line", struct server_settings,
		json),
	LOG_LEVEL_OPTION(struct server_settings, log_level),
	OPTION_END,
};

struct server_role {
	struct role role;
	struct device device;
	struct tern_updater *updater;
	struct tern_server *server;
};

static void stop(struct role *role, const char *why, bool save)
{
	struct server_role *s = (struct server_role *)role;
	struct tern_server_stats stats;
	char text[120];

	tern_server_stats(s->server, &stats);
	role->left = !stats.has_job; /* without a job nobody loses anything */
	snprintf(text, sizeof(text), "it was %s", why);
	tern_server_stop(s->server, text, save);
}

static void describe(struct role *role, char *text, size_t bytes)
{
	tern_server_describe(((struct server_role *)role)->server, text, bytes);
}

static void note(void *arg, const char *text)
{
	role_note(arg, text);
}

static void lost(void *arg, uint32_t worker, const char *text)
{
	char line[500];

	snprintf(line, sizeof(line), "%s: the job goes on without worker %u", text,
		worker);
	role_report(arg, json_pack("{ss sI so}", "event", "lost", "worker",
				 (json_int_t)worker, "text", report_text(line)));
}

/* A gradient counts once for each of its chunks on this server. */
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

static void ended(void *arg, int status, const char *text)
{
	struct role *role = arg;

	report_applied((struct server_role *)role);
	if (status)
		role_fail(role, false, "%s", text);
	role->over = true;
}

static int make_updater(struct server_role *s, const struct server_settings *settings)
{
	struct message error;
	int r = device_find("server-device", &settings->device, settings->index,
		settings->arithmetic, &s->device, &error);

	if (r == 0)
		r = device_updater(&s->device, &s->updater, &error);
	if (r)
		role_fail(&s->role, r == -EINVAL, "%s", error.text);
	return r;
}

static void report_device(struct server_role *s, const struct server_settings *settings)
{
	char device[24];

	if (!s->device.api)
		return;
	device_name(&s->device, device, sizeof(device));
	role_report(&s->role,
		json_pack("{ss ss sI ss so}", "event", "device", "role", "server",
			"index", (json_int_t)settings->index, "device", device, "text",
			report_text(s->updater->name)));
}

/* Guests leave half of the descriptors to the processes of the job. */
static uint32_t guests_max(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 1024)
		return 512;
	return (uint32_t)limit.rlim_cur / 2;
}

/* Memory that this process may use. */
static uint64_t memory_bytes(void)
{
	uint64_t all =
		(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	struct cgroup_limits limits;

	info_cgroup_limits("", &limits);
	return TERN_MIN(all, limits.memory_bytes);
}

static int start(struct server_role *s, const struct server_settings *settings)
{
	struct tern_server_opts opts = {
		.domain = s->role.domain,
		.ctx = s->role.ctx,
		.memory_bytes = memory_bytes(),
		.guests_max = guests_max(),
		.updater = s->updater,
		.worker_timeout_ns = (uint64_t)(settings->worker_timeout_s * 1e9),
		.note = note,
		.lost = lost,
		.ended = ended,
		.arg = &s->role,
	};
	char address[300], why[200];
	int r;

	fabric_listen_address(&settings->fabric, settings->listen, "tern-server", address,
		sizeof(address));
	opts.listen = address;
	r = tern_server_new(&opts, &s->server);
	if (r) {
		role_fail(&s->role, r == -EINVAL, "--listen %s: %s",
			settings->listen ? settings->listen : address,
			r == -EINVAL ? "not an address of this host"
				     : role_why(r, why, sizeof(why)));
		return r;
	}
	s->role.stop = stop;
	s->role.describe = describe;
	report_device(s, settings);
	role_report(&s->role, json_pack("{ss ss}", "event", "listening", "address",
				      tern_server_address(s->server)));
	return 0;
}

static int server_run(int argc, char **argv)
{
	struct server_settings settings = {0};
	struct server_role s = {0};
	struct secret secret;
	struct message error;
	int r;

	if (options_parse(options, argc, argv, &settings, &error) ||
		log_open("server", settings.log_level, &error) ||
		fabric_check(&settings.fabric, &error) ||
		fabric_check_listen(&settings.fabric, settings.listen, &error) ||
		device_check_arithmetic(settings.arithmetic, &settings.device, &error) ||
		secret_read(&settings.secret, &secret, &error))
		return command_refuse(&server_command, "%s", error.text);
	r = role_open(&s.role, &server_command, settings.index, &settings.fabric,
		secret_text(&secret), settings.spin_us, 0, (unsigned)settings.threads,
		settings.json);
	if (r == 0) /* a fabric that does not work here is reported first */
		r = secret_check_listen(&settings.secret, &secret, &settings.fabric,
			settings.listen, &error);
	if (r && !s.role.code)
		role_fail(&s.role, true, "%s", error.text);
	secret_forget(&secret);
	if (r == 0)
		r = make_updater(&s, &settings);
	if (r == 0)
		r = start(&s, &settings);
	if (r == 0)
		role_loop(&s.role);
	role_cut(&s.role);
	tern_server_free(s.server);
	tern_updater_free(s.updater);
	return role_close(&s.role);
}

const struct command server_command = {
	.name = "server",
	.usage = "--listen HOST:PORT [options]",
	.summary = "run one parameter server",
	.options = options,
	.run = server_run,
};
