/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests allreduce and alltoall: both ends are the two ranks of a group, and call the
 * same operations in the same order. Operation n uses slot n % inflight, so that a slot's
 * buffers are used by one operation at a time. The results of the first `inflight`
 * operations are checked at both ends.
 */
#include <errno.h>

#include "base/util.h"
#include "tools/bench_end.h"

struct bench_group_slot {
	struct bench_end *end;
	struct tern_buf in, out;
	struct tern_group_req req;
	bool busy;
	uint64_t n;     /* number of its operation */
	uint64_t start; /* by bench_end_clock() */
};

static void start_operations(struct bench_end *e);

/* Element i of the tensor of a rank in operation n: small whole numbers, whose sums are
 * exact. */
static float given(uint64_t n, uint64_t i, uint32_t rank)
{
	return (float)((n * 7 + i * 3 + rank * 5) % 1024);
}

static float wanted(const struct bench_end *e, uint64_t n, uint64_t i)
{
	uint32_t rank = tern_group_rank(e->group);
	uint64_t part = e->config->size / 8;

	if (e->config->collective == BENCH_ALLREDUCE)
		return given(n, i, 0) + given(n, i, 1);
	return given(n, i % part + rank * part, (uint32_t)(i / part));
}

static void check(struct bench_group_slot *s)
{
	const float *out = tern_buf_ptr(&s->out);

	for (uint64_t i = 0; i < s->out.bytes / 4; i++)
		if (out[i] != wanted(s->end, s->n, i)) {
			bench_end_fail(s->end, -EBADMSG,
				"operation %llu has a wrong result at element %llu",
				(unsigned long long)s->n, (unsigned long long)i);
			return;
		}
}

static void done(struct tern_group_req *req)
{
	struct bench_group_slot *s = req->arg;
	struct bench_end *e = s->end;

	s->busy = false;
	if (req->status) {
		bench_end_fail(e, req->status, "%.200s", tern_group_text(e->group));
		return;
	}
	if (s->n >= e->config->warmup && e->trips)
		e->trips[s->n - e->config->warmup] = bench_end_clock(e) - s->start;
	if (s->n < e->config->inflight)
		check(s);
	bench_end_count(e);
	start_operations(e);
}

/* The first measured operation waits until the warm-up is over. */
static void start_operations(struct bench_end *e)
{
	while (!e->usage.status && e->next < e->total &&
		(e->next < e->config->warmup || e->done_count >= e->config->warmup)) {
		struct bench_group_slot *s =
			&e->group_slots[e->next % e->config->inflight];
		int r;

		if (s->busy)
			return;
		s->busy = true;
		s->n = e->next++;
		s->start = bench_end_clock(e);
		if (e->config->collective == BENCH_ALLREDUCE)
			r = tern_allreduce(e->group, &s->req, TERN_F32, TERN_REDUCE_SUM,
				&s->in, &s->out);
		else
			r = tern_all_to_all(e->group, &s->req, &s->in, &s->out);
		if (r)
			bench_end_fail(e, r, "starting operation %llu: %s",
				(unsigned long long)s->n, tern_status_text(r));
	}
}

static void fill(const struct bench_group_slot *s, uint64_t n, uint32_t rank)
{
	float *in = tern_buf_ptr(&s->in);

	for (uint64_t i = 0; i < s->in.bytes / 4; i++)
		in[i] = given(n, i, rank);
}

int bench_group_prepare(struct bench_end *e)
{
	uint32_t rank = e->sender ? 0 : 1;

	e->group_slots = calloc(e->config->inflight, sizeof(*e->group_slots));
	if (!e->group_slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->config->inflight; i++) {
		struct bench_group_slot *s = &e->group_slots[i];
		int r = tern_pool_get(e->pool, e->config->size, &s->in);

		if (r == 0)
			r = tern_pool_get(e->pool, e->config->size, &s->out);
		if (r)
			return r;
		s->end = e;
		s->req.done = done;
		s->req.arg = s;
		fill(s, i, rank);
	}
	return 0;
}

int bench_group_start(struct bench_end *e)
{
	struct tern_peer *peers[2] = {e->peer, e->peer};
	const struct tern_group_opts opts = {
		.rank = e->sender ? 0 : 1, .size = 2, .peers = peers, .number = 1};
	int r = tern_group_new(e->ctx, &opts, &e->group);

	if (r)
		return bench_end_fail(e, r, "making the group: %s", tern_status_text(r));
	start_operations(e);
	return e->usage.status;
}

void bench_group_close(struct bench_end *e)
{
	for (uint32_t i = 0; e->group_slots && i < e->config->inflight; i++) {
		if (e->group_slots[i].in.mem)
			tern_pool_put(e->pool, &e->group_slots[i].in);
		if (e->group_slots[i].out.mem)
			tern_pool_put(e->pool, &e->group_slots[i].out);
	}
	free(e->group_slots);
}
