/* SPDX-License-Identifier: Apache-2.0 */
/* See pair.h: two connected ends. Their memories have different patterns. */
#include "tests/fakes/verbs/pair.h"

#include <stdlib.h>

struct sockaddr *address(const char *ip, uint16_t port)
{
	static struct sockaddr_in storage[2];
	static unsigned next;
	struct sockaddr_in *v4 = &storage[next++ % 2];

	*v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
	assert_int_equal(inet_pton(AF_INET, ip, &v4->sin_addr), 1);
	return (void *)v4;
}

bool readable(int fd)
{
	return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

struct rdma_cm_event *expect(struct end *end, enum rdma_cm_event_type type)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct rdma_cm_event *event = NULL;

	/* Until a delayed event is due, the fd is readable and get_cm_event() returns
	 * none. */
	for (int i = 0; i < 10000 && readable(end->channel->fd) && !event; i++)
		(void)api->get_cm_event(end->channel, &event);
	assert_non_null(event);
	assert_int_equal(event->event, type);
	return event;
}

void expect_ack(struct end *end, enum rdma_cm_event_type type)
{
	assert_int_equal(fake_verbs_api()->ack_cm_event(expect(end, type)), 0);
}

void expect_none(struct end *end)
{
	struct rdma_cm_event *event;

	assert_int_equal(fake_verbs_api()->get_cm_event(end->channel, &event), -EAGAIN);
	assert_false(readable(end->channel->fd));
}

void end_open(struct end *end, unsigned device, bool srq)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct ibv_context **devices;
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = END_WR, .max_sge = 1}};
	int count;

	*end = (struct end){0};
	assert_int_equal(api->get_devices(&devices, &count), 0);
	assert_true(count > (int)device);
	end->device = devices[device];
	api->free_devices(devices);
	assert_int_equal(api->create_event_channel(&end->channel), 0);
	assert_int_equal(api->create_id(end->channel, &end->id, end), 0);
	assert_int_equal(api->alloc_pd(end->device, &end->pd), 0);
	assert_int_equal(api->create_comp_channel(end->device, &end->comp), 0);
	assert_int_equal(api->create_cq(end->device, END_CQE, end->comp, &end->cq), 0);
	if (srq)
		assert_int_equal(api->create_srq(end->pd, &attr, &end->srq), 0);
	end->memory = malloc(END_BYTES);
	assert_non_null(end->memory);
	for (unsigned i = 0; i < END_BYTES; i++)
		end->memory[i] = (uint8_t)(i * 7 + i / 251 + device);
	assert_int_equal(api->reg_mr(end->pd, end->memory, END_BYTES,
				 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					 IBV_ACCESS_REMOTE_READ,
				 &end->mr),
		0);
}

void end_close(struct end *end)
{
	const struct tern_verbs_api *api = fake_verbs_api();

	if (end->id && end->id->qp)
		api->destroy_qp(end->id);
	if (end->id)
		assert_int_equal(api->destroy_id(end->id), 0);
	if (end->mr)
		assert_int_equal(api->dereg_mr(end->mr), 0);
	if (end->srq)
		assert_int_equal(api->destroy_srq(end->srq), 0);
	assert_int_equal(api->destroy_cq(end->cq), 0);
	assert_int_equal(api->destroy_comp_channel(end->comp), 0);
	assert_int_equal(api->dealloc_pd(end->pd), 0);
	api->destroy_event_channel(end->channel);
	free(end->memory);
}

int end_qp(struct end *end)
{
	struct ibv_qp_init_attr attr = {.send_cq = end->cq,
		.recv_cq = end->cq,
		.srq = end->srq,
		.cap = {.max_send_wr = END_WR,
			.max_recv_wr = END_WR,
			.max_send_sge = 2,
			.max_recv_sge = 1,
			.max_inline_data = 64},
		.qp_type = IBV_QPT_RC};

	return fake_verbs_api()->create_qp(end->id, end->pd, &attr);
}

void pair_open(struct pair *pair, bool srq)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct sockaddr_in *bound;

	end_open(&pair->a, 0, srq);
	end_open(&pair->b, 1, srq);
	pair->listener = pair->b.id;
	pair->b.id = NULL;
	pair->param = (struct rdma_conn_param){.responder_resources = 4,
		.initiator_depth = 4,
		.retry_count = 7,
		.rnr_retry_count = 7};
	assert_int_equal(api->bind_addr(pair->listener, address("10.7.0.2", 0)), 0);
	assert_int_equal(api->listen(pair->listener, 8), 0);
	bound = &pair->listener->route.addr.src_sin;
	pair->port = ntohs(bound->sin_port);
	assert_true(pair->port != 0);
	assert_ptr_equal(pair->listener->verbs, pair->b.device);
	assert_int_equal(api->resolve_addr(pair->a.id, address("10.7.0.1", 0),
				 address("10.7.0.2", pair->port), 1000),
		0);
	expect_ack(&pair->a, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_ptr_equal(pair->a.id->verbs, pair->a.device);
	assert_int_equal(api->resolve_route(pair->a.id, 1000), 0);
	expect_ack(&pair->a, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_int_equal(end_qp(&pair->a), 0);
}

void pair_connect(struct pair *pair)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct rdma_cm_event *event;

	assert_int_equal(api->connect(pair->a.id, &pair->param), 0);
	event = expect(&pair->b, RDMA_CM_EVENT_CONNECT_REQUEST);
	assert_ptr_equal(event->listen_id, pair->listener);
	assert_ptr_equal(event->id->context, pair->listener->context);
	pair->b.id = event->id;
	assert_ptr_equal(pair->b.id->verbs, pair->b.device);
	assert_int_equal(api->ack_cm_event(event), 0);
	assert_int_equal(end_qp(&pair->b), 0);
	assert_int_equal(api->accept(pair->b.id, &pair->param), 0);
	expect_ack(&pair->a, RDMA_CM_EVENT_ESTABLISHED);
	expect_ack(&pair->b, RDMA_CM_EVENT_ESTABLISHED);
}

void pair_close(struct pair *pair)
{
	if (pair->listener)
		assert_int_equal(fake_verbs_api()->destroy_id(pair->listener), 0);
	end_close(&pair->a);
	end_close(&pair->b);
	fake_verbs_reset(NULL);
}

int post_recv(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t bytes)
{
	struct ibv_sge sge = {.addr = (uintptr_t)end->memory + offset,
		.length = bytes,
		.lkey = end->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	return end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad)
			: ibv_post_recv(end->id->qp, &wr, &bad);
}

int post(struct end *end, struct ibv_send_wr wr, uint32_t offset, uint32_t bytes)
{
	struct ibv_sge sge = {.addr = (uintptr_t)end->memory + offset,
		.length = bytes,
		.lkey = end->mr->lkey};
	struct ibv_send_wr *bad;

	wr.sg_list = &sge;
	wr.num_sge = 1;
	return ibv_post_send(end->id->qp, &wr, &bad);
}

int post_send(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t bytes)
{
	return post(end,
		(struct ibv_send_wr){.wr_id = wr_id,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED},
		offset, bytes);
}

int post_rdma(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t offset,
	uint32_t bytes, const struct end *to, uint32_t to_offset)
{
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};

	wr.wr.rdma.remote_addr = (uintptr_t)to->memory + to_offset;
	wr.wr.rdma.rkey = to->mr->rkey;
	return post(end, wr, offset, bytes);
}

struct ibv_wc complete(struct end *end, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = {0};
	int n = 0;

	for (int i = 0; i < 100000 && n == 0; i++)
		n = ibv_poll_cq(end->cq, 1, &wc);
	assert_int_equal(n, 1);
	assert_int_equal(wc.wr_id, wr_id);
	assert_int_equal(wc.status, status);
	return wc;
}

unsigned polled(struct end *end)
{
	struct ibv_wc wcs[END_CQE];
	int n = ibv_poll_cq(end->cq, END_CQE, wcs);

	assert_true(n >= 0);
	return (unsigned)n;
}
