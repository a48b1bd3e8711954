/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libibverbs and librdmacm that the verbs fabric calls, as a table.
 *
 * The fabric itself is part of the core and needs only the headers of rdma-core. The
 * functions come from Tern's own module (module.c), which is linked with the libraries
 * and loaded when the fabric is opened. So the same program also starts on a machine
 * without them. A test replaces the module by simulated devices (tests/fakes/verbs).
 *
 * Every function that can fail returns 0 or a negative errno. The inline functions of
 * librdmacm and libibverbs (ibv_post_send, ibv_post_recv, ibv_post_srq_recv, ibv_poll_cq,
 * ibv_req_notify_cq) call ibv_context.ops, which each provider fills, and are not in the
 * table.
 */
#ifndef TERN_TRANSPORT_VERBS_API_H
#define TERN_TRANSPORT_VERBS_API_H

#include <stdbool.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define TERN_VERBS_API_VERSION 5
#define TERN_VERBS_MODULE      "tern-verbs.so"
#define TERN_VERBS_SYMBOL      "tern_verbs_api"

struct tern_verbs_api {
	int version; /* TERN_VERBS_API_VERSION; module and program must have the same */

	/*
	 * Makes fork() safe for registered memory: must be called before anything is
	 * registered. Without it, a fork() of this process could replace registered pages
	 * by copies, which the device does not see. Linux 5.12 and later copy such pages
	 * for the child, so there, with rdma-core 35 or later, the function does nothing.
	 * -EINVAL: something in this process has registered memory before; -ENOSYS: the
	 * kernel cannot do it.
	 */
	int (*prepare_fork)(void);

	/* Connections: each function except retire_id calls rdma_NAME(3) of librdmacm.
	 * Event channels are non-blocking; destroy_event_channel may destroy them later,
	 * after their retired ids. */
	int (*create_event_channel)(struct rdma_event_channel **out);
	void (*destroy_event_channel)(struct rdma_event_channel *channel);
	int (*get_cm_event)(
		struct rdma_event_channel *channel, struct rdma_cm_event **out);
	int (*ack_cm_event)(struct rdma_cm_event *event);
	int (*create_id)(struct rdma_event_channel *channel, struct rdma_cm_id **out,
		void *context); /* port space RDMA_PS_TCP */
	int (*destroy_id)(struct rdma_cm_id *id);
	/* As destroy_id, for an id that may have been connected. Destroying a connected
	 * one may block for a minute, so another thread does it. After this call,
	 * get_cm_event() reports no more events of the id. */
	void (*retire_id)(struct rdma_cm_id *id);
	int (*set_option)(
		struct rdma_cm_id *id, int level, int name, void *value, size_t bytes);
	int (*bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr);
	int (*listen)(struct rdma_cm_id *id, int backlog);
	int (*resolve_addr)(struct rdma_cm_id *id, struct sockaddr *from,
		struct sockaddr *to, int timeout_ms); /* from may be NULL */
	int (*resolve_route)(struct rdma_cm_id *id, int timeout_ms);
	/* On return attr->cap contains the limits that the device has granted. */
	int (*create_qp)(
		struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	void (*destroy_qp)(struct rdma_cm_id *id);
	int (*connect)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*accept)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*reject)(struct rdma_cm_id *id, const void *data, uint8_t bytes);
	int (*disconnect)(struct rdma_cm_id *id);
	int (*notify)(struct rdma_cm_id *id, enum ibv_event_type event);

	/* Returns all devices of this machine that librdmacm knows, opened. The caller
	 * frees the array *out with free_devices(); the devices stay open. -ENODEV: there
	 * is none. */
	int (*get_devices)(struct ibv_context ***out, int *count);
	void (*free_devices)(struct ibv_context **devices);
	int (*query_device)(struct ibv_context *device, struct ibv_device_attr *out);
	int (*query_port)(
		struct ibv_context *device, uint8_t port, struct ibv_port_attr *out);
	int (*query_gid)(
		struct ibv_context *device, uint8_t port, int index, union ibv_gid *out);
	/* Type of a GID as text: "IB", "RoCE v1", "RoCE v2" or "unknown". */
	int (*query_gid_type)(struct ibv_context *device, uint8_t port, int index,
		char *out, size_t bytes);
	const char *(*device_name)(struct ibv_context *device);
	/* NUMA node of the device; -1: unknown, or the machine has only one. */
	int (*device_node)(struct ibv_context *device);
	/* PCI address of the device, "0000:3b:00.0"; "": it has none. */
	void (*device_pci)(struct ibv_context *device, char *out, size_t bytes);

	/* Resources: each function calls ibv_NAME(3) of libibverbs. */
	int (*alloc_pd)(struct ibv_context *device, struct ibv_pd **out);
	int (*dealloc_pd)(struct ibv_pd *pd);
	int (*reg_mr)(struct ibv_pd *pd, void *base, size_t bytes, int access,
		struct ibv_mr **out);
	/* As ibv_reg_dmabuf_mr(3). -ENOSYS: rdma-core is older than version 34. */
	int (*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes,
		uint64_t address, int fd, int access, struct ibv_mr **out);
	/* True if the kernel module nvidia-peermem, or nv_peer_mem before it, is loaded,
	 * so that reg_mr accepts GPU addresses. */
	bool (*has_peermem)(void);
	int (*dereg_mr)(struct ibv_mr *mr);
	int (*create_comp_channel)(
		struct ibv_context *device, struct ibv_comp_channel **out);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	int (*create_cq)(struct ibv_context *device, int entries,
		struct ibv_comp_channel *channel, struct ibv_cq **out);
	int (*resize_cq)(struct ibv_cq *cq, int entries);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **out);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned count);
	int (*create_srq)(
		struct ibv_pd *pd, struct ibv_srq_init_attr *attr, struct ibv_srq **out);
	int (*destroy_srq)(struct ibv_srq *srq);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*get_async_event)(struct ibv_context *device, struct ibv_async_event *out);
	void (*ack_async_event)(struct ibv_async_event *event);
	const char *(*wc_status_str)(enum ibv_wc_status status);
};

/* Loads the module tern-verbs.so, which then stays loaded. -ENOSYS: the module or a
 * library that it needs is missing, or it belongs to another build of Tern; *why is a
 * sentence about it (static storage). */
int tern_verbs_load(const struct tern_verbs_api **out, const char **why);

#endif
