/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of bytes from raw sockets to a port of the tcp fabric, most of which no correct
 * peer sends. Wrong frames must end the conn with -EPROTO, and truncated ones are no
 * message. No memory may be accessed that was not exposed to the conn, and a correct conn
 * of the same port must continue.
 */
#include "tests/transport/tcp/tcp_world.h"

static const struct tern_fabric_ops *const ops = &tern_tcp_fabric_ops;

static char memory[8192];

/* A world with a correct conn, and a window in the middle of `memory` that belongs to the
 * conn's owner. */
struct scene {
	struct world w;
	struct seen *client, *server;
	struct tern_region region;
	unsigned heard;
	/* Must be the last member, since it ends in a flexible array. */
	struct tern_mem mem;
};

#define WINDOW_AT    1024
#define WINDOW_BYTES 4096

static void scene_start(struct scene *s, void **state)
{
	world_start(&s->w, (enum tern_tcp_engine)engine_of(state));
	world_connect(&s->w, &s->client, &s->server);
	memset(memory, 0, sizeof(memory));
	s->mem = mem_of(memory, sizeof(memory));
	s->heard = 0;
	assert_int_equal(ops->expose(s->server->conn, &s->mem, WINDOW_AT, WINDOW_BYTES,
				 TERN_ACCESS_WRITE, &s->region),
		0);
}

#define scene_start_or_skip(s, state)                                                    \
	do {                                                                             \
		if (engine_refused(engine_of(state))) {                                  \
			print_message("skipped: the kernel refuses io_uring\n");         \
			skip();                                                          \
		}                                                                        \
		scene_start(s, state);                                                   \
	} while (0)

static void scene_stop(struct scene *s)
{
	assert_int_equal(ops->withdraw(s->w.server.port, NULL, &s->region), 0);
	for (size_t i = 0; i < sizeof(memory); i++)
		assert_int_equal(memory[i], 0);
	world_stop(&s->w);
}

/* Forgets the hostile conns, which are closed, so that the world has room for the next one.
 * Entry 0, the correct conn, stays. */
static void scene_forget(struct scene *s)
{
	assert_int_equal(s->w.server.seen[0].closed_count, 0);
	s->w.server.seen_count = 1;
	memset(&s->w.server.seen[1], 0, sizeof(s->w.server.seen[1]));
}

static void check_good_conn(struct scene *s)
{
	assert_int_equal(ops->send(s->client->conn, "still on", 8, NULL, 0), 0);
	s->heard++;
	world_until(&s->w, s->server->message_count == s->heard);
	assert_int_equal(s->server->closed_count, 0);
}

/* Sends `bytes` and the end of the stream from a raw socket. `owner`: the owner that the
 * server's conn gets; NULL: it was not accepted as a peer. Returns the status with which
 * the conn ends. */
static int hostile(struct scene *s, const void *data, size_t bytes, void *owner)
{
	struct seen *server;
	int fd = world_raw(&s->w, &server), status;

	server->conn->owner = owner;
	for (size_t sent = 0; sent < bytes;) {
		ssize_t n = send(fd, (const char *)data + sent, bytes - sent,
			MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno != EAGAIN)
			break; /* the server has closed the conn already */
		sent += n > 0 ? (size_t)n : 0;
		world_poll(&s->w);
	}
	shutdown(fd, SHUT_WR);
	world_until(&s->w, server->closed_count);
	status = server->status;
	close(fd);
	check_good_conn(s);
	scene_forget(s);
	return status;
}

static int hostile_frame(struct scene *s, struct tcp_frame frame, const void *body,
	size_t bytes, void *owner)
{
	static uint8_t data[TCP_FRAME_BYTES + 65536];

	tcp_frame_put(data, &frame, body);
	memcpy(data + TCP_FRAME_BYTES, body, bytes);
	return hostile(s, data, TCP_FRAME_BYTES + bytes, owner);
}

static char body[65536];
static int other_owner;

static void test_random_bytes_cut_only_their_own_conn(void **state)
{
	struct tern_rng rng = {3, 0};
	struct scene s;

	scene_start_or_skip(&s, state);
	for (int i = 0; i < 60; i++) {
		uint8_t data[3000];
		size_t bytes = TCP_FRAME_BYTES + tern_rng_below(&rng, 2900);

		for (size_t j = 0; j < bytes; j++)
			data[j] = (uint8_t)tern_rng_next(&rng);
		/* In two of three frames the magic number, the kind and the zero byte are
		 * right, so that later checks are reached. */
		if (i % 3) {
			tern_put_le16(data, TCP_MAGIC);
			data[2] = (uint8_t)(1 + i % 2);
			data[3] = 0;
		}
		assert_int_equal(
			hostile(&s, data, bytes, i % 2 ? &other_owner : NULL), -EPROTO);
	}
	scene_stop(&s);
}

static void test_truncated_frames_are_no_message(void **state)
{
	struct tcp_frame frame = {.kind = TCP_MESSAGE, .bytes = 100, .head_bytes = 64};
	uint8_t data[TCP_FRAME_BYTES + 100] = {0};
	struct scene s;

	scene_start_or_skip(&s, state);
	tcp_frame_put(data, &frame, data + TCP_FRAME_BYTES);
	for (size_t bytes = 0; bytes < sizeof(data); bytes += bytes < 40 ? 1 : 13)
		assert_int_equal(hostile(&s, data, bytes, &other_owner), -ECONNRESET);
	scene_stop(&s);
}

/* Inverts each bit of the header and the head of a correct message, one at a time. */
static void test_every_wrong_bit_of_a_message_is_found(void **state)
{
	struct tcp_frame frame = {.kind = TCP_MESSAGE, .bytes = 48, .head_bytes = 16};
	uint8_t good[TCP_FRAME_BYTES + 48], bad[sizeof(good)];
	struct scene s;

	scene_start_or_skip(&s, state);
	memset(good, 'm', sizeof(good));
	tcp_frame_put(good, &frame, good + TCP_FRAME_BYTES);
	for (unsigned bit = 0; bit < 8 * (TCP_FRAME_BYTES + 16); bit++) {
		int status;

		memcpy(bad, good, sizeof(good));
		bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
		status = hostile(&s, bad, sizeof(bad), &other_owner);
		/* If the length is too large, the receiver may also wait for the rest. */
		if (bit >= 64 && bit < 80)
			assert_true(status == -EPROTO || status == -ECONNRESET);
		else
			assert_int_equal(status, -EPROTO);
	}
	assert_int_equal(hostile(&s, good, sizeof(good), &other_owner), -ECONNRESET);
	scene_stop(&s);
}

static void test_every_wrong_bit_of_a_put_is_found(void **state)
{
	uint8_t good[TCP_FRAME_BYTES + 64] = {0}, bad[sizeof(good)];
	struct tcp_frame frame = {.kind = TCP_PUT, .bytes = 64};
	struct scene s;

	scene_start_or_skip(&s, state);
	frame.entry = (uint32_t)s.region.word[0];
	frame.generation = (uint32_t)(s.region.word[0] >> 32);
	tcp_frame_put(good, &frame, NULL);
	memset(good + TCP_FRAME_BYTES, 'p', 64);
	for (unsigned bit = 0; bit < 8 * TCP_FRAME_BYTES; bit++) {
		memcpy(bad, good, sizeof(good));
		bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(
			hostile(&s, bad, sizeof(bad), s.server->conn->owner), -EPROTO);
	}
	scene_stop(&s);
}

static void test_fields_out_of_range_are_refused(void **state)
{
	static const struct tcp_frame wrong[] = {
		{.kind = TCP_MESSAGE, .bytes = MESSAGE_BYTES + 1},
		{.kind = TCP_MESSAGE, .bytes = UINT64_MAX},
		{.kind = TCP_MESSAGE, .bytes = 8, .head_bytes = 16},
		{.kind = TCP_MESSAGE, .bytes = 64, .head_bytes = 12},
		{.kind = 0, .bytes = 8},
		{.kind = 3, .bytes = 8},
		{.kind = 255, .bytes = 8},
	};
	struct scene s;

	scene_start_or_skip(&s, state);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++)
		assert_int_equal(
			hostile_frame(&s, wrong[i], body, 64, &other_owner), -EPROTO);
	scene_stop(&s);
}

static void test_puts_to_where_the_peer_may_not_write_are_refused(void **state)
{
	struct tern_region read_only;
	struct scene s;
	uint32_t entry, generation;
	void *owner;

	scene_start_or_skip(&s, state);
	memset(body, 'x', sizeof(body));
	entry = (uint32_t)s.region.word[0];
	generation = (uint32_t)(s.region.word[0] >> 32);
	owner = s.server->conn->owner;
	assert_int_equal(
		ops->expose(s.server->conn, &s.mem, 0, 100, TERN_ACCESS_READ, &read_only),
		0);
	const struct {
		struct tcp_frame frame;
		void *owner;
	} wrong[] = {
		{{.bytes = WINDOW_BYTES + 1}, owner},
		{{.bytes = 1, .offset = WINDOW_BYTES}, owner},
		{{.bytes = 2, .offset = WINDOW_BYTES - 1}, owner},
		{{.bytes = 64, .offset = UINT64_MAX - 31}, owner},
		{{.bytes = UINT64_MAX, .offset = 64}, owner},
		{{.bytes = 0}, owner},
		{{.bytes = 64, .entry = entry + 2}, owner},
		{{.bytes = 64, .entry = UINT32_MAX}, owner},
		{{.bytes = 64, .entry = TERN_EXPOSURES_MAX}, owner},
		{{.bytes = 64, .generation = generation + 1}, owner},
		{{.bytes = 64}, &other_owner},
		{{.bytes = 64}, NULL},
		{{.bytes = 64,
			 .entry = (uint32_t)read_only.word[0],
			 .generation = (uint32_t)(read_only.word[0] >> 32)},
			owner},
	};
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct tcp_frame frame = wrong[i].frame;

		frame.kind = TCP_PUT;
		if (!frame.entry)
			frame.entry = entry;
		if (!frame.generation)
			frame.generation = generation;
		assert_int_equal(
			hostile_frame(&s, frame, body, 64, wrong[i].owner), -EPROTO);
	}
	assert_int_equal(ops->withdraw(s.w.server.port, NULL, &read_only), 0);
	scene_stop(&s);
}

static void test_a_put_at_the_edges_of_its_window_lands(void **state)
{
	struct tcp_frame frame = {.kind = TCP_PUT, .bytes = 64};
	struct scene s;

	scene_start_or_skip(&s, state);
	memset(body, 'x', 64);
	frame.entry = (uint32_t)s.region.word[0];
	frame.generation = (uint32_t)(s.region.word[0] >> 32);
	for (int end = 0; end < 2; end++) {
		frame.offset = end ? WINDOW_BYTES - 64 : 0;
		assert_int_equal(
			hostile_frame(&s, frame, body, 64, s.server->conn->owner),
			-ECONNRESET);
		assert_memory_equal(memory + WINDOW_AT + frame.offset, body, 64);
		memset(memory + WINDOW_AT + frame.offset, 0, 64);
	}
	scene_stop(&s);
}

static void test_a_stranger_may_say_little(void **state)
{
	struct tcp_frame frame = {.kind = TCP_MESSAGE};
	struct scene s;

	scene_start_or_skip(&s, state);
	frame.bytes = TCP_STRANGER_BYTES + 1;
	assert_int_equal(hostile_frame(&s, frame, body, frame.bytes, NULL), -EPROTO);
	assert_int_equal(
		hostile_frame(&s, frame, body, frame.bytes, &other_owner), -ECONNRESET);
	frame.bytes = TCP_STRANGER_BYTES;
	assert_int_equal(hostile_frame(&s, frame, body, frame.bytes, NULL), -ECONNRESET);
	scene_stop(&s);
}

static int count_messages(struct seen *seen, const char *data, size_t bytes)
{
	assert_true(bytes == 0 || data[bytes - 1] == (char)bytes);
	seen->owner++;
	return 0;
}

/* A stream of correct frames gives the same messages in whatever pieces it arrives. */
static void test_a_stream_in_any_pieces_is_the_same_frames(void **state)
{
	static uint8_t stream[40000];
	struct tern_rng rng = {5, 0};
	size_t total = 0;
	int count = 0;
	struct scene s;

	scene_start_or_skip(&s, state);
	while (total < sizeof(stream) - 500) {
		struct tcp_frame frame = {.kind = TCP_MESSAGE};
		uint8_t *at = stream + total;

		frame.bytes = tern_rng_below(&rng, 400);
		frame.head_bytes = (uint32_t)TERN_MIN(frame.bytes, 64u) & ~7u;
		memset(at + TCP_FRAME_BYTES, (int)(frame.bytes & 0xff), frame.bytes);
		tcp_frame_put(at, &frame, at + TCP_FRAME_BYTES);
		total += TCP_FRAME_BYTES + frame.bytes;
		count++;
	}
	for (int round = 0; round < 3; round++) {
		struct seen *server;
		int fd = world_raw(&s.w, &server);
		size_t most = round == 0 ? 1 : round == 1 ? 70 : 3000;

		s.w.server.on_message = count_messages;
		server->owner = 0;
		for (size_t sent = 0; sent < (most == 1 ? 4000 : total);) {
			size_t n = 1 + tern_rng_below(&rng, most);

			n = TERN_MIN(n, total - sent);
			assert_int_equal(send(fd, stream + sent, n, MSG_NOSIGNAL), n);
			sent += n;
			world_poll(&s.w);
		}
		if (most > 1)
			world_until(&s.w, server->owner == count);
		assert_true(server->owner > 10);
		close(fd);
		world_until(&s.w, server->closed_count);
		s.w.server.on_message = NULL;
		scene_forget(&s);
	}
	scene_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		both_engines(test_random_bytes_cut_only_their_own_conn),
		both_engines(test_truncated_frames_are_no_message),
		both_engines(test_every_wrong_bit_of_a_message_is_found),
		both_engines(test_every_wrong_bit_of_a_put_is_found),
		both_engines(test_fields_out_of_range_are_refused),
		both_engines(test_puts_to_where_the_peer_may_not_write_are_refused),
		both_engines(test_a_put_at_the_edges_of_its_window_lands),
		both_engines(test_a_stranger_may_say_little),
		both_engines(test_a_stream_in_any_pieces_is_the_same_frames),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
