/* SPDX-License-Identifier: Apache-2.0 */
/* A link: one fabric connection of a session, with its handshake. */
#ifndef TERN_RENDEZVOUS_LINK_H
#define TERN_RENDEZVOUS_LINK_H

#include "rendezvous/layer.h"
#include "rendezvous/wire.h"

#define TERN_RAIL_ECHOES 512u

/*
 *     dialler:   DIALLING -up-> WAIT_ANSWER -step 2-> UP; the first link of a session:
 *                WAIT_ANSWER -step 2-> WAIT_WELCOME -a message-> UP
 *     acceptor:  WAIT_HELLO -step 1-> (WAIT_OLD ->) WAIT_PROOF -step 3-> UP
 *     any:       -> CLOSING -`closed`-> freed
 */
enum tern_link_state {
	TERN_LINK_DIALLING,
	TERN_LINK_WAIT_ANSWER,
	TERN_LINK_WAIT_WELCOME,
	TERN_LINK_WAIT_HELLO,
	/* Acceptor: the link waits until the session's old link is closed, then answers
	 * step 1. */
	TERN_LINK_WAIT_OLD,
	TERN_LINK_WAIT_PROOF,
	TERN_LINK_UP,
	TERN_LINK_CLOSING,
};

struct tern_link {
	struct tern_list node;    /* node in rdv->links */
	struct tern_list of_peer; /* node in peer->links */
	struct tern_rdv *rdv;
	struct tern_conn *conn;
	enum tern_link_state state;
	/* At the end that accepted: NULL until step 1 has named the session. */
	struct tern_peer *peer;
	struct tern_listener *listener;
	uint8_t rail; /* number of the rail; 0: the main link */
	/* Step of the HELLO that could not be sent yet, because the send queue of `conn`
	 * was full; 0: none. */
	uint8_t unsaid;
	/* Accepted link: node in rdv->half_open, while the handshake is not complete. */
	struct tern_half_open half_open;
	bool refused;   /* the link is closing, but the peer may still read the refusal */
	bool over;      /* the fabric has called ended(); closed() follows */
	int verdict;    /* why we closed it: replaces the fabric's status; 0: none */
	uint32_t epoch; /* epoch proposed in step 1 of the handshake */
	struct tern_hello theirs;
	uint8_t nonce[16];
	struct tern_timer timer; /* time limit of connecting and of the handshake */
	/* rail.c: ring buffer of TERN_RAIL_ECHOES request ids of the peer's sends, which
	 * are still to be sent back as confirmations; NULL until first used. */
	uint32_t *echoes;
	uint32_t echo_first, echo_count;
};

/* Functions that hello.c defines: */
/* Returns how many half-open links (in their handshake) a context may have, if its
 * process may open `file_max` files. */
uint32_t tern_half_open_max(uint64_t file_max);
struct tern_link *tern_link_new(
	struct tern_rdv *rdv, struct tern_conn *conn, enum tern_link_state state);
/* Changes the state. The diagram at enum tern_link_state must allow the transition. */
void tern_link_enter(struct tern_link *link, enum tern_link_state next);
/* Sends step 1 of the handshake; called when the fabric has connected. */
void tern_link_hello(struct tern_link *link);
int tern_link_handshake(struct tern_link *link, const void *message, size_t bytes);
void tern_link_answer(struct tern_link *link); /* sends step 2 of the handshake */
/* Called when the acceptor's first message has arrived: a link in WAIT_WELCOME goes
 * UP. */
void tern_link_welcomed(struct tern_link *link);
void tern_link_close(struct tern_link *link, int verdict, bool flush);
void tern_link_free(struct tern_link *link);
/* Sends the HELLO for which the connection's send queue was full before. */
void tern_link_writable(struct tern_link *link);
/* True if the link's listener is still there and accepts new peers. */
bool tern_link_may_accept(const struct tern_link *link);
/* Logs that there is no memory for the records of one more peer. Returns -ENOMEM, after
 * which the end that dials tries again. */
int tern_link_lacks_memory(const struct tern_link *link);
/* Checks a secret (NULL: none). -EINVAL: empty; -ENOTSUP: built without OpenSSL. */
int tern_secret_check(const char *secret);
int tern_secret_copy(char **to, const char *secret); /* -ENOMEM */
void tern_secret_free(char *secret);                 /* erases it from memory */

#endif
