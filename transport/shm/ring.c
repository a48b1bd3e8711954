/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implementation of the message ring of ring.h. Invariant: tail - head lies in [0,
 * bytes]; every byte in [head, tail) belongs to the consumer, every other byte to the
 * producer.
 *
 * `head` is published in steps of a quarter of the ring, and of SHOW_BYTES when the ring
 * is empty. So a consumer that has drained the ring shows that at least three quarters
 * are free, which is more than any record and the filler before the end of the ring need;
 * and it does not write the cache line of indices for each message. `tail` is not
 * published: the consumer recognizes records by their marks.
 */
#include "transport/shm/ring.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#define FILLER     UINT32_MAX
#define SHOW_BYTES (SHM_LAP_MIN / 4)
#define NEAR       (SHM_LAP_MIN / 2)

/* Header of a record in the ring. */
struct record {
	_Atomic uint64_t mark;
	/* Number of bytes that follow; FILLER: skip to the end of the ring. */
	_Atomic uint32_t length;
	uint32_t reserved;
	char bytes[];
};
_Static_assert(sizeof(struct record) == 16, "the bytes are aligned");

/* Payload bytes on the cache line of the mark. */
#define FIRST_BYTES (SHM_LINE - sizeof(struct record))

/* Size in the ring of a record with `length` bytes of payload. */
static uint64_t record_bytes(uint64_t length)
{
	return tern_align_up(sizeof(struct record) + length, SHM_LINE);
}

uint64_t shm_ring_bytes(uint32_t message_bytes)
{
	uint64_t bytes = SHM_RING_MIN;

	while (bytes < 4 * record_bytes(message_bytes))
		bytes *= 2;
	return bytes;
}

uint64_t shm_area_bytes(uint32_t message_bytes)
{
	uint64_t bytes = SHM_RING_OFFSET + shm_ring_bytes(message_bytes) +
			 (uint64_t)SHM_CHUNK_COUNT * SHM_CHUNK_BYTES;

	/* Round up to whole pages of the largest usual page size. */
	return tern_align_up(bytes, 64u << 10);
}

void shm_area_init(struct shm_area *own, uint64_t random)
{
	atomic_store_explicit(
		&own->start, random & ~(uint64_t)(SHM_LINE - 1), memory_order_relaxed);
}

void shm_ring_init(struct shm_ring *ring, struct shm_area *own, struct shm_area *peer,
	uint64_t ring_bytes)
{
	*ring = (struct shm_ring){
		.own = own,
		.peer = peer,
		.bytes = ring_bytes,
		.start = atomic_load_explicit(&own->start, memory_order_relaxed),
		.peer_start = atomic_load_explicit(&peer->start, memory_order_relaxed),
		.lap_bytes = SHM_LAP_MIN,
		.lap_asked = UINT64_MAX,
		.end = SHM_NO_END,
	};
}

static struct record *record_at(
	const struct shm_ring *ring, struct shm_area *area, uint64_t position)
{
	return (void *)((char *)area + SHM_RING_OFFSET + (position & (ring->bytes - 1)));
}

/* Number of bytes from `position` to the end of the ring's memory. */
static uint64_t rest_of_lap(const struct shm_ring *ring, uint64_t position)
{
	return ring->bytes - (position & (ring->bytes - 1));
}

static int look_at_head(struct shm_ring *ring)
{
	/* Acquire: the consumer has read a record before the producer overwrites it. */
	uint64_t head = atomic_load_explicit(&ring->peer->head, memory_order_acquire);

	if (head - ring->peer_head > ring->tail - ring->peer_head || head % SHM_LINE)
		return -EPROTO;
	ring->peer_head = head;
	return 0;
}

static int reserve(struct shm_ring *ring, uint64_t bytes)
{
	int status;

	if (ring->bytes - (ring->tail - ring->peer_head) >= bytes)
		return 0;
	status = look_at_head(ring);
	if (status)
		return status;
	return ring->bytes - (ring->tail - ring->peer_head) >= bytes ? 0 : -EAGAIN;
}

/* Sets the mark of a record. Release: the whole record is written before the consumer can
 * see the mark. */
static void publish(struct shm_ring *ring, struct record *record, uint64_t bytes)
{
	atomic_store_explicit(
		&record->mark, shm_mark(ring->start, ring->tail), memory_order_release);
	ring->tail += bytes;
	ring->published = true;
}

/*
 * Writes a record except its mark, and its first cache line last. Stores become visible
 * in order: if the first line were written first, the consumer's polling would take that
 * line away again before its mark is written, while this CPU waits for the other lines.
 * This works only if `head` fills the first line, as the rendezvous headers do: after a
 * shorter head the payload begins on the first line, so that line is written early.
 */
static void write_record(struct record *record, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	size_t first = TERN_MIN(head_bytes, FIRST_BYTES);

	if (payload_bytes)
		memcpy(record->bytes + head_bytes, payload, payload_bytes);
	if (head_bytes > first)
		memcpy(record->bytes + first, (const char *)head + first,
			head_bytes - first);
	/* The compiler must not reorder these stores either. */
	atomic_signal_fence(memory_order_release);
	if (first == FIRST_BYTES)
		memcpy(record->bytes, head, FIRST_BYTES);
	else if (first)
		memcpy(record->bytes, head, first);
	atomic_store_explicit(&record->length, (uint32_t)(head_bytes + payload_bytes),
		memory_order_relaxed);
}

/*
 * Number of bytes to skip before a record of `need` bytes is written. The producer skips
 * to the end of the ring if the record does not fit before that end. It also skips a
 * small record (up to NEAR) if the consumer has almost caught up, which is checked once
 * per lap, after lap_bytes. The next lap can then use the space that the consumer has
 * already freed in this lap: at least lap_bytes - NEAR. -EPROTO: the peer's `head` is
 * impossible.
 */
static int64_t filler_before(struct shm_ring *ring, uint64_t need)
{
	uint64_t rest = rest_of_lap(ring, ring->tail);
	uint64_t done = ring->bytes - rest, lap = ring->tail - done;
	int status;

	if (need > rest)
		return (int64_t)rest;
	if (done < ring->lap_bytes || lap == ring->lap_asked)
		return 0;
	ring->lap_asked = lap;
	status = look_at_head(ring);
	if (status)
		return status;
	return ring->tail - ring->peer_head <= NEAR && need <= NEAR ? (int64_t)rest : 0;
}

int shm_ring_send(struct shm_ring *ring, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	uint64_t need = record_bytes(head_bytes + payload_bytes);
	int64_t filler = filler_before(ring, need);
	struct record *record;
	int status;

	tern_assert(need <= ring->bytes / 4);
	if (filler < 0)
		return (int)filler;
	status = reserve(ring, (uint64_t)filler + need);
	if (status == -EAGAIN) /* laps were too short for this burst: lengthen them */
		ring->lap_bytes = TERN_MIN(2 * ring->lap_bytes, ring->bytes);
	if (status)
		return status;
	if (filler) {
		record = record_at(ring, ring->own, ring->tail);
		atomic_store_explicit(&record->length, FILLER, memory_order_relaxed);
		publish(ring, record, (uint64_t)filler);
	}
	record = record_at(ring, ring->own, ring->tail);
	write_record(record, head, head_bytes, payload, payload_bytes);
	publish(ring, record, need);
	return 0;
}

static bool is_there(const struct shm_ring *ring, uint64_t position)
{
	struct record *record = record_at(ring, ring->peer, position);

	/* Acquire: if the mark is visible, so is the record, which the producer wrote
	 * before. */
	return atomic_load_explicit(&record->mark, memory_order_acquire) ==
	       shm_mark(ring->peer_start, position);
}

/* Reads the payload length of the record at `position`, and its size in the ring.
 * -EPROTO: one of them is impossible. No lap is shorter than SHM_LAP_MIN, so two filler
 * records never follow each other. */
static int measure(
	const struct shm_ring *ring, uint64_t position, uint32_t *length, uint64_t *bytes)
{
	uint64_t rest = rest_of_lap(ring, position);

	*length = atomic_load_explicit(
		&record_at(ring, ring->peer, position)->length, memory_order_relaxed);
	if (*length == FILLER) {
		*bytes = rest;
		return rest <= ring->bytes - SHM_LAP_MIN ? 0 : -EPROTO;
	}
	*bytes = record_bytes(*length);
	return *bytes <= rest && *bytes <= ring->bytes / 4 ? 0 : -EPROTO;
}

/* Publishes `head` if at least `step` bytes were consumed since the last time. */
static void show_head(struct shm_ring *ring, uint64_t step)
{
	if (ring->head - ring->head_shown < step)
		return;
	ring->head_shown = ring->head;
	/* Release: this end has read the records before the producer may overwrite
	 * them. */
	atomic_store_explicit(&ring->own->head, ring->head, memory_order_release);
	ring->showed_room = true;
}

static void consume(struct shm_ring *ring, uint64_t bytes)
{
	ring->head += bytes;
	show_head(ring, ring->bytes / 4);
}

int shm_ring_receive(struct shm_ring *ring, void *out, size_t room, size_t *bytes)
{
	while (shm_ring_readable(ring)) {
		uint64_t position = ring->head, taken;
		uint32_t length;
		int status = measure(ring, position, &length, &taken);

		if (status)
			return status;
		if (length != FILLER) {
			if (length > room)
				return -EPROTO;
			memcpy(out, record_at(ring, ring->peer, position)->bytes, length);
			*bytes = length;
			consume(ring, taken);
			return 1;
		}
		consume(ring, taken);
	}
	show_head(ring, SHOW_BYTES);
	return 0;
}

bool shm_ring_readable(const struct shm_ring *ring)
{
	/* Compare with <, not with !=, because a peer that rewrites records can make
	 * `head` skip `end`. */
	return ring->head < ring->end && is_there(ring, ring->head);
}

int shm_ring_roomy(struct shm_ring *ring)
{
	int status = reserve(ring, ring->bytes / 2);

	return status == 0 ? 1 : status == -EAGAIN ? 0 : status;
}

void shm_ring_end(struct shm_ring *ring)
{
	uint64_t end = ring->head, bytes;
	uint32_t length;

	/* Stop after one ring length, even if a peer that still writes changes the
	 * records. */
	while (is_there(ring, end) && measure(ring, end, &length, &bytes) == 0 &&
		end + bytes - ring->head <= ring->bytes)
		end += bytes;
	ring->end = end;
}

bool shm_bell_now(struct shm_ring *ring)
{
	uint64_t asleep;
	bool data = ring->published;

	ring->published = ring->showed_room = false;
	/*
	 * This end stores `bell` before it loads the peer's `asleep`. In shm_sleep(), the
	 * peer stores `asleep` before it loads `bell`. All four accesses are sequentially
	 * consistent, so either this end sees that the peer sleeps, or the peer sees
	 * `bell` and (acquire) everything published before.
	 */
	atomic_store(&ring->own->bell, ++ring->bell);
	asleep = atomic_load(&ring->peer->asleep);
	if (!(asleep & SHM_ASLEEP) || asleep == ring->woken)
		return false;
	if (!data && !(asleep & SHM_WANT_ROOM))
		return false;
	ring->woken = asleep;
	return true;
}

void shm_sleep(struct shm_ring *ring, bool want_room)
{
	ring->nap += SHM_NAP;
	/* One half of the handshake; the other half is in shm_bell_now(). */
	atomic_store(&ring->own->asleep,
		ring->nap | SHM_ASLEEP | (want_room ? SHM_WANT_ROOM : 0));
	(void)atomic_load(&ring->peer->bell);
}

void shm_awake(struct shm_ring *ring)
{
	/* Relaxed: if the peer sees the store late, the only cost is a needless WAKE. */
	atomic_store_explicit(&ring->own->asleep, 0, memory_order_relaxed);
}
