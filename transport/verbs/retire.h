/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the module: see retire.c. Any thread. */
#ifndef TERN_TRANSPORT_VERBS_RETIRE_H
#define TERN_TRANSPORT_VERBS_RETIRE_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>

/* Destroys the id, perhaps later. It must have no queue pair any more. */
void verbs_retire_id(struct rdma_cm_id *id);
/* Destroys the event channel, after the retired ids of that channel. It must have no
 * other ids. */
void verbs_retire_channel(struct rdma_event_channel *channel);
/* True if the id was retired and is not yet destroyed. */
bool verbs_is_retired(const struct rdma_cm_id *id);

#endif
