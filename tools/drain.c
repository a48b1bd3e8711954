/* SPDX-License-Identifier: Apache-2.0 */
/* `tern drain`: removes a server from a running job (server/view.c). */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/job.h"
#include "tools/output.h"
#include "tools/report.h"
#include "tools/status.h"

/* Pause between two requests. */
#define PAUSE_NS (100 * TERN_NS_PER_MS)
/* Time limit of one request. After it server 0 is looked for anew: it may have been started again at
 * another address. */
#define ONE_NS (2 * TERN_NS_PER_S)
/* Least time for which server 0 may be away before the command gives up (--wait if that is longer):
 * somebody may start server 0 again. */
#define PATIENCE_NS (60 * TERN_NS_PER_S)

struct drain_settings {
	struct ask_settings ask;
	uint64_t server; /* UINT64_MAX: not given */
	bool no_wait, json;
};

struct address {
	char text[300];
};

static const struct option options[] = {
	ASK_OPTIONS(struct drain_settings, ask),
	OPTION(COUNT, "server", "I",
		"number of the server to remove, which may be lost, as tern status shows "
		"it",
		struct drain_settings, server, .max = TERN_SERVERS_MAX - 1),
	OPTION(FLAG, "no-wait", NULL,
		"end when server 0 has been told: the change is lost if server 0 is "
		"lost before the others know of it",
		struct drain_settings, no_wait),
	OPTION(FLAG, "json", NULL, "one JSON object per line", struct drain_settings,
		json),
	OPTION_END,
};

static int parse(
	int argc, char **argv, struct drain_settings *settings, struct message *error)
{
	int r = options_parse(options, argc, argv, settings, error);

	if (r == 0 && settings->server == UINT64_MAX)
		r = options_refuse(
			error, "--server is missing: the number of the server to remove");
	return r;
}

/* Writes the address of server 0, which alone removes servers. Any server of the job tells it.
 * -EHOSTUNREACH: server 0 cannot be reached. */
static int find_zero(struct ask *ask, struct address *zero, struct message *error)
{
	json_t *status = NULL;
	int r = status_ask(ask, &status, error);

	if (r < 0)
		return r;
	snprintf(zero->text, sizeof(zero->text), "%s",
		json_string_value(json_object_get(status, "asked")));
	if (json_integer_value(json_object_get(status, "server")) != 0) {
		options_refuse(
			error, "only server 0 removes servers, and it cannot be reached");
		r = -EHOSTUNREACH;
	}
	json_decref(status);
	return r;
}

/* Asks server 0 to remove the server. Returns 1 if the steps go on without the server, 0 if server 0 has
 * accepted the removal but not made it yet. */
static int ask_zero(struct ask *ask, const struct address *zero, uint64_t server,
	bool again, struct message *error)
{
	json_t *answer = NULL;
	int r = ask_at(ask, zero->text,
		json_pack("{s:s, s:I, s:b}", "type", "drain", "server",
			(json_int_t)server, "again", again),
		"draining", &answer, error);

	if (r == 0)
		r = json_is_true(json_object_get(answer, "done"));
	json_decref(answer);
	return r;
}

static void say(
	const struct drain_settings *settings, const char *event, const char *news)
{
	unsigned long long server = settings->server;
	struct message text;
	struct output out;

	snprintf(text.text, sizeof(text.text), "server %llu is %s", server, news);
	output_init(&out, settings->json);
	report(&out, "drain",
		json_pack("{ss sI so}", "event", event, "server", (json_int_t)server,
			"text", report_text(text.text)));
}

/* If server 0 is lost before other servers know of the removal, the removal is lost, too. So the request is
 * repeated until the steps go on without the server, also to a server 0 that was started again at another
 * address. */
static int ask_again(struct ask *ask, struct address *zero, uint64_t server,
	uint64_t patience_ns, struct message *error)
{
	uint64_t heard_ns = tern_clock_ns();
	int r = 0;

	while (r == 0 ||
		(r < 0 && r != -EACCES && tern_clock_ns() - heard_ns < patience_ns)) {
		nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
		if (r < 0)
			r = find_zero(ask, zero, error);
		if (r == 0)
			r = ask_zero(ask, zero, server, true, error);
		if (r == 0)
			heard_ns = tern_clock_ns();
	}
	return r;
}

/* Finds server 0, which may be away for a moment. */
static int wait_for_zero(struct ask *ask, struct address *zero, struct message *error)
{
	uint64_t begun_ns = tern_clock_ns();
	int r = find_zero(ask, zero, error);

	while (r == -EHOSTUNREACH && tern_clock_ns() - begun_ns < ask->wait_ns) {
		nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
		r = find_zero(ask, zero, error);
	}
	return r;
}

static int drain(
	struct ask *ask, const struct drain_settings *settings, struct message *error)
{
	uint64_t patience_ns = TERN_MAX(ask->wait_ns, PATIENCE_NS);
	struct address zero;
	struct message why;
	int r = wait_for_zero(ask, &zero, error);

	if (r < 0)
		return r;
	r = ask_zero(ask, &zero, settings->server, false, error);
	if (r == 0)
		say(settings, "draining",
			"to be removed: during the steps as soon as a snapshot is taken, "
			"else at once");
	/* Server 0 may have accepted a request whose answer did not come in time. */
	if ((r == 0 || r == -ETIMEDOUT) && !settings->no_wait) {
		ask->wait_ns = TERN_MIN(ask->wait_ns, ONE_NS);
		r = ask_again(ask, &zero, settings->server, patience_ns, &why);
		if (r < 0)
			options_refuse(error,
				"it is not known whether the job goes on without server "
				"%llu: %.300s",
				(unsigned long long)settings->server, why.text);
	}
	if (r > 0)
		say(settings, "drained", "removed: the job goes on without it");
	return TERN_MIN(r, 0);
}

static int drain_run(int argc, char **argv)
{
	struct drain_settings settings = {.server = UINT64_MAX};
	struct message error;
	struct ask ask = {0};
	int r;

	if (parse(argc, argv, &settings, &error))
		return command_refuse(&drain_command, "%s", error.text);
	r = ask_open(&ask, "drain", &settings.ask, &error);
	if (r < 0)
		r = command_end(&drain_command, r == -EINVAL ? EXIT_INPUT : EXIT_JOB,
			"%s", error.text);
	else if (drain(&ask, &settings, &error) < 0)
		r = command_fail(&drain_command, "%s", error.text);
	ask_close(&ask);
	return r;
}

const struct command drain_command = {
	.name = "drain",
	.usage = "--join ADDRESS,... --server I [options]",
	.summary = "remove a server from a running job that takes snapshots",
	.options = options,
	.run = drain_run,
};
