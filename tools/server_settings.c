/* SPDX-License-Identifier: Apache-2.0 */
/* See server_settings.h. */
#include "tools/server_settings.h"

#include <errno.h>

#include "tools/follow.h"
#include "tools/job_view.h"
#include "tools/log.h"
#include "tools/logdir.h"

const struct option server_options[] = {
	OPTION(ADDRESS, "listen", "HOST:PORT",
		"address to which workers connect, not for shm; port 0: the system "
		"chooses the port; default 127.0.0.1:0, for verbs the first device's "
		"address",
		struct server_settings, listen),
	FABRIC_OPTIONS(struct server_settings, fabric),
	SECRET_OPTIONS(struct server_settings, secret),
	INSECURE_OPTION(struct server_settings, secret),
	OPTION(CUSTOM, "server-device", "cpu|cuda[:N]",
		"where updates are computed; cuda: server I uses GPU I modulo the number "
		"of GPUs",
		struct server_settings, device, .initial = "cpu", .parse = device_parse),
	OPTION(COUNT, "index", "I",
		"number of this server, from 0: its place in --join of the workers; "
		"default: the first worker says it",
		struct server_settings, index, .max = 255),
	OPTION(COUNT, "workers", "N",
		"refuse workers that describe a job that begins with another number of "
		"workers; not given: the first worker says how many there are",
		struct server_settings, workers, .min = 1, .max = TERN_WORKERS_MAX),
	TENSOR_MEMORY_OPTION(struct server_settings, tensor_memory),
	ARITHMETIC_OPTION(struct server_settings, arithmetic),
	THREADS_OPTION("threads", struct server_settings, threads),
	WORKER_TIMEOUT_OPTION(struct server_settings, worker_timeout_s),
	ON_STALL_OPTION(struct server_settings, on_stall),
	ON_NAN_OPTION(struct server_settings, on_nan),
	SNAPSHOT_OPTIONS(struct server_settings, snapshots),
	SNAPSHOTS_VIA_OPTION(struct server_settings, snapshots),
	LOGDIR_OPTION(struct server_settings, logdir),
	OPTION(TEXT, "join", "ADDRESS,...",
		"come to a job with --snapshots, in the place of its lost server "
		"--index, "
		"or as one more server with a new --index: addresses of other servers of "
		"the job, with that of server 0 for a new one",
		struct server_settings, join),
	OPTION(TEXT, "follow", "ADDRESS",
		"keep a copy of the share of the server at this address, and come in its "
		"place when it is lost; its job needs --snapshots",
		struct server_settings, follow),
	OPTION(FLAG, "replaces", NULL,
		"with --join: end if the lost server was removed from the job meanwhile, "
		"and do not add this one",
		struct server_settings, replaces),
	JOB_VIEW_OPTION(struct server_settings, view),
	SERVER_WAIT_OPTION(struct server_settings, server_wait_s),
	DRAIN_OPTION(struct server_settings, drain_within_s),
	OPTION(COUNT, "spin-us", "US", "microseconds to poll for events before sleeping",
		struct server_settings, spin_us, .initial = "0", .max = 1000000),
	OPTION(FLAG, "json", NULL, "one JSON object per line", struct server_settings,
		json),
	LOG_LEVEL_OPTION(struct server_settings, log_level),
	OPTION_END,
};

/* A server that comes to a job finds the job's own snapshots in the directory. */
static int check_snapshots(const struct server_settings *settings, struct message *error)
{
	struct snapshot_settings snapshots = settings->snapshots;
	bool begins = !settings->join && !settings->follow && !snapshots.resume;
	int r;

	if ((settings->join || settings->follow) && snapshots.directory &&
		snapshots_newest(snapshots.directory, &(struct tern_snapshot_id){0}) == 0)
		snapshots.resume = snapshots.directory;
	if (snapshots_check_via(&snapshots, settings->index, settings->follow, error))
		return -EINVAL;
	r = snapshots_check(&snapshots, error);
	if (r < 0 || !snapshots.directory || settings->index != 0)
		return r;
	/* The former server 0 of a job that goes on may live on somewhere. */
	r = snapshots_lock(snapshots.directory, true, error);
	return begins ? r : 0;
}

/* A server that recovers a job is not refused because of the curves, and does not wait for their
 * disk: the thread of logdir_open() meets its errors, which become warnings. */
static int check_logdir(const struct server_settings *settings, struct message *error)
{
	bool recovers = settings->join || settings->follow || settings->snapshots.resume;

	return recovers ? 0 : logdir_check(settings->logdir, error);
}

int server_settings_parse(int argc, char **argv, struct server_settings *settings,
	struct secret *secret, struct message *error)
{
	const struct device_choice *device = &settings->device;
	uint32_t index;

	*settings = (struct server_settings){.index = UINT64_MAX};
	if (options_parse(server_options, argc, argv, settings, error) ||
		log_open("server", settings->log_level, error) ||
		fabric_check(&settings->fabric, error) ||
		fabric_check_listen(&settings->fabric, settings->listen, error) ||
		device_check_arithmetic(settings->arithmetic, device, error) ||
		device_check_memory(settings->tensor_memory, device->cuda, error) ||
		check_snapshots(settings, error) || check_logdir(settings, error) ||
		secret_read(&settings->secret, secret, error))
		return -EINVAL;
	index = settings->index == UINT64_MAX ? 0 : (uint32_t)settings->index;
	return job_view_check(&settings->view, index,
		settings->server_wait_s > 0 && !settings->follow &&
			snapshots_are_on(&settings->snapshots),
		error);
}

int server_settings_join(const struct server_settings *settings,
	struct tern_domain *domain, struct servers *members, struct message *error)
{
	if (!settings->join)
		return settings->replaces
			       ? options_refuse(error, "--replaces: needs --join")
			       : 0;
	if (settings->index == UINT64_MAX)
		return options_refuse(error,
			"--join %.300s: needs --index, the number of the lost server, or "
			"a new one",
			settings->join);
	if (settings->server_wait_s == 0)
		return options_refuse(error,
			"--join %.300s: needs a --server-wait above 0, for the others to "
			"come",
			settings->join);
	if (!snapshots_are_on(&settings->snapshots))
		return options_refuse(error,
			"--join %.300s: needs --snapshots, the directory of the job that "
			"this server comes to, or --snapshots-via",
			settings->join);
	return servers_read(settings->join, &settings->fabric, domain, members, error);
}

int server_settings_follow(const struct server_settings *settings,
	struct tern_domain *domain, struct servers *followed, struct message *error)
{
	const char *other = settings->join               ? "join"
			    : settings->snapshots.resume ? "resume"
							 : NULL;
	int r;

	if (!settings->follow)
		return 0;
	if (other)
		return options_refuse(error,
			"--follow %.300s: does not go with --%s: the server that is "
			"followed tells the rest",
			settings->follow, other);
	if (settings->server_wait_s == 0)
		return options_refuse(error,
			"--follow %.300s: needs a --server-wait above 0, for the server "
			"to be there",
			settings->follow);
	if (!snapshots_are_on(&settings->snapshots))
		return options_refuse(error,
			"--follow %.300s: needs --snapshots, the directory of the job, "
			"or --snapshots-via",
			settings->follow);
	if (settings->device.cuda)
		return options_refuse(error,
			"--follow %.300s: not yet with --server-device cuda: a follower "
			"updates on the CPU",
			settings->follow);
	r = servers_read_one(
		"follow", settings->follow, &settings->fabric, domain, followed, error);
	return r ? r
		 : standby_check(settings->follow, followed, &settings->fabric,
			   settings->listen, error);
}
