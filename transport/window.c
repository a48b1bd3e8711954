/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: ranges of memory into which peers may write. A peer identifies a window by its
 * index in the table (entry) and a generation, never by an address; the table holds the
 * address, size and owner.
 *
 * Every use of an entry gets a new generation, so a region that a peer has kept too long
 * does not match the entry's present use. A put with an old generation may have been sent
 * just before the window was closed, which is no fault; a put with a generation that was
 * never given out is a protocol violation. tern_window_find() distinguishes the two.
 *
 * The table is allocated as a whole, so that exposing memory makes no system call; its
 * unused pages are never touched. Entries that became free last are reused first, because
 * they are probably in the cache.
 */
#include <errno.h>

#include "transport/window.h"

int tern_windows_init(struct tern_windows *windows)
{
	*windows = (struct tern_windows){0};
	windows->table = calloc(TERN_WINDOWS_MAX, sizeof(*windows->table));
	return windows->table ? 0 : -ENOMEM;
}

void tern_windows_fini(struct tern_windows *windows)
{
	free(windows->table);
}

int tern_window_expose(struct tern_windows *windows, void *owner, char *base,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	struct tern_window *window;
	uint32_t entry;

	if (windows->free) {
		entry = windows->free - 1;
		window = &windows->table[entry];
		windows->free = window->next_free;
	} else if (windows->used_count < TERN_WINDOWS_MAX) {
		entry = windows->used_count++;
		window = &windows->table[entry];
		tern_list_init(&window->landing);
	} else {
		return -EAGAIN;
	}
	window->generation++;
	window->in_use = true;
	window->access = access;
	window->owner = owner;
	window->base = base;
	window->bytes = bytes;
	*out = (struct tern_region){{entry | (uint64_t)window->generation << 32, bytes}};
	return 0;
}

struct tern_window *tern_window_withdraw(
	struct tern_windows *windows, const struct tern_region *region)
{
	uint32_t entry = (uint32_t)region->word[0];
	struct tern_window *window;

	/* The region was made by tern_window_expose() of this process, so a mismatch is a
	 * bug of this process. */
	tern_assert(entry < windows->used_count);
	window = &windows->table[entry];
	tern_assert(window->in_use && window->generation == region->word[0] >> 32);
	window->in_use = false;
	window->next_free = windows->free;
	windows->free = entry + 1;
	return window;
}

int tern_window_find(struct tern_windows *windows, void *owner, uint32_t entry,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_window **out)
{
	struct tern_window *window;

	if (entry >= windows->used_count)
		return -EPROTO;
	window = &windows->table[entry];
	if (tern_seq_before(window->generation, generation))
		return -EPROTO;
	if (generation != window->generation || !window->in_use)
		return -ESTALE;
	if (window->owner != owner || !(window->access & TERN_ACCESS_WRITE) ||
		offset > window->bytes || bytes > window->bytes - offset)
		return -EPROTO;
	*out = window;
	return 0;
}
