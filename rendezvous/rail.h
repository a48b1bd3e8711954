/* SPDX-License-Identifier: Apache-2.0 */
/* Rails: further connections of a session, which carry only puts (RDMA writes). */
#ifndef TERN_RENDEZVOUS_RAIL_H
#define TERN_RENDEZVOUS_RAIL_H

#include "rendezvous/xfer.h"

/* Functions that rail.c defines: */
void tern_rails_dial(struct tern_peer *peer);
bool tern_rail_welcome(struct tern_peer *peer, const struct tern_link *link);
void tern_rail_up(struct tern_link *link);
bool tern_rails_closed(const struct tern_peer *peer);
void tern_rails_close(struct tern_peer *peer);
/* True if a tensor of this size is bulk: it goes over rails only, if there are any. */
static inline bool tern_is_bulk(const struct tern_peer *peer, uint64_t bytes)
{
	return peer->rails.bulk_bytes && bytes >= peer->rails.bulk_bytes;
}
void tern_rails_make(struct tern_peer *peer);
/* Called before a tensor of this size is sent or received, so that rails are made for the
 * first bulk tensor. */
static inline void tern_rails_expect(struct tern_peer *peer, uint64_t bytes)
{
	if (tern_is_bulk(peer, bytes) && !peer->rails.bulk)
		tern_rails_make(peer);
}
/* True if the tensor of x is bulk and goes over rails only, since a rail is up. */
bool tern_rail_is_apart(const struct tern_xfer *x);
void tern_rail_failed(struct tern_peer *peer);
/* Returns a free put operation for the next chunk, and the connection to use. NULL: no
 * connection has room. */
struct tern_put_op *tern_rail_next(struct tern_xfer *x, struct tern_conn **conn);
int tern_rails_settle(struct tern_xfer *x);
int tern_rail_message(struct tern_link *link, const void *message, size_t bytes);
void tern_rail_writable(struct tern_link *link);

#endif
