/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/nccl_driver.h"

#include <dlfcn.h>
#include <stdio.h>

/* Calls a function of the table, whose arguments are the same in all versions. */
#define SAME(d, call)                                                                    \
	((d)->version == 8           ? ((const struct nccl_net_8 *)(d)->table)->call     \
		: (d)->version == 9  ? ((const struct nccl_net_9 *)(d)->table)->call     \
		: (d)->version == 10 ? ((const struct nccl_net_10 *)(d)->table)->call    \
		: (d)->version == 11 ? ((const struct nccl_net_11 *)(d)->table)->call    \
				     : ((const struct nccl_net_12 *)(d)->table)->call)

/* The table as one of v11, which v12 differs from in the properties only. */
static const struct nccl_net_11 *new_table(const struct driver *d)
{
	return d->table;
}

const char *driver_open(struct driver *d, const char *path, unsigned version)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	char name[40];

	if (!library)
		return dlerror();
	snprintf(name, sizeof(name), "ncclNetPlugin_v%u", version);
	*d = (struct driver){.version = version, .table = dlsym(library, name)};
	return d->table ? NULL : dlerror();
}

int driver_init(struct driver *d, nccl_log log)
{
	struct nccl_config config = {.traffic_class = -1};

	if (d->version == 10)
		return ((const struct nccl_net_10 *)d->table)->init(log, NULL);
	if (d->version < 10)
		return ((const struct nccl_net_9 *)d->table)->init(log);
	return new_table(d)->init(&d->ctx, 1, &config, log, NULL);
}

int driver_finalize(struct driver *d)
{
	return d->version < 11 ? 0 : new_table(d)->finalize(d->ctx);
}

int driver_devices(const struct driver *d, int *count)
{
	return SAME(d, devices(count));
}

int driver_properties(const struct driver *d, int device, const char **name, int *memory,
	int *receives_max)
{
	struct nccl_properties_8 p8 = {0};
	struct nccl_properties_12 p12 = {0};
	struct nccl_properties_11 p11 = {0};
	struct nccl_properties_9 p9 = {0};
	int r;

#define RETURN(p)                                                                        \
	do {                                                                             \
		*name = (p).name;                                                        \
		*memory = (p).memory;                                                    \
		*receives_max = (p).receives_max;                                        \
		return r;                                                                \
	} while (0)
	switch (d->version) {
	case 8:
		r = ((const struct nccl_net_8 *)d->table)->getProperties(device, &p8);
		RETURN(p8);
	case 9:
	case 10:
		r = ((const struct nccl_net_9 *)d->table)->getProperties(device, &p9);
		RETURN(p9);
	case 11:
		r = new_table(d)->getProperties(device, &p11);
		RETURN(p11);
	default:
		r = ((const struct nccl_net_12 *)d->table)->getProperties(device, &p12);
		RETURN(p12);
	}
}

int driver_listen(const struct driver *d, void *handle, void **out)
{
	return d->version < 11 ? ((const struct nccl_net_9 *)d->table)
					 ->listen(d->device, handle, out)
			       : new_table(d)->listen(d->ctx, d->device, handle, out);
}

int driver_connect(const struct driver *d, void *handle, void **out)
{
	struct nccl_config config = {.traffic_class = -1};
	void *of_gpu = NULL;

	if (d->version == 10)
		return ((const struct nccl_net_10 *)d->table)
			->connect(d->device, &config, handle, out, &of_gpu);
	if (d->version < 10)
		return ((const struct nccl_net_9 *)d->table)
			->connect(d->device, handle, out, NULL);
	return new_table(d)->connect(d->ctx, d->device, handle, out, &of_gpu);
}

int driver_accept(const struct driver *d, void *listener, void **out)
{
	void *of_gpu = NULL;

	return SAME(d, accept(listener, out, &of_gpu));
}

int driver_register(
	const struct driver *d, void *comm, void *data, size_t bytes, void **out)
{
	return SAME(d, regMr(comm, data, bytes, MEMORY_HOST, out));
}

int driver_register_gpu(
	const struct driver *d, void *comm, void *data, size_t bytes, void **out)
{
	return SAME(d, regMr(comm, data, bytes, MEMORY_CUDA, out));
}

int driver_register_dma_buf(
	const struct driver *d, void *comm, void *data, size_t bytes, int fd, void **out)
{
	return SAME(d, regMrDmaBuf(comm, data, bytes, MEMORY_CUDA, 0, fd, out));
}

int driver_deregister(const struct driver *d, void *comm, void *memory)
{
	return SAME(d, deregMr(comm, memory));
}

int driver_send(const struct driver *d, void *comm, void *data, size_t bytes, int tag,
	void *memory, void **request)
{
	if (d->version == 8)
		return ((const struct nccl_net_8 *)d->table)
			->isend(comm, data, (int)bytes, tag, memory, request);
	if (d->version == 9)
		return ((const struct nccl_net_9 *)d->table)
			->isend(comm, data, bytes, tag, memory, request);
	if (d->version == 10)
		return ((const struct nccl_net_10 *)d->table)
			->isend(comm, data, bytes, tag, memory, NULL, request);
	return new_table(d)->isend(comm, data, bytes, tag, memory, NULL, request);
}

int driver_receive(const struct driver *d, void *comm, int n, void **data, size_t *bytes,
	int *tags, void **memory, void **request)
{
	int sizes[16];

	*request = (void *)1; /* as NCCL does where it needs no end of the receive */
	if (d->version == 8) {
		for (int i = 0; i < n; i++)
			sizes[i] = (int)bytes[i];
		return ((const struct nccl_net_8 *)d->table)
			->irecv(comm, n, data, sizes, tags, memory, request);
	}
	if (d->version == 9)
		return ((const struct nccl_net_9 *)d->table)
			->irecv(comm, n, data, bytes, tags, memory, request);
	if (d->version == 10)
		return ((const struct nccl_net_10 *)d->table)
			->irecv(comm, n, data, bytes, tags, memory, NULL, request);
	return new_table(d)->irecv(comm, n, data, bytes, tags, memory, NULL, request);
}

int driver_flush(const struct driver *d, void *comm, void **data, int *sizes,
	void **memory, void **request)
{
	return SAME(d, iflush(comm, 1, data, sizes, memory, request));
}

int driver_test(const struct driver *d, void *request, int *done, int *sizes)
{
	return SAME(d, test(request, done, sizes));
}

int driver_close_send(const struct driver *d, void *comm)
{
	return SAME(d, closeSend(comm));
}

int driver_close_receive(const struct driver *d, void *comm)
{
	return SAME(d, closeRecv(comm));
}

int driver_close_listener(const struct driver *d, void *listener)
{
	return SAME(d, closeListen(listener));
}
