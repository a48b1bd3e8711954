/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated RDMA machine: libibverbs and librdmacm behind `struct tern_verbs_api`, in
 * this process, with no library and no device. All devices hang on one network, and all
 * that is opened through the table in this process can reach each other; nothing else
 * can.
 *
 * Time is counted in steps: a step happens in each call that posts, polls, arms or
 * fetches an event, whoever makes it. With one thread a seed therefore reproduces a run.
 * A sleeper in poll(2) misses nothing: while a completion queue is armed, data moves at
 * once and that queue's completions come at once; a connection event that is delayed
 * keeps its channel's fd readable (get_cm_event then says -EAGAIN until it is due).
 *
 * A device writes to memory in order: what it has received is in the completion queue
 * before the program can hear of the disconnect that was sent behind it.
 *
 * Addresses: 127.0.0.1 and ::1 are device 0, 10.7.0.N is device (N - 1) % device_count.
 * As a destination, 192.0.2.N does not resolve (ADDR_ERROR), 198.51.100.N has no route
 * (-ENETUNREACH) and 203.0.113.N does not answer a connect (UNREACHABLE).
 *
 * A dma-buf is anything that can be mapped, such as the simulated GPU's
 * (tests/fake_cuda): devices reach it through a mapping of their own. What reg_mr was
 * given is touched where it lies.
 *
 * Thread-safe, except for fake_verbs_reset().
 */
#ifndef TERN_TESTS_FAKE_VERBS_H
#define TERN_TESTS_FAKE_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/verbs_api.h"

#define FAKE_VERBS_MAX_DEVICES 10

struct fake_verbs_opts {
	unsigned device_count;             /* 0: get_devices says -ENODEV */
	int nodes[FAKE_VERBS_MAX_DEVICES]; /* NUMA, of each device */
	int max_qp;
	int max_qp_wr;
	int max_sge;
	int max_srq; /* 0: no SRQ */
	int max_srq_wr;
	int max_cqe;
	int max_inline;
	int max_rd_atomic;        /* as initiator and as responder */
	uint64_t max_msg_bytes;   /* of one work request */
	uint64_t reg_limit_bytes; /* per device; 0: none. reg_mr above it: -ENOMEM */
	unsigned no_dma_buf;      /* 1 << device: there reg_dmabuf_mr says EOPNOTSUPP */
	bool peermem;             /* has_peermem() */
	bool no_imm;              /* SEND_WITH_IMM and WRITE_WITH_IMM: EINVAL */
	bool grant_more;          /* rounds queue sizes and inline up, as hardware does */
	bool grant_less_inline;   /* too much inline asked: grants max_inline, no error */
	bool keep_stale_cqes;     /* completions of a destroyed QP stay in the queue */
	bool timewait_exit; /* an id that lives on gets that event after DISCONNECTED */

	uint64_t seed;
	unsigned stall_percent;   /* of the steps, each QP rests; below 100 */
	unsigned delay_steps;     /* a completion comes up to so much later */
	unsigned cm_delay_steps;  /* a connection event comes up to so much later */
	uint32_t piece_bytes;     /* a transfer is cut into pieces of this size */
	unsigned pieces_per_step; /* of each QP and direction */
	unsigned retry_steps;     /* an unreachable peer: RETRY_EXC_ERR then; 0: never */
};

/* Two devices, an SRQ, 64 KiB pieces, no delay: change what the test is about. */
struct fake_verbs_opts fake_verbs_defaults(void);

const struct tern_verbs_api *fake_verbs_api(void);

/* A new machine. Asserts that nothing of the old one is open (and prints what is) and
 * withdraws all faults. NULL: the defaults, which also hold before the first call. */
void fake_verbs_reset(const struct fake_verbs_opts *opts);

/* What is open now. */
struct fake_verbs_live {
	unsigned channels, ids, unacked_cm_events;
	unsigned pds, mrs, cqs, comp_channels, srqs, qps;
	unsigned unacked_cq_events, unacked_async_events;
};
struct fake_verbs_live fake_verbs_live(void);

/*
 * What goes wrong. All of it ends with the next reset, too. Device numbers are those of
 * get_devices before any removal. What names a QP that is gone does nothing.
 */

/* The nth call from now on (1: the next) of the table's `function` fails with the errno
 * `err`; also of "post_send" and the others below. Up to 16 at a time. */
void fake_verbs_fail(const char *function, unsigned nth, int err);

/* From now on reg_mr refuses with `err` what overlaps this range, if it is to be written
 * by a device or a peer: a mapping without PROT_WRITE. bytes 0: no range. */
void fake_verbs_refuse(const void *base, size_t bytes, int err);

struct fake_verbs_qp {
	uint32_t qp_num, peer_qp_num; /* 0: not connected, or the peer's is destroyed */
	unsigned device;
	bool passive; /* accepted by a listener */
	enum ibv_qp_state state;
	unsigned send_count; /* WRs that are not completed */
	unsigned recv_count; /* receives posted, of all that share them */
};
/* Those that there are, oldest first: how many (all of them, `max` are written). */
unsigned fake_verbs_qps(struct fake_verbs_qp *out, unsigned max);

/* ERR, with IBV_EVENT_QP_FATAL. */
void fake_verbs_qp_fatal(uint32_t qp_num);
/* The oldest WR, or the next one, ends in IBV_WC_RETRY_EXC_ERR; no event. */
void fake_verbs_qp_break(uint32_t qp_num);

/* RDMA_CM_EVENT_DEVICE_REMOVAL to each id on it, IBV_EVENT_DEVICE_FATAL, its QPs in ERR.
 * From then on it refuses all but destroying, and its peers hear nothing of it. */
void fake_verbs_remove_device(unsigned device);
/* Where one was removed there is another, with the same name and addresses. */
void fake_verbs_return_device(unsigned device);
/* Nothing passes between the two (which may be one), or does again: WRs wait, and end in
 * RETRY_EXC_ERR after opts.retry_steps; connects end as UNREACHABLE. */
void fake_verbs_cut(unsigned device, unsigned other, bool cut);
/* The same towards all, with IBV_EVENT_PORT_ERR or IBV_EVENT_PORT_ACTIVE. */
void fake_verbs_port(unsigned device, bool up);
/* Data stands still everywhere, and nobody counts retries. */
void fake_verbs_hold_wire(bool hold);

enum fake_verbs_side { FAKE_VERBS_SENDS, FAKE_VERBS_RECEIVES };
/* Completions of this side reach no completion queue while held, flushed ones neither;
 * they come in their order when released. */
void fake_verbs_hold_completions(enum fake_verbs_side side, bool hold);

enum fake_verbs_end { FAKE_VERBS_ACTIVE, FAKE_VERBS_PASSIVE };
/* Events of this type, of ids of this kind, are not delivered while held. Behind them
 * wait later events of the same id. */
void fake_verbs_hold_cm(enum rdma_cm_event_type type, enum fake_verbs_end end, bool hold);
/* The next `count` of them are lost. (A lost CONNECT_REQUEST is never answered; the one
 * who asked for it waits for ever. A lost passive ESTABLISHED comes with notify().) */
void fake_verbs_lose_cm(
	enum rdma_cm_event_type type, enum fake_verbs_end end, unsigned count);

/* How often the table's function was called since the reset; also "post_send",
 * "post_recv", "post_srq_recv", "poll_cq" and "req_notify_cq". */
unsigned fake_verbs_calls(const char *function);

#endif
