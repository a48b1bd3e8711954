/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/peers/ucx_worker.h"

#include <poll.h>
#include <pthread.h>

#include "bench/pair.h"
#include "bench/two.h"

#define ADDRESS_MAX 4096u
#define WORKERS_MAX 2u

void ucx_must(const char *what, ucs_status_t status)
{
	pair_must(what, status, ucs_status_string(status));
}

/* Exchanges the addresses of both workers, each preceded by its length, and makes the endpoint
 * to the other worker. */
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

static ucp_context_h get_context(uint64_t features, bool threads)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static ucp_context_h context;
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES |
					     UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		.features = features,
		.mt_workers_shared = threads};

	pthread_mutex_lock(&mutex);
	if (!context)
		ucx_must("init", ucp_init(&params, NULL, &context));
	pthread_mutex_unlock(&mutex);
	return context;
}

ucp_worker_h ucx_worker(uint64_t features, bool threads)
{
	ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_worker_h worker;

	ucx_must("worker",
		ucp_worker_create(get_context(features, threads), &params, &worker));
	return worker;
}

void ucx_meet(int fd, bool wakeup, bool threads, ucp_worker_h *worker, ucp_ep_h *ep)
{
	*worker =
		ucx_worker(UCP_FEATURE_TAG | (wakeup ? UCP_FEATURE_WAKEUP : 0), threads);
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

bool ucx_drive(const ucp_worker_h *workers, unsigned count, int fd)
{
	struct pollfd fds[WORKERS_MAX + 1];
	unsigned moved = 0;

	for (unsigned i = 0; i < count; i++)
		moved += ucp_worker_progress(workers[i]);
	if (moved)
		return false;
	for (unsigned i = 0; i < count; i++) {
		ucs_status_t status = ucp_worker_arm(workers[i]);

		if (status == UCS_ERR_BUSY) /* there are events to progress */
			return false;
		ucx_must("arm", status);
		ucx_must("event", ucp_worker_get_efd(workers[i], &fds[i].fd));
		fds[i].events = POLLIN;
	}
	fds[count] = (struct pollfd){.fd = fd, .events = POLLIN};
	poll(fds, count + 1, -1);
	return fds[count].revents != 0; /* 0 if there is no fd */
}
