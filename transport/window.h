/* SPDX-License-Identifier: Apache-2.0 */
/* The table of memory that peers may write into by messages: see window.c. */
#ifndef TERN_TRANSPORT_WINDOW_H
#define TERN_TRANSPORT_WINDOW_H

#include "base/list.h"
#include "transport/fabric.h"

#define TERN_WINDOWS_MAX 65536u

struct tern_window {
	uint32_t generation; /* of its present or last use; 0: never used */
	bool in_use;
	enum tern_access access;
	uint32_t next_free; /* entry + 1; 0: none */
	void *owner;
	char *base;
	uint64_t bytes;
	struct tern_list landing; /* connections with a put into this window under way */
};

struct tern_windows {
	struct tern_window *table;
	uint32_t used_count; /* entries below this one have been used at least once */
	uint32_t free;       /* first free entry + 1; 0: none */
};

int tern_windows_init(struct tern_windows *windows);
void tern_windows_fini(struct tern_windows *windows);

/* Opens a window on `bytes` bytes at `base`. -EAGAIN: all entries are in use. */
int tern_window_expose(struct tern_windows *windows, void *owner, char *base,
	uint64_t bytes, enum tern_access access, struct tern_region *out);

/* Ends the use of a window. Returns the window because of its `landing` list, which
 * the caller must empty at once. */
struct tern_window *tern_window_withdraw(
	struct tern_windows *windows, const struct tern_region *region);

/* Finds the window in which a connection of `owner` may write `bytes` at `offset`.
 * -ESTALE: it was withdrawn; -EPROTO: it never existed, belongs to another owner, is
 * read-only, or is too short. */
int tern_window_find(struct tern_windows *windows, void *owner, uint32_t entry,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_window **out);

#endif
