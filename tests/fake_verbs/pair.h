/* SPDX-License-Identifier: Apache-2.0 */
/* Two connected ends for the tests of the simulated provider, through its table only. */
#ifndef TERN_TESTS_FAKE_VERBS_PAIR_H
#define TERN_TESTS_FAKE_VERBS_PAIR_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "tests/cmocka.h"
#include "tests/fake_verbs/fake_verbs.h"

#define END_BYTES (1u << 20)
#define END_CQE   256
#define END_WR    16

/* A device's resources, an event channel, and an id that is or will be connected. */
struct end {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	struct ibv_srq *srq; /* NULL: the queue pair's own */
	struct ibv_mr *mr;   /* of `memory` */
	uint8_t *memory;
};

/* `a` connects from device 0 to the listener of `b` on device 1. */
struct pair {
	struct end a, b;
	struct rdma_cm_id *listener;
	uint16_t port;
	struct rdma_conn_param param;
};

struct sockaddr *address(const char *ip, uint16_t port); /* two at a time */
bool readable(int fd);

/* The next event, which must be of `type`; acked by the caller. */
struct rdma_cm_event *expect(struct end *end, enum rdma_cm_event_type type);
void expect_ack(struct end *end, enum rdma_cm_event_type type);
void expect_none(struct end *end);

void end_open(struct end *end, unsigned device, bool srq);
void end_close(struct end *end);
int end_qp(struct end *end);

/* Up to where `a` may connect; to the established connection; and all away. */
void pair_open(struct pair *pair, bool srq);
void pair_connect(struct pair *pair);
void pair_close(struct pair *pair);

/* wr_id: what the completion is expected to say. */
int post_recv(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t bytes);
int post(struct end *end, struct ibv_send_wr wr, uint32_t offset, uint32_t bytes);
int post_send(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t bytes);
int post_rdma(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t offset,
	uint32_t bytes, const struct end *to, uint32_t to_offset);

/* Polls both ends until one is there, which must be of this WR with this status. */
struct ibv_wc complete(struct end *end, uint64_t wr_id, enum ibv_wc_status status);
unsigned polled(struct end *end); /* polls once, discards: how many */

#endif
