/* SPDX-License-Identifier: Apache-2.0 */
/* See view.h. */
#include "ps/view.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"

#define NUMBER_MAX (1u << 30) /* of views and ids */

void tern_view_of_job(const struct tern_ps_job *job, struct tern_view *out)
{
	out->number = job->view;
	out->count = job->server_count;
	out->id_count = job->view ? job->id_count : TERN_SERVERS_MAX;
	for (uint32_t i = 0; i < job->server_count; i++) {
		out->ids[i] = job->view ? job->ids[i] : i;
		memcpy(out->servers[i], job->servers[i], sizeof(out->servers[i]));
	}
}

void tern_view_set_job(const struct tern_view *view, struct tern_ps_job *job)
{
	job->view = view->number;
	job->id_count = view->id_count;
	memcpy(job->ids, view->ids, view->count * sizeof(view->ids[0]));
}

/* ---- JSON ---- */

static void write_ids(json_t *object, uint32_t number, uint32_t id_count,
	const uint32_t *ids, uint32_t count)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(list, json_integer(ids[i]));
	json_object_set_new(object, "view", json_integer(number));
	json_object_set_new(object, "id_count", json_integer(id_count));
	json_object_set_new(object, "ids", list);
}

static bool read_number(const json_t *value, uint32_t most, uint32_t *out)
{
	json_int_t n = json_integer_value(value);

	*out = (uint32_t)n;
	return json_is_integer(value) && n >= 0 && n <= most;
}

static bool is_new(const uint32_t *ids, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (ids[k] == ids[i])
			return false;
	return true;
}

static bool read_ids(const json_t *object, uint32_t count, uint32_t *number,
	uint32_t *id_count, uint32_t *ids)
{
	const json_t *list = json_object_get(object, "ids");

	if (!read_number(json_object_get(object, "view"), NUMBER_MAX, number) ||
		!read_number(json_object_get(object, "id_count"), NUMBER_MAX, id_count) ||
		*number == 0 || *id_count < TERN_SERVERS_MAX ||
		json_array_size(list) != count)
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (!read_number(json_array_get(list, i), *id_count - 1, &ids[i]) ||
			!is_new(ids, i))
			return false;
	return true;
}

void tern_view_write_job(json_t *object, const struct tern_ps_job *job)
{
	if (job->view)
		write_ids(object, job->view, job->id_count, job->ids, job->server_count);
}

bool tern_view_read_job(const json_t *object, struct tern_ps_job *job)
{
	return !json_object_get(object, "view") ||
	       read_ids(object, job->server_count, &job->view, &job->id_count, job->ids);
}

json_t *tern_view_json(const struct tern_view *view, const char *type)
{
	json_t *servers = json_array(), *message;

	for (uint32_t i = 0; i < view->count; i++)
		json_array_append_new(servers, json_string(view->servers[i]));
	message = json_pack("{s:s, s:o}", "type", type, "servers", servers);
	if (message)
		write_ids(message, view->number, view->id_count, view->ids, view->count);
	return message;
}

bool tern_view_read(const json_t *message, struct tern_view *out)
{
	const json_t *servers = json_object_get(message, "servers");
	size_t count = json_array_size(servers);

	if (count < 1 || count > TERN_SERVERS_MAX)
		return false;
	out->count = (uint32_t)count;
	for (uint32_t i = 0; i < count; i++) {
		const char *address = json_string_value(json_array_get(servers, i));

		if (!address || !*address || strlen(address) >= sizeof(out->servers[i]))
			return false;
		strcpy(out->servers[i], address);
	}
	return read_ids(message, out->count, &out->number, &out->id_count, out->ids);
}

/* ---- servers ---- */

uint32_t tern_view_find(const struct tern_view *view, uint32_t id)
{
	for (uint32_t i = 0; i < view->count; i++)
		if (view->ids[i] == id)
			return i;
	return UINT32_MAX;
}

bool tern_view_locate(
	struct tern_view *view, char (*const named)[128], uint32_t named_count)
{
	for (uint32_t i = 0; i < view->count; i++) {
		if (tern_view_is_added(view->ids[i]))
			continue;
		if (view->ids[i] >= named_count)
			return false;
		memcpy(view->servers[i], named[view->ids[i]], sizeof(view->servers[i]));
	}
	return true;
}

void tern_view_remove(struct tern_view *view, uint32_t index)
{
	uint32_t after = view->count - index - 1;

	memmove(&view->ids[index], &view->ids[index + 1], after * sizeof(view->ids[0]));
	memmove(view->servers[index], view->servers[index + 1],
		after * sizeof(view->servers[0]));
	view->count--;
}

void tern_view_add(struct tern_view *view, const char *address)
{
	view->ids[view->count] = view->id_count++;
	snprintf(view->servers[view->count], sizeof(view->servers[0]), "%s", address);
	view->count++;
}
