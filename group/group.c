/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: how they are made and freed, their calls, and their failures.
 *
 * A call waits in `waiting` until the slot of its number is free, is then an operation
 * (op.c), and at last stands in `ended` until its done() runs. After a failure nothing new
 * is posted; when the requests under way have ended, all calls end.
 */
#include "group/group.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/sized.h"
#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "transport/memory/mem.h"

#define TIMEOUT_NS   (300 * TERN_NS_PER_S)
#define PIECE_BYTES  (512u << 10)
#define PIECE_UNIT   128u /* so that half a piece has whole elements and cache lines */
#define LANES        8u
#define LANES_MAX    64u
#define BUFFER_BYTES 256u /* of a note or a signature */

_Static_assert(sizeof(struct group_call) <= sizeof(((struct tern_group_req *)0)->priv),
	"a call fits into its request");
_Static_assert(sizeof(struct group_note) <= BUFFER_BYTES, "a note fits into its buffer");
_Static_assert((int)TERN_REDUCE_AND == (int)TERN_COMBINE_AND &&
		       (int)TERN_REDUCE_PRODUCT == (int)TERN_COMBINE_PRODUCT,
	"the operators have the numbers of the kernels'");

static struct group_call *call_of(struct tern_group_req *req)
{
	return (struct group_call *)(void *)req->priv;
}

/* ---- ends ---- */

static void destroy(struct tern_group *g)
{
	if (g->memory.mem)
		tern_pool_put(g->pool, &g->memory);
	tern_pool_free(g->pool);
	for (unsigned i = 0; g->lanes && i < g->lane_count; i++)
		free(g->lanes[i].rounds);
	free(g->lanes);
	free(g->links);
	free(g->host_of);
	free(g->members);
	free(g->first);
	free(g->leaders);
	free(g);
}

void group_settle(struct tern_group *g)
{
	if (!g->freed || g->in_finish || g->in_step || g->outstanding || g->notes ||
		!tern_list_empty(&g->ended))
		return;
	tern_list_remove(&g->finish.node);
	destroy(g);
}

/* Runs the done() of calls that have ended. */
static void finish(struct tern_deferred *deferred)
{
	struct tern_group *g = tern_container_of(deferred, struct tern_group, finish);

	g->in_finish = true;
	while (!tern_list_empty(&g->ended)) {
		struct group_call *call =
			tern_list_entry(g->ended.next, struct group_call, node);
		struct tern_group_req *req = group_req(call);

		tern_list_remove(&call->node);
		req->status = call->status;
		if (req->done)
			req->done(req);
	}
	g->in_finish = false;
	group_settle(g);
}

void group_end_call(struct tern_group *g, struct group_call *call, int status)
{
	call->status = status;
	tern_list_push(&g->ended, &call->node);
	tern_defer(g->ctx, &g->finish);
}

/* ---- failures ---- */

const char *group_who(const struct tern_group *g, uint32_t rank, char *out)
{
	const struct group_link *link = &g->links[rank];

	if (rank == g->rank)
		snprintf(out, GROUP_WHO_MAX, "rank %u", rank);
	else
		snprintf(out, GROUP_WHO_MAX, "rank %u (%.70s)", rank,
			link->gone ? link->name : tern_peer_name(link->peer));
	return out;
}

void group_fail(struct tern_group *g, int status, const char *fmt, ...)
{
	va_list args;

	if (g->status)
		return;
	g->status = status;
	va_start(args, fmt);
	vsnprintf(g->text, sizeof(g->text), fmt, args);
	va_end(args);
	if (!g->freed)
		tern_log(g->env, TERN_LOG_WARN, "group: %s", g->text);
	group_watch_failed(g);
	for (unsigned i = 0; i < g->lane_count; i++)
		group_lane_cancel(&g->lanes[i]);
	for (unsigned i = 0; i < GROUP_OPS; i++)
		group_op_cancel(&g->ops[i]);
	group_step(g);
}

void group_fail_with(struct tern_group *g, uint32_t rank, int status)
{
	const struct group_call *call = NULL;
	char who[GROUP_WHO_MAX], what[96] = "", text[72];

	for (unsigned i = 0; i < GROUP_OPS; i++)
		if (g->ops[i].call &&
			(!call || g->ops[i].call->sig.number < call->sig.number))
			call = g->ops[i].call;
	if (call) {
		group_describe(&call->sig, text, sizeof(text));
		snprintf(what, sizeof(what), " in operation %llu (%s)",
			(unsigned long long)call->sig.number, text);
	}
	group_who(g, rank, who);
	if (status == -ESHUTDOWN)
		group_fail(g, status, "%s has left the group%s", who, what);
	else
		group_fail(g, status, "%s failed%s: %s", who, what,
			tern_status_text(status));
}

static void stop_timer(struct tern_group *g)
{
	if (g->ticking)
		tern_timer_clear(g->ctx, &g->tick);
	g->ticking = false;
}

/* Ends all calls of a failed group, when nothing accesses their memory any more. */
static void drain(struct tern_group *g)
{
	if (g->outstanding)
		return;
	for (unsigned i = 0; i < GROUP_OPS; i++) {
		struct group_call *call = g->ops[i].call;

		g->ops[i].call = NULL;
		if (call)
			group_end_call(g, call, g->status);
	}
	g->op_count = 0;
	while (!tern_list_empty(&g->waiting)) {
		struct group_call *call =
			tern_list_entry(g->waiting.next, struct group_call, node);

		tern_list_remove(&call->node);
		group_end_call(g, call, g->status);
	}
	stop_timer(g);
}

/* ---- progress ---- */

static struct group_lane *free_lane(struct tern_group *g)
{
	for (unsigned i = 0; i < g->lane_count; i++)
		if (!g->lanes[i].op)
			return &g->lanes[i];
	return NULL;
}

/* Begins the oldest call that waits. False: there is none, or its slot is taken. */
static bool start_call(struct tern_group *g)
{
	struct group_call *call;

	if (tern_list_empty(&g->waiting))
		return false;
	call = tern_list_entry(g->waiting.next, struct group_call, node);
	if (g->ops[call->sig.number % GROUP_OPS].call)
		return false;
	tern_list_remove(&call->node);
	group_op_start(g, call);
	if (g->size == 1)
		group_op_check(&g->ops[call->sig.number % GROUP_OPS]);
	return true;
}

/* Starts the next piece, in the order of the operations. False: there is none, or no lane
 * is free. */
static bool start_piece(struct tern_group *g)
{
	struct group_op *op = &g->ops[g->starting % GROUP_OPS];
	struct group_lane *lane;

	if (!op->call || op->call->sig.number != g->starting) {
		/* The operation `starting` has not begun, or has ended. */
		if (g->starting >= g->called ||
			(!tern_list_empty(&g->waiting) &&
				tern_list_entry(g->waiting.next, struct group_call, node)
						->sig.number <= g->starting))
			return false;
		g->starting++;
		return true;
	}
	if (op->next_piece == op->piece_count) {
		g->starting++;
		return true;
	}
	lane = free_lane(g);
	if (!lane)
		return false;
	group_lane_start(lane, op, op->next_piece++);
	return true;
}

void group_step(struct tern_group *g)
{
	if (g->in_step)
		return;
	g->in_step = true;
	while (g->status == 0 && (start_call(g) || start_piece(g)))
		;
	if (g->status)
		drain(g);
	g->in_step = false;
}

/* ---- calls ---- */

static const struct tern_buf nothing;

/* 0: the buffer is inside its host memory. */
static int check_buf(const struct tern_buf *buf)
{
	if (buf->bytes == 0)
		return 0;
	if (!buf->mem || buf->offset > tern_mem_bytes(buf->mem) ||
		buf->bytes > tern_mem_bytes(buf->mem) - buf->offset)
		return -EINVAL;
	return tern_mem_kind(buf->mem) == TERN_MEM_HOST ? 0 : -ENOTSUP;
}

/* As check_buf(), of a buffer that gets a result. */
static int check_out(const struct tern_buf *buf)
{
	int r = check_buf(buf);

	return r == 0 && buf->bytes && buf->mem->read_only ? -EACCES : r;
}

/* True if this rank's `out` gets a result: all but the root's buffer of a broadcast. */
static bool writes_out(const struct tern_group *g, const struct group_signature *sig)
{
	return sig->kind != GROUP_BROADCAST || sig->root != g->rank;
}

/* parts: in_bytes and out_bytes, or NULL. */
static int take_parts(struct tern_group *g, struct tern_group_req *req,
	struct group_signature sig, const struct tern_buf *in, const struct tern_buf *out,
	const uint64_t *const parts[2])
{
	struct group_call *call = call_of(req);
	uint64_t timeout_ns = req->timeout_ns ? req->timeout_ns : g->timeout_ns;
	size_t element = tern_dtype_bytes((enum tern_dtype)sig.dtype);
	int r;

	in = in ? in : &nothing;
	out = out ? out : &nothing;
	if (g->status)
		return g->status;
	if (g->freed || element == 0 || sig.bytes % element || sig.root >= g->size)
		return -EINVAL;
	if (req->posted == TERN_REQ_POSTED && req->status == -EINPROGRESS)
		return -EBUSY;
	r = check_buf(in);
	if (r == 0)
		r = writes_out(g, &sig) ? check_out(out) : check_buf(out);
	if (r)
		return r;
	sig.number = g->called++;
	sig.shape = g->shape;
	req->posted = TERN_REQ_POSTED;
	req->status = -EINPROGRESS;
	req->number = sig.number;
	*call = (struct group_call){.sig = sig,
		.in = *in,
		.out = *out,
		.in_bytes = parts ? parts[0] : NULL,
		.out_bytes = parts ? parts[1] : NULL,
		.in_place = in->bytes && tern_buf_ptr(in) == tern_buf_ptr(out),
		.began_ns = tern_now_ns(g->env)};
	call->due_ns = tern_ns_add(call->began_ns, timeout_ns);
	tern_list_push(&g->waiting, &call->node);
	group_watch_called(g, call);
	group_step(g);
	return 0;
}

static int take(struct tern_group *g, struct tern_group_req *req,
	struct group_signature sig, const struct tern_buf *in, const struct tern_buf *out)
{
	return take_parts(g, req, sig, in, out, NULL);
}

/* The signature of an operation that reduces. */
static struct group_signature reducing(enum group_kind kind, enum tern_dtype dtype,
	enum tern_reduction how, uint64_t bytes, uint32_t root)
{
	bool works = tern_combine_works(dtype, (enum tern_combine)how);

	return (struct group_signature){.bytes = bytes,
		.kind = kind,
		.dtype = works ? dtype : TERN_DTYPE_NONE,
		.how = how,
		.root = root};
}

static struct group_signature moving(enum group_kind kind, uint64_t bytes, uint32_t root)
{
	return (struct group_signature){
		.bytes = bytes, .kind = kind, .dtype = TERN_U8, .root = root};
}

/* True if `whole` has one part of the size of `part` for each rank. */
static bool has_parts(const struct tern_group *g, const struct tern_buf *whole,
	const struct tern_buf *part)
{
	return whole->bytes / g->size == part->bytes && whole->bytes % g->size == 0;
}

int tern_allreduce(struct tern_group *g, struct tern_group_req *req,
	enum tern_dtype dtype, enum tern_reduction how, const struct tern_buf *in,
	const struct tern_buf *out)
{
	if (in->bytes != out->bytes)
		return -EINVAL;
	return take(g, req, reducing(GROUP_ALLREDUCE, dtype, how, in->bytes, 0), in, out);
}

int tern_reduce(struct tern_group *g, struct tern_group_req *req, enum tern_dtype dtype,
	enum tern_reduction how, const struct tern_buf *in, const struct tern_buf *out,
	uint32_t root)
{
	bool is_root = g->rank == root;

	if (is_root && (!out || in->bytes != out->bytes))
		return -EINVAL;
	return take(g, req, reducing(GROUP_REDUCE, dtype, how, in->bytes, root), in,
		is_root ? out : NULL);
}

int tern_broadcast(struct tern_group *g, struct tern_group_req *req,
	const struct tern_buf *buf, uint32_t root)
{
	return take(g, req, moving(GROUP_BROADCAST, buf->bytes, root), buf, buf);
}

int tern_gather(struct tern_group *g, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out, uint32_t root)
{
	bool is_root = g->rank == root;

	if (is_root && (!out || !has_parts(g, out, in)))
		return -EINVAL;
	return take(
		g, req, moving(GROUP_GATHER, in->bytes, root), in, is_root ? out : NULL);
}

int tern_scatter(struct tern_group *g, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out, uint32_t root)
{
	bool is_root = g->rank == root;

	if (is_root && (!in || !has_parts(g, in, out)))
		return -EINVAL;
	return take(g, req, moving(GROUP_SCATTER, out->bytes, root), is_root ? in : NULL,
		out);
}

int tern_all_gather(struct tern_group *g, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out)
{
	if (!has_parts(g, out, in))
		return -EINVAL;
	return take(g, req, moving(GROUP_ALL_GATHER, in->bytes, 0), in, out);
}

int tern_reduce_scatter(struct tern_group *g, struct tern_group_req *req,
	enum tern_dtype dtype, enum tern_reduction how, const struct tern_buf *in,
	const struct tern_buf *out)
{
	if (!has_parts(g, in, out))
		return -EINVAL;
	return take(g, req, reducing(GROUP_REDUCE_SCATTER, dtype, how, out->bytes, 0), in,
		out);
}

int tern_all_to_all(struct tern_group *g, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out)
{
	if (in->bytes != out->bytes || in->bytes % g->size)
		return -EINVAL;
	return take(g, req, moving(GROUP_ALL_TO_ALL, in->bytes, 0), in, out);
}

static bool sums_to(const struct tern_group *g, const uint64_t *parts, uint64_t bytes)
{
	for (uint32_t i = 0; i < g->size; i++) {
		if (parts[i] > bytes)
			return false;
		bytes -= parts[i];
	}
	return bytes == 0;
}

static bool overlap(const struct tern_buf *a, const struct tern_buf *b)
{
	const char *p = tern_buf_ptr(a), *q = tern_buf_ptr(b);

	return a->bytes && b->bytes && p < q + b->bytes && q < p + a->bytes;
}

int tern_all_to_all_v(struct tern_group *g, struct tern_group_req *req,
	const struct tern_buf *in, const uint64_t *in_bytes, const struct tern_buf *out,
	const uint64_t *out_bytes)
{
	if (!sums_to(g, in_bytes, in->bytes) || !sums_to(g, out_bytes, out->bytes) ||
		in_bytes[g->rank] != out_bytes[g->rank] ||
		(!check_buf(in) && !check_buf(out) && overlap(in, out)))
		return -EINVAL;
	return take_parts(g, req, moving(GROUP_ALL_TO_ALL_V, 0, 0), in, out,
		(const uint64_t *[]){in_bytes, out_bytes});
}

int tern_barrier(struct tern_group *g, struct tern_group_req *req)
{
	return take(g, req, moving(GROUP_BARRIER, 0, 0), NULL, NULL);
}

/* ---- make and free ---- */

static int check_opts(struct tern_context *ctx, const struct tern_group_opts *o)
{
	if (o->size > TERN_GROUP_SIZE_MAX)
		return -E2BIG;
	if (o->rank >= o->size || (o->size > 1 && !o->peers) || o->lanes > LANES_MAX ||
		o->piece_bytes % PIECE_UNIT)
		return -EINVAL;
	for (uint32_t i = 0; i < o->size; i++)
		if (i != o->rank && (!o->peers[i] || o->peers[i]->rdv->ctx != ctx))
			return -EINVAL;
	return 0;
}

/* Sorts the ranks by host; hosts have indexes in the order of their first ranks. */
static int sort_hosts(struct tern_group *g, const uint32_t *hosts)
{
	uint32_t placed = 0;

	g->host_of = calloc(g->size, sizeof(*g->host_of));
	g->members = calloc(g->size, sizeof(*g->members));
	g->first = calloc(g->size + 1, sizeof(*g->first));
	g->leaders = calloc(g->size, sizeof(*g->leaders));
	if (!g->host_of || !g->members || !g->first || !g->leaders)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->size; i++)
		g->host_of[i] = GROUP_NOBODY;
	for (uint32_t i = 0; i < g->size; i++) {
		if (g->host_of[i] != GROUP_NOBODY)
			continue;
		g->first[g->host_count] = placed;
		for (uint32_t k = i; k < g->size; k++)
			if (!hosts || hosts[k] == hosts[i]) {
				g->host_of[k] = g->host_count;
				g->members[placed++] = k;
			}
		g->first[++g->host_count] = placed;
	}
	return 0;
}

static uint64_t shape_of(const struct tern_group *g)
{
	uint64_t shape = tern_mix64((uint64_t)g->size << 32 | g->piece_bytes);

	for (uint32_t i = 0; i < g->size; i++)
		shape = tern_mix64(shape ^ g->host_of[i]);
	return shape;
}

static struct tern_buf carve(struct tern_buf *rest, uint64_t bytes)
{
	struct tern_buf buf = *rest;

	buf.bytes = bytes;
	rest->offset += bytes;
	rest->bytes -= bytes;
	return buf;
}

/* Takes all buffers from one pool. */
static int take_memory(struct tern_group *g)
{
	uint64_t scratch = 2ull * g->piece_bytes;
	uint64_t total =
		g->lane_count * scratch + 2ull * BUFFER_BYTES * (g->size + GROUP_OPS);
	struct tern_pool_opts opts = {.slab_bytes = tern_align_up(total, 4096)};
	struct tern_buf rest;
	int r = tern_pool_new(tern_context_domain(g->ctx), &opts, &g->pool);

	if (r == 0)
		r = tern_pool_get(g->pool, total, &g->memory);
	if (r)
		return r;
	rest = g->memory;
	for (unsigned i = 0; i < g->lane_count; i++)
		g->lanes[i].scratch = carve(&rest, scratch);
	for (uint32_t i = 0; i < g->size; i++) {
		g->links[i].send_buf = carve(&rest, BUFFER_BYTES);
		g->links[i].recv_buf = carve(&rest, BUFFER_BYTES);
		g->links[i].send_buf.bytes = sizeof(struct group_note);
	}
	for (unsigned i = 0; i < GROUP_OPS; i++) {
		g->ops[i].group = g;
		g->ops[i].mine = carve(&rest, BUFFER_BYTES);
		g->ops[i].theirs = carve(&rest, BUFFER_BYTES);
		g->ops[i].mine.bytes = sizeof(struct group_signature);
	}
	return 0;
}

static int make_lanes(struct tern_group *g)
{
	g->links = calloc(g->size, sizeof(*g->links));
	g->lanes = calloc(g->lane_count, sizeof(*g->lanes));
	if (!g->links || !g->lanes)
		return -ENOMEM;
	for (unsigned i = 0; i < g->lane_count; i++) {
		g->lanes[i].group = g;
		g->lanes[i].rounds = calloc(
			group_plan_rounds_max(g->size), sizeof(struct group_round));
		if (!g->lanes[i].rounds)
			return -ENOMEM;
	}
	return 0;
}

static int open_links(struct tern_group *g, const struct tern_group_opts *o)
{
	int r = 0;

	for (uint32_t i = 0; i < g->size; i++) {
		g->links[i].group = g;
		g->links[i].rank = i;
	}
	for (uint32_t i = 0; i < g->size && r == 0; i++) {
		if (i == g->rank)
			continue;
		g->links[i].peer = o->peers[i];
		r = tern_channel_open(o->peers[i], o->number, &g->links[i].channel);
	}
	return r;
}

int tern_group_new_sized(struct tern_context *ctx, const struct tern_group_opts *opts,
	size_t opts_bytes, struct tern_group **out)
{
	struct tern_group_opts o;
	struct tern_group *g;
	int r = tern_read_sized(&o, sizeof(o), opts, opts_bytes);

	*out = NULL;
	r = r ? r : check_opts(ctx, &o);
	if (r)
		return r;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->ctx = ctx;
	g->env = tern_context_env(ctx);
	g->rank = o.rank;
	g->size = o.size;
	g->timeout_ns = o.timeout_ns ? o.timeout_ns : TIMEOUT_NS;
	g->piece_bytes = o.piece_bytes ? o.piece_bytes : PIECE_BYTES;
	g->lane_count = o.lanes ? o.lanes : LANES;
	tern_list_init(&g->waiting);
	tern_list_init(&g->ended);
	tern_list_init(&g->finish.node);
	g->finish.call = finish;
	r = sort_hosts(g, o.hosts);
	if (r == 0)
		g->shape = shape_of(g);
	r = r ? r : make_lanes(g);
	r = r ? r : take_memory(g);
	r = r ? r : open_links(g, &o);
	if (r) {
		destroy(g);
		return r;
	}
	r = group_watch_start(g);
	if (r) {
		tern_group_free(g);
		return r;
	}
	*out = g;
	return 0;
}

void tern_group_free(struct tern_group *g)
{
	if (!g)
		return;
	if (g->op_count || !tern_list_empty(&g->waiting))
		group_fail(g, -ECANCELED, "rank %u has left the group", g->rank);
	/* While requests are under way, the timer cuts ranks that do not answer. */
	if (!g->outstanding)
		stop_timer(g);
	g->freed = true;
	group_watch_leave(g);
	group_settle(g);
}

uint32_t tern_group_rank(const struct tern_group *g)
{
	return g->rank;
}

uint32_t tern_group_size(const struct tern_group *g)
{
	return g->size;
}

int tern_group_status(const struct tern_group *g)
{
	return g->status;
}

const char *tern_group_text(const struct tern_group *g)
{
	return g->text;
}
