/* SPDX-License-Identifier: Apache-2.0 */
/* The module tern-verbs.so, which alone is linked with libibverbs and librdmacm. It
 * converts their three ways of reporting errors (-1 and errno, errno, NULL) to a negative
 * errno. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/verbs/api.h"
#include "transport/verbs/retire.h"

static int from_rdma(int r)
{
	return r ? -errno : 0;
}

/* Converts the result of ibv functions, which return a positive errno, or in some cases
 * -1 and set errno. */
static int from_ibv(int r)
{
	if (r == 0)
		return 0;
	return r == -1 ? -errno : -r;
}

#define FROM_POINTER(out, call) ((*(out) = (call)) ? 0 : errno ? -errno : -ENOMEM)

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

#define FORK_UNNEEDED 2 /* IBV_FORK_UNNEEDED of rdma-core 35 and later */

/* ibv_is_fork_initialized() reports whether the kernel makes ibv_fork_init() unnecessary.
 * It is looked up at run time, so that the module can also be loaded with an older
 * rdma-core. */
static int prepare_fork(void)
{
	int (*status)(void);

	*(void **)&status = dlsym(RTLD_DEFAULT, "ibv_is_fork_initialized");
	if (status && status() == FORK_UNNEEDED)
		return 0;
	return from_ibv(ibv_fork_init());
}

static int create_event_channel(struct rdma_event_channel **out)
{
	int r = FROM_POINTER(out, rdma_create_event_channel());

	return r ? r : set_nonblocking((*out)->fd);
}

static void destroy_event_channel(struct rdma_event_channel *channel)
{
	verbs_retire_channel(channel);
}

static int get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **out)
{
	int r;

	while ((r = from_rdma(rdma_get_cm_event(channel, out))) == 0 &&
		verbs_is_retired((*out)->id))
		rdma_ack_cm_event(*out);
	return r;
}

static int ack_cm_event(struct rdma_cm_event *event)
{
	return from_rdma(rdma_ack_cm_event(event));
}

static int create_id(
	struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context)
{
	return from_rdma(rdma_create_id(channel, out, context, RDMA_PS_TCP));
}

static int destroy_id(struct rdma_cm_id *id)
{
	return from_rdma(rdma_destroy_id(id));
}

static void retire_id(struct rdma_cm_id *id)
{
	verbs_retire_id(id);
}

static int set_option(
	struct rdma_cm_id *id, int level, int name, void *value, size_t bytes)
{
	return from_rdma(rdma_set_option(id, level, name, value, bytes));
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	return from_rdma(rdma_bind_addr(id, addr));
}

static int listen_id(struct rdma_cm_id *id, int backlog)
{
	return from_rdma(rdma_listen(id, backlog));
}

static int resolve_addr(
	struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout_ms)
{
	return from_rdma(rdma_resolve_addr(id, from, to, timeout_ms));
}

static int resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	return from_rdma(rdma_resolve_route(id, timeout_ms));
}

static int create_qp(
	struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return from_rdma(rdma_create_qp(id, pd, attr));
}

static void destroy_qp(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
}

static int connect_id(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return from_rdma(rdma_connect(id, param));
}

static int accept_id(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return from_rdma(rdma_accept(id, param));
}

static int reject_id(struct rdma_cm_id *id, const void *data, uint8_t bytes)
{
	return from_rdma(rdma_reject(id, data, bytes));
}

static int disconnect_id(struct rdma_cm_id *id)
{
	return from_rdma(rdma_disconnect(id));
}

static int notify_id(struct rdma_cm_id *id, enum ibv_event_type event)
{
	return from_rdma(rdma_notify(id, event));
}

static int get_devices(struct ibv_context ***out, int *count)
{
	errno = 0;
	*out = rdma_get_devices(count);
	if (*out && *count > 0) {
		for (int i = 0; i < *count; i++)
			set_nonblocking((*out)[i]->async_fd);
		return 0;
	}
	if (*out)
		rdma_free_devices(*out);
	*out = NULL;
	return errno ? -errno : -ENODEV;
}

static void free_devices(struct ibv_context **devices)
{
	rdma_free_devices(devices);
}

static int query_device(struct ibv_context *device, struct ibv_device_attr *out)
{
	return from_ibv(ibv_query_device(device, out));
}

static int query_port(struct ibv_context *device, uint8_t port, struct ibv_port_attr *out)
{
	return from_ibv(ibv_query_port(device, port, out));
}

static int query_gid(
	struct ibv_context *device, uint8_t port, int index, union ibv_gid *out)
{
	return from_ibv(ibv_query_gid(device, port, index, out));
}

static int query_gid_type(
	struct ibv_context *device, uint8_t port, int index, char *out, size_t bytes)
{
	struct ibv_gid_entry entry;
	static const char *const names[] = {
		[IBV_GID_TYPE_IB] = "IB",
		[IBV_GID_TYPE_ROCE_V1] = "RoCE v1",
		[IBV_GID_TYPE_ROCE_V2] = "RoCE v2",
	};
	int r = from_ibv(ibv_query_gid_ex(device, port, (uint32_t)index, &entry, 0));

	if (r)
		return r;
	snprintf(out, bytes, "%s",
		entry.gid_type < sizeof(names) / sizeof(names[0]) ? names[entry.gid_type]
								  : "unknown");
	return 0;
}

static const char *device_name(struct ibv_context *device)
{
	return ibv_get_device_name(device->device);
}

static int device_node(struct ibv_context *device)
{
	char path[sizeof(device->device->ibdev_path) + 32];
	FILE *file;
	int node;

	snprintf(path, sizeof(path), "%s/device/numa_node", device->device->ibdev_path);
	file = fopen(path, "re");
	if (!file)
		return -1;
	if (fscanf(file, "%d", &node) != 1)
		node = -1;
	fclose(file);
	return node;
}

static void device_pci(struct ibv_context *device, char *out, size_t bytes)
{
	char path[sizeof(device->device->ibdev_path) + 32], target[256];
	const char *name;
	ssize_t n;

	*out = '\0';
	snprintf(path, sizeof(path), "%s/device", device->device->ibdev_path);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return;
	target[n] = '\0';
	name = strrchr(target, '/');
	name = name ? name + 1 : target;
	if (strchr(name, ':')) /* a name without ':' is not a PCI address */
		snprintf(out, bytes, "%s", name);
}

static int alloc_pd(struct ibv_context *device, struct ibv_pd **out)
{
	return FROM_POINTER(out, ibv_alloc_pd(device));
}

static int dealloc_pd(struct ibv_pd *pd)
{
	return from_ibv(ibv_dealloc_pd(pd));
}

static int reg_mr(
	struct ibv_pd *pd, void *base, size_t bytes, int access, struct ibv_mr **out)
{
	errno = 0;
	return FROM_POINTER(out, ibv_reg_mr(pd, base, bytes, access));
}

/* ibv_reg_dmabuf_mr() is looked up at run time, so that the module can also be loaded
 * with an rdma-core that lacks it. */
static int reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes,
	uint64_t address, int fd, int access, struct ibv_mr **out)
{
	struct ibv_mr *(*call)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);

	*(void **)&call = dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr");
	if (!call)
		return -ENOSYS;
	errno = 0;
	return FROM_POINTER(out, call(pd, offset, bytes, address, fd, access));
}

static bool has_peermem(void)
{
	return access("/sys/module/nvidia_peermem", F_OK) == 0 ||
	       access("/sys/module/nv_peer_mem", F_OK) == 0;
}

static int dereg_mr(struct ibv_mr *mr)
{
	return from_ibv(ibv_dereg_mr(mr));
}

static int create_comp_channel(struct ibv_context *device, struct ibv_comp_channel **out)
{
	int r = FROM_POINTER(out, ibv_create_comp_channel(device));

	return r ? r : set_nonblocking((*out)->fd);
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	return from_ibv(ibv_destroy_comp_channel(channel));
}

static int create_cq(struct ibv_context *device, int entries,
	struct ibv_comp_channel *channel, struct ibv_cq **out)
{
	errno = 0;
	return FROM_POINTER(out, ibv_create_cq(device, entries, NULL, channel, 0));
}

static int resize_cq(struct ibv_cq *cq, int entries)
{
	return from_ibv(ibv_resize_cq(cq, entries));
}

static int destroy_cq(struct ibv_cq *cq)
{
	return from_ibv(ibv_destroy_cq(cq));
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out)
{
	void *context;

	return ibv_get_cq_event(channel, out, &context) ? -errno : 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned count)
{
	ibv_ack_cq_events(cq, count);
}

static int create_srq(
	struct ibv_pd *pd, struct ibv_srq_init_attr *attr, struct ibv_srq **out)
{
	errno = 0;
	return FROM_POINTER(out, ibv_create_srq(pd, attr));
}

static int destroy_srq(struct ibv_srq *srq)
{
	return from_ibv(ibv_destroy_srq(srq));
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return from_ibv(ibv_modify_qp(qp, attr, mask));
}

static int get_async_event(struct ibv_context *device, struct ibv_async_event *out)
{
	return ibv_get_async_event(device, out) ? -errno : 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	ibv_ack_async_event(event);
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	return ibv_wc_status_str(status);
}

__attribute__((visibility("default"))) extern const struct tern_verbs_api tern_verbs_api;
const struct tern_verbs_api tern_verbs_api = {
	.version = TERN_VERBS_API_VERSION,
	.prepare_fork = prepare_fork,
	.create_event_channel = create_event_channel,
	.destroy_event_channel = destroy_event_channel,
	.get_cm_event = get_cm_event,
	.ack_cm_event = ack_cm_event,
	.create_id = create_id,
	.destroy_id = destroy_id,
	.retire_id = retire_id,
	.set_option = set_option,
	.bind_addr = bind_addr,
	.listen = listen_id,
	.resolve_addr = resolve_addr,
	.resolve_route = resolve_route,
	.create_qp = create_qp,
	.destroy_qp = destroy_qp,
	.connect = connect_id,
	.accept = accept_id,
	.reject = reject_id,
	.disconnect = disconnect_id,
	.notify = notify_id,
	.get_devices = get_devices,
	.free_devices = free_devices,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_gid_type = query_gid_type,
	.device_name = device_name,
	.device_node = device_node,
	.device_pci = device_pci,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.has_peermem = has_peermem,
	.dereg_mr = dereg_mr,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.create_cq = create_cq,
	.resize_cq = resize_cq,
	.destroy_cq = destroy_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.create_srq = create_srq,
	.destroy_srq = destroy_srq,
	.modify_qp = modify_qp,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
	.wc_status_str = wc_status_str,
};
