/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's half of windows: the table of a context, what peers may do with a window,
 * and the bytes that this end must move for them.
 *
 * A peer that asks for a window (OPEN) gets a grant, which holds for the present link,
 * and the region of the window if the fabric lets the peer access it directly. Otherwise
 * the peer sends WRITE (with the bytes, or with a region to read them from) or READ (with
 * a region to put them into), and this end moves the bytes and answers DONE. FENCE is
 * answered by DONE, too: the fabric delivers it behind the puts that were sent before it.
 * Bytes of GPU memory are moved by window_move.c.
 *
 *     tern_window_close:  CLOSE to each peer with a grant  -->
 *                                             <-- LEFT, when its requests are over
 *
 * A window ends when it is closed, no grant is left, and none of its bytes are being moved.
 * A grant ends with LEFT, or with the link.
 */
#include "rendezvous/window.h"

#include <errno.h>
#include <string.h>

#include "base/endian.h"
#include "rendezvous/rendezvous.h"
#include "transport/memory/mem.h"

/* Entries of a peer's table of jobs: TERN_PARTS_MAX that it waits for, which is its limit,
 * and those whose DONE was sent before the fabric has ended the put. */
#define JOBS_MAX (TERN_PARTS_MAX + TERN_CONN_PUTS)

static bool is_host(const struct tern_window *window)
{
	return window->buf.mem->kind == TERN_MEM_HOST;
}

/* ---- the table ---- */

/* The memory by which a fabric accesses the window, and the window's offset in it. */
static struct tern_mem *memory_on(
	const struct tern_window *window, const struct tern_conn *conn, uint64_t *offset)
{
	bool own = window->own && conn->port->ops->pins_memory;

	*offset = own ? 0 : window->buf.offset;
	return own ? window->own : window->buf.mem;
}

/* Registers the window's memory once more, if the domain has a fabric whose devices check
 * accesses by a registration: closing the window then ends the registration. */
static int register_own(struct tern_window *window)
{
	struct tern_domain *domain = window->rdv->ctx->domain;
	void *base = tern_buf_ptr(&window->buf);
	bool pins = false;

	for (unsigned i = 0; i < domain->fabric_count; i++)
		pins |= domain->fabrics[i]->ops->pins_memory;
	if (!pins)
		return 0;
	/* The device refuses writes to what is registered for reading only. */
	return window->buf.mem->read_only || !(window->access & TERN_WINDOW_WRITE)
		       ? tern_mem_wrap_readonly(
				 domain, base, window->buf.bytes, &window->own)
		       : tern_mem_wrap(domain, base, window->buf.bytes, &window->own);
}

int tern_window_new(struct tern_context *ctx, const struct tern_buf *buf, unsigned access,
	struct tern_window **out)
{
	struct tern_rdv *rdv = tern_rdv_of(ctx);
	struct tern_stager *stager;
	struct tern_window *window;
	int r;

	if (!buf->bytes || !buf->mem ||
		!tern_mem_holds(buf->mem, buf->offset, buf->bytes) || !access ||
		(access & ~(unsigned)(TERN_WINDOW_READ | TERN_WINDOW_WRITE)))
		return -EINVAL;
	if ((access & TERN_WINDOW_WRITE) && buf->mem->read_only)
		return -EACCES;
	r = tern_stage_open(rdv, buf, &stager);
	if (r < 0)
		return r;
	window = calloc(1, sizeof(*window));
	if (!window)
		return -ENOMEM;
	window->rdv = rdv;
	window->buf = *buf;
	window->access = access;
	tern_list_init(&window->grants);
	r = is_host(window) ? register_own(window) : 0;
	if (r < 0) {
		free(window);
		return r;
	}
	window->id = ++rdv->windows.last_id;
	window->capability[0] = tern_random(ctx->env);
	window->capability[1] = tern_random(ctx->env);
	tern_map_node_init(&window->by_id);
	tern_map_add(&rdv->windows.by_id, &window->by_id, window->id);
	tern_list_push(&rdv->windows.all, &window->all);
	*out = window;
	return 0;
}

void tern_window_describe(const struct tern_window *window, struct tern_window_desc *out)
{
	*out = (struct tern_window_desc){
		.incarnation = window->rdv->incarnation,
		.id = window->id,
		.capability = {window->capability[0], window->capability[1]},
		.bytes = window->buf.bytes,
		.kind = (uint32_t)window->buf.mem->kind,
		.access = window->access,
	};
}

static struct tern_window *window_by_id(const struct tern_rdv *rdv, uint64_t id)
{
	struct tern_map_node *n = tern_map_find(&rdv->windows.by_id, id);

	return n ? tern_container_of(n, struct tern_window, by_id) : NULL;
}

static void window_free(struct tern_window *window)
{
	struct tern_req *closer = window->closer;

	tern_timer_clear(window->rdv->ctx, &window->deadline);
	tern_map_remove(&window->rdv->windows.by_id, &window->by_id);
	tern_list_remove(&window->all);
	tern_mem_put(window->own);
	free(window);
	if (closer)
		tern_wreq_complete(tern_wreq_of(closer), 0);
}

static void maybe_end(struct tern_window *window)
{
	if (window->closing && tern_list_empty(&window->grants) && !window->job_count)
		window_free(window);
}

/* ---- grants ---- */

static struct tern_grant *grant_by_id(const struct tern_peer *peer, uint64_t id)
{
	struct tern_map_node *n = tern_map_find(&peer->windows.grants, id);

	return n ? tern_container_of(n, struct tern_grant, by_id) : NULL;
}

static struct tern_grant *grant_new(struct tern_peer *peer, struct tern_window *window)
{
	struct tern_grant *grant = calloc(1, sizeof(*grant));

	if (!grant)
		return NULL;
	grant->peer = peer;
	grant->window = window;
	tern_list_init(&grant->queue);
	tern_map_node_init(&grant->by_id);
	tern_map_add(&peer->windows.grants, &grant->by_id, window->id);
	tern_list_push(&window->grants, &grant->of_window);
	tern_list_push(&peer->windows.granted, &grant->of_peer);
	return grant;
}

static void grant_free(struct tern_grant *grant)
{
	struct tern_window *window = grant->window;

	tern_list_remove(&grant->of_window);
	tern_list_remove(&grant->of_peer);
	free(grant);
	maybe_end(window);
}

static void withdrawn(struct tern_op *op, int status)
{
	(void)status;
	grant_free(tern_container_of(op, struct tern_grant, op));
}

/* Ends a peer's access to a window, at once or when the bytes that the fabric is just
 * writing are there. */
static void grant_end(struct tern_grant *grant)
{
	struct tern_port *port = grant->peer->port;

	if (grant->withdrawing)
		return;
	tern_list_remove(&grant->queue);
	tern_map_remove(&grant->peer->windows.grants, &grant->by_id);
	grant->op.done = withdrawn;
	if (grant->exposed &&
		port->ops->withdraw(port, &grant->op, &grant->region) == -EINPROGRESS) {
		grant->withdrawing = true;
		return;
	}
	grant_free(grant);
}

/* Exposes the window to the peer, as far as the fabric can access it directly. Stores the
 * bits of OPENED in *about. */
static int grant_expose(struct tern_grant *grant, uint32_t *about)
{
	const struct tern_window *window = grant->window;
	struct tern_conn *conn = tern_peer_conn(grant->peer);
	unsigned access = 0;
	uint64_t offset;
	struct tern_mem *mem = memory_on(window, conn, &offset);
	bool copied = tern_conn_copies(conn, mem);
	int r;

	*about = window->access;
	if (!is_host(window)) {
		*about |= TERN_OPENED_MOVES;
		return 0;
	}
	if ((window->access & TERN_WINDOW_READ) && (conn->caps & TERN_CAP_GET) &&
		!copied) {
		access |= TERN_ACCESS_READ;
		*about |= TERN_OPENED_GET;
	}
	if ((window->access & TERN_WINDOW_WRITE) &&
		(conn->caps & (TERN_CAP_PUT | TERN_CAP_WINDOW_PUT))) {
		access |= TERN_ACCESS_WRITE;
		*about |= TERN_OPENED_PUT;
		if ((conn->caps & TERN_CAP_LANDS) && !copied)
			*about |= TERN_OPENED_LANDS;
	}
	if (!access || grant->exposed)
		return 0;
	r = conn->port->ops->expose(conn, mem, offset, window->buf.bytes,
		(enum tern_access)access, &grant->region);
	grant->exposed = r == 0;
	return r;
}

/* ---- OPEN ---- */

/* Finds the window that a message names by id and capability. -ESTALE: it is closed;
 * -EACCES: there never was such a window, or the capability is another. */
static int find_proven(
	const struct tern_rdv *rdv, const struct tern_header *h, struct tern_window **out)
{
	const unsigned char *theirs = h->payload;
	uint64_t differ;

	*out = window_by_id(rdv, h->key);
	if (!*out)
		return h->key && h->key <= rdv->windows.last_id ? -ESTALE : -EACCES;
	/* In constant time, so that its duration reveals no part of the capability. */
	differ = (tern_get_le64(theirs) ^ (*out)->capability[0]) |
		 (tern_get_le64(theirs + 8) ^ (*out)->capability[1]);
	if (differ)
		return -EACCES;
	return (*out)->closing ? -ESTALE : 0;
}

/* Finds the window that OPEN asks for. -ESTALE: it is closed, or of an earlier context;
 * -EACCES: the peer does not have its descriptor. */
static int check_open(
	const struct tern_rdv *rdv, const struct tern_header *h, struct tern_window **out)
{
	int r = h->step == rdv->incarnation ? find_proven(rdv, h, out) : -ESTALE;

	return r == 0 && h->bytes != (*out)->buf.bytes ? -EACCES : r;
}

int tern_window_on_open(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_window *window = NULL;
	int status;

	if (!h->src || w->answer_count == TERN_OPENS_MAX)
		return -EPROTO;
	status = check_open(peer->rdv, h, &window);
	if (status == 0 && !grant_by_id(peer, window->id) && !grant_new(peer, window))
		status = -ENOMEM;
	w->answers[w->answer_count++] =
		(struct tern_open_answer){.id = h->key, .dst = h->src, .status = status};
	tern_windows_due(peer);
	return 0;
}

/* Sends the answer to an OPEN. Returns 1 if the fabric cannot expose the window now, since
 * too many ranges are exposed; -EAGAIN: no room for the message. */
static int say_opened(struct tern_peer *peer, struct tern_open_answer *answer)
{
	struct tern_header h = {.type = TERN_MSG_WINDOW_OPENED,
		.dst = answer->dst,
		.status = (int16_t)answer->status};
	struct tern_grant *grant = answer->status ? NULL : grant_by_id(peer, answer->id);
	int r;

	if (!grant && !answer->status)
		h.status = -ESTALE; /* the window was closed meanwhile */
	r = grant ? grant_expose(grant, &h.channel) : 0;
	if (r == -EAGAIN)
		return 1;
	if (r < 0) {
		grant_end(grant);
		grant = NULL;
		h.channel = 0;
		h.status = (int16_t)r;
		answer->status = r;
	}
	if (grant) {
		h.bytes = grant->window->buf.bytes;
		h.flags = grant->exposed ? TERN_FLAG_REGION : 0;
		h.region = grant->region;
	}
	if (tern_window_say(peer, &h, NULL) < 0)
		return -EAGAIN;
	if (grant)
		grant->told = true;
	return 0;
}

/* Sends the answers that can be sent. One that waits for the fabric holds up nothing
 * else. */
static int say_answers(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;

	for (uint32_t i = 0; i < w->answer_count;) {
		int r = say_opened(peer, &w->answers[i]);

		if (r < 0)
			return r;
		if (r > 0) {
			i++;
			continue;
		}
		w->answer_count--;
		memmove(w->answers + i, w->answers + i + 1,
			(w->answer_count - i) * sizeof(w->answers[0]));
	}
	return 0;
}

/* ---- moving bytes for the peer ---- */

/* Adds a job to the table. -EPROTO: the peer has more than it may; -ENOMEM. */
static int job_new(
	struct tern_peer *peer, const struct tern_header *h, struct tern_job **out)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_job *job;

	if (!w->jobs)
		w->jobs = calloc(JOBS_MAX, sizeof(*w->jobs));
	if (!w->jobs)
		return -ENOMEM;
	if (w->job_count - w->answered_count == TERN_PARTS_MAX)
		return -EPROTO;
	for (job = w->jobs; job->state != TERN_JOB_FREE; job++)
		;
	*job = (struct tern_job){.peer = peer,
		.src = h->src,
		.offset = h->step,
		.bytes = h->bytes,
		.region = h->region,
		.state = TERN_JOB_ANSWER};
	w->job_count++;
	tern_list_init(&job->queue);
	tern_list_push(&w->jobs_due, &job->queue);
	tern_windows_due(peer);
	*out = job;
	return 0;
}

static void job_leave_window(struct tern_job *job)
{
	struct tern_window *window = job->window;

	job->window = NULL;
	if (window)
		tern_window_unhold(window);
}

static void job_free(struct tern_job *job)
{
	tern_list_remove(&job->queue);
	job->state = TERN_JOB_FREE;
	job->peer->windows.job_count--;
	job->peer->windows.answered_count -= job->answered;
	job_leave_window(job);
}

/* Called when a get for a WRITE has ended, or a put for a READ. After a failure other than
 * -EACCES the link ends, and the job with it. */
static void moved(struct tern_op *op, int status)
{
	struct tern_job *job = tern_container_of(op, struct tern_job, op);
	struct tern_peer *peer = job->peer;

	job->op_out = false;
	peer->windows.push_count -= job->pushed;
	job_leave_window(job);
	if (job->answered) {
		job_free(job);
	} else if (job->state == TERN_JOB_MOVING && (status == 0 || status == -EACCES)) {
		job->status = status;
		job->state = TERN_JOB_ANSWER;
		tern_list_push(&peer->windows.jobs_due, &job->queue);
	}
	tern_windows_due(peer);
	tern_peer_pump(peer);
}

static int job_start(struct tern_job *job)
{
	struct tern_conn *conn = tern_peer_conn(job->peer);
	uint64_t offset;
	struct tern_mem *mem = memory_on(job->window, conn, &offset);
	bool pull = job->state == TERN_JOB_PULL;
	int r;

	offset += job->offset;
	job->op.done = moved;
	r = pull ? conn->port->ops->get(
			   conn, &job->op, mem, offset, job->bytes, &job->region, 0)
		 : conn->port->ops->put(
			   conn, &job->op, mem, offset, job->bytes, &job->region, 0);
	if (r < 0)
		return -EAGAIN;
	job->op_out = true;
	job->pushed = !pull;
	job->peer->windows.push_count += job->pushed;
	/* DONE of a READ may follow the put at once: they arrive in this order. */
	job->state = pull ? TERN_JOB_MOVING : TERN_JOB_ANSWER;
	if (pull)
		tern_list_remove(&job->queue);
	return 0;
}

static int job_answer(struct tern_job *job)
{
	struct tern_header h = {.type = TERN_MSG_WINDOW_DONE,
		.dst = job->src,
		.status = (int16_t)job->status};

	if (tern_window_say(job->peer, &h, NULL) < 0)
		return -EAGAIN;
	job->peer->windows.moved_count++;
	if (!job->op_out) {
		job_free(job);
		return 0;
	}
	job->answered = true;
	job->peer->windows.answered_count++;
	job->state = TERN_JOB_MOVING;
	tern_list_remove(&job->queue);
	return 0;
}

/* Takes the job's next step. While the fabric has as many puts as those of a connection's
 * sends, another one waits, so that small messages wait behind few chunks; moved() goes
 * on. */
static int job_step(struct tern_job *job)
{
	if (job->state == TERN_JOB_ANSWER)
		return job_answer(job);
	if (job->state == TERN_JOB_PUSH &&
		job->peer->windows.push_count == TERN_CONN_PUTS)
		return 0;
	return job_start(job);
}

/* Takes the next steps of all jobs. The answer to a READ follows its put at once. */
static int run_jobs(struct tern_peer *peer)
{
	tern_list_for_each_safe (n, &peer->windows.jobs_due) {
		struct tern_job *job = tern_list_entry(n, struct tern_job, queue);

		if (job_step(job) < 0 || (job->op_out && job->state == TERN_JOB_ANSWER &&
						 job_answer(job) < 0))
			return -EAGAIN;
	}
	return 0;
}

/* True if the range of the message is inside the window. */
static bool holds(const struct tern_window *window, const struct tern_header *h)
{
	return h->step <= window->buf.bytes && h->bytes <= window->buf.bytes - h->step;
}

/* True if the peer may access this range of a window that it has opened, by messages that
 * only host memory has. */
static bool is_granted(
	const struct tern_grant *grant, const struct tern_header *h, unsigned access)
{
	const struct tern_window *window = grant ? grant->window : NULL;

	return window && is_host(window) && grant->told && (window->access & access) &&
	       h->src && h->bytes && holds(window, h);
}

int tern_window_on_write(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_grant *grant = grant_by_id(peer, h->key);
	bool pull = h->flags & TERN_FLAG_REGION;
	struct tern_job *job;
	int r;

	if (!is_granted(grant, h, TERN_WINDOW_WRITE) ||
		(pull && !(tern_peer_caps(peer) & TERN_CAP_GET)))
		return -EPROTO;
	r = job_new(peer, h, &job);
	if (r < 0)
		return r;
	if (grant->window->closing) {
		job->status = -ESTALE;
	} else if (pull) {
		job->state = TERN_JOB_PULL;
		job->window = grant->window;
		job->window->job_count++;
	} else {
		memcpy((char *)tern_buf_ptr(&grant->window->buf) + h->step, h->payload,
			h->bytes);
	}
	return 0;
}

int tern_window_on_read(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_grant *grant = grant_by_id(peer, h->key);
	struct tern_job *job;
	int r;

	if (!is_granted(grant, h, TERN_WINDOW_READ) || !(h->flags & TERN_FLAG_REGION) ||
		!(tern_peer_caps(peer) & TERN_CAP_PUT))
		return -EPROTO;
	r = job_new(peer, h, &job);
	if (r < 0)
		return r;
	if (grant->window->closing) {
		job->status = -ESTALE;
		return 0;
	}
	job->state = TERN_JOB_PUSH;
	job->window = grant->window;
	job->window->job_count++;
	return 0;
}

int tern_window_on_fence(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_job *job;

	return h->src ? job_new(peer, h, &job) : -EPROTO;
}

/* ---- windows that window_move.c uses ---- */

int tern_window_hold(struct tern_peer *peer, const struct tern_header *h,
	struct tern_window **out, struct tern_buf *range)
{
	unsigned right = h->flags & TERN_FLAG_RECV ? TERN_WINDOW_READ : TERN_WINDOW_WRITE;
	struct tern_window *window;
	int r = find_proven(peer->rdv, h, &window);

	if (r == 0 && !(window->access & right))
		r = -EACCES;
	if (r == 0 && !holds(window, h))
		r = -ERANGE;
	if (r < 0)
		return r;
	/* The next link may be on a fabric that registers memory, though this one is not. */
	if (window->own && !(tern_peer_caps(peer) & TERN_CAP_BOUND))
		*range = (struct tern_buf){.mem = window->own};
	else
		*range = window->buf;
	range->offset += h->step;
	range->bytes = h->bytes;
	window->job_count++;
	*out = window;
	return 0;
}

void tern_window_unhold(struct tern_window *window)
{
	window->job_count--;
	maybe_end(window);
}

/* ---- closing ---- */

/* True if the peer may access the window, or if bytes of it are being moved for the peer,
 * which may go on after the peer has left. */
static bool uses(struct tern_peer *peer, const struct tern_window *window)
{
	const struct tern_job *jobs = peer->windows.jobs;

	if (grant_by_id(peer, window->id) || tern_moves_use(peer, window))
		return true;
	for (uint32_t i = 0; jobs && i < JOBS_MAX; i++)
		if (jobs[i].state != TERN_JOB_FREE && jobs[i].window == window)
			return true;
	return false;
}

static void deadline(struct tern_timer *timer)
{
	struct tern_window *window =
		tern_container_of(timer, struct tern_window, deadline);

	/* Held, so that it does not end before the last peer was visited. */
	window->job_count++;
	tern_list_for_each_safe (n, &window->rdv->peers) {
		struct tern_peer *peer = tern_list_entry(n, struct tern_peer, node);
		bool moves;

		if (!uses(peer, window))
			continue;
		/* The halves of parts that are under way survive a lost connection. */
		moves = tern_moves_use(peer, window);
		tern_log(window->rdv->ctx->env, TERN_LOG_WARN,
			"%s: has not left a window of %llu bytes that was closed: the "
			"%s",
			peer->name, (unsigned long long)window->buf.bytes,
			moves ? "session ends" : "connection is cut");
		if (moves)
			tern_peer_down(peer, -ETIMEDOUT);
		else
			tern_peer_cut(peer, -ETIMEDOUT);
	}
	tern_window_unhold(window);
}

static int start_close(struct tern_window *window, uint64_t timeout_ns)
{
	struct tern_context *ctx = window->rdv->ctx;

	if (!timeout_ns)
		timeout_ns = ctx->opts.unreachable_ns;
	window->deadline.fire = deadline;
	return tern_timer_set(
		ctx, &window->deadline, tern_ns_add(tern_now_ns(ctx->env), timeout_ns));
}

int tern_window_close_sized(struct tern_window *window, struct tern_req *req,
	size_t req_bytes, uint64_t timeout_ns)
{
	int r = req ? tern_req_check(req, req_bytes) : 0;

	if (r == 0)
		r = start_close(window, timeout_ns);
	if (r < 0)
		return r;
	if (req)
		tern_wreq_init(req, window->rdv, TERN_WREQ_CLOSE);
	window->closer = req;
	window->closing = true;
	/* Held, so that it does not end before the last grant was visited. */
	window->job_count++;
	tern_list_for_each_safe (n, &window->grants) {
		struct tern_grant *grant =
			tern_list_entry(n, struct tern_grant, of_window);

		if (grant->withdrawing)
			continue;
		if (!grant->told) {
			grant_end(grant);
			continue;
		}
		tern_list_push(&grant->peer->windows.closes, &grant->queue);
		tern_windows_due(grant->peer);
		tern_peer_pump(grant->peer);
	}
	tern_window_unhold(window);
	return 0;
}

static int say_closes(struct tern_peer *peer)
{
	struct tern_grant *grant;

	while ((grant = tern_list_first(
			&peer->windows.closes, struct tern_grant, queue))) {
		struct tern_header h = {
			.type = TERN_MSG_WINDOW_CLOSE, .key = grant->window->id};

		if (tern_window_say(peer, &h, NULL) < 0)
			return -EAGAIN;
		tern_list_remove(&grant->queue);
	}
	return 0;
}

int tern_window_on_left(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_grant *grant = grant_by_id(peer, h->key);

	if (!grant || !grant->told)
		return -EPROTO;
	grant_end(grant);
	return 0;
}

/* ---- notifications ---- */

/* The bytes are copied first, since the callback may end the connection and with it the
 * memory of the message. */
int tern_window_on_notify(struct tern_peer *peer, const struct tern_header *h)
{
	_Alignas(8) char data[TERN_NOTE_MAX];

	memcpy(data, h->payload, h->bytes);
	peer->stream.ack_due = true;
	tern_stream_tell(peer);
	if (peer->freed)
		return 0;
	if (peer->opts.notified)
		peer->opts.notified(peer, data, h->bytes, peer->opts.arg);
	else if (!peer->windows.dropped_note)
		tern_log(peer->rdv->ctx->env, TERN_LOG_WARN,
			"%s: notifications are dropped, the first one of %llu bytes: the "
			"peer's options have no notified()",
			peer->name, (unsigned long long)h->bytes);
	peer->windows.dropped_note |= !peer->opts.notified;
	return 0;
}

/* ---- the link ---- */

int tern_window_pump_owner(struct tern_peer *peer)
{
	return say_answers(peer) < 0 || say_closes(peer) < 0 || run_jobs(peer) < 0 ||
			       tern_move_answer(peer) < 0
		       ? -EAGAIN
		       : 0;
}

void tern_window_lost_owner(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;

	w->answer_count = 0;
	for (uint32_t i = 0; w->jobs && i < JOBS_MAX; i++) {
		tern_assert(!w->jobs[i].op_out);
		if (w->jobs[i].state != TERN_JOB_FREE)
			job_free(&w->jobs[i]);
	}
	tern_list_for_each_safe (n, &w->granted)
		grant_end(tern_list_entry(n, struct tern_grant, of_peer));
	tern_assert(tern_list_empty(&w->granted));
}

void tern_windows_end(struct tern_rdv *rdv)
{
	tern_list_for_each_safe (n, &rdv->windows.all)
		window_free(tern_list_entry(n, struct tern_window, all));
}
