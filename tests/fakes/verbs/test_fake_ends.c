/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulated provider: how connections fail to come up, and how they end. */
#include "tests/fakes/verbs/pair.h"

static const struct tern_verbs_api *api;

static int setup(void **state)
{
	(void)state;
	api = fake_verbs_api();
	return 0;
}

static void test_nobody_listens(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	assert_int_equal(api->destroy_id(pair.listener), 0);
	pair.listener = NULL;
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.a, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(event->status, 8);
	assert_int_equal(event->param.conn.private_data_len, 148);
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(pair.a.id->qp->state, IBV_QPS_ERR);
	assert_int_equal(api->connect(pair.a.id, &pair.param), -EINVAL);
	pair_close(&pair);
}

static void test_rejection_carries_private_data(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(api->reject(event->id, "no", 2), 0);
	assert_int_equal(api->destroy_id(event->id), 0);
	assert_int_equal(api->ack_cm_event(event), 0);
	event = expect(&pair.a, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(event->status, 28);
	assert_int_equal(event->param.conn.private_data_len, 148);
	assert_memory_equal(event->param.conn.private_data, "no\0\0", 4);
	assert_int_equal(api->ack_cm_event(event), 0);
	expect_none(&pair.a);
	pair_close(&pair);
}

static void test_request_dies_with_the_listener(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	assert_true(readable(pair.b.channel->fd));
	assert_int_equal(api->destroy_id(pair.listener), 0);
	pair.listener = NULL;
	assert_false(readable(pair.b.channel->fd));
	event = expect(&pair.a, RDMA_CM_EVENT_REJECTED);
	assert_int_equal(event->status, 28);
	assert_int_equal(api->ack_cm_event(event), 0);
	pair_close(&pair);
}

static void test_who_asked_gives_up(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.b.id = event->id;
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair.b), 0);
	api->destroy_qp(pair.a.id);
	assert_int_equal(api->destroy_id(pair.a.id), 0);
	pair.a.id = NULL;
	assert_int_equal(api->accept(pair.b.id, &pair.param), -EINVAL);
	expect_ack(&pair.b, RDMA_CM_EVENT_REJECTED);
	pair_close(&pair);
}

static void test_who_accepted_gives_up(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.b.id = event->id;
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair.b), 0);
	assert_int_equal(api->accept(pair.b.id, &pair.param), 0);
	api->destroy_qp(pair.b.id);
	assert_int_equal(api->destroy_id(pair.b.id), 0);
	pair.b.id = NULL;
	expect_ack(&pair.a, RDMA_CM_EVENT_CONNECT_ERROR);
	expect_none(&pair.a);
	pair_close(&pair);
}

static void test_destroyed_id_disconnects_the_peer(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	api->destroy_qp(pair.b.id);
	/* Destroying the queue pair alone causes no event at the peer. */
	expect_none(&pair.a);
	assert_int_equal(api->destroy_id(pair.b.id), 0);
	pair.b.id = NULL;
	assert_int_equal(pair.a.id->qp->state, IBV_QPS_RTS);
	expect_ack(&pair.a, RDMA_CM_EVENT_DISCONNECTED);
	assert_int_equal(pair.a.id->qp->state, IBV_QPS_ERR);
	pair_close(&pair);
}

static void test_addresses_that_lead_nowhere(void **state)
{
	struct rdma_cm_event *event;
	struct end end;

	(void)state;
	end_open(&end, 0, false);
	assert_int_equal(api->bind_addr(end.id, address("10.8.0.1", 0)), -EADDRNOTAVAIL);
	assert_int_equal(
		api->resolve_addr(end.id, NULL, address("198.51.100.7", 1), 1000),
		-ENETUNREACH);
	assert_int_equal(
		api->resolve_addr(end.id, NULL, address("192.0.2.7", 1), 1000), 0);
	event = expect(&end, RDMA_CM_EVENT_ADDR_ERROR);
	assert_int_equal(event->status, -ETIMEDOUT);
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(
		api->resolve_addr(end.id, NULL, address("203.0.113.7", 1), 1000), 0);
	expect_ack(&end, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(api->resolve_route(end.id, 1000), 0);
	expect_ack(&end, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_int_equal(end_qp(&end), 0);
	assert_int_equal(api->connect(end.id, NULL), 0);
	event = expect(&end, RDMA_CM_EVENT_UNREACHABLE);
	assert_int_equal(event->status, -ETIMEDOUT);
	assert_int_equal(api->ack_cm_event(event), 0);
	end_close(&end);
	fake_verbs_reset(NULL);
}

static void test_port_is_used_once(void **state)
{
	struct end a, b;
	uint16_t port;

	(void)state;
	end_open(&a, 0, false);
	end_open(&b, 0, false);
	assert_int_equal(api->bind_addr(a.id, address("0.0.0.0", 0)), 0);
	assert_null(a.id->verbs);
	assert_int_equal(api->listen(a.id, 1), 0);
	port = ntohs(a.id->route.addr.src_sin.sin_port);
	assert_int_equal(api->bind_addr(b.id, address("10.7.0.1", port)), -EADDRINUSE);
	assert_int_equal(
		api->bind_addr(b.id, address("10.7.0.1", (uint16_t)(port + 1))), 0);
	assert_int_equal(api->bind_addr(b.id, address("10.7.0.1", 0)), -EINVAL);
	assert_int_equal(api->listen(b.id, 1), 0);
	end_close(&a);
	end_close(&b);
	fake_verbs_reset(NULL);
}

static void test_too_much_private_data(void **state)
{
	static const uint8_t bytes[255];
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair.param.private_data = bytes;
	pair.param.private_data_len = 57;
	assert_int_equal(api->connect(pair.a.id, &pair.param), -EINVAL);
	pair.param.private_data_len = 56;
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.b.id = event->id;
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair.b), 0);
	pair.param.private_data_len = 197;
	assert_int_equal(api->accept(pair.b.id, &pair.param), -EINVAL);
	assert_int_equal(api->reject(pair.b.id, bytes, 149), -EINVAL);
	pair.param.private_data_len = 196;
	assert_int_equal(api->accept(pair.b.id, &pair.param), 0);
	pair_close(&pair);
}

static void test_message_overtakes_the_established_event(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, true);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.b.id = event->id;
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair.b), 0);
	assert_int_equal(api->accept(pair.b.id, &pair.param), 0);
	expect_ack(&pair.a, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(post_recv(&pair.b, 1, 0, 64), 0);
	assert_int_equal(post_send(&pair.a, 2, 0, 64), 0);
	complete(&pair.b, 1, IBV_WC_SUCCESS);
	expect_none(&pair.b);
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, false);
	expect_ack(&pair.b, RDMA_CM_EVENT_ESTABLISHED);
	pair_close(&pair);
}

static void test_lost_established_event_comes_with_notify(void **state)
{
	struct rdma_cm_event *event;
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	fake_verbs_lose_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, 1);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.b.id = event->id;
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair.b), 0);
	assert_int_equal(api->accept(pair.b.id, &pair.param), 0);
	expect_ack(&pair.a, RDMA_CM_EVENT_ESTABLISHED);
	expect_none(&pair.b);
	assert_int_equal(api->notify(pair.b.id, IBV_EVENT_COMM_EST), 0);
	expect_ack(&pair.b, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(api->notify(pair.b.id, IBV_EVENT_COMM_EST), -EISCONN);
	pair_close(&pair);
}

static void test_lost_request_leaves_nothing_behind(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	fake_verbs_lose_cm(RDMA_CM_EVENT_CONNECT_REQUEST, FAKE_VERBS_PASSIVE, 1);
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	expect_none(&pair.a);
	expect_none(&pair.b);
	pair_close(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nobody_listens),
		cmocka_unit_test(test_rejection_carries_private_data),
		cmocka_unit_test(test_request_dies_with_the_listener),
		cmocka_unit_test(test_who_asked_gives_up),
		cmocka_unit_test(test_who_accepted_gives_up),
		cmocka_unit_test(test_destroyed_id_disconnects_the_peer),
		cmocka_unit_test(test_addresses_that_lead_nowhere),
		cmocka_unit_test(test_port_is_used_once),
		cmocka_unit_test(test_too_much_private_data),
		cmocka_unit_test(test_message_overtakes_the_established_event),
		cmocka_unit_test(test_lost_established_event_comes_with_notify),
		cmocka_unit_test(test_lost_request_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
