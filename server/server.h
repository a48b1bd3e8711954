/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameter server: one process's share of the parameters. It knows nothing of the
 * job until the first worker brings it; then it waits for all workers, runs the steps,
 * and ends when all that are left have said goodbye. See training.md's "A step on the
 * wire".
 *
 * Everything happens on the context's thread, except arithmetic, which is submitted to
 * the context's environment.
 */
#ifndef TERN_SERVER_SERVER_H
#define TERN_SERVER_SERVER_H

#include <tern/context.h>

#include "ps/updater.h"

struct tern_server;

#define TERN_STALENESS_BINS 32u

struct tern_server_stats {
	bool has_job;   /* a worker has joined */
	uint64_t steps; /* the oldest version that any chunk is at */
	uint64_t gradients_added, gradients_refused;
	uint64_t staleness[TERN_STALENESS_BINS]; /* async: updates that were k versions
						    old; the last bin holds all beyond */
	uint64_t staleness_sum, staleness_max;
};

struct tern_server_opts {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* The caller's, and used by this server alone until it is freed. */
	struct tern_updater *updater;
	const char *listen;     /* "auto://127.0.0.1:0" */
	uint64_t staging_bytes; /* room for gradients that arrive; 0: 256 MiB */
	uint64_t memory_bytes; /* most that its share may take; 0: what a pool can hold */
	uint32_t guests_max;   /* peers that have not joined; one more takes the place of
				  the oldest of them; 0: 512 */
	/* How long a worker that wants to leave waits for others that are asked to end at
	 * the same time (leaving.c); 0: 1 s. */
	uint64_t leave_ns;
	/* A worker that others wait for may go on for so long without progress; then it
	 * is lost, and its slots go to others. 0: 30 s. Or for ten times the median time
	 * of a slot, where that is longer. */
	uint64_t worker_timeout_ns;
	/* Something worth a line happened: "worker 1 (shm pid 812) joined". */
	void (*note)(void *arg, const char *text);
	/* Server 0: the job goes on without `worker`, `text` says why. */
	void (*lost)(void *arg, uint32_t worker, const char *text);
	/*
	 * The end, once: 0 and all workers have what they need, or a status and a
	 * sentence that names who and why. The server is to be freed afterwards, not in
	 * here.
	 */
	void (*ended)(void *arg, int status, const char *text);
	void *arg;
};

/* Listens. Errors as tern_listen; -ENOMEM. */
int tern_server_new(const struct tern_server_opts *opts, struct tern_server **out);
const char *tern_server_address(const struct tern_server *server);
void tern_server_stats(const struct tern_server *server, struct tern_server_stats *out);

/* In a few words: how far it is, and who it waits for. */
void tern_server_describe(struct tern_server *server, char *text, size_t bytes);

/* Ends the job from outside: workers are told `why`, then ended() comes with -ECANCELED.
 * `save`: the worker that would have finished saves the parameters as they are. */
void tern_server_stop(struct tern_server *server, const char *why, bool save);

/* Jobs must have ended (host_env_stop) and the context must be freed first. */
void tern_server_free(struct tern_server *server);

#endif
