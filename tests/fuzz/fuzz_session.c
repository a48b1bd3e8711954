/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes a session in the simulator. The peer sends messages that are made from the
 * input, with plausible epochs, numbers and ids, in any order, while both ends send and
 * receive and access windows of each other, and the other end also cancels. Every request must end once, and nothing may be left at the end.
 *
 * The simulator's fabric does not check regions (memory that a peer may access); tests of
 * each real fabric do that. So the regions in these messages are valid. They belong to
 * the first link, so no messages are made for a later one.
 *
 * `fuzz_session --seeds DIRECTORY` writes inputs for situations that random inputs rarely
 * reach: an end must have no credits left before the messages WANT, MISS or HAVE have an
 * effect.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/endian.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/window.h"
#include "tests/fuzz/fuzz.h"
#include "transport/sim/sim.h"

#define REQS      16u
#define ROOM      16384u
#define MEM_BYTES (REQS * ROOM)
#define RECORDS   64u
#define INPUT_MAX 4096u /* longer inputs reach nothing new */

struct end {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_mem *mem;
	struct tern_pool *pool;
	unsigned char *bytes;
	struct tern_req reqs[REQS];
	bool used[REQS], released[REQS];
	bool down, closing;
	/* A window of all memory, and access to that of the other end. */
	struct tern_window *window;
	struct tern_window_desc desc;
	struct tern_remote *remote;
};

struct world {
	struct tern_sim *sim;
	/* ends[0] is the victim, a correct end. ends[1] is the liar: besides its own
	 * messages, the victim gets some that are made from the input. */
	struct end ends[2];
	const struct tern_link *link; /* first link of the victim */
	struct tern_port *port;       /* the port through which the liar sends */
	/* Regions of the liar's memory, exposed on that link. */
	struct tern_region read, write, both;
};

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *e = arg;

	(void)peer;
	(void)status;
	e->down = e->down || event == TERN_PEER_DOWN;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;
	const struct tern_peer_opts opts = {
		.event = on_event, .arg = e, .pool = e->pool, .name = "a"};

	if (e->peer)
		return;
	e->peer = peer;
	tern_peer_set_opts(peer, &opts);
}

static void open_end(struct world *w, struct end *e, const char *name)
{
	struct tern_context_opts opts = {.eager_bytes = 512, .record_count = RECORDS};
	struct tern_domain *domain;

	e->process = tern_sim_process_new(w->sim, name);
	domain = tern_sim_domain(e->process);
	e->bytes = calloc(1, MEM_BYTES);
	if (!e->bytes ||
		tern_context_new_in(domain, &opts, tern_sim_env(e->process), &e->ctx) <
			0 ||
		tern_mem_wrap(domain, e->bytes, MEM_BYTES, &e->mem) < 0 ||
		tern_pool_new(domain,
			&(struct tern_pool_opts){
				.slab_bytes = 256u << 10, .max_bytes = 1u << 20},
			&e->pool) < 0)
		tern_never("one end");
	tern_sim_drive(e->process, e->ctx);
}

static bool both_are_up(void *arg)
{
	const struct world *w = arg;

	return w->ends[0].peer && w->ends[0].peer->state == TERN_PEER_STATE_UP &&
	       w->ends[1].peer->state == TERN_PEER_STATE_UP;
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static void expose(struct world *w, unsigned access, struct tern_region *out)
{
	struct tern_conn *conn = w->ends[1].peer->link->conn;

	if (conn->port->ops->expose(conn, w->ends[1].mem, 0, MEM_BYTES,
		    (enum tern_access)access, out) < 0)
		tern_never("a region");
}

static void open_window(struct end *e)
{
	const struct tern_buf all = {.mem = e->mem, .bytes = MEM_BYTES};

	if (tern_window_new(
		    e->ctx, &all, TERN_WINDOW_READ | TERN_WINDOW_WRITE, &e->window) < 0)
		tern_never("a window");
	tern_window_describe(e->window, &e->desc);
}

static void open_world(struct world *w, struct fuzz *f)
{
	static const uint32_t caps[] = {TERN_CAP_PUT, TERN_CAP_PUT | TERN_CAP_GET,
		TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND,
		TERN_CAP_PUT | TERN_CAP_GET | TERN_CAP_PEEK};
	struct tern_peer_opts opts = {.event = on_event, .arg = &w->ends[1]};
	struct tern_listener *listener;

	*w = (struct world){.sim = tern_sim_new(&(struct tern_sim_opts){
				    .seed = 1, .caps = caps[fuzz_below(f, 4)]})};
	open_end(w, &w->ends[0], "victim");
	open_end(w, &w->ends[1], "liar");
	opts.pool = w->ends[1].pool;
	if (tern_listen(w->ends[0].ctx, "sim://victim", NULL, on_accept, &w->ends[0],
		    &listener) < 0 ||
		tern_connect(w->ends[1].ctx, "sim://victim", &opts, &w->ends[1].peer) <
			0 ||
		tern_sim_run(w->sim, both_are_up, w, TERN_NS_PER_S) < 0)
		tern_never("a session");
	for (unsigned i = 0; i < 2; i++)
		tern_channel_open(w->ends[i].peer, 1, &w->ends[i].channel);
	w->link = w->ends[0].peer->link;
	w->port = w->ends[1].peer->link->conn->port;
	expose(w, TERN_ACCESS_READ, &w->read);
	expose(w, TERN_ACCESS_WRITE, &w->write);
	expose(w, TERN_ACCESS_READ | TERN_ACCESS_WRITE, &w->both);
	for (unsigned i = 0; i < 2; i++)
		open_window(&w->ends[i]);
	for (unsigned i = 0; i < 2; i++)
		if (tern_remote_open(
			    w->ends[i].peer, &w->ends[!i].desc, &w->ends[i].remote) < 0)
			tern_never("a window of the peer");
}

/* ---- what the ends do ---- */

static void release(struct end *e, unsigned i)
{
	if (!e->used[i] || e->released[i] || tern_test(&e->reqs[i]) != 0)
		return;
	tern_release(&e->reqs[i]);
	e->released[i] = true;
}

/* When close_end() frees the context, requests end here, and this is the only place where
 * they can be released. */
static void on_done(struct tern_req *req)
{
	struct end *e = req->arg;

	if (e->closing)
		release(e, (unsigned)(req - e->reqs));
}

static void post(struct fuzz *f, struct end *e)
{
	static const unsigned flags[] = {0, 0, TERN_RECV_ALLOC, TERN_RECV_PEEK};
	unsigned i = fuzz_below(f, REQS), how = fuzz_below(f, 8);
	uint64_t bytes = fuzz_take(f, 2) % (ROOM + 1), key = 1 + fuzz_below(f, 2);
	struct tern_buf buf = {
		.mem = e->mem, .offset = (uint64_t)i * ROOM, .bytes = bytes};
	struct tern_tensor tensor = {.buf = buf, .shape = tern_shape_1d(TERN_U8, bytes)};
	int r;

	if (e->down || (e->used[i] && tern_test(&e->reqs[i]) == -EINPROGRESS))
		return;
	release(e, i);
	e->reqs[i] = (struct tern_req){.done = on_done, .arg = e};
	if (how < 4)
		r = tern_send(e->channel, &e->reqs[i], key, 0, &tensor, NULL, 0);
	else
		r = tern_recv(e->channel, &e->reqs[i], key, 0,
			flags[how - 4] ? NULL : &buf, NULL, flags[how - 4]);
	e->used[i] = r == 0;
	e->released[i] = how < 6;
}

/* Puts, gets, notifies, or closes a window. */
static void access_window(struct fuzz *f, struct end *e)
{
	unsigned i = fuzz_below(f, REQS), how = fuzz_below(f, 8);
	uint64_t bytes = fuzz_take(f, 2) % (ROOM + 1);
	struct tern_buf buf = {
		.mem = e->mem, .offset = (uint64_t)i * ROOM, .bytes = bytes};
	const struct tern_note note = {e->bytes, bytes % (TERN_NOTE_MAX + 1)};
	int r;

	if (e->down || (e->used[i] && tern_test(&e->reqs[i]) == -EINPROGRESS))
		return;
	release(e, i);
	e->reqs[i] = (struct tern_req){.done = on_done, .arg = e};
	if (how < 3)
		r = tern_put(e->remote, &e->reqs[i], &buf, ROOM, how ? NULL : &note);
	else if (how < 6)
		r = tern_get(e->remote, &e->reqs[i], &buf, ROOM);
	else if (how == 6 || !e->window)
		r = tern_notify(e->peer, &e->reqs[i], &note);
	else
		r = tern_window_close(TERN_TAKE(e->window), &e->reqs[i], 0);
	e->used[i] = r == 0;
	e->released[i] = true;
}

static void cancel(struct fuzz *f, struct end *e)
{
	unsigned i = fuzz_below(f, REQS);

	if (e->used[i] && tern_test(&e->reqs[i]) == -EINPROGRESS)
		tern_cancel(&e->reqs[i]);
}

/* ---- messages made from the input ---- */

static uint32_t some_id(struct fuzz *f)
{
	return (uint32_t)fuzz_below(f, 8) | (1u + fuzz_below(f, 3)) << 16;
}

/* Fills in what messages about windows have: those of the victim and of the liar have the
 * ids 1. */
static void about_window(struct fuzz *f, const struct world *w, struct tern_header *h)
{
	h->region = w->both;
	if (h->type == TERN_MSG_WINDOW_OPEN) {
		h->step = w->ends[0].desc.incarnation;
		h->bytes = MEM_BYTES;
	} else if (h->type == TERN_MSG_WINDOW_OPENED) {
		h->dst = 1 + fuzz_below(f, 2);
		h->bytes = MEM_BYTES;
		h->channel = fuzz_below(f, 2 * TERN_OPENED_LANDS);
	} else {
		h->step = (uint64_t)fuzz_below(f, 18) * ROOM;
		h->dst &= ~(uint32_t)0x20000;
	}
}

static struct tern_header made_up(struct fuzz *f, const struct world *w)
{
	const struct tern_peer *victim = w->ends[0].peer;
	uint64_t bytes = fuzz_take(f, 2) % (2 * ROOM);
	struct tern_header h = {
		.type = (uint8_t)(2 + fuzz_below(f, TERN_MSG_TYPE_COUNT - 2)),
		.flags = (uint16_t)(fuzz_take(f, 1) & FUZZ_FLAGS),
		.status = (int16_t)(fuzz_below(f, 2) ? -(int)fuzz_take(f, 1) : 0),
		.epoch = victim->epoch,
		.ack = victim->stream.tx_seq - fuzz_below(f, 3),
		.credit = w->ends[1].peer->stream.credit_rx.granted + fuzz_below(f, 4),
		.channel = 1,
		.key = 1 + fuzz_below(f, 2),
		.src = some_id(f),
		.dst = fuzz_below(f, 2) ? some_id(f) : 0};

	if (h.type == TERN_MSG_EAGER ||
		(h.type == TERN_MSG_WINDOW_WRITE && !(h.flags & TERN_FLAG_REGION)))
		bytes %= 513;
	if (h.type == TERN_MSG_NOTIFY)
		bytes %= TERN_NOTE_MAX + 2;
	h.bytes = bytes;
	if (fuzz_below(f, 4))
		h.shape = tern_shape_1d(TERN_U8, bytes);
	h.region = h.flags & TERN_FLAG_RECV ? w->write : w->read;
	if (h.type == TERN_MSG_RTS)
		h.region = w->read;
	else if (h.type == TERN_MSG_POST || h.type == TERN_MSG_CTS)
		h.region = w->write;
	if (h.type >= TERN_MSG_WINDOW_OPEN)
		about_window(f, w, &h);
	return h;
}

static void say(struct fuzz *f, struct world *w)
{
	static _Alignas(8) unsigned char message[TERN_HEAD_MAX + TERN_NOTE_MAX + 8];
	struct tern_peer *victim = w->ends[0].peer;
	struct tern_header h = made_up(f, w);
	struct tern_conn *conn;
	size_t bytes;

	if (w->ends[0].down || !victim->link || victim->link != w->link)
		return;
	conn = victim->link->conn;
	if (tern_type_is_sequenced(h.type))
		h.seq = victim->stream.rx_seq + 1;
	bytes = tern_header_encode(&h, message);
	if (h.type == TERN_MSG_WINDOW_OPEN) {
		tern_put_le64(message + bytes, w->ends[0].desc.capability[0]);
		tern_put_le64(message + bytes + 8, w->ends[0].desc.capability[1]);
	}
	bytes += tern_header_payload_bytes(&h);
	if (conn->port->handler->message(conn->port->handler_arg, conn, message, bytes) <
		0)
		tern_peer_cut(victim, -EPROTO);
}

/* Runs the simulator. A call of a test is no event for the simulator, although it may
 * have ended a request: so both ends are run first. */
static void run(struct world *w)
{
	for (unsigned i = 0; i < 2; i++)
		tern_sim_rouse(w->ends[i].process);
	tern_sim_run(w->sim, never, NULL, 200 * TERN_NS_PER_US);
}

enum act {
	POST,
	POST_AGAIN,
	LIAR_POSTS,
	CANCEL,
	RELEASE,
	RUN,
	SAY,
	SAY_AGAIN,
	ACCESS,
	LIAR_ACCESSES,
	ACT_COUNT
};

static void act(struct fuzz *f, struct world *w)
{
	switch ((enum act)fuzz_below(f, ACT_COUNT)) {
	case POST:
	case POST_AGAIN:
		post(f, &w->ends[0]);
		break;
	case LIAR_POSTS:
		post(f, &w->ends[1]);
		break;
	case CANCEL:
		cancel(f, &w->ends[0]);
		break;
	case RELEASE:
		release(&w->ends[0], fuzz_below(f, REQS));
		break;
	case RUN:
		run(w);
		break;
	case ACCESS:
		access_window(f, &w->ends[0]);
		break;
	case LIAR_ACCESSES:
		access_window(f, &w->ends[1]);
		break;
	case SAY:
	case SAY_AGAIN:
	case ACT_COUNT:
		say(f, w);
		break;
	}
}

static void close_end(struct end *e)
{
	e->closing = true;
	for (unsigned i = 0; i < REQS; i++)
		release(e, i);
	tern_sim_forget(e->process, e->ctx);
	tern_context_free(e->ctx);
	for (unsigned i = 0; i < REQS; i++)
		tern_assert(!e->used[i] || tern_test(&e->reqs[i]) != -EINPROGRESS);
	tern_mem_put(e->mem);
	tern_pool_free(e->pool);
	free(e->bytes);
}

static void withdrawn(struct tern_op *op, int status)
{
	(void)op;
	(void)status;
}

static void withdraw(
	struct world *w, struct tern_op *op, const struct tern_region *region)
{
	*op = (struct tern_op){.done = withdrawn};
	w->port->ops->withdraw(w->port, op, region);
}

static void play(struct world *w, const uint8_t *data, size_t bytes)
{
	struct fuzz f = {data, bytes};

	open_world(w, &f);
	while (f.bytes)
		act(&f, w);
}

static void close_world(struct world *w)
{
	static struct tern_op ops[3];

	close_end(&w->ends[0]);
	withdraw(w, &ops[0], &w->read);
	withdraw(w, &ops[1], &w->write);
	withdraw(w, &ops[2], &w->both);
	close_end(&w->ends[1]);
	for (unsigned i = 0; i < 2; i++)
		tern_sim_process_free(w->ends[i].process);
	tern_sim_free(w->sim);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct world w;

	if (bytes > INPUT_MAX)
		return -1;
	play(&w, data, bytes);
	close_world(&w);
	return 0;
}

/* ---- inputs written by hand, in the format that the code above reads ---- */

#define SEND   0u /* SEND and RECV: values of `how` in post() */
#define RECV   4u
#define CROWD  1u /* key of the sends that use up all credits */
#define WANTED 2u /* key of a send that the peer asks for (WANT) */

struct seed {
	uint8_t bytes[INPUT_MAX];
	size_t count;
	/* Number of the victim's latest messages that the liar does not acknowledge. */
	unsigned unseen;
};

static void put(struct seed *s, unsigned byte)
{
	tern_assert(s->count < INPUT_MAX);
	s->bytes[s->count++] = (uint8_t)byte;
}

static void put_bytes(struct seed *s, unsigned bytes)
{
	put(s, bytes & 0xff);
	put(s, bytes >> 8);
}

static void put_post(
	struct seed *s, unsigned req, unsigned how, unsigned bytes, unsigned key)
{
	put(s, POST);
	put(s, req);
	put(s, how);
	put_bytes(s, bytes);
	put(s, key - 1);
}

/* Writes a message of the liar. dst: the generation of the victim's request 0; 0: no
 * id. */
static void put_say(
	struct seed *s, unsigned type, unsigned flags, unsigned key, unsigned dst)
{
	put(s, SAY);
	put_bytes(s, 8);
	put(s, type - 2);
	put(s, flags);
	put(s, 0); /* the message's status */
	put(s, s->unseen);
	put(s, 0); /* the message's credit */
	put(s, key - 1);
	put_bytes(s, 0); /* src: the id of request 0, generation 1 */
	put(s, dst != 0);
	if (dst)
		put_bytes(s, (dst - 1) << 8);
	/* Whether the message has a shape. */
	put(s, type == TERN_MSG_EAGER || type == TERN_MSG_RTS);
}

/* Makes the victim use up its credits. Its requests 0 to 3 remain free. */
static void put_crowd(struct seed *s)
{
	for (unsigned i = 0; i < TERN_CREDIT_OWN + RECORDS + REQS; i++) {
		put_post(s, 4 + i % (REQS - 4), SEND, 8, CROWD);
		if (i % (REQS - 4) == 0)
			put(s, RUN); /* runs until these sends have ended */
	}
}

/* The liar asks (WANT) for a send that is already in flight. */
static void liar_asks_too_late(struct seed *s)
{
	put_post(s, 0, SEND, 8, WANTED);
	s->unseen = 1;
	put_say(s, TERN_MSG_WANT, TERN_FLAG_MISSED, WANTED, 0);
}

/* The liar asks (WANT) for two sends that wait for credits, and for one that does not
 * exist. */
static void liar_asks(struct seed *s)
{
	put_crowd(s);
	put_post(s, 1, SEND, 8, WANTED); /* the victim answers HAVE */
	put_post(s, 2, SEND, 2000, WANTED);
	for (unsigned i = 0; i < 3; i++)
		put_say(s, TERN_MSG_WANT, TERN_FLAG_MISSED, WANTED, 0);
	put_say(s, TERN_MSG_CREDIT, 0, WANTED, 0);
	put_post(s, 3, SEND, 8, WANTED); /* this time the victim does not answer HAVE */
}

/* The liar waits for credits, and the victim asks (WANT) for the sends of two of its
 * receives. */
static void victim_asks(struct seed *s)
{
	put_post(s, 0, RECV, 100, WANTED);
	put_post(s, 1, RECV, 100, WANTED);
	for (unsigned i = 0; i < TERN_CREDIT_OWN + RECORDS; i++)
		put_say(s, TERN_MSG_EAGER, TERN_FLAG_STARVED, CROWD, 0);
}

static void liar_answers(struct seed *s)
{
	victim_asks(s);
	put_say(s, TERN_MSG_MISS, TERN_FLAG_STARVED, WANTED, 1);
	put_say(s, TERN_MSG_HAVE, TERN_FLAG_STARVED, WANTED, 0);
	put_say(s, TERN_MSG_EAGER, TERN_FLAG_STARVED, WANTED, 2);
	put_say(s, TERN_MSG_RTS, TERN_FLAG_STARVED | TERN_FLAG_REGION, WANTED, 3);
}

static void victim_cancels_and_hears_miss(struct seed *s)
{
	victim_asks(s);
	put(s, CANCEL);
	put(s, 0);
	put_say(s, TERN_MSG_MISS, TERN_FLAG_STARVED, WANTED, 1);
	put_say(s, TERN_MSG_MISS, TERN_FLAG_STARVED, WANTED, 2);
	put(s, CANCEL);
	put(s, 1);
	put_say(s, TERN_MSG_HAVE, TERN_FLAG_STARVED, WANTED, 0);
}

static void victim_cancels_and_gets_it(struct seed *s)
{
	victim_asks(s);
	put(s, CANCEL);
	put(s, 0);
	put_say(s, TERN_MSG_EAGER, TERN_FLAG_STARVED, WANTED, 1);
}

/* Checks that the victim does not refuse the messages, since such a seed would be
 * useless. */
static void check_seed(const struct seed *s)
{
	static struct world w;

	play(&w, s->bytes, s->count);
	tern_assert(w.ends[0].peer->link == w.link);
	close_world(&w);
}

static void write_seed(
	const char *directory, void (*make)(struct seed *s), unsigned number)
{
	struct seed s = {.count = 0};
	char path[4096];
	FILE *f;

	put(&s, number % 4); /* chooses the capabilities of the fabric */
	make(&s);
	check_seed(&s);
	put(&s, RUN);
	snprintf(path, sizeof(path), "%s/by-hand-%u", directory, number);
	f = fopen(path, "wb");
	if (!f || fwrite(s.bytes, 1, s.count, f) != s.count || fclose(f) != 0)
		tern_never("a file for a seed");
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static void (*const makers[])(struct seed *) = {liar_asks_too_late, liar_asks,
		liar_answers, victim_cancels_and_hears_miss, victim_cancels_and_gets_it};

	if (*argc != 3 || strcmp((*argv)[1], "--seeds") != 0)
		return 0;
	for (unsigned i = 0; i < 4 * TERN_ARRAY_SIZE(makers); i++)
		write_seed((*argv)[2], makers[i / 4], i);
	exit(0);
}
