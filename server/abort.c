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
 * server of a job that may go back stays for LEAVING_NS after the end, and tells each process
 * that connects meanwhile.
 */
#include "server/server_state.h"

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

void abort_on_late(struct server_peer *p, const json_t *message)
{
	if (!p->server->by_operator || server_has_joined(p))
		return;
	if (strcmp(tern_talk_type(message), "end") == 0)
		tern_talk_say(&p->talk, json_pack("{s:s}", "type", "ending"));
	abort_tell(p);
}

bool abort_lingers(const struct tern_server *s)
{
	return s->by_operator && s->opts.goes_back;
}
