/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/talk.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"

#define BROKEN_NS TERN_NS_PER_S

/* One message on its way out. */
struct saying {
	struct tern_req req;
	struct tern_pool *pool;
	struct tern_buf buf;
};

static uint64_t talk_key(void)
{
	return tern_key("talk");
}

static void said(struct tern_req *req)
{
	struct saying *s = req->arg;

	tern_pool_put(s->pool, &s->buf);
	free(s);
}

void tern_talk_say(struct tern_talk *talk, json_t *message)
{
	char *text = message ? json_dumps(message, JSON_COMPACT | JSON_REAL_PRECISION(17))
			     : NULL;
	struct saying *s = calloc(1, sizeof(*s));
	struct tern_tensor tensor;
	size_t bytes = text ? strlen(text) : 0;

	json_decref(message);
	if (!text || !s || talk->closed ||
		tern_pool_get(talk->pool, bytes, &s->buf) < 0) {
		free(text);
		free(s);
		tern_talk_failed(talk, -ENOMEM); /* somebody may wait for it */
		return;
	}
	memcpy(tern_buf_ptr(&s->buf), text, bytes);
	free(text);
	s->pool = talk->pool;
	s->req.done = said;
	s->req.arg = s;
	tensor = (struct tern_tensor){
		.buf = s->buf, .shape = tern_shape_1d(TERN_U8, bytes)};
	tern_send(talk->channel, &s->req, talk_key(), talk->said_count++, &tensor, NULL,
		TERN_URGENT);
}

static void listen(struct tern_talk *talk)
{
	tern_recv(talk->channel, &talk->req, talk_key(), talk->heard_count++, NULL, NULL,
		TERN_RECV_ALLOC);
}

static void heard(struct tern_req *req)
{
	struct tern_talk *talk = req->arg;
	json_t *message = NULL;

	if (req->status < 0) {
		tern_talk_failed(talk, req->status);
		return;
	}
	if (req->bytes <= TERN_PS_TEXT_MAX)
		message = json_loadb(req->data, req->bytes, JSON_REJECT_DUPLICATES, NULL);
	tern_release(req);
	if (!json_is_object(message)) {
		json_decref(message);
		message = NULL;
	}
	if (!talk->closed)
		listen(talk);
	talk->heard(talk, message);
	json_decref(message);
}

int tern_talk_open(struct tern_talk *talk, struct tern_peer *peer)
{
	int r = tern_channel_open(peer, TERN_PS_CHANNEL_TALK, &talk->channel);

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
