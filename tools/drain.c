/* SPDX-License-Identifier: Apache-2.0 */
/* `tern drain`: removes a server from a running job (server/view.c). */
#include <errno.h>
#include <stdio.h>

#include "ps/job.h"
#include "tools/output.h"
#include "tools/report.h"
#include "tools/status.h"

struct drain_settings {
	struct ask_settings ask;
	uint64_t server; /* UINT64_MAX: not given */
	bool json;
};

static const struct option options[] = {
	ASK_OPTIONS(struct drain_settings, ask),
	OPTION(COUNT, "server", "I",
		"number of the server to remove, which may be lost, as tern status shows "
		"it",
		struct drain_settings, server, .max = TERN_SERVERS_MAX - 1),
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

/* Only server 0 removes servers: asks any server where it is. */
static int ask_zero(struct ask *ask, uint64_t server, struct message *error)
{
	json_t *status = NULL, *answer = NULL;
	int r = status_ask(ask, &status, error);

	if (r < 0)
		return r;
	if (json_integer_value(json_object_get(status, "server")) != 0)
		r = options_refuse(
			error, "only server 0 removes servers, and it cannot be reached");
	else
		r = ask_at(ask, json_string_value(json_object_get(status, "asked")),
			json_pack("{s:s, s:I}", "type", "drain", "server",
				(json_int_t)server),
			"draining", &answer, error);
	json_decref(answer);
	json_decref(status);
	return r;
}

static void say(const struct drain_settings *settings)
{
	struct output out;
	struct message text;

	snprintf(text.text, sizeof(text.text),
		"the job goes on without server %llu: during the steps as soon as a "
		"snapshot is taken, else at once",
		(unsigned long long)settings->server);
	output_init(&out, settings->json);
	report(&out, "drain",
		json_pack("{ss sI so}", "event", "draining", "server",
			(json_int_t)settings->server, "text", report_text(text.text)));
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
	else if (ask_zero(&ask, settings.server, &error) < 0)
		r = command_fail(&drain_command, "%s", error.text);
	else
		say(&settings);
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
