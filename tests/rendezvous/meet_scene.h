/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stranger: a peer that sends messages that no correct Tern sends, most of them after a
 * complete handshake. It uses a port of the fabric test bed, so the wrong messages are
 * sent over each fabric but the simulator. After a wrong message B must close the
 * stranger's connection, and its session with A must not be affected.
 */
#ifndef TERN_TESTS_RENDEZVOUS_MEET_SCENE_H
#define TERN_TESTS_RENDEZVOUS_MEET_SCENE_H

#include "tests/rendezvous/meet.h"

#include "rendezvous/wire.h"

#define STRANGER_KEY 99u

struct scene {
	const struct instance *instance;
	struct meet *meet; /* the two correct ends, A and B */
	struct bed *bed;
	/* Another listener of B, to which the stranger connects. */
	struct tern_listener *listener;
	struct link *link;        /* the stranger's end of the connection */
	struct tern_hello answer; /* B's HELLO; step 0: not received yet */
	uint32_t seq;
	/* `heard`: sequence number of B's last message; `ack`: last acknowledgement
	 * sent to B. */
	uint32_t heard, ack;
	/* Sequence number of B's FIN (goodbye); 0: not received yet. */
	uint32_t fin_seq;
	uint32_t granted, used; /* the stranger's credits, as B counts them */
	/* Id in B's last WANT (request for one send); 0: none. */
	uint32_t want;
	/* Id in B's last MISS (there is no such send); 0: none. */
	uint32_t missed;
	/* Id and status in B's last ATS (answer to an RTS); 0: none. */
	uint32_t ats;
	int ats_status;
	/* Id in B's last POST (memory for the stranger to put into); 0: none. */
	uint32_t posted;
	struct tern_peer *caller; /* B's peer object for the stranger */
	/* Called for each message about windows; may be NULL. */
	void (*on_window)(struct scene *s, const struct tern_header *h);
	void *arg; /* for use by the test */
	unsigned accepted_count, down_count;
	int down_status;
};

#define SCENE_PUMP(s, cond)                                                              \
	PUMP_WITH((meet_turn((s)->meet), bed_turn((s)->bed)), (s)->instance->name, cond)

/* `b_opts` NULL: meet_opts(). */
void scene_init_with(struct scene *s, const struct instance *instance,
	const struct tern_context_opts *b_opts);
void scene_init(struct scene *s, const struct instance *instance);
void scene_fini(struct scene *s);
/* event() of a peer: `arg` is the scene. Counts DOWN, and frees the peer. */
void scene_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg);
/* Handler of the stranger's messages. */
int stranger_hears(struct link *link, const void *data, size_t bytes);
/* Sends a message and its payload, which follows it, once; returns the result of the
 * fabric's send(). */
int stranger_tries(
	struct scene *s, const void *message, size_t bytes, size_t payload_bytes);
void stranger_hello_with(
	struct scene *s, uint8_t step, int16_t status, uint32_t eager_bytes);
void stranger_hello(struct scene *s, uint8_t step);
/* Sends a message of the stranger, with correct epoch and counters. Its payload is
 * what->payload or, if that is NULL, a pattern. */
void stranger_says(struct scene *s, const struct tern_header *what);
void stranger_dials(struct scene *s);
/* Connects, and completes the handshake. */
void stranger_comes(struct scene *s);
/* Checks that a tensor, which needs a record at B, still gets from A to B. */
void scene_undisturbed(struct scene *s, uint64_t step);
/* Sends the message `h` as the stranger, and checks that B closes the stranger's
 * connection. */
void scene_ends_session(struct scene *s, const struct tern_header *h);
/* The same; B must also log a protocol error. */
void scene_protocol_error(struct scene *s, const struct tern_header *h);

#endif
