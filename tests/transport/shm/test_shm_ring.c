/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the message ring alone. The threads at its two ends use one mapping, so that a
 * race detector sees both. A guard page after each area makes an access beyond it a crash.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "base/util.h"
#include "transport/shm/ring.h"

#define MESSAGE_BYTES 5000u

struct pair {
	struct shm_area *areas[2];
	struct shm_ring a, b;
	uint64_t ring_bytes;
};

static struct shm_area *guarded_area(uint64_t bytes)
{
	char *base = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(base, MAP_FAILED);
	assert_int_equal(mprotect(base + bytes, 4096, PROT_NONE), 0);
	return (void *)base;
}

static void pair_init_at(struct pair *pair, uint64_t start, uint64_t other_start)
{
	const uint64_t starts[] = {start, other_start};
	uint64_t bytes = shm_ring_bytes(MESSAGE_BYTES);

	pair->ring_bytes = bytes;
	/* The areas have no space for chunks, so a guard page immediately follows each
	 * ring. */
	for (int i = 0; i < 2; i++) {
		pair->areas[i] = guarded_area(SHM_RING_OFFSET + bytes);
		shm_area_init(pair->areas[i], starts[i]);
	}
	shm_ring_init(&pair->a, pair->areas[0], pair->areas[1], bytes);
	shm_ring_init(&pair->b, pair->areas[1], pair->areas[0], bytes);
}

static void pair_init(struct pair *pair)
{
	pair_init_at(pair, tern_rng_at(3, 0, 0, 0), tern_rng_at(3, 0, 0, 1));
}

static void pair_fini(struct pair *pair)
{
	for (int i = 0; i < 2; i++)
		munmap(pair->areas[i], SHM_RING_OFFSET + pair->ring_bytes + 4096);
}

/* The length and bytes of message i depend only on i. */
static size_t message_bytes(uint64_t i)
{
	uint64_t r = tern_rng_at(7, 0, 0, i);

	return i % 50 == 0 ? r % (MESSAGE_BYTES + 1) : r % 200;
}

static void message_fill(uint64_t i, unsigned char *out, size_t bytes)
{
	for (size_t j = 0; j < bytes; j++)
		out[j] = (unsigned char)(i * 31 + j * 7 + 1);
}

static int send_message(struct shm_ring *ring, uint64_t i)
{
	unsigned char data[MESSAGE_BYTES];
	size_t bytes = message_bytes(i), head = bytes / 3 & ~(size_t)7;

	message_fill(i, data, bytes);
	return shm_ring_send(ring, data, head, data + head, bytes - head);
}

/* Returns 1 if message i was received with the right bytes. */
static int receive_message(struct shm_ring *ring, uint64_t i)
{
	unsigned char got[MESSAGE_BYTES], want[MESSAGE_BYTES];
	size_t bytes = 0;
	int status = shm_ring_receive(ring, got, sizeof(got), &bytes);

	if (status != 1)
		return status;
	message_fill(i, want, message_bytes(i));
	return bytes == message_bytes(i) && memcmp(got, want, bytes) == 0 ? 1 : -EBADMSG;
}

static int receive_any(struct shm_ring *ring)
{
	unsigned char got[MESSAGE_BYTES];
	size_t bytes;

	return shm_ring_receive(ring, got, sizeof(got), &bytes);
}

static void test_messages_of_all_lengths_arrive_whole_and_in_order(void **state)
{
	struct pair pair;
	uint64_t sent = 0, received = 0;

	(void)state;
	pair_init(&pair);
	while (received < 20000) {
		while (sent < received + 1 + received % 37 &&
			send_message(&pair.a, sent) == 0)
			sent++;
		assert_int_equal(receive_message(&pair.b, received), 1);
		received++;
	}
	/* The positions have wrapped around the ring. */
	assert_true(pair.a.tail > 3 * pair.ring_bytes);
	pair_fini(&pair);
}

static void test_marks_wrap(void **state)
{
	const uint64_t ring_bytes = shm_ring_bytes(MESSAGE_BYTES);
	const uint64_t before[] = {64, 128, ring_bytes - 64, ring_bytes, 2 * ring_bytes};
	struct pair pair;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(before); i++) {
		pair_init_at(&pair, (uint64_t)0 - before[i], 0);
		assert_int_equal(receive_any(&pair.b), 0);
		/* The zeros of an unused ring must never be taken for a record. */
		while (pair.a.tail < before[i]) {
			assert_int_equal(shm_ring_send(&pair.a, NULL, 0, NULL, 0), 0);
			assert_int_equal(receive_any(&pair.b), 1);
			assert_int_equal(receive_any(&pair.b), 0);
		}
		for (uint64_t n = 0; n < 5000; n++) {
			assert_int_equal(send_message(&pair.a, n), 0);
			assert_int_equal(receive_message(&pair.b, n), 1);
			assert_int_equal(receive_any(&pair.b), 0);
		}
		pair_fini(&pair);
	}
}

static void test_full_ring_takes_nothing_and_has_room_when_it_was_drained(void **state)
{
	struct pair pair;
	uint64_t sent = 0, received = 0;

	(void)state;
	pair_init(&pair);
	for (int lap = 0; lap < 20; lap++) {
		int status;

		while ((status = send_message(&pair.a, sent)) == 0)
			sent++;
		assert_int_equal(status, -EAGAIN);
		assert_int_equal(send_message(&pair.a, sent), -EAGAIN);
		assert_int_equal(shm_ring_roomy(&pair.a), 0);
		while (received < sent)
			assert_int_equal(receive_message(&pair.b, received++), 1);
		assert_int_equal(receive_message(&pair.b, received), 0);
		assert_int_equal(shm_ring_roomy(&pair.a), 1);
	}
	pair_fini(&pair);
}

static void test_largest_message_fits_at_every_place_of_a_drained_ring(void **state)
{
	struct pair pair;
	unsigned char data[MESSAGE_BYTES] = {0}, got[MESSAGE_BYTES];
	size_t bytes;

	(void)state;
	pair_init(&pair);
	for (int i = 0; i < 5000; i++) {
		assert_int_equal(shm_ring_send(&pair.a, data, MESSAGE_BYTES, NULL, 0), 0);
		assert_int_equal(shm_ring_receive(&pair.b, got, sizeof(got), &bytes), 1);
		assert_int_equal(shm_ring_send(&pair.a, NULL, 0, NULL, 0), 0);
		assert_int_equal(shm_ring_receive(&pair.b, got, sizeof(got), &bytes), 1);
		assert_int_equal(bytes, 0);
	}
	pair_fini(&pair);
}

static bool is_touched(const struct pair *pair, uint64_t from)
{
	const char *ring = (const char *)pair->areas[0] + SHM_RING_OFFSET;

	for (uint64_t at = from; at < pair->ring_bytes; at++)
		if (ring[at])
			return true;
	return false;
}

static void test_a_consumer_that_keeps_up_is_served_from_the_first_pages(void **state)
{
	struct pair pair;
	uint64_t sent = 0, received = 0;

	(void)state;
	pair_init(&pair);
	for (uint64_t burst = 0; burst < 2000; burst++) {
		for (uint64_t i = 0; i <= burst % 23; i++)
			assert_int_equal(send_message(&pair.a, sent++), 0);
		while (received < sent)
			assert_int_equal(receive_message(&pair.b, received++), 1);
		assert_int_equal(receive_message(&pair.b, received), 0);
	}
	/* A lap (passage through the ring) adds the size of the whole ring to `tail`, even
	 * if it ends early. */
	assert_true(pair.a.tail > 20 * pair.ring_bytes);
	assert_true(is_touched(&pair, 0));
	assert_false(is_touched(&pair, SHM_LAP_MIN + 2 * MESSAGE_BYTES));
	pair_fini(&pair);
}

/* The receiver stops reading, at any point. The sender must still have room for
 * SHM_LAP_MIN / 8 bytes. When that is full, it must double its lap: the number of bytes that
 * it writes before it returns to the start of the ring. */
static void test_some_room_is_left_wherever_the_consumer_stops(void **state)
{
	(void)state;
	for (uint64_t before = 0; before < 3000; before += 7) {
		struct pair pair;
		uint64_t sent = 0, received = 0, room = 0;

		pair_init(&pair);
		while (received < before) {
			assert_int_equal(send_message(&pair.a, sent++), 0);
			assert_int_equal(receive_message(&pair.b, received++), 1);
			assert_int_equal(receive_message(&pair.b, received), 0);
		}
		while (send_message(&pair.a, sent) == 0)
			room += message_bytes(sent++);
		assert_true(room >= SHM_LAP_MIN / 8);
		assert_true(pair.a.lap_bytes > SHM_LAP_MIN);
		while (received < sent)
			assert_int_equal(receive_message(&pair.b, received++), 1);
		pair_fini(&pair);
	}
}

struct stream {
	struct shm_ring *ring;
	uint64_t count;
	int status;
};

static void *produce(void *arg)
{
	struct stream *stream = arg;

	for (uint64_t i = 0; i < stream->count && !stream->status;) {
		int status = send_message(stream->ring, i);

		if (status == 0)
			i++;
		else if (status == -EAGAIN)
			tern_cpu_relax();
		else
			stream->status = status;
	}
	return NULL;
}

static void *consume(void *arg)
{
	struct stream *stream = arg;

	for (uint64_t i = 0; i < stream->count && !stream->status;) {
		int status = receive_message(stream->ring, i);

		if (status == 1)
			i++;
		else if (status == 0)
			tern_cpu_relax();
		else
			stream->status = status;
	}
	return NULL;
}

static void test_two_threads_see_every_message_once(void **state)
{
	struct pair pair;
	struct stream out = {.count = 60000}, in = {.count = 60000};
	pthread_t thread;

	(void)state;
	pair_init(&pair);
	out.ring = &pair.a;
	in.ring = &pair.b;
	assert_int_equal(pthread_create(&thread, NULL, produce, &out), 0);
	consume(&in);
	pthread_join(thread, NULL);
	assert_int_equal(out.status, 0);
	assert_int_equal(in.status, 0);
	pair_fini(&pair);
}

/* A thread that uses one end of a ring, and sleeps while it waits for a message or for
 * space. */
struct sleeper {
	struct shm_ring *ring;
	int own_fd, peer_fd; /* descriptors that wake this thread, and the other one */
	uint64_t rounds;
	bool first;
	int status;
};

static int wake_peer(struct sleeper *s)
{
	const uint64_t one = 1;

	if (shm_bell(s->ring) && write(s->peer_fd, &one, sizeof(one)) != sizeof(one))
		return -errno;
	return 0;
}

static int sleeper_wait(struct sleeper *s, bool want_room)
{
	struct pollfd entry = {.fd = s->own_fd, .events = POLLIN};
	uint64_t count;
	int ready;

	shm_sleep(s->ring, want_room);
	if (shm_ring_readable(s->ring) || (want_room && shm_ring_roomy(s->ring))) {
		shm_awake(s->ring);
		return 0;
	}
	/* A time so long that only a lost wake-up can reach it. */
	ready = poll(&entry, 1, 20000);
	shm_awake(s->ring);
	if (ready != 1)
		return -ETIMEDOUT;
	return read(s->own_fd, &count, sizeof(count)) == sizeof(count) ? 0 : -errno;
}

static void *take_turns(void *arg)
{
	struct sleeper *s = arg;

	for (uint64_t i = 0; i < s->rounds && !s->status; i++) {
		if (s->first || i > 0)
			s->status = send_message(s->ring, i - !s->first);
		if (!s->status)
			s->status = wake_peer(s);
		while (!s->status) {
			int got = receive_message(s->ring, i);

			if (got == 1)
				break;
			s->status = got < 0 ? got : sleeper_wait(s, false);
		}
	}
	if (!s->first && !s->status) {
		s->status = send_message(s->ring, s->rounds - 1);
		if (!s->status)
			s->status = wake_peer(s);
	}
	return NULL;
}

static void run_sleepers(uint64_t rounds, void *(*run_a)(void *), void *(*run_b)(void *))
{
	struct pair pair;
	struct sleeper a = {.rounds = rounds, .first = true}, b = {.rounds = rounds};
	pthread_t thread;

	pair_init(&pair);
	a.ring = &pair.a;
	b.ring = &pair.b;
	a.own_fd = b.peer_fd = eventfd(0, EFD_CLOEXEC);
	b.own_fd = a.peer_fd = eventfd(0, EFD_CLOEXEC);
	assert_int_equal(pthread_create(&thread, NULL, run_b, &b), 0);
	run_a(&a);
	pthread_join(thread, NULL);
	assert_int_equal(a.status, 0);
	assert_int_equal(b.status, 0);
	close(a.own_fd);
	close(b.own_fd);
	pair_fini(&pair);
}

static void test_no_wake_is_lost(void **state)
{
	(void)state;
	run_sleepers(5000, take_turns, take_turns);
}

/* Number of the i-th message: only messages with such numbers are long (message_bytes()).
 * About 100 of them fill the ring. */
#define LONG(i) ((i)*50)

static void *fill_the_ring(void *arg)
{
	struct sleeper *s = arg;

	for (uint64_t i = 0; i < s->rounds && !s->status;) {
		int status = send_message(s->ring, LONG(i));

		if (status == 0) {
			i++;
			continue;
		}
		s->status = status == -EAGAIN ? wake_peer(s) : status;
		while (!s->status && !(status = shm_ring_roomy(s->ring)))
			s->status = sleeper_wait(s, true);
		if (status < 0)
			s->status = status;
	}
	if (!s->status)
		s->status = wake_peer(s);
	return NULL;
}

static void *drain_the_ring(void *arg)
{
	struct sleeper *s = arg;

	/* Starts to read only when the other thread sleeps because the ring is full, so
	 * that this happens at least once. */
	while (!(atomic_load(&s->ring->peer->asleep) & SHM_WANT_ROOM))
		tern_cpu_relax();
	for (uint64_t i = 0; i < s->rounds && !s->status;) {
		int got = receive_message(s->ring, LONG(i));

		s->status = got < 0 ? got : wake_peer(s);
		if (got == 1)
			i++;
		else if (!s->status)
			s->status = sleeper_wait(s, false);
	}
	return NULL;
}

/* One thread sleeps when the ring is full, the other one when it is empty. */
static void test_no_wake_for_room_is_lost(void **state)
{
	(void)state;
	run_sleepers(10000, fill_the_ring, drain_the_ring);
}

static void test_a_sleeper_is_woken_once_and_nobody_who_is_awake(void **state)
{
	struct pair pair;

	(void)state;
	pair_init(&pair);
	assert_false(shm_bell(&pair.a));
	assert_int_equal(send_message(&pair.a, 1), 0);
	assert_false(shm_bell(&pair.a));
	for (int i = 0; i < 3; i++) {
		shm_sleep(&pair.b, false);
		/* No bell: nothing was sent since the last call of shm_bell(). */
		assert_false(shm_bell(&pair.a));
		assert_int_equal(send_message(&pair.a, 2), 0);
		assert_true(shm_bell(&pair.a));
		assert_int_equal(send_message(&pair.a, 3), 0);
		assert_false(shm_bell(&pair.a));
		shm_awake(&pair.b);
	}
	pair_fini(&pair);
}

static void test_room_wakes_only_who_wants_it(void **state)
{
	struct pair pair;

	(void)state;
	for (int wanted = 0; wanted < 2; wanted++) {
		uint64_t sent = 0, received = 0;

		pair_init(&pair);
		while (send_message(&pair.a, sent) == 0)
			sent++;
		(void)shm_bell(&pair.a);
		shm_sleep(&pair.a, wanted);
		while (received < sent)
			assert_int_equal(receive_message(&pair.b, received++), 1);
		assert_int_equal(shm_bell(&pair.b), wanted);
		pair_fini(&pair);
	}
}

static void test_what_stands_in_the_ring_is_received_after_the_end_and_no_more(
	void **state)
{
	struct pair pair;

	(void)state;
	pair_init(&pair);
	for (uint64_t i = 0; i < 10; i++)
		assert_int_equal(send_message(&pair.a, i), 0);
	assert_int_equal(receive_message(&pair.b, 0), 1);
	shm_ring_end(&pair.b);
	for (uint64_t i = 10; i < 20; i++)
		assert_int_equal(send_message(&pair.a, i), 0);
	for (uint64_t i = 1; i < 10; i++)
		assert_int_equal(receive_message(&pair.b, i), 1);
	assert_int_equal(receive_message(&pair.b, 10), 0);
	assert_false(shm_ring_readable(&pair.b));
	pair_fini(&pair);
}

/* Writes a forged record at `position` of a's area, as a hostile peer could. */
static void forge(struct pair *pair, uint64_t position, uint32_t length)
{
	char *record = (char *)pair->areas[0] + SHM_RING_OFFSET +
		       (position & (pair->ring_bytes - 1));
	uint64_t mark = shm_mark(atomic_load(&pair->areas[0]->start), position);

	memcpy(record, &mark, 8);
	memcpy(record + 8, &length, 4);
}

static void test_only_its_own_mark_makes_a_record(void **state)
{
	struct tern_rng rng = {.seed = 20261122};
	struct pair pair;

	(void)state;
	pair_init(&pair);
	assert_int_equal(receive_any(&pair.b), 0); /* only zeros: no record */
	for (uint64_t at = 0; at < pair.ring_bytes; at += 8) {
		uint64_t word = tern_rng_next(&rng);

		memcpy((char *)pair.areas[0] + SHM_RING_OFFSET + at, &word, 8);
	}
	assert_int_equal(receive_any(&pair.b), 0);
	/* Messages with the mark of the previous or the next lap (passage through the
	 * ring) are not received. */
	forge(&pair, (uint64_t)0 - pair.ring_bytes, 0);
	assert_int_equal(receive_any(&pair.b), 0);
	forge(&pair, pair.ring_bytes, 0);
	assert_int_equal(receive_any(&pair.b), 0);
	forge(&pair, 64, 0); /* the right mark, but at another position */
	assert_int_equal(receive_any(&pair.b), 0);
	forge(&pair, 0, 0);
	assert_int_equal(receive_any(&pair.b), 1);
	assert_int_equal(receive_any(&pair.b), 1);
	assert_int_equal(receive_any(&pair.b), 0);
	pair_fini(&pair);
}

static void test_impossible_length_is_a_protocol_error(void **state)
{
	const uint32_t lengths[] = {MESSAGE_BYTES + 1,
		(uint32_t)shm_ring_bytes(MESSAGE_BYTES) / 4, 1u << 31, UINT32_MAX - 1,
		UINT32_MAX /* a filler (unused rest of a lap), longer than any record */};
	struct pair pair;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(lengths); i++) {
		pair_init(&pair);
		forge(&pair, 0, lengths[i]);
		assert_true(shm_ring_readable(&pair.b));
		assert_int_equal(receive_any(&pair.b), -EPROTO);
		assert_int_equal(receive_any(&pair.b), -EPROTO);
		pair_fini(&pair);
	}
}

static void test_lap_that_is_too_short_is_a_protocol_error(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct pair pair;
		uint64_t at = 0, end = SHM_LAP_MIN - (i ? 0 : SHM_LINE);

		pair_init(&pair);
		for (; at < end; at += SHM_LINE)
			forge(&pair, at, 0);
		while (shm_ring_readable(&pair.b))
			assert_int_equal(receive_any(&pair.b), 1);
		forge(&pair, end, UINT32_MAX);
		/* A filler (unused rest of a lap) directly after a filler. */
		forge(&pair, pair.ring_bytes, UINT32_MAX);
		assert_int_equal(receive_any(&pair.b), -EPROTO);
		assert_int_equal(pair.b.head, i ? pair.ring_bytes : end);
		pair_fini(&pair);
	}
}

static void test_record_over_the_end_of_the_ring_is_a_protocol_error(void **state)
{
	struct pair pair;
	uint64_t last;

	(void)state;
	pair_init(&pair);
	last = pair.ring_bytes - 64;
	/* A whole lap of empty records, so that the next one starts at the last line of
	 * the ring. */
	for (uint64_t at = 0; at < last; at += 64)
		forge(&pair, at, 0);
	while (shm_ring_readable(&pair.b))
		assert_int_equal(receive_any(&pair.b), 1);
	forge(&pair, last, 100);
	assert_int_equal(receive_any(&pair.b), -EPROTO);
	forge(&pair, last, UINT32_MAX);
	forge(&pair, pair.ring_bytes, 0);
	assert_int_equal(receive_any(&pair.b), 1);
	pair_fini(&pair);
}

/* A peer that announced its last message but continues to write must not keep the
 * receiver busy for ever. */
static void test_the_end_is_never_further_than_a_full_ring(void **state)
{
	struct pair pair;
	uint64_t count = 0;

	(void)state;
	pair_init(&pair);
	for (uint64_t at = 0; at < pair.ring_bytes; at += 64)
		forge(&pair, at, 0);
	shm_ring_end(&pair.b);
	while (receive_any(&pair.b) == 1) {
		forge(&pair, pair.ring_bytes + 64 * count, 0);
		count++;
	}
	assert_int_equal(count, pair.ring_bytes / 64);
	pair_fini(&pair);
}

static void test_nothing_behind_the_end_is_received_if_a_record_steps_over_it(
	void **state)
{
	struct pair pair;

	(void)state;
	for (uint32_t length = 64; length <= MESSAGE_BYTES; length += 64) {
		pair_init(&pair);
		forge(&pair, 0, 0);
		forge(&pair, 64, 0);
		shm_ring_end(&pair.b);
		forge(&pair, 64, length);
		for (uint64_t at = 128; at < pair.ring_bytes; at += 64)
			forge(&pair, at, 0);
		assert_int_equal(receive_any(&pair.b), 1);
		assert_int_equal(receive_any(&pair.b), 1);
		assert_false(shm_ring_readable(&pair.b));
		assert_int_equal(receive_any(&pair.b), 0);
		pair_fini(&pair);
	}
}

static void test_what_cannot_be_ends_the_ring(void **state)
{
	struct pair pair;

	(void)state;
	pair_init(&pair);
	forge(&pair, 0, 0);
	forge(&pair, 64, UINT32_MAX - 1);
	shm_ring_end(&pair.b);
	assert_int_equal(receive_any(&pair.b), 1);
	assert_int_equal(receive_any(&pair.b), 0);
	pair_fini(&pair);
}

static void test_impossible_head_is_a_protocol_error(void **state)
{
	const uint64_t heads[] = {8, UINT64_MAX, 1ull << 63,
		shm_ring_bytes(MESSAGE_BYTES) + 64, UINT64_MAX - 63};
	struct pair pair;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(heads); i++) {
		int status;

		pair_init(&pair);
		while ((status = send_message(&pair.a, 1)) == 0)
			;
		assert_int_equal(status, -EAGAIN);
		atomic_store(&pair.areas[1]->head, heads[i]);
		assert_int_equal(send_message(&pair.a, 1), -EPROTO);
		assert_int_equal(shm_ring_roomy(&pair.a), -EPROTO);
		pair_fini(&pair);
	}
}

static void test_random_areas_do_no_harm(void **state)
{
	struct tern_rng rng = {.seed = 20240611};
	struct pair pair;
	uint64_t good = 0, bad = 0;

	(void)state;
	pair_init(&pair);
	for (int round = 0; round < 300; round++) {
		int status;

		shm_ring_init(&pair.b, pair.areas[1], pair.areas[0], pair.ring_bytes);
		pair.b.head = tern_rng_below(&rng, 1u << 20) * 64;
		for (uint64_t at = 0; at < pair.ring_bytes; at += 64) {
			uint32_t length = (uint32_t)tern_rng_below(&rng, 400);

			if (tern_rng_below(&rng, 200) == 0)
				length = (uint32_t)tern_rng_next(&rng);
			if (tern_rng_below(&rng, 200) == 0)
				length = UINT32_MAX;
			forge(&pair, pair.b.head + at, length);
		}
		if (round % 3 == 0)
			shm_ring_end(&pair.b);
		while ((status = receive_any(&pair.b)) == 1)
			good++;
		bad += status < 0;
	}
	assert_true(good > 1000 && bad > 10);
	pair_fini(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_messages_of_all_lengths_arrive_whole_and_in_order),
		cmocka_unit_test(test_marks_wrap),
		cmocka_unit_test(
			test_full_ring_takes_nothing_and_has_room_when_it_was_drained),
		cmocka_unit_test(
			test_largest_message_fits_at_every_place_of_a_drained_ring),
		cmocka_unit_test(
			test_a_consumer_that_keeps_up_is_served_from_the_first_pages),
		cmocka_unit_test(test_some_room_is_left_wherever_the_consumer_stops),
		cmocka_unit_test(test_two_threads_see_every_message_once),
		cmocka_unit_test(test_no_wake_is_lost),
		cmocka_unit_test(test_no_wake_for_room_is_lost),
		cmocka_unit_test(test_a_sleeper_is_woken_once_and_nobody_who_is_awake),
		cmocka_unit_test(test_room_wakes_only_who_wants_it),
		cmocka_unit_test(
			test_what_stands_in_the_ring_is_received_after_the_end_and_no_more),
		cmocka_unit_test(test_only_its_own_mark_makes_a_record),
		cmocka_unit_test(test_impossible_length_is_a_protocol_error),
		cmocka_unit_test(test_lap_that_is_too_short_is_a_protocol_error),
		cmocka_unit_test(
			test_record_over_the_end_of_the_ring_is_a_protocol_error),
		cmocka_unit_test(test_the_end_is_never_further_than_a_full_ring),
		cmocka_unit_test(
			test_nothing_behind_the_end_is_received_if_a_record_steps_over_it),
		cmocka_unit_test(test_what_cannot_be_ends_the_ring),
		cmocka_unit_test(test_impossible_head_is_a_protocol_error),
		cmocka_unit_test(test_random_areas_do_no_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
