/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of shm_ring.h. Its invariant: tail - head lies in [0, bytes], and every byte
 * in [head, tail) belongs to the consumer, every other to the producer. `head` is shown
 * to the producer only in steps of a quarter of the ring: a consumer that has drained the
 * ring so shows at least three quarters of room, which is more than any record with its
 * filler needs, and the line of indices is not written for each message.
 */
#include "transport/shm_ring.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#define WORD   8u /* the length word, and what it keeps aligned */
#define FILLER UINT32_MAX

uint64_t shm_ring_bytes(uint32_t message_bytes)
{
	uint64_t bytes = SHM_RING_MIN;

	while (bytes < 4 * tern_align_up(WORD + (uint64_t)message_bytes, SHM_LINE))
		bytes *= 2;
	return bytes;
}

uint64_t shm_area_bytes(uint32_t message_bytes)
{
	uint64_t bytes = SHM_RING_OFFSET + shm_ring_bytes(message_bytes) +
			 (uint64_t)SHM_CHUNK_COUNT * SHM_CHUNK_BYTES;

	/* Whole pages, however large they are here. */
	return tern_align_up(bytes, 64u << 10);
}

void shm_ring_init(struct shm_ring *ring, struct shm_area *own, struct shm_area *peer,
	uint64_t ring_bytes)
{
	*ring = (struct shm_ring){.own = own, .peer = peer, .bytes = ring_bytes};
}

static char *record_at(
	const struct shm_ring *ring, struct shm_area *area, uint64_t position)
{
	return (char *)area + SHM_RING_OFFSET + (position & (ring->bytes - 1));
}

static _Atomic uint32_t *length_at(char *record)
{
	return (_Atomic uint32_t *)(void *)record;
}

/* How much follows `position` up to the end of the ring. */
static uint64_t rest_of_lap(const struct shm_ring *ring, uint64_t position)
{
	return ring->bytes - (position & (ring->bytes - 1));
}

static int look_at_head(struct shm_ring *ring)
{
	/* Acquire: the consumer's reads of a record come before our writes over it. */
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

int shm_ring_send(struct shm_ring *ring, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	size_t length = head_bytes + payload_bytes;
	uint64_t need = tern_align_up(WORD + length, SHM_LINE);
	uint64_t rest = rest_of_lap(ring, ring->tail);
	uint64_t filler = need > rest ? rest : 0;
	int status;
	char *record;

	tern_assert(need <= ring->bytes / 4);
	status = reserve(ring, filler + need);
	if (status)
		return status;
	if (filler) {
		record = record_at(ring, ring->own, ring->tail);
		atomic_store_explicit(length_at(record), FILLER, memory_order_relaxed);
		ring->tail += filler;
	}
	record = record_at(ring, ring->own, ring->tail);
	atomic_store_explicit(length_at(record), (uint32_t)length, memory_order_relaxed);
	if (head_bytes)
		memcpy(record + WORD, head, head_bytes);
	if (payload_bytes)
		memcpy(record + WORD + head_bytes, payload, payload_bytes);
	ring->tail += need;
	/* Release: the record is written before the consumer can see the new tail. */
	atomic_store_explicit(&ring->own->tail, ring->tail, memory_order_release);
	ring->published = true;
	return 0;
}

/* 1: there is something behind head. */
static int look_at_tail(struct shm_ring *ring)
{
	uint64_t tail;

	if (ring->peer_tail != ring->head)
		return 1;
	if (ring->ended)
		return 0;
	/* Acquire: the producer wrote the record before it moved tail past it. */
	tail = atomic_load_explicit(&ring->peer->tail, memory_order_acquire);
	if (tail == ring->head)
		return 0;
	if (tail - ring->head > ring->bytes || tail % SHM_LINE)
		return -EPROTO;
	ring->peer_tail = tail;
	return 1;
}

static void consume(struct shm_ring *ring, uint64_t bytes)
{
	ring->head += bytes;
	if (ring->head - ring->head_shown < ring->bytes / 4)
		return;
	ring->head_shown = ring->head;
	/* Release: what we read of the records was read before the producer reuses them.
	 */
	atomic_store_explicit(&ring->own->head, ring->head, memory_order_release);
	ring->showed_room = true;
}

int shm_ring_receive(struct shm_ring *ring, void *out, size_t room, size_t *bytes)
{
	for (;;) {
		uint64_t rest = rest_of_lap(ring, ring->head), ready, need;
		int some = look_at_tail(ring);
		uint32_t length;
		char *record;

		if (some <= 0)
			return some;
		ready = ring->peer_tail - ring->head;
		record = record_at(ring, ring->peer, ring->head);
		length = atomic_load_explicit(length_at(record), memory_order_relaxed);
		if (length == FILLER) {
			if (rest > ready)
				return -EPROTO;
			consume(ring, rest);
			continue;
		}
		need = tern_align_up(WORD + (uint64_t)length, SHM_LINE);
		if (length > room || need > ready || need > rest)
			return -EPROTO;
		memcpy(out, record + WORD, length);
		*bytes = length;
		consume(ring, need);
		return 1;
	}
}

bool shm_ring_readable(struct shm_ring *ring)
{
	return look_at_tail(ring) != 0;
}

int shm_ring_roomy(struct shm_ring *ring)
{
	int status = reserve(ring, ring->bytes / 2);

	return status == 0 ? 1 : status == -EAGAIN ? 0 : status;
}

void shm_ring_end(struct shm_ring *ring)
{
	uint64_t tail;

	/* Acquire: as in look_at_tail(), of which this is the last for this ring. */
	tail = atomic_load_explicit(&ring->peer->tail, memory_order_acquire);
	if (tail - ring->head <= ring->bytes && tail % SHM_LINE == 0)
		ring->peer_tail = tail;
	ring->ended = true;
}

bool shm_bell_now(struct shm_ring *ring)
{
	uint64_t asleep;
	bool data = ring->published;

	ring->published = ring->showed_room = false;
	/*
	 * Our store of bell comes before our load of asleep, as the peer's store of
	 * asleep in shm_sleep() comes before its load of bell: all four are sequentially
	 * consistent, so either we see that it sleeps, or it sees bell, and then
	 * (acquire) all that we published before.
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
	/* The other half of the pair in shm_bell(). */
	atomic_store(&ring->own->asleep,
		ring->nap | SHM_ASLEEP | (want_room ? SHM_WANT_ROOM : 0));
	(void)atomic_load(&ring->peer->bell);
}

void shm_awake(struct shm_ring *ring)
{
	/* Relaxed: seen late, it costs one wake too many and nothing else. */
	atomic_store_explicit(&ring->own->asleep, 0, memory_order_relaxed);
}
