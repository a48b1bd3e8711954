/* SPDX-License-Identifier: Apache-2.0 */
/* The versions of NCCL's interface (abi.h), on the functions of net.h. */
#include <pthread.h>

#include "plugins/nccl/net.h"

#define EXPORT    __attribute__((visibility("default")))
#define P2P_BYTES ((size_t)1 << 40)
#define COMMS_MAX 65536

/* ---- what all versions have ---- */

static int count_devices(int *count)
{
	const struct device *devices;
	char why[500];

	*count = (int)devices_find(&devices);
	if (*count == 0) { /* NCCL itself says only that the plug-in cannot be used */
		devices_why_none(why, sizeof(why));
		net_warn("%s", why);
	}
	return NCCL_SUCCESS;
}

static const struct device *device_of(int number)
{
	const struct device *devices;

	return number >= 0 && (unsigned)number < devices_find(&devices) ? &devices[number]
									: NULL;
}

#define FILL(out, d)                                                                     \
	do {                                                                             \
		(out)->name = (d)->name;                                                 \
		(out)->pci_path = (d)->pci[0] ? (d)->pci : NULL;                         \
		(out)->guid = (uint64_t)number + 1;                                      \
		(out)->memory = gpu_kinds(number);                                       \
		(out)->speed = (d)->mbits;                                               \
		(out)->port = 1;                                                         \
		(out)->comms_max = COMMS_MAX;                                            \
		(out)->receives_max = RECEIVES_MAX;                                      \
	} while (0)

#define FILL_9(out)                                                                      \
	do {                                                                             \
		(out)->virtual_device.count = 1;                                         \
		(out)->virtual_device.devices[0] = number;                               \
		(out)->p2p_bytes_max = (out)->collective_bytes_max = P2P_BYTES;          \
	} while (0)

static int properties_8(int number, struct nccl_properties_8 *out)
{
	const struct device *d = device_of(number);

	if (!d)
		return NCCL_INVALID_ARGUMENT;
	*out = (struct nccl_properties_8){0};
	FILL(out, d);
	return NCCL_SUCCESS;
}

static int properties_9(int number, struct nccl_properties_9 *out)
{
	const struct device *d = device_of(number);

	if (!d)
		return NCCL_INVALID_ARGUMENT;
	*out = (struct nccl_properties_9){0};
	FILL(out, d);
	FILL_9(out);
	return NCCL_SUCCESS;
}

static int properties_11(int number, struct nccl_properties_11 *out)
{
	const struct device *d = device_of(number);

	if (!d)
		return NCCL_INVALID_ARGUMENT;
	*out = (struct nccl_properties_11){.multi_requests_max = 1};
	FILL(out, d);
	FILL_9(out);
	return NCCL_SUCCESS;
}

static int properties_12(int number, struct nccl_properties_12 *out)
{
	const struct device *d = device_of(number);

	if (!d)
		return NCCL_INVALID_ARGUMENT;
	*out = (struct nccl_properties_12){
		.multi_requests_max = 1, .rail = -1, .plane = -1};
	FILL(out, d);
	FILL_9(out);
	return NCCL_SUCCESS;
}

/* Before version 11 all communicators share one net, and no call ends it. */
static struct net *only_net(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct net *net;

	pthread_mutex_lock(&lock);
	if (!net)
		net_open(&net);
	pthread_mutex_unlock(&lock);
	return net;
}

static int init_8(nccl_log log)
{
	net_set_log(log);
	return only_net() ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

static int init_10(nccl_log log, nccl_profile profile)
{
	(void)profile;
	return init_8(log);
}

static int init_11(void **ctx, uint64_t id, struct nccl_config *config, nccl_log log,
	nccl_profile profile)
{
	(void)id, (void)config, (void)profile;
	*ctx = NULL;
	net_set_log(log);
	return net_open((struct net **)ctx);
}

static int finalize_11(void *ctx)
{
	return net_close(ctx);
}

static int listen_8(int device, void *handle, void **out)
{
	return net_listen(only_net(), device, handle, out);
}

static int listen_11(void *ctx, int device, void *handle, void **out)
{
	return net_listen(ctx, device, handle, out);
}

static int connect_11(void *ctx, int device, void *handle, void **out, void **of_gpu)
{
	if (of_gpu)
		*of_gpu = NULL; /* nothing is offloaded to a GPU */
	return net_connect(ctx, device, handle, out);
}

static int connect_8(int device, void *handle, void **out, void **of_gpu)
{
	return connect_11(only_net(), device, handle, out, of_gpu);
}

static int connect_10(
	int device, struct nccl_config *config, void *handle, void **out, void **of_gpu)
{
	(void)config;
	return connect_8(device, handle, out, of_gpu);
}

static int accept_8(void *listener, void **out, void **of_gpu)
{
	if (of_gpu)
		*of_gpu = NULL;
	return net_accept(listener, out);
}

static int send_8(
	void *comm, void *data, int bytes, int tag, void *memory, void **request)
{
	return net_send(comm, data, (size_t)bytes, tag, memory, request);
}

static int send_9(
	void *comm, void *data, size_t bytes, int tag, void *memory, void **request)
{
	return net_send(comm, data, bytes, tag, memory, request);
}

static int send_10(void *comm, void *data, size_t bytes, int tag, void *memory,
	void *of_profiler, void **request)
{
	(void)of_profiler;
	return net_send(comm, data, bytes, tag, memory, request);
}

static int receive_8(void *comm, int n, void **data, int *bytes, int *tags, void **memory,
	void **request)
{
	size_t sizes[RECEIVES_MAX] = {0};

	for (int i = 0; i < n && i < (int)RECEIVES_MAX; i++)
		sizes[i] = (size_t)bytes[i];
	return net_receive(comm, n, data, sizes, tags, memory, request);
}

static int receive_9(void *comm, int n, void **data, size_t *bytes, int *tags,
	void **memory, void **request)
{
	return net_receive(comm, n, data, bytes, tags, memory, request);
}

static int receive_10(void *comm, int n, void **data, size_t *bytes, int *tags,
	void **memory, void **of_profiler, void **request)
{
	(void)of_profiler;
	return net_receive(comm, n, data, bytes, tags, memory, request);
}

/* Nothing is left to flush: when a receive has ended, the GPU sees its bytes
 * (tern_mem_wrap_cuda()). That holds for kernels that run already, too, since the driver's
 * flush is one for all work of the GPU. */
static int flush(
	void *comm, int n, void **data, int *sizes, void **memory, void **request)
{
	(void)comm, (void)n, (void)data, (void)sizes, (void)memory;
	*request = NULL;
	return NCCL_SUCCESS;
}

/* ---- the tables ---- */

#define TRANSFERS(send, receive)                                                         \
	.accept = accept_8, .regMr = net_register, .regMrDmaBuf = net_register_dma_buf,  \
	.deregMr = net_deregister, .isend = send, .irecv = receive, .iflush = flush,     \
	.test = net_test, .closeSend = net_close_comm, .closeRecv = net_close_comm,      \
	.closeListen = net_close_listener

EXPORT extern const struct nccl_net_8 ncclNetPlugin_v8;
EXPORT extern const struct nccl_net_9 ncclNetPlugin_v9;
EXPORT extern const struct nccl_net_10 ncclNetPlugin_v10;
EXPORT extern const struct nccl_net_11 ncclNetPlugin_v11;
EXPORT extern const struct nccl_net_12 ncclNetPlugin_v12;

const struct nccl_net_8 ncclNetPlugin_v8 = {.name = "Tern",
	.init = init_8,
	.devices = count_devices,
	.getProperties = properties_8,
	.listen = listen_8,
	.connect = connect_8,
	TRANSFERS(send_8, receive_8)};

const struct nccl_net_9 ncclNetPlugin_v9 = {.name = "Tern",
	.init = init_8,
	.devices = count_devices,
	.getProperties = properties_9,
	.listen = listen_8,
	.connect = connect_8,
	TRANSFERS(send_9, receive_9)};

const struct nccl_net_10 ncclNetPlugin_v10 = {.name = "Tern",
	.init = init_10,
	.devices = count_devices,
	.getProperties = properties_9,
	.listen = listen_8,
	.connect = connect_10,
	TRANSFERS(send_10, receive_10)};

const struct nccl_net_11 ncclNetPlugin_v11 = {.name = "Tern",
	.init = init_11,
	.devices = count_devices,
	.getProperties = properties_11,
	.listen = listen_11,
	.connect = connect_11,
	.finalize = finalize_11,
	TRANSFERS(send_10, receive_10)};

const struct nccl_net_12 ncclNetPlugin_v12 = {.name = "Tern",
	.init = init_11,
	.devices = count_devices,
	.getProperties = properties_12,
	.listen = listen_11,
	.connect = connect_11,
	.finalize = finalize_11,
	TRANSFERS(send_10, receive_10)};
