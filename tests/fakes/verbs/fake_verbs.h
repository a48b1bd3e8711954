/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated RDMA machine: libibverbs and librdmacm behind `struct tern_verbs_api`, in
 * this process, without a library or a device. All devices are on one network: all
 * objects opened through this table in this process can reach each other, and nothing
 * outside the process.
 *
 * Time is counted in steps: each call that posts, polls, arms or fetches an event makes
 * one step, and so do most of the functions below that inject a fault. So in a program
 * with one thread, the same seed gives the same run. A thread that sleeps in poll(2)
 * misses nothing: while a completion queue is armed, each step moves all data that can
 * move, and completions in that queue are not delayed. A delayed connection
 * event keeps its channel's fd readable (get_cm_event() then returns -EAGAIN until the
 * event is due).
 *
 * A device writes to memory in order: messages that it has received are in the completion
 * queue before the program can see the disconnect that the peer sent after them.
 *
 * Addresses: 127.0.0.1 and ::1 are device 0, 10.7.0.N is device (N - 1) % device_count.
 * As a destination, 198.51.100.N has no route (-ENETUNREACH) and 203.0.113.N does not
 * answer a connect (UNREACHABLE); 192.0.2.N and all other addresses do not resolve
 * (ADDR_ERROR).
 *
 * Any descriptor that can be mapped can serve as a dma-buf, such as those of the
 * simulated GPU (tests/fakes/cuda): the simulated device maps it. Memory given to
 * reg_mr() is accessed in place.
 *
 * Thread-safe, except for fake_verbs_reset().
 */
#ifndef TERN_TESTS_FAKE_VERBS_H
#define TERN_TESTS_FAKE_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/verbs/api.h"

#define FAKE_VERBS_MAX_DEVICES 10

struct fake_verbs_opts {
	unsigned device_count;             /* 0: get_devices() returns -ENODEV */
	int nodes[FAKE_VERBS_MAX_DEVICES]; /* NUMA node of each device */
	int max_qp;
	int max_qp_wr;
	int max_sge;
	int max_srq; /* shared receive queues of each device; 0: none are supported */
	int max_srq_wr;
	int max_cqe;
	int max_inline;
	/* READs in flight per queue pair, as initiator and as responder. */
	int max_rd_atomic;
	uint64_t max_msg_bytes; /* largest message of one work request */
	/* Limit of registered bytes per device, above which reg_mr() returns -ENOMEM; 0:
	 * no limit. */
	uint64_t reg_limit_bytes;
	/* Devices (bits 1 << device) on which reg_dmabuf_mr() returns -EOPNOTSUPP. */
	unsigned no_dma_buf;
	/* Devices that are not RoCE: their GIDs contain no IP address. */
	unsigned infiniband, iwarp;
	bool peermem;    /* what has_peermem() returns */
	bool no_imm;     /* posting SEND_WITH_IMM or WRITE_WITH_IMM returns EINVAL */
	bool grant_more; /* rounds queue sizes and inline data up, as hardware does */
	/* A request for more inline data than max_inline gets max_inline, without an
	 * error. */
	bool grant_less_inline;
	/* Completions of a destroyed queue pair stay in the completion queue. */
	bool keep_stale_cqes;
	/* An id that is not destroyed gets TIMEWAIT_EXIT some time after DISCONNECTED. */
	bool timewait_exit;

	uint64_t seed;
	/* Percentage of steps in which a queue pair moves no data, while no completion
	 * queue is armed; below 100. */
	unsigned stall_percent;
	unsigned delay_steps;    /* largest delay of a completion, in steps */
	unsigned cm_delay_steps; /* largest delay of a connection event, in steps */
	/* Transfers are divided into pieces of this many bytes. */
	uint32_t piece_bytes;
	/* Pieces that each queue pair moves per step, in each direction. */
	unsigned pieces_per_step;
	/* Steps after which a request to an unreachable peer ends with RETRY_EXC_ERR (at
	 * once if the sender's thread may be asleep, see above), and a connect with
	 * UNREACHABLE; 0: never. */
	unsigned retry_steps;
};

/* The default options: two devices, shared receive queues, pieces of 64 KiB, no delays. A
 * test changes the options that matter to it. */
struct fake_verbs_opts fake_verbs_defaults(void);

const struct tern_verbs_api *fake_verbs_api(void);

/* Replaces the machine by a new one with these options. Asserts that no object of the old
 * machine is open (and prints those that are), and removes all faults. NULL: the default
 * options, which also hold before the first call. */
void fake_verbs_reset(const struct fake_verbs_opts *opts);

/* The options of the last reset; all 0 before the first use of the machine. */
struct fake_verbs_opts fake_verbs_opts(void);

/* Numbers of objects that are open. */
struct fake_verbs_live {
	unsigned channels, ids, unacked_cm_events;
	unsigned pds, mrs, cqs, comp_channels, srqs, qps;
	unsigned unacked_cq_events, unacked_async_events;
};
struct fake_verbs_live fake_verbs_live(void);

/*
 * Injected faults. The next reset ends all of them. Device numbers are indices in the
 * list of get_devices() before any removal. A fault for a queue pair that does not exist
 * has no effect.
 */

/* Makes the nth call from now on (1: the next) of `function` fail with the errno `err`.
 * Besides those functions of the table that can fail, this works for "post_send" and the
 * other names at fake_verbs_calls(). Up to 16 such faults at a time. */
void fake_verbs_fail(const char *function, unsigned nth, int err);

/* From now on, reg_mr() refuses memory that overlaps this range with `err` if the
 * registration allows a device or a peer to write, as for a mapping without PROT_WRITE.
 * Only the last such range counts. err 0: ends this fault. */
void fake_verbs_refuse(const void *base, size_t bytes, int err);
/* From now on, reg_mr() on this device refuses all memory with `err`; 0: ends this
 * fault. */
void fake_verbs_refuse_at(unsigned device, int err);

struct fake_verbs_qp {
	/* peer_qp_num 0: not connected, or the peer's queue pair was destroyed. */
	uint32_t qp_num, peer_qp_num;
	unsigned device;
	bool passive; /* its connection was accepted by a listener */
	enum ibv_qp_state state;
	unsigned send_count; /* posted send requests that are not completed */
	/* Posted receives, including those of other queue pairs that share the receive
	 * queue. */
	unsigned recv_count;
};
/* Writes at most `max` existing queue pairs to `out`, oldest first; returns the number of
 * all. */
unsigned fake_verbs_qps(struct fake_verbs_qp *out, unsigned max);

/* Puts the queue pair into the error state, and raises IBV_EVENT_QP_FATAL. */
void fake_verbs_qp_fatal(uint32_t qp_num);
/* Makes the oldest send request of the queue pair, or the next one if none is posted, end
 * with IBV_WC_RETRY_EXC_ERR, without an event. */
void fake_verbs_qp_break(uint32_t qp_num);

/* Removes a device: each id on it gets RDMA_CM_EVENT_DEVICE_REMOVAL,
 * IBV_EVENT_DEVICE_FATAL is raised, and its queue pairs enter the error state. From then
 * on, nothing can be created, registered, bound or connected on the device. Its peers get
 * no event. */
void fake_verbs_remove_device(unsigned device);
/* Replaces a removed device by a new one with the same name and addresses. */
void fake_verbs_return_device(unsigned device);
/* Cuts the network between two devices (which may be the same device), or restores it.
 * While it is cut, requests wait, and end as opts.retry_steps says; so do new
 * connections. */
void fake_verbs_cut(unsigned device, unsigned other, bool cut);
/* Cuts a device off from all devices and raises IBV_EVENT_PORT_ERR, or restores its
 * network and raises IBV_EVENT_PORT_ACTIVE. */
void fake_verbs_port(unsigned device, bool up);
/* While `hold` is set, no data moves, and no retry timeout expires. */
void fake_verbs_hold_wire(bool hold);

enum fake_verbs_side { FAKE_VERBS_SENDS, FAKE_VERBS_RECEIVES };
/* While `hold` is set, completions of this side (sends or receives) enter no completion
 * queue, not even flushed ones. After the release they enter in order. */
void fake_verbs_hold_completions(enum fake_verbs_side side, bool hold);

enum fake_verbs_end { FAKE_VERBS_ACTIVE, FAKE_VERBS_PASSIVE };
/* While `hold` is set, events of this type are not delivered to ids of this kind
 * (active or passive end). Later events of such an id wait until the held ones are
 * delivered. */
void fake_verbs_hold_cm(enum rdma_cm_event_type type, enum fake_verbs_end end, bool hold);
/* Drops the next `count` events of this type for ids of this kind. (A lost
 * CONNECT_REQUEST is never answered, and the connecting end waits for ever. After a lost
 * passive ESTABLISHED, notify() can still establish the connection.) */
void fake_verbs_lose_cm(
	enum rdma_cm_event_type type, enum fake_verbs_end end, unsigned count);

/* Number of calls of this function of the table since the reset. Further names:
 * "post_send", "post_recv", "post_srq_recv", "poll_cq" and "req_notify_cq". */
unsigned fake_verbs_calls(const char *function);

#endif
