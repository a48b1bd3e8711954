/* SPDX-License-Identifier: Apache-2.0 */
/* See omitted.h. */
#include "ps/omitted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define ROOM_FIRST 16u

/* The older one first. */
static bool is_before(struct tern_omitted_slot a, struct tern_omitted_slot b)
{
	return a.step != b.step ? a.step < b.step : a.slot < b.slot;
}

static int make_room(struct tern_omitted *list)
{
	uint32_t room = list->room ? 2 * list->room : ROOM_FIRST;
	struct tern_omitted_slot *slots;

	if (list->count < list->room)
		return 0;
	slots = realloc(list->slots, room * sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	list->slots = slots;
	list->room = room;
	return 0;
}

int tern_omitted_add(struct tern_omitted *list, struct tern_omitted_slot slot)
{
	uint32_t at = list->count;
	int r;

	while (at > 0 && is_before(slot, list->slots[at - 1]))
		at--;
	if (at > 0 && !is_before(list->slots[at - 1], slot))
		return 0;
	if (list->count == TERN_OMITTED_MAX)
		return -E2BIG;
	r = make_room(list);
	if (r < 0)
		return r;
	memmove(&list->slots[at + 1], &list->slots[at],
		(list->count - at) * sizeof(*list->slots));
	list->slots[at] = slot;
	list->count++;
	return 1;
}

json_t *tern_omitted_json(const struct tern_omitted *list, uint64_t last)
{
	json_t *json = NULL;

	for (uint32_t i = 0; i < list->count && list->slots[i].step <= last; i++) {
		if (!json)
			json = json_array();
		json_array_append_new(
			json, json_pack("[I, I]", (json_int_t)list->slots[i].step,
				      (json_int_t)list->slots[i].slot));
	}
	return json;
}

int tern_omitted_read(
	struct tern_omitted *list, const json_t *json, uint64_t last, uint32_t slots)
{
	int r = json && !json_is_array(json) ? -EINVAL : 0;

	for (size_t i = 0; r >= 0 && i < json_array_size(json); i++) {
		json_int_t step = 0, slot = 0;

		if (json_unpack(json_array_get(json, i), "[I, I!]", &step, &slot) < 0 ||
			step < 1 || (uint64_t)step > last || slot < 0 || slot >= slots)
			return -EINVAL;
		r = tern_omitted_add(
			list, (struct tern_omitted_slot){(uint64_t)step, (uint32_t)slot});
	}
	return TERN_MIN(r, 0);
}

void tern_omitted_fini(struct tern_omitted *list)
{
	free(list->slots);
	*list = (struct tern_omitted){0};
}
