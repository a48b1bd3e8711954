/* SPDX-License-Identifier: Apache-2.0 */
/* Two connected ends for the tests of the simulated provider, which use it as Tern does:
 * through its table of functions, and ibv_post_send() and the like. */
#ifndef TERN_TESTS_FAKES_VERBS_PAIR_H
#define TERN_TESTS_FAKES_VERBS_PAIR_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "tests/harness/cmocka.h"
#include "tests/fakes/verbs/fake_verbs.h"

#define END_BYTES (1u << 20)
#define END_CQE   256
#define END_WR    16

/* One end: a device's resources, an event channel, and an id that is or will be
 * connected. */
struct end {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_comp_channel *comp;
	struct ibv_cq *cq;
	struct ibv_srq *srq; /* NULL: the queue pair has a receive queue of its own */
	struct ibv_mr *mr;   /* registration of the end's buffer `memory` */
	uint8_t *memory;
};

/* `a` connects from device 0 to the listener of `b` on device 1. */
struct pair {
	struct end a, b;
	struct rdma_cm_id *listener;
	uint16_t port;
	struct rdma_conn_param param;
};

/* Socket address of ip:port, in static memory: the last two results are valid. */
struct sockaddr *address(const char *ip, uint16_t port);
bool readable(int fd);

/* Fetches the next event, when its delay is over. It must be of `type`; the caller
 * acknowledges it. */
struct rdma_cm_event *expect(struct end *end, enum rdma_cm_event_type type);
void expect_ack(struct end *end, enum rdma_cm_event_type type);
void expect_none(struct end *end);

void end_open(struct end *end, unsigned device, bool srq);
void end_close(struct end *end);
int end_qp(struct end *end);

/* pair_open() prepares both ends up to connect(); pair_connect() connects `a` to `b`;
 * pair_close() frees everything, and resets the simulated machine. */
void pair_open(struct pair *pair, bool srq);
void pair_connect(struct pair *pair);
void pair_close(struct pair *pair);

/* Post a receive or a send request; wr_id is returned by its completion. */
int post_recv(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t bytes);
int post(struct end *end, struct ibv_send_wr wr, uint32_t offset, uint32_t bytes);
int post_send(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t bytes);
int post_rdma(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t offset,
	uint32_t bytes, const struct end *to, uint32_t to_offset);

/* Polls `end` until it has a completion; each poll moves the data of both ends. Fails the
 * test unless the completion has this wr_id and this status. */
struct ibv_wc complete(struct end *end, uint64_t wr_id, enum ibv_wc_status status);
/* Polls once, and returns the number of completions, which are discarded. */
unsigned polled(struct end *end);

#endif
