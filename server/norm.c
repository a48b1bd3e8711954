/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With clipping, a step has two phases, because every update needs one number over all
 * chunks: the norm of the mean gradient. Every server that has chunks sends their sums of
 * squares to server 0. Server 0 adds them in the order of the chunks, whichever server
 * has them, and sends the norm to these servers. Only then do the chunks change their
 * parameters and optimizer state (w, m, v), and all of them use the same number.
 */
#include "server/membership.h"

#include <errno.h>
#include <math.h>

static uint64_t partials_key(void)
{
	return tern_key("norm/partials");
}

static uint64_t total_key(void)
{
	return tern_key("norm/total");
}

static uint32_t chunks_of(const struct tern_server *s, uint32_t server)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->plan.chunk_count; i++)
		count += s->plan.chunks[i].server == server;
	return count;
}

int norm_init(struct tern_server *s)
{
	int r = tern_pool_get(
		s->staging, (s->chunk_count + 1u) * sizeof(double), &s->partials);

	if (r == 0)
		r = tern_pool_get(s->staging, sizeof(double), &s->total);
	if (r < 0 || s->index != 0)
		return r;
	s->shares = calloc(s->job.server_count, sizeof(*s->shares));
	s->total_reqs = calloc(s->job.server_count, sizeof(*s->total_reqs));
	if (!s->shares || !s->total_reqs)
		return -ENOMEM;
	for (uint32_t i = 1; i < s->job.server_count && r == 0; i++)
		r = tern_pool_get(s->staging, (chunks_of(s, i) + 1u) * sizeof(double),
			&s->shares[i].buf);
	return r;
}

void norm_fini(struct tern_server *s)
{
	for (uint32_t i = 1; s->shares && i < s->job.server_count; i++)
		tern_pool_put(s->staging, &s->shares[i].buf);
	tern_pool_put(s->staging, &s->partials);
	tern_pool_put(s->staging, &s->total);
	free(s->shares);
	free(s->total_reqs);
	s->shares = NULL;
	s->total_reqs = NULL;
}

/* ---- the exchange ---- */

/* Reports a failed exchange with `server`: otherwise processes would wait for its result
 * for ever. */
static void check(struct tern_server *s, uint32_t server, int status)
{
	struct server_peer *other = s->index ? s->to_zero : others_find(s, server);

	if (status < 0 && other)
		tern_talk_failed(&other->talk, status);
}

static void total_sent(struct tern_req *req)
{
	struct tern_server *s = req->arg;

	check(s, (uint32_t)(req - s->total_reqs), req->status);
}

static void partials_sent(struct tern_req *req)
{
	check(req->arg, 0, req->status);
}

static void apply_all(struct tern_server *s, double norm)
{
	double clip = norm > s->job.clip_norm ? s->job.clip_norm / norm : 1.0;

	s->norm_step++;
	s->summed_count = 0;
	for (uint32_t i = s->chunk_count; i-- > 0 && !s->over;)
		sync_apply(&s->chunks[i], clip);
}

/* On server 0, when the partial sums of all servers have arrived: computes the norm and
 * sends it. The partial sums of each server are in the order of its chunks. */
static void add_up(struct tern_server *s)
{
	uint32_t *next = calloc(s->job.server_count, sizeof(*next));
	double sum = 0, norm;

	if (!next) {
		server_fail(s, -ENOMEM, "no memory for a norm");
		return;
	}
	for (uint32_t i = 0; i < s->plan.chunk_count; i++) {
		uint32_t owner = s->plan.chunks[i].server;
		const struct tern_buf *buf = owner ? &s->shares[owner].buf : &s->partials;
		const double *values = tern_buf_ptr(buf);

		sum += values[next[owner]++];
	}
	free(next);
	norm = sqrt(sum);
	if (!isfinite(norm)) {
		server_fail(s, -EDOM,
			"step %llu: the norm of the gradients is no longer a finite "
			"number "
			"(%s): a lower learning rate may help",
			(unsigned long long)(s->first_version + s->norm_step + 1),
			isnan(norm) ? "nan" : "infinite");
		return;
	}
	*(double *)tern_buf_ptr(&s->total) = norm;
	for (uint32_t i = 1; i < s->job.server_count; i++) {
		struct tern_tensor tensor = {
			.buf = s->total, .shape = tern_shape_1d(TERN_F64, 1)};

		s->shares[i].arrived = false;
		s->total_reqs[i].done = total_sent;
		s->total_reqs[i].arg = s;
		if (chunks_of(s, i) && others_find(s, i))
			check(s, i,
				tern_send(others_find(s, i)->data, &s->total_reqs[i],
					total_key(), s->norm_step, &tensor, NULL,
					TERN_URGENT));
	}
	apply_all(s, norm);
}

static void maybe_add_up(struct tern_server *s)
{
	if (s->summed_count < s->chunk_count || s->over)
		return;
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (chunks_of(s, i) && !s->shares[i].arrived)
			return;
	add_up(s);
}

static void share_arrived(struct tern_req *req)
{
	struct norm_share *share = req->arg;
	struct tern_server *s = share->server;

	check(s, share->index, req->status);
	if (req->status < 0 || s->over)
		return;
	if (req->bytes != chunks_of(s, share->index) * sizeof(double)) {
		server_fail(s, -EPROTO,
			"server %u sent %llu bytes for the norm: expected %zu, a number "
			"for each of its chunks",
			view_number(s, share->index), (unsigned long long)req->bytes,
			chunks_of(s, share->index) * sizeof(double));
		return;
	}
	share->arrived = true;
	maybe_add_up(s);
}

static void total_arrived(struct tern_req *req)
{
	struct tern_server *s = req->arg;

	check(s, 0, req->status);
	if (req->status < 0 || s->over)
		return;
	if (req->bytes != sizeof(double)) {
		server_fail(s, -EPROTO,
			"server 0 sent a norm of %llu bytes: expected one number, %zu "
			"bytes",
			(unsigned long long)req->bytes, sizeof(double));
		return;
	}
	if (s->summed_count < s->chunk_count) {
		server_fail(s, -EPROTO,
			"server 0 sent a norm before it had this server's part of it");
		return;
	}
	apply_all(s, *(const double *)req->data);
}

/* Called when the first chunk of a step is summed: posts the receives of the numbers that
 * other servers send for this step's norm. */
static void open_exchange(struct tern_server *s)
{
	if (s->index != 0) {
		s->total_req.done = total_arrived;
		s->total_req.arg = s;
		check(s, 0,
			tern_recv(s->to_zero->data, &s->total_req, total_key(),
				s->norm_step, &s->total, NULL, 0));
		return;
	}
	for (uint32_t i = 1; i < s->job.server_count; i++) {
		struct norm_share *share = &s->shares[i];
		struct server_peer *other = others_find(s, i);

		if (!chunks_of(s, i))
			continue;
		if (!other) {
			server_fail(s, -EPIPE, "server %u left in the middle of the job",
				view_number(s, i));
			return;
		}
		share->server = s;
		share->index = i;
		share->req.done = share_arrived;
		share->req.arg = share;
		check(s, i,
			tern_recv(other->data, &share->req, partials_key(), s->norm_step,
				&share->buf, NULL, 0));
	}
}

void norm_chunk_summed(struct chunk *c)
{
	struct tern_server *s = c->server;
	double *partials = tern_buf_ptr(&s->partials);
	struct tern_tensor tensor = {.buf = s->partials};

	if (s->summed_count++ == 0)
		open_exchange(s);
	partials[c - s->chunks] = c->squares;
	if (s->summed_count < s->chunk_count)
		return;
	if (s->index == 0) {
		maybe_add_up(s);
		return;
	}
	tensor.buf.bytes = s->chunk_count * sizeof(double);
	tensor.shape = tern_shape_1d(TERN_F64, s->chunk_count);
	s->partials_req.done = partials_sent;
	s->partials_req.arg = s;
	check(s, 0,
		tern_send(s->to_zero->data, &s->partials_req, partials_key(),
			s->norm_step, &tensor, NULL, TERN_URGENT));
}
