/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server and a worker have in common as processes: the environment with its
 * threads, a domain and a context, the loop that drives the context until the role is
 * over or a signal asks it to end, and what it tells the world. A process that was asked
 * to end is gone within 10 s, unless it is saving the parameters.
 *
 *     role_open, (the role's own new), role_loop, role_cut, (its own free), role_close
 */
#ifndef TERN_TOOLS_ROLE_H
#define TERN_TOOLS_ROLE_H

#include <tern/context.h>

#include "tools/fabric.h"
#include "tools/report.h"

struct role {
	const struct command *command;
	char name[32]; /* "worker 1" */
	struct output out;
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	uint64_t spin_ns;
	int signal_fd;
	/* The process is asked to end, `why` in a few words: the role tells its peers,
	 * does what it has to and sets `over`. `save`: the parameters are not to be lost.
	 */
	void (*stop)(struct role *role, const char *why, bool save);
	/* How far it is, and who it waits for: for SIGUSR1. NULL: it is starting. */
	void (*describe)(struct role *role, char *text, size_t bytes);
	bool (*is_busy)(struct role *role); /* saving: its end is waited for; or NULL */
	int signal;                         /* that asked it to end; 0: none */
	bool over;                          /* the loop returns */
	bool left; /* it was asked to end, and has, as it should */
	int code;  /* enum exit_code */
};

/* Everything up to the context, with so many threads for arithmetic. The context's secret
 * (NULL: none) is copied. Negative: it failed and was reported; role_cut and role_close
 * in any case. `stop` is set by the caller afterwards. */
int role_open(struct role *role, const struct command *command, uint64_t index,
	const struct fabric_settings *fabric, const char *secret, uint64_t spin_us,
	uint64_t connect_s, unsigned threads, bool json);

/* Until `over`. */
void role_loop(struct role *role);

/* Ends the threads, then the context: nothing calls back any more. */
void role_cut(struct role *role);

/* Frees the rest; the exit code: 128 and the number of the signal that ended it. */
int role_close(struct role *role);

/* Over. The first failure counts and is reported, unless a signal is behind it. `input`:
 * the user's fault, exit code 2. */
void role_fail(struct role *role, bool input, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Shows an event; takes the reference. */
void role_report(struct role *role, json_t *event);

/* Shows an event "note": something worth a line happened. */
void role_note(struct role *role, const char *text);

#endif
