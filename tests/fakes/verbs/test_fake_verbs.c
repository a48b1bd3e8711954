/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulated provider through its table: normal operation. */
#include "tests/fakes/verbs/pair.h"

static void test_connection_carries_private_data_both_ways(void **state)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct rdma_cm_event *event;
	struct pair pair;
	uint8_t zeros[196] = {0};

	(void)state;
	pair_open(&pair, false);
	pair.param.private_data = "hello";
	pair.param.private_data_len = 5;
	assert_int_equal(api->connect(pair.a.id, &pair.param), 0);
	event = expect(&pair.b, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_int_equal(event->param.conn.private_data_len, 56);
	assert_memory_equal(event->param.conn.private_data, "hello", 5);
	assert_memory_equal((const char *)event->param.conn.private_data + 5, zeros, 51);
	assert_int_equal(event->param.conn.qp_num, pair.a.id->qp->qp_num);
	assert_int_equal(
		event->id->route.addr.dst_sin.sin_addr.s_addr, inet_addr("10.7.0.1"));
	assert_int_equal(event->id->route.addr.src_sin.sin_port, htons(pair.port));
	pair.b.id = event->id;
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair.b), 0);
	pair.param.private_data = "welcome";
	pair.param.private_data_len = 7;
	assert_int_equal(api->accept(pair.b.id, &pair.param), 0);
	/* The passive end is established only after the active end has fetched its
	 * event. */
	expect_none(&pair.b);
	assert_int_equal(pair.a.id->qp->state, IBV_QPS_INIT);
	event = expect(&pair.a, RDMA_CM_EVENT_ESTABLISHED);
	assert_int_equal(event->param.conn.private_data_len, 196);
	assert_memory_equal(event->param.conn.private_data, "welcome", 7);
	assert_memory_equal((const char *)event->param.conn.private_data + 7, zeros, 189);
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(pair.a.id->qp->state, IBV_QPS_RTS);
	expect_ack(&pair.b, RDMA_CM_EVENT_ESTABLISHED);
	pair_close(&pair);
}

static void messages_arrive(bool srq)
{
	struct pair pair;
	struct ibv_wc wc;

	pair_open(&pair, srq);
	pair_connect(&pair);
	/* The peer has posted no receive, so the message waits. */
	assert_int_equal(post_send(&pair.a, 1, 0, 1000), 0);
	assert_int_equal(polled(&pair.a), 0);
	assert_int_equal(post_recv(&pair.b, 2, 4096, 1000), 0);
	wc = complete(&pair.b, 2, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	assert_int_equal(wc.byte_len, 1000);
	assert_int_equal(wc.qp_num, pair.b.id->qp->qp_num);
	assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, 0);
	assert_memory_equal(pair.b.memory + 4096, pair.a.memory, 1000);
	assert_int_equal(complete(&pair.a, 1, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);

	/* A message from b to a, with 32 bits of immediate data, unsignaled. */
	assert_int_equal(post_recv(&pair.a, 3, 0, 64), 0);
	assert_int_equal(post(&pair.b,
				 (struct ibv_send_wr){
					 .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 77},
				 10, 0),
		0);
	wc = complete(&pair.a, 3, IBV_WC_SUCCESS);
	assert_int_equal(wc.byte_len, 0);
	assert_true(wc.wc_flags & IBV_WC_WITH_IMM);
	assert_int_equal(wc.imm_data, 77);
	assert_int_equal(polled(&pair.b), 0);
	pair_close(&pair);
}

static void test_messages_arrive_in_the_queue_pairs_own_receives(void **state)
{
	(void)state;
	messages_arrive(false);
}

static void test_messages_arrive_in_shared_receives(void **state)
{
	(void)state;
	messages_arrive(true);
}

static void test_inline_bytes_are_taken_when_posted(void **state)
{
	struct pair pair;
	char hello[] = "hello";
	struct ibv_sge sge = {.addr = (uintptr_t)hello, .length = 6};
	struct ibv_send_wr wr = {.sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_INLINE},
			   *bad;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	assert_int_equal(ibv_post_send(pair.a.id->qp, &wr, &bad), 0);
	memset(hello, 'x', 5);
	assert_int_equal(post_recv(&pair.b, 1, 0, 64), 0);
	complete(&pair.b, 1, IBV_WC_SUCCESS);
	assert_string_equal((char *)pair.b.memory, "hello");
	sge.length = 65;
	assert_int_equal(ibv_post_send(pair.a.id->qp, &wr, &bad), EINVAL);
	assert_ptr_equal(bad, &wr);
	pair_close(&pair);
}

static void test_write_and_read_move_memory(void **state)
{
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	assert_int_equal(
		post_rdma(&pair.a, 1, IBV_WR_RDMA_WRITE, 0, 500000, &pair.b, 1000), 0);
	assert_int_equal(complete(&pair.a, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
	assert_memory_equal(pair.b.memory + 1000, pair.a.memory, 500000);
	assert_int_equal(
		post_rdma(&pair.b, 2, IBV_WR_RDMA_READ, 600000, 300000, &pair.a, 7), 0);
	wc = complete(&pair.b, 2, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RDMA_READ);
	assert_memory_equal(pair.b.memory + 600000, pair.a.memory + 7, 300000);
	assert_int_equal(polled(&pair.a), 0);

	assert_int_equal(post_recv(&pair.b, 3, 0, 0), 0);
	assert_int_equal(
		post_rdma(&pair.a, 4, IBV_WR_RDMA_WRITE_WITH_IMM, 5, 70000, &pair.b, 9),
		0);
	wc = complete(&pair.b, 3, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.byte_len, 70000);
	assert_memory_equal(pair.b.memory + 9, pair.a.memory + 5, 70000);
	complete(&pair.a, 4, IBV_WC_SUCCESS);
	pair_close(&pair);
}

static void test_send_queue_is_full_until_a_completion_is_polled(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	for (unsigned i = 0; i < END_WR; i++)
		assert_int_equal(post_recv(&pair.b, i, 64 * i, 64), 0);
	assert_int_equal(post_recv(&pair.b, 99, 0, 64), ENOMEM);
	for (unsigned i = 0; i < END_WR; i++) {
		struct ibv_send_wr wr = {.wr_id = i, .opcode = IBV_WR_SEND};

		if (i == END_WR / 2)
			wr.send_flags = IBV_SEND_SIGNALED;
		assert_int_equal(post(&pair.a, wr, 0, 1), 0);
	}
	for (unsigned i = 0; i < END_WR; i++)
		complete(&pair.b, i, IBV_WC_SUCCESS);
	/* All messages have arrived, but the send queue stays full until completions are
	 * polled. */
	assert_int_equal(post_send(&pair.a, 100, 0, 1), ENOMEM);
	complete(&pair.a, END_WR / 2, IBV_WC_SUCCESS);
	for (unsigned i = 0; i < END_WR / 2 + 1; i++) {
		struct ibv_send_wr wr = {.wr_id = i, .opcode = IBV_WR_SEND};

		assert_int_equal(post(&pair.a, wr, 0, 1), 0);
	}
	assert_int_equal(post_send(&pair.a, 100, 0, 1), ENOMEM);
	pair_close(&pair);
}

/* True if a message posted after `read_count` READs arrives before the READs are done. */
static bool message_passes_read(unsigned flags, unsigned read_count)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;
	bool passed;

	opts.piece_bytes = 1000;
	opts.pieces_per_step = 1;
	fake_verbs_reset(&opts);
	pair_open(&pair, true);
	pair_connect(&pair);
	assert_int_equal(post_recv(&pair.b, 1, 900000, 64), 0);
	for (unsigned i = 0; i < read_count; i++)
		assert_int_equal(post_rdma(&pair.a, 10 + i, IBV_WR_RDMA_READ, 1000, 90000,
					 &pair.b, 0),
			0);
	assert_int_equal(post(&pair.a,
				 (struct ibv_send_wr){.wr_id = 99,
					 .opcode = IBV_WR_SEND,
					 .send_flags = flags | IBV_SEND_SIGNALED},
				 0, 64),
		0);
	passed = polled(&pair.b) == 1;
	assert_int_equal(polled(&pair.a), 0);
	for (unsigned i = 0; i < read_count; i++)
		complete(&pair.a, 10 + i, IBV_WC_SUCCESS);
	assert_memory_equal(pair.a.memory + 1000, pair.b.memory, 90000);
	complete(&pair.a, 99, IBV_WC_SUCCESS);
	if (!passed)
		complete(&pair.b, 1, IBV_WC_SUCCESS);
	pair_close(&pair);
	return passed;
}

static void test_messages_pass_as_many_reads_as_are_in_flight(void **state)
{
	(void)state;
	assert_true(message_passes_read(0, 1));
	/* At most initiator_depth READs are in flight. */
	assert_true(message_passes_read(0, 4));
	assert_false(message_passes_read(0, 5));
	assert_false(message_passes_read(IBV_SEND_FENCE, 1));
}

static void test_completions_of_a_destroyed_queue_pair(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;

	(void)state;
	for (unsigned keep = 0; keep < 2; keep++) {
		opts.keep_stale_cqes = keep;
		fake_verbs_reset(&opts);
		pair_open(&pair, true);
		pair_connect(&pair);
		assert_int_equal(post_recv(&pair.b, 1, 0, 64), 0);
		assert_int_equal(post_send(&pair.a, 1, 0, 64), 0);
		fake_verbs_api()->destroy_qp(pair.b.id);
		assert_int_equal(polled(&pair.b), keep);
		/* The slots (ring entries) of the shared receive queue are free again. */
		for (unsigned i = 0; i < END_WR; i++)
			assert_int_equal(post_recv(&pair.b, i, 0, 64), 0);
		pair_close(&pair);
	}
}

static void test_grants_are_told(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 33,
						.max_recv_wr = 3,
						.max_send_sge = 1,
						.max_recv_sge = 1,
						.max_inline_data = 300},
		.qp_type = IBV_QPT_RC};
	struct pair pair;

	(void)state;
	opts.grant_more = opts.grant_less_inline = true;
	fake_verbs_reset(&opts);
	pair_open(&pair, false);
	fake_verbs_api()->destroy_qp(pair.a.id);
	attr.send_cq = attr.recv_cq = pair.a.cq;
	assert_int_equal(fake_verbs_api()->create_qp(pair.a.id, pair.a.pd, &attr), 0);
	assert_int_equal(attr.cap.max_send_wr, 64);
	assert_int_equal(attr.cap.max_recv_wr, 4);
	assert_int_equal(attr.cap.max_inline_data, 256);
	assert_true(pair.a.cq->cqe > END_CQE);
	fake_verbs_api()->destroy_qp(pair.a.id);
	attr.cap.max_send_wr = 8193;
	assert_int_equal(
		fake_verbs_api()->create_qp(pair.a.id, pair.a.pd, &attr), -EINVAL);
	pair_close(&pair);
}

static void test_armed_queue_makes_its_fd_readable_once(void **state)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct pair pair;
	struct ibv_cq *cq;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	assert_int_equal(post_recv(&pair.b, 1, 0, 64), 0);
	assert_int_equal(post_recv(&pair.b, 2, 0, 64), 0);
	assert_int_equal(ibv_req_notify_cq(pair.b.cq, 0), 0);
	assert_false(readable(pair.b.comp->fd));
	assert_int_equal(post_send(&pair.a, 3, 0, 64), 0);
	assert_true(readable(pair.b.comp->fd));
	assert_int_equal(api->get_cq_event(pair.b.comp, &cq), 0);
	assert_ptr_equal(cq, pair.b.cq);
	assert_false(readable(pair.b.comp->fd));
	assert_int_equal(api->get_cq_event(pair.b.comp, &cq), -EAGAIN);
	/* Completions that are in the queue before it is armed raise no event. */
	assert_int_equal(ibv_req_notify_cq(pair.b.cq, 0), 0);
	assert_false(readable(pair.b.comp->fd));
	complete(&pair.b, 1, IBV_WC_SUCCESS);
	api->ack_cq_events(pair.b.cq, 1);
	pair_close(&pair);
}

static void test_disconnect_flushes_both_ends(void **state)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct ibv_async_event event;
	struct pair pair;

	(void)state;
	pair_open(&pair, false);
	pair_connect(&pair);
	assert_int_equal(post_recv(&pair.a, 1, 0, 64), 0);
	assert_int_equal(post_recv(&pair.b, 2, 0, 64), 0);
	/* The message is longer than the receive that `a` has posted. */
	assert_int_equal(post_send(&pair.b, 3, 0, 65), 0);
	assert_int_equal(
		complete(&pair.a, 1, IBV_WC_LOC_LEN_ERR).qp_num, pair.a.id->qp->qp_num);
	complete(&pair.b, 3, IBV_WC_REM_INV_REQ_ERR);
	complete(&pair.b, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(post_send(&pair.b, 4, 0, 1), 0);
	complete(&pair.b, 4, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(api->get_async_event(pair.a.device, &event), -EAGAIN);
	assert_int_equal(api->disconnect(pair.a.id), 0);
	assert_int_equal(api->disconnect(pair.a.id), 0);
	expect_ack(&pair.a, RDMA_CM_EVENT_DISCONNECTED);
	expect_ack(&pair.b, RDMA_CM_EVENT_DISCONNECTED);
	expect_none(&pair.a);
	pair_close(&pair);
}

/* A message sent before a disconnect is received before the disconnect is reported,
 * however long its completion is delayed. */
static void test_what_was_received_is_there_before_the_disconnect(void **state)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	opts.delay_steps = 1000;
	for (opts.seed = 0; opts.seed < 20; opts.seed++) {
		fake_verbs_reset(&opts);
		pair_open(&pair, opts.seed % 2);
		pair_connect(&pair);
		assert_int_equal(post_recv(&pair.a, 1, 0, 64), 0);
		assert_int_equal(post_send(&pair.b, 2, 0, 64), 0);
		complete(&pair.b, 2, IBV_WC_SUCCESS);
		assert_int_equal(api->disconnect(pair.b.id), 0);
		expect_ack(&pair.a, RDMA_CM_EVENT_DISCONNECTED);
		assert_int_equal(ibv_poll_cq(pair.a.cq, 1, &wc), 1);
		assert_int_equal(wc.wr_id, 1);
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		pair_close(&pair);
	}
	fake_verbs_reset(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_connection_carries_private_data_both_ways),
		cmocka_unit_test(test_messages_arrive_in_the_queue_pairs_own_receives),
		cmocka_unit_test(test_messages_arrive_in_shared_receives),
		cmocka_unit_test(test_inline_bytes_are_taken_when_posted),
		cmocka_unit_test(test_write_and_read_move_memory),
		cmocka_unit_test(test_send_queue_is_full_until_a_completion_is_polled),
		cmocka_unit_test(test_messages_pass_as_many_reads_as_are_in_flight),
		cmocka_unit_test(test_completions_of_a_destroyed_queue_pair),
		cmocka_unit_test(test_grants_are_told),
		cmocka_unit_test(test_armed_queue_makes_its_fd_readable_once),
		cmocka_unit_test(test_disconnect_flushes_both_ends),
		cmocka_unit_test(test_what_was_received_is_there_before_the_disconnect),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
