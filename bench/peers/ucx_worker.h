/* SPDX-License-Identifier: Apache-2.0 */
/* A worker of UCX at each end, connected with the other's: what the programs of UCX share. */
#ifndef TERN_BENCH_UCX_WORKER_H
#define TERN_BENCH_UCX_WORKER_H

#include <stdbool.h>
#include <ucp/api/ucp.h>

/* Exits with an error line if `status` is not UCS_OK. */
void ucx_must(const char *what, ucs_status_t status);

/* Makes a worker in the UCX context of this process, which the first call makes; later calls
 * name the same features. `threads`: other threads of this process may call this, too. */
ucp_worker_h ucx_worker(uint64_t features, bool threads);

/* Connects with the other process through `fd`, a socket to it. `wakeup`: the worker's
 * events can be waited for. `threads`: see ucx_worker(). */
void ucx_meet(int fd, bool wakeup, bool threads, ucp_worker_h *worker, ucp_ep_h *ep);

/* Progresses the worker until the request is complete, and frees it; `sleep`: waits for
 * events meanwhile. NULL is a request that is complete. */
void ucx_finish(ucp_worker_h worker, void *request, bool sleep);

/* Progresses the workers, of which there are one or two. If none of them has moved anything,
 * sleeps until one has an event or `fd` is readable (-1: none). Returns true if `fd` is. */
bool ucx_drive(const ucp_worker_h *workers, unsigned count, int fd);

#endif
