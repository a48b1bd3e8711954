/* SPDX-License-Identifier: Apache-2.0 */
/* Rails: further connections of a session, which carry puts (RDMA writes) and the
 * messages by which these are confirmed. */
#ifndef TERN_RENDEZVOUS_RAIL_H
#define TERN_RENDEZVOUS_RAIL_H

#include "rendezvous/xfer.h"

/* The bit of a rail in the bit sets of struct tern_xfer. */
static inline uint32_t tern_rail_bit(unsigned rail)
{
	return 1u << rail;
}

/* Functions that rail.c defines: */
void tern_rails_dial(struct tern_peer *peer);
bool tern_rail_welcome(struct tern_peer *peer, const struct tern_link *link);
void tern_rail_up(struct tern_link *link);
bool tern_rails_closed(const struct tern_peer *peer);
void tern_rails_close(struct tern_peer *peer);
/* True if a tensor of this size is bulk: it goes over rails only, if any is up. */
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
void tern_rail_failed(struct tern_peer *peer);
int tern_rails_settle(struct tern_xfer *x);
int tern_rail_message(struct tern_link *link, const void *message, size_t bytes);
void tern_rail_writable(struct tern_link *link);

#endif
