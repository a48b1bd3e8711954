/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of the simulated provider share. All state is in one struct
 * (the world) with one lock. Every function of the provider's table takes the lock first
 * (FAKE_ENTER), except for free_devices(), wc_status_str() and the three that describe a
 * device by its name, NUMA node and PCI address. The other functions declared in this
 * file expect that it is held.
 *
 *     fake.c    the world, the table, the count of open objects
 *     device.c  devices, protection domains, registrations, asynchronous events
 *     cm.c      event channels, ids and their events
 *     connect.c connecting and disconnecting
 *     addr.c    addresses and ports: bind, listen, resolve
 *     cq.c      completion queues and channels; completions, and their delay
 *     rq.c      receive queues, shared ones too
 *     qp.c      queue pairs: creation, posting, error state
 *     move.c    executes posted work requests
 *     faults.c  faults that tests inject
 */
#ifndef TERN_TESTS_FAKES_VERBS_VERBS_WORLD_H
#define TERN_TESTS_FAKES_VERBS_VERBS_WORLD_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/rng.h"
#include "tests/fakes/verbs/fake_verbs.h"

struct fake_device {
	struct ibv_context base;
	struct ibv_device device;
	unsigned index;
	bool removed;
	struct fake_device *former; /* the removed device that this one replaces */
	struct tern_list async;     /* list of struct fake_async: asynchronous events */
	bool async_readable;
	uint64_t reg_bytes;
	unsigned qp_count, srq_count;
};

struct fake_async {
	struct tern_list node;
	struct ibv_async_event event;
};

struct fake_pd {
	struct ibv_pd base;
	struct tern_list node;
	/* MRs (registrations), SRQs and QPs that use the protection domain. */
	unsigned use_count;
};

struct fake_mr {
	struct ibv_mr base;
	int access;
	/* Where the simulated device accesses the registered memory: base.addr itself, or
	 * for a dma-buf the place in `map`. */
	uint8_t *memory;
	void *map; /* mapping of a dma-buf; NULL: not a dma-buf */
	size_t map_bytes;
};

struct fake_comp_channel {
	struct ibv_comp_channel base;
	struct tern_list node;
	struct tern_list events; /* list of struct fake_cq_event */
	bool readable;
	unsigned cq_count;
};

struct fake_cq_event {
	struct tern_list node;
	struct fake_cq *cq;
};

enum fake_armed { FAKE_NOT_ARMED, FAKE_ARMED, FAKE_ARMED_SOLICITED };

struct fake_cq {
	struct ibv_cq base;
	struct tern_list node;
	/* Completions that a poll returns: list of struct fake_cqe. */
	struct tern_list entries;
	unsigned entry_count;
	/* Completions that still wait for their delay, in the lists of the queue
	 * pairs. */
	unsigned delayed_count;
	enum fake_armed armed;
	unsigned unacked_count;
	/* Users of the queue: each queue pair counts for its send and its receive
	 * queue. */
	unsigned qp_count;
};

enum fake_side { FAKE_SEND, FAKE_RECV };

struct fake_cqe {
	struct tern_list node; /* in cq->entries, or delayed in qp->delayed[side] */
	struct ibv_wc wc;
	struct fake_qp *qp; /* NULL: the queue pair was destroyed before the poll */
	/* If the entry is of a receive: the receive queue in which a poll frees an entry;
	 * NULL: that queue was destroyed. */
	struct fake_rq *rq;
	/* If the entry is of a send: a poll frees all send queue entries up to this index. */
	uint64_t sq_index;
	enum fake_side side;
	bool solicited;
	uint64_t due_step;
};

struct fake_recv {
	uint64_t wr_id;
	int sge_count;
	struct ibv_sge *sges;
};

/* A receive queue. An entry is in use from posting until its completion was polled. */
struct fake_rq {
	unsigned slot_count, sge_max;
	unsigned posted_count; /* receives that are ready for a message */
	/* Receives that a message has taken, and whose completion was not polled yet. */
	unsigned taken_count;
	/* Receives taken so far; the oldest posted one is slots[next % slot_count]. */
	uint64_t next;
	struct fake_recv *slots;
	struct ibv_sge *sges;
};

struct fake_srq {
	struct ibv_srq base;
	struct tern_list node;
	struct fake_rq rq;
	unsigned qp_count;
};

struct fake_send {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned flags;
	__be32 imm;
	uint64_t remote_addr;
	uint32_t rkey;
	int sge_count;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint64_t bytes, moved_bytes;
	bool done;
	enum ibv_wc_status status;
};

/*
 * A queue pair. Its send queue holds the requests with indices [sq_head, sq_tail). Those
 * before sq_next are completed, and a poll of their completions removes them; those from
 * sq_next on are being executed. Invariant: sq_head <= sq_next <= sq_tail <= sq_head +
 * cap.max_send_wr.
 */
struct fake_qp {
	struct ibv_qp base;
	struct tern_list node;   /* in the list of all QPs */
	struct tern_list active; /* in the list of QPs with work for a step */
	struct fake_id *id;
	/* The connected queue pair, whose `peer` is this one; or NULL. */
	struct fake_qp *peer;

	struct fake_send *sq;
	struct ibv_sge *sq_sges;
	uint8_t *sq_inline;
	struct ibv_qp_cap cap;
	bool sig_all;
	uint64_t sq_head, sq_next, sq_tail;

	struct fake_rq own_rq;
	struct fake_rq *rq; /* &own_rq, or the queue of the shared receive queue */
	/* A message of the peer is partly copied to `inbound`. */
	bool receiving;
	/* The receive request that the incoming message has taken. */
	struct fake_recv inbound;
	struct ibv_sge *inbound_sges;

	/* Completions that wait for their delay: of sends, of receives. */
	struct tern_list delayed[2];

	unsigned init_depth; /* READs that this end may have in flight */
	unsigned resp_depth; /* READs that the peer may have in flight */
	unsigned rnr_retry;  /* retries if the peer has no receive posted; 7: no limit */
	/* Step at which the peer became unreachable; 0: it can be reached. */
	uint64_t stall_since_step;
	/* Step since which the peer has no receive posted for the next message; 0: it has
	 * one. */
	uint64_t rnr_since_step;
	bool last_wqe_reported;
	bool fail_next; /* injected fault: the next request ends with RETRY_EXC_ERR */
	unsigned async_unacked_count;
};

enum fake_id_state {
	FAKE_ID_IDLE,
	FAKE_ID_BOUND,
	FAKE_ID_LISTEN,
	FAKE_ID_ADDR_QUERY,
	FAKE_ID_ADDR_RESOLVED,
	FAKE_ID_ROUTE_QUERY,
	FAKE_ID_ROUTE_RESOLVED,
	FAKE_ID_REQ_SENT,
	FAKE_ID_REQ_RECEIVED,
	FAKE_ID_REP_SENT,
	/* Active end: the response has come, and the user has not fetched its event. */
	FAKE_ID_REP_RECEIVED,
	FAKE_ID_CONNECTED,
	FAKE_ID_DISCONNECTED, /* final state, also after a rejection */
};

struct fake_id {
	struct rdma_cm_id base;
	/* In the list of ids that the user has, or gets with a connection request. */
	struct tern_list node;
	enum fake_id_state state;
	bool passive;
	bool reuse_addr;
	/* The id itself was bound to its port. False for an id that a listener accepted,
	 * which uses the listener's port. */
	bool owns_port;
	/* The connected id, whose `peer` is this one; or NULL. */
	struct fake_id *peer;
	struct rdma_conn_param conn; /* parameters of the call connect() or accept() */
	/* Source address that the id gets when the user fetches ADDR_RESOLVED. */
	struct sockaddr_storage resolved_from;
	/* The user got CONNECT_ERROR, so REJECTED and DISCONNECTED are no longer
	 * reported. */
	bool connect_error;
	bool established_lost; /* injected fault: its ESTABLISHED event is dropped */
	unsigned unacked_count;
	uint64_t last_due_step;
};

#define FAKE_PRIVATE_REQ_BYTES 56
#define FAKE_PRIVATE_REP_BYTES 196
#define FAKE_PRIVATE_REJ_BYTES 148

struct fake_channel {
	struct rdma_event_channel base;
	struct tern_list node;
	/* List of struct fake_event, with delayed and held ones. */
	struct tern_list events;
	bool readable;
	unsigned id_count, unacked_count;
};

struct fake_event {
	struct rdma_cm_event base;
	struct tern_list node;
	/* The id that counts the event as unacknowledged; for a connection request, the
	 * listener. */
	struct fake_id *owner;
	struct fake_channel *channel;
	uint64_t due_step;
	uint8_t private_data[FAKE_PRIVATE_REP_BYTES];
};

struct fake_world {
	pthread_mutex_t lock;
	bool ready;
	/* fork_ready: prepare_fork() has succeeded. registered: memory was registered at
	 * least once. */
	bool fork_ready, registered;
	struct fake_verbs_opts opts;
	struct tern_rng rng;
	uint64_t step;

	unsigned device_count;
	struct fake_device *devices[FAKE_VERBS_MAX_DEVICES];
	struct tern_list channels, ids, pds, cqs, comp_channels, srqs, qps;
	struct tern_list active; /* queue pairs with work */
	struct fake_mr **mrs;    /* registrations, indexed by key >> 8 */
	unsigned mr_slot_count, mr_count;
	unsigned armed_count; /* number of completion queues that are armed */
	unsigned unacked_async_count;
	uint32_t next_qp_num;
	uint32_t next_port;
	uint8_t next_key;
};
extern struct fake_world fake;

#define FAKE_DEVICE(context) tern_container_of(context, struct fake_device, base)
#define FAKE_PD(pd)          tern_container_of(pd, struct fake_pd, base)
#define FAKE_MR(mr)          tern_container_of(mr, struct fake_mr, base)
#define FAKE_CQ(cq)          tern_container_of(cq, struct fake_cq, base)
#define FAKE_SRQ(srq)        tern_container_of(srq, struct fake_srq, base)
#define FAKE_QP(qp)          tern_container_of(qp, struct fake_qp, base)
#define FAKE_ID(id)          tern_container_of(id, struct fake_id, base)
#define FAKE_CHANNEL(c)      tern_container_of(c, struct fake_channel, base)
#define FAKE_COMP_CHANNEL(c) tern_container_of(c, struct fake_comp_channel, base)

/* Holds the lock until the end of the scope. */
#define FAKE_LOCK()                                                                      \
	TERN_CLEANUP(fake_leave) struct fake_world *entered_ = fake_enter();             \
	(void)entered_
/* FAKE_LOCK; it also counts the call of the function `name`. `fault_` is the errno that a
 * test has injected for this call, or 0. */
#define FAKE_CALL(name)                                                                  \
	FAKE_LOCK();                                                                     \
	int fault_ = fake_fault(name)
/* FAKE_CALL; it also returns the injected errno, for functions that can fail. */
#define FAKE_ENTER(name)                                                                 \
	FAKE_CALL(name);                                                                 \
	if (fault_)                                                                      \
	return -fault_
/* FAKE_CALL for functions that cannot fail. */
#define FAKE_ENTER_ALWAYS(name)                                                          \
	FAKE_CALL(name);                                                                 \
	(void)fault_

/* Defined in fake.c: */
struct fake_world *fake_enter(void);
void fake_leave(struct fake_world **world);
void fake_step(void); /* moves data, and delivers completions whose delay is over */
/* Returns the step at which a new delay ends: a random one, at most `most_steps` steps
 * from now. */
uint64_t fake_delay(unsigned most_steps);
unsigned fake_round_up(unsigned count, unsigned most); /* to a power of two */
void fake_fd_set(int fd, bool *readable, bool want);

/* Defined in faults.c: */
/* Errno that a test has injected for this call, or 0. */
int fake_fault(const char *function);
void fake_faults_reset(void);
/* Negative errno with which a test makes reg_mr() refuse this memory, or 0. */
int fake_refusal(
	const struct fake_device *device, uintptr_t base, size_t bytes, int access);
bool fake_wire_is_cut(const struct fake_device *a, const struct fake_device *b);
bool fake_completions_held(enum fake_side side);
bool fake_wire_is_held(void);
bool fake_port_is_down(const struct fake_device *device);
bool fake_event_held(const struct fake_event *event);
/* True if a test wants this event lost: the caller must drop it. Counts the lost event,
 * so call it once for each event. */
bool fake_event_lost(struct fake_event *event);

/* Defined in device.c: */
void fake_devices_open(void);
void fake_device_renew(unsigned index);
void fake_devices_close(void);
struct fake_mr *fake_mr_find(uint32_t key);
void fake_async_raise(
	struct fake_device *device, enum ibv_event_type type, void *element);
void fake_async_forget(struct fake_device *device, const void *element);
int fake_get_devices(struct ibv_context ***out, int *count);
void fake_free_devices(struct ibv_context **devices);
int fake_query_device(struct ibv_context *device, struct ibv_device_attr *out);
int fake_query_port(struct ibv_context *device, uint8_t port, struct ibv_port_attr *out);
int fake_query_gid(
	struct ibv_context *device, uint8_t port, int index, union ibv_gid *out);
int fake_query_gid_type(
	struct ibv_context *device, uint8_t port, int index, char *out, size_t bytes);
const char *fake_device_name(struct ibv_context *device);
int fake_device_node(struct ibv_context *device);
void fake_device_pci(struct ibv_context *device, char *out, size_t bytes);
int fake_alloc_pd(struct ibv_context *device, struct ibv_pd **out);
int fake_dealloc_pd(struct ibv_pd *pd);
int fake_prepare_fork(void);
int fake_reg_mr(
	struct ibv_pd *pd, void *base, size_t bytes, int access, struct ibv_mr **out);
int fake_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address,
	int fd, int access, struct ibv_mr **out);
bool fake_has_peermem(void);
int fake_dereg_mr(struct ibv_mr *mr);
int fake_get_async_event(struct ibv_context *device, struct ibv_async_event *out);
void fake_ack_async_event(struct ibv_async_event *event);

/* Defined in cq.c: */
void fake_cqe_emit(struct fake_qp *qp, struct fake_cqe *cqe);
/* Returns true if it delivered a completion. */
bool fake_cqes_deliver(struct fake_qp *qp);
/* Ends the delay of the completions of received messages. */
void fake_cqes_hasten(struct fake_qp *qp);
/* Called when the queue pair is destroyed: its completions no longer refer to it. */
void fake_cqes_forget(struct fake_qp *qp);
void fake_cqes_forget_rq(const struct fake_rq *rq);
int fake_create_comp_channel(struct ibv_context *device, struct ibv_comp_channel **out);
int fake_destroy_comp_channel(struct ibv_comp_channel *channel);
int fake_create_cq(struct ibv_context *device, int entries,
	struct ibv_comp_channel *channel, struct ibv_cq **out);
int fake_resize_cq(struct ibv_cq *cq, int entries);
int fake_destroy_cq(struct ibv_cq *cq);
int fake_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out);
void fake_ack_cq_events(struct ibv_cq *cq, unsigned count);
int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wcs);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* Defined in rq.c: */
void fake_rq_init(struct fake_rq *rq, unsigned slot_count, unsigned sge_max);
void fake_rq_fini(struct fake_rq *rq);
/* Takes the oldest posted receive, with copies of its SGEs. False: no receive is
 * posted. */
bool fake_rq_take(struct fake_rq *rq, struct fake_recv *out);
int fake_sges_check(const struct ibv_pd *pd, const struct ibv_sge *sges, int count);
int fake_create_srq(
	struct ibv_pd *pd, struct ibv_srq_init_attr *attr, struct ibv_srq **out);
int fake_destroy_srq(struct ibv_srq *srq);
int fake_post_recv(
	struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int fake_post_srq_recv(
	struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

/* Defined in qp.c: */
void fake_qp_activate(struct fake_qp *qp);
/* Enters the error state, and flushes all requests, except those in a shared receive
 * queue. */
void fake_qp_error(struct fake_qp *qp);
/* Flushes requests that were posted in the error state. */
void fake_qp_flush(struct fake_qp *qp);
void fake_qp_tell_last(struct fake_qp *qp);
void fake_qp_connect(struct fake_qp *a, struct fake_qp *b);
/* Completes the send request at index sq_next. */
void fake_send_complete(struct fake_qp *qp, enum ibv_wc_status status);
void fake_recv_complete(struct fake_qp *qp, const struct fake_recv *recv,
	struct ibv_wc wc, bool solicited);
int fake_create_qp(
	struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
void fake_destroy_qp(struct rdma_cm_id *id);
int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int fake_post_send(
	struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);

/* Defined in move.c: */
/* `rush`: without stalls. Returns true if data moved, a request failed or a completion
 * was delivered. */
bool fake_qp_step(struct fake_qp *qp, bool rush);

/* Defined in cm.c: */
struct fake_event *fake_event_new(struct fake_id *id, enum rdma_cm_event_type type);
/* Queues the event in its id's channel. Drops it instead if a test wants it lost. */
void fake_event_post(struct fake_event *event);
void fake_id_tell(struct fake_id *id, enum rdma_cm_event_type type, int status);
void fake_events_drop(struct fake_id *id);
struct fake_id *fake_id_new(struct fake_channel *channel, void *context);
bool fake_id_has_events(const struct fake_id *id);
void fake_channel_update(struct fake_channel *channel);
int fake_create_event_channel(struct rdma_event_channel **out);
void fake_destroy_event_channel(struct rdma_event_channel *channel);
int fake_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **out);
int fake_ack_cm_event(struct rdma_cm_event *event);
int fake_create_id(
	struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context);
int fake_destroy_id(struct rdma_cm_id *id);
void fake_retire_id(struct rdma_cm_id *id);

/* Defined in connect.c: */
bool fake_id_fetches(struct fake_event *event);
/* Separates the id from its peer, as destroying the id does. Unless the wire between them
 * is cut or one of them is disconnected already, the peer gets DISCONNECTED, or REJECTED
 * if the connection was not established yet. */
void fake_id_cut(struct fake_id *id);
int fake_connect(struct rdma_cm_id *id, struct rdma_conn_param *param);
int fake_accept(struct rdma_cm_id *id, struct rdma_conn_param *param);
int fake_reject(struct rdma_cm_id *id, const void *data, uint8_t bytes);
int fake_disconnect(struct rdma_cm_id *id);
int fake_notify(struct rdma_cm_id *id, enum ibv_event_type event);

/* Defined in addr.c: */
struct fake_device *fake_addr_device(const struct sockaddr *addr);
void fake_addr_fetched(struct fake_id *id, enum rdma_cm_event_type type);
struct fake_id *fake_addr_listener(const struct sockaddr *addr);
int fake_set_option(
	struct rdma_cm_id *id, int level, int name, void *value, size_t bytes);
int fake_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
int fake_listen(struct rdma_cm_id *id, int backlog);
int fake_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
	int timeout_ms);
int fake_resolve_route(struct rdma_cm_id *id, int timeout_ms);

#endif
