/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of snapshots in async mode: each has, in all chunks on all servers, the gradients of the
 * same steps of each worker. The job's parameters count them (ledger.h). */
#ifndef TERN_TESTS_SYSTEM_SIM_CUTS_H
#define TERN_TESTS_SYSTEM_SIM_CUTS_H

#include "tests/system/sim/job.h"

/* Checks the snapshot with this manifest. If no worker was lost, no step of it is torn. */
void cuts_check(struct job *j, const char *manifest);
/* A live worker of whose step some chunks have the gradient, and others do not. NULL: there is none. */
struct member *cuts_find_torn(struct job *j);

#endif
