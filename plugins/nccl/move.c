/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, sends and receives of NCCL: net.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/nccl/net.h"

/* ---- memory ---- */

/* A registration of NCCL: memory of the host or of a GPU. */
struct range {
	void *data;
	size_t bytes;
	int type;
	bool has_dma_buf;
	int fd; /* the dma-buf, in which the range starts at `offset` */
	uint64_t offset;
};

static int wrap(
	struct tern_domain *domain, const struct range *range, struct tern_mem **out)
{
	uint64_t address = (uintptr_t)range->data;

	if (range->type == MEMORY_HOST && !range->has_dma_buf)
		return tern_mem_wrap(domain, range->data, range->bytes, out);
	if (range->type != MEMORY_CUDA)
		return -EINVAL;
	return range->has_dma_buf
		       ? tern_mem_wrap_dmabuf(domain, address, range->bytes, range->fd,
				 range->offset, out)
		       : tern_mem_wrap_cuda(domain, address, range->bytes, out);
}

static int cannot_register(const struct range *range, const char *why)
{
	net_warn("cannot register %zu bytes of %s memory at %p%s: %s", range->bytes,
		range->type == MEMORY_HOST ? "host" : "GPU", range->data,
		range->has_dma_buf ? " by its dma-buf" : "", why);
	return NCCL_SYSTEM_ERROR;
}

/* The RDMA devices must move GPU memory themselves (gpu.c). */
static int check_gpu_memory(
	struct comm *comm, const struct range *range, const struct memory *m)
{
	struct tern_context *ctx = tern_shared_context(comm->net->shared);
	char why[500] = "";
	int r;

	tern_shared_lock(comm->net->shared);
	if (comm->peer && strcmp(tern_peer_fabric(comm->peer), "verbs") != 0)
		snprintf(why, sizeof(why), "the connection with %s is by %s, not by RDMA",
			tern_peer_name(comm->peer), tern_peer_fabric(comm->peer));
	/* Allocated now: later NCCL's kernels run, and wait for transfers. */
	r = tern_context_prepare(ctx, m->mem);
	tern_shared_unlock(comm->net->shared);
	if (r < 0)
		return cannot_register(range, tern_status_text(r));
	if (*why)
		return cannot_register(range, why);
	if (tern_mem_reached(m->mem))
		return NCCL_SUCCESS;
	gpu_refusals(tern_context_domain(ctx), why, sizeof(why));
	return cannot_register(
		range, *why ? why : "the GPU does not see what RDMA devices write");
}

static int add_memory(struct comm *comm, const struct range *range, void **out)
{
	struct tern_domain *domain =
		tern_context_domain(tern_shared_context(comm->net->shared));
	struct memory *m = calloc(1, sizeof(*m));
	int r = m ? wrap(domain, range, &m->mem) : -ENOMEM, result = NCCL_SUCCESS;

	*out = NULL;
	if (r < 0)
		result = cannot_register(range, tern_status_text(r));
	else if (range->type == MEMORY_CUDA)
		result = check_gpu_memory(comm, range, m);
	if (result != NCCL_SUCCESS) {
		tern_mem_put(m ? m->mem : NULL);
		free(m);
		return result;
	}
	m->base = range->data;
	m->bytes = range->bytes;
	*out = m;
	return NCCL_SUCCESS;
}

int net_register(void *comm, void *data, size_t bytes, int type, void **out)
{
	const struct range range = {.data = data, .bytes = bytes, .type = type};

	return add_memory(comm, &range, out);
}

int net_register_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset,
	int fd, void **out)
{
	const struct range range = {.data = data,
		.bytes = bytes,
		.type = type,
		.has_dma_buf = true,
		.fd = fd,
		.offset = offset};

	return add_memory(comm, &range, out);
}

int net_deregister(void *of_nccl, void *memory)
{
	struct comm *comm = of_nccl;
	struct memory *m = memory;

	if (!m)
		return NCCL_SUCCESS;
	if (atomic_load(&m->users) > 0 && comm->peer)
		comm_abort(comm); /* NCCL has given the communicator up */
	tern_mem_put(m->mem);
	free(m);
	return NCCL_SUCCESS;
}

/* The part of registered memory at `data`. Returns false if it is not inside. */
static bool find_buf(const struct comm *comm, const struct memory *m, const void *data,
	size_t bytes, struct tern_buf *out)
{
	size_t offset;

	if (bytes == 0) {
		*out = (struct tern_buf){.mem = comm->net->nothing};
		return true;
	}
	if (!m || (const char *)data < m->base)
		return false;
	offset = (size_t)((const char *)data - m->base);
	if (offset > m->bytes || bytes > m->bytes - offset)
		return false;
	*out = (struct tern_buf){.mem = m->mem, .offset = offset, .bytes = bytes};
	return true;
}

/* ---- requests ---- */

/* With the context locked. */
static void part_ended(struct tern_req *req)
{
	struct request *r = req->arg;
	struct memory *m = r->memory[req - r->reqs];

	if (m)
		atomic_fetch_sub(&m->users, 1);
	/* Release: the status is written before NCCL's thread, which acquires it,
	 * reads. */
	atomic_fetch_sub_explicit(&r->left, 1, memory_order_release);
}

static struct request *find_free(struct comm *comm)
{
	for (unsigned i = 0; i < REQUESTS_MAX; i++)
		if (comm->requests[i].count == 0)
			return &comm->requests[i];
	return NULL;
}

/* Takes part number i of the request for this memory. */
static struct tern_req *take_part(struct request *r, unsigned i, struct memory *m)
{
	r->reqs[i] = (struct tern_req){.done = part_ended, .arg = r};
	r->memory[i] = m;
	if (m)
		atomic_fetch_add(&m->users, 1);
	atomic_fetch_add(&r->left, 1);
	return &r->reqs[i];
}

static void give_back_part(struct request *r, unsigned i)
{
	if (r->memory[i])
		atomic_fetch_sub(&r->memory[i]->users, 1);
	atomic_fetch_sub(&r->left, 1);
}

int net_send(
	void *of_nccl, void *data, size_t bytes, int tag, void *memory, void **request)
{
	struct comm *comm = of_nccl;
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};
	struct request *r = find_free(comm);
	int status;

	*request = NULL;
	if (!find_buf(comm, memory, data, bytes, &tensor.buf)) {
		net_warn(
			"a send of %zu bytes is outside of its registered memory", bytes);
		return NCCL_INVALID_ARGUMENT;
	}
	if (!r)
		return NCCL_SUCCESS; /* NCCL tries again */
	tern_shared_lock(comm->net->shared);
	if (!comm->peer || comm->down)
		status = -ENOTCONN;
	else
		status = tern_send(comm->channel, take_part(r, 0, memory), (uint32_t)tag,
			0, &tensor, NULL, 0);
	tern_shared_unlock(comm->net->shared);
	if (status == -ENOTCONN)
		return comm_broken(comm, "a send");
	if (status < 0) {
		give_back_part(r, 0);
		net_warn("a send of %zu bytes: %s", bytes, tern_status_text(status));
		return NCCL_SYSTEM_ERROR;
	}
	r->count = 1;
	*request = r;
	return NCCL_SUCCESS;
}

int net_receive(void *of_nccl, int n, void *const *data, const size_t *bytes,
	const int *tags, void *const *memory, void **request)
{
	struct comm *comm = of_nccl;
	struct request *r = find_free(comm);
	struct tern_buf rooms[RECEIVES_MAX];
	int status = 0;

	*request = NULL;
	if (n < 1 || n > (int)RECEIVES_MAX)
		return NCCL_INVALID_ARGUMENT;
	for (int i = 0; i < n; i++)
		if (!find_buf(comm, memory[i], data[i], bytes[i], &rooms[i])) {
			net_warn("a receive of %zu bytes is outside of its registered "
				 "memory",
				bytes[i]);
			return NCCL_INVALID_ARGUMENT;
		}
	if (!r)
		return NCCL_SUCCESS;
	tern_shared_lock(comm->net->shared);
	if (!comm->peer || comm->down)
		status = -ENOTCONN;
	for (int i = 0; i < n && status == 0; i++) {
		status = tern_recv(comm->channel, take_part(r, (unsigned)i, memory[i]),
			(uint32_t)tags[i], 0, &rooms[i], NULL, 0);
		if (status < 0)
			give_back_part(r, (unsigned)i);
		else
			r->count++;
	}
	tern_shared_unlock(comm->net->shared);
	if (status == 0) {
		*request = r;
		return NCCL_SUCCESS;
	}
	if (status == -ENOTCONN)
		return comm_broken(comm, "a receive");
	net_warn("a receive: %s", tern_status_text(status));
	return NCCL_SYSTEM_ERROR;
}

static int failed(const struct request *r, unsigned i)
{
	const struct comm *comm = r->comm;
	const char *what = comm->sends ? "a send" : "a receive";
	int status = r->reqs[i].status;

	if (status == -EMSGSIZE) {
		net_warn("%s: %llu bytes were sent, which is more than the receive has "
			 "room "
			 "for",
			what, (unsigned long long)r->reqs[i].bytes);
		return NCCL_INVALID_USAGE;
	}
	tern_shared_lock(comm->net->shared);
	net_warn("%s: %s: %s", what, comm->peer ? tern_peer_name(comm->peer) : "the peer",
		tern_status_text(status));
	tern_shared_unlock(comm->net->shared);
	return NCCL_REMOTE_ERROR;
}

int net_test(void *request, int *done, int *sizes)
{
	struct request *r = request;
	unsigned count = r->count;
	int result = NCCL_SUCCESS;

	*done = 0;
	if (atomic_load_explicit(&r->left, memory_order_acquire) > 0) {
		if (tern_shared_poll(r->comm->net->shared) < 0)
			return NCCL_SYSTEM_ERROR;
		if (atomic_load_explicit(&r->left, memory_order_acquire) > 0)
			return NCCL_SUCCESS;
	}
	for (unsigned i = 0; i < count && result == NCCL_SUCCESS; i++) {
		if (r->reqs[i].status < 0)
			result = failed(r, i);
		else if (sizes)
			sizes[i] = (int)r->reqs[i].bytes;
	}
	*done = 1;
	r->count = 0;
	return result;
}
