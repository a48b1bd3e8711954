/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: the memory that peers may write into. A peer names one by slot and generation,
 * never by address, and the table says where it is, how long, and whose.
 *
 * A generation is used once: it is counted up when a slot is exposed, so a name that a
 * peer kept too long does not match what the slot holds now. Such a put may have crossed
 * the withdrawal on the wire, which is nobody's fault, and is told apart from names that
 * were never given out, which are.
 *
 * The table is allocated whole, so that exposing costs no system call; pages of it that
 * were never used are never touched. Freed slots are used again first: they are in the
 * cache.
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
	uint32_t slot;

	if (windows->free) {
		slot = windows->free - 1;
		window = &windows->table[slot];
		windows->free = window->next_free;
	} else if (windows->used_count < TERN_WINDOWS_MAX) {
		slot = windows->used_count++;
		window = &windows->table[slot];
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
	*out = (struct tern_region){{slot | (uint64_t)window->generation << 32, bytes}};
	return 0;
}

struct tern_window *tern_window_withdraw(
	struct tern_windows *windows, const struct tern_region *region)
{
	uint32_t slot = (uint32_t)region->word[0];
	struct tern_window *window;

	/* The region is our own, from expose: anything else is a mistake of this process.
	 */
	tern_assert(slot < windows->used_count);
	window = &windows->table[slot];
	tern_assert(window->in_use && window->generation == region->word[0] >> 32);
	window->in_use = false;
	window->next_free = windows->free;
	windows->free = slot + 1;
	return window;
}

int tern_window_find(struct tern_windows *windows, void *owner, uint32_t slot,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_window **out)
{
	struct tern_window *window;

	if (slot >= windows->used_count)
		return -EPROTO;
	window = &windows->table[slot];
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
