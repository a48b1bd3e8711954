/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator: processes, network, disks and time of a small world, in one thread and
 * determined by one seed. The code under test is the real one; only struct tern_env and
 * the fabric are simulated. Two runs with one seed are identical, which tern_sim_hash()
 * shows.
 *
 * The world has a queue of events in virtual time. tern_sim_run() takes the next event
 * (or the next timer of a context), sets the clock to its time, and lets the contexts
 * concerned make progress until they have nothing to do.
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
	uint32_t caps;   /* TERN_CAP_* of every conn of the fabric sim; 0: TERN_CAP_PUT */
	uint32_t caps_b; /* the same for the fabric sim-b */
	uint64_t delay_min_ns,
		delay_max_ns; /* bounds of every delay; 0: 1 us and 50 us */
	uint64_t chunk_bytes; /* largest piece of a put; 0: 4 KiB */
	uint32_t eager_bytes; /* 0: 1 KiB */
	uint64_t bulk_bytes; /* bulk_bytes of the fabric sim; 0: puts delay no messages */
	/* Share of sends, puts, gets and exposures that return -EAGAIN. */
	unsigned eagain_permille;
	unsigned refuse_permille; /* share of connects that are refused */
	unsigned slow_permille; /* share of connects that take a hundred times as long */
	unsigned file_fail_permille;
	const void *cuda_api; /* tern_domain_hooks.cuda_api of every process */
	/* Receives log lines, with time and process; NULL: they are dropped. */
	void (*log)(const char *line);
};

struct tern_sim *tern_sim_new(const struct tern_sim_opts *opts);
/* Frees the world. Its processes must have been freed. */
void tern_sim_free(struct tern_sim *sim);

/* Makes a process: an environment and a domain for it. The name appears in logs. */
struct tern_sim_process *tern_sim_process_new(struct tern_sim *sim, const char *name);
struct tern_env *tern_sim_env(struct tern_sim_process *process);
struct tern_domain *tern_sim_domain(struct tern_sim_process *process);
/* Lets the world drive a context of the process, until tern_sim_forget(). */
void tern_sim_drive(struct tern_sim_process *process, struct tern_context *ctx);
void tern_sim_forget(struct tern_sim_process *process, struct tern_context *ctx);
/* Frees a process. Its contexts, pools and other objects must have been freed. */
void tern_sim_process_free(struct tern_sim_process *process);

/* Runs the world until until(arg) is true: 0; or until limit_ns of virtual time have
 * passed: -ETIMEDOUT. */
int tern_sim_run(
	struct tern_sim *sim, bool (*until)(void *arg), void *arg, uint64_t limit_ns);

uint64_t tern_sim_now_ns(const struct tern_sim *sim);
struct tern_rng *tern_sim_rng(struct tern_sim *sim);
/* Hash of everything that has happened. */
uint64_t tern_sim_hash(const struct tern_sim *sim);

/* Cuts a connection that the seed chooses. Data in flight may or may not arrive, and
 * bytes may still land until the side concerned learns of the end. False: there is no
 * connection. */
bool tern_sim_cut(struct tern_sim *sim);
/* Separates two processes for for_ns: their connections end with `status` at both
 * ends, and new ones fail. Up to 8 pairs at a time. */
void tern_sim_part(struct tern_sim_process *a, struct tern_sim_process *b,
	uint64_t for_ns, int status);
/* Breaks or mends the fabric sim: while it is broken its connections end and no new
 * one can be made. sim-b, which is the same otherwise, keeps working. */
void tern_sim_break(struct tern_sim *sim, bool broken);
/* Ends the process at once, as a crash does; its peers learn of it later. Its contexts
 * are no longer driven and can be freed. */
void tern_sim_crash(struct tern_sim_process *process);
/* Stops the process for for_ns, as SIGSTOP does. */
void tern_sim_stall(struct tern_sim_process *process, uint64_t for_ns);

/* Writes a file of the world's one file system. The bytes are copied. */
int tern_sim_file_put(
	struct tern_sim *sim, const char *path, const void *data, size_t bytes);
/* Reads a file. NULL: there is none. Valid until the file is written again. */
const void *tern_sim_file_get(struct tern_sim *sim, const char *path, size_t *bytes);

/* ---- between sim.c and fabric.c ---- */

/* An event at a point of virtual time. The callback runs between turns of the
 * processes. */
struct tern_sim_event {
	void (*happen)(struct tern_sim_event *event);
	uint64_t at_ns, order;
	uint32_t place; /* index in the heap + 1; 0: not in it */
};

void tern_sim_at(struct tern_sim *sim, struct tern_sim_event *event, uint64_t at_ns);
uint64_t tern_sim_delay(struct tern_sim *sim); /* a random delay */
bool tern_sim_dice(struct tern_sim *sim, unsigned permille);
void tern_sim_trace(struct tern_sim *sim, uint64_t what);
const struct tern_sim_opts *tern_sim_opts(const struct tern_sim *sim);
/* Marks the process as having work: it runs before the clock moves on. */
void tern_sim_rouse(struct tern_sim_process *process);
struct tern_sim *tern_sim_of(struct tern_sim_process *process);
bool tern_sim_broken(const struct tern_sim *sim);
bool tern_sim_parted(const struct tern_sim_process *a, const struct tern_sim_process *b);
struct tern_list *tern_sim_lsns(struct tern_sim *sim);
struct tern_list *tern_sim_conns(struct tern_sim *sim);
const char *tern_sim_process_name(const struct tern_sim_process *process);
bool tern_sim_crashed(const struct tern_sim_process *process);
void tern_sim_fabric_crash(struct tern_sim_process *process);
void tern_sim_fabric_break(struct tern_sim *sim);
void tern_sim_fabric_part(
	struct tern_sim_process *a, struct tern_sim_process *b, int status);

#endif
