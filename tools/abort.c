/* SPDX-License-Identifier: Apache-2.0 */
/* `tern abort`: ends a running job (server/abort.c). */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "tools/output.h"
#include "tools/report.h"
#include "tools/status.h"

#define WHY_MAX                                                                          \
	200 /* bytes of --why, which every process of the job prints in one line */
/* Limit of the question to one of the other servers, which may be lost. */
#define OTHER_NS (2 * TERN_NS_PER_S)

struct abort_settings {
	struct ask_settings ask;
	const char *why;
	bool json;
};

static const struct option options[] = {
	ASK_OPTIONS(struct abort_settings, ask),
	OPTION(TEXT, "why", "TEXT",
		"reason, which all processes of the job print; at most 200 bytes",
		struct abort_settings, why),
	OPTION(FLAG, "json", NULL, "one JSON object per line", struct abort_settings,
		json),
	OPTION_END,
};

static int parse(
	int argc, char **argv, struct abort_settings *settings, struct message *error)
{
	int r = options_parse(options, argc, argv, settings, error);

	if (r == 0 && settings->why && strlen(settings->why) > WHY_MAX)
		r = options_refuse(error,
			"--why: a text of %zu bytes: expected at most %d",
			strlen(settings->why), WHY_MAX);
	return r;
}

/* Writes who asks: the user and the host. */
static void write_by(char *text, size_t bytes)
{
	const struct passwd *user = getpwuid(geteuid());
	char host[65] = "an unknown host";

	if (gethostname(host, sizeof(host) - 1) < 0)
		host[sizeof(host) - 1] = '\0';
	if (user)
		snprintf(text, bytes, "%.60s on %s", user->pw_name, host);
	else
		snprintf(text, bytes, "user %u on %s", (unsigned)geteuid(), host);
}

static int end_at(struct ask *ask, const char *address, const char *why,
	uint64_t limit_ns, struct message *error)
{
	uint64_t wait_ns = ask->wait_ns;
	json_t *answer = NULL;
	char by[150];
	int r;

	write_by(by, sizeof(by));
	ask->wait_ns = TERN_MIN(wait_ns, limit_ns);
	r = ask_at(ask, address,
		json_pack("{s:s, s:o, s:o}", "type", "end", "by", report_text(by), "text",
			report_text(why ? why : "")),
		"ending", &answer, error);
	ask->wait_ns = wait_ns;
	json_decref(answer);
	return r;
}

/* Before the steps, and while the job goes back, the first server need not be connected to the
 * others: each one is asked. A server that does not answer is lost, or has ended already. */
static void end_others(struct ask *ask, const json_t *status, const char *why)
{
	const char *asked = json_string_value(json_object_get(status, "asked"));
	const json_t *servers = json_object_get(status, "servers");
	struct message error;

	for (size_t i = 0; i < json_array_size(servers); i++) {
		const char *address = json_string_value(
			json_object_get(json_array_get(servers, i), "address"));

		if (address && strcmp(address, asked) != 0)
			end_at(ask, address, why, OTHER_NS, &error);
	}
	for (uint32_t i = 0; i < ask->servers.count; i++)
		if (strcmp(ask->servers.address[i], asked) != 0)
			end_at(ask, ask->servers.address[i], why, OTHER_NS, &error);
}

/* Asks server 0, or if that cannot be reached, the server that has answered. */
static int end_job(struct ask *ask, const char *why, struct message *error)
{
	json_t *status = NULL;
	int r = status_ask(ask, &status, error);
	const char *state;

	if (r < 0)
		return r;
	state = json_string_value(json_object_get(status, "state"));
	r = end_at(ask, json_string_value(json_object_get(status, "asked")), why,
		UINT64_MAX, error);
	if (r == 0 && state && strcmp(state, "steps") != 0)
		end_others(ask, status, why);
	json_decref(status);
	return r;
}

static void say(const struct abort_settings *settings)
{
	struct output out;

	output_init(&out, settings->json);
	report(&out, "abort",
		json_pack("{ss ss}", "event", "aborting", "text",
			"the job ends: all of its processes are told"));
}

static int abort_run(int argc, char **argv)
{
	struct abort_settings settings = {0};
	struct message error;
	struct ask ask = {0};
	int r;

	if (parse(argc, argv, &settings, &error))
		return command_refuse(&abort_command, "%s", error.text);
	r = ask_open(&ask, "abort", &settings.ask, &error);
	if (r < 0)
		r = command_end(&abort_command, r == -EINVAL ? EXIT_INPUT : EXIT_JOB,
			"%s", error.text);
	else if (end_job(&ask, settings.why, &error) < 0)
		r = command_fail(&abort_command, "%s", error.text);
	else
		say(&settings);
	ask_close(&ask);
	return r;
}

const struct command abort_command = {
	.name = "abort",
	.usage = "--join ADDRESS,... [options]",
	.summary = "end a running job: its processes save the parameters and stop",
	.options = options,
	.run = abort_run,
};
