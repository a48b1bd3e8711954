/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern abort`: an operator ends the job, from any host and at any moment. The job is interrupted
 * as if all of its processes had been asked to end (leaving.c): one worker saves the parameters.
 *
 *     operator                    server                      worker, other server
 *     "end", by whom and why -->
 *                           <--   "ending"
 *                                 "abort" with "final" -->
 *
 * A process that ends by a final abort does not go back to a snapshot, and a process that waits
 * for a lost server does not wait any longer. Such a process connects only now and then. So a
 * server of a job that may go back stays for LEAVING_NS after the end, and tells each process of
 * the job that connects meanwhile. Processes of the next job may connect to the same address, and so
 * may those that only ask: both are told to come again, since they are not of the job that has ended.
 */
#include "server/membership.h"

#include <string.h>

#define BY_MAX   160u /* bytes of "by" */
#define TEXT_MAX 200u /* bytes of "text" */

static bool is_text(const json_t *value, size_t bytes_max)
{
	return json_is_string(value) && json_string_length(value) <= bytes_max;
}

void abort_on_end(struct server_peer *p, const json_t *message)
{
	const json_t *by = json_object_get(message, "by");
	const json_t *text = json_object_get(message, "text");
	struct tern_server *s = p->server;
	char why[BY_MAX + TEXT_MAX + 40];

	if (!is_text(by, BY_MAX) || !is_text(text, TEXT_MAX)) {
		server_refuse(p,
			"its message \"end\" is wrong: expected \"by\" of at most %u "
			"bytes, and \"text\" of at most %u",
			BY_MAX, TEXT_MAX);
		return;
	}
	snprintf(why, sizeof(why), "%s aborted the job%s%s", json_string_value(by),
		json_string_length(text) ? ": " : "", json_string_value(text));
	server_note(s, "%s: %s", tern_peer_name(p->peer), why);
	tern_talk_say(&p->talk, json_pack("{s:s}", "type", "ending"));
	s->by_operator = true;
	leaving_interrupt(s, why);
}

void abort_tell(struct server_peer *p)
{
	p->refused = true;
	p->returning = p->ready = p->chosen = false;
	tern_talk_deafen(&p->talk);
	tern_talk_say(&p->talk, json_pack("{s:s, s:o, s:b}", "type", "abort", "text",
					tern_talk_text(p->server->text), "final", 1));
	tern_peer_close(p->peer);
	guests_refused(p);
}

/* True if "join" or "peer" brings the job that has ended, whatever its list of servers. A server that has
 * no job yet, since its job goes back, takes any for its own: nobody else knows its address. */
static bool is_of_job(const struct server_peer *p, const json_t *message)
{
	const struct tern_server *s = p->server;
	struct tern_ps_text why;
	struct tern_ps_job job = {0};
	bool is_ours;

	if (!s->has_job)
		return s->opts.returns;
	if (tern_ps_job_read(json_object_get(message, "job"), &job, &why) < 0)
		return false;
	job.server_count = s->job.server_count;
	is_ours = !tern_ps_job_differs(&s->job, &job, tern_peer_name(p->peer), &why);
	tern_ps_job_fini(&job);
	return is_ours;
}

/* True if the sender of the message waits for the job that has ended, or wants to end it. */
static bool is_to_be_told(const struct server_peer *p, const json_t *message)
{
	const char *type = tern_talk_type(message);

	if (strcmp(type, "join") == 0 || strcmp(type, "peer") == 0)
		return is_of_job(p, message);
	return strcmp(type, "address") == 0 || strcmp(type, "end") == 0;
}

void abort_on_late(struct server_peer *p, const json_t *message)
{
	if (!p->server->by_operator || server_has_joined(p))
		return;
	if (!is_to_be_told(p, message)) {
		server_refuse_for_now(p, "the server is ending");
		return;
	}
	if (strcmp(tern_talk_type(message), "end") == 0)
		tern_talk_say(&p->talk, json_pack("{s:s}", "type", "ending"));
	abort_tell(p);
}

bool abort_lingers(const struct tern_server *s)
{
	return s->by_operator && s->opts.goes_back;
}
