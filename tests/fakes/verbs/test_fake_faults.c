/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulated provider: mistakes of its users, injected faults, and delays. */
#include "tests/fakes/verbs/pair.h"

#include <signal.h>
#include <sys/wait.h>

static const struct tern_verbs_api *api;

static int setup(void **state)
{
	(void)state;
	api = fake_verbs_api();
	return 0;
}

static void expect_async(struct end *end, enum ibv_event_type type)
{
	struct ibv_async_event event;

	assert_true(readable(end->device->async_fd));
	assert_int_equal(api->get_async_event(end->device, &event), 0);
	assert_int_equal(event.event_type, type);
	api->ack_async_event(&event);
}

static void test_wrong_key_ends_both_queue_pairs(void **state)
{
	struct pair pair;
	struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE};

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	wr.wr.rdma.remote_addr = (uintptr_t)pair.b.memory + END_BYTES - 63;
	wr.wr.rdma.rkey = pair.b.mr->rkey;
	/* Both WRITE requests are unsignaled. */
	fake_verbs_hold_wire(true);
	assert_int_equal(post(&pair.a, wr, 0, 64), 0);
	wr.wr_id = 2;
	assert_int_equal(post(&pair.a, wr, 0, 1), 0);
	fake_verbs_hold_wire(false);
	complete(&pair.a, 1, IBV_WC_REM_ACCESS_ERR);
	complete(&pair.a, 2, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(pair.b.id->qp->state, IBV_QPS_ERR);
	expect_async(&pair.a, IBV_EVENT_QP_LAST_WQE_REACHED);
	expect_async(&pair.b, IBV_EVENT_QP_ACCESS_ERR);
	expect_async(&pair.b, IBV_EVENT_QP_LAST_WQE_REACHED);
	assert_false(readable(pair.b.device->async_fd));
	expect_none(&pair.a); /* the connection manager reports no event */
	pair_close(&pair);
}

static void test_deregistered_memory_is_not_touched(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;

	(void)state;
	opts.piece_bytes = 1000;
	opts.pieces_per_step = 1;
	fake_verbs_reset(&opts);
	pair_open(&pair, true);
	pair_connect(&pair);
	assert_int_equal(
		post_rdma(&pair.a, 1, IBV_WR_RDMA_WRITE, 0, 500000, &pair.b, 0), 0);
	assert_int_equal(polled(&pair.a), 0);
	assert_int_equal(api->dereg_mr(pair.b.mr), 0);
	pair.b.mr = NULL;
	memset(pair.b.memory, 0xee, END_BYTES);
	complete(&pair.a, 1, IBV_WC_REM_ACCESS_ERR);
	for (unsigned i = 0; i < END_BYTES; i++)
		assert_int_equal(pair.b.memory[i], 0xee);
	pair_close(&pair);
}

static void test_local_mistakes_are_refused(void **state)
{
	struct pair pair;
	struct ibv_sge sge = {.length = 4};
	struct ibv_send_wr second = {.wr_id = 2,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND},
			   first = {.wr_id = 1,
				   .next = &second,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED},
			   *bad = NULL;
	struct ibv_mr *mr;

	(void)state;
	pair_open(&pair, true);
	assert_int_equal(ibv_post_send(pair.a.id->qp, &first, &bad), EINVAL);
	/* Refused, since the queue pair is not connected. */
	assert_ptr_equal(bad, &first);
	pair_connect(&pair);
	/* Of a list of requests, those before the wrong one are accepted. */
	sge.addr = (uintptr_t)pair.a.memory;
	sge.lkey = pair.a.mr->lkey + 1;
	assert_int_equal(ibv_post_send(pair.a.id->qp, &first, &bad), EINVAL);
	assert_ptr_equal(bad, &second);
	assert_int_equal(post_recv(&pair.b, 3, 0, 4), 0);
	complete(&pair.b, 3, IBV_WC_SUCCESS);
	complete(&pair.a, 1, IBV_WC_SUCCESS);
	assert_int_equal(post_recv(&pair.b, 4, END_BYTES - 1, 2), EINVAL);
	assert_int_equal(
		api->reg_mr(pair.a.pd, pair.a.memory, 1, IBV_ACCESS_REMOTE_WRITE, &mr),
		-EINVAL);
	assert_int_equal(api->dealloc_pd(pair.a.pd), -EBUSY);
	assert_int_equal(api->destroy_cq(pair.a.cq), -EBUSY);
	assert_int_equal(api->destroy_srq(pair.a.srq), -EBUSY);
	assert_int_equal(api->destroy_comp_channel(pair.a.comp), -EBUSY);
	pair_close(&pair);
}

static void test_reads_need_depth_on_both_sides(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair.param.responder_resources = 0;
	pair_connect(&pair);
	assert_int_equal(post_rdma(&pair.a, 1, IBV_WR_RDMA_READ, 0, 10, &pair.b, 0), 0);
	complete(&pair.a, 1, IBV_WC_LOC_QP_OP_ERR);
	pair_close(&pair);
	pair_open(&pair, true);
	pair.param.initiator_depth = 17;
	assert_int_equal(api->connect(pair.a.id, &pair.param), -EINVAL);
	pair_close(&pair);
}

static void test_no_receive_and_no_retry(void **state)
{
	struct pair pair;

	(void)state;
	for (uint8_t retries = 0; retries < 7; retries += 3) {
		pair_open(&pair, true);
		pair.param.rnr_retry_count = retries;
		pair_connect(&pair);
		assert_int_equal(post_send(&pair.a, 1, 0, 10), 0);
		assert_int_equal(pair.a.id->qp->state == IBV_QPS_ERR, retries == 0);
		complete(&pair.a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
		pair_close(&pair);
	}
}

static void test_call_fails_by_number(void **state)
{
	struct ibv_pd *pds[2];
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	fake_verbs_fail("alloc_pd", 2, ENOMEM);
	assert_int_equal(api->alloc_pd(pair.a.device, &pds[0]), 0);
	assert_int_equal(api->alloc_pd(pair.a.device, &pds[1]), -ENOMEM);
	assert_int_equal(api->alloc_pd(pair.a.device, &pds[1]), 0);
	assert_int_equal(fake_verbs_calls("alloc_pd"), 5);
	assert_int_equal(api->dealloc_pd(pds[0]), 0);
	assert_int_equal(api->dealloc_pd(pds[1]), 0);
	fake_verbs_fail("post_send", 1, ENOMEM);
	assert_int_equal(post_send(&pair.a, 1, 0, 1), ENOMEM);
	fake_verbs_fail("poll_cq", 1, EIO);
	assert_true(ibv_poll_cq(pair.a.cq, 1, NULL) < 0);
	pair_close(&pair);
}

static void test_limits_of_the_device(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct pair pair;

	(void)state;
	opts.max_srq = 0;
	opts.no_imm = true;
	opts.max_inline = 8;
	opts.grant_less_inline = true;
	opts.reg_limit_bytes = END_BYTES;
	fake_verbs_reset(&opts);
	pair_open(&pair, false);
	pair_connect(&pair);
	assert_int_equal(api->create_srq(pair.a.pd, &attr, &srq), -EOPNOTSUPP);
	assert_int_equal(api->reg_mr(pair.a.pd, pair.a.memory, 1, 0, &mr), -ENOMEM);
	assert_int_equal(
		post(&pair.a, (struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_IMM}, 0, 0),
		EINVAL);
	assert_int_equal(post(&pair.a,
				 (struct ibv_send_wr){.opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_INLINE},
				 0, 9),
		EINVAL);
	pair_close(&pair);
}

static void test_fatal_and_broken_queue_pairs(void **state)
{
	struct fake_verbs_qp qps[4];
	struct pair pair;

	(void)state;
	pair_open(&pair, false);
	pair_connect(&pair);
	assert_int_equal(fake_verbs_qps(qps, 4), 2);
	assert_int_equal(qps[0].qp_num, pair.a.id->qp->qp_num);
	assert_int_equal(qps[0].peer_qp_num, qps[1].qp_num);
	assert_true(qps[1].passive && qps[1].device == 1);
	fake_verbs_qp_break(qps[0].qp_num);
	assert_int_equal(pair.a.id->qp->state, IBV_QPS_RTS);
	assert_int_equal(post_send(&pair.a, 1, 0, 1), 0);
	complete(&pair.a, 1, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(post_recv(&pair.b, 2, 0, 1), 0);
	fake_verbs_qp_fatal(qps[1].qp_num);
	expect_async(&pair.b, IBV_EVENT_QP_FATAL);
	complete(&pair.b, 2, IBV_WC_WR_FLUSH_ERR);
	pair_close(&pair);
}

static void test_removed_device(void **state)
{
	struct ibv_context **devices;
	struct pair pair;
	struct ibv_mr *mr;
	int count;

	(void)state;
	pair_open(&pair, false);
	pair_connect(&pair);
	assert_int_equal(post_send(&pair.b, 1, 0, 1), 0);
	fake_verbs_remove_device(1);
	expect_async(&pair.b, IBV_EVENT_DEVICE_FATAL);
	/* The listener's id gets the event, too. */
	expect_ack(&pair.b, RDMA_CM_EVENT_DEVICE_REMOVAL);
	expect_ack(&pair.b, RDMA_CM_EVENT_DEVICE_REMOVAL);
	complete(&pair.b, 1, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(api->reg_mr(pair.b.pd, &count, 4, 0, &mr), -EIO);
	assert_int_equal(api->get_devices(&devices, &count), 0);
	assert_int_equal(count, 1);
	api->free_devices(devices);
	/* The peer of the removed device gets no event. */
	expect_none(&pair.a);
	assert_int_equal(post_send(&pair.a, 2, 0, 1), 0);
	complete(&pair.a, 2, IBV_WC_RETRY_EXC_ERR);
	pair_close(&pair);
}

static void test_cut_wire_stalls_until_mended_or_the_end(void **state)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;

	(void)state;
	opts.retry_steps = 100;
	fake_verbs_reset(&opts);
	pair_open(&pair, true);
	pair_connect(&pair);
	assert_int_equal(post_recv(&pair.b, 1, 0, 64), 0);
	assert_int_equal(post_recv(&pair.b, 2, 0, 64), 0);
	fake_verbs_cut(0, 1, true);
	assert_int_equal(post_send(&pair.a, 3, 0, 64), 0);
	for (int i = 0; i < 50; i++)
		assert_int_equal(polled(&pair.a), 0);
	fake_verbs_cut(0, 1, false);
	complete(&pair.b, 1, IBV_WC_SUCCESS);
	complete(&pair.a, 3, IBV_WC_SUCCESS);
	fake_verbs_port(1, false);
	expect_async(&pair.b, IBV_EVENT_PORT_ERR);
	assert_int_equal(post_send(&pair.a, 4, 0, 64), 0);
	/* The queue is armed, so its thread may sleep and make no steps: it gets the
	 * error without delay. */
	assert_int_equal(ibv_req_notify_cq(pair.a.cq, 0), 0);
	assert_true(readable(pair.a.comp->fd));
	complete(&pair.a, 4, IBV_WC_RETRY_EXC_ERR);
	pair_close(&pair);
}

static void test_held_completions_come_in_order(void **state)
{
	struct pair pair;

	(void)state;
	pair_open(&pair, true);
	pair_connect(&pair);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(post_recv(&pair.b, i, 0, 64), 0);
		assert_int_equal(post_send(&pair.a, i, 0, 64), 0);
		complete(&pair.b, i, IBV_WC_SUCCESS);
	}
	assert_int_equal(ibv_req_notify_cq(pair.a.cq, 0), 0);
	assert_int_equal(polled(&pair.a), 0);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, false);
	assert_true(readable(pair.a.comp->fd));
	for (unsigned i = 0; i < 4; i++)
		complete(&pair.a, i, IBV_WC_SUCCESS);
	pair_close(&pair);
}

/* On a machine with random delays, `a` writes into the memory of `b`, reads from it, and
 * sends it a message, ten times; then `b` disconnects. */
static void traffic_of_a_seed(uint64_t seed)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();
	struct pair pair;

	opts.seed = seed;
	opts.delay_steps = 7;
	opts.cm_delay_steps = 9;
	opts.stall_percent = 50;
	opts.piece_bytes = 777;
	opts.pieces_per_step = 2;
	opts.grant_more = seed % 2;
	opts.keep_stale_cqes = seed % 3 == 0;
	fake_verbs_reset(&opts);
	pair_open(&pair, seed % 4 < 2);
	pair_connect(&pair);
	for (unsigned i = 0; i < 10; i++) {
		uint32_t bytes = 1000 * i + 1;

		assert_int_equal(post_recv(&pair.b, i, 0, 4096), 0);
		assert_int_equal(post_rdma(&pair.a, 100 + i, IBV_WR_RDMA_WRITE, i, bytes,
					 &pair.b, 5000),
			0);
		assert_int_equal(post_rdma(&pair.a, 200 + i, IBV_WR_RDMA_READ, 300000,
					 bytes, &pair.b, 400000),
			0);
		assert_int_equal(post_send(&pair.a, 300 + i, i, 4096), 0);
		complete(&pair.b, i, IBV_WC_SUCCESS);
		assert_memory_equal(pair.b.memory + 5000, pair.a.memory + i, bytes);
		assert_memory_equal(pair.b.memory, pair.a.memory + i, 4096);
		complete(&pair.a, 100 + i, IBV_WC_SUCCESS);
		complete(&pair.a, 200 + i, IBV_WC_SUCCESS);
		assert_memory_equal(
			pair.a.memory + 300000, pair.b.memory + 400000, bytes);
		complete(&pair.a, 300 + i, IBV_WC_SUCCESS);
	}
	assert_int_equal(api->disconnect(pair.b.id), 0);
	expect_ack(&pair.b, RDMA_CM_EVENT_DISCONNECTED);
	expect_ack(&pair.a, RDMA_CM_EVENT_DISCONNECTED);
	pair_close(&pair);
}

static void test_delays_keep_the_order_of_a_queue_pair(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++)
		traffic_of_a_seed(seed);
}

static void dies_of(void (*mistake)(struct pair *pair))
{
	struct pair pair;
	int status;
	pid_t pid;

	pair_open(&pair, true);
	pair_connect(&pair);
	pid = fork();
	if (pid == 0) {
		struct sigaction act = {.sa_handler = SIG_DFL};

		sigaction(SIGABRT, &act, NULL);
		close(STDERR_FILENO);
		mistake(&pair);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	pair_close(&pair);
}

static void leave_it_open(struct pair *pair)
{
	(void)pair;
	fake_verbs_reset(NULL);
}

static void overrun(struct pair *pair)
{
	if (api->resize_cq(pair->b.cq, 1))
		_exit(1);
	for (int i = 0; i < 2; i++) {
		if (post_recv(&pair->b, 1, 0, 64) || post_send(&pair->a, 1, 0, 64))
			_exit(1);
	}
}

static void destroy_with_unacked_event(struct pair *pair)
{
	struct rdma_cm_event *event;

	if (api->disconnect(pair->a.id) || api->get_cm_event(pair->a.channel, &event))
		_exit(1);
	api->destroy_qp(pair->a.id);
	api->destroy_id(pair->a.id);
}

static void test_what_hardware_forgives_ends_the_program_here(void **state)
{
	(void)state;
	dies_of(leave_it_open);
	dies_of(overrun);
	dies_of(destroy_with_unacked_event);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_key_ends_both_queue_pairs),
		cmocka_unit_test(test_deregistered_memory_is_not_touched),
		cmocka_unit_test(test_local_mistakes_are_refused),
		cmocka_unit_test(test_reads_need_depth_on_both_sides),
		cmocka_unit_test(test_no_receive_and_no_retry),
		cmocka_unit_test(test_call_fails_by_number),
		cmocka_unit_test(test_limits_of_the_device),
		cmocka_unit_test(test_fatal_and_broken_queue_pairs),
		cmocka_unit_test(test_removed_device),
		cmocka_unit_test(test_cut_wire_stalls_until_mended_or_the_end),
		cmocka_unit_test(test_held_completions_come_in_order),
		cmocka_unit_test(test_delays_keep_the_order_of_a_queue_pair),
		cmocka_unit_test(test_what_hardware_forgives_ends_the_program_here),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
