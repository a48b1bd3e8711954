/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator: processes, network, disks and time of a small world, all in one thread
 * and all from one seed. The code under test is the real one; only struct tern_env and
 * the fabric are the simulator's. Two runs of a seed do the same, which tern_sim_hash()
 * shows.
 *
 * The world has a queue of events in virtual time. tern_sim_run() takes the next one (or
 * the next timer of a context), moves the clock there, and lets the contexts concerned
 * make progress until they have nothing to do.
 */
#ifndef TERN_TRANSPORT_SIM_H
#define TERN_TRANSPORT_SIM_H

#include "base/env.h"
#include "base/rng.h"
#include "transport/fabric.h"

struct tern_context;
struct tern_sim;
struct tern_sim_process;

struct tern_sim_opts {
	uint64_t seed;
	uint32_t caps;   /* of every conn of the fabric sim; 0: TERN_CAP_PUT */
	uint32_t caps_b; /* of sim-b; 0: TERN_CAP_PUT */
	uint64_t delay_min_ns,
		delay_max_ns;     /* of everything that takes time; 0: 1 us, 50 us */
	uint64_t chunk_bytes;     /* 0: 4 KiB */
	uint32_t eager_bytes;     /* 0: 1 KiB */
	uint64_t bulk_bytes;      /* of the fabric sim; 0: puts hold up no messages */
	unsigned eagain_permille; /* of sends, puts, gets, exposures */
	unsigned refuse_permille; /* of connects */
	unsigned slow_permille;   /* of connects: take a hundred times as long */
	unsigned file_fail_permille;
	const void *cuda_api; /* tern_domain_hooks.cuda_api of every process */
	/* Where log lines go, with time and process; NULL: nowhere. */
	void (*log)(const char *line);
};

struct tern_sim *tern_sim_new(const struct tern_sim_opts *opts);
/* Processes must be freed. */
void tern_sim_free(struct tern_sim *sim);

/* A process: an environment and a domain for it. The name is for logs. */
struct tern_sim_process *tern_sim_process_new(struct tern_sim *sim, const char *name);
struct tern_env *tern_sim_env(struct tern_sim_process *process);
struct tern_domain *tern_sim_domain(struct tern_sim_process *process);
/* A context of it, to be driven by the world until tern_sim_forget. */
void tern_sim_drive(struct tern_sim_process *process, struct tern_context *ctx);
void tern_sim_forget(struct tern_sim_process *process, struct tern_context *ctx);
/* Contexts, pools and whatever else lives in it must be gone. */
void tern_sim_process_free(struct tern_sim_process *process);

/* Until `until` holds: 0; or until limit_ns of virtual time have passed: -ETIMEDOUT. */
int tern_sim_run(
	struct tern_sim *sim, bool (*until)(void *arg), void *arg, uint64_t limit_ns);

uint64_t tern_sim_now_ns(const struct tern_sim *sim);
struct tern_rng *tern_sim_rng(struct tern_sim *sim);
/* Of everything that has happened. */
uint64_t tern_sim_hash(const struct tern_sim *sim);

/* Cuts a connection chosen by the seed: what is in flight may or may not have happened,
 * and bytes may still land until the side concerned hears of it. False: there is none. */
bool tern_sim_cut(struct tern_sim *sim);
/* For so long nothing passes between the two: their connections end with `status` at both
 * ends, and none is made. Up to 8 pairs at a time. */
void tern_sim_part(struct tern_sim_process *a, struct tern_sim_process *b,
	uint64_t for_ns, int status);
/* The fabric sim carries nothing any more, or again: its connections end, and nobody can
 * connect over it. sim-b, which is all the same otherwise, goes on. */
void tern_sim_break(struct tern_sim *sim, bool broken);
/* The process is gone this instant; its peers hear of it later. Its contexts are no
 * longer driven, and can be freed. */
void tern_sim_crash(struct tern_sim_process *process);
/* It does nothing for so long (SIGSTOP), and then goes on. */
void tern_sim_stall(struct tern_sim_process *process, uint64_t for_ns);

/* The world's one file system. The bytes are copied. */
int tern_sim_file_put(
	struct tern_sim *sim, const char *path, const void *data, size_t bytes);
/* NULL: there is none. Valid until the file is written again. */
const void *tern_sim_file_get(struct tern_sim *sim, const char *path, size_t *bytes);

/* ---- between sim.c and sim_fabric.c ---- */

/* Something that will happen. The callback runs between turns of the processes. */
struct tern_sim_event {
	void (*happen)(struct tern_sim_event *event);
	uint64_t at_ns, order;
	uint32_t slot; /* in the heap + 1; 0: not in it */
};

void tern_sim_at(struct tern_sim *sim, struct tern_sim_event *event, uint64_t at_ns);
uint64_t tern_sim_delay(struct tern_sim *sim); /* a random one */
bool tern_sim_dice(struct tern_sim *sim, unsigned permille);
void tern_sim_trace(struct tern_sim *sim, uint64_t what);
const struct tern_sim_opts *tern_sim_opts(const struct tern_sim *sim);
/* The process has something to do: its turn comes before the clock moves on. */
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
