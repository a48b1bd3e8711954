/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory of one connection: two areas. Each end makes one; only its maker
 * writes to it, and the other end maps it read-only. An area holds, in this order,
 *
 *     the line     the indices and flags of its maker, on one cache line
 *     asks         requests to the peer to copy its memory, which is in no slab, to its
 *                  chunks
 *     the ring     messages of the maker to the peer
 *     chunks       where the maker puts bytes that the peer asked for
 *
 * The ring has one producer (its maker) and one consumer (the peer). A record starts on a
 * cache line: a mark, the length, then the bytes. Records do not wrap: a filler record
 * leads back to the start of the ring. A record is present when its mark has the value
 * for its place: the number of bytes that the ring had carried before it, counted from a
 * random start. Leftovers of earlier laps, which include bytes of tensors, could be
 * mistaken for a record only if they held these 64 bits. `head`, the number of bytes
 * consumed, is in the consumer's area, because no end writes into the other's memory.
 *
 * A lap may be shorter than the ring: after SHM_LAP_MIN bytes (more if the consumer was
 * slow before) the producer goes back to the start if little is left to consume. So a
 * ring whose consumer keeps up uses only its first pages. The others are never touched,
 * which saves a page fault each, and memory for the life of the connection. Until the
 * consumer has passed the filler record, the producer can use only the length of the
 * short lap, not the rest of the ring; a producer that runs out of space makes longer
 * laps.
 *
 * The consumer finds a record by looking at the cache line on which the record starts,
 * and not by an index on another line, which it would have to read first. But each look
 * takes the line away from the producer. So the producer writes that line last, with
 * consecutive stores: see write_record().
 *
 * The indices and flags of a maker share a line on purpose: they have one writer, which
 * seldom writes any of them, so the line stays in the cache of the peer, which reads them
 * all the time. Words that are written more often have a line of their own: the bell,
 * which the peer reads only before it sleeps, `reading` and `writing`, which it reads only
 * when the connection ends.
 *
 * The peer is not trusted. Each of its words is read once, into a variable, which is then
 * checked: impossible lengths and indices are -EPROTO, and no access goes outside the
 * ring, whatever the words contain.
 *
 * Memory order, by pairs of a release store and an acquire load. mark: the producer has
 * written the record; the consumer then reads it. head: the consumer has read the bytes;
 * the producer then overwrites them. asked: the request is written; the other end then
 * reads it. answered: the chunk's bytes are written; the asker then reads them. bell and
 * asleep are a sequentially consistent store-load pair: see shm_bell_now(), and so are
 * writing and gone: see write_begin() in
 * copy.c. For reads, gone is a store before other stores,
 * and a load after other loads: see shm_say_gone().
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
/* Length of a lap while the consumer keeps up; at most half of the ring. */
#define SHM_LAP_MIN     (128u << 10)
#define SHM_MESSAGE_MAX (16u << 20)

/* Flag bits of shm_area.asleep. The higher bits count sleeps, so that each sleep has
 * another value. */
#define SHM_ASLEEP 1u /* the area's maker sleeps: the peer must wake it for new work */
/* The area's maker also waits for space in the ring into which it writes, for a message
 * that it could not send: the peer must wake it when there is space, too. */
#define SHM_WANT_ROOM 2u
/* Added to the word at each sleep, so that its higher bits count the sleeps. */
#define SHM_NAP 4u

/* A request to the peer: copy `bytes` at `address`, in the exposed region (slot,
 * generation), into your chunk. */
struct shm_ask {
	_Atomic uint32_t slot, generation;
	_Atomic uint64_t address, bytes;
};

struct shm_area {
	/* First cache line: indices and flags. */
	/* Number from which the marks of records count; random. Set before the peer gets
	 * the area. */
	_Alignas(64) _Atomic uint64_t start;
	_Atomic uint64_t head; /* number of bytes consumed from the peer's ring */
	/* 0: the area's maker is awake; otherwise SHM_ASLEEP, SHM_WANT_ROOM if set, and
	 * the number of sleeps in the higher bits */
	_Atomic uint64_t asleep;
	/* Number of requests made so far; request n is in asks[n % SHM_CHUNK_COUNT]. */
	_Atomic uint32_t asked;
	_Atomic uint32_t answered; /* number of the peer's requests answered so far */
	/* Not 0: the area's maker has closed the connection, so memory that it exposed
	 * may change. */
	_Atomic uint32_t gone;

	_Alignas(64) struct shm_ask asks[SHM_CHUNK_COUNT];
	/* Status of the answer to the peer's request n, at index n % SHM_CHUNK_COUNT. */
	_Atomic int32_t statuses[SHM_CHUNK_COUNT];

	/* Incremented after the maker has published something for the peer: a record, a
	 * request, an answer, or `head`. */
	_Alignas(64) _Atomic uint32_t bell;
	/* Number of the peer's slabs (memory segments of its pools) that the area's maker
	 * reads in place. */
	_Atomic uint32_t reading;
	/* Not 0: the area's maker may be writing to memory of the peer's process. */
	_Atomic uint32_t writing;
};

/* Offset of the ring in an area. The chunks follow the ring. */
#define SHM_RING_OFFSET 4096u
_Static_assert(sizeof(struct shm_area) <= SHM_RING_OFFSET, "the area's head is one page");
_Static_assert(offsetof(struct shm_area, asks) == SHM_LINE, "one line of indices");
_Static_assert(offsetof(struct shm_area, reading) > offsetof(struct shm_area, bell),
	"what is written for every message is not among the indices");

/* One end's state of both areas. This end only reads the peer's area. */
struct shm_ring {
	struct shm_area *own;
	struct shm_area *peer;
	uint64_t bytes;             /* size of each ring, a power of two */
	uint64_t start, peer_start; /* `start` of our area, and of the peer's area */
	uint64_t tail;              /* number of bytes produced into our ring */
	uint64_t peer_head;         /* value of peer->head when it was last read */
	/* Length of a lap through the ring while the consumer keeps up. */
	uint64_t lap_bytes;
	/* Start of the last lap for which the producer has decided whether to end it
	 * early (filler_before()). */
	uint64_t lap_asked;
	uint64_t head;       /* number of bytes consumed from the peer's ring */
	uint64_t head_shown; /* value last stored to own->head */
	uint64_t end;        /* value of `head` at which receiving stops, or SHM_NO_END */
	uint64_t nap;        /* own->asleep of the last sleep, without its flags */
	uint64_t woken;      /* value of peer->asleep when a WAKE was last sent */
	uint32_t bell;       /* value of own->bell */
	/* A record, a request or an answer was published since the last shm_bell(). */
	bool published;
	bool showed_room; /* own->head was updated since the last shm_bell() */
};
/* `end` of a ring that has not ended. Records end on multiples of SHM_LINE, so no record
 * ends at this value. */
#define SHM_NO_END UINT64_MAX

/* Value of the mark that makes a record valid, for a record `position` bytes after the
 * start of the stream. Marks are odd, so memory that was never written contains no valid
 * record. */
static inline uint64_t shm_mark(uint64_t start, uint64_t position)
{
	return (start + position) | 1;
}

/* Size of a ring for messages of up to message_bytes. */
uint64_t shm_ring_bytes(uint32_t message_bytes);

/* Size of a whole area (with ring and chunks) for messages of up to message_bytes. */
uint64_t shm_area_bytes(uint32_t message_bytes);

/* Initialises a new area, before the peer gets it. */
void shm_area_init(struct shm_area *own, uint64_t random);

/* Initialises the state of one end, for two new areas. */
void shm_ring_init(struct shm_ring *ring, struct shm_area *own, struct shm_area *peer,
	uint64_t ring_bytes);

/* Writes one record, made of head and payload; including its header it may take at most a
 * quarter of the ring. -EAGAIN: the ring is full. -EPROTO: the peer's `head` is
 * impossible. */
int shm_ring_send(struct shm_ring *ring, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);

/* Copies the next record into `out`. 1: a record of *bytes; 0: there is none; -EPROTO:
 * the record is malformed, or larger than `room`. */
int shm_ring_receive(struct shm_ring *ring, void *out, size_t room, size_t *bytes);

/* True if there is a next record. It may be malformed, which shm_ring_receive()
 * reports. */
bool shm_ring_readable(const struct shm_ring *ring);

/* 1 if at least half of the ring is free, which is enough for any message, else 0.
 * -EPROTO as shm_ring_send(). */
int shm_ring_roomy(struct shm_ring *ring);

/* Limits receiving to the records that are present now: after a peer has closed, later
 * ones are not accepted. */
void shm_ring_end(struct shm_ring *ring);

/* Must be called after anything was published (written for the peer) and before this
 * thread stops checking the connection. True: the peer sleeps and must be woken through
 * the socket. */
bool shm_bell_now(struct shm_ring *ring);
static inline bool shm_bell(struct shm_ring *ring)
{
	return (ring->published || ring->showed_room) && shm_bell_now(ring);
}

/* Tells the peer, by `asleep` in our area, that this end is about to sleep. The caller
 * must then check for work once more, and may sleep only if there is none. want_room: the
 * peer must also wake this end when our ring has space again. */
void shm_sleep(struct shm_ring *ring, bool want_room);
void shm_awake(struct shm_ring *ring);

/* Address of the chunk for the answer to request n, in the area of the end that
 * answers. */
static inline char *shm_chunk(struct shm_area *area, uint64_t ring_bytes, uint32_t n)
{
	return (char *)area + SHM_RING_OFFSET + ring_bytes +
	       (size_t)(n % SHM_CHUNK_COUNT) * SHM_CHUNK_BYTES;
}

#endif
