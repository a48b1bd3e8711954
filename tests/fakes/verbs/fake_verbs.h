/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated RDMA machine: libibverbs and librdmacm behind `struct tern_verbs_api`, in
 * this process, without a library or a device. All devices are on one network: everything
 * that is opened through the table in this process can reach everything else, and nothing
 * outside.
 *
 * Time is counted in steps: each call that posts, polls, arms or fetches an event makes a
 * step. So with one thread a seed reproduces a run. A thread that sleeps in poll(2)
 * misses nothing: while a completion queue is armed, data moves at once and its
 * completions come at once. A delayed connection event keeps its channel's fd readable
 * (get_cm_event then returns -EAGAIN until it is due).
 *
 * A device writes to memory in order: messages that it has received are in the completion
 * queue before the program can see the disconnect that was sent after them.
 *
 * Addresses: 127.0.0.1 and ::1 are device 0, 10.7.0.N is device (N - 1) % device_count.
 * As a destination, 192.0.2.N does not resolve (ADDR_ERROR), 198.51.100.N has no route
 * (-ENETUNREACH) and 203.0.113.N does not answer a connect (UNREACHABLE).
 *
 * Any mappable descriptor can be a dma-buf, such as those of the simulated GPU
 * (tests/fakes/cuda): devices access it through a mapping of their own. Memory given to
 * reg_mr is accessed in place.
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
	unsigned device_count;             /* 0: get_devices returns -ENODEV */
	int nodes[FAKE_VERBS_MAX_DEVICES]; /* NUMA node of each device */
	int max_qp;
	int max_qp_wr;
	int max_sge;
	int max_srq; /* 0: no shared receive queues */
	int max_srq_wr;
	int max_cqe;
	int max_inline;
	int max_rd_atomic;      /* as initiator and as responder */
	uint64_t max_msg_bytes; /* largest message of one work request */
	/* Limit of registered bytes per device; 0: none. reg_mr above it: -ENOMEM. */
	uint64_t reg_limit_bytes;
	/* Bits 1 << device: reg_dmabuf_mr returns EOPNOTSUPP there. */
	unsigned no_dma_buf;
	bool peermem;    /* result of has_peermem() */
	bool no_imm;     /* SEND_WITH_IMM and WRITE_WITH_IMM return EINVAL */
	bool grant_more; /* rounds queue sizes and inline data up, as hardware does */
	/* A request for too much inline data is granted max_inline, without an error. */
	bool grant_less_inline;
	bool keep_stale_cqes; /* completions of a destroyed QP stay in the queue */
	bool timewait_exit; /* an id that is kept gets TIMEWAIT_EXIT after DISCONNECTED */

	uint64_t seed;
	/* Percentage of steps in which a QP does nothing; below 100. */
	unsigned stall_percent;
	unsigned delay_steps;     /* largest delay of a completion */
	unsigned cm_delay_steps;  /* largest delay of a connection event */
	uint32_t piece_bytes;     /* transfers are divided into pieces of this size */
	unsigned pieces_per_step; /* pieces per step of each QP and direction */
	/* Steps until an unreachable peer leads to RETRY_EXC_ERR; 0: never. */
	unsigned retry_steps;
};

/* Two devices, an SRQ, 64 KiB pieces, no delays: a test changes what it is about. */
struct fake_verbs_opts fake_verbs_defaults(void);

const struct tern_verbs_api *fake_verbs_api(void);

/* Makes a new machine. Asserts that nothing of the old one is open (and prints what
 * is), and removes all faults. NULL: the defaults, which also hold before the first
 * call. */
void fake_verbs_reset(const struct fake_verbs_opts *opts);

/* Options of the present machine. */
struct fake_verbs_opts fake_verbs_opts(void);

/* Numbers of open objects. */
struct fake_verbs_live {
	unsigned channels, ids, unacked_cm_events;
	unsigned pds, mrs, cqs, comp_channels, srqs, qps;
	unsigned unacked_cq_events, unacked_async_events;
};
struct fake_verbs_live fake_verbs_live(void);

/*
 * Faults. All of them end with the next reset. Device numbers are those of get_devices
 * before any removal. A fault for a QP that does not exist has no effect.
 */

/* The nth call from now on (1: the next) of the table's `function` fails with the
 * errno `err`; also works for "post_send" and the other names of fake_verbs_calls().
 * Up to 16 at a time. */
void fake_verbs_fail(const char *function, unsigned nth, int err);

/* From now on reg_mr refuses memory that overlaps this range with `err`, if a device
 * or a peer shall write to it, as for a mapping without PROT_WRITE. bytes 0: no range. */
void fake_verbs_refuse(const void *base, size_t bytes, int err);
/* From now on reg_mr refuses all memory on this device with `err`; 0: no longer. */
void fake_verbs_refuse_at(unsigned device, int err);

struct fake_verbs_qp {
	/* 0: not connected, or the peer's QP was destroyed. */
	uint32_t qp_num, peer_qp_num;
	unsigned device;
	bool passive; /* accepted by a listener */
	enum ibv_qp_state state;
	unsigned send_count; /* WRs that are not completed */
	unsigned recv_count; /* posted receives, of all QPs that share them */
};
/* Lists the existing QPs, oldest first: writes at most `max`, returns the number of
 * all. */
unsigned fake_verbs_qps(struct fake_verbs_qp *out, unsigned max);

/* Puts the QP into the error state, with IBV_EVENT_QP_FATAL. */
void fake_verbs_qp_fatal(uint32_t qp_num);
/* The oldest WR, or the next one, ends with IBV_WC_RETRY_EXC_ERR, without an event. */
void fake_verbs_qp_break(uint32_t qp_num);

/* Removes a device: RDMA_CM_EVENT_DEVICE_REMOVAL to each id on it,
 * IBV_EVENT_DEVICE_FATAL, its QPs enter the error state. From then on it refuses
 * everything but destroying, and its peers are not told. */
void fake_verbs_remove_device(unsigned device);
/* Adds a device in the place of a removed one, with the same name and addresses. */
void fake_verbs_return_device(unsigned device);
/* Cuts the path between two devices (which may be the same), or restores it. While it
 * is cut, WRs wait, and end with RETRY_EXC_ERR after opts.retry_steps; connects end
 * with UNREACHABLE. */
void fake_verbs_cut(unsigned device, unsigned other, bool cut);
/* Cuts or restores the paths from a device to all devices, and reports IBV_EVENT_PORT_ERR
 * or IBV_EVENT_PORT_ACTIVE. */
void fake_verbs_port(unsigned device, bool up);
/* Stops all data; retries are not counted. */
void fake_verbs_hold_wire(bool hold);

enum fake_verbs_side { FAKE_VERBS_SENDS, FAKE_VERBS_RECEIVES };
/* While held, completions of this side reach no completion queue, not even flushed
 * ones; they come in order after the release. */
void fake_verbs_hold_completions(enum fake_verbs_side side, bool hold);

enum fake_verbs_end { FAKE_VERBS_ACTIVE, FAKE_VERBS_PASSIVE };
/* While held, events of this type for ids of this kind are not delivered. Later events
 * of the same id wait behind them. */
void fake_verbs_hold_cm(enum rdma_cm_event_type type, enum fake_verbs_end end, bool hold);
/* Loses the next `count` of them. (A lost CONNECT_REQUEST is never answered, and its
 * connector waits for ever. A lost passive ESTABLISHED is replaced by notify().) */
void fake_verbs_lose_cm(
	enum rdma_cm_event_type type, enum fake_verbs_end end, unsigned count);

/* Number of calls of the table's function since the reset; also of "post_send",
 * "post_recv", "post_srq_recv", "poll_cq" and "req_notify_cq". */
unsigned fake_verbs_calls(const char *function);

#endif
