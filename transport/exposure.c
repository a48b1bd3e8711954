/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exposures: ranges of memory into which peers may write. A peer identifies an exposure
 * by its index in the table (entry) and a generation, never by an address; the table
 * holds the address, size and owner.
 *
 * Every use of an entry gets a new generation, so a region that a peer has kept too long
 * does not match the entry's present use. A put with an old generation may have been sent
 * just before the exposure was ended, which is no fault; a put with a generation that was
 * never given out is a protocol violation. tern_exposure_find() distinguishes the two.
 *
 * The table is allocated as a whole, so that exposing memory makes no system call; its
 * unused pages are never touched. Entries that became free last are reused first, because
 * they are probably in the cache.
 */
#include <errno.h>

#include "transport/exposure.h"

int tern_exposures_init(struct tern_exposures *exposures)
{
	*exposures = (struct tern_exposures){0};
	exposures->table = calloc(TERN_EXPOSURES_MAX, sizeof(*exposures->table));
	return exposures->table ? 0 : -ENOMEM;
}

void tern_exposures_fini(struct tern_exposures *exposures)
{
	free(exposures->table);
}

int tern_exposure_add(struct tern_exposures *exposures, void *owner, char *base,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	struct tern_exposure *exposure;
	uint32_t entry;

	if (exposures->free) {
		entry = exposures->free - 1;
		exposure = &exposures->table[entry];
		exposures->free = exposure->next_free;
	} else if (exposures->used_count < TERN_EXPOSURES_MAX) {
		entry = exposures->used_count++;
		exposure = &exposures->table[entry];
		tern_list_init(&exposure->landing);
	} else {
		return -EAGAIN;
	}
	exposure->generation++;
	exposure->in_use = true;
	exposure->access = access;
	exposure->owner = owner;
	exposure->base = base;
	exposure->bytes = bytes;
	*out = (struct tern_region){
		{entry | (uint64_t)exposure->generation << 32, bytes}};
	return 0;
}

struct tern_exposure *tern_exposure_withdraw(
	struct tern_exposures *exposures, const struct tern_region *region)
{
	uint32_t entry = (uint32_t)region->word[0];
	struct tern_exposure *exposure;

	/* The region was made by tern_exposure_add() of this process, so a mismatch is a
	 * bug of this process. */
	tern_assert(entry < exposures->used_count);
	exposure = &exposures->table[entry];
	tern_assert(exposure->in_use && exposure->generation == region->word[0] >> 32);
	exposure->in_use = false;
	exposure->next_free = exposures->free;
	exposures->free = entry + 1;
	return exposure;
}

int tern_exposure_find(struct tern_exposures *exposures, void *owner, uint32_t entry,
	uint32_t generation, uint64_t offset, uint64_t bytes, struct tern_exposure **out)
{
	struct tern_exposure *exposure;

	if (entry >= exposures->used_count)
		return -EPROTO;
	exposure = &exposures->table[entry];
	if (tern_seq_before(exposure->generation, generation))
		return -EPROTO;
	if (generation != exposure->generation || !exposure->in_use)
		return -ESTALE;
	if (exposure->owner != owner || !(exposure->access & TERN_ACCESS_WRITE) ||
		offset > exposure->bytes || bytes > exposure->bytes - offset)
		return -EPROTO;
	*out = exposure;
	return 0;
}
