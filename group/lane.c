/* SPDX-License-Identifier: Apache-2.0 */
/* A lane takes one piece of an operation through its rounds: posts the round's send and
 * receive, waits for both, computes, and goes on. */
#include "group/group.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"

static struct tern_buf part(
	const struct group_lane *lane, struct group_range range, uint64_t bytes)
{
	const struct group_call *call = lane->op->call;
	struct tern_buf buf = range.area == GROUP_IN    ? call->in
			      : range.area == GROUP_OUT ? call->out
							: lane->scratch;

	buf.offset += range.at;
	buf.bytes = bytes;
	return buf;
}

static void *address(const struct group_lane *lane, struct group_range range)
{
	struct tern_buf buf = part(lane, range, 0);

	return tern_buf_ptr(&buf);
}

static void compute(struct group_lane *lane, const struct group_round *r)
{
	const struct group_signature *sig = &lane->op->call->sig;
	enum tern_dtype dtype = (enum tern_dtype)sig->dtype;
	enum tern_combine how = (enum tern_combine)sig->how;
	uint32_t divisor = how == TERN_COMBINE_AVG ? lane->group->size : 0;
	size_t count = r->bytes / tern_dtype_bytes(dtype);
	void *to;
	const void *a, *b;

	if (r->work == GROUP_NOTHING || r->bytes == 0)
		return;
	to = address(lane, r->to);
	a = address(lane, r->a);
	b = address(lane, r->b);
	switch (r->work) {
	case GROUP_NOTHING:
		break;
	case GROUP_COPY:
		if (to != a)
			memcpy(to, a, r->bytes);
		break;
	case GROUP_COMBINE:
		tern_combine(dtype, how, to, a, b, count, 0);
		break;
	case GROUP_FINAL:
		tern_combine(dtype, how, to, a, b, count, divisor);
		break;
	case GROUP_WIDEN:
		tern_combine_widen(dtype, to, a, count);
		break;
	case GROUP_WIDE:
		tern_combine_wide(dtype, how, to, a, count);
		break;
	case GROUP_NARROW:
		tern_combine_narrow(dtype, to, a, count, divisor);
		break;
	}
}

static void run(struct group_lane *lane);

static void ended(struct group_lane *lane, const struct tern_req *req, uint32_t rank,
	uint64_t bytes)
{
	struct tern_group *g = lane->group;
	char who[GROUP_WHO_MAX];

	g->outstanding--;
	g->links[rank].stirred = true;
	if (g->status)
		group_step(g);
	else if (req->status == -EEXIST)
		group_fail(g, -EBADMSG,
			"operation %llu differs: the parts that %s and rank %u exchange "
			"have different sizes there",
			(unsigned long long)lane->op->call->sig.number,
			group_who(g, rank, who), g->rank);
	else if (req->status)
		group_fail_with(g, rank, req->status);
	else if (req->bytes != bytes)
		group_fail(g, -EBADMSG, "rank %u sent %llu bytes where %llu were due",
			rank, (unsigned long long)req->bytes, (unsigned long long)bytes);
	else
		run(lane);
	group_settle(g);
}

static void on_sent(struct tern_req *req)
{
	struct group_lane *lane = req->arg;
	const struct group_round *r = &lane->rounds[lane->round];

	lane->sending = false;
	ended(lane, req, r->send_to, req->bytes);
}

static void on_received(struct tern_req *req)
{
	struct group_lane *lane = req->arg;
	const struct group_round *r = &lane->rounds[lane->round];

	lane->receiving = false;
	ended(lane, req, r->recv_from, r->recv_bytes);
}

/* Both ends of the first exchange of a pair give it the size of the whole part as its name:
 * requests with different names end with -EEXIST. Operations whose signature has the size
 * need no name. */
#define NAME_BYTES 32u
static const char *name_of_size(
	const struct group_lane *lane, const uint64_t *parts, uint32_t rank, char *out)
{
	if (!parts || lane->piece > 0)
		return NULL;
	snprintf(out, NAME_BYTES, "%llu bytes", (unsigned long long)parts[rank]);
	return out;
}

static bool post_recv(struct group_lane *lane, const struct group_round *r)
{
	struct tern_group *g = lane->group;
	struct tern_buf room = part(lane, r->recv, r->recv_bytes);
	char name[NAME_BYTES];
	int status;

	if (g->links[r->recv_from].gone) {
		group_fail_with(g, r->recv_from, -ESHUTDOWN);
		return false;
	}
	lane->recv.done = on_received;
	lane->recv.arg = lane;
	status = tern_recv(g->links[r->recv_from].channel, &lane->recv, lane->op->key,
		lane->piece, &room,
		name_of_size(lane, lane->op->call->out_bytes, r->recv_from, name), 0);
	if (status < 0) {
		group_fail_with(g, r->recv_from, status);
		return false;
	}
	lane->receiving = true;
	g->outstanding++;
	return true;
}

static bool post_send(struct group_lane *lane, const struct group_round *r)
{
	struct tern_group *g = lane->group;
	struct tern_tensor tensor = {.buf = part(lane, r->send, r->send_bytes),
		.shape = tern_shape_1d(TERN_U8, r->send_bytes)};
	char name[NAME_BYTES];
	int status;

	if (g->links[r->send_to].gone) {
		group_fail_with(g, r->send_to, -ESHUTDOWN);
		return false;
	}
	lane->send.done = on_sent;
	lane->send.arg = lane;
	status = tern_send(g->links[r->send_to].channel, &lane->send, lane->op->key,
		lane->piece, &tensor,
		name_of_size(lane, lane->op->call->in_bytes, r->send_to, name), 0);
	if (status < 0) {
		group_fail_with(g, r->send_to, status);
		return false;
	}
	lane->sending = true;
	g->outstanding++;
	return true;
}

/* Goes on until the lane waits for a request, or the piece has ended. */
static void run(struct group_lane *lane)
{
	struct tern_group *g = lane->group;
	struct group_op *op = lane->op;

	while (lane->round < lane->round_count) {
		const struct group_round *r = &lane->rounds[lane->round];

		if (!lane->begun) {
			lane->begun = true;
			if (r->recv_from != GROUP_NOBODY && !post_recv(lane, r))
				return;
			if (r->send_to != GROUP_NOBODY && !post_send(lane, r))
				return;
		}
		if (lane->sending || lane->receiving)
			return;
		compute(lane, r);
		lane->begun = false;
		lane->round++;
		g->moved++;
	}
	lane->op = NULL;
	op->ended_pieces++;
	group_op_check(op);
	group_step(g);
}

void group_lane_start(struct group_lane *lane, struct group_op *op, uint64_t piece)
{
	lane->op = op;
	lane->piece = piece;
	lane->round = 0;
	lane->begun = false;
	lane->round_count = group_plan(lane->group, op->call, piece, lane->rounds);
	run(lane);
}

void group_lane_cancel(struct group_lane *lane)
{
	if (lane->sending)
		tern_cancel(&lane->send);
	if (lane->receiving)
		tern_cancel(&lane->recv);
}
