/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory of one connection: two areas, one made by each end, each written by
 * its maker only and mapped read-only by the other. An area holds, in this order,
 *
 *     the line     the indices and flags of its maker, on one cache line
 *     asks         what the maker asks the peer to copy out for it (memory outside slabs)
 *     the ring     messages of the maker to the peer
 *     chunks       where the maker puts bytes that the peer asked for
 *
 * The ring has one producer (its maker) and one consumer (the peer). Records start on a
 * cache line: a mark, the length, then the bytes; none wraps: a filler record leads to
 * the start of the ring. A record is there when its mark is that of its place: the
 * number of bytes that the ring had carried before it, counted from a random start. What
 * is left of earlier laps was written by tensors, too, and could only be taken for a
 * record if it held these 64 bits. `head` counts the bytes ever consumed; it stands in
 * the consumer's area, because nobody writes into another's memory.
 *
 * A lap need not be a whole one: behind SHM_LAP_MIN bytes the producer goes back to the
 * start as soon as little is left to consume. So a ring whose consumer keeps up lives on
 * its first pages: the others are never touched, which costs a fault each and memory for
 * as long as the connection lives. Until the filler is consumed such a lap has room for
 * its own length only; a producer for whom that was not enough makes longer ones.
 *
 * The consumer finds a record on the line on which the record starts, with what it
 * needs first, and not by an index on a line of its own, which would have to come before
 * it. But its looks take that line away from the producer each time. So the producer
 * writes that one last, and at once: see write_record().
 *
 * The words of a maker share a line on purpose: they have one writer, which seldom writes
 * any of them, so that the peer, who reads one or the other all the time, keeps a copy of
 * the line. The bell has a line of its own: it is rung behind every message, and only who
 * goes to sleep looks at it. A peer is not trusted: each of its words is read once, into
 * a variable, and that is checked: lengths and indices that cannot be are -EPROTO, and no
 * access goes outside the ring, whatever the words say.
 *
 * The pairs of accesses, each a release and the acquire that meets it. mark: the producer
 * has written the record; the consumer reads it after. head: the consumer has read the
 * bytes; the producer writes over them after. asked: the ask is written; the other end
 * reads it after. answered: the chunk's bytes are written; the asker reads them after.
 * bell and asleep are a store-load pair, sequentially consistent: see shm_bell_now().
 * gone is a store that comes before others, and a load behind others: see shm_say_gone().
 *
 * The ring knows nothing of sockets or ports: it works on memory given to it, so that two
 * threads over one mapping can test it under a race detector.
 */
#ifndef TERN_TRANSPORT_SHM_RING_H
#define TERN_TRANSPORT_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_LINE        64u
#define SHM_CHUNK_COUNT 4u
#define SHM_CHUNK_BYTES (256u << 10)
#define SHM_RING_MIN    (256u << 10)
#define SHM_LAP_MIN     (128u << 10) /* at most half of a ring */
#define SHM_MESSAGE_MAX (16u << 20)

/* Bits of shm_area.asleep; the rest counts, so that each sleep has its own value. */
#define SHM_ASLEEP    1u /* wake me */
#define SHM_WANT_ROOM 2u /* ... also when there is room for what I could not send */
#define SHM_NAP       4u /* one sleep */

/* "Copy (address, bytes) of exposure (slot, generation) into your chunk for me." */
struct shm_ask {
	_Atomic uint32_t slot, generation;
	_Atomic uint64_t address, bytes;
};

struct shm_area {
	/* The line. */
	_Alignas(64) _Atomic uint64_t start; /* of the marks; before the peer has it */
	_Atomic uint64_t head;     /* bytes consumed from the ring of the peer's */
	_Atomic uint64_t asleep;   /* 0: awake */
	_Atomic uint32_t asked;    /* asks ever made; ask n is in asks[n % COUNT] */
	_Atomic uint32_t answered; /* asks of the peer ever answered */
	_Atomic uint32_t gone;     /* the maker has closed: its memory may change */
	_Atomic uint32_t reading;  /* slabs of the peer's that the maker reads in place */

	_Alignas(64) struct shm_ask asks[SHM_CHUNK_COUNT];
	_Atomic int32_t statuses[SHM_CHUNK_COUNT]; /* of the answers */

	_Alignas(64) _Atomic uint32_t bell; /* changes after anything else did */
};

/* Where the ring starts. The chunks follow it. */
#define SHM_RING_OFFSET 4096u
_Static_assert(sizeof(struct shm_area) <= SHM_RING_OFFSET, "the area's head is one page");
_Static_assert(offsetof(struct shm_area, asks) == SHM_LINE, "one line of indices");

/* One end. The peer's area is only ever read. */
struct shm_ring {
	struct shm_area *own;
	struct shm_area *peer;
	uint64_t bytes;             /* of each ring, a power of two */
	uint64_t start, peer_start; /* of both areas */
	uint64_t tail;              /* produced into the own ring */
	uint64_t peer_head;         /* peer->head as last seen */
	uint64_t lap_bytes;         /* how far laps go if the consumer keeps up */
	uint64_t lap_asked;         /* start of the last lap in which that was asked */
	uint64_t head;              /* consumed from the peer's ring */
	uint64_t head_shown;        /* own->head */
	uint64_t end;               /* where head stops; SHM_NO_END */
	uint64_t nap;               /* own->asleep without its flags, of the last sleep */
	uint64_t woken;             /* peer->asleep for which a wake was last sent */
	uint32_t bell;              /* own->bell */
	bool published;             /* something, since shm_bell() */
	bool showed_room;           /* head was shown since shm_bell() */
};
#define SHM_NO_END UINT64_MAX /* records end on lines */

/* Of a record `position` bytes behind the start of all. Odd: what was never written is
 * no record. */
static inline uint64_t shm_mark(uint64_t start, uint64_t position)
{
	return (start + position) | 1;
}

/* Size of the ring that carries messages of up to message_bytes. */
uint64_t shm_ring_bytes(uint32_t message_bytes);

/* Size of the whole area. */
uint64_t shm_area_bytes(uint32_t message_bytes);

/* Of fresh memory, before it is passed on. */
void shm_area_init(struct shm_area *own, uint64_t random);

/* Both areas are fresh. */
void shm_ring_init(struct shm_ring *ring, struct shm_area *own, struct shm_area *peer,
	uint64_t ring_bytes);

/* One record from two parts, at most a quarter of the ring with its mark and length.
 * -EAGAIN: no room now. -EPROTO: the peer's head cannot be. */
int shm_ring_send(struct shm_ring *ring, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);

/* Copies the next record into `out`. 1: *bytes of it; 0: there is none. -EPROTO: it
 * cannot be, or is larger than `room`. */
int shm_ring_receive(struct shm_ring *ring, void *out, size_t room, size_t *bytes);

/* Is there a record (or nonsense, which receive reports)? */
bool shm_ring_readable(const struct shm_ring *ring);

/* Is half of the ring free, which is enough for any message? -EPROTO as send. */
int shm_ring_roomy(struct shm_ring *ring);

/* Whatever comes from now on is not received: the peer may not write on once it is gone.
 */
void shm_ring_end(struct shm_ring *ring);

/*
 * To be called after anything was published and before this thread stops looking at the
 * connection. True: the peer sleeps, and must be woken by other means.
 */
bool shm_bell_now(struct shm_ring *ring);
static inline bool shm_bell(struct shm_ring *ring)
{
	return (ring->published || ring->showed_room) && shm_bell_now(ring);
}

/* Announces sleep. The caller then looks at everything once more, and only then sleeps.
 */
void shm_sleep(struct shm_ring *ring, bool want_room);
void shm_awake(struct shm_ring *ring);

/* Chunk of ask n in an area. */
static inline char *shm_chunk(struct shm_area *area, uint64_t ring_bytes, uint32_t n)
{
	return (char *)area + SHM_RING_OFFSET + ring_bytes +
	       (size_t)(n % SHM_CHUNK_COUNT) * SHM_CHUNK_BYTES;
}

#endif
