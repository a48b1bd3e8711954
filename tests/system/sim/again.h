/* SPDX-License-Identifier: Apache-2.0 */
/* The state of jobs that go back (again.c), for scenarios that choose who is lost when. */
#ifndef TERN_TESTS_SYSTEM_SIM_AGAIN_H
#define TERN_TESTS_SYSTEM_SIM_AGAIN_H

#include "tests/system/sim/job.h"

bool job_is_server(const struct job *j, const struct member *m);
/* True if the results are safe, and nobody who is made anew is needed. */
bool job_is_complete(const struct job *j);
/* True if the process is gone: it has crashed, or was asked to end, or the job goes on without it. */
bool job_is_lost(const struct member *m);
/* The newest view of the servers that a process knows; NULL: the first. */
const struct tern_view *job_view(const struct job *j);
/* True if the member is a server that the newest view does not have. */
bool job_is_removed(const struct job *j, const struct member *m);
/* A user lets server 0 remove a server, which may be lost. False: not now, as server 0 refuses, or the
 * server may be the only one that knows where a third one is. */
bool job_remove(struct job *j, unsigned number);
/* A user starts a worker of the next number that no worker of the job has had, as the first ones were
 * started. NULL: there is no room for it. */
struct member *job_add_next_worker(struct job *j);
/* Another process has taken the place of server i: `now`, which is copied. The former one is put aside. */
void job_replace_server(struct job *j, unsigned i, const struct member *now);
/* Makes the simulator call job_disturb() at that time. */
void job_call_at(struct job *j, uint64_t at_ns);

#endif
