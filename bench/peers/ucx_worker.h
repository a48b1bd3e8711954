/* SPDX-License-Identifier: Apache-2.0 */
/* Code that UCX's programs share: workers of a process, and endpoints that connect them with
 * workers of the other process. */
#ifndef TERN_BENCH_UCX_WORKER_H
#define TERN_BENCH_UCX_WORKER_H

#include <stdbool.h>
#include <ucp/api/ucp.h>

/* Exits with an error line if `status` is not UCS_OK. */
void ucx_must(const char *what, ucs_status_t status);

/* Makes a worker in the UCX context of this process. The first call makes the context, with
 * these features; later calls must pass the same. `threads`: other threads of this process have
 * workers in the context, too. */
ucp_worker_h ucx_worker(uint64_t features, bool threads);

/* Makes a worker, exchanges addresses with the other process over `fd`, a socket to it, and
 * makes an endpoint to its worker. `wakeup`: a thread can sleep until the worker has an event.
 * `threads`: see ucx_worker(). */
void ucx_meet(int fd, bool wakeup, bool threads, ucp_worker_h *worker, ucp_ep_h *ep);

/* Progresses the worker until the request is complete, and frees the request; `sleep`: sleeps
 * between the worker's events. A request that is NULL is complete. */
void ucx_finish(ucp_worker_h worker, void *request, bool sleep);

/* Progresses the workers, of which there are one or two. If none of them has moved anything,
 * sleeps until one has an event or `fd` is readable (-1: none). Returns true if it has waited
 * so, and `fd` is readable. */
bool ucx_drive(const ucp_worker_h *workers, unsigned count, int fd);

#endif
