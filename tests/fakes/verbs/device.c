/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated devices and their resources: protection domains, memory registrations,
 * asynchronous events. Devices exist from one reset to the next, as librdmacm keeps them
 * open.
 *
 * A memory key (lkey, rkey) consists of a table index and a byte that changes with each
 * registration, so that the key of deregistered memory does not match the next
 * registration at that index.
 */
#include "tests/fakes/verbs/verbs_world.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#define PAGE 4096u

static struct fake_device *device_new(unsigned index)
{
	struct fake_device *device = calloc(1, sizeof(*device));

	tern_assert(device);
	device->index = index;
	device->device.node_type = IBV_NODE_CA;
	device->device.transport_type =
		fake.opts.iwarp & 1u << index ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	snprintf(device->device.name, sizeof(device->device.name), "fake_%u", index);
	device->base.device = &device->device;
	device->base.cmd_fd = -1;
	device->base.async_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	tern_assert(device->base.async_fd >= 0);
	device->base.num_comp_vectors = 1;
	device->base.ops.poll_cq = fake_poll_cq;
	device->base.ops.req_notify_cq = fake_req_notify_cq;
	device->base.ops.post_send = fake_post_send;
	device->base.ops.post_recv = fake_post_recv;
	device->base.ops.post_srq_recv = fake_post_srq_recv;
	tern_list_init(&device->async);
	return device;
}

void fake_devices_open(void)
{
	fake.device_count = fake.opts.device_count;
	for (unsigned i = 0; i < fake.device_count; i++)
		fake.devices[i] = device_new(i);
}

void fake_device_renew(unsigned index)
{
	struct fake_device *device = device_new(index);

	device->former = fake.devices[index];
	fake.devices[index] = device;
}

static void device_free(struct fake_device *device)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&device->async)))
		free(tern_list_entry(n, struct fake_async, node));
	close(device->base.async_fd);
	free(device);
}

void fake_devices_close(void)
{
	for (unsigned i = 0; i < fake.device_count; i++) {
		while (fake.devices[i]) {
			struct fake_device *former = fake.devices[i]->former;

			device_free(fake.devices[i]);
			fake.devices[i] = former;
		}
	}
	fake.device_count = 0;
	free(fake.mrs);
	fake.mrs = NULL;
	fake.mr_slot_count = 0;
}

int fake_get_devices(struct ibv_context ***out, int *count)
{
	FAKE_ENTER("get_devices");
	*out = NULL;
	*count = 0;
	struct ibv_context **list =
		calloc(fake.device_count + 1, sizeof(struct ibv_context *));
	tern_assert(list);
	for (unsigned i = 0; i < fake.device_count; i++) {
		if (!fake.devices[i]->removed)
			list[(*count)++] = &fake.devices[i]->base;
	}
	if (*count > 0) {
		*out = list;
		return 0;
	}
	free(list);
	return -ENODEV;
}

void fake_free_devices(struct ibv_context **devices)
{
	free(devices);
}

int fake_query_device(struct ibv_context *device, struct ibv_device_attr *out)
{
	FAKE_ENTER("query_device");
	if (FAKE_DEVICE(device)->removed)
		return -EIO;
	memset(out, 0, sizeof(*out));
	snprintf(out->fw_ver, sizeof(out->fw_ver), "0.1");
	out->node_guid = htobe64(0x7e52000000000000u + FAKE_DEVICE(device)->index);
	out->max_mr_size =
		fake.opts.reg_limit_bytes ? fake.opts.reg_limit_bytes : UINT64_MAX;
	out->page_size_cap = 4096;
	out->max_qp = fake.opts.max_qp;
	out->max_qp_wr = fake.opts.max_qp_wr;
	out->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN;
	out->max_sge = out->max_sge_rd = out->max_srq_sge = fake.opts.max_sge;
	out->max_cq = 1 << 16;
	out->max_cqe = fake.opts.max_cqe;
	out->max_mr = 1 << 20;
	out->max_pd = 1 << 16;
	out->max_qp_rd_atom = out->max_qp_init_rd_atom = fake.opts.max_rd_atomic;
	out->max_res_rd_atom = fake.opts.max_rd_atomic * fake.opts.max_qp;
	out->atomic_cap = IBV_ATOMIC_NONE;
	out->max_srq = fake.opts.max_srq;
	out->max_srq_wr = fake.opts.max_srq_wr;
	out->max_pkeys = 1;
	out->phys_port_cnt = 1;
	return 0;
}

static unsigned bit_of(const struct ibv_context *device)
{
	return 1u << FAKE_DEVICE(device)->index;
}

int fake_query_port(struct ibv_context *device, uint8_t port, struct ibv_port_attr *out)
{
	FAKE_ENTER("query_port");
	if (port != 1)
		return -EINVAL;
	memset(out, 0, sizeof(*out));
	out->state =
		fake_port_is_down(FAKE_DEVICE(device)) ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	out->max_mtu = out->active_mtu = IBV_MTU_4096;
	out->gid_tbl_len = 2;
	out->max_msg_sz =
		(uint32_t)TERN_MIN(fake.opts.max_msg_bytes, (uint64_t)UINT32_MAX);
	out->pkey_tbl_len = 1;
	out->active_width = 2;  /* link width 4X */
	out->active_speed = 32; /* EDR: 100 Gb/s */
	out->phys_state = 5;    /* LinkUp */
	out->link_layer = fake.opts.infiniband & bit_of(device)
				  ? IBV_LINK_LAYER_INFINIBAND
				  : IBV_LINK_LAYER_ETHERNET;
	return 0;
}

/* Both entries of the GID table contain the address 10.7.0.(index of the device + 1): one
 * for RoCE v1, one for RoCE v2. GIDs of InfiniBand (a subnet prefix and a GUID) and of iWARP
 * (a MAC address) contain none, but look like IPv6 addresses. */
int fake_query_gid(
	struct ibv_context *device, uint8_t port, int index, union ibv_gid *out)
{
	FAKE_ENTER("query_gid");
	if (port != 1 || index < 0 || index > 1)
		return -EINVAL;
	memset(out, 0, sizeof(*out));
	if ((fake.opts.infiniband | fake.opts.iwarp) & bit_of(device)) {
		out->raw[0] = 0x2e;
		out->raw[5] = (uint8_t)(FAKE_DEVICE(device)->index + 1);
		return 0;
	}
	out->raw[10] = out->raw[11] = 0xff;
	out->raw[12] = 10;
	out->raw[13] = 7;
	out->raw[15] = (uint8_t)(FAKE_DEVICE(device)->index + 1);
	return 0;
}

int fake_query_gid_type(
	struct ibv_context *device, uint8_t port, int index, char *out, size_t bytes)
{
	FAKE_ENTER("query_gid_type");
	(void)device;
	if (port != 1 || index < 0 || index > 1)
		return -EINVAL;
	snprintf(out, bytes, "RoCE v%d", index + 1);
	return 0;
}

const char *fake_device_name(struct ibv_context *device)
{
	return device->device->name;
}

int fake_device_node(struct ibv_context *device)
{
	return fake.opts.nodes[FAKE_DEVICE(device)->index];
}

void fake_device_pci(struct ibv_context *device, char *out, size_t bytes)
{
	snprintf(out, bytes, "0000:%02x:00.0", FAKE_DEVICE(device)->index + 1);
}

int fake_alloc_pd(struct ibv_context *device, struct ibv_pd **out)
{
	FAKE_ENTER("alloc_pd");
	if (FAKE_DEVICE(device)->removed)
		return -EIO;
	struct fake_pd *pd = calloc(1, sizeof(*pd));
	tern_assert(pd);
	pd->base.context = device;
	tern_list_push(&fake.pds, &pd->node);
	*out = &pd->base;
	return 0;
}

int fake_dealloc_pd(struct ibv_pd *base)
{
	struct fake_pd *pd = FAKE_PD(base);

	FAKE_ENTER("dealloc_pd");
	if (pd->use_count > 0)
		return -EBUSY;
	tern_list_remove(&pd->node);
	free(pd);
	return 0;
}

static unsigned mr_slot(void)
{
	for (unsigned i = 1; i < fake.mr_slot_count; i++) {
		if (!fake.mrs[i])
			return i;
	}
	/* Index 0 stays unused, so that no key is 0 or close to 0. */
	unsigned slot = TERN_MAX(fake.mr_slot_count, 1u);
	fake.mr_slot_count = slot * 2;
	fake.mrs = realloc(fake.mrs, fake.mr_slot_count * sizeof(struct fake_mr *));
	tern_assert(fake.mrs);
	for (unsigned i = slot == 1 ? 0 : slot; i < fake.mr_slot_count; i++)
		fake.mrs[i] = NULL;
	return slot;
}

/* 0, or the negative errno with which the device refuses to register memory of this size
 * with this access. */
static int check_mr(const struct fake_device *device, size_t bytes, int access)
{
	if (device->removed)
		return -EIO;
	/* The verbs specification requires local write access for any remote write
	 * access. */
	if (bytes == 0 ||
		((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
			!(access & IBV_ACCESS_LOCAL_WRITE)))
		return -EINVAL;
	if (fake.opts.reg_limit_bytes &&
		bytes > fake.opts.reg_limit_bytes - device->reg_bytes)
		return -ENOMEM;
	return 0;
}

static struct fake_mr *mr_new(
	struct ibv_pd *pd, uint64_t address, size_t bytes, int access)
{
	struct fake_mr *mr = calloc(1, sizeof(*mr));
	unsigned slot = mr_slot();
	uint32_t key = (uint32_t)slot << 8 | ++fake.next_key;

	tern_assert(mr);
	mr->base = (struct ibv_mr){.context = pd->context,
		.pd = pd,
		.addr = (void *)(uintptr_t)address,
		.length = bytes,
		.handle = slot,
		.lkey = key,
		.rkey = key};
	mr->memory = mr->base.addr;
	mr->access = access;
	fake.mrs[slot] = mr;
	fake.registered = true;
	fake.mr_count++;
	FAKE_DEVICE(pd->context)->reg_bytes += bytes;
	FAKE_PD(pd)->use_count++;
	return mr;
}

int fake_prepare_fork(void)
{
	FAKE_ENTER("prepare_fork");
	if (!fake.fork_ready && fake.registered)
		return -EINVAL;
	fake.fork_ready = true;
	return 0;
}

int fake_reg_mr(
	struct ibv_pd *pd, void *base, size_t bytes, int access, struct ibv_mr **out)
{
	struct fake_device *device = FAKE_DEVICE(pd->context);

	FAKE_ENTER("reg_mr");
	int r = check_mr(device, bytes, access);

	*out = NULL;
	if (!r)
		r = fake_refusal(device, (uintptr_t)base, bytes, access);
	if (r)
		return r;
	*out = &mr_new(pd, (uintptr_t)base, bytes, access)->base;
	return 0;
}

int fake_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address,
	int fd, int access, struct ibv_mr **out)
{
	struct fake_device *device = FAKE_DEVICE(pd->context);

	FAKE_ENTER("reg_dmabuf_mr");
	int r = check_mr(device, bytes, access);

	*out = NULL;
	if (!r && (fake.opts.no_dma_buf & 1u << device->index))
		r = -EOPNOTSUPP;
	/* As in Linux: `offset` and `address` must be the same modulo the page size. */
	if (!r && (offset ^ address) % PAGE)
		r = -EINVAL;
	if (r)
		return r;
	void *map = mmap(NULL, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	struct fake_mr *mr = mr_new(pd, address, bytes, access);
	mr->map = map;
	mr->map_bytes = offset + bytes;
	mr->memory = (uint8_t *)map + offset;
	*out = &mr->base;
	return 0;
}

bool fake_has_peermem(void)
{
	FAKE_ENTER_ALWAYS("has_peermem");
	return fake.opts.peermem;
}

int fake_dereg_mr(struct ibv_mr *base)
{
	struct fake_mr *mr = FAKE_MR(base);

	FAKE_ENTER("dereg_mr");
	tern_assert(fake.mrs[base->handle] == mr);
	fake.mrs[base->handle] = NULL;
	fake.mr_count--;
	FAKE_DEVICE(base->context)->reg_bytes -= base->length;
	FAKE_PD(base->pd)->use_count--;
	if (mr->map)
		munmap(mr->map, mr->map_bytes);
	free(mr);
	return 0;
}

struct fake_mr *fake_mr_find(uint32_t key)
{
	struct fake_mr *mr = key >> 8 < fake.mr_slot_count ? fake.mrs[key >> 8] : NULL;

	return mr && mr->base.rkey == key ? mr : NULL;
}

static bool is_of_qp(enum ibv_event_type type)
{
	return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
	       type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_QP_LAST_WQE_REACHED ||
	       type == IBV_EVENT_COMM_EST;
}

/* Raises an asynchronous event. `element`: the queue pair concerned, or NULL for an event
 * of the whole device. */
void fake_async_raise(struct fake_device *device, enum ibv_event_type type, void *element)
{
	struct fake_async *async = calloc(1, sizeof(*async));

	tern_assert(async && is_of_qp(type) == (element != NULL));
	async->event.event_type = type;
	async->event.element.qp = element;
	tern_list_push(&device->async, &async->node);
	fake_fd_set(device->base.async_fd, &device->async_readable, true);
}

void fake_async_forget(struct fake_device *device, const void *element)
{
	tern_list_for_each_safe (n, &device->async) {
		struct fake_async *async = tern_list_entry(n, struct fake_async, node);

		if (async->event.element.qp == element) {
			tern_list_remove(n);
			free(async);
		}
	}
	fake_fd_set(device->base.async_fd, &device->async_readable,
		!tern_list_empty(&device->async));
}

int fake_get_async_event(struct ibv_context *context, struct ibv_async_event *out)
{
	struct fake_device *device = FAKE_DEVICE(context);

	FAKE_ENTER("get_async_event");
	fake_step();
	struct tern_list *n = tern_list_pop(&device->async);
	if (!n)
		return -EAGAIN;
	struct fake_async *async = tern_list_entry(n, struct fake_async, node);
	*out = async->event;
	free(async);
	if (is_of_qp(out->event_type))
		FAKE_QP(out->element.qp)->async_unacked_count++;
	fake.unacked_async_count++;
	fake_fd_set(context->async_fd, &device->async_readable,
		!tern_list_empty(&device->async));
	return 0;
}

void fake_ack_async_event(struct ibv_async_event *event)
{
	FAKE_ENTER_ALWAYS("ack_async_event");
	tern_assert(fake.unacked_async_count > 0);
	fake.unacked_async_count--;
	if (is_of_qp(event->event_type)) {
		struct fake_qp *qp = FAKE_QP(event->element.qp);

		tern_assert(qp->async_unacked_count > 0);
		qp->async_unacked_count--;
	}
}
