/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for Python: sends, receives, and those of native_window.c.
 *
 *     Request() --send, ...--> posted --the library's done()--> ended --collect()--> collected
 *
 * From the post to collect() the library uses the request and its memory: the request has a
 * reference to itself then. What a receive with a buffer of the library holds is given back
 * when nobody has the request any more, nor the buffer that it was made into.
 */
#include "python/pytern/native_transport.h"

#include <errno.h>

static PyObject *request_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	(void)args;
	(void)keywords;
	return new_object(type);
}

/* Called with the context locked, without the GIL. */
static void ended(struct tern_req *req)
{
	struct request *self = req->arg;
	struct context *context = self->context;

	pthread_mutex_lock(&context->lock);
	*context->last_ended = self;
	context->last_ended = &self->next;
	context_notify(context);
	pthread_mutex_unlock(&context->lock);
}

/* ---- posting ---- */

bool request_may_begin(struct request *self, struct context *context)
{
	if (self->context) {
		raise_text(-EBUSY, "the request was posted before: make another one");
		return false;
	}
	return context_is_usable(context);
}

void request_begin(struct request *self, struct context *context, PyObject *uses)
{
	context_keep(context);
	Py_INCREF((PyObject *)context);
	self->context = context;
	Py_XINCREF(uses);
	self->uses = uses;
	self->req.done = ended;
	self->req.arg = self;
	context->posted_count++;
	Py_INCREF((PyObject *)self);
}

/* Gives a send or receive the memory that it needs. `uses` as request_begin(). Returns false
 * with an exception. */
static bool prepare_memory(struct request *self, struct context *context,
	struct buffer *memory, PyObject *uses)
{
	if (!request_may_begin(self, context))
		return false;
	if (memory && memory->context != context) {
		PyErr_SetString(PyExc_ValueError, "the memory is of another context");
		return false;
	}
	request_begin(self, context, uses);
	Py_XINCREF((PyObject *)memory);
	self->memory = memory;
	return true;
}

static bool is_open(const struct channel *channel)
{
	if (!channel->peer->link)
		raise_text(-EBADF, "the peer is closed");
	return channel->peer->link;
}

/* The same, on this channel. */
static bool prepare(struct request *self, struct channel *channel, struct buffer *memory)
{
	if (!is_open(channel) ||
		!prepare_memory(self, channel->peer->context, memory, NULL))
		return false;
	Py_INCREF((PyObject *)channel);
	self->channel = channel;
	return true;
}

/* Sets *into to the memory of a receive; NULL: None. Returns false with an exception. */
static bool read_memory(PyObject *memory, struct buffer **into)
{
	*into = memory == Py_None ? NULL : (struct buffer *)memory;
	if (*into && Py_TYPE(memory) != buffer_type) {
		PyErr_SetString(PyExc_TypeError, "recv: expected a Buffer");
		return false;
	}
	return true;
}

/* Makes `self` a receive, without `into` into memory of the pool. */
static void prepare_recv(struct request *self, struct buffer *into, struct pool *pool)
{
	self->receives = true;
	if (into)
		return;
	self->pool = pool;
	Py_INCREF((PyObject *)pool);
}

static unsigned recv_flags(const struct buffer *into, int peek)
{
	if (into)
		return 0;
	return peek ? TERN_RECV_PEEK : TERN_RECV_ALLOC;
}

/* Lets go of what the library uses no longer. */
static void let_go(struct request *self)
{
	Py_CLEAR(self->channel);
	if (!self->receives)
		Py_CLEAR(self->memory);
	Py_CLEAR(self->uses);
	PyMem_Free(self->pieces);
	self->pieces = NULL;
}

void request_revert(struct request *self)
{
	struct context *context = self->context;

	self->context = NULL;
	context->posted_count--;
	self->receives = false;
	let_go(self);
	Py_CLEAR(self->pool);
	context_let_go(context);
	Py_DECREF((PyObject *)context);
	Py_DECREF((PyObject *)self);
}

PyObject *request_refused(struct request *self, int status)
{
	request_revert(self);
	return raise_text(status, tern_status_text(status));
}

/* send(request, key, step, buffer, name or None, urgent) */
PyObject *channel_send(struct channel *self, PyObject *args)
{
	unsigned long long key, step;
	struct request *request;
	struct tern_tensor tensor;
	struct buffer *from;
	const char *name;
	int urgent, r;

	if (!PyArg_ParseTuple(args, "O!KKO!zp", request_type, &request, &key, &step,
		    buffer_type, &from, &name, &urgent))
		return NULL;
	if (!from->buf.mem) {
		PyErr_SetString(PyExc_ValueError, "the buffer is memory of a peer that "
						  "is read in place: copy it to "
						  "send it");
		return NULL;
	}
	if (!prepare(request, self, from))
		return NULL;
	tensor.buf = from->buf;
	tensor.shape = from->shape;
	POST(self->peer, tern_send(self->channel, &request->req, key, step, &tensor, name,
				 urgent ? TERN_URGENT : 0));
	if (r < 0)
		return request_refused(request, r);
	Py_RETURN_NONE;
}

/* recv(request, key, step, buffer or None, name or None, peek) */
PyObject *channel_recv(struct channel *self, PyObject *args)
{
	unsigned long long key, step;
	struct request *request;
	struct buffer *into;
	PyObject *memory;
	const char *name;
	int peek, r;

	if (!PyArg_ParseTuple(args, "O!KKOzp", request_type, &request, &key, &step,
		    &memory, &name, &peek))
		return NULL;
	if (!read_memory(memory, &into) || !prepare(request, self, into))
		return NULL;
	prepare_recv(request, into, self->peer->pool);
	POST(self->peer, tern_recv(self->channel, &request->req, key, step,
				 into ? &into->buf : NULL, name, recv_flags(into, peek)));
	if (r < 0)
		return request_refused(request, r);
	Py_RETURN_NONE;
}

static struct channel *channel_at(PyObject *channels, Py_ssize_t i)
{
	return (struct channel *)PyTuple_GetItem(channels, i);
}

/* True if the tuple has channels of open peers of this context; else raises. */
static bool are_open(PyObject *channels, const struct context *context)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(channels); i++) {
		const struct channel *c = channel_at(channels, i);

		if (Py_TYPE((PyObject *)c) != channel_type ||
			c->peer->context != context) {
			PyErr_SetString(PyExc_ValueError,
				"recv_any: expected channels of "
				"this context");
			return false;
		}
		if (!is_open(c))
			return false;
	}
	return true;
}

/* Called with the context locked, without the GIL. Returns as tern_recv_any(), or why a
 * peer is down. */
static int post_any(struct peer *const *peers, struct tern_channel *const *channels,
	size_t count, struct request *request, uint64_t key, uint64_t step,
	const char *name, unsigned flags)
{
	const struct buffer *into = request->memory;

	for (size_t i = 0; i < count; i++)
		if (peers[i]->link->down)
			return peers[i]->link->status ? peers[i]->link->status
						      : -ESHUTDOWN;
	return tern_recv_any(channels, count, &request->req, key, step,
		into ? &into->buf : NULL, name, flags);
}

/* recv_any(request, channels, key, step, buffer or None, name or None, peek, needs_all) */
PyObject *context_recv_any(struct context *self, PyObject *args)
{
	unsigned long long key, step;
	struct request *request;
	struct buffer *into;
	struct tern_channel **of;
	struct peer **peers;
	PyObject *channels, *memory;
	const char *name;
	int peek, needs_all, r = -ENOMEM;
	size_t count;

	if (!PyArg_ParseTuple(args, "O!O!KKOzpp", request_type, &request, &PyTuple_Type,
		    &channels, &key, &step, &memory, &name, &peek, &needs_all) ||
		!read_memory(memory, &into) || !are_open(channels, self) ||
		!prepare_memory(request, self, into, channels))
		return NULL;
	count = (size_t)PyTuple_Size(channels);
	of = PyMem_Calloc(count + 1, sizeof(struct tern_channel *));
	peers = PyMem_Calloc(count + 1, sizeof(struct peer *));
	for (size_t i = 0; of && peers && i < count; i++) {
		of[i] = channel_at(channels, (Py_ssize_t)i)->channel;
		peers[i] = channel_at(channels, (Py_ssize_t)i)->peer;
		peers[i]->users++;
	}
	if (count > 0)
		prepare_recv(request, into, channel_at(channels, 0)->peer->pool);
	if (of && peers) {
		LOCKED(self, r = post_any(peers, of, count, request, key, step, name,
				     recv_flags(into, peek) |
					     (needs_all ? TERN_ANY_NEEDS_ALL : 0u)));
		for (size_t i = 0; i < count; i++)
			peers[i]->users--;
	}
	PyMem_Free(of);
	PyMem_Free(peers);
	if (r < 0)
		return request_refused(request, r);
	Py_RETURN_NONE;
}

/* ---- the end ---- */

static bool holds_memory(const struct request *self)
{
	return self->receives && !self->memory && self->req.status == 0;
}

/* collect() -> the requests that have ended since the last call */
PyObject *context_collect(struct context *self, PyObject *ignored)
{
	PyObject *list = PyList_New(0);
	struct request *next;

	(void)ignored;
	if (!list || self->forks != fork_count())
		return list;
	pthread_mutex_lock(&self->lock);
	next = self->ended;
	self->ended = NULL;
	self->last_ended = &self->ended;
	pthread_mutex_unlock(&self->lock);
	/* All before the first let_go(), which may run Python, and with it other threads: one
	 * that was told of the end must not find that a request has not ended. */
	for (struct request *r = next; r; r = r->next) {
		r->collected = true;
		self->posted_count--;
	}
	while (next) {
		struct request *r = next;

		next = r->next;
		let_go(r);
		if (!r->quiet && PyList_Append(list, (PyObject *)r) < 0)
			PyErr_Clear(); /* no memory: nobody hears of this end at once */
		if (!holds_memory(r))
			context_let_go(self);
		else
			r->holds = true;
		Py_DECREF((PyObject *)r);
	}
	collect_operations(self, list);
	return list;
}

void request_release(struct request *self)
{
	struct context *context = self->context;

	if (!self->holds)
		return;
	self->holds = false;
	if (context->forks == fork_count())
		LOCKED(context, tern_release(&self->req));
	context_let_go(context);
}

static bool was_posted(const struct request *self)
{
	if (!self->context)
		raise_text(-EINVAL, "the request was not posted");
	return self->context;
}

/* wait(seconds) -> whether the request was collected; False also if it has only ended, or not within
 * that time */
static PyObject *request_wait(struct request *self, PyObject *args)
{
	struct context *context = self->context;
	double seconds;

	if (!PyArg_ParseTuple(args, "d", &seconds) || !was_posted(self))
		return NULL;
	if (self->collected)
		Py_RETURN_TRUE;
	if (seconds <= 0) /* asks only, also of a closed context */
		Py_RETURN_FALSE;
	if (!context_is_usable(context))
		return NULL;
	BUSY(context, tern_shared_wait(context->shared, &self->req, to_ns(seconds)));
	return PyBool_FromLong(self->collected);
}

/* cancel(): asks for an early end. */
static PyObject *request_cancel(struct request *self, PyObject *ignored)
{
	(void)ignored;
	if (!was_posted(self))
		return NULL;
	if (!self->collected && context_is_usable(self->context))
		LOCKED(self->context, {
			if (tern_test(&self->req) == -EINPROGRESS)
				tern_cancel(&self->req);
		});
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

static bool has_ended(const struct request *self)
{
	if (was_posted(self) && !self->collected)
		raise_text(-EINPROGRESS, "the request has not ended");
	return self->collected;
}

/* result() -> (status, dtype, dims, bytes); of a receive: of the tensor that was sent */
static PyObject *request_result(struct request *self, PyObject *ignored)
{
	const struct tern_shape *shape = &self->req.shape;
	PyObject *dims;

	(void)ignored;
	if (!has_ended(self))
		return NULL;
	dims = PyTuple_New((Py_ssize_t)shape->rank);
	for (uint32_t i = 0; dims && i < shape->rank; i++) {
		PyObject *dim = PyLong_FromUnsignedLongLong(shape->dims[i]);

		if (!dim || PyTuple_SetItem(dims, (Py_ssize_t)i, dim) < 0)
			Py_CLEAR(dims);
	}
	return dims ? Py_BuildValue("iiNK", self->req.status, (int)shape->dtype, dims,
			      (unsigned long long)self->req.bytes)
		    : NULL;
}

/* origin() -> of a recv_any(): the index of the channel, or -1 */
static PyObject *request_origin(struct request *self, PyObject *ignored)
{
	(void)ignored;
	return has_ended(self) ? PyLong_FromLong(tern_recv_source(&self->req)) : NULL;
}

/* take() -> Buffer with what was received, or the one that it was received into */
static PyObject *request_take(struct request *self, PyObject *ignored)
{
	(void)ignored;
	if (!has_ended(self))
		return NULL;
	if (self->memory) {
		Py_INCREF((PyObject *)self->memory);
		return (PyObject *)self->memory;
	}
	if (self->holds)
		return buffer_of_request(self);
	return raise_text(-EINVAL, "the request has received nothing");
}

static void request_dealloc(struct request *self)
{
	request_release(self);
	Py_XDECREF((PyObject *)self->pool);
	Py_XDECREF((PyObject *)self->memory);
	Py_XDECREF((PyObject *)self->context);
	free_object(self);
}

#define METHOD(name, how)                                                                \
	{                                                                                \
#name, (PyCFunction)(void (*)(void))request_##name, how, NULL            \
	}
static PyMethodDef request_methods[] = {
	METHOD(wait, METH_VARARGS),
	METHOD(cancel, METH_NOARGS),
	METHOD(result, METH_NOARGS),
	METHOD(origin, METH_NOARGS),
	METHOD(take, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};

static PyType_Slot request_slots[] = {
	{Py_tp_new, request_new},
	{Py_tp_dealloc, request_dealloc},
	{Py_tp_methods, request_methods},
	{0, NULL},
};

PyType_Spec request_spec = {
	.name = "pytern._native.Request",
	.basicsize = sizeof(struct request),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = request_slots,
};
