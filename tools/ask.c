/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See ask.h. Each question has a context of its own, so that nothing of it is left when it has
 * ended. A line is the connection to one server:
 *
 *     DIALLED --connected--> UP --its turn--> ASKED --the answer--> the call ends
 *        ^                   |                  |
 *        |                   +----> OVER <------+  lost, refused, or too slow
 *        +--it refused only for now----+
 */
#include "tools/ask.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/talk.h"
#include "rendezvous/peer.h"

#define POOL_BYTES (16u << 20)
#define SLEEP_MS   50
/* How much later than the attempts to connect the wait ends: their reasons are known then. */
#define GRACE_NS (200 * TERN_NS_PER_MS)
/* Time after which another server is asked, if one is connected. */
#define SLOW_NS TERN_NS_PER_S
/* A server that ends has a successor at the same address in a moment. */
#define AGAIN_NS (200 * TERN_NS_PER_MS)
/* How long the end of a question waits for the servers' goodbyes. */
#define BYE_NS (200 * TERN_NS_PER_MS)

enum line_state {
	LINE_DIALLED,
	LINE_UP,
	LINE_ASKED,
	LINE_OVER,
};

struct call;

struct line {
	struct call *call;
	const char *address;
	enum line_state state;
	struct tern_talk talk;
	struct tern_peer *peer;
	bool down;
	uint64_t
		asked_ns; /* of LINE_ASKED: time of the first question, "again" not counted */
	uint64_t again_ns; /* of LINE_OVER: time of the next attempt; 0: there is none */
	char why[240];     /* why there is no answer */
};

struct call {
	const struct ask *ask;
	struct tern_context *ctx;
	json_t *question;
	const char *type; /* of the answer */
	struct line *lines;
	uint32_t count;
	uint64_t deadline_ns;
	json_t *answer;
	const char *from;  /* address that has answered or refused; NULL: none has */
	char refusal[300]; /* "": it was not refused */
};

/* ---- one connection ---- */

static void end_line(struct line *l, const char *why)
{
	if (l->state == LINE_OVER)
		return;
	l->state = LINE_OVER;
	l->again_ns = 0;
	snprintf(l->why, sizeof(l->why), "%s", why);
	tern_talk_close(&l->talk);
	if (l->peer && !l->down)
		tern_peer_close(l->peer);
}

static void say_question(struct line *l)
{
	l->state = LINE_ASKED;
	tern_talk_say(&l->talk, json_incref(l->call->question));
}

static void refused(struct line *l, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	struct call *c = l->call;

	if (json_is_true(json_object_get(message, "later"))) {
		end_line(l, text ? text : "it refuses for now");
		l->again_ns = tern_clock_ns() + AGAIN_NS;
		return;
	}
	c->from = l->address;
	snprintf(c->refusal, sizeof(c->refusal), "%s", text ? text : "no reason given");
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct line *l = tern_container_of(talk, struct line, talk);
	const char *type = tern_talk_type(message);
	struct call *c = l->call;

	if (c->from || l->state == LINE_OVER)
		return;
	if (!message) {
		end_line(l, l->talk.fault);
	} else if (strcmp(type, c->type) == 0 && l->state == LINE_ASKED) {
		c->from = l->address;
		c->answer = json_incref((json_t *)(uintptr_t)message);
	} else if (strcmp(type, "again") == 0 && l->state == LINE_ASKED) {
		say_question(l);
	} else if (strcmp(type, "refused") == 0) {
		refused(l, message);
	}
}

static void broken(struct tern_talk *talk, int status)
{
	end_line(tern_container_of(talk, struct line, talk), tern_status_text(status));
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct line *l = arg;
	char why[200];

	if (event == TERN_PEER_UP && l->state == LINE_DIALLED)
		l->state = LINE_UP;
	if (event != TERN_PEER_DOWN)
		return;
	l->down = true;
	end_line(l, status ? tern_peer_why(peer, status, why, sizeof(why))
			   : "it has closed the connection");
}

static void dial(struct line *l)
{
	const struct ask *ask = l->call->ask;
	int r;

	l->state = LINE_DIALLED;
	l->down = false;
	l->peer = NULL;
	l->talk = (struct tern_talk){
		.pool = ask->pool, .ctx = l->call->ctx, .heard = heard, .broken = broken};
	r = tern_connect(l->call->ctx, l->address,
		&(struct tern_peer_opts){.event = on_event, .arg = l, .name = ask->name},
		&l->peer);
	if (r == 0)
		r = tern_talk_open(&l->talk, l->peer);
	if (r < 0)
		end_line(l, tern_status_text(r));
}

/* Dials again if the server has refused only for now, and the connection has ended. */
static void dial_again(struct line *l)
{
	if (l->state != LINE_OVER || !l->again_ns || tern_clock_ns() < l->again_ns ||
		!l->down || !tern_talk_is_idle(&l->talk))
		return;
	tern_peer_free(TERN_TAKE(l->peer));
	dial(l);
}

/* ---- all connections ---- */

static struct line *find(const struct call *c, enum line_state state)
{
	for (uint32_t i = 0; i < c->count; i++)
		if (c->lines[i].state == state)
			return &c->lines[i];
	return NULL;
}

/* Says the question on one connection at a time. */
static void take_turns(struct call *c)
{
	struct line *asked = find(c, LINE_ASKED), *next = find(c, LINE_UP);

	if (next && asked && tern_clock_ns() - asked->asked_ns > SLOW_NS) {
		end_line(asked, "it does not answer");
		asked = NULL;
	}
	if (next && !asked) {
		next->asked_ns = tern_clock_ns();
		say_question(next);
	}
}

static bool is_hopeless(const struct call *c)
{
	for (uint32_t i = 0; i < c->count; i++)
		if (c->lines[i].state != LINE_OVER || c->lines[i].again_ns)
			return false;
	return true;
}

static int progress(struct call *c, int sleep_ms)
{
	struct pollfd fd = {.fd = tern_context_fd(c->ctx), .events = POLLIN};
	int n = tern_progress(c->ctx), r;

	if (n)
		return TERN_MIN(n, 0);
	r = tern_arm(c->ctx);
	if (r == 0)
		poll(&fd, 1, sleep_ms);
	return r == -EAGAIN ? 0 : r;
}

/* The time is over only when what has come until then is heard: this process may have been stopped
 * for longer than that. */
static int wait_for_answer(struct call *c)
{
	bool over = false;
	int r = 0;

	while (r == 0 && !c->from) {
		for (uint32_t i = 0; i < c->count; i++)
			dial_again(&c->lines[i]);
		take_turns(c);
		if (is_hopeless(c) || over)
			return -ETIMEDOUT;
		if (c->ask->stop && c->ask->stop(c->ask->arg))
			return -EINTR;
		over = tern_clock_ns() > c->deadline_ns;
		r = progress(c, over ? 0 : SLEEP_MS);
	}
	return r < 0 ? r : *c->refusal ? -EACCES : 0;
}

/* Writes why each server has not answered, as far as there is room. */
static void explain(const struct call *c, char *text, size_t bytes)
{
	size_t n = 0;

	for (uint32_t i = 0; i < c->count && n < bytes; i++) {
		const struct line *l = &c->lines[i];
		n += (size_t)snprintf(
			text + n, bytes - n, "%s%.130s: ", n ? "; " : "", l->address);
		if (n < bytes && l->state == LINE_OVER)
			n += (size_t)snprintf(text + n, bytes - n, "%.200s", l->why);
		else if (n < bytes)
			n += (size_t)snprintf(text + n, bytes - n, "%s within %.3g s",
				l->state == LINE_DIALLED ? "it cannot be reached"
							 : "it does not answer",
				(double)c->ask->wait_ns / 1e9);
	}
}

static void tell(const struct call *c, int r, struct message *error)
{
	char text[400];

	switch (r) {
	case -EACCES:
		options_refuse(
			error, "the server at %.130s refuses: %s", c->from, c->refusal);
		break;
	case -ETIMEDOUT:
		explain(c, text, sizeof(text));
		options_refuse(error, "no answer: %s", text);
		break;
	default:
		options_refuse(error, "%s", tern_status_text(r));
	}
}

/* Says goodbye to the servers, so that none of them waits for the connection to come back. */
static void say_goodbye(struct call *c)
{
	uint64_t limit_ns = tern_clock_ns() + BYE_NS;
	bool open = true;

	while (open && tern_clock_ns() < limit_ns) {
		open = false;
		for (uint32_t i = 0; i < c->count; i++) {
			struct line *l = &c->lines[i];

			/* A server that was never connected has nothing to hear. */
			open = open || (l->peer && !l->down && l->state != LINE_DIALLED);
			if (l->state != LINE_DIALLED)
				end_line(l, "");
		}
		if (open && progress(c, SLEEP_MS) < 0)
			return;
	}
}

static int run(struct call *c, const char *const *addresses, struct message *error)
{
	const struct ask *ask = c->ask;
	const struct tern_context_opts opts = {
		.secret = secret_text(&ask->secret), .connect_ns = ask->wait_ns};
	int r = tern_context_new(ask->domain, &opts, &c->ctx);

	c->lines = calloc(c->count, sizeof(*c->lines));
	if (r == 0 && !c->lines)
		r = -ENOMEM;
	c->deadline_ns = tern_clock_ns() + ask->wait_ns + GRACE_NS;
	for (uint32_t i = 0; r == 0 && i < c->count; i++) {
		c->lines[i] = (struct line){.call = c, .address = addresses[i]};
		dial(&c->lines[i]);
	}
	if (r == 0)
		r = wait_for_answer(c);
	if (r < 0)
		tell(c, r, error);
	if (c->lines && c->ctx)
		say_goodbye(c);
	tern_context_free(c->ctx);
	free(c->lines);
	json_decref(c->question);
	return r;
}

static int ask_these(struct ask *ask, const char *const *addresses, uint32_t count,
	json_t *question, const char *type, json_t **answer, const char **from,
	struct message *error)
{
	struct call c = {.ask = ask, .question = question, .type = type, .count = count};
	int r = run(&c, addresses, error);

	/* The answer may have come together with an error. */
	if (r == 0)
		*answer = c.answer;
	else
		json_decref(c.answer);
	if (r == 0 && from)
		*from = c.from;
	return r;
}

/* ---- questions ---- */

int ask_job(struct ask *ask, json_t *question, const char *type, json_t **answer,
	const char **from, struct message *error)
{
	const char *addresses[TERN_SERVERS_MAX];

	for (uint32_t i = 0; i < ask->servers.count; i++)
		addresses[i] = ask->servers.address[i];
	return ask_these(
		ask, addresses, ask->servers.count, question, type, answer, from, error);
}

int ask_at(struct ask *ask, const char *address, json_t *question, const char *type,
	json_t **answer, struct message *error)
{
	return ask_these(ask, &address, 1, question, type, answer, NULL, error);
}

/* Why a server does not answer is told anyway, so warnings about it are not shown by default. */
static enum tern_log_level log_level_of(const struct ask_settings *settings)
{
	const char *given = getenv("TERN_LOG");

	if (settings->log_level != TERN_LOG_DEFAULT || (given && *given))
		return settings->log_level;
	return TERN_LOG_ERROR;
}

int ask_open(struct ask *ask, const char *name, const struct ask_settings *settings,
	struct message *error)
{
	const struct tern_domain_opts opts = fabric_domain_opts(&settings->fabric);
	const struct tern_pool_opts pool = {
		.slab_bytes = 1u << 20, .max_bytes = POOL_BYTES};
	const char *missing;
	int r;

	*ask = (struct ask){.name = name, .wait_ns = (uint64_t)(settings->wait_s * 1e9)};
	if (!settings->join)
		return options_refuse(error,
			"--join is missing: give the address of a server of the job");
	if (log_open(name, log_level_of(settings), error) < 0 ||
		fabric_check(&settings->fabric, error) < 0 ||
		secret_read(&settings->secret, &ask->secret, error) < 0)
		return -EINVAL;
	r = tern_domain_new(&opts, &ask->domain);
	if (r == 0)
		r = tern_pool_new(ask->domain, &pool, &ask->pool);
	if (r < 0) {
		options_refuse(error, "%s", tern_status_text(r));
		return r;
	}
	missing = fabric_missing(&settings->fabric, ask->domain);
	if (missing)
		return options_refuse(error, "--fabric %s: %s",
			fabric_name(&settings->fabric), missing);
	return servers_read(
		settings->join, &settings->fabric, ask->domain, &ask->servers, error);
}

void ask_close(struct ask *ask)
{
	tern_pool_free(ask->pool);
	tern_domain_free(ask->domain);
	secret_forget(&ask->secret);
}
