/* SPDX-License-Identifier: Apache-2.0 */
/* See meet_scene.h: a stranger beside two correct ends. */
#include "tests/rendezvous/meet_scene.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/endian.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct scene *s = arg;

	s->caller = peer;
	s->accepted_count++;
}

void scene_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct scene *s = arg;

	if (event != TERN_PEER_DOWN)
		return;
	s->down_count++;
	s->down_status = status;
	tern_peer_free(peer);
}

void scene_init_with(struct scene *s, const struct instance *instance,
	const struct tern_context_opts *b_opts)
{
	const struct tern_peer_opts opts = {.event = scene_event, .arg = s};
	char rest[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX];

	*s = (struct scene){.instance = instance};
	s->meet = meet_new_with(instance, NULL, b_opts);
	s->bed = bed_new_sized(instance, TERN_MESSAGE_MAX, TERN_MESSAGE_MAX);
	instance->address(rest, 1);
	meet_url(instance, rest, url);
	assert_int_equal(
		tern_listen(s->meet->ends[B].ctx, url, &opts, on_accept, s, &s->listener),
		0);
}

void scene_init(struct scene *s, const struct instance *instance)
{
	scene_init_with(s, instance, NULL);
}

void scene_fini(struct scene *s)
{
	bed_free(s->bed);
	tern_listener_free(s->listener);
	meet_free(s->meet);
}

int stranger_hears(struct link *link, const void *data, size_t bytes)
{
	struct scene *s = link->arg;
	struct tern_header h;
	const char *why;

	if (tern_header_type(data) == TERN_MSG_HELLO) {
		assert_int_equal(tern_hello_decode(data, bytes, &s->answer), 0);
		s->granted = s->answer.credit;
		s->used = s->heard = s->ack = s->answer.first_seq;
		return 0;
	}
	assert_int_equal(tern_header_decode(data, bytes, &h, &why), 0);
	s->granted = h.credit;
	if (tern_type_is_sequenced(h.type))
		s->heard = h.seq;
	if (h.type == TERN_MSG_FIN)
		s->fin_seq = h.seq;
	if (h.type == TERN_MSG_WANT)
		s->want = h.src;
	if (h.type == TERN_MSG_MISS)
		s->missed = h.dst;
	if (h.type == TERN_MSG_POST)
		s->posted = h.src;
	if (h.type == TERN_MSG_ATS) {
		s->ats = h.dst;
		s->ats_status = h.status;
	}
	if (h.type >= TERN_MSG_WINDOW_OPEN && s->on_window)
		s->on_window(s, &h);
	return 0;
}

int stranger_tries(
	struct scene *s, const void *message, size_t bytes, size_t payload_bytes)
{
	return s->bed->sides[A].fabric->ops->send(s->link->conn, message, bytes,
		(const char *)message + bytes, payload_bytes);
}

void stranger_hello_with(
	struct scene *s, uint8_t step, int16_t status, uint32_t eager_bytes)
{
	const struct tern_hello hello = {
		.step = step,
		.status = status,
		.epoch = 1,
		.incarnation = 77,
		.token = s->answer.token,
		.credit = 64,
		.eager_bytes = eager_bytes,
		.name = "a stranger",
	};
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];

	tern_hello_encode(&hello, message);
	SCENE_PUMP(s, stranger_tries(s, message, sizeof(message), 0) == 0);
}

void stranger_hello(struct scene *s, uint8_t step)
{
	stranger_hello_with(s, step, 0, TERN_EAGER_MAX);
}

void stranger_says(struct scene *s, const struct tern_header *what)
{
	static _Alignas(8) unsigned char message[TERN_MESSAGE_MAX];
	size_t payload_bytes = tern_header_payload_bytes(what);
	struct tern_header h = *what;
	size_t bytes;

	s->used += tern_type_takes_credit(h.type, h.dst);
	s->seq += tern_type_is_sequenced(h.type);
	h.epoch = 1;
	h.seq = s->seq;
	h.ack = s->ack;
	h.credit = 64;
	h.channel = what->channel ? what->channel : MEET_CHANNEL;
	h.key = what->key ? what->key : STRANGER_KEY;
	bytes = tern_header_encode(&h, message);
	if (what->payload)
		memcpy(message + bytes, what->payload, payload_bytes);
	else
		pattern_fill(message + bytes, payload_bytes, s->seq, 0);
	SCENE_PUMP(s, stranger_tries(s, message, bytes, payload_bytes) == 0);
}

void stranger_dials(struct scene *s)
{
	s->link = bed_dial_at(
		s->bed, A, strstr(tern_listener_address(s->listener), "://") + 3);
	s->link->on_message = stranger_hears;
	s->link->arg = s;
	s->answer = (struct tern_hello){0};
	s->seq = s->want = s->missed = s->fin_seq = s->posted = 0;
	SCENE_PUMP(s, s->link->up);
}

void stranger_comes(struct scene *s)
{
	unsigned before = s->accepted_count;

	stranger_dials(s);
	stranger_hello(s, 1);
	SCENE_PUMP(s, s->answer.step == 2);
	stranger_hello(s, 3);
	SCENE_PUMP(s, s->accepted_count > before);
}

void scene_undisturbed(struct scene *s, uint64_t step)
{
	struct end *a = &s->meet->ends[A], *b = &s->meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 100000, step);
	struct tern_buf room = end_memory(b, SLAB, 100000);
	struct call send = {0}, recv = {0};

	assert_int_equal(call_send(&send, a, STRANGER_KEY, step, &data, 0), 0);
	assert_int_equal(call_recv(&recv, b, STRANGER_KEY, step, &room, 0), 0);
	SCENE_PUMP(s, call_over(&send) && call_over(&recv));
	call_check(&recv, 100000, step);
	assert_int_equal(a->suspect_count + b->suspect_count, 0);
}

static const struct tern_header decent = {
	.type = TERN_MSG_EAGER, .shape = {TERN_U8, 1, {9}}, .bytes = 9};

void scene_ends_session(struct scene *s, const struct tern_header *h)
{
	unsigned before = s->down_count;

	/* A correct message: B keeps it in a record until the session ends. */
	stranger_says(s, &decent);
	stranger_says(s, h);
	SCENE_PUMP(s, s->link->closed_count);
	SCENE_PUMP(s, s->down_count > before);
	assert_int_equal(s->down_status, -EPROTO);
}

void scene_protocol_error(struct scene *s, const struct tern_header *h)
{
	struct log_env *log = &s->meet->ends[B].log;
	char line[64];

	log->env.strangers.until_ns = 0; /* earlier lines use up no part of the limit */
	scene_ends_session(s, h);
	snprintf(line, sizeof(line), "protocol error: %s", tern_message_name(h->type));
	assert_true(log_env_has(log, line));
	log->count = 0;
}
