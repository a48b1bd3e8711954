/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer UCX: tagged messages of UCP, as in ucx_perftest's tag tests, but the receiver
 * answers as pair.h says. The environment variable UCX_TLS chooses the transports. To
 * sleep, the program waits for an event of the UCP worker. With several threads, each has
 * a worker, and all share the UCP context.
 */
#include <stdlib.h>

#include "bench/peers/tagged.h"
#include "bench/peers/ucx_worker.h"

static _Thread_local ucp_worker_h worker;
static _Thread_local ucp_ep_h ep;
/* by tagged_index(); NULL: the request is complete */
static _Thread_local void **requests;

static void ucx_open(struct pair *p)
{
	ucx_meet(p->fd, !p->poll, p->threads > 0, &worker, &ep);
	requests = calloc(2 * p->inflight, sizeof(*requests));
}

static void keep(unsigned index, const char *what, void *request)
{
	if (UCS_PTR_IS_ERR(request))
		ucx_must(what, UCS_PTR_STATUS(request));
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

	ucx_finish(worker, *request, !p->poll);
	*request = NULL;
}

static void progress(struct pair *p)
{
	(void)p;
	ucp_worker_progress(worker);
}

int main(int argc, char **argv)
{
	return tagged_main(argc, argv,
		&(struct pair_ops){.name = "UCX",
			.variants = "",
			.waits = "poll,sleep",
			.threads = true,
			.version = ucp_get_version_string,
			.open = ucx_open},
		&(struct tagged_ops){ucx_send, ucx_receive, ucx_wait, progress});
}
