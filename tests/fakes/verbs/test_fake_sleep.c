/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the simulated provider with two threads that sleep in poll(2) until the events
 * that they have armed. If a thread sleeps longer than the limit, the provider has lost
 * its event. A failure in a thread ends the program (tern_assert), since cmocka's
 * assertions work only in the thread that runs the test.
 */
#include "tests/fakes/verbs/pair.h"

#include <pthread.h>

#include "base/util.h"

#define LIMIT_MS 20000

static const struct tern_verbs_api *api;

static void sleep_on(int fd)
{
	tern_assert(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, LIMIT_MS) == 1);
}

static struct rdma_cm_event *sleep_for(struct end *end, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	int r;

	do {
		sleep_on(end->channel->fd);
		r = api->get_cm_event(end->channel, &event);
	} while (r == -EAGAIN);
	tern_assert(r == 0 && event->event == type);
	return event;
}

static void sleep_ack(struct end *end, enum rdma_cm_event_type type)
{
	tern_assert(api->ack_cm_event(sleep_for(end, type)) == 0);
}

/* Polls, arms, polls again, and only then sleeps, as every user of a completion queue
 * must. */
static struct ibv_wc sleep_for_wc(struct end *end)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;

	for (;;) {
		if (ibv_poll_cq(end->cq, 1, &wc) == 1)
			return wc;
		tern_assert(ibv_req_notify_cq(end->cq, 0) == 0);
		if (ibv_poll_cq(end->cq, 1, &wc) == 1)
			return wc;
		sleep_on(end->comp->fd);
		while (api->get_cq_event(end->comp, &cq) == 0)
			api->ack_cq_events(cq, 1);
	}
}

#define ROUNDS 1000

/* Waits for the next completion, of a receive or of a send, and counts it. Receives
 * complete in order, and so do sends. */
static void round_trip(struct end *end, uint64_t *recv_count, uint64_t *send_count)
{
	struct ibv_wc wc = sleep_for_wc(end);

	tern_assert(wc.status == IBV_WC_SUCCESS);
	if (wc.opcode == IBV_WC_RECV) {
		tern_assert(wc.byte_len == 4096 && wc.wr_id == *recv_count);
		++*recv_count;
	} else {
		tern_assert(wc.wr_id == *send_count);
		++*send_count;
	}
}

/* Runs in both threads: sends the next message after each received one. `serve`: this
 * thread sends the first message. */
static void play(struct end *end, bool serve)
{
	uint64_t recv_count = 0, send_count = 0, posted = 0;

	if (serve)
		tern_assert(post_send(end, posted++, 0, 4096) == 0);
	while (recv_count < ROUNDS || send_count < ROUNDS) {
		uint64_t before = recv_count;

		round_trip(end, &recv_count, &send_count);
		if (recv_count == before)
			continue;
		if (recv_count < ROUNDS)
			tern_assert(post_recv(end, recv_count, 8192, 4096) == 0);
		if (posted < ROUNDS)
			tern_assert(post_send(end, posted++, 0, 4096) == 0);
	}
}

static void *passive(void *arg)
{
	struct pair *pair = arg;
	struct rdma_cm_event *event = sleep_for(&pair->b, RDMA_CM_EVENT_CONNECT_REQUEST);

	pair->b.id = event->id;
	tern_assert(api->ack_cm_event(event) == 0);
	tern_assert(end_qp(&pair->b) == 0);
	tern_assert(post_recv(&pair->b, 0, 8192, 4096) == 0);
	tern_assert(api->accept(pair->b.id, &pair->param) == 0);
	sleep_ack(&pair->b, RDMA_CM_EVENT_ESTABLISHED);
	play(&pair->b, true);
	sleep_ack(&pair->b, RDMA_CM_EVENT_DISCONNECTED);
	return NULL;
}

static void sleepers_of_a_seed(uint64_t seed)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;
	pthread_t thread;

	opts.seed = seed;
	opts.delay_steps = 5 * (unsigned)seed;
	opts.cm_delay_steps = 20;
	opts.stall_percent = 30;
	opts.piece_bytes = 1000;
	fake_verbs_reset(&opts);
	pair_open(&pair, seed % 2);
	assert_int_equal(pthread_create(&thread, NULL, passive, &pair), 0);
	tern_assert(post_recv(&pair.a, 0, 8192, 4096) == 0);
	tern_assert(api->connect(pair.a.id, &pair.param) == 0);
	sleep_ack(&pair.a, RDMA_CM_EVENT_ESTABLISHED);
	play(&pair.a, false);
	tern_assert(api->disconnect(pair.a.id) == 0);
	sleep_ack(&pair.a, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pair_close(&pair);
}

static void test_sleepers_are_woken_for_all_that_is_delayed(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 6; seed++)
		sleepers_of_a_seed(seed);
}

static void test_sleeper_learns_that_the_peer_is_gone(void **state)
{
	struct ibv_wc wc;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	tern_assert(post_send(&pair.a, 1, 0, 64) == 0);
	tern_assert(ibv_req_notify_cq(pair.a.cq, 0) == 0);
	fake_verbs_qp_fatal(pair.b.id->qp->qp_num);
	sleep_on(pair.a.comp->fd);
	wc = sleep_for_wc(&pair.a);
	assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
	pair_close(&pair);
}

static int setup(void **state)
{
	(void)state;
	api = fake_verbs_api();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sleepers_are_woken_for_all_that_is_delayed),
		cmocka_unit_test(test_sleeper_learns_that_the_peer_is_gone),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
