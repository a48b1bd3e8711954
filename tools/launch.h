/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the launchers of jobs have in common. A launcher starts the servers of a job, which
 * are processes `tern server` of this same program, and starts the job's workers when all
 * servers listen. It supervises all of them (supervise.h).
 *
 * Children are numbered in the order in which they are started: servers, workers, followers of
 * the servers. At most one process is started per turn, so a signal or a failure can end a job
 * of thousands of workers while they start.
 *
 * Order of calls:
 *
 *     launch_check, launch_open, launch_turn again and again, supervise_end, launch_close
 */
#ifndef TERN_TOOLS_LAUNCH_H
#define TERN_TOOLS_LAUNCH_H

#include "base/clock.h"
#include "base/recent.h"
#include "ps/omitted.h"
#include "tools/job.h"
#include "tools/job_view.h"
#include "tools/logdir.h"
#include "tools/report.h"
#include "tools/secret.h"
#include "tools/snapshots.h"
#include "tools/supervise.h"

/* After the first failure the launcher waits this long for reports that say more about the
 * cause. */
#define LAUNCH_PATIENCE_NS (300 * TERN_NS_PER_MS)
/* How long workers may go on after the last server has ended. */
#define LAUNCH_LINGER_NS (5 * TERN_NS_PER_S)
#define LAUNCH_GRACE_MS  2500 /* time to end, for children that have nothing to save */

/* Options of a launcher about its servers. */
struct launch_settings {
	const char *listen;            /* NULL: the servers' default */
	struct secret_settings secret; /* --insecure and --secret-file */
	struct device_choice server_device;
	double worker_timeout_s;
	int on_stall;            /* enum tern_on_stall */
	int on_nan;              /* enum job_on_nan */
	uint64_t server_threads; /* 0: not given */
	struct snapshot_settings snapshots;
	const char *logdir; /* NULL: not given */
	uint64_t restarts;  /* restart.h; UINT64_MAX: not given */
	/* Processes that hold the share of each server; 2: the server, and a follower. */
	uint64_t replicas;
	double drain_within_s;
};

/* Rows for a launcher's table of options; `field` of its settings is a struct
 * launch_settings. */
#define LAUNCH_OPTIONS(settings, field)                                                  \
	OPTION(ADDRESS, "listen", "HOST:PORT",                                           \
		"address at which servers listen; default 127.0.0.1:0, for verbs the "   \
		"first device's address",                                                \
		settings, field.listen),                                                 \
		INSECURE_OPTION(settings, field.secret),                                 \
		OPTION(CUSTOM, "server-device", "cpu|cuda[:N]",                          \
			"where servers compute updates; cuda: server I uses GPU I "      \
			"modulo the number of GPUs",                                     \
			settings, field.server_device, .initial = "cpu",                 \
			.parse = device_parse),                                          \
		THREADS_OPTION("server-threads", settings, field.server_threads),        \
		WORKER_TIMEOUT_OPTION(settings, field.worker_timeout_s),                 \
		ON_STALL_OPTION(settings, field.on_stall),                               \
		ON_NAN_OPTION(settings, field.on_nan),                                   \
		SNAPSHOT_OPTIONS(settings, field.snapshots),                             \
		LOGDIR_OPTION(settings, field.logdir),                                   \
		OPTION(COUNT, "restarts", "K",                                           \
			"start a process again that was killed, at most K times in 10 "  \
			"minutes: a worker that others go on without; with --snapshots " \
			"also a server or the last worker, and the job goes on from "    \
			"memory or its newest snapshot; not given: 3 with --snapshots, " \
			"else 0",                                                        \
			settings, field.restarts, .max = 1000),                          \
		OPTION(COUNT, "replicas", "1|2",                                         \
			"processes that hold the share of each server, in sync mode; "   \
			"2: each server has a follower, which takes its place when it "  \
			"is killed, so no step is made again; needs --snapshots",        \
			settings, field.replicas, .initial = "1", .min = 1, .max = 2),   \
		DRAIN_OPTION(settings, field.drain_within_s)

struct launch_opts {
	const struct launch_settings *settings;
	const struct fabric_settings *fabric;
	int arithmetic, tensor_memory; /* of the servers, see device.h */
	enum tern_log_level log_level;
	/* How many this process starts, and the number of the first worker. `tern run` may
	 * be one of several that start the workers of a job. */
	uint64_t servers, workers, first_worker;
	uint64_t all_workers; /* of the job */
	uint64_t followers;   /* 0, or one for each server */
	/* The processes of the job stay when a server or the last worker was killed, and go
	 * back to the newest snapshot, or to what is in memory, when it was started again
	 * (restart.h). */
	bool goes_back;
	/* Server I listens at the port of `listen` plus I. */
	bool consecutive_ports;
	bool json;
};

struct launch {
	/* The caller sets these before launch_open(). */
	const struct command *command;
	/* Called when all servers listen, before the first worker is started: `join` is
	 * complete. */
	void (*listening)(struct launch *l);
	void (*start_worker)(struct launch *l, unsigned index);
	/* Called when a server says "begun", and when a follower has begun in the place of a server. May
	 * be NULL. */
	void (*on_begun)(struct launch *l);
	/* Largest number of workers that have started but are not `ready`. */
	unsigned unready_max;
	/* Stdout is that of the workers: what the launcher tells people is on stderr. */
	bool notes_on_stderr;
	/* No worker is started: `join` is not known yet. */
	bool held;
	/* No follower is started: it is not known yet whether the job can have some. */
	bool followers_held;
	/* The caller sets sup.on_line, sup.on_exit, sup.on_status and sup.arg. */
	struct supervisor sup;

	struct launch_opts opts;
	struct output out;
	struct secret secret; /* secret of this job, given to its children */
	const char *spin_us;  /* --spin-us of servers and workers */
	unsigned listening_count;
	/* Where each server listens, or has listened before it was killed. */
	char *addresses[TERN_SERVERS_MAX];
	/* By server: it has said "begun" since it was started, so all workers know its
	 * address; and the steps have not ended for it since, by its event "back". */
	bool known[TERN_SERVERS_MAX], at_steps[TERN_SERVERS_MAX];
	bool begun;                     /* server 0 has said "begun" */
	bool unheard[TERN_SERVERS_MAX]; /* started again, and not listening yet */
	/* By server, of its follower: where it listens, NULL: nowhere yet; it was killed by this
	 * process since it could not take the server's place. */
	char *follower_addresses[TERN_SERVERS_MAX];
	bool dismissed[TERN_SERVERS_MAX];
	/* By server: the address of a follower that has all of its share, as it has said last. That may
	 * be told later than the end of this follower, or sooner than where it listens. */
	char *followed[TERN_SERVERS_MAX];
	/* By server: the user was told that its follower has all, since it was filled last. */
	bool told_followed[TERN_SERVERS_MAX];
	/* By server: its follower has begun as this server, though the process has not ended that this
	 * process knows as the server. restart_turn() exchanges the two. */
	bool took_over[TERN_SERVERS_MAX];
	/* The newest list of the job's servers that a server has said; its number is 0: none has. */
	struct tern_view view;
	bool completed; /* server 0, or a follower, says that the job is complete */
	struct tern_omitted skipped; /* slots that were left out (--on-nan skip) */
	/* The servers' addresses, for the workers' --join; "": some are not known yet. */
	char join[TERN_SERVERS_MAX * 122];
	bool ready[SUPERVISE_CHILDREN_MAX]; /* [child]: this worker has read its data */
	uint64_t memory_ns; /* time of the next check of the host's free memory */
	/* The caller sets this when processes no longer grow: the host's memory is not
	 * watched any more. */
	bool settled;
	/* Lost workers, by child number. died: the process has ended with a failure.
	 * missed: a server's text about a lost worker, which may still run. told: the
	 * loss was reported to the user. */
	uint64_t loss_ns; /* time of the first loss that is not yet reported; 0: none */
	bool died[SUPERVISE_CHILDREN_MAX], told[SUPERVISE_CHILDREN_MAX];
	char *missed[SUPERVISE_CHILDREN_MAX];
	/* By child number: restarts of this process alone, restart.h. */
	/* In the last 10 minutes. The pauses (restart.h) let no more than 24 happen in them. */
	struct tern_recent restarts[SUPERVISE_CHILDREN_MAX];
	/* Time when the process is started again; 0: it is not to be. And the first of these. */
	uint64_t again_ns[SUPERVISE_CHILDREN_MAX], next_again_ns;
	/* With opts.goes_back: these servers were killed, and restart_turn() is to decide about
	 * them and about workers. */
	bool lost[TERN_SERVERS_MAX], undecided;
	/* Killed, and the job cannot go on in place with another one; `exhausted`: since it was
	 * started again too often. NULL: there is none. */
	const struct child *stranded;
	bool exhausted;
	bool went_back;     /* a server or the last worker was started again */
	uint64_t served_ns; /* time when the last server ended; 0: one still runs */
	uint64_t failed_ns; /* time when the job failed; 0: it has not failed */
	/* Server 0 says that all workers have what they need, and writes the last snapshot. */
	bool safe;
	/* launch_drain() waits for a snapshot: the servers' answers to SIGUSR1 are not shown. */
	bool drains;
	uint64_t drained_ns;      /* how long it waited */
	json_int_t snapshot_step; /* of the newest snapshot; 0: none was published */
	/* Snapshots that were published or have failed. */
	uint64_t snapshot_count;
	/* An operator has ended the job, as a server says: workers that end are not lost. */
	bool aborted;
	char error[512]; /* first error, of a child or of this process */
};

/* Checks what the option table cannot. Makes the secret of the job unless the caller has one
 * already (*secret is not ""), so that no other process can join, such as one of another
 * user of this host; with --insecure there is none. -EINVAL: `error` has one line. */
int launch_check(
	const struct launch_opts *opts, struct secret *secret, struct message *error);

/* Begins to catch signals (supervise_init). `opts` is copied, but not the settings to
 * which it points. The job gets a name, TERN_JOB, unless the user has given it one. */
int launch_open(
	struct launch *l, const struct launch_opts *opts, const struct secret *secret);

/* Ends the catching of signals, and frees what the launch holds. All children must have
 * ended. */
void launch_close(struct launch *l);

/* Starts the next process if one can be started now. Then waits for events, at most
 * `timeout_ms` (-1: no limit) unless another process can be started, and calls the
 * handlers of `sup`. Fails a job that does not fit into the host's memory. */
void launch_turn(struct launch *l, int timeout_ms);

/* Marks the job as failed. Only the first call has an effect. */
void launch_fail(struct launch *l);

/* Starts the child "tern ARGS...", see supervise_start(). If that fails, the job fails. */
void launch_role(
	struct launch *l, const char *role, unsigned index, const char *const *args);

/* Starts a server, or a follower. `place` is NULL for the first server of this number. */
struct launch_place {
	const char *listen; /* --listen; NULL: as the user says */
	const char *join;   /* --join, for a server that comes again; NULL: no --join */
	const char *resume; /* --resume; NULL: as the user says */
	const char *follow; /* --follow: starts a follower; NULL: a server */
	const char *view;   /* --view; NULL: no --view */
};
void launch_server(struct launch *l, unsigned index, const struct launch_place *place);

/* The value of --server-wait for the children. */
const char *launch_server_wait(const struct launch *l);

/* Adds the arguments that let a child read the secret. Returns how many were added. */
size_t launch_add_secret(const struct launch *l, const char **args);

unsigned launch_number(const struct launch *l, const struct child *c);
bool launch_is_worker(const struct launch *l, const struct child *c);
bool launch_is_follower(const struct launch *l, const struct child *c);
struct child *launch_worker(struct launch *l, unsigned index);
struct child *launch_follower(struct launch *l, unsigned index); /* of server `index` */
/* Number of processes that the job has, once all are started. */
unsigned launch_size(const struct launch *l);

/* Number of workers, or of servers, that run. */
unsigned launch_running(const struct launch *l, bool workers);

/* True if a worker runs that is not lost. A worker that was lost because it hangs would
 * never end by itself. */
bool launch_workers_to_come(const struct launch *l);

/* Takes an event of a follower, whatever it is, or an event of a server that means the same to each
 * launcher. Returns whether the event was one of these. */
bool launch_take_event(
	struct launch *l, struct child *c, const char *name, json_t *event);

/* Warns that the last snapshot is missing, since a server has ended: `how`. */
void launch_tell_unsaved(struct launch *l, const char *how);

/* Writes the addresses of the servers, as they are now, to l->join. */
void launch_write_join(struct launch *l);

/* True if the server's follower has all of its share, and could take its place. */
bool launch_follows(const struct launch *l, unsigned index);

/* Takes the event "begun" of a server. */
void launch_take_begun(struct launch *l, const struct child *c);

/* Takes the event "lost" of a server. Returns the worker that is lost, NULL if the event
 * names none of this process's, or one that is known to be lost. */
struct child *launch_take_loss(struct launch *l, const json_t *event);

/* True if the job makes steps although no worker of this process runs: server 0 has lost them, and has
 * not gone back. So a worker takes part that a user has added by hand. */
bool launch_has_added(const struct launch *l);

/* Adds to the event "done" how many slots were left out, if any were. */
void launch_add_skipped(const struct launch *l, json_t *done);

/* As report(), but as text on stderr if `notes_on_stderr` is set; only for events whose
 * text is their member "text". */
void launch_report(struct launch *l, const char *who, json_t *event);

/* Reports the loss of a worker to the user, in the event "lost". Does nothing if it was
 * told before. */
void launch_tell_loss(struct launch *l, const struct child *c, const char *text);

/* Takes an event that tells of a snapshot: "snapshot", or "warning" with the step of one that has
 * failed. */
void launch_take_snapshot(struct launch *l, const json_t *event);

/* SIGTERM has asked this process to end: lets a snapshot be taken first, if the job takes some,
 * and waits for it for at most 5 eighths of --drain-within. Says from which step on the job can go
 * on, and what is lost. The steps have begun, and the children run. */
void launch_drain(struct launch *l);

/* The exit code of a job that a signal has ended. */
int launch_signal_code(const struct launch *l);

/* Time to end, for children that may have to save. They end by themselves within --drain-within,
 * and what still runs after that, and 1.5 s more, hangs. The time that launch_drain() took, at most
 * 5 eighths of --drain-within, counts: a batch system kills the job if it takes too long. */
unsigned launch_leave_ms(const struct launch *l);

/* Returns the milliseconds until limit_ns after the time since_ns. */
int launch_ms_left(uint64_t since_ns, uint64_t limit_ns);

/* Reports the unsuccessful end of the job on stderr, and with --json as the last event.
 * Returns `code`. */
int launch_say_end(struct launch *l, int code, const char *text);

#endif
