/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/peers/ucx_worker.h"

#include <pthread.h>

#include "bench/pair.h"
#include "bench/two.h"

#define ADDRESS_MAX 4096u

void ucx_must(const char *what, ucs_status_t status)
{
	pair_must(what, status, ucs_status_string(status));
}

/* Exchanges the addresses of both workers, each preceded by its length. */
static void exchange(int fd, ucp_worker_h worker, ucp_ep_h *ep)
{
	ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
	unsigned char theirs[ADDRESS_MAX];
	ucp_address_t *ours;
	size_t bytes;

	ucx_must("address", ucp_worker_get_address(worker, &ours, &bytes));
	two_tell(fd, &bytes, sizeof(bytes));
	two_tell(fd, ours, bytes);
	two_hear(fd, &bytes, sizeof(bytes));
	if (bytes > sizeof(theirs))
		pair_die("the other end's address has %zu bytes, which is too long",
			bytes);
	two_hear(fd, theirs, bytes);
	params.address = (ucp_address_t *)theirs;
	ucx_must("connect", ucp_ep_create(worker, &params, ep));
	ucp_worker_release_address(worker, ours);
}

/* Returns the context of this process, which the first call makes. */
static ucp_context_h get_context(bool wakeup, bool threads)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static ucp_context_h context;
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES |
					     UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		.features = UCP_FEATURE_TAG | (wakeup ? UCP_FEATURE_WAKEUP : 0),
		.mt_workers_shared = threads};

	pthread_mutex_lock(&mutex);
	if (!context)
		ucx_must("init", ucp_init(&params, NULL, &context));
	pthread_mutex_unlock(&mutex);
	return context;
}

void ucx_meet(int fd, bool wakeup, bool threads, ucp_worker_h *worker, ucp_ep_h *ep)
{
	ucp_worker_params_t worker_params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE};

	ucx_must("worker",
		ucp_worker_create(get_context(wakeup, threads), &worker_params, worker));
	exchange(fd, *worker, ep);
}

void ucx_finish(ucp_worker_h worker, void *request, bool sleep)
{
	ucs_status_t status;

	if (!request)
		return;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		if (ucp_worker_progress(worker) == 0 && sleep)
			ucx_must("wait", ucp_worker_wait(worker));
	}
	ucx_must("a message", status);
	ucp_request_free(request);
}
