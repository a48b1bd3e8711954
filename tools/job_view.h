/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a job's servers and workers (ps/view.h) as a launcher keeps it. A server says its newest list
 * with the event "begun", and the launcher gives it to each server that it starts again (--view). If all
 * processes of the job are lost at once, their options name the servers with which the job began, and so only
 * the launcher knows which servers the job has. Workers need no such option: a server tells them the list when
 * they join.
 */
#ifndef TERN_TOOLS_JOB_VIEW_H
#define TERN_TOOLS_JOB_VIEW_H

#include <jansson.h>

#include "ps/view.h"
#include "tools/options.h"

#define JOB_VIEW_OPTION(settings, field)                                                 \
	OPTION(CUSTOM, "view", "JSON",                                                   \
		"the newest list of the job's servers, which the server knows from its " \
		"start; tern train and tern run give it to a server that they start "    \
		"again",                                                                 \
		settings, field, .parse = job_view_parse)

/* The list as JSON, for the event "begun"; NULL: it is the list that users have named, or there is no
 * memory. */
json_t *job_view_json(const struct tern_view *view);

/* Takes the list of an event "begun", unless the launcher knows a newer one or the event has none. */
void job_view_take(struct tern_view *view, const json_t *event);

/* The value of --view for server `number`, which the caller frees. NULL: no list is known, or it does not have
 * this server, or there is no memory. */
char *job_view_text(const struct tern_view *view, uint32_t number);

/* True if the launcher's list has this server, or no list is known. */
bool job_view_has(const struct tern_view *view, uint32_t number);

/* Parses --view into a struct tern_view. */
int job_view_parse(const char *text, void *at, struct message *why);

/* Checks that the list has the server that is started with it, which must be one that `goes_back` with its
 * job. -EINVAL: `error` has one line. */
int job_view_check(const struct tern_view *view, uint32_t number, bool goes_back,
	struct message *error);

#endif
