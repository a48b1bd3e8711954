/* SPDX-License-Identifier: Apache-2.0 */
/* See job_view.h. */
#include "tools/job_view.h"

json_t *job_view_json(const struct tern_view *view)
{
	return view->number ? tern_view_json(view, "view") : NULL;
}

void job_view_take(struct tern_view *view, const json_t *event)
{
	struct tern_view said;

	if (tern_view_read(json_object_get(event, "view"), &said) &&
		said.number >= view->number)
		*view = said;
}

bool job_view_has(const struct tern_view *view, uint32_t number)
{
	return !view->number || tern_view_find(view, number) != UINT32_MAX;
}

char *job_view_text(const struct tern_view *view, uint32_t number)
{
	json_t *json = job_view_has(view, number) ? job_view_json(view) : NULL;
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;

	json_decref(json);
	return text;
}

int job_view_parse(const char *text, void *at, struct message *why)
{
	json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	bool good = tern_view_read(json, at);

	json_decref(json);
	return good ? 0
		    : options_refuse(why, "expected the list that a server says with its "
					  "event begun");
}

int job_view_check(const struct tern_view *view, uint32_t number, bool goes_back,
	struct message *error)
{
	if (!job_view_has(view, number))
		return options_refuse(error,
			"--view: the list does not have server %u (--index)", number);
	if (view->number && !goes_back)
		return options_refuse(error, "--view: needs --snapshots or "
					     "--snapshots-via, and a --server-wait "
					     "above 0, and does not go with --follow");
	return 0;
}
