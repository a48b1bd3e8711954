/* SPDX-License-Identifier: Apache-2.0 */
/* The module's own: see verbs_retire.c. Any thread. */
#ifndef TERN_TRANSPORT_VERBS_RETIRE_H
#define TERN_TRANSPORT_VERBS_RETIRE_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>

/* Destroys it, perhaps later. It has no queue pair any more. */
void verbs_retire_id(struct rdma_cm_id *id);
/* Destroys it, perhaps behind ids of its that were retired. It has no other ids. */
void verbs_retire_channel(struct rdma_event_channel *channel);
/* Whether it was retired and is not yet destroyed. */
bool verbs_is_retired(const struct rdma_cm_id *id);

#endif
