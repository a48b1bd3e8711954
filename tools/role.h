/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part that a server process and a worker process (each is a "role" in a job) have in
 * common: the environment with its threads (base/env.h), a domain and a context, the loop
 * that drives the context until the role has ended, by itself or because a signal has asked
 * the process to end, and the events that the process prints. A process that was asked to
 * end exits within about 10 s, unless it is saving the parameters.
 *
 * Order of calls:
 *
 *     role_open, (the role's constructor), role_loop, role_cut, (its free), role_close
 *
 * A process that has no peers, such as `tern evaluator`, has signals, events and the end only:
 *
 *     role_open_alone, (its work, which calls role_is_asked), role_close
 *
 * A role whose job goes back to a snapshot (server/back.c) is made anew, in the same process:
 *
 *     role_cut, (its free), role_open_again, (the role's constructor), role_loop, ...
 */
#ifndef TERN_TOOLS_ROLE_H
#define TERN_TOOLS_ROLE_H

#include <tern/context.h>

#include "host/secret.h"
#include "tools/fabric.h"
#include "tools/report.h"
#include "transport/context.h"

struct role {
	const struct command *command;
	char name[32]; /* name in messages: "worker 1" */
	struct output out;
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	uint64_t spin_ns;
	int signal_fd;
	unsigned threads;
	struct secret secret;
	/* Called once when the process is asked to end; `why` is the reason, in a few
	 * words. The function tells the peers, finishes what must be finished, and then
	 * sets `over`. `save`: the parameters must be saved, if this process is the one
	 * to save them. */
	void (*stop)(struct role *role, const char *why, bool save);
	/* Answers SIGUSR1: writes to `text` how far the role has got, and which process
	 * it waits for. NULL: the role is still starting. */
	void (*describe)(struct role *role, char *text, size_t bytes);
	/* Returns true while the role saves a file: the process must not be ended before
	 * the file is complete. May be NULL. */
	bool (*is_busy)(struct role *role);
	/* How long the loop goes on after a signal. The caller may set it after role_open(), which
	 * sets 7 s. */
	uint64_t drain_ns;
	int signal; /* the signal that asked the process to end; 0: no signal did */
	bool over;  /* if set, role_loop() returns */
	bool again; /* the job goes back, and the role is made anew (role_goes_back()) */
	/* Since when it does, and when it gives up. 0: the job has never gone back, or its steps
	 * have begun again. */
	uint64_t back_ns, back_limit_ns;
	int back_pause_ms; /* the last pause (role_back_pause()); 0: there was none since then */
	struct tern_timer back_timer;
	char back_why[500]; /* as was said last */
	bool comes; /* the role comes to a job that goes on, and its steps have not begun */
	/* the role ended in good order: `code` is the exit code, even after a signal */
	bool left;
	int code; /* exit code of the process, an enum exit_code */
	/* The job can go on from a snapshot, so SIGTERM leads to EXIT_REQUEUE. */
	bool can_resume;
	/* set by role_cut(): if it expires, the process exits without waiting for peers */
	struct tern_timer cut_timer;
};

/* Creates the environment with `threads` threads for arithmetic, the domain and the
 * context. The secret (NULL: none) is copied. A negative result is a failure, which has
 * been reported already. In either case role_close() must follow, and before it role_cut()
 * if the caller has anything to free. Clears *role, so role->stop and the other callbacks
 * must be set after this call. */
int role_open(struct role *role, const struct command *command, uint64_t index,
	const struct fabric_settings *fabric, const char *secret, uint64_t spin_us,
	uint64_t connect_s, unsigned threads, bool json);

/* Opens a role without environment, domain and context, whose name in messages is that of the
 * command. Otherwise as role_open(). */
int role_open_alone(struct role *role, const struct command *command, bool json);

/* Sets the process name that ps and top show: "tern-WHAT INDEX". role_open() sets that of the command. */
void role_name_process(const char *what, uint64_t index);

/* Makes the environment and the context anew, after role_cut() and the role's free. Errors as of
 * role_open(). */
int role_open_again(struct role *role, uint64_t connect_s);

/* The job goes back, says ended(), because of `why`. True if the role is to be made anew for it:
 * after wait_s seconds in which the steps have not begun, and after a signal, it is not. `what`
 * tells the user the first time what happens now, and what to do. */
bool role_goes_back(
	struct role *role, uint64_t wait_s, const char *why, const char *what);

/* The role waits for a job that goes back; for at most wait_s seconds, unless it does already. */
void role_back_begin(struct role *role, uint64_t wait_s);

/* Fails with a description of what is waited for, unless role_begun() comes in time. */
void role_back_wait(struct role *role);

/* The steps begin, from this one on: prints the event. If the job has gone back, or the role has
 * come to it, a line says that the steps go on. */
void role_begun(struct role *role, json_t *event, uint64_t step);

/* Sleeps for a moment before the next attempt. False: a signal has asked the process to end. */
bool role_back_pause(struct role *role);

/* Handles a signal that has arrived, for code that runs outside role_loop(), such as the
 * reading of data. Returns true if a signal has asked the process to end. `role` is a
 * struct role. */
bool role_is_asked(void *role);

/* Drives the context and handles signals until role->over is set. */
void role_loop(struct role *role);

/* Ends the threads, then frees the context. No callback is called after this. Does not
 * return, but exits the process, if a thread or a peer takes too long for a process that has
 * failed or was asked to end. */
void role_cut(struct role *role);

/* Calls role_cut() first, then frees the rest. Returns the exit code: after a signal, 128
 * plus its number, or EXIT_REQUEUE after SIGTERM if can_resume, unless the role has left in good order. */
int role_close(struct role *role);

/* Describes the error code `status`. For -ENOMEM the text names the limit of the process
 * (ulimit) that may be the cause, if there is one. Writes to `text` and returns it. */
const char *role_why(int status, char *text, size_t bytes);

/* Ends the role with a failure. Only the first failure is reported and sets the exit
 * code, and none after a signal, since failures are then a consequence of it. `input`:
 * the user made the error, so the exit code is 2. */
void role_fail(struct role *role, bool input, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Prints an event of this role, and releases the JSON object. */
void role_report(struct role *role, json_t *event);

/* Prints an event "note": a line about something that the user may want to know. */
void role_note(struct role *role, const char *text);
/* A callback for tern_server_opts.note: prints an event "note". While the job goes back, people are not
 * shown those of processes that come or leave (`comes`). */
void role_server_note(void *role, const char *text, bool comes);

#endif
