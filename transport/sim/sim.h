/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator: simulates processes, network, disks and time in one thread; a seed
 * determines everything that happens. The code under test is the real code; only struct
 * tern_env, the fabric and, with opts.cuda_api, the CUDA driver are simulated. Two runs
 * with one seed are identical, which tern_sim_hash() shows.
 *
 * The simulated world has a queue of events in virtual time. tern_sim_run() takes the
 * next event (or the next timer of a context), sets the clock to its time, and lets the
 * contexts with work make progress until none is left.
 */
#ifndef TERN_TRANSPORT_SIM_SIM_H
#define TERN_TRANSPORT_SIM_SIM_H

#include "base/env.h"
#include "base/rng.h"
#include "transport/fabric.h"

struct tern_context;
struct tern_sim;
struct tern_sim_process;

struct tern_sim_opts {
	uint64_t seed;
	/* Capabilities (TERN_CAP_*) of every connection of the fabric sim; 0:
	 * TERN_CAP_PUT. */
	uint32_t caps;
	uint32_t caps_b; /* the same for the fabric sim-b */
	/* Bounds of a simulated delay (a file operation takes ten times one, or more on a slow
	 * disk); if delay_max_ns is 0: 1 us and 50 us. */
	uint64_t delay_min_ns, delay_max_ns;
	/* As tern_conn.chunk_bytes, for every connection; 0: 4 KiB. */
	uint64_t chunk_bytes;
	uint32_t eager_bytes; /* default eager threshold of a connection; 0: 1 KiB */
	/* As tern_conn.bulk_bytes, for the fabric sim. It is only reported: a message
	 * never arrives before a put that was made earlier. */
	uint64_t bulk_bytes;
	/* Probability, in 1/1000, that a send, put, get or expose returns -EAGAIN. */
	unsigned eagain_permille;
	unsigned refuse_permille; /* probability, in 1/1000, that a connect is refused */
	/* Probability, in 1/1000, that a connect takes 100 x delay_max_ns longer. */
	unsigned slow_permille;
	unsigned
		file_fail_permille; /* of the first disk, as in struct tern_sim_disk_opts */
	/* CUDA functions for every process (tern_domain_hooks.cuda_api) */
	const void *cuda_api;
	/* Receives log lines, with virtual time and process name; NULL: they are
	 * dropped. */
	void (*log)(const char *line);
};

struct tern_sim *tern_sim_new(const struct tern_sim_opts *opts);
/* Frees the simulator. All its processes must have been freed before. */
void tern_sim_free(struct tern_sim *sim);

/* Makes a simulated process: an environment and a domain. The name appears in logs. */
struct tern_sim_process *tern_sim_process_new(struct tern_sim *sim, const char *name);
struct tern_env *tern_sim_env(struct tern_sim_process *process);
struct tern_domain *tern_sim_domain(struct tern_sim_process *process);
/* Lets the simulator run tern_progress() of the context, until tern_sim_forget(). */
void tern_sim_drive(struct tern_sim_process *process, struct tern_context *ctx);
void tern_sim_forget(struct tern_sim_process *process, struct tern_context *ctx);
/* Frees a process. Its contexts, pools and other objects must have been freed. */
void tern_sim_process_free(struct tern_sim_process *process);

/* Runs the simulation until until(arg) returns true: returns 0. If limit_ns of virtual
 * time pass before: -ETIMEDOUT. */
int tern_sim_run(
	struct tern_sim *sim, bool (*until)(void *arg), void *arg, uint64_t limit_ns);

uint64_t tern_sim_now_ns(const struct tern_sim *sim); /* no process's clock */
struct tern_rng *tern_sim_rng(struct tern_sim *sim);
/* Hash of what polls of the fabrics have reported so far, and of the tasks run, with
 * their times. */
uint64_t tern_sim_hash(const struct tern_sim *sim);

/* Cuts a connection that the seed chooses. Data in flight may or may not arrive; bytes of
 * puts may still arrive at an end until that end has been notified. False: no connection
 * was cut. */
bool tern_sim_cut(struct tern_sim *sim);
/* Separates two processes from each other for for_ns: connections between them end with
 * `status` at both ends, and new ones fail. Up to 8 pairs can be separated at a time. */
void tern_sim_part(struct tern_sim_process *a, struct tern_sim_process *b,
	uint64_t for_ns, int status);
/* Breaks or repairs the fabric sim. While it is broken, its connections end and no new
 * ones can be made. The fabric sim-b, which is otherwise the same, keeps working. */
void tern_sim_break(struct tern_sim *sim, bool broken);
/* Ends the process immediately, as a crash does; its peers are notified later. Its
 * contexts no longer make progress and can be freed. */
void tern_sim_crash(struct tern_sim_process *process);
/* Suspends the process for for_ns of virtual time, as SIGSTOP does. No effect on a
 * process that is suspended already. */
void tern_sim_stall(struct tern_sim_process *process, uint64_t for_ns);
/* The process's clock jumps forward. Each process has a clock of its own, which begins at a
 * time that the seed chooses: times of two processes cannot be compared. */
void tern_sim_jump(struct tern_sim_process *process, uint64_t by_ns);

/* ---- disks ---- */

/* All processes share the first disk of the simulator, unless they are given another. A disk
 * survives the crash of a process: one that is started in its place uses the same. */
struct tern_sim_disk;

struct tern_sim_disk_opts { /* may be changed at any time */
	/* Files have at most so many bytes in all; a write for which there is no room fails
	 * with -ENOSPC. 0: no limit. */
	uint64_t capacity_bytes;
	unsigned
		fail_permille; /* probability, in 1/1000, that an operation fails: -EIO */
	unsigned slowness;     /* operations take so many times as long; 0: 1 */
};

struct tern_sim_disk *tern_sim_disk(struct tern_sim *sim);     /* the first one */
struct tern_sim_disk *tern_sim_disk_new(struct tern_sim *sim); /* freed with `sim` */
struct tern_sim_disk_opts *tern_sim_disk_opts(struct tern_sim_disk *disk);
/* The process uses this disk from now on. */
void tern_sim_mount(struct tern_sim_process *process, struct tern_sim_disk *disk);

/* Writes a file without any fault. The bytes are copied. */
void tern_sim_disk_put(
	struct tern_sim_disk *disk, const char *path, const void *data, size_t bytes);
/* The contents of a file, until it is written or removed; NULL: there is none. */
const void *tern_sim_disk_get(
	const struct tern_sim_disk *disk, const char *path, size_t *bytes);
void tern_sim_disk_remove(struct tern_sim_disk *disk, const char *path);

/* ---- between sim.c and fabric.c ---- */

/* An event at a point of virtual time. The callback runs while no process runs. */
struct tern_sim_event {
	void (*happen)(struct tern_sim_event *event);
	uint64_t at_ns, order;
	uint32_t place; /* index in the event heap + 1; 0: the event is not scheduled */
};

void tern_sim_at(struct tern_sim *sim, struct tern_sim_event *event, uint64_t at_ns);
/* Random delay between delay_min_ns and delay_max_ns. */
uint64_t tern_sim_delay(struct tern_sim *sim);
bool tern_sim_dice(struct tern_sim *sim, unsigned permille);
void tern_sim_trace(struct tern_sim *sim, uint64_t what);
const struct tern_sim_opts *tern_sim_opts(const struct tern_sim *sim);
/* Marks the process as having work: its contexts run before the clock advances, or when
 * the process is no longer suspended. */
void tern_sim_rouse(struct tern_sim_process *process);
struct tern_sim *tern_sim_of(struct tern_sim_process *process);
bool tern_sim_broken(const struct tern_sim *sim);
bool tern_sim_parted(const struct tern_sim_process *a, const struct tern_sim_process *b);
struct tern_list *tern_sim_lsns(struct tern_sim *sim);
struct tern_list *tern_sim_conns(struct tern_sim *sim);
struct tern_list *tern_sim_readings(struct tern_sim *sim);
const char *tern_sim_process_name(const struct tern_sim_process *process);
bool tern_sim_crashed(const struct tern_sim_process *process);
void tern_sim_fabric_crash(struct tern_sim_process *process);
void tern_sim_fabric_break(struct tern_sim *sim);
void tern_sim_fabric_part(
	struct tern_sim_process *a, struct tern_sim_process *b, int status);

#endif
