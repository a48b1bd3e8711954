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

/* Gives a send or receive what it needs. Returns false with an exception. */
static bool prepare(struct request *self, struct channel *channel, struct buffer *memory)
{
	struct context *context = channel->peer->context;

	if (!request_may_begin(self, context))
		return false;
	if (!channel->peer->link) {
		raise_text(-EBADF, "the peer is closed");
		return false;
	}
	if (memory && memory->context != context) {
		PyErr_SetString(PyExc_ValueError, "the memory is of another context");
		return false;
	}
	request_begin(self, context, NULL);
	Py_INCREF((PyObject *)channel);
	self->channel = channel;
	Py_XINCREF((PyObject *)memory);
	self->memory = memory;
	return true;
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
	into = memory == Py_None ? NULL : (struct buffer *)memory;
	if (into && Py_TYPE(memory) != buffer_type) {
		PyErr_SetString(PyExc_TypeError, "recv: expected a Buffer");
		return NULL;
	}
	if (!prepare(request, self, into))
		return NULL;
	request->receives = true;
	if (!into) {
		request->pool = self->peer->pool;
		Py_INCREF((PyObject *)request->pool);
	}
	POST(self->peer, tern_recv(self->channel, &request->req, key, step,
				 into ? &into->buf : NULL, name,
				 into   ? 0
				 : peek ? TERN_RECV_PEEK
					: TERN_RECV_ALLOC));
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
	while (next) {
		struct request *r = next;

		next = r->next;
		r->collected = true;
		self->posted_count--;
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
