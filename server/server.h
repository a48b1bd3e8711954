/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameter server: one process's share of the parameters. It knows nothing of the
 * job until the first worker brings it. Then it waits for all workers, runs the steps,
 * and ends when all remaining workers have said goodbye. See docs/training.md, "A step on
 * the wire".
 *
 * Everything runs on the context's thread, except arithmetic, which is submitted as jobs
 * to the context's environment.
 */
#ifndef TERN_SERVER_SERVER_H
#define TERN_SERVER_SERVER_H

#include <tern/context.h>

#include "ps/updater.h"

struct tern_server;

#define TERN_STALENESS_BINS 32u

struct tern_server_stats {
	bool has_job;   /* a worker has joined */
	uint64_t steps; /* the oldest version of any chunk */
	uint64_t gradients_added, gradients_refused;
	/* async: [k] counts updates by gradients that were k versions old; the last
	 * bin includes all older ones. */
	uint64_t staleness[TERN_STALENESS_BINS];
	uint64_t staleness_sum, staleness_max;
};

struct tern_server_opts {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* Owned by the caller, but used by this server alone until it is freed. */
	struct tern_updater *updater;
	const char *listen;     /* "auto://127.0.0.1:0" */
	uint64_t staging_bytes; /* bytes for received gradients; 0: 256 MiB */
	uint64_t memory_bytes;  /* largest size of its share; 0: the limit of a pool */
	/* Largest number of peers that have not joined; one more replaces the oldest
	 * of them. 0: 512. */
	uint32_t guests_max;
	/* Time for which a worker that wants to leave waits for others that are asked
	 * to end at the same moment (leaving.c); 0: 1 s. */
	uint64_t leave_ns;
	/* Time without progress after which a worker that others wait for is lost, and
	 * its slots go to others; 0: 30 s. It is ten times the median time of a slot,
	 * if that is longer. */
	uint64_t worker_timeout_ns;
	/* Something worth a log line has happened: "worker 1 (shm pid 812) joined". */
	void (*note)(void *arg, const char *text);
	/* Server 0: the job continues without `worker`; `text` says why. */
	void (*lost)(void *arg, uint32_t worker, const char *text);
	/*
	 * The end, reported once: 0 if all workers have what they need, or a status and a
	 * sentence that names the process and the reason. The server must be freed
	 * afterwards, but not inside this call.
	 */
	void (*ended)(void *arg, int status, const char *text);
	void *arg;
};

/* Makes a server and listens. Errors of tern_listen(); -ENOMEM. */
int tern_server_new(const struct tern_server_opts *opts, struct tern_server **out);
const char *tern_server_address(const struct tern_server *server);
void tern_server_stats(const struct tern_server *server, struct tern_server_stats *out);

/* Describes in a few words how far it is, and for whom it waits. */
void tern_server_describe(struct tern_server *server, char *text, size_t bytes);

/* Ends the job: workers are told `why`, then ended() comes with -ECANCELED. `save`:
 * the worker that would have finished saves the present parameters. */
void tern_server_stop(struct tern_server *server, const char *why, bool save);

/* Frees the server. Its jobs must have ended (host_env_stop), and the context must
 * have been freed. */
void tern_server_free(struct tern_server *server);

#endif
