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
	uint32_t next_free; /* slot + 1; 0: none */
	void *owner;
	char *base;
	uint64_t bytes;
	struct tern_list landing; /* conns in the middle of a put into it */
};

struct tern_windows {
	struct tern_window *table;
	uint32_t used_count; /* slots below were used at least once */
	uint32_t free;       /* slot + 1; 0: none */
};

int tern_windows_init(struct tern_windows *windows);
void tern_windows_fini(struct tern_windows *windows);

/* -EAGAIN: all in use. */
int tern_window_expose(struct tern_windows *windows, void *owner, char *base,
	uint64_t bytes, enum tern_access access, struct tern_region *out);

/* Ends the use. The window, for its `landing` list, which the caller empties at once. */
struct tern_window *tern_window_withdraw(
	struct tern_windows *windows, const struct tern_region *region);

/* The window that `owner`'s conn may write at (offset, bytes). -ESTALE: it was withdrawn;
 * -EPROTO: it never was, is not the owner's, is not for writing, or ends before. */
int tern_window_find(struct tern_windows *windows, void *owner, uint32_t slot,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_window **out);

#endif
