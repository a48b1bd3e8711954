/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head-of-line blocking with UCX (beside.h): tagged messages between two workers, which share
 * one connection. With `apart`, each end has a second worker, hence a second connection, for
 * the small tensors. Both ends have one thread, which waits for events of all its workers; the
 * server also waits for the client's questions.
 *
 *     ucx_head_of_line [apart] ROUNDS
 */
#include <string.h>

#include "bench/beside.h"
#include "bench/pair.h"
#include "bench/peers/ucx_worker.h"

enum { SMALL_TAG = 1, REPLY_TAG, LARGE_TAG };

struct flow {
	unsigned char *memory;
	uint64_t number; /* number of the tensor that is under way, from 1 */
	ucp_tag_t tag;
};

/* The first worker moves the large tensors, the last one (the only one, or the second) the small
 * tensors and their answers. */
static ucp_worker_h workers[2];
static ucp_ep_h eps[2];
static unsigned worker_count = 1;
static bool is_client;
static struct flow flows[BESIDE_FLOWS];
static uint64_t completed;
static unsigned char small[BESIDE_SMALL_BYTES], reply[BESIDE_REPLY_BYTES];

/* ---- both ends ---- */

static void sent(void *request, ucs_status_t status, void *arg);
static void received(
	void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg);

/* Starts a send or a receive. If `arg` is not NULL, sent() or received() is called with it at the
 * end. Returns the request, or NULL if it is complete. */
static void *post(bool send, ucp_tag_t tag, void *data, size_t bytes, void *arg)
{
	ucp_request_param_t params = {
		.op_attr_mask = arg ? UCP_OP_ATTR_FIELD_CALLBACK |
						UCP_OP_ATTR_FIELD_USER_DATA |
						UCP_OP_ATTR_FLAG_NO_IMM_CMPL
				    : 0,
		.user_data = arg};
	unsigned i = tag >= LARGE_TAG ? 0 : worker_count - 1;
	void *request;

	if (send) {
		params.cb.send = sent;
		request = ucp_tag_send_nbx(eps[i], data, bytes, tag, &params);
	} else {
		params.cb.recv = received;
		request = ucp_tag_recv_nbx(
			workers[i], data, bytes, tag, UINT64_MAX, &params);
	}
	if (UCS_PTR_IS_ERR(request))
		ucx_must(send ? "send" : "receive", UCS_PTR_STATUS(request));
	return request;
}

static void flow_next(struct flow *f)
{
	f->number++;
	if (is_client)
		beside_mark(f->memory, f->number);
	post(is_client, f->tag, f->memory, BESIDE_LARGE_BYTES, f);
}

static void start_flows(void)
{
	for (unsigned i = 0; i < BESIDE_FLOWS; i++) {
		flows[i].memory = bench_memory(BESIDE_LARGE_BYTES, false);
		flows[i].tag = LARGE_TAG + i;
		flow_next(&flows[i]);
	}
}

static void flow_done(void *request, ucs_status_t status, struct flow *f)
{
	ucx_must("a large tensor", status);
	ucp_request_free(request);
	completed++;
	flow_next(f);
}

static void sent(void *request, ucs_status_t status, void *arg)
{
	if (arg == reply) {
		ucx_must("an answer", status);
		ucp_request_free(request);
	} else {
		flow_done(request, status, arg);
	}
}

static void received(
	void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg)
{
	(void)info;
	if (arg != small) {
		flow_done(request, status, arg);
		return;
	}
	ucx_must("a small tensor", status);
	ucp_request_free(request);
	post(false, SMALL_TAG, small, sizeof(small), small);
	post(true, REPLY_TAG, reply, sizeof(reply), reply);
}

static void meet(int fd)
{
	for (unsigned i = 0; i < worker_count; i++)
		ucx_meet(fd, true, false, &workers[i], &eps[i]);
}

/* ---- the server ---- */

static void answer(int fd)
{
	uint64_t bytes = completed * BESIDE_LARGE_BYTES;

	for (unsigned i = 0; i < BESIDE_FLOWS; i++)
		bytes += beside_arrived(flows[i].memory, flows[i].number);
	beside_answer(fd, bytes);
}

static void serve(int fd)
{
	meet(fd);
	post(false, SMALL_TAG, small, sizeof(small), small);
	start_flows();
	for (;;) {
		if (ucx_drive(workers, worker_count, fd))
			answer(fd);
	}
}

/* ---- the client ---- */

static void connect_to(int fd)
{
	is_client = true;
	meet(fd);
}

/* Waits until the request is complete, and frees it; the large tensors move meanwhile. A request
 * that is NULL is complete. */
static void finish(void *request)
{
	ucs_status_t status;

	if (!request)
		return;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
		ucx_drive(workers, worker_count, -1);
	ucx_must("a small tensor", status);
	ucp_request_free(request);
}

static void trip(void)
{
	void *back = post(false, REPLY_TAG, reply, sizeof(reply), NULL);

	finish(post(true, SMALL_TAG, small, sizeof(small), NULL));
	finish(back);
}

int main(int argc, char **argv)
{
	bool apart = argc == 3 && strcmp(argv[1], "apart") == 0;

	worker_count = apart ? 2 : 1;
	return beside_main(argc == 2 || apart ? argc : 0, argv,
		&(struct beside_ops){.usage = "ucx_head_of_line [apart] ROUNDS",
			.serve = serve,
			.connect = connect_to,
			.trip = trip,
			.start_flows = start_flows});
}
