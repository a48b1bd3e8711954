/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: ranges of memory into which peers may write by puts that this process checks
 * and carries out itself (see window.c). */
#ifndef TERN_TRANSPORT_WINDOW_H
#define TERN_TRANSPORT_WINDOW_H

#include "base/list.h"
#include "transport/fabric.h"

#define TERN_WINDOWS_MAX 65536u

struct tern_window {
	/* Generation of the entry's current or last use; 0: never used. */
	uint32_t generation;
	bool in_use;
	enum tern_access access;
	uint32_t next_free; /* next free entry of the table, as index + 1; 0: none */
	void *owner;
	char *base;
	uint64_t bytes;
	/* For a fabric whose puts arrive in pieces; empty otherwise. The connections that
	 * are receiving a put into this window now: list of struct tcp_rx
	 * (transport/tcp/tcp.h), by their node `landing`. */
	struct tern_list landing;
};

struct tern_windows {
	struct tern_window *table;
	/* Entries with an index below this have been used at least once. */
	uint32_t used_count;
	uint32_t free; /* first free entry + 1; 0: none */
};

int tern_windows_init(struct tern_windows *windows);
void tern_windows_fini(struct tern_windows *windows);

/* Opens a window on the `bytes` bytes at `base`, for connections with this `owner`. *out
 * is the region to send to the peer (verbs sends its own, with this word[0]); word[0] has
 * what tern_window_find() takes: the generation, shifted left by 32 bits, and the entry.
 * -EAGAIN: all entries are in use. */
int tern_window_expose(struct tern_windows *windows, void *owner, char *base,
	uint64_t bytes, enum tern_access access, struct tern_region *out);

/* Closes a window. The caller must immediately stop the puts of the connections in the
 * returned window's list `landing`, and empty that list. */
struct tern_window *tern_window_withdraw(
	struct tern_windows *windows, const struct tern_region *region);

/* Finds the window in which a connection of `owner` may write `bytes` at `offset`.
 * -ESTALE: the window was closed meanwhile; -EPROTO: it never existed, belongs to another
 * owner, is read-only, or is too short. */
int tern_window_find(struct tern_windows *windows, void *owner, uint32_t entry,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_window **out);

#endif
