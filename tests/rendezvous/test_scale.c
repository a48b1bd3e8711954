/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a context with a thousand sessions, and of a session with thousands of
 * requests, in virtual time: to handle an event of one, the library must not walk through
 * all others. All connections are cut at once, and every session must return; thousands
 * of requests are cancelled at once, and all must end.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "transport/sim/sim.h"

#define PEERS    1000u
#define REQUESTS 3000u
#define BYTES    4000u /* more than fits into an EAGER */

struct end {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_peer *peers[PEERS];
	unsigned peer_count, up_count, recovered_count, down_count;
};

struct world {
	struct tern_sim *sim;
	struct end a, b; /* `a` dials, `b` listens */
	struct tern_listener *listener;
	unsigned over_count;
	uint32_t tx_seq;
};

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *end = arg;
	unsigned links = 0;

	(void)status;
	end->up_count += event == TERN_PEER_UP;
	end->recovered_count += event == TERN_PEER_RECOVERED;
	end->down_count += event == TERN_PEER_DOWN;
	/* The list has only the links of this session, however many other sessions there
	 * are. */
	tern_list_for_each (n, &peer->links)
		links++;
	assert_in_range(links, 0, 3);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *end = arg;
	struct tern_peer_opts opts = {.event = on_event, .arg = end};

	end->peers[end->peer_count++] = peer;
	tern_peer_set_opts(peer, &opts);
}

static void end_open(struct world *w, struct end *end, const char *name)
{
	end->process = tern_sim_process_new(w->sim, name);
	assert_int_equal(tern_context_new_in(tern_sim_domain(end->process), NULL,
				 tern_sim_env(end->process), &end->ctx),
		0);
	tern_sim_drive(end->process, end->ctx);
}

static bool have_met(void *arg)
{
	struct world *w = arg;

	return w->a.up_count == w->a.peer_count && w->b.peer_count == w->a.peer_count;
}

static void open_world(struct world *w, unsigned peers)
{
	struct tern_peer_opts opts = {.event = on_event, .arg = &w->a};

	*w = (struct world){.sim = tern_sim_new(&(struct tern_sim_opts){
				    .seed = 3, .caps = TERN_CAP_PUT | TERN_CAP_GET})};
	end_open(w, &w->a, "a");
	end_open(w, &w->b, "b");
	assert_int_equal(tern_listen(w->b.ctx, "sim://scale", NULL, on_accept, &w->b,
				 &w->listener),
		0);
	while (w->a.peer_count < peers) {
		assert_int_equal(tern_connect(w->a.ctx, "sim://scale", &opts,
					 &w->a.peers[w->a.peer_count++]),
			0);
		/* Limits how many sessions are in their handshake at a time. */
		if (w->a.peer_count % 100 == 0)
			assert_int_equal(
				tern_sim_run(w->sim, have_met, w, 10 * TERN_NS_PER_S), 0);
	}
	assert_int_equal(tern_sim_run(w->sim, have_met, w, 10 * TERN_NS_PER_S), 0);
}

static void close_world(struct world *w)
{
	struct end *ends[] = {&w->a, &w->b};

	for (unsigned i = 0; i < 2; i++) {
		if (!ends[i]->ctx)
			continue;
		tern_sim_forget(ends[i]->process, ends[i]->ctx);
		tern_context_free(ends[i]->ctx);
	}
	for (unsigned i = 0; i < 2; i++)
		tern_sim_process_free(ends[i]->process);
	tern_sim_free(w->sim);
}

static bool all_are_back(void *arg)
{
	const struct world *w = arg;

	return w->a.recovered_count == PEERS && w->b.recovered_count == PEERS;
}

static void test_a_thousand_sessions_are_lost_and_come_back(void **state)
{
	static struct world w;
	struct tern_rdv *rdv;

	(void)state;
	open_world(&w, PEERS);
	rdv = tern_rdv_of(w.b.ctx);
	assert_int_equal(rdv->tokens.count, PEERS);
	assert_true(rdv->tokens.mask >= PEERS / 2);
	for (unsigned i = 0; i < PEERS; i++)
		assert_ptr_equal(tern_peer_by_token(rdv, w.b.peers[i]->token,
					 w.b.peers[i]->their_incarnation),
			w.b.peers[i]);
	assert_int_equal(tern_rdv_of(w.a.ctx)->tokens.count, 0);
	tern_sim_part(w.a.process, w.b.process, TERN_NS_PER_MS, -ECONNRESET);
	assert_int_equal(tern_sim_run(w.sim, all_are_back, &w, 20 * TERN_NS_PER_S), 0);
	assert_int_equal(w.a.down_count + w.b.down_count, 0);
	for (unsigned i = 0; i < PEERS; i++)
		assert_int_equal(w.a.peers[i]->link_count, 1);
	close_world(&w);
}

struct call {
	struct tern_req req;
	struct world *w;
};

static void on_done(struct tern_req *req)
{
	struct call *call = tern_container_of(req, struct call, req);

	call->w->over_count++;
	assert_int_equal(req->status, -ECANCELED);
}

static bool all_are_over(void *arg)
{
	return ((struct world *)arg)->over_count == REQUESTS;
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static void cancel_all(bool sends)
{
	static struct world w;
	static struct call calls[REQUESTS];
	struct tern_pool_opts opts = {.slab_bytes = 16u << 20};
	struct tern_channel *channels[2];
	struct tern_pool *pool;
	struct tern_buf buf;

	open_world(&w, 1);
	/* Lets time pass for more credits to arrive. */
	tern_sim_run(w.sim, never, NULL, 20 * TERN_NS_PER_MS);
	assert_int_equal(tern_channel_open(w.a.peers[0], 1, &channels[0]), 0);
	assert_int_equal(tern_channel_open(w.b.peers[0], 1, &channels[1]), 0);
	assert_int_equal(tern_pool_new(tern_sim_domain(w.a.process), &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, BYTES, &buf), 0);
	for (unsigned i = 0; i < REQUESTS; i++) {
		const struct tern_tensor tensor = {
			.shape = tern_shape_1d(TERN_U8, BYTES), .buf = buf};

		calls[i] = (struct call){.req = {.done = on_done}, .w = &w};
		assert_int_equal(sends ? tern_send(channels[0], &calls[i].req, i, 0,
						 &tensor, NULL, 0)
				       : tern_recv(channels[0], &calls[i].req, i, 0, &buf,
						 NULL, 0),
			0);
	}
	tern_sim_run(w.sim, never, NULL, 20 * TERN_NS_PER_MS);
	/* `b` knows those requests of `a` for which `a` had a credit to announce them. */
	assert_true(w.b.peers[0]->theirs.count > 40);
	assert_true(w.b.peers[0]->theirs.mask >= w.b.peers[0]->theirs.count / 2);
	for (unsigned i = 0; i < REQUESTS; i++)
		tern_cancel(&calls[i].req);
	assert_int_equal(tern_sim_run(w.sim, all_are_over, &w, 20 * TERN_NS_PER_S), 0);
	assert_int_equal(w.b.peers[0]->theirs.count, 0);
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
	close_world(&w);
}

static void test_thousands_of_sends_are_cancelled(void **state)
{
	(void)state;
	cancel_all(true);
}

static void test_thousands_of_receives_are_cancelled(void **state)
{
	(void)state;
	cancel_all(false);
}

static bool is_lost(void *arg)
{
	return ((struct world *)arg)->a.peers[0]->state == TERN_PEER_STATE_LOST;
}

static bool has_come(void *arg)
{
	const struct world *w = arg;

	return w->b.peers[0]->stream.rx_seq == w->tx_seq + 1;
}

/* Makes the simulated fabric refuse `eagain_permille` of 1000 sends for lack of space. */
static void make_room_scarce(struct tern_sim *sim, unsigned eagain_permille)
{
	struct tern_sim_opts *opts = (void *)(uintptr_t)tern_sim_opts(sim);

	opts->eagain_permille = eagain_permille;
}

/* `a` has posted receives, and loses its link. On the new link it announces the region of
 * each receive again (RENEW). A message that waits must not be sent after all of these. */
static void test_what_waits_stands_behind_few_regions(void **state)
{
	static struct world w;
	static struct tern_req recvs[40], send;
	struct tern_pool_opts opts = {.slab_bytes = 16u << 20};
	struct tern_tensor empty = {.shape = tern_shape_1d(TERN_U8, 0)};
	struct tern_channel *channel;
	struct tern_pool *pool;
	struct tern_buf buf;

	(void)state;
	open_world(&w, 1);
	/* Lets time pass for more credits to arrive. */
	tern_sim_run(w.sim, never, NULL, 20 * TERN_NS_PER_MS);
	assert_int_equal(tern_channel_open(w.a.peers[0], 1, &channel), 0);
	assert_int_equal(tern_pool_new(tern_sim_domain(w.a.process), &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, BYTES, &buf), 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(recvs); i++)
		assert_int_equal(tern_recv(channel, &recvs[i], i, 0, &buf, NULL, 0), 0);
	tern_sim_run(w.sim, never, NULL, 20 * TERN_NS_PER_MS);
	assert_true(w.b.peers[0]->theirs.count > 30);
	w.tx_seq = w.a.peers[0]->stream.tx_seq;
	tern_sim_part(w.a.process, w.b.process, TERN_NS_PER_MS, -ECONNRESET);
	assert_int_equal(tern_sim_run(w.sim, is_lost, &w, 20 * TERN_NS_PER_S), 0);
	make_room_scarce(w.sim, 500);
	assert_int_equal(tern_send(channel, &send, 1000, 0, &empty, NULL, 0), 0);
	assert_int_equal(tern_sim_run(w.sim, has_come, &w, 20 * TERN_NS_PER_S), 0);
	assert_false(tern_list_empty(&w.a.peers[0]->renewals));
	tern_sim_run(w.sim, never, NULL, 20 * TERN_NS_PER_MS);
	assert_true(tern_list_empty(&w.a.peers[0]->renewals));
	tern_sim_forget(w.a.process, w.a.ctx);
	tern_context_free(w.a.ctx);
	w.a.ctx = NULL;
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
	close_world(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_thousand_sessions_are_lost_and_come_back),
		cmocka_unit_test(test_thousands_of_sends_are_cancelled),
		cmocka_unit_test(test_thousands_of_receives_are_cancelled),
		cmocka_unit_test(test_what_waits_stands_behind_few_regions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
