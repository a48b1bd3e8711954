/* SPDX-License-Identifier: Apache-2.0 */
/* See view.h. */
#include "ps/view.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"

#define VIEWS_MAX (1u << 30)

void tern_view_of_job(const struct tern_ps_job *job, struct tern_view *out)
{
	out->number = job->view;
	out->count = job->server_count;
	out->workers = job->workers;
	for (uint32_t i = 0; i < job->server_count; i++) {
		out->numbers[i] = tern_view_number(job, i);
		out->added[i] = job->view && job->added[i];
		memcpy(out->servers[i], job->servers[i], sizeof(out->servers[i]));
	}
}

void tern_view_set_job(const struct tern_view *view, struct tern_ps_job *job)
{
	job->view = view->number;
	if (view->number)
		job->workers = view->workers;
	memcpy(job->numbers, view->numbers, view->count * sizeof(view->numbers[0]));
	memcpy(job->added, view->added, view->count * sizeof(view->added[0]));
}

/* ---- JSON ---- */

static void write_servers(json_t *object, uint32_t view, const uint32_t *numbers,
	const bool *added, uint32_t count)
{
	json_t *all = json_array(), *new = json_array();

	for (uint32_t i = 0; i < count; i++) {
		json_array_append_new(all, json_integer(numbers[i]));
		json_array_append_new(new, json_boolean(added[i]));
	}
	json_object_set_new(object, "view", json_integer(view));
	json_object_set_new(object, "numbers", all);
	json_object_set_new(object, "added", new);
}

static bool read_number(const json_t *value, uint32_t most, uint32_t *out)
{
	json_int_t n = json_integer_value(value);

	*out = (uint32_t)n;
	return json_is_integer(value) && n >= 0 && n <= most;
}

static bool read_servers(const json_t *object, uint32_t count, uint32_t *view,
	uint32_t *numbers, bool *added)
{
	const json_t *all = json_object_get(object, "numbers");
	const json_t *new = json_object_get(object, "added");
	bool seen[TERN_SERVERS_MAX] = {false};

	if (!read_number(json_object_get(object, "view"), VIEWS_MAX, view) ||
		*view == 0 || json_array_size(all) != count ||
		json_array_size(new) != count)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		const json_t *is_new = json_array_get(new, i);

		if (!read_number(
			    json_array_get(all, i), TERN_SERVERS_MAX - 1, &numbers[i]) ||
			seen[numbers[i]] || !json_is_boolean(is_new))
			return false;
		seen[numbers[i]] = true;
		added[i] = json_is_true(is_new);
	}
	return numbers[0] == 0;
}

void tern_view_write_job(json_t *object, const struct tern_ps_job *job)
{
	if (job->view)
		write_servers(
			object, job->view, job->numbers, job->added, job->server_count);
}

bool tern_view_read_job(const json_t *object, struct tern_ps_job *job)
{
	return !json_object_get(object, "view") ||
	       read_servers(
		       object, job->server_count, &job->view, job->numbers, job->added);
}

json_t *tern_view_json(const struct tern_view *view, const char *type)
{
	json_t *servers = json_array(), *message;

	for (uint32_t i = 0; i < view->count; i++)
		json_array_append_new(servers, json_string(view->servers[i]));
	message = json_pack("{s:s, s:o}", "type", type, "servers", servers);
	if (!message)
		return NULL;
	write_servers(message, view->number, view->numbers, view->added, view->count);
	json_object_set_new(message, "workers", json_integer(view->workers));
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
	return read_number(json_object_get(message, "workers"), TERN_WORKERS_MAX,
		       &out->workers) &&
	       out->workers > 0 &&
	       read_servers(message, out->count, &out->number, out->numbers, out->added);
}

/* ---- servers ---- */

uint32_t tern_view_find(const struct tern_view *view, uint32_t number)
{
	for (uint32_t i = 0; i < view->count; i++)
		if (view->numbers[i] == number)
			return i;
	return UINT32_MAX;
}

bool tern_view_has_servers_of(const struct tern_view *view, const struct tern_ps_job *job)
{
	bool same = view->count == job->server_count;

	for (uint32_t i = 0; same && i < view->count; i++)
		same = view->numbers[i] == tern_view_number(job, i) &&
		       view->added[i] == (job->view && job->added[i]);
	return same;
}

static bool is_named(const char *address, char (*const named)[128], uint32_t named_count)
{
	for (uint32_t i = 0; i < named_count; i++)
		if (strcmp(address, named[i]) == 0)
			return true;
	return false;
}

bool tern_view_locate(
	struct tern_view *view, char (*const named)[128], uint32_t named_count)
{
	for (uint32_t i = 0; i < view->count; i++) {
		if (view->added[i] || is_named(view->servers[i], named, named_count))
			continue;
		if (view->numbers[i] < named_count)
			memcpy(view->servers[i], named[view->numbers[i]],
				sizeof(view->servers[i]));
		else if (!*view->servers[i])
			return false;
	}
	return true;
}

void tern_view_remove(struct tern_view *view, uint32_t index)
{
	view->count--;
	for (uint32_t i = index; i < view->count; i++) {
		view->numbers[i] = view->numbers[i + 1];
		view->added[i] = view->added[i + 1];
		memcpy(view->servers[i], view->servers[i + 1], sizeof(view->servers[i]));
	}
}

void tern_view_add(struct tern_view *view, uint32_t number, const char *address)
{
	uint32_t i = view->count++;

	view->numbers[i] = number;
	view->added[i] = true;
	snprintf(view->servers[i], sizeof(view->servers[i]), "%s", address);
}
