/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session in the simulator whose peer says what the input says: messages with an epoch,
 * number and ids that could be right, in any order, between sends, receives and cancels
 * of both ends. Every request must end once, and nothing may be left at the end.
 *
 * The simulator's fabric trusts regions, and whether real ones do is for the tests of
 * each. So the regions here are real, and on a later link nothing is made up.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "tests/fuzz/fuzz.h"
#include "transport/sim.h"

#define REQS      16u
#define ROOM      16384u
#define MEM_BYTES (REQS * ROOM)

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
};

struct world {
	struct tern_sim *sim;
	struct end ends[2]; /* [0]: the peer of the other says what the input says */
	const struct tern_link *link;   /* the victim's first */
	struct tern_port *port;         /* the liar's */
	struct tern_region read, write; /* the liar's memory, on that link */
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
	struct tern_context_opts opts = {.eager_bytes = 512, .record_count = 64};
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

static void expose(struct world *w, enum tern_access access, struct tern_region *out)
{
	struct tern_conn *conn = w->ends[1].peer->link->conn;

	if (conn->port->ops->expose(conn, w->ends[1].mem, 0, MEM_BYTES, access, out) < 0)
		tern_never("a region");
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
}

/* ---- what the ends do ---- */

static void release(struct end *e, unsigned i)
{
	if (!e->used[i] || e->released[i] || tern_test(&e->reqs[i]) != 0)
		return;
	tern_release(&e->reqs[i]);
	e->released[i] = true;
}

/* Nobody looks at it again. */
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

static void cancel(struct fuzz *f, struct end *e)
{
	unsigned i = fuzz_below(f, REQS);

	if (e->used[i] && tern_test(&e->reqs[i]) == -EINPROGRESS)
		tern_cancel(&e->reqs[i]);
}

/* ---- what is made up ---- */

static uint32_t some_id(struct fuzz *f)
{
	return (uint32_t)fuzz_below(f, 8) | (1u + fuzz_below(f, 3)) << 16;
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
		.ack = victim->tx_seq - fuzz_below(f, 3),
		.credit = w->ends[1].peer->credit_rx.granted + fuzz_below(f, 4),
		.channel = 1,
		.key = 1 + fuzz_below(f, 2),
		.src = some_id(f),
		.dst = fuzz_below(f, 2) ? some_id(f) : 0};

	if (h.type == TERN_MSG_EAGER)
		bytes %= 513;
	h.bytes = bytes;
	if (fuzz_below(f, 4))
		h.shape = tern_shape_1d(TERN_U8, bytes);
	h.region = h.flags & TERN_FLAG_RECV ? w->write : w->read;
	if (h.type == TERN_MSG_RTS)
		h.region = w->read;
	else if (h.type == TERN_MSG_POST || h.type == TERN_MSG_CTS)
		h.region = w->write;
	return h;
}

static void say(struct fuzz *f, struct world *w)
{
	static _Alignas(8) unsigned char message[TERN_HEAD_MAX + 512];
	struct tern_peer *victim = w->ends[0].peer;
	struct tern_header h = made_up(f, w);
	struct tern_conn *conn;
	size_t bytes;

	if (w->ends[0].down || !victim->link || victim->link != w->link)
		return;
	conn = victim->link->conn;
	if (tern_type_is_sequenced(h.type))
		h.seq = victim->rx_seq + 1;
	bytes = tern_header_encode(&h, message);
	if (h.type == TERN_MSG_EAGER)
		bytes += h.bytes;
	if (conn->port->handler->message(conn->port->handler_arg, conn, message, bytes) <
		0)
		tern_peer_cut(victim, -EPROTO);
}

static void act(struct fuzz *f, struct world *w)
{
	switch (fuzz_below(f, 8)) {
	case 0:
	case 1:
		post(f, &w->ends[0]);
		break;
	case 2:
		post(f, &w->ends[1]);
		break;
	case 3:
		cancel(f, &w->ends[0]);
		break;
	case 4:
		release(&w->ends[0], fuzz_below(f, REQS));
		break;
	case 5:
		tern_sim_run(w->sim, never, NULL, 200 * TERN_NS_PER_US);
		break;
	default:
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct world w;
	static struct tern_op ops[2];
	struct fuzz f = {data, bytes};

	if (bytes > 4096)
		return -1; /* longer ones say nothing new */
	open_world(&w, &f);
	while (f.bytes)
		act(&f, &w);
	close_end(&w.ends[0]);
	withdraw(&w, &ops[0], &w.read);
	withdraw(&w, &ops[1], &w.write);
	close_end(&w.ends[1]);
	for (unsigned i = 0; i < 2; i++)
		tern_sim_process_free(w.ends[i].process);
	tern_sim_free(w.sim);
	return 0;
}
