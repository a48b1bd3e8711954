/* SPDX-License-Identifier: Apache-2.0 */
/* Records the tensors that the slot in progress does not push, and sends them as marks
 * (ps/marks.h). */
#include "ps/marks.h"

#include <errno.h>
#include <string.h>

#include "client/worker_state.h"

struct sending { /* the marks of one chunk on their way */
	struct tern_req req;
	struct tern_worker *worker;
	uint32_t chunk;
	struct tern_buf buf;
};

int marks_init(struct tern_worker *w)
{
	w->unpushed = calloc(tern_marks_bytes(w->job.param_count), 1);
	w->marks = calloc(tern_marks_bytes(w->job.param_count), 1);
	return w->unpushed && w->marks ? 0 : -ENOMEM;
}

void marks_fini(struct tern_worker *w)
{
	free(w->unpushed);
	free(w->marks);
}

void marks_begin(struct tern_worker *w)
{
	if (w->unpushed_count > 0)
		memset(w->unpushed, 0, tern_marks_bytes(w->job.param_count));
	w->unpushed_count = 0;
}

void marks_say(struct tern_worker *w, uint32_t param)
{
	tern_marks_add(w->unpushed, param);
	w->unpushed_count++;
}

static void sent(struct tern_req *req)
{
	struct sending *m = req->arg;

	if (req->status < 0 && !m->worker->over)
		worker_failed(m->worker, m->chunk, req->status);
	tern_pool_put(m->worker->talk_pool, &m->buf);
	free(m);
}

static bool has_unpushed(const struct tern_worker *w, struct tern_marks_span span)
{
	if (w->unpushed_count == 0)
		return false;
	for (uint32_t i = 0; i < span.count; i++)
		if (tern_marks_has(w->unpushed, span.first + i))
			return true;
	return false;
}

/* Copies the bits of these tensors. */
static void copy(const struct tern_worker *w, struct tern_marks_span span, uint8_t *marks)
{
	memset(marks, 0, tern_marks_bytes(span.count));
	for (uint32_t i = 0; i < span.count; i++)
		if (tern_marks_has(w->unpushed, span.first + i))
			tern_marks_add(marks, i);
}

static int send(struct sending *m, struct tern_marks_span span, uint64_t step)
{
	struct tern_worker *w = m->worker;
	const struct tern_chunk *c = &w->plan.chunks[m->chunk];
	uint64_t bytes = tern_marks_bytes(span.count);
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};
	int r = tern_pool_get(w->talk_pool, bytes, &m->buf);

	if (r < 0)
		return r == -EAGAIN ? -ENOMEM : r;
	copy(w, span, tern_buf_ptr(&m->buf));
	tensor.buf = m->buf;
	m->req.done = sent;
	m->req.arg = m;
	w->byte_count += bytes;
	r = tern_send(w->servers[c->server].data, &m->req, c->marks_key, step, &tensor,
		NULL, 0);
	if (r < 0)
		tern_pool_put(w->talk_pool, &m->buf);
	return r;
}

bool marks_send(struct tern_worker *w, uint32_t chunk, uint64_t step)
{
	struct tern_marks_span span = tern_marks_span(&w->job, &w->plan.chunks[chunk]);
	struct sending *m;
	int r;

	if (!has_unpushed(w, span))
		return false;
	m = calloc(1, sizeof(*m));
	if (m) {
		m->worker = w;
		m->chunk = chunk;
	}
	r = m ? send(m, span, step) : -ENOMEM;
	if (r < 0) {
		free(m);
		worker_give_up(w, r, "cannot say which tensors were not pushed: %s",
			tern_status_text(r));
	}
	return true;
}

const uint8_t *marks_of(const struct tern_worker *w, uint32_t chunk, uint64_t *bytes)
{
	struct tern_marks_span span = tern_marks_span(&w->job, &w->plan.chunks[chunk]);

	*bytes = tern_marks_bytes(span.count);
	if (!has_unpushed(w, span))
		return NULL;
	copy(w, span, w->marks);
	return w->marks;
}
