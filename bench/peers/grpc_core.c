/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC through the C API of its core, without the C++ layer of grpc_pair.cc. It is built
 * against Debian's library, and against a release build of a newer one (see
 * bench/grpc_release.py), so that the two builds can be compared with one program.
 *
 * The slice that is sent is the sender's tensor, without a copy. The receiver copies the
 * slices that arrive into its tensor. unary: one call per tensor; the methods are
 * registered at both ends, and the server gets a call together with its message. stream:
 * one call, one message per tensor. chunks: one call, messages of at most 1 MiB, since
 * gRPC's maintainers advise against larger ones.
 *
 * Both ends have one completion queue and one thread of their own. Polling asks the queue
 * with a deadline that has passed; sleeping waits in it. With several threads, each has a
 * queue, and a channel or a server. Each server has a port of its own, so channels share no
 * connection.
 */
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#if __has_include(<grpc/credentials.h>) /* of newer versions */
#include <grpc/credentials.h>
#endif
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/pair.h"

#define CHUNK_BYTES (1u << 20)

/* The tag of one operation. handle() calls done(), if it is set, when the operation has ended. */
struct event {
	bool pending;
	void (*done)(struct event *event);
};

/* A unary call at either end. At the server the event stands first for the request, then
 * for the answer. */
struct call {
	struct event event; /* must be first: done() casts it to the call */
	uint64_t n;         /* at the client: number of its message */
	grpc_call *call;
	grpc_byte_buffer *sent, *received;
	grpc_metadata_array initial, trailing;
	grpc_status_code status;
	grpc_slice details;
	gpr_timespec deadline;
	int cancelled;
};

/* The calls of one slot. The server asks for the slot's next call before it answers the present
 * one, so it needs two; the client uses calls[0]. `now`: the server's present one. */
struct slot {
	void *method;
	struct call calls[2];
	unsigned now;
};

static _Thread_local grpc_completion_queue *queue;
static _Thread_local grpc_channel *channel;
static _Thread_local grpc_server *server;
static _Thread_local struct slot *slots;
static _Thread_local struct pair *pair;

/* ---- both ends ---- */

/* Handles the next event of the queue. If there is none: waits for it, or with `poll` does
 * nothing. */
static void handle(bool poll)
{
	gpr_timespec until = poll ? gpr_time_0(GPR_CLOCK_MONOTONIC)
				  : gpr_inf_future(GPR_CLOCK_MONOTONIC);
	grpc_event got = grpc_completion_queue_next(queue, until, NULL);
	struct event *event = got.tag;

	if (got.type == GRPC_QUEUE_TIMEOUT)
		return;
	if (got.type != GRPC_OP_COMPLETE || !got.success)
		pair_die("an operation of gRPC has failed");
	event->pending = false;
	if (event->done)
		event->done(event);
}

static void step(void)
{
	handle(pair->poll);
}

static void finish(const struct event *event)
{
	while (event->pending)
		step();
}

static void start(grpc_call *call, const grpc_op *ops, size_t count, struct event *event)
{
	event->pending = true;
	if (grpc_call_start_batch(call, ops, count, event, NULL) != GRPC_CALL_OK)
		pair_die("gRPC refused to start an operation");
}

/* Returns a message whose only slice is the memory at `data`. */
static grpc_byte_buffer *message_of(const void *data, size_t bytes)
{
	grpc_slice slice = grpc_slice_from_static_buffer(data, bytes);

	return grpc_raw_byte_buffer_create(&slice, 1);
}

static grpc_byte_buffer *reply_message(uint64_t n)
{
	static const unsigned char reply[PAIR_REPLY_BYTES];

	if (pair->both_ways)
		return message_of(pair_reply(pair, n), pair_bytes(pair, n));
	return message_of(reply, sizeof(reply));
}

/* Copies a message to `to`, which has room for `room` bytes, and frees it. Returns its size. */
static size_t deliver(grpc_byte_buffer *message, unsigned char *to, size_t room)
{
	grpc_byte_buffer_reader reader;
	grpc_slice *slice;
	size_t bytes;

	if (!message)
		pair_die("the other end has closed its call");
	bytes = grpc_byte_buffer_length(message);
	if (bytes > room)
		pair_die("a message of %zu bytes, expected at most %zu", bytes, room);
	if (!grpc_byte_buffer_reader_init(&reader, message))
		pair_die("gRPC cannot read a message");
	while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
		memcpy(to, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
		to += GRPC_SLICE_LENGTH(*slice);
	}
	grpc_byte_buffer_reader_destroy(&reader);
	grpc_byte_buffer_destroy(message);
	return bytes;
}

/* As deliver(), for a message that must have all bytes of tensor n, or of answer n. */
static void deliver_whole(grpc_byte_buffer *message, unsigned char *to, uint64_t n)
{
	if (deliver(message, to, pair_bytes(pair, n)) != pair_bytes(pair, n))
		pair_die("a message is too short");
}

/* Returns channel arguments as those of grpc_codec.hh by default: messages of any size, no retries, and the
 * fewest filters. */
static const grpc_channel_args *settings(void)
{
	static grpc_arg args[] = {
		{GRPC_ARG_INTEGER, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, {.integer = -1}},
		{GRPC_ARG_INTEGER, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, {.integer = -1}},
		{GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_RETRIES, {.integer = 0}},
		{GRPC_ARG_INTEGER, GRPC_ARG_MINIMAL_STACK, {.integer = 1}}};
	static const grpc_channel_args all = {sizeof(args) / sizeof(*args), args};

	return &all;
}

static void connect_to(int port)
{
	grpc_channel_credentials *none = grpc_insecure_credentials_create();
	char address[sizeof(pair->host) + 16];

	snprintf(address, sizeof(address), "%s:%d", pair->host, port);
	channel = grpc_channel_create(address, none, settings());
	grpc_channel_credentials_release(none);
}

static void create_server(void)
{
	server = grpc_server_create(settings(), NULL);
	grpc_server_register_completion_queue(server, queue, NULL);
}

static void listen_and_tell(void)
{
	grpc_server_credentials *none = grpc_insecure_server_credentials_create();
	char address[sizeof(pair->host) + 16];
	int port;

	snprintf(address, sizeof(address), "%s:0", pair->host);
	port = grpc_server_add_http2_port(server, address, none);
	grpc_server_credentials_release(none);
	if (!port)
		pair_die("cannot listen");
	grpc_server_start(server);
	pair_tell(pair, &port, sizeof(port));
}

static void request_call(void *method, struct call *c, grpc_byte_buffer **message)
{
	c->event.pending = true;
	if (grpc_server_request_registered_call(server, method, &c->call, &c->deadline,
		    &c->initial, message, queue, queue, &c->event) != GRPC_CALL_OK)
		pair_die("gRPC refused to wait for a call");
}

/* ---- unary calls ---- */

static struct slot *slot_of(uint64_t n)
{
	return &slots[n % pair->inflight];
}

static void call_ended(struct event *event)
{
	struct call *c = (struct call *)event;

	if (c->status != GRPC_STATUS_OK)
		pair_die("a call: status %d", (int)c->status);
	if (!pair->both_ways)
		grpc_byte_buffer_destroy(c->received);
	else
		deliver_whole(c->received, pair_reply(pair, c->n), c->n);
	grpc_byte_buffer_destroy(c->sent);
	grpc_slice_unref(c->details);
	grpc_call_unref(c->call);
}

static void answer_ended(struct event *event)
{
	struct call *c = (struct call *)event;

	if (c->cancelled)
		pair_die("a call was cancelled");
	grpc_byte_buffer_destroy(c->sent);
	grpc_call_unref(c->call);
}

/* Registers a method per slot, so that a call needs no header that says its slot. The server
 * also begins to listen, and waits for the first call of each slot. */
static void unary_open(void)
{
	slots = calloc(pair->inflight, sizeof(*slots));
	for (unsigned i = 0; i < pair->inflight; i++) {
		struct slot *slot = &slots[i];
		char name[32];

		snprintf(name, sizeof(name), "/tensor/%u", i);
		if (pair->sender)
			slot->method =
				grpc_channel_register_call(channel, name, NULL, NULL);
		else
			slot->method = grpc_server_register_method(server, name, NULL,
				GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
		for (unsigned k = 0; k < 2; k++) {
			grpc_metadata_array_init(&slot->calls[k].initial);
			grpc_metadata_array_init(&slot->calls[k].trailing);
		}
	}
	if (pair->sender)
		return;
	listen_and_tell();
	for (unsigned i = 0; i < pair->inflight; i++)
		request_call(
			slots[i].method, &slots[i].calls[0], &slots[i].calls[0].received);
}

static void unary_post(struct pair *p, uint64_t n)
{
	struct slot *slot = slot_of(n);
	struct call *c = &slot->calls[0];
	grpc_op ops[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
		{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_MESSAGE},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};

	c->n = n;
	c->sent = message_of(pair_tensor(p, n), pair_bytes(p, n));
	c->event.done = call_ended;
	c->call = grpc_channel_create_registered_call(channel, NULL,
		GRPC_PROPAGATE_DEFAULTS, queue, slot->method,
		gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	ops[1].data.send_message.send_message = c->sent;
	ops[3].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
	ops[4].data.recv_message.recv_message = &c->received;
	ops[5].data.recv_status_on_client.trailing_metadata = &c->trailing;
	ops[5].data.recv_status_on_client.status = &c->status;
	ops[5].data.recv_status_on_client.status_details = &c->details;
	start(c->call, ops, sizeof(ops) / sizeof(*ops), &c->event);
}

static void unary_await(uint64_t n)
{
	finish(&slot_of(n)->calls[0].event);
}

static void unary_receive(struct pair *p, uint64_t n)
{
	struct slot *slot = slot_of(n);
	struct call *c = &slot->calls[slot->now];

	finish(&c->event);
	deliver_whole(c->received, pair_tensor(p, n), n);
}

static void unary_answer(uint64_t n)
{
	struct slot *slot = slot_of(n);
	struct call *c = &slot->calls[slot->now];
	struct call *next = &slot->calls[!slot->now];
	grpc_op ops[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_SEND_STATUS_FROM_SERVER},
		{.op = GRPC_OP_RECV_CLOSE_ON_SERVER}};

	finish(&next->event); /* the slot's previous answer, for which `next` was used */
	next->event.done = NULL;
	request_call(slot->method, next, &next->received);
	slot->now = !slot->now;

	c->sent = reply_message(n);
	c->event.done = answer_ended;
	ops[1].data.send_message.send_message = c->sent;
	ops[2].data.send_status_from_server.status = GRPC_STATUS_OK;
	ops[3].data.recv_close_on_server.cancelled = &c->cancelled;
	start(c->call, ops, sizeof(ops) / sizeof(*ops), &c->event);
}

static void unary_flush(void)
{
	for (unsigned i = 0; i < pair->inflight; i++)
		finish(&slots[i].calls[!slots[i].now].event);
}

/* ---- one call for all messages ---- */

/* The state of the stream at this end. From the beginning of each size, `written` counts the
 * tensors (at the receiver: the answers) that have left, the sender's `answers` the answers that have arrived, and its
 * `awaited` those that it has waited for; the receiver's `received` counts the tensors that have
 * arrived. `filled`: bytes of the arriving tensor that are here. */
static _Thread_local struct {
	struct call opening; /* its `call` is the stream */
	struct event reading, writing;
	grpc_byte_buffer *incoming, *outgoing;
	bool ends_tensor; /* `outgoing` is the last message of its tensor */
	size_t chunk;
	uint64_t written, answers, awaited, received;
	size_t filled;
} stream;

static void read_next(void)
{
	grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

	op.data.recv_message.recv_message = &stream.incoming;
	start(stream.opening.call, &op, 1, &stream.reading);
}

/* Copies the part of tensor (or answer) n that has arrived; the tensor is at `to`. True if it
 * was the last part. */
static bool take_part(unsigned char *to, uint64_t n)
{
	size_t bytes = pair_bytes(pair, n);

	stream.filled +=
		deliver(stream.incoming, to + stream.filled, bytes - stream.filled);
	if (stream.filled < bytes)
		return false;
	stream.filled = 0;
	return true;
}

static void tensor_part_arrived(struct event *event)
{
	(void)event;
	stream.received += take_part(pair_tensor(pair, stream.received), stream.received);
	read_next();
}

static void answer_part_arrived(struct event *event)
{
	(void)event;
	stream.answers += take_part(pair_reply(pair, stream.answers), stream.answers);
	read_next();
}

static void answer_arrived(struct event *event)
{
	unsigned char reply[PAIR_REPLY_BYTES];

	(void)event;
	deliver(stream.incoming, reply, sizeof(reply));
	stream.answers++;
	read_next();
}

static void message_written(struct event *event)
{
	(void)event;
	grpc_byte_buffer_destroy(stream.outgoing);
	stream.written += stream.ends_tensor;
}

/* Starts to write a message; waits for the write before it, because gRPC allows one at a time.
 * `ends_tensor`: it is the last message of its tensor. `may_wait`: it may leave together with
 * the next message. */
static void write_message(grpc_byte_buffer *message, bool ends_tensor, bool may_wait)
{
	grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

	finish(&stream.writing);
	stream.outgoing = message;
	stream.ends_tensor = ends_tensor;
	op.flags = may_wait ? GRPC_WRITE_BUFFER_HINT : 0;
	op.data.send_message.send_message = message;
	start(stream.opening.call, &op, 1, &stream.writing);
}

static void stream_open(void)
{
	static const char method[] = "/tensor/stream";
	struct call *c = &stream.opening;
	grpc_op ops[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_RECV_INITIAL_METADATA}};

	stream.chunk = strcmp(pair->variant, "chunks") == 0 ? CHUNK_BYTES : SIZE_MAX;
	stream.writing.done = message_written;
	stream.reading.done = !pair->sender     ? tensor_part_arrived
			      : pair->both_ways ? answer_part_arrived
						: answer_arrived;
	grpc_metadata_array_init(&c->initial);
	ops[1].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
	if (pair->sender) {
		c->call = grpc_channel_create_registered_call(channel, NULL,
			GRPC_PROPAGATE_DEFAULTS, queue,
			grpc_channel_register_call(channel, method, NULL, NULL),
			gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	} else {
		void *registered = grpc_server_register_method(
			server, method, NULL, GRPC_SRM_PAYLOAD_NONE, 0);

		listen_and_tell();
		request_call(registered, c, NULL);
		finish(&c->event);
	}
	start(c->call, ops, pair->sender ? 2 : 1, &c->event);
	finish(&c->event);
	read_next();
}

/* Writes tensor n, whose bytes are at `data`, in messages of at most stream.chunk bytes.
 * `may_wait`: the last message may leave together with the next tensor. */
static void write_tensor(
	struct pair *p, const unsigned char *data, uint64_t n, bool may_wait)
{
	for (size_t left = pair_bytes(p, n); left;) {
		size_t bytes = left < stream.chunk ? left : stream.chunk;

		left -= bytes;
		write_message(message_of(data, bytes), !left, left || may_wait);
		data += bytes;
	}
}

static void stream_post(struct pair *p, uint64_t n)
{
	write_tensor(p, pair_tensor(p, n), n, !pair_answered(p, n));
}

static void stream_answer(struct pair *p, uint64_t n)
{
	if (p->both_ways)
		write_tensor(p, pair_reply(p, n), n, false);
	else if (pair_answered(p, n))
		write_message(reply_message(n), true, false);
}

static void stream_await(struct pair *p, uint64_t n)
{
	stream.awaited += pair_answered(p, n);
	while (stream.written <= n || stream.answers < stream.awaited)
		step();
}

/* ---- what pair_main() calls ---- */

static bool is_unary(const struct pair *p)
{
	return strcmp(p->variant, "unary") == 0;
}

static void core_open(struct pair *p)
{
	int port;

	pair = p;
	grpc_init();
	queue = grpc_completion_queue_create_for_next(NULL);
	if (p->sender) {
		pair_hear(p, &port, sizeof(port));
		connect_to(port);
	} else {
		create_server();
	}
	(is_unary(p) ? unary_open : stream_open)();
}

static void core_begin(struct pair *p)
{
	(void)p;
	stream.written = stream.answers = stream.awaited = stream.received = 0;
}

static void core_post(struct pair *p, uint64_t n)
{
	(is_unary(p) ? unary_post : stream_post)(p, n);
}

static void core_await(struct pair *p, uint64_t n)
{
	if (is_unary(p))
		unary_await(n);
	else
		stream_await(p, n);
}

static void core_receive(struct pair *p, uint64_t n)
{
	if (is_unary(p))
		unary_receive(p, n);
	while (!is_unary(p) && stream.received <= n)
		step();
}

static void core_answer(struct pair *p, uint64_t n)
{
	if (is_unary(p))
		unary_answer(n);
	else
		stream_answer(p, n);
}

static void core_flush(struct pair *p)
{
	if (!p->both_ways)
		return;
	if (is_unary(p))
		unary_flush();
	else
		finish(&stream.writing);
}

static void core_progress(struct pair *p)
{
	(void)p;
	handle(true);
}

static const char *core_version(void)
{
	static char text[32];

	snprintf(text, sizeof(text), "core %s", grpc_version_string());
	return text;
}

int main(int argc, char **argv)
{
	return pair_main(argc, argv,
		&(struct pair_ops){.name = "gRPC core",
			.variants = "unary,stream,chunks",
			.waits = "poll,sleep",
			.both_ways = true,
			.threads = true,
			.version = core_version,
			.open = core_open,
			.begin = core_begin,
			.post = core_post,
			.await = core_await,
			.receive = core_receive,
			.answer = core_answer,
			.flush = core_flush,
			.progress = core_progress});
}
