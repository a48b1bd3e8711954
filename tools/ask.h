/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A question to a running job. The process that asks connects to the servers of --join as a
 * guest (server/guests.c), says one control message (ps/talk.h), and waits for the answer.
 * It never joins the job, so the job does not depend on it.
 *
 * All servers are dialled at once. The question goes to the first one that is connected;
 * if that one is lost, refuses for now, or does not answer for a second while another one is
 * connected, the question goes to the next. So a question may reach more than one server,
 * and its handler must bear that.
 *
 * Threads: a struct ask is used by one thread.
 */
#ifndef TERN_TOOLS_ASK_H
#define TERN_TOOLS_ASK_H

#include <jansson.h>

#include "tools/log.h"
#include "tools/secret.h"
#include "tools/servers.h"

struct ask_settings {
	struct fabric_settings fabric;
	struct secret_settings secret;
	const char *join;
	double wait_s;
	enum tern_log_level log_level;
};

/* Rows for a command's table of options; `field` of its settings is a struct
 * ask_settings. */
#define ASK_OPTIONS(settings, field)                                                     \
	OPTION(TEXT, "join", "ADDRESS,...",                                              \
		"addresses of servers of the job, as they print them (\"listening "      \
		"at\"); any one of them is enough",                                      \
		settings, field.join),                                                   \
		FABRIC_OPTIONS(settings, field.fabric),                                  \
		SECRET_OPTIONS(settings, field.secret),                                  \
		OPTION(REAL, "wait", "S",                                                \
			"seconds to wait until a server can be reached and has "         \
			"answered",                                                      \
			settings, field.wait_s, .initial = "5", .min = 0.1,              \
			.max = 3600),                                                    \
		OPTION(CUSTOM, "log-level", "none|error|warn|info|debug",                \
			"least severe log lines to show; default: the environment "      \
			"variable TERN_LOG, else error",                                 \
			settings, field.log_level, .parse = log_parse_level)

struct ask {
	const char *name; /* of this process, as servers show it: "status" */
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct servers servers;
	struct secret secret;
	uint64_t wait_ns;
	/* Is called many times a second during a question. True ends the question with
	 * -EINTR. May be NULL. */
	bool (*stop)(void *arg);
	void *arg;
};

/* Checks the settings, opens the log and the domain, and reads the secret. `name` is not copied. In any case
 * ask_close() must follow. -EINVAL: the user's input is wrong; other errors: no memory and
 * the like. `error` has one line. */
int ask_open(struct ask *ask, const char *name, const struct ask_settings *settings,
	struct message *error);

/* Asks the servers of --join, and waits at most wait_ns. Releases `question`. *answer is the
 * message of type `type`, which the caller releases; `from` is the address of the server that
 * has answered, valid until ask_close(), or NULL if the caller does not need it.
 *
 * -EACCES: a server has refused; -ETIMEDOUT: none has answered; -EINTR: stop() has ended the
 * question; -ENOMEM. `error` has one line. */
int ask_job(struct ask *ask, json_t *question, const char *type, json_t **answer,
	const char **from, struct message *error);

/* Asks one server at this address, which need not be one of --join. Everything else, the errors
 * among it, is as of ask_job(). */
int ask_at(struct ask *ask, const char *address, json_t *question, const char *type,
	json_t **answer, struct message *error);

void ask_close(struct ask *ask);

#endif
