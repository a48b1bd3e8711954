/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head-of-line blocking with UCX (beside.h): tagged messages between two workers. Both ends
 * wait for their worker's event; the server for the client's questions, too.
 *
 *     ucx_head_of_line ROUNDS
 */
#include <poll.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

#include "bench/beside.h"
#include "bench/pair.h"
#include "bench/two.h"

#define ADDRESS_MAX 4096u

enum { SMALL_TAG = 1, REPLY_TAG, LARGE_TAG };

struct flow {
	unsigned char *memory;
	uint64_t number; /* of the tensor that is under way */
	ucp_tag_t tag;
};

static ucp_worker_h worker;
static ucp_ep_h ep;
static bool is_client;
static struct flow flows[BESIDE_FLOWS];
static uint64_t completed;
static unsigned char small[BESIDE_SMALL_BYTES], reply[BESIDE_REPLY_BYTES];

static void must(const char *what, ucs_status_t status)
{
	pair_must(what, status, ucs_status_string(status));
}

/* ---- both ends ---- */

/* Exchanges the addresses of both ends, each preceded by its length. */
static void exchange(int fd)
{
	ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
	unsigned char theirs[ADDRESS_MAX];
	ucp_address_t *ours;
	size_t bytes;

	must("address", ucp_worker_get_address(worker, &ours, &bytes));
	two_tell(fd, &bytes, sizeof(bytes));
	two_tell(fd, ours, bytes);
	two_hear(fd, &bytes, sizeof(bytes));
	if (bytes > sizeof(theirs))
		pair_die("the other end's address has %zu bytes, which is too long",
			bytes);
	two_hear(fd, theirs, bytes);
	params.address = (ucp_address_t *)theirs;
	must("connect", ucp_ep_create(worker, &params, &ep));
	ucp_worker_release_address(worker, ours);
}

static void open_worker(int fd)
{
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP};
	ucp_worker_params_t worker_params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_context_h context;

	must("init", ucp_init(&params, NULL, &context));
	must("worker", ucp_worker_create(context, &worker_params, &worker));
	exchange(fd);
}

static void sent(void *request, ucs_status_t status, void *arg);
static void received(
	void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg);

/* With a callback, if `arg` is set. Returns the request, or NULL if it is complete. */
static void *post(bool send, ucp_tag_t tag, void *data, size_t bytes, void *arg)
{
	ucp_request_param_t params = {
		.op_attr_mask = arg ? UCP_OP_ATTR_FIELD_CALLBACK |
					      UCP_OP_ATTR_FIELD_USER_DATA |
					      UCP_OP_ATTR_FLAG_NO_IMM_CMPL
				    : 0,
		.user_data = arg};
	void *request;

	if (send) {
		params.cb.send = sent;
		request = ucp_tag_send_nbx(ep, data, bytes, tag, &params);
	} else {
		params.cb.recv = received;
		request = ucp_tag_recv_nbx(worker, data, bytes, tag, UINT64_MAX, &params);
	}
	if (UCS_PTR_IS_ERR(request))
		must(send ? "send" : "receive", UCS_PTR_STATUS(request));
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
	must("a large tensor", status);
	ucp_request_free(request);
	completed++;
	flow_next(f);
}

static void sent(void *request, ucs_status_t status, void *arg)
{
	if (arg == reply) {
		must("an answer", status);
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
	must("a small tensor", status);
	ucp_request_free(request);
	post(false, SMALL_TAG, small, sizeof(small), small);
	post(true, REPLY_TAG, reply, sizeof(reply), reply);
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
	struct pollfd fds[] = {{.events = POLLIN}, {.fd = fd, .events = POLLIN}};

	open_worker(fd);
	must("event", ucp_worker_get_efd(worker, &fds[0].fd));
	post(false, SMALL_TAG, small, sizeof(small), small);
	start_flows();
	for (;;) {
		while (ucp_worker_progress(worker))
			;
		if (ucp_worker_arm(worker) == UCS_ERR_BUSY)
			continue;
		poll(fds, 2, -1);
		if (fds[1].revents)
			answer(fd);
	}
}

/* ---- the client ---- */

static void connect_to(int fd)
{
	is_client = true;
	open_worker(fd);
}

static void finish(void *request)
{
	ucs_status_t status;

	if (!request)
		return;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		if (ucp_worker_progress(worker) == 0)
			must("wait", ucp_worker_wait(worker));
	}
	must("a message", status);
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
	return beside_main(argc, argv,
		&(struct beside_ops){.usage = "ucx_head_of_line ROUNDS",
			.serve = serve,
			.connect = connect_to,
			.trip = trip,
			.start_flows = start_flows});
}
