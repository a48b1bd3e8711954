/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/talk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"

#define BROKEN_NS TERN_NS_PER_S

/* One piece being sent. */
struct saying {
	struct tern_req req;
	struct tern_pool *pool;
	struct tern_buf buf;
};

static uint64_t talk_key(void)
{
	return tern_key("talk");
}

/* ---- sending ---- */

static void said(struct tern_req *req)
{
	struct saying *s = req->arg;

	tern_pool_put(s->pool, &s->buf);
	free(s);
}

static int say_piece(struct tern_talk *talk, const char *text, size_t bytes)
{
	struct saying *s = calloc(1, sizeof(*s));
	struct tern_tensor tensor;

	if (!s || tern_pool_get(talk->pool, bytes, &s->buf) < 0) {
		free(s);
		return -ENOMEM;
	}
	if (bytes)
		memcpy(tern_buf_ptr(&s->buf), text, bytes);
	s->pool = talk->pool;
	s->req.done = said;
	s->req.arg = s;
	tensor = (struct tern_tensor){
		.buf = s->buf, .shape = tern_shape_1d(TERN_U8, bytes)};
	return tern_send(talk->channel, &s->req, talk_key(), talk->said_count++, &tensor,
		NULL, TERN_URGENT);
}

void tern_talk_say(struct tern_talk *talk, json_t *message)
{
	char *text = message ? json_dumps(message, JSON_COMPACT | JSON_REAL_PRECISION(17))
			     : NULL;
	size_t bytes = text ? strlen(text) : 0;
	int r = text && !talk->closed && !talk->ctx->ending ? 0 : -ENOMEM;

	json_decref(message);
	for (size_t at = 0; r == 0 && at <= bytes; at += TERN_PS_PIECE_BYTES)
		r = say_piece(talk, text + at, TERN_MIN(bytes - at, TERN_PS_PIECE_BYTES));
	free(text);
	if (r < 0)
		tern_talk_failed(talk, r); /* a process may wait for the message */
}

/* ---- receiving ---- */

static void forget_text(struct tern_talk *talk)
{
	if (talk->budget)
		talk->budget->bytes_left += talk->text_room;
	free(talk->text);
	talk->text = NULL;
	talk->text_bytes = talk->text_room = 0;
}

static void stop(struct tern_talk *talk)
{
	forget_text(talk);
	tern_pool_put(talk->pool, &talk->piece);
}

static void listen(struct tern_talk *talk)
{
	if (talk->closed)
		stop(talk);
	else
		tern_recv(talk->channel, &talk->req, talk_key(), talk->heard_count++,
			&talk->piece, NULL, 0);
}

static struct tern_talk_limits limits_of(const struct tern_talk *talk)
{
	return talk->budget
		       ? talk->budget->message
		       : (struct tern_talk_limits){TERN_PS_TEXT_MAX, TERN_PS_PARTS_MAX};
}

static bool is_in_budget(struct tern_talk *talk, uint64_t more)
{
	struct tern_talk_budget *budget = talk->budget;

	if (budget && budget->bytes_left < more)
		budget->short_of(budget, more);
	return !talk->deaf && !talk->skips && (!budget || budget->bytes_left >= more);
}

/* Enlarges the buffer of the partly received message to at least `bytes`. False:
 * talk->fault says why that is not possible. */
static bool make_room(struct tern_talk *talk, uint64_t bytes)
{
	uint64_t room = talk->text_room ? talk->text_room : 4 * TERN_PS_PIECE_BYTES, more;
	char *text;

	if (bytes <= talk->text_room)
		return true;
	while (room < bytes)
		room *= 2;
	more = room - talk->text_room;
	if (bytes > limits_of(talk).bytes) {
		snprintf(talk->fault, sizeof(talk->fault),
			"its message is longer than %llu bytes, the limit here",
			(unsigned long long)limits_of(talk).bytes);
		return false;
	}
	text = is_in_budget(talk, more) ? realloc(talk->text, room) : NULL;
	if (!text) {
		snprintf(talk->fault, sizeof(talk->fault),
			"no memory is left for its message of more than %llu bytes",
			(unsigned long long)talk->text_bytes);
		return false;
	}
	if (talk->budget)
		talk->budget->bytes_left -= more;
	talk->text = text;
	talk->text_room = room;
	return true;
}

static bool append(struct tern_talk *talk, const void *data, uint64_t bytes)
{
	if (!make_room(talk, talk->text_bytes + bytes))
		return false;
	if (bytes)
		memcpy(talk->text + talk->text_bytes, data, bytes);
	talk->text_bytes += bytes;
	return true;
}

/* Counts the characters ",", "[" and "{" outside strings, which begin or separate the
 * parts of JSON text. */
static uint64_t count_parts(const char *text, uint64_t bytes)
{
	uint64_t count = 0;
	bool quoted = false;

	for (uint64_t i = 0; i < bytes; i++) {
		if (quoted && text[i] == '\\')
			i++;
		else if (text[i] == '"')
			quoted = !quoted;
		else if (!quoted)
			count += text[i] == ',' || text[i] == '[' || text[i] == '{';
	}
	return count;
}

/* Parses a message as JSON. NULL: talk->fault says what is wrong. */
static json_t *parse(struct tern_talk *talk, const char *text, uint64_t bytes)
{
	uint64_t parts = count_parts(text, bytes);
	json_t *message;

	talk->last = (struct tern_talk_limits){bytes, parts};
	if (parts > limits_of(talk).parts) {
		snprintf(talk->fault, sizeof(talk->fault),
			"its JSON message has %llu members and elements, and the limit "
			"here is %llu",
			(unsigned long long)parts,
			(unsigned long long)limits_of(talk).parts);
		return NULL;
	}
	message = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(message))
		return message;
	json_decref(message);
	snprintf(talk->fault, sizeof(talk->fault), "its message is not a JSON object");
	return NULL;
}

static void take(struct tern_talk *talk, const char *text, uint64_t bytes)
{
	json_t *message = parse(talk, text, bytes);

	forget_text(talk);
	listen(talk);
	talk->heard(talk, message);
	json_decref(message);
}

/* The message was too long, or no memory was left for it. Nothing more is received, since
 * the end of the message is unknown. */
static void overrun(struct tern_talk *talk)
{
	stop(talk);
	talk->heard(talk, NULL);
}

static void skip_piece(struct tern_talk *talk, bool last)
{
	talk->skips = !last;
	listen(talk);
	if (last)
		talk->budget->skipped(talk);
}

static void heard(struct tern_req *req)
{
	struct tern_talk *talk = req->arg;
	bool last = req->bytes < TERN_PS_PIECE_BYTES;

	if (req->status < 0) {
		stop(talk);
		tern_talk_failed(talk, req->status);
		if (talk->closed && talk->idle)
			talk->idle(talk);
	} else if (talk->deaf) {
		listen(talk);
	} else if (talk->skips) {
		skip_piece(talk, last);
	} else if (last && !talk->text_bytes) { /* most messages have one piece */
		take(talk, req->data, req->bytes);
	} else if (!append(talk, req->data, req->bytes)) {
		if (talk->skips)
			skip_piece(talk, last);
		else
			overrun(talk);
	} else if (last) {
		take(talk, talk->text, talk->text_bytes);
	} else {
		listen(talk);
	}
}

int tern_talk_open(struct tern_talk *talk, struct tern_peer *peer)
{
	int r = tern_channel_open(peer, TERN_PS_CHANNEL_TALK, &talk->channel);

	if (r == 0)
		r = tern_pool_get(talk->pool, TERN_PS_PIECE_BYTES, &talk->piece);
	if (r < 0)
		return r;
	talk->req.done = heard;
	talk->req.arg = talk;
	listen(talk);
	return 0;
}

void tern_talk_deafen(struct tern_talk *talk)
{
	talk->deaf = true;
	forget_text(talk);
}

void tern_talk_skip(struct tern_talk *talk)
{
	talk->skips = true;
	forget_text(talk);
}

void tern_talk_close(struct tern_talk *talk)
{
	talk->closed = true;
	forget_text(talk);
	tern_timer_clear(talk->ctx, &talk->broken_timer);
}

bool tern_talk_is_idle(const struct tern_talk *talk)
{
	return talk->req.status != -EINPROGRESS;
}

static void broken(struct tern_timer *timer)
{
	struct tern_talk *talk = tern_container_of(timer, struct tern_talk, broken_timer);

	if (!talk->ctx->ending)
		talk->broken(talk, talk->broken_status);
}

/* -ECANCELED means that this process has cut off the peer. -ESHUTDOWN means that the peer
 * has said goodbye, and its event DOWN follows. Neither is an error to report. */
void tern_talk_failed(struct tern_talk *talk, int status)
{
	if (status == -ECANCELED || status == -ESHUTDOWN || talk->closed ||
		talk->broken_status)
		return;
	talk->broken_status = status;
	talk->broken_timer.fire = broken;
	tern_timer_set(talk->ctx, &talk->broken_timer,
		tern_now_ns(tern_context_env(talk->ctx)) + BROKEN_NS);
}

json_t *tern_talk_text(const char *text)
{
	json_t *string = json_string(text);
	char *plain = string ? NULL : strdup(text);

	for (char *p = plain; p && *p; p++) {
		if (*p & 0x80)
			*p = '?';
	}
	if (plain)
		string = json_string(plain);
	free(plain);
	return string ? string : json_string("");
}

const char *tern_talk_type(const json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));

	return type ? type : "";
}

uint64_t tern_talk_claim(const json_t *message)
{
	json_int_t claim = json_integer_value(json_object_get(message, "claim"));

	return claim > 0 ? (uint64_t)claim : 0;
}
