/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can happen to a job that goes back (again.c): kinds of faults. A fault is injected when the
 * job's state allows it, and the scenario can see whether the job still recovers from it.
 */
#ifndef TERN_TESTS_SYSTEM_SIM_FAULTS_H
#define TERN_TESTS_SYSTEM_SIM_FAULTS_H

#include "tests/system/sim/job.h"

/* Each kind: its name in the enum, a short name, and what it is. */
#define FAULT_KINDS(X)                                                                   \
	X(ZERO_KILLED, "zero-killed", "server 0 is killed")                              \
	X(SERVER_KILLED, "srv-killed", "another server is killed")                       \
	X(SERVERS_KILLED, "all-killed", "all servers are killed at once")                \
	X(ZERO_ASKED, "zero-asked", "server 0 is asked to end")                          \
	X(SERVER_ASKED, "srv-asked", "another server is asked to end")                   \
	X(WORKER_KILLED, "wrk-killed", "a worker is killed, and another one is left")    \
	X(WORKERS_KILLED, "last-killed", "all workers are killed, so the last one, too") \
	X(WORKER_ASKED, "wrk-asked", "a worker is asked to end")                         \
	X(WORKERS_ASKED, "last-asked",                                                   \
		"all workers are asked to end, so the last one, too")                    \
	X(WORKER_ADDED, "wrk-added", "a worker of a number beyond the others' comes")    \
	X(WORKER_STANDS, "wrk-stands",                                                   \
		"a worker stands still, perhaps until it is lost")                       \
	X(SERVER_STANDS, "srv-stands", "a server stands still for a time")               \
	X(LINK_CUT, "link-cut", "two processes cannot reach each other for a time")      \
	X(REMOVED, "removed", "a server is removed")                                     \
	X(LOST_REMOVED, "lost-rem", "a server is killed, and then removed")              \
	X(ADDED, "added", "a server is added")                                           \
	X(DISK, "disk", "the disk of snapshots is full, or fails, for a time")           \
	X(DAMAGED, "damaged",                                                            \
		"the newest snapshot is damaged; as A also: a server is killed")         \
	X(TWICE, "twice", "a server stands still, is replaced, and wakes up")            \
	X(CLOCK, "clock", "the clock of a process jumps")

enum fault_kind {
#define X(kind, name, text) FAULT_##kind,
	FAULT_KINDS(X)
#undef X
		FAULT_COUNT,
};

extern const char *const fault_names[FAULT_COUNT], *const fault_texts[FAULT_COUNT];

struct fault {
	enum fault_kind kind;
	/* The first fault of two. A damaged snapshot is noticed only when it is read, so a server
	 * is killed besides. */
	bool first;
	bool injected;
	struct member
		*victim;   /* a server that is to be removed or added, or a worker that is
		            * added; NULL: none is */
	uint64_t step;     /* of server 0, when the fault was injected */
	uint64_t until_ns; /* end of what lasts for a time */
};

/* True if the fault can be injected before the steps have begun for the first time, and the job
 * then comes to its end. */
bool fault_is_early(enum fault_kind kind);
/* Prepares what the fault needs, during the steps: a server that is added was removed before.
 * False: that has not come about yet. Called at each instant until it returns true. */
bool fault_is_ready(struct job *j, struct fault *fault);
/* Injects the fault. False: the job's state does not allow it; to be tried again. */
bool fault_inject(struct job *j, struct fault *fault);
/* Goes on with a fault of several steps, and ends what lasts for a time. Called at each instant. */
void fault_tend(struct job *j, struct fault *fault);
/* True while the job recovers from the fault. */
bool fault_recovers(const struct job *j, const struct fault *fault);

#endif
