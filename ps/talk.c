/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/talk.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"

#define BROKEN_NS TERN_NS_PER_S
/* A legal job of the largest size has fewer. A node takes up to 100 times its text. */
#define NODES_MAX (1u << 20)

/* One piece on its way out. */
struct saying {
	struct tern_req req;
	struct tern_pool *pool;
	struct tern_buf buf;
};

static uint64_t talk_key(void)
{
	return tern_key("talk");
}

/* ---- saying ---- */

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
		tern_talk_failed(talk, r); /* somebody may wait for it */
}

/* ---- hearing ---- */

static void forget_text(struct tern_talk *talk)
{
	if (talk->text_left)
		*talk->text_left += talk->text_room;
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

static bool make_room(struct tern_talk *talk, uint64_t bytes)
{
	uint64_t room = talk->text_room ? talk->text_room : 4 * TERN_PS_PIECE_BYTES, more;
	char *text;

	if (bytes <= talk->text_room)
		return true;
	while (room < bytes)
		room *= 2;
	more = room - talk->text_room;
	if (bytes > TERN_PS_TEXT_MAX || (talk->text_left && *talk->text_left < more))
		return false;
	text = realloc(talk->text, room);
	if (!text)
		return false;
	if (talk->text_left)
		*talk->text_left -= more;
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

/* NULL: it is no JSON object, or one of absurdly many parts. */
static json_t *parse(const char *text, uint64_t bytes)
{
	json_t *message;
	unsigned nodes = 0;

	for (uint64_t i = 0; i < bytes; i++)
		nodes += text[i] == ',' || text[i] == '[' || text[i] == '{';
	if (nodes > NODES_MAX)
		return NULL;
	message = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(message))
		return message;
	json_decref(message);
	return NULL;
}

static void take(struct tern_talk *talk, const char *text, uint64_t bytes)
{
	json_t *message = parse(text, bytes);

	forget_text(talk);
	listen(talk);
	talk->heard(talk, message);
	json_decref(message);
}

/* Nothing more is heard: where the message would end, nobody knows. */
static void overrun(struct tern_talk *talk)
{
	stop(talk);
	talk->overrun = true;
	talk->heard(talk, NULL);
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
		forget_text(talk);
		listen(talk);
	} else if (last && !talk->text_bytes) { /* most messages have one piece */
		take(talk, req->data, req->bytes);
	} else if (!append(talk, req->data, req->bytes)) {
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

void tern_talk_close(struct tern_talk *talk)
{
	talk->closed = true;
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

/* -ECANCELED: it was cut off here. -ESHUTDOWN: it has said goodbye, and goes down when
 * all is said. */
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
