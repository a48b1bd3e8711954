/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links (fabric connections of sessions) and their handshake of three messages, see
 * struct tern_hello. Until the handshake is complete, an accepted link may take only
 * little memory (a session object without records of its own) and five seconds. The
 * number of such half-open links is bounded; transport/admission.h tells which one is cut
 * when one more arrives. A dialler whose link was cut dials again, since its session is
 * not up before the acceptor has sent a message on it.
 *
 * Proof of the cluster secret: each end sends HMAC-SHA256(secret, its role, both nonces,
 * both incarnations, token, epoch, rail), so neither can replay the other's proof or send
 * it back. (The proof in step 1 of a session that returns has only the dialler's nonce.)
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/endian.h"
#include "base/rng.h"
#include "tern-config.h"

#if TERN_HAVE_OPENSSL
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

#define HANDSHAKE_NS (5 * TERN_NS_PER_S)
/* Interval of the checks whether to wait longer for the handshake of a link that has
 * taken too long. */
#define PATIENCE_NS (250 * TERN_NS_PER_MS)
/* Bounds of the number of half-open links (in their handshake) of a context. Within these
 * bounds, half of the file descriptors may be used for half-open links; the other half
 * remains for links that are up. */
#define HALF_OPEN_LEAST     64u
#define HALF_OPEN_MOST      4096u
#define FILES_FOR_HALF_OPEN 2u
/* A refused link stays open, for at most one second, until the other end has read the
 * reason. At most half_open_max / REFUSED_SHARE links may do so; further ones are closed
 * immediately. */
#define REFUSED_SHARE 4u

/* ---- proof ---- */

int tern_secret_check(const char *secret)
{
	if (secret && !TERN_HAVE_OPENSSL)
		return -ENOTSUP;
	return secret && !*secret ? -EINVAL : 0;
}

int tern_secret_copy(char **to, const char *secret)
{
	*to = secret ? strdup(secret) : NULL;
	return secret && !*to ? -ENOMEM : 0;
}

void tern_secret_free(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

enum side {
	SIDE_DIALLER = 'd',
	SIDE_ACCEPTOR = 'a',
	SIDE_RETURNING = 'r', /* the dialler of an existing session, in step 1 */
};

static void prove(const struct tern_link *link, const struct tern_peer *peer,
	enum side prover, const uint8_t *dialler_nonce, const uint8_t *acceptor_nonce,
	uint8_t mac[32])
{
	const char *secret = peer->secret ? peer->secret : link->rdv->ctx->opts.secret;

	memset(mac, 0, 32);
	if (!secret)
		return;
#if TERN_HAVE_OPENSSL
	unsigned char text[1 + 16 + 16 + 8 + 8 + 8 + 4 + 1] = {(unsigned char)prover};
	uint64_t own = link->rdv->incarnation, theirs = peer->their_incarnation;

	memcpy(text + 1, dialler_nonce, 16);
	memcpy(text + 17, acceptor_nonce, 16);
	tern_put_le64(text + 33, peer->dialler ? own : theirs);
	tern_put_le64(text + 41, peer->dialler ? theirs : own);
	tern_put_le64(text + 49, peer->token);
	tern_put_le32(text + 57, link->epoch);
	text[61] = link->rail;
	HMAC(EVP_sha256(), secret, (int)strlen(secret), text, sizeof(text), mac, NULL);
#else
	(void)prover;
	(void)dialler_nonce;
	(void)acceptor_nonce;
#endif
}

static const uint8_t no_nonce[16];

/* Compares two proofs in constant time, so that the time does not tell how many bytes
 * agree. */
static bool same_mac(const uint8_t *a, const uint8_t *b)
{
	uint8_t difference = 0;

	for (int i = 0; i < 32; i++)
		difference |= a[i] ^ b[i];
	return difference == 0;
}

/* Says how secrets differ, of which `own` and `theirs` are the proofs: without a secret a
 * proof is zero. */
static const char *how_secrets_differ(const uint8_t *own, const uint8_t *theirs)
{
	static const uint8_t none[32];

	if (same_mac(own, none))
		return "refused: the peer has a secret, and this process has none";
	if (same_mac(theirs, none))
		return "refused: this process has a secret, and the peer has none";
	return "refused: the peer has another secret";
}

/* ---- links ---- */

uint32_t tern_half_open_max(uint64_t file_max)
{
	uint64_t share = file_max / FILES_FOR_HALF_OPEN;

	return (uint32_t)TERN_MAX(HALF_OPEN_LEAST, TERN_MIN(share, HALF_OPEN_MOST));
}

static void leave_half_open(struct tern_link *link)
{
	tern_timer_clear(link->rdv->ctx, &link->timer);
	tern_admission_remove(&link->rdv->half_open, &link->half_open);
}

static void enter_half_open(struct tern_link *link)
{
	struct tern_rdv *rdv = link->rdv;
	uint64_t now_ns = tern_now_ns(rdv->ctx->env);
	struct tern_half_open *excess;

	tern_admission_add(&rdv->half_open, &link->half_open, link->conn->name, now_ns);
	tern_timer_set(rdv->ctx, &link->timer, now_ns + HANDSHAKE_NS);
	excess = tern_admission_excess(
		&rdv->half_open, &link->half_open, rdv->half_open_max, now_ns);
	if (excess)
		tern_link_close(tern_container_of(excess, struct tern_link, half_open),
			-EMFILE, false);
}

static void too_slow(struct tern_timer *timer)
{
	struct tern_link *link = tern_container_of(timer, struct tern_link, timer);
	struct tern_context *ctx = link->rdv->ctx;

	if (link->peer && tern_peer_is_patient(link->peer, link))
		tern_timer_set(ctx, timer, tern_now_ns(ctx->env) + PATIENCE_NS);
	else
		tern_link_close(link, -ETIMEDOUT, false);
}

/* For each state, a bit set of the states that may follow: the diagram in link.h. */
#define TO(state) (1u << TERN_LINK_##state)
static const uint8_t edges[] = {
	[TERN_LINK_DIALLING] = TO(WAIT_ANSWER) | TO(CLOSING),
	[TERN_LINK_WAIT_ANSWER] = TO(WAIT_WELCOME) | TO(UP) | TO(CLOSING),
	[TERN_LINK_WAIT_WELCOME] = TO(UP) | TO(CLOSING),
	[TERN_LINK_WAIT_HELLO] = TO(WAIT_OLD) | TO(WAIT_PROOF) | TO(CLOSING),
	[TERN_LINK_WAIT_OLD] = TO(WAIT_PROOF) | TO(CLOSING),
	[TERN_LINK_WAIT_PROOF] = TO(UP) | TO(CLOSING),
	[TERN_LINK_UP] = TO(CLOSING),
	[TERN_LINK_CLOSING] = 0,
};
#undef TO

void tern_link_enter(struct tern_link *link, enum tern_link_state next)
{
	tern_assert(edges[link->state] >> next & 1);
	link->state = next;
}

struct tern_link *tern_link_new(
	struct tern_rdv *rdv, struct tern_conn *conn, enum tern_link_state state)
{
	struct tern_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->rdv = rdv;
	link->conn = conn;
	link->state = state;
	link->timer.fire = too_slow;
	tern_list_init(&link->half_open.node);
	conn->user = link;
	tern_list_push(&rdv->links, &link->node);
	tern_list_init(&link->of_peer);
	for (int i = 0; i < 16; i += 8)
		tern_put_le64(link->nonce + i, tern_random(rdv->ctx->env));
	if (state == TERN_LINK_WAIT_HELLO)
		enter_half_open(link);
	return link;
}

void tern_link_free(struct tern_link *link)
{
	leave_half_open(link);
	link->rdv->refused_count -= link->refused;
	tern_list_remove(&link->node);
	tern_list_remove(&link->of_peer);
	free(link->echoes);
	free(link);
}

void tern_link_close(struct tern_link *link, int verdict, bool flush)
{
	if (link->state == TERN_LINK_CLOSING)
		return;
	tern_link_enter(link, TERN_LINK_CLOSING);
	leave_half_open(link); /* a closing link is not half-open any more */
	if (verdict && !link->verdict)
		link->verdict = verdict;
	link->conn->port->ops->conn_close(link->conn, flush);
}

/* ---- saying hello ---- */

static uint32_t own_eager_bytes(const struct tern_link *link)
{
	uint32_t asked = link->rdv->ctx->opts.eager_bytes;

	return TERN_MIN(asked ? asked : link->conn->eager_bytes, TERN_EAGER_MAX);
}

/* Sends the HELLO of this step of the handshake. -EAGAIN: there is no room now;
 * tern_link_writable() sends it again. After any other error the link is closed. */
static int say_hello(struct tern_link *link, uint8_t step, int status)
{
	struct tern_peer *peer = link->peer;
	struct tern_hello hello = {
		.step = step,
		.rail = link->rail,
		.status = (int16_t)status,
		.epoch = link->epoch,
		.incarnation = link->rdv->incarnation,
		.eager_bytes = own_eager_bytes(link),
	};
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];
	int r;

	memcpy(hello.nonce, link->nonce, sizeof(hello.nonce));
	if (peer && status == 0) {
		hello.token = peer->token;
		hello.rx_seq = peer->stream.rx_seq;
		hello.first_seq = tern_peer_first_seq(peer);
		hello.credit = peer->stream.credit_rx.granted;
		snprintf(hello.name, sizeof(hello.name), "%s", peer->own_name);
		if (step == 2)
			prove(link, peer, SIDE_ACCEPTOR, link->theirs.nonce, link->nonce,
				hello.mac);
		else if (step == 3)
			prove(link, peer, SIDE_DIALLER, link->nonce, link->theirs.nonce,
				hello.mac);
		else if (peer->token)
			prove(link, peer, SIDE_RETURNING, link->nonce, no_nonce,
				hello.mac);
	}
	tern_hello_encode(&hello, message);
	r = link->conn->port->ops->send(link->conn, message, sizeof(message), NULL, 0);
	link->unsaid = r == -EAGAIN ? step : 0;
	if (r < 0 && r != -EAGAIN)
		tern_link_close(link, r, false);
	return r;
}

void tern_link_hello(struct tern_link *link)
{
	struct tern_rdv *rdv = link->rdv;

	link->epoch = link->peer->epoch + (link->rail ? 0 : 1);
	tern_link_enter(link, TERN_LINK_WAIT_ANSWER);
	tern_timer_set(rdv->ctx, &link->timer,
		TERN_MIN(tern_now_ns(rdv->ctx->env) + HANDSHAKE_NS,
			link->rail ? TERN_NEVER : tern_peer_attempt_until(link->peer)));
	say_hello(link, 1, 0);
}

void tern_link_answer(struct tern_link *link)
{
	tern_link_enter(link, TERN_LINK_WAIT_PROOF);
	say_hello(link, 2, 0);
}

static void refuse(struct tern_link *link, int status)
{
	struct tern_rdv *rdv = link->rdv;

	link->verdict = status;
	say_hello(link, 2, status);
	if (link->state == TERN_LINK_CLOSING)
		return;
	link->refused = rdv->refused_count < rdv->half_open_max / REFUSED_SHARE;
	rdv->refused_count += link->refused;
	tern_link_close(link, status, link->refused);
}

/* ---- hearing hello ---- */

bool tern_link_may_accept(const struct tern_link *link)
{
	return link->listener && !link->listener->refuses;
}

int tern_link_lacks_memory(const struct tern_link *link)
{
	tern_log_stranger(link->rdv->ctx->env,
		"%s: refused: no memory for the records of one more peer",
		link->conn->name);
	return -ENOMEM;
}

static void new_session(struct tern_link *link)
{
	struct tern_rdv *rdv = link->rdv;
	struct tern_peer *peer;
	uint64_t token;

	if (!tern_link_may_accept(link)) {
		refuse(link, -ECONNREFUSED);
		return;
	}
	peer = tern_records_spare(rdv) < 0 ? NULL
					   : tern_peer_new(rdv, &link->listener->opts);
	if (!peer) {
		refuse(link, tern_link_lacks_memory(link));
		return;
	}
	do
		token = tern_random(rdv->ctx->env);
	while (token == 0);
	tern_peer_set_token(peer, token);
	tern_peer_add_link(peer, link);
	peer->their_incarnation = link->theirs.incarnation;
	peer->stream.rx_seq = link->theirs.first_seq;
	tern_link_answer(link);
}

/* Closes all main links that the session has, including one whose last message has not
 * arrived yet: the dialler gave them up before it dialled its newest link. */
static void abandon_others(struct tern_peer *peer)
{
	tern_list_for_each_safe (n, &peer->links) {
		struct tern_link *other = tern_list_entry(n, struct tern_link, of_peer);

		if (!other->rail)
			tern_link_close(other, -ECONNRESET, false);
	}
}

/*
 * True if the dialler's proof in step 1 is right. This is checked before the session's
 * old link is given up for the new one. An attacker who recorded a step 1 can send it
 * again, but its epoch has been used by then.
 */
static bool may_return(const struct tern_link *link, const struct tern_peer *peer)
{
	uint8_t expected[32];

	prove(link, peer, SIDE_RETURNING, link->theirs.nonce, no_nonce, expected);
	return same_mac(expected, link->theirs.mac);
}

/* Handles step 1 of a dialler that has a session. A rail is added to the session. A new
 * main link replaces the old one: this function closes the old one, and the new link
 * waits until the old one and its rails are closed, since only then is it certain which
 * messages have arrived on them. */
static void old_session(struct tern_link *link)
{
	struct tern_peer *peer = tern_peer_by_token(
		link->rdv, link->theirs.token, link->theirs.incarnation);

	if (!peer) {
		refuse(link, -ESTALE);
		return;
	}
	if (!may_return(link, peer)) {
		refuse(link, -EACCES);
		return;
	}
	if (!(link->rail ? tern_rail_welcome(peer, link)
			 : tern_seq_before(peer->epoch, link->epoch))) {
		refuse(link, -ECONNRESET);
		return;
	}
	if (!link->rail)
		abandon_others(peer);
	tern_peer_add_link(peer, link);
	if (!peer->has_records && tern_records_spare(link->rdv) < 0)
		refuse(link, tern_link_lacks_memory(link));
	else if (!link->rail && (peer->link || !tern_rails_closed(peer)))
		tern_link_enter(link, TERN_LINK_WAIT_OLD);
	else
		tern_link_answer(link);
}

static int on_step_1(struct tern_link *link)
{
	if (link->theirs.step != 1)
		return -EPROTO;
	/* A rail belongs to an existing session, and is closed when the session's main
	 * link ends. Nothing would close a rail without a session. */
	if (link->theirs.rail >= TERN_RAILS_MAX ||
		(link->theirs.rail && !link->theirs.token))
		return -EPROTO;
	link->epoch = link->theirs.epoch;
	link->rail = link->theirs.rail;
	if (link->theirs.token)
		old_session(link);
	else
		new_session(link);
	return 0;
}

static void up(struct tern_link *link)
{
	if (link->rail)
		tern_rail_up(link);
	else
		tern_peer_link_up(link->peer, link);
}

/*
 * Sends step 3, the last one of the dialler. The acceptor may cut the link before it
 * reads step 3, and then it has no session. So the dialler of a new session waits until
 * the acceptor sends a message on the link. A session that was up before survives such a
 * cut.
 */
static void introduce(struct tern_link *link)
{
	struct tern_peer *peer = link->peer;

	if (say_hello(link, 3, 0) < 0)
		return;
	if (!link->rail && peer->state == TERN_PEER_STATE_START) {
		/* The session may be UP with this epoch at the acceptor, so a later link
		 * must use the next epoch. */
		peer->epoch = link->epoch;
		tern_link_enter(link, TERN_LINK_WAIT_WELCOME);
		/* The fabric may accept long messages now: the acceptor has proved
		 * itself, and its first message may repeat one of an earlier link. */
		link->conn->owner = peer;
		tern_timer_set(link->rdv->ctx, &link->timer,
			TERN_MIN(tern_ns_add(tern_peer_now_ns(peer), HANDSHAKE_NS),
				peer->dial.give_up_ns));
		return;
	}
	leave_half_open(link);
	up(link);
}

void tern_link_welcomed(struct tern_link *link)
{
	leave_half_open(link);
	up(link);
}

void tern_link_writable(struct tern_link *link)
{
	if (link->unsaid == 3)
		introduce(link);
	else if (link->unsaid)
		say_hello(link, link->unsaid, 0);
}

static int on_step_2(struct tern_link *link)
{
	struct tern_peer *peer = link->peer;
	uint8_t expected[32];

	if (link->theirs.step != 2)
		return -EPROTO;
	if (link->theirs.status < 0) {
		tern_link_close(link, link->theirs.status, false);
		return 0;
	}
	if (link->theirs.token == 0 || link->theirs.epoch != link->epoch ||
		(peer->token &&
			(peer->token != link->theirs.token ||
				peer->their_incarnation != link->theirs.incarnation)))
		return -EPROTO;
	/* rx_seq is set now, since the HELLO of the next link announces it if this link
	 * is lost. */
	if (!peer->token)
		peer->stream.rx_seq = link->theirs.first_seq;
	peer->token = link->theirs.token;
	peer->their_incarnation = link->theirs.incarnation;
	prove(link, peer, SIDE_ACCEPTOR, link->nonce, link->theirs.nonce, expected);
	if (!same_mac(expected, link->theirs.mac)) {
		peer->other_secret = how_secrets_differ(expected, link->theirs.mac);
		tern_link_close(link, -EACCES, false);
		return 0;
	}
	introduce(link);
	return 0;
}

static int on_step_3(struct tern_link *link, const struct tern_hello *proof)
{
	uint8_t expected[32];

	if (proof->step != 3)
		return -EPROTO;
	prove(link, link->peer, SIDE_DIALLER, link->theirs.nonce, link->nonce, expected);
	if (!same_mac(expected, proof->mac)) {
		tern_log_stranger(link->rdv->ctx->env,
			"%s: refused: the peer does not know the cluster secret",
			link->conn->name);
		return -EACCES;
	}
	leave_half_open(link);
	up(link);
	return 0;
}

/* Checks `status` and eager_bytes of a HELLO. Only a step 2 can be a refusal (status
 * other than 0), of which nothing else is used. The counters are checked by plausible()
 * in session.c, which knows their possible values. No bound for them can be given without
 * those values, because they wrap: after 2^31 messages `credit` may lie anywhere relative
 * to `first_seq`. */
static int check_limits(const struct tern_hello *h)
{
	bool refusal = h->step == 2 && h->status;

	return !refusal && (h->status || h->eager_bytes == 0) ? -EPROTO : 0;
}

static int on_hello(struct tern_link *link, const struct tern_hello *hello)
{
	if (link->state == TERN_LINK_WAIT_PROOF)
		return on_step_3(link, hello);
	link->half_open.has_spoken = true;
	link->theirs = *hello;
	if (link->state == TERN_LINK_WAIT_HELLO)
		return on_step_1(link);
	return link->state == TERN_LINK_WAIT_ANSWER ? on_step_2(link) : -EPROTO;
}

/* Writes the text of the status; for a version that was refused (`other`; 0: not known)
 * with both versions. */
static const char *version_text(int status, uint8_t other, char *text, size_t bytes)
{
	snprintf(text, bytes, "%s", tern_status_text(status));
	if (status == -EPROTONOSUPPORT && other)
		snprintf(text, bytes,
			"the peer speaks version %u of the protocol and this process "
			"version %u: they are of different releases",
			other, TERN_WIRE_VERSION);
	return text;
}

const char *tern_peer_why(
	const struct tern_peer *peer, int status, char *text, size_t bytes)
{
	version_text(status, peer->other_version, text, bytes);
	if (status == -EACCES && peer->other_secret)
		snprintf(text, bytes, "%s", peer->other_secret);
	return text;
}

int tern_link_handshake(struct tern_link *link, const void *message, size_t bytes)
{
	struct tern_hello hello;
	int r = tern_hello_decode(message, bytes, &hello);
	uint8_t other = r == -EPROTONOSUPPORT ? tern_hello_version(message, bytes) : 0;
	char why[160];

	if (link->peer)
		link->peer->other_version = other;
	if ((r == -EPROTONOSUPPORT || r == -EILSEQ) &&
		link->state == TERN_LINK_WAIT_HELLO) {
		tern_log_stranger(link->rdv->ctx->env, "%s: refused: %s",
			link->conn->name, version_text(r, other, why, sizeof(why)));
		refuse(link, r);
		return 0;
	}
	if (r == 0)
		r = check_limits(&hello);
	if (r == 0)
		r = on_hello(link, &hello);
	if (r < 0) {
		tern_log_stranger(link->rdv->ctx->env, "%s: handshake refused: %s",
			link->conn->name, tern_status_text(r));
		tern_link_close(link, r, false);
	}
	return 0;
}
