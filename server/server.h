/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameter server: a process that keeps its share of the parameters and updates
 * them. It knows nothing of the job until the first worker sends it. Then the server
 * waits for all workers, runs the steps, and ends when all remaining workers have said
 * goodbye. See docs/training.md, "A step on the wire".
 *
 * Everything runs on the context's thread, except arithmetic and the making of chunks
 * (shard.c), which are submitted as tasks to the context's environment.
 */
#ifndef TERN_SERVER_SERVER_H
#define TERN_SERVER_SERVER_H

#include <tern/context.h>

#include "ps/job.h"
#include "ps/omitted.h"
#include "ps/updater.h"
#include "ps/vector.h"

struct tern_metrics;
struct tern_server;
struct tern_server_memory;
struct tern_view;

/* Progress of the job, which server 0 reports. */
struct tern_server_progress {
	/* Steps of the job that were done, and all of them. In async mode each worker's
	 * gradient is a step. */
	uint64_t step, steps;
	uint32_t slots, batch; /* gradients of a step; records of each, 0: not known */
	/* Mean over the workers' last steps, by the weights of their slots; NAN: not
	 * known. */
	double loss;
	double lr; /* learning rate of step `step`, of tensors without a rule of their own */
	/* async: by how many versions the gradients that were applied since the last report
	 * were behind (NAN: none were), and the largest number since the start. */
	double staleness_mean;
	uint64_t staleness_max;
	const struct tern_metrics *metrics; /* ps/metric.h */
	/* The processes that are waited for, and why, if nothing has happened for a second;
	 * else "". */
	const char *waits_for;
};

/* How a server treats a worker that has stalled (worker_timeout_ns). */
enum tern_on_stall {
	TERN_STALL_REASSIGN, /* it is lost: its slots go to other workers */
	TERN_STALL_WAIT,     /* the job waits for it, which the server warns of once */
	TERN_STALL_END,      /* the job ends with an error */
};

struct tern_server_snapshot_opts { /* snapshots of a job, ps/snapshot.h */
	/* All servers that have a directory have the same one. NULL: no snapshots, unless `via` is set. */
	const char *directory;
	/* Address of server 0, which keeps this server's parts in its directory (store.h). NULL:
	 * this server has the directory itself. Used until the server is freed. */
	const char *via;
	uint32_t piece_bytes; /* of a part on its way to server 0; 0: 1 MiB, the most */
	/* At each step that is a multiple of every_steps (async: when so many gradients were applied since
	 * the last one, about); 0: every every_ns, 0: 10 minutes.
	 * And at the last step. */
	uint64_t every_steps, every_ns;
	uint32_t keep; /* number of snapshots that are kept; 0: 3 */
};

struct tern_server_snapshot {     /* a snapshot that has ended */
	uint64_t step, bytes, ns; /* bytes of its parts; time that it took */
	const char *
		path; /* of its manifest; NULL: it was not published, and `why` says why */
	const char *why;
};

/* Counts of what has happened in a job while this process served it. A process whose job goes
 * back makes one server after the other, and they share one history, which is zeroed before the
 * first. Times are those of the contexts' environments. */
struct tern_server_history {
	uint64_t begun_ns;               /* the first server was made */
	uint64_t incarnation;            /* of the process: random, from 1 to 2^60 */
	uint64_t lost_count, came_count; /* workers, on server 0 */
	uint64_t moved_count;   /* slots that server 0 has moved from slow workers */
	uint64_t back_count;    /* how often the job has gone back */
	uint64_t back_since_ns; /* the job goes back since then; 0: it does not */
	uint64_t back_ns;       /* how long that took the last time; 0: never */
	/* Server 0: the last snapshot that was published (its `path` is snapshot_path), and
	 * when; 0: none was. And those that have failed since. */
	struct tern_server_snapshot snapshot;
	uint64_t snapshot_ended_ns;
	char snapshot_path[1000];
	/* Server 0: the random number with which it has marked the directory of snapshots as this
	 * job's (snapshots_publish.c); "": it has not. */
	char snapshot_owner[20];
	/* Server 0: when the last snapshot has ended, published or not, or if there was none, when the
	 * steps first began. The next one by time is due opts.snapshots.every_ns later. */
	uint64_t snapshot_tried_ns;
	uint64_t failed_count;
	char failed_why[300];
	/* Server 0: the slots that were left out (opts.omits). Freed with tern_omitted_fini() after the
	 * last server. */
	struct tern_omitted omitted;
};

#define TERN_STALENESS_BINS 32u

struct tern_server_stats {
	bool has_job; /* a worker has joined */
	/* opts.goes_back, the mode is sync, and all workers that are here go back, too */
	bool goes_back;
	struct tern_mode_text mode; /* of the job; "": not known */
	uint32_t index;             /* number of this server (ps/view.h) */
	uint32_t server_count;      /* of the job; 0: not known */
	/* Server 0 begins with this snapshot, and this server has found another one: the next
	 * one in its place begins with server 0's. Step 0: it has found none. */
	uint64_t told_step;
	uint32_t told_number;
	/* The step of the newest snapshot that this server knows of; 0: none. Server 0 knows all. */
	uint64_t snapshot_step;
	/* No worker was left when the job went back. Whoever comes first need not wait for long for
	 * others, who may join during the steps. */
	bool no_workers;
	/* The job goes on without this server (view.c). */
	bool drained;
	bool misused; /* the job has failed since this server was started with a wrong option */
	bool replaced;      /* the server's former follower serves in its place */
	bool follows_again; /* opts.follows lives: this process follows it again */
	/* The lowest version of a chunk: steps applied to all chunks here. A server without chunks has the
	 * step with which the job has begun, or gone on. */
	uint64_t steps;
	uint64_t gradients_added, gradients_refused;
	/* async: [k] counts updates by gradients that were k versions old; the last
	 * bin includes all older ones. */
	uint64_t staleness[TERN_STALENESS_BINS];
	uint64_t staleness_sum, staleness_max;
};

struct tern_server_opts {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* Owned by the caller, but used by this server alone until the server is
	 * freed. */
	struct tern_updater *updater;
	/* Where parameters and gradients are: host memory, or memory of the updater's
	 * GPU. */
	struct tern_vector_memory memory;
	const char *listen; /* "auto://127.0.0.1:0" */
	/* Budget for received gradients in sync mode, raised if the job needs more
	 * (sync.c); 0: 256 MiB. */
	uint64_t staging_bytes;
	struct tern_server_snapshot_opts snapshots;
	/* A directory, whose newest snapshot that is whole the job goes on from, or the
	 * manifest of one; NULL: the job begins at step 0. */
	const char *resume;
	/* Limit of parameters and state, in async mode also of the workers' gradients
	 * and copies; 0: TERN_POOL_BYTES_MAX. */
	uint64_t memory_bytes;
	/*
	 * The job may go back: if a process is lost without which it cannot go on (a server, or
	 * the last worker), and the servers take snapshots, all of its processes end, and meet
	 * again. ended() has the status -EAGAIN then: another server, made with the same
	 * options and what this one has kept (memory.h), or the newest snapshot, takes this one's
	 * place.
	 */
	bool goes_back;
	/* The job has begun before, and was to go back. (A worker may tell that, too.) */
	bool returns;
	bool has_begun; /* it has begun with this process */
	/* This process comes in the place of a lost server. If the job has removed that server meanwhile, this
	 * process ends, and is not added. */
	bool replaces;
	/* The share of the parameters that the server before this one has kept (memory.h); NULL: none.
	 * If it is given, `resume` is NULL. Owned by the server, once tern_server_new() has succeeded. */
	struct tern_server_memory *from_memory;
	/* The steps of such a job begin although workers have not come, if at least one has, for
	 * so long: their slots are others' until they come. 0: they begin with all workers. */
	uint64_t absent_ns;
	/* The newest view of the job's servers that is known; NULL: none but that of the users.
	 * Used until tern_server_new() returns. */
	const struct tern_view *view;
	/* Addresses of other servers of a job that has lost server `index`, or to which it is to be
	 * added: this one comes, and tells them its own address (members.c). The array is used until
	 * tern_server_new() returns, its strings until the server is freed. */
	const char *const *members;
	uint32_t member_count;
	/* Address of a server with number `index`, whose follower this process was (follower.h): it is
	 * asked from time to time whether it lives. If so, this server ends with -EAGAIN before its
	 * steps begin, and the statistics have `follows_again`. NULL: none. Used until the server is
	 * freed. */
	const char *follows;
	/* Address of server 0 of a job that has begun with this process (tern_server_zero()): this
	 * server asks it whether the job still has this server. NULL: it is not known, or this is
	 * server 0. Used until the server is freed. */
	const char *zero;
	uint32_t index; /* number of this server (ps/view.h), before a job tells it */
	/* A user or a launcher has chosen `index`: workers of a job in which this server has another number
	 * are refused. False: the first worker says the number. */
	bool has_number;
	/* Owned by the caller, and used by this server until it is freed; NULL: none is kept
	 * when this server is freed. */
	struct tern_server_history *history;
	/* Number of workers with which a job must begin, which are those of a launcher; 0: any. */
	uint32_t workers;
	/* Largest number of connected peers that have not joined the job; if one more
	 * connects, the oldest of them is cut off. 0: 512. */
	uint32_t guests_max;
	/* Time for which the decision about a worker that was asked to end is delayed, in
	 * case others are asked, too (leaving.c); 0: 1 s. */
	uint64_t leave_ns;
	/* Time for which a server that was asked to end waits for a snapshot (back.c); 0: 5 s. */
	uint64_t drain_ns;
	/* Time without progress after which a worker that others wait for has stalled; 0:
	 * 30 s. If ten times the median time of a slot is longer, that is used. Exceptions:
	 * late.c. */
	uint64_t worker_timeout_ns;
	enum tern_on_stall on_stall;
	/* Slots whose loss is NaN or infinite are left out of their steps (omit.c), in sync mode. All
	 * servers of a job must have the same value. */
	bool omits;
	/* Something worth a log line has happened: "worker 1 (shm pid 812) joined". `comes`: a process
	 * has come or left, which happens again and again while a job goes back. */
	void (*note)(void *arg, const char *text, bool comes);
	/* A note that users should see from every server, since a result may not be what
	 * they expect. */
	void (*warning)(void *arg, const char *text);
	/* Called when a worker has joined, or has left before the steps begin: `count` of
	 * the job's `workers` are joined now. May be NULL. */
	void (*joined)(void *arg, uint32_t count, uint32_t workers);
	/* The steps begin. May be NULL. */
	void (*begun)(void *arg);
	/* Called on server 0 while the steps are made, some times a second. May be NULL. */
	void (*progress)(void *arg, const struct tern_server_progress *progress);
	/* The workers have all that they need; the server ends when its last snapshot is
	 * written. May be NULL. */
	void (*saving)(void *arg);
	/* Called on server 0: a snapshot was published, or has failed. May be NULL. */
	void (*snapshot)(void *arg, const struct tern_server_snapshot *snapshot);
	/* Called on server 0: a slot is left out (opts.omits), or was before the snapshot that the job
	 * goes on from. Its `step` is counted from 1. Once for each slot and history. May be NULL. */
	void (*omitted)(void *arg, uint64_t step, uint32_t slot);
	/* Called on server 0: `worker` is lost; `text` says why. The job continues if
	 * another worker is left. */
	void (*lost)(void *arg, uint32_t worker, const char *text);
	/* Called on server 0: `worker`, in the place of one that was lost, takes part from now
	 * on; `text` says so. May be NULL. */
	void (*came)(void *arg, uint32_t worker, const char *text);
	/* An operator ends the job (tern abort); `text` says who and why. ended() follows when the
	 * others have been told, after up to 2 s. May be NULL. */
	void (*aborted)(void *arg, const char *text);
	/* A follower of this server (follower.h), at this address, has all of its share, as all workers
	 * were told. "": none has any more, or one begins anew to get it. May be NULL. */
	void (*followed)(void *arg, const char *address);
	/*
	 * The end, reported once: 0 if all workers have what they need, or a status (-EAGAIN:
	 * opts.goes_back) and a sentence that names the process and the reason. The server must be freed
	 * afterwards, but not inside this call.
	 */
	void (*ended)(void *arg, int status, const char *text);
	void *arg;
};

/* Makes a server and listens. Errors of tern_listen(); -ENOMEM. */
int tern_server_new(const struct tern_server_opts *opts, struct tern_server **out);
const char *tern_server_address(const struct tern_server *server);
void tern_server_stats(const struct tern_server *server, struct tern_server_stats *out);
/* The newest view of the job's servers that is known, for opts.view of the next server. */
const struct tern_view *tern_server_view(const struct tern_server *server);

/* The newest address of server 0 that is known, for opts.zero of the next server; NULL: none. */
const char *tern_server_zero(const struct tern_server *server);

/* Writes, in a few words, which step the server is at and which processes it waits
 * for. */
void tern_server_describe(struct tern_server *server, char *text, size_t bytes);

/* Ends the job: `why` is sent to the workers, then ended() is called with -ECANCELED.
 * `save`: one worker saves the present parameters, if the steps have begun; a server
 * other than 0 then first asks server 0 which one. But a job that may go back (goes_back)
 * takes a snapshot instead, and then goes back to it, which ended() is told. */
void tern_server_stop(struct tern_server *server, const char *why, bool save);

/* Removes server `number`, which may be lost, from a job that may go back: it goes back to a
 * snapshot that is taken for this, and goes on without the server. Only on server 0. Returns why
 * not, or NULL. */
const char *tern_server_drain(struct tern_server *server, uint32_t number);

/* Takes a snapshot now, if the options have a directory and the steps have begun. Any server
 * of the job may be asked. */
void tern_server_take_snapshot(struct tern_server *server);

/* Frees the server. Its tasks must have ended (host_env_stop), and the context must have
 * been freed. */
void tern_server_free(struct tern_server *server);

#endif
