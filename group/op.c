/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation that has begun. Each rank sends its signature to the next rank and compares
 * it with that of the previous one. If all neighbours agree, all ranks do, and an operation
 * ends well at a rank only after this rank and its neighbour have agreed.
 */
#include "group/group.h"

#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

#define SIGNATURE_KEY 2u

static const char *const kinds[] = {[GROUP_ALLREDUCE] = "allreduce",
	[GROUP_REDUCE] = "reduce",
	[GROUP_BROADCAST] = "broadcast",
	[GROUP_GATHER] = "gather",
	[GROUP_SCATTER] = "scatter",
	[GROUP_ALL_GATHER] = "all-gather",
	[GROUP_REDUCE_SCATTER] = "reduce-scatter",
	[GROUP_ALL_TO_ALL] = "all-to-all",
	[GROUP_BARRIER] = "barrier",
	[GROUP_ALL_TO_ALL_V] = "all-to-all of unequal parts"};

static const char *const operators[] = {
	"sum", "avg", "min", "max", "product", "or", "and"};

static bool reduces(const struct group_signature *sig)
{
	return sig->kind == GROUP_ALLREDUCE || sig->kind == GROUP_REDUCE ||
	       sig->kind == GROUP_REDUCE_SCATTER;
}

static bool has_root(const struct group_signature *sig)
{
	return sig->kind == GROUP_REDUCE || sig->kind == GROUP_BROADCAST ||
	       sig->kind == GROUP_GATHER || sig->kind == GROUP_SCATTER;
}

void group_describe(const struct group_signature *sig, char *out, size_t bytes)
{
	const char *kind = sig->kind > 0 && sig->kind < GROUP_KIND_COUNT
				   ? kinds[sig->kind]
				   : "an unknown operation";
	const char *how =
		sig->how < TERN_ARRAY_SIZE(operators) ? operators[sig->how] : "?";
	char root[24] = "";

	if (has_root(sig))
		snprintf(root, sizeof(root), ", root %u", sig->root);
	if (sig->kind == GROUP_BARRIER || sig->kind == GROUP_ALL_TO_ALL_V)
		snprintf(out, bytes, "%s", kind);
	else if (reduces(sig))
		snprintf(out, bytes, "%s of %llu bytes, %s, %s%s", kind,
			(unsigned long long)sig->bytes,
			tern_dtype_name((enum tern_dtype)sig->dtype), how, root);
	else
		snprintf(out, bytes, "%s of %llu bytes%s", kind,
			(unsigned long long)sig->bytes, root);
}

static uint64_t key_of(const struct group_signature *sig)
{
	uint64_t key = tern_mix64(sig->number);

	key = tern_mix64(key ^ sig->bytes);
	key = tern_mix64(key ^ sig->shape);
	key = tern_mix64(key ^ ((uint64_t)sig->kind << 32 | sig->dtype));
	return tern_mix64(key ^ ((uint64_t)sig->how << 32 | sig->root));
}

void group_op_check(struct group_op *op)
{
	struct tern_group *g = op->group;
	struct group_call *call = op->call;

	if (g->status || op->outstanding || op->ended_pieces < op->piece_count)
		return;
	op->call = NULL;
	g->op_count--;
	group_end_call(g, call, 0);
}

static void compare(struct group_op *op, uint32_t rank)
{
	const struct group_signature *mine = &op->call->sig, *theirs;
	char ours[72], other[72], who[GROUP_WHO_MAX];

	theirs = tern_buf_ptr(&op->theirs);
	if (memcmp(mine, theirs, sizeof(*mine)) == 0)
		return;
	if (mine->shape != theirs->shape)
		return group_fail(op->group, -EBADMSG,
			"the groups of rank %u and %s differ in size, hosts or "
			"piece_bytes",
			op->group->rank, group_who(op->group, rank, who));
	group_describe(mine, ours, sizeof(ours));
	group_describe(theirs, other, sizeof(other));
	group_fail(op->group, -EBADMSG,
		"operation %llu differs: rank %u called %s; %s called %s",
		(unsigned long long)mine->number, op->group->rank, ours,
		group_who(op->group, rank, who), other);
}

static void sig_ended(struct group_op *op, const struct tern_req *req, uint32_t rank)
{
	struct tern_group *g = op->group;

	op->outstanding--;
	g->outstanding--;
	g->links[rank].stirred = true;
	if (g->status == 0 && req->status)
		group_fail_with(g, rank, req->status);
	else if (g->status == 0 && req == &op->sig_recv)
		compare(op, rank);
	group_op_check(op);
	group_step(g);
	group_settle(g);
}

static void on_sent(struct tern_req *req)
{
	struct group_op *op = req->arg;

	sig_ended(op, req, (op->group->rank + 1) % op->group->size);
}

static void on_received(struct tern_req *req)
{
	struct group_op *op = req->arg;
	struct tern_group *g = op->group;
	uint32_t rank = (g->rank + g->size - 1) % g->size;

	if (req->status == 0 && req->bytes != sizeof(struct group_signature))
		memset(tern_buf_ptr(&op->theirs), 0, sizeof(struct group_signature));
	if (req->status == 0 && g->links[rank].called <= op->call->sig.number)
		g->links[rank].called = op->call->sig.number + 1;
	sig_ended(op, req, rank);
}

/* Sends our signature to the next rank, and receives that of the previous one. */
static void exchange(struct group_op *op)
{
	struct tern_group *g = op->group;
	uint32_t next = (g->rank + 1) % g->size, last = (g->rank + g->size - 1) % g->size;
	uint64_t number = op->call->sig.number;
	struct tern_tensor tensor = {
		.buf = op->mine, .shape = tern_shape_1d(TERN_U8, sizeof(op->call->sig))};
	int status;

	memcpy(tern_buf_ptr(&op->mine), &op->call->sig, sizeof(op->call->sig));
	op->sig_recv.done = on_received;
	op->sig_send.done = on_sent;
	op->sig_recv.arg = op->sig_send.arg = op;
	status = tern_recv(g->links[last].channel, &op->sig_recv, SIGNATURE_KEY, number,
		&op->theirs, NULL, 0);
	if (status < 0)
		return group_fail_with(g, last, status);
	op->outstanding++;
	g->outstanding++;
	status = tern_send(g->links[next].channel, &op->sig_send, SIGNATURE_KEY, number,
		&tensor, NULL, 0);
	if (status < 0)
		return group_fail_with(g, next, status);
	op->outstanding++;
	g->outstanding++;
}

/* The rank that has left before this operation; GROUP_NOBODY: none. */
static uint32_t leaver(const struct tern_group *g, uint64_t number)
{
	for (uint32_t i = 0; i < g->size && g->left_count > 0; i++)
		if (i != g->rank && g->links[i].left && number >= g->links[i].called)
			return i;
	return GROUP_NOBODY;
}

void group_op_start(struct tern_group *g, struct group_call *call)
{
	struct group_op *op = &g->ops[call->sig.number % GROUP_OPS];
	uint32_t left = leaver(g, call->sig.number);

	op->call = call;
	op->key = key_of(&call->sig);
	op->piece_count = group_plan_pieces(g, call);
	op->next_piece = op->ended_pieces = 0;
	g->op_count++;
	if (left != GROUP_NOBODY)
		group_fail_with(g, left, -ESHUTDOWN);
	else if (g->size > 1)
		exchange(op);
}

void group_op_cancel(struct group_op *op)
{
	if (tern_test(&op->sig_send) == -EINPROGRESS)
		tern_cancel(&op->sig_send);
	if (tern_test(&op->sig_recv) == -EINPROGRESS)
		tern_cancel(&op->sig_recv);
}
