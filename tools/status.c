/* SPDX-License-Identifier: Apache-2.0 */
/* `tern status`: asks any server of a running job what the job does. */
#include "tools/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/job.h"
#include "tools/field.h"
#include "tools/output.h"
#include "tools/report.h"

/* How long server 0 is waited for when another server has answered. */
#define ZERO_NS (2 * TERN_NS_PER_S)
/* How long each other server is waited for, which is asked for its follower only. */
#define FOLLOWER_NS (500 * TERN_NS_PER_MS)
#define ROWS_MAX    40u

/* ---- the question ---- */

static json_t *question(json_int_t from)
{
	return json_pack("{s:s, s:I}", "type", "status", "from", from);
}

static json_int_t number(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

/* The address of server 0, as another server knows it; NULL: it knows none. */
static const char *zero_of(const json_t *answer)
{
	const json_t *zero = json_array_get(json_object_get(answer, "servers"), 0);

	return json_string_value(json_object_get(zero, "address"));
}

/* Asks one server for the workers from `from` on, and waits at most `limit_ns`, and not longer than
 * until `deadline_ns`. */
static int ask_one(struct ask *ask, const char *address, json_int_t from,
	uint64_t limit_ns, uint64_t deadline_ns, json_t **answer, struct message *error)
{
	uint64_t wait_ns = ask->wait_ns, now_ns = tern_clock_ns();
	int r;

	if (now_ns >= deadline_ns) {
		options_refuse(
			error, "no answer: %.130s: the time of --wait is over", address);
		return -ETIMEDOUT;
	}
	ask->wait_ns = TERN_MIN(limit_ns, deadline_ns - now_ns);
	r = ask_at(ask, address, question(from), "status", answer, error);
	ask->wait_ns = wait_ns;
	return r;
}

/* Replaces the answer of another server by that of server 0, or says why not in "partial". */
static int ask_zero(
	struct ask *ask, json_t **answer, uint64_t deadline_ns, struct message *error)
{
	const char *zero = zero_of(*answer);
	json_t *whole = NULL;
	int r;

	if (number(*answer, "server") == 0 || !zero)
		return 0;
	r = ask_one(ask, zero, 0, ZERO_NS, deadline_ns, &whole, error);
	if (r == -EINTR)
		return r;
	if (r < 0) {
		json_object_set_new(*answer, "partial", report_text(error->text));
		return 0;
	}
	json_object_set_new(whole, "asked", report_text(zero));
	json_decref(*answer);
	*answer = whole;
	return 0;
}

/* A server that comes in the place of a lost one may know no job yet. Then the other servers of
 * --join are asked, until one knows it. `asked` has answered already. */
static int ask_others(struct ask *ask, const char *asked, json_t **answer,
	uint64_t deadline_ns, struct message *error)
{
	int r = 0;

	for (uint32_t i = 0; r != -EINTR && i < ask->servers.count; i++) {
		const char *address = ask->servers.address[i];
		json_t *other = NULL;

		if (json_object_get(*answer, "job"))
			break;
		if (strcmp(address, asked) == 0)
			continue;
		r = ask_one(ask, address, 0, ZERO_NS, deadline_ns, &other, error);
		if (r < 0 || !json_object_get(other, "job")) {
			json_decref(other);
			continue;
		}
		json_object_set_new(other, "asked", report_text(address));
		json_decref(*answer);
		*answer = other;
	}
	return r == -EINTR ? r : 0;
}

/* Adds the workers for which the first answer had no room. */
static int ask_rest(
	struct ask *ask, json_t *answer, uint64_t deadline_ns, struct message *error)
{
	const char *where = json_string_value(json_object_get(answer, "asked"));

	while (json_object_get(answer, "next")) {
		json_t *page = NULL;
		int r = ask_one(ask, where, number(answer, "next"), UINT64_MAX,
			deadline_ns, &page, error);
		bool fits = r == 0 && status_add_page(answer, page);

		json_decref(page);
		if (r < 0)
			return r;
		if (!fits) {
			options_refuse(error,
				"the server at %.130s has told other workers than its "
				"first answer announces: the job has changed meanwhile: "
				"ask again",
				where);
			return -EPROTO;
		}
	}
	return 0;
}

/* Moves the follower of the server that has answered to its entry of "servers", and asks the other
 * servers for theirs: a server knows only its own one. The entry of a server that does not answer has no
 * follower. */
static int ask_followers(
	struct ask *ask, json_t *answer, uint64_t deadline_ns, struct message *error)
{
	/* A job without --snapshots cannot have any. */
	bool may_have = json_object_get(answer, "snapshot");
	json_t *one;
	size_t i;
	int r = 0;

	json_array_foreach(json_object_get(answer, "servers"), i, one)
	{
		const char *address = json_string_value(json_object_get(one, "address"));
		json_t *other = NULL;

		if (number(one, "server") == number(answer, "server"))
			json_object_set(
				one, "follower", json_object_get(answer, "follower"));
		else if (may_have && r != -EINTR && address &&
			 strcmp(field_text(one, "state"), "joined") == 0)
			r = ask_one(ask, address, TERN_WORKERS_MAX - 1, FOLLOWER_NS,
				deadline_ns, &other, error);
		if (other)
			json_object_set(
				one, "follower", json_object_get(other, "follower"));
		json_decref(other);
	}
	json_object_del(answer, "follower");
	return r == -EINTR ? r : 0;
}

int status_ask(struct ask *ask, json_t **answer, struct message *error)
{
	uint64_t deadline_ns = tern_clock_ns() + ask->wait_ns;
	const char *from = NULL;
	int r = ask_job(ask, question(0), "status", answer, &from, error);

	if (r < 0)
		return r;
	json_object_set_new(*answer, "asked", report_text(from));
	r = ask_others(ask, from, answer, deadline_ns, error);
	if (r == 0)
		r = ask_zero(ask, answer, deadline_ns, error);
	if (r == 0)
		r = ask_rest(ask, *answer, deadline_ns, error);
	if (r == 0)
		r = ask_followers(ask, *answer, deadline_ns, error);
	if (r < 0)
		json_decref(TERN_TAKE(*answer));
	else
		json_object_del(*answer, "type");
	return r;
}

/* ---- the command ---- */

struct status_settings {
	struct ask_settings ask;
	bool json;
};

static const struct option options[] = {
	ASK_OPTIONS(struct status_settings, ask),
	OPTION(FLAG, "json", NULL, "one JSON object, with all that the servers tell",
		struct status_settings, json),
	OPTION_END,
};

static int print(bool json, json_t *answer)
{
	struct output out;
	char *text = NULL;
	size_t bytes;
	FILE *to;

	output_init(&out, json);
	if (json) {
		output_json(answer);
		return EXIT_OK;
	}
	to = open_memstream(&text, &bytes);
	if (to) {
		status_show(to, answer, ROWS_MAX);
		fclose(to);
	}
	json_decref(answer);
	if (!text)
		return command_fail(&status_command, "%s", strerror(ENOMEM));
	output_text(&out, text);
	free(text);
	return EXIT_OK;
}

static int status_run(int argc, char **argv)
{
	struct status_settings s = {0};
	struct message error;
	struct ask ask = {0};
	json_t *answer = NULL;
	int r;

	if (options_parse(options, argc, argv, &s, &error))
		return command_refuse(&status_command, "%s", error.text);
	r = ask_open(&ask, "status", &s.ask, &error);
	if (r < 0)
		r = command_end(&status_command, r == -EINVAL ? EXIT_INPUT : EXIT_JOB,
			"%s", error.text);
	else if (status_ask(&ask, &answer, &error) < 0)
		r = command_fail(&status_command, "%s", error.text);
	else
		r = print(s.json, answer);
	ask_close(&ask);
	return r;
}

const struct command status_command = {
	.name = "status",
	.usage = "--join ADDRESS,... [options]",
	.summary = "tell what a running job does: any server of it is asked",
	.options = options,
	.run = status_run,
};
