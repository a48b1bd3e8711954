/* SPDX-License-Identifier: Apache-2.0 */
/* Destroying librdmacm ids in the background (see retire.c), only for the module
 * tern-verbs.so. Any thread may call these functions. */
#ifndef TERN_TRANSPORT_VERBS_RETIRE_H
#define TERN_TRANSPORT_VERBS_RETIRE_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>

/* Destroys the id later, on a background thread; without memory or a thread at once,
 * which may block. The id must have no queue pair any more. */
void verbs_retire_id(struct rdma_cm_id *id);
/* Destroys the event channel, after the retired ids of this channel. It must have no
 * other ids. */
void verbs_retire_channel(struct rdma_event_channel *channel);
/* True if the id was passed to verbs_retire_id() and is not destroyed yet: its events
 * must be ignored. */
bool verbs_is_retired(const struct rdma_cm_id *id);

#endif
