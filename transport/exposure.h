/* SPDX-License-Identifier: Apache-2.0 */
/* Exposures: ranges of memory into which peers may write by puts that this process checks
 * and carries out itself (see exposure.c). */
#ifndef TERN_TRANSPORT_EXPOSURE_H
#define TERN_TRANSPORT_EXPOSURE_H

#include "base/list.h"
#include "transport/fabric.h"

#define TERN_EXPOSURES_MAX 65536u

struct tern_exposure {
	/* Generation of the entry's current or last use; 0: never used. */
	uint32_t generation;
	bool in_use;
	enum tern_access access;
	uint32_t next_free; /* next free entry of the table, as index + 1; 0: none */
	void *owner;
	char *base;
	uint64_t bytes;
	/* For a fabric whose puts arrive in pieces; empty otherwise. The connections that
	 * are receiving a put into this exposure now: list of struct tcp_rx
	 * (transport/tcp/tcp.h), by their node `landing`. */
	struct tern_list landing;
};

struct tern_exposures {
	struct tern_exposure *table;
	/* Entries with an index below this have been used at least once. */
	uint32_t used_count;
	uint32_t free; /* first free entry + 1; 0: none */
};

int tern_exposures_init(struct tern_exposures *exposures);
void tern_exposures_fini(struct tern_exposures *exposures);

/* Exposes the `bytes` bytes at `base` to connections with this `owner`. *out is the region
 * to send to the peer (verbs sends its own, with this word[0]); word[0] has what
 * tern_exposure_find() takes: the generation, shifted left by 32 bits, and the entry.
 * -EAGAIN: all entries are in use. */
int tern_exposure_add(struct tern_exposures *exposures, void *owner, char *base,
	uint64_t bytes, enum tern_access access, struct tern_region *out);

/* Ends an exposure. The caller must immediately stop the puts of the connections in the
 * returned exposure's list `landing`, and empty that list. */
struct tern_exposure *tern_exposure_withdraw(
	struct tern_exposures *exposures, const struct tern_region *region);

/* Finds the exposure in which a connection of `owner` may write `bytes` at `offset`.
 * -ESTALE: the exposure was ended meanwhile; -EPROTO: it never existed, belongs to
 * another owner, is read-only, or is too short. */
int tern_exposure_find(struct tern_exposures *exposures, void *owner, uint32_t entry,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_exposure **out);

#endif
