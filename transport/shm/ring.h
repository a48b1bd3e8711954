/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory of one connection: two areas. Each end makes one; only its maker
 * writes to it, and the other end maps it read-only. An area holds, in this order,
 *
 *     the line     the indices and flags of its maker, on one cache line
 *     asks         requests to the peer to copy memory outside slabs into its chunks
 *     the ring     messages of the maker to the peer
 *     chunks       where the maker puts bytes that the peer asked for
 *
 * The ring has one producer (its maker) and one consumer (the peer). A record starts on a
 * cache line: a mark, the length, then the bytes. Records do not wrap: a filler record
 * leads back to the start of the ring. A record is present when its mark has the value
 * for its place: the number of bytes that the ring had carried before it, counted from a
 * random start. Leftovers of earlier laps, which include bytes of tensors, could be
 * mistaken for a record only if they held these 64 bits. `head` counts the bytes
 * consumed; it is in the consumer's area, because no end writes into the other's memory.
 *
 * A lap may be shorter than the ring: after SHM_LAP_MIN bytes the producer goes back to
 * the start as soon as little is left to consume. So a ring whose consumer keeps up uses
 * only its first pages. The others are never touched, which saves a page fault each, and
 * memory for the life of the connection. Until the filler is consumed, a short lap has
 * room for its own length only; a producer for whom that was too little makes longer
 * laps.
 *
 * The consumer finds a record by looking at the cache line on which the record starts,
 * and not by an index on another line, which it would have to read first. But each look
 * takes the line away from the producer. So the producer writes that line last, and all
 * at once: see write_record().
 *
 * The words of a maker share a line on purpose: they have one writer, which seldom writes
 * any of them, so the peer, which reads them all the time, keeps a copy of the line.
 * Words that are written for every message have a line of their own: the bell, which the
 * peer reads only before it sleeps, and `reading`, which it reads only when the
 * connection ends.
 *
 * The peer is not trusted. Each of its words is read once, into a variable, which is then
 * checked: impossible lengths and indices are -EPROTO, and no access goes outside the
 * ring, whatever the words contain.
 *
 * Memory order, by pairs of a release store and an acquire load. mark: the producer has
 * written the record; the consumer then reads it. head: the consumer has read the bytes;
 * the producer then overwrites them. asked: the ask is written; the other end then reads
 * it. answered: the chunk's bytes are written; the asker then reads them. bell and asleep
 * are a sequentially consistent store-load pair: see shm_bell_now(). gone is a store
 * before other stores, and a load after other loads: see shm_say_gone().
 *
 * The ring knows nothing of sockets or ports: it works on any memory, so that two threads
 * over one mapping can test it under a race detector.
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

/* Flag bits of shm_area.asleep. The remaining bits count, so that each sleep has its
 * own value. */
#define SHM_ASLEEP    1u /* wake me when there is something for me */
#define SHM_WANT_ROOM 2u /* wake me also when there is room for what I could not send */
#define SHM_NAP       4u /* one unit of the counter of sleeps */

/* A request: copy (address, bytes) of exposure (slot, generation) into your chunk for
 * me. */
struct shm_ask {
	_Atomic uint32_t slot, generation;
	_Atomic uint64_t address, bytes;
};

struct shm_area {
	/* The line with the indices and flags. */
	/* First mark. Written before the peer has the area. */
	_Alignas(64) _Atomic uint64_t start;
	_Atomic uint64_t head;   /* bytes consumed from the peer's ring */
	_Atomic uint64_t asleep; /* 0: awake */
	/* Number of asks made so far; ask n is in asks[n % COUNT]. */
	_Atomic uint32_t asked;
	_Atomic uint32_t answered; /* number of the peer's asks answered so far */
	_Atomic uint32_t gone; /* the maker has closed: its exposed memory may change */

	_Alignas(64) struct shm_ask asks[SHM_CHUNK_COUNT];
	_Atomic int32_t statuses[SHM_CHUNK_COUNT]; /* status of each answer */

	_Alignas(64) _Atomic uint32_t bell; /* changes after any other word has changed */
	/* Number of the peer's slabs that the maker reads in place. */
	_Atomic uint32_t reading;
};

/* Where the ring starts. The chunks follow it. */
#define SHM_RING_OFFSET 4096u
_Static_assert(sizeof(struct shm_area) <= SHM_RING_OFFSET, "the area's head is one page");
_Static_assert(offsetof(struct shm_area, asks) == SHM_LINE, "one line of indices");
_Static_assert(offsetof(struct shm_area, reading) > offsetof(struct shm_area, bell),
	"what is written for every message is not among the indices");

/* One end's view of both areas. The peer's area is only read. */
struct shm_ring {
	struct shm_area *own;
	struct shm_area *peer;
	uint64_t bytes;             /* size of each ring, a power of two */
	uint64_t start, peer_start; /* `start` of the own area and of the peer's */
	uint64_t tail;              /* bytes produced into the own ring */
	uint64_t peer_head;         /* last value read of peer->head */
	uint64_t lap_bytes;         /* length of a lap while the consumer keeps up */
	/* Start of the last lap in which the fill level was checked. */
	uint64_t lap_asked;
	uint64_t head;       /* bytes consumed from the peer's ring */
	uint64_t head_shown; /* value of own->head */
	uint64_t end;        /* `head` at which receiving stops, or SHM_NO_END */
	uint64_t nap;        /* own->asleep without its flags, in the last sleep */
	uint64_t woken;      /* value of peer->asleep for which a wake was sent last */
	uint32_t bell;       /* value of own->bell */
	bool published;      /* something was published since shm_bell() */
	bool showed_room;    /* own->head was updated since shm_bell() */
};
/* Records end on multiples of SHM_LINE, so this is never reached. */
#define SHM_NO_END UINT64_MAX

/* Mark of the record `position` bytes after the start. Marks are odd, so memory that
 * was never written is no record. */
static inline uint64_t shm_mark(uint64_t start, uint64_t position)
{
	return (start + position) | 1;
}

/* Size of the ring that carries messages of up to message_bytes. */
uint64_t shm_ring_bytes(uint32_t message_bytes);

/* Size of a whole area. */
uint64_t shm_area_bytes(uint32_t message_bytes);

/* Initializes an area of fresh memory, before the peer gets it. */
void shm_area_init(struct shm_area *own, uint64_t random);

/* Initializes a ring over two fresh areas. */
void shm_ring_init(struct shm_ring *ring, struct shm_area *own, struct shm_area *peer,
	uint64_t ring_bytes);

/* Sends one record of two parts; with mark and length it may take at most a quarter of
 * the ring. -EAGAIN: no room now. -EPROTO: the peer's `head` is impossible. */
int shm_ring_send(struct shm_ring *ring, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);

/* Copies the next record into `out`. 1: a record of *bytes; 0: there is none; -EPROTO:
 * it is malformed, or larger than `room`. */
int shm_ring_receive(struct shm_ring *ring, void *out, size_t room, size_t *bytes);

/* True if there is a record, or a malformed one, which shm_ring_receive() reports. */
bool shm_ring_readable(const struct shm_ring *ring);

/* 1 if half of the ring is free, which is enough for any message, else 0. -EPROTO as
 * shm_ring_send(). */
int shm_ring_roomy(struct shm_ring *ring);

/* Fixes the end of the stream at the records that are present now: a peer that has
 * closed may not send more. */
void shm_ring_end(struct shm_ring *ring);

/*
 * Must be called after anything was published and before this thread stops looking at the
 * connection. True: the peer sleeps and must be woken through the socket.
 */
bool shm_bell_now(struct shm_ring *ring);
static inline bool shm_bell(struct shm_ring *ring)
{
	return (ring->published || ring->showed_room) && shm_bell_now(ring);
}

/* Announces sleep. The caller then checks for work once more, and sleeps only if there
 * is none. */
void shm_sleep(struct shm_ring *ring, bool want_room);
void shm_awake(struct shm_ring *ring);

/* The chunk of ask n in an area. */
static inline char *shm_chunk(struct shm_area *area, uint64_t ring_bytes, uint32_t n)
{
	return (char *)area + SHM_RING_OFFSET + ring_bytes +
	       (size_t)(n % SHM_CHUNK_COUNT) * SHM_CHUNK_BYTES;
}

#endif
