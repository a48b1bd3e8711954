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
#include "transport/context.h"

struct role {
	const struct command *command;
	char name[32]; /* "worker 1" */
	struct output out;
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	uint64_t spin_ns;
	int signal_fd;
	/* Called when the process is asked to end, for the reason `why` (a few words).
	 * The role tells its peers, does what is left to do, and sets `over`. `save`:
	 * the parameters must not be lost. */
	void (*stop)(struct role *role, const char *why, bool save);
	/* Writes for SIGUSR1 how far the role is, and which process it waits for.
	 * NULL: the role is starting. */
	void (*describe)(struct role *role, char *text, size_t bytes);
	/* true: the role is saving, so its end must be awaited; or NULL. */
	bool (*is_busy)(struct role *role);
	int signal; /* the signal that asked the process to end; 0: none */
	bool over;  /* role_loop returns */
	bool left;  /* the role was asked to end, and has ended in good order */
	int code;   /* enum exit_code */
	struct tern_timer cut_timer; /* role_cut: peers are no longer waited for */
};

/* Makes everything up to the context, with this many threads for arithmetic. The
 * context's secret (NULL: none) is copied. Negative: it failed and the error was
 * reported. The caller calls role_cut and role_close in either case, and sets `stop`
 * after this. */
int role_open(struct role *role, const struct command *command, uint64_t index,
	const struct fabric_settings *fabric, const char *secret, uint64_t spin_us,
	uint64_t connect_s, unsigned threads, bool json);

/* Looks for signals while the loop does not run. True: one has asked the process to end.
 * `role` is a struct role. */
bool role_is_asked(void *role);

/* Runs the context until `over` is set. */
void role_loop(struct role *role);

/* Ends the threads, then the context: after this, no callback is called. */
void role_cut(struct role *role);

/* Frees everything else. Returns the exit code; after a signal, 128 plus its number. */
int role_close(struct role *role);

/* Returns a text for a failure of a system call, with the limit of the process
 * (ulimit) that may be its reason. */
const char *role_why(int status, char *text, size_t bytes);

/* Ends the role with a failure. The first failure counts and is reported, unless a
 * signal caused it. `input`: the user's error, exit code 2. */
void role_fail(struct role *role, bool input, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Shows an event; takes the reference. */
void role_report(struct role *role, json_t *event);

/* Shows an event "note": something worth a line happened. */
void role_note(struct role *role, const char *text);

#endif
