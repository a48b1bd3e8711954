/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL over Tern. Each communicator has a `net`, which is a shared context of its own, so that
 * communicators do not wait for each other; NCCL before 2.28 does not tell them apart, and then
 * all have one net. A connection of NCCL carries data one way and is a `comm`: a peer of Tern
 * with one channel. A tag is the key of its tensors, so a grouped receive is a receive for
 * each tag, and Tern matches them.
 *
 *     net.c       listening, connecting, closing
 *     move.c      memory, sends and receives
 *     gpu.c       whether RDMA devices move GPU memory themselves
 *     versions.c  the versions of NCCL's interface
 *
 * NCCL's thread makes the progress: it asks test() all the time. When it does not ask for 10 ms,
 * the context's own thread takes over, so that connections live on (tern_shared_poll()).
 */
#ifndef TERN_PLUGINS_NCCL_NET_H
#define TERN_PLUGINS_NCCL_NET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <tern/shared.h>
#include <tern/tern.h>

#include "plugins/common/devices.h"
#include "plugins/common/settings.h"
#include "plugins/nccl/abi.h"

#define RECEIVES_MAX 8u /* parts of a grouped receive */

struct net {
	struct tern_shared *shared;
	struct tern_mem *nothing; /* memory of tensors without bytes */
	char name[60];            /* of this process, in the messages of others */
	_Atomic unsigned closing; /* comms that wait for the goodbyes of their peers */
	/* Changed with the context locked. */
	struct comm *comms;
	struct listener *listeners;
};

struct listener {
	struct net *net;
	struct tern_listener *listener;
	struct listener *other, **place; /* in net->listeners */
	char secret[SECRET_BYTES];
	struct comm *accepted, **last_accepted;
	unsigned users; /* the listener itself until closeListen(), and its comms */
};

struct request {
	struct comm *comm;
	unsigned count; /* its parts; 0: free */
	_Atomic unsigned left;
	struct tern_req *reqs;
	struct memory *memory[RECEIVES_MAX];
};

struct comm {
	struct net *net;
	struct tern_peer *peer; /* NULL: freed */
	struct tern_channel *channel;
	struct listener *listener;   /* that has accepted it; NULL: it was dialled */
	struct comm *next;           /* in listener->accepted */
	struct comm *other, **place; /* in net->comms */
	bool sends;
	/* Changed with the context locked. */
	bool up, down, closing;
	int status;
	struct request requests[REQUESTS_MAX];
	struct tern_req reqs[]; /* of all requests */
};

struct memory {
	struct tern_mem *mem;
	char *base;
	size_t bytes;
	_Atomic unsigned users; /* parts of requests that have not ended */
};

/* Logs a line with NCCL's function, as a warning. */
void net_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void net_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void net_set_log(nccl_log log);

/* net.c */
int net_open(struct net **out);
int net_close(struct net *net);
int net_listen(struct net *net, int device, void *handle, void **out);
int net_connect(struct net *net, int device, void *handle, void **out);
int net_accept(void *listener, void **out);
int net_close_comm(void *comm);
int net_close_listener(void *listener);
/* Ends the connection at once, and waits until the library has let go of all memory. */
void comm_abort(struct comm *comm);
/* A line about why the comm is down, and NCCL's result for it. */
int comm_broken(const struct comm *comm, const char *what);

/* gpu.c */
/* Finds out for each device which kinds of memory its connections move without a copy.
 * Returns true if there is GPU memory among them. */
bool gpu_find(void);
/* MEMORY_HOST, and the kinds of GPU memory for which NCCL need not copy. */
int gpu_kinds(int device);
/* Writes why RDMA devices have refused the GPU memory that was registered last. */
void gpu_refusals(struct tern_domain *domain, char *out, size_t size);

/* move.c */
int net_register(void *comm, void *data, size_t bytes, int type, void **out);
int net_register_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset,
	int fd, void **out);
int net_deregister(void *comm, void *memory);
int net_send(void *comm, void *data, size_t bytes, int tag, void *memory, void **request);
int net_receive(void *comm, int n, void *const *data, const size_t *bytes,
	const int *tags, void *const *memory, void **request);
int net_test(void *request, int *done, int *sizes);

#endif
