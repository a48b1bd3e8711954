/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head-of-line blocking with Tern (beside.h): the small tensors and their answers are sent as
 * urgent.
 *
 *     head_of_line FABRIC ROUNDS
 */
#include "bench/beside.h"
#include "bench/link.h"

enum { SMALL_KEY = 1, REPLY_KEY, LARGE_KEY };

struct flow {
	struct tern_buf buf;
	struct tern_req req;
	uint64_t key, step; /* of the tensor that is under way */
};

static const char *fabric;
static struct link link;
static struct flow flows[BESIDE_FLOWS];
static struct tern_buf small, reply;
static struct tern_req small_req, reply_req;
static uint64_t small_step, completed;

static void open_link(int fd, bool sender)
{
	link.fd = fd;
	link.sender = sender;
	link_open(&link, fabric, BESIDE_FLOWS * BESIDE_LARGE_BYTES + (2u << 20));
	small = link_take(&link, BESIDE_SMALL_BYTES);
	reply = link_take(&link, BESIDE_REPLY_BYTES);
	link_meet(&link);
}

static void flow_next(struct flow *f)
{
	f->step++;
	if (link.sender) {
		beside_mark(tern_buf_ptr(&f->buf), f->step);
		link_send(&link, &f->req, f->key, f->step, &f->buf, 0);
	} else {
		link_receive(&link, &f->req, f->key, f->step, &f->buf);
	}
}

static void flow_done(struct tern_req *req)
{
	if (req->status)
		return; /* the other end has exited */
	completed++;
	flow_next(req->arg);
}

static void start_flows(void)
{
	for (unsigned i = 0; i < BESIDE_FLOWS; i++) {
		flows[i] = (struct flow){.buf = link_take(&link, BESIDE_LARGE_BYTES),
			.key = LARGE_KEY + i};
		flows[i].req.done = flow_done;
		flows[i].req.arg = &flows[i];
		flow_next(&flows[i]);
	}
}

/* ---- the server ---- */

static void arrived(struct tern_req *req)
{
	if (req->status)
		return; /* the client has exited */
	link_send(&link, &reply_req, REPLY_KEY, small_step, &reply, TERN_URGENT);
	small_step++;
	link_receive(&link, &small_req, SMALL_KEY, small_step, &small);
}

static void answer(int fd)
{
	uint64_t bytes = completed * BESIDE_LARGE_BYTES;

	for (unsigned i = 0; i < BESIDE_FLOWS; i++)
		bytes += beside_arrived(tern_buf_ptr(&flows[i].buf), flows[i].step);
	beside_answer(fd, bytes);
}

static void serve(int fd)
{
	open_link(fd, false);
	small_req.done = arrived;
	link_receive(&link, &small_req, SMALL_KEY, small_step, &small);
	start_flows();
	link_serve(&link, answer);
}

/* ---- the client ---- */

static void connect_to(int fd)
{
	open_link(fd, true);
}

static void trip(void)
{
	link_receive(&link, &reply_req, REPLY_KEY, small_step, &reply);
	link_send(&link, &small_req, SMALL_KEY, small_step, &small, TERN_URGENT);
	link_wait(&link, &reply_req);
	link_wait(&link, &small_req);
	small_step++;
}

int main(int argc, char **argv)
{
	fabric = argv[argc == 3 ? 1 : 0];
	return beside_main(argc == 3 ? argc : 0, argv,
		&(struct beside_ops){.usage = "head_of_line FABRIC ROUNDS",
			.serve = serve,
			.connect = connect_to,
			.trip = trip,
			.start_flows = start_flows});
}
