/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer UCX: tagged messages of UCP, as in ucx_perftest's tag tests, but with an
 * answer of 8 bytes. The environment variable UCX_TLS chooses the transports. To sleep,
 * the program waits for the UCP worker's event.
 */
#include "bench/peers/tagged.h"

#include <stdlib.h>
#include <ucp/api/ucp.h>

#define ADDRESS_MAX 4096u

static ucp_worker_h worker;
static ucp_ep_h ep;
static void **requests; /* by tagged_index(); NULL: the request is complete */

static void must(const char *what, ucs_status_t status)
{
	pair_must(what, status, ucs_status_string(status));
}

/* Exchanges the addresses of both ends, each preceded by its length. */
static void exchange(struct pair *p)
{
	ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
	unsigned char theirs[ADDRESS_MAX];
	ucp_address_t *ours;
	size_t bytes;

	must("address", ucp_worker_get_address(worker, &ours, &bytes));
	pair_tell(p, &bytes, sizeof(bytes));
	pair_tell(p, ours, bytes);
	pair_hear(p, &bytes, sizeof(bytes));
	if (bytes > sizeof(theirs))
		pair_die("the other end's address has %zu bytes, which is too long",
			bytes);
	pair_hear(p, theirs, bytes);
	params.address = (ucp_address_t *)theirs;
	must("connect", ucp_ep_create(worker, &params, &ep));
	ucp_worker_release_address(worker, ours);
}

static void ucx_open(struct pair *p)
{
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_TAG | (p->poll ? 0 : UCP_FEATURE_WAKEUP)};
	ucp_worker_params_t worker_params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_context_h context;

	must("init", ucp_init(&params, NULL, &context));
	must("worker", ucp_worker_create(context, &worker_params, &worker));
	requests = calloc(2 * p->inflight, sizeof(*requests));
	exchange(p);
}

static void keep(unsigned index, const char *what, void *request)
{
	if (UCS_PTR_IS_ERR(request))
		must(what, UCS_PTR_STATUS(request));
	requests[index] = request;
}

static const ucp_request_param_t no_params = {.op_attr_mask = 0};

static void ucx_send(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	(void)p;
	keep(tagged_index(slot, what), "send",
		ucp_tag_send_nbx(ep, data, bytes, what, &no_params));
}

static void ucx_receive(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	(void)p;
	keep(tagged_index(slot, what), "receive",
		ucp_tag_recv_nbx(worker, data, bytes, what, UINT64_MAX, &no_params));
}

static void ucx_wait(struct pair *p, unsigned slot, enum tagged_what what)
{
	void **request = &requests[tagged_index(slot, what)];
	ucs_status_t status;

	if (!*request)
		return;
	while ((status = ucp_request_check_status(*request)) == UCS_INPROGRESS) {
		if (ucp_worker_progress(worker) == 0 && !p->poll)
			must("wait", ucp_worker_wait(worker));
	}
	must("a message", status);
	ucp_request_free(*request);
	*request = NULL;
}

int main(int argc, char **argv)
{
	return tagged_main(argc, argv,
		&(struct pair_ops){.name = "UCX",
			.variants = "",
			.waits = "poll,sleep",
			.version = ucp_get_version_string,
			.open = ucx_open},
		&(struct tagged_ops){ucx_send, ucx_receive, ucx_wait});
}
