/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows and notifications for Python (<tern/window.h>): native_transport.h has the rules.
 *
 * - A window is closed when the program has dropped it, at the latest. Its memory then
 *   belongs to the request that closes it, and so it stays until no peer can access it.
 * - A put or get has a reference to the Remote and to its memory until it was collected, so
 *   a handle of the library is never given back before its requests have ended.
 */
#include "python/pytern/native_transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- notifications that come ---- */

static void free_notes(struct link *l)
{
	while (l->notes) {
		struct note *next = l->notes->next;

		free(l->notes);
		l->notes = next;
	}
}

void link_free(struct link *l)
{
	free_notes(l);
	free(l);
}

/* Appends a notification. Returns false if the queue is full, or there is no memory. */
static bool queue_note(struct link *l, const void *data, size_t bytes)
{
	struct note *note;

	if (l->note_bytes + bytes + NOTE_BYTES > NOTES_BYTES_MAX)
		return false;
	note = malloc(sizeof(*note) + bytes);
	if (!note)
		return false;
	note->next = NULL;
	note->bytes = bytes;
	memcpy(note->data, data, bytes);
	if (l->notes)
		l->last_note->next = note;
	else
		l->notes = note;
	l->last_note = note;
	l->note_bytes += bytes + NOTE_BYTES;
	return true;
}

/* A notification that cannot be queued is not acknowledged: the peer is freed instead. */
void on_notified(struct tern_peer *peer, const void *data, size_t bytes, void *arg)
{
	struct link *l = arg;
	struct context *context = l->context;
	bool queued;

	pthread_mutex_lock(&context->lock);
	queued = queue_note(l, data, bytes);
	if (!queued) {
		snprintf(l->name, sizeof(l->name), "%s", tern_peer_name(peer));
		l->peer = NULL;
		l->down = true;
		l->status = -ENOBUFS;
	}
	context_notify(context);
	pthread_mutex_unlock(&context->lock);
	if (!queued)
		tern_peer_free(peer);
}

/* notified() -> the bytes of the oldest notification, which is taken; None: there is none */
PyObject *peer_notified(struct peer *self, PyObject *ignored)
{
	struct context *context = self->context;
	struct link *l = self->link;
	struct note *note;
	PyObject *out;

	(void)ignored;
	if (!peer_is_usable(self))
		return NULL;
	pthread_mutex_lock(&context->lock);
	note = l->notes;
	if (note) {
		l->notes = note->next;
		l->note_bytes -= note->bytes + NOTE_BYTES;
	}
	pthread_mutex_unlock(&context->lock);
	if (!note)
		Py_RETURN_NONE;
	out = PyBytes_FromStringAndSize(note->data, (Py_ssize_t)note->bytes);
	free(note);
	return out;
}

/* ---- windows of this process ---- */

static void enlist(struct window *self)
{
	self->next = self->context->windows;
	self->place = &self->context->windows;
	if (self->next)
		self->next->place = &self->next;
	self->context->windows = self;
}

static void delist(struct window *self)
{
	*self->place = self->next;
	if (self->next)
		self->next->place = self->place;
}

/* window(buffer, access) -> Window */
PyObject *context_window(struct context *self, PyObject *args)
{
	struct buffer *memory;
	struct window *out;
	unsigned access;
	int r;

	if (!PyArg_ParseTuple(args, "O!I", buffer_type, &memory, &access) ||
		!context_is_usable(self))
		return NULL;
	if (memory->context != self) {
		PyErr_SetString(PyExc_ValueError, "the memory is of another context");
		return NULL;
	}
	out = new_object(window_type);
	if (!out)
		return NULL;
	Py_INCREF((PyObject *)self);
	out->context = self;
	Py_INCREF((PyObject *)memory);
	out->memory = memory;
	LOCKED(self, {
		r = tern_window_new(tern_shared_context(self->shared), &memory->buf,
			access, &out->window);
		if (r == 0)
			tern_window_describe(out->window, &out->desc);
	});
	if (r < 0) {
		Py_DECREF((PyObject *)out);
		return raise_text(r, !memory->buf.mem
					     ? "memory of a peer that is read in "
					       "place cannot be a window"
				     : !memory->buf.bytes ? "the tensor has no bytes"
							  : tern_status_text(r));
	}
	enlist(out);
	if (!self->closed)
		return (PyObject *)out;
	Py_DECREF((PyObject *)out); /* closed by another thread */
	context_is_usable(self);
	return NULL;
}

/* describe() -> the bytes of the descriptor */
static PyObject *window_describe(struct window *self, PyObject *ignored)
{
	(void)ignored;
	return PyBytes_FromStringAndSize((const char *)&self->desc, sizeof(self->desc));
}

/* Posts the request that closes the window, and gives it the memory. Returns 0, or a
 * negative status, and then the window is still open. */
static int start_close(struct window *self, struct request *request, uint64_t timeout_ns)
{
	struct tern_window *window = self->window;
	int r;

	/* Other threads see a closed window from now on. */
	self->window = NULL;
	delist(self);
	request_begin(request, self->context, NULL);
	LOCKED(self->context, r = tern_window_close(window, &request->req, timeout_ns));
	if (r < 0) {
		self->window = window;
		enlist(self);
		request_revert(request);
		return r;
	}
	request->memory = self->memory;
	self->memory = NULL;
	return 0;
}

/* close(request, seconds): starts to close the window. 0: the context's time. */
static PyObject *window_close(struct window *self, PyObject *args)
{
	struct request *request;
	double seconds;
	int r;

	if (!PyArg_ParseTuple(args, "O!d", request_type, &request, &seconds) ||
		!request_may_begin(request, self->context))
		return NULL;
	if (!self->window)
		return raise_text(-EBADF, "the window is closed");
	r = start_close(self, request, to_ns(seconds));
	if (r < 0)
		return raise_text(r, tern_status_text(r));
	Py_RETURN_NONE;
}

void window_shut(struct window *self)
{
	struct request *request;
	int r = -ENOMEM;

	if (!self->window)
		return;
	if (self->context->forks != fork_count()) {
		self->window = NULL;
		delist(self);
		return;
	}
	request = new_object(request_type);
	if (request) {
		request->quiet = true;
		r = start_close(self, request, 0);
		Py_DECREF((PyObject *)request);
	}
	if (r < 0) { /* no memory: the window stays open, and has its memory for ever */
		PyErr_Clear();
		self->window = NULL;
		self->memory = NULL;
		delist(self);
	}
}

static void window_dealloc(struct window *self)
{
	window_shut(self);
	Py_XDECREF((PyObject *)self->memory);
	Py_XDECREF((PyObject *)self->context);
	free_object(self);
}

/* ---- windows of peers ---- */

/* open(descriptor) -> Remote */
PyObject *peer_open(struct peer *self, PyObject *args)
{
	const char *bytes;
	struct remote *out;
	Py_ssize_t count;
	int r;

	if (!PyArg_ParseTuple(args, "y#", &bytes, &count) || !peer_is_usable(self))
		return NULL;
	if (count != sizeof(out->desc))
		return PyErr_Format(PyExc_ValueError,
			"desc: expected the %d bytes of describe(), got %zd bytes",
			(int)sizeof(out->desc), count);
	out = new_object(remote_type);
	if (!out)
		return NULL;
	Py_INCREF((PyObject *)self);
	out->peer = self;
	memcpy(&out->desc, bytes, sizeof(out->desc));
	POST(self, tern_remote_open(l->peer, &out->desc, &out->remote));
	if (r == 0)
		return (PyObject *)out;
	Py_DECREF((PyObject *)out);
	return raise_text(r, tern_status_text(r));
}

static bool remote_is_usable(struct remote *self)
{
	if (!peer_is_usable(self->peer))
		return false;
	if (!self->remote)
		raise_text(-EBADF, "this Remote is closed");
	return self->remote;
}

/* Fills in one range of a put or get. Returns false with an exception. */
static bool fill(struct tern_piece *out, PyObject *item, const struct remote *self)
{
	uint64_t size = self->desc.bytes;
	unsigned long long offset;
	struct buffer *memory;
	char text[120];

	if (!PyArg_ParseTuple(item, "O!K", buffer_type, &memory, &offset))
		return false;
	if (!memory->buf.mem) {
		PyErr_SetString(PyExc_ValueError, "the buffer is memory of a peer that "
						  "is read in place: copy it to "
						  "put it");
		return false;
	}
	if (memory->context != self->peer->context) {
		PyErr_SetString(PyExc_ValueError, "the memory is of another context");
		return false;
	}
	if (offset > size || memory->buf.bytes > size - offset) {
		snprintf(text, sizeof(text),
			"the window has %llu bytes, and %llu + %llu are more",
			(unsigned long long)size, offset,
			(unsigned long long)memory->buf.bytes);
		raise_text(-ERANGE, text);
		return false;
	}
	*out = (struct tern_piece){memory->buf, offset};
	return true;
}

static bool fill_all(struct tern_piece *out, PyObject *list, Py_ssize_t count,
	const struct remote *self)
{
	for (Py_ssize_t i = 0; i < count; i++)
		if (!fill(&out[i], PyTuple_GetItem(list, i), self))
			return false;
	return true;
}

static bool may_access(const struct remote *self, int get)
{
	if (self->desc.access & (get ? TERN_WINDOW_READ : TERN_WINDOW_WRITE))
		return true;
	raise_text(-EACCES, get ? "the window was made with read=False"
				: "the window was made with write=False");
	return false;
}

static struct tern_note note_of(PyObject *bytes)
{
	struct tern_note note = {0};

	if (bytes != Py_None) {
		note.data = PyBytes_AsString(bytes);
		note.bytes = (size_t)PyBytes_Size(bytes);
	}
	return note;
}

/* Posts a put or get of `count` ranges. */
static int post(struct remote *self, struct request *request, int get,
	const struct tern_piece *pieces, size_t count, const struct tern_note *note)
{
	struct tern_req *req = &request->req;
	struct tern_remote *remote = self->remote;
	struct peer *peer = self->peer;
	int r;

	self->users++;
	if (count == 1 && get)
		POST(peer, tern_get(remote, req, &pieces->local, pieces->remote_offset));
	else if (count == 1)
		POST(peer, tern_put(remote, req, &pieces->local, pieces->remote_offset,
				   note));
	else if (get)
		POST(peer, tern_get_list(remote, req, pieces, count));
	else
		POST(peer, tern_put_list(remote, req, pieces, count, note));
	self->users--;
	return r;
}

/* move(request, get, ((buffer, offset), ...), note or None): puts or gets */
static PyObject *remote_move(struct remote *self, PyObject *args)
{
	PyObject *list, *bytes, *uses;
	struct request *request;
	struct tern_piece *pieces;
	struct tern_note note;
	Py_ssize_t count;
	int get, r;

	if (!PyArg_ParseTuple(args, "O!pO!O", request_type, &request, &get, &PyTuple_Type,
		    &list, &bytes) ||
		!remote_is_usable(self) || !may_access(self, get))
		return NULL;
	note = note_of(bytes);
	count = PyTuple_Size(list);
	pieces = PyMem_Calloc((size_t)count + 1, sizeof(*pieces));
	uses = PyTuple_Pack(3, (PyObject *)self, list, bytes);
	if (!pieces || !uses)
		PyErr_NoMemory();
	/* Looked at once more: a tuple that is made may start the garbage collector, which may
	 * run the program's code. */
	if (!pieces || !uses || !fill_all(pieces, list, count, self) ||
		!request_may_begin(request, self->peer->context) ||
		!remote_is_usable(self)) {
		PyMem_Free(pieces);
		Py_XDECREF(uses);
		return NULL;
	}
	request_begin(request, self->peer->context, uses);
	Py_DECREF(uses);
	request->pieces = pieces;
	r = post(self, request, get, pieces, (size_t)count,
		bytes == Py_None ? NULL : &note);
	if (r < 0)
		return request_refused(request, r);
	Py_RETURN_NONE;
}

/* Gives the handle back. Returns 0, or -EBUSY, and then it is still open. */
static int leave(struct remote *self)
{
	struct tern_remote *remote = self->remote;
	struct peer *peer = self->peer;
	int r = 0;

	self->remote = NULL;
	if (peer->context->forks != fork_count())
		return 0; /* the parent's calls end in the parent only */
	wait_for_none(&self->users);
	/* Without the peer there is no handle, and that of a dead one goes with it. */
	if (remote && peer->link)
		POST(peer, tern_remote_close(remote));
	if (r == -EBUSY)
		self->remote = remote;
	return r;
}

static PyObject *remote_close(struct remote *self, PyObject *ignored)
{
	(void)ignored;
	if (leave(self) == -EBUSY)
		return raise_text(-EBUSY, "requests of it have not ended");
	Py_RETURN_NONE;
}

static void remote_dealloc(struct remote *self)
{
	if (self->peer && self->remote)
		leave(self);
	Py_XDECREF((PyObject *)self->peer);
	free_object(self);
}

/* ---- notifications that go ---- */

/* notify(request, bytes) */
PyObject *peer_notify(struct peer *self, PyObject *args)
{
	struct request *request;
	struct tern_note note;
	PyObject *bytes;
	int r;

	if (!PyArg_ParseTuple(
		    args, "O!O!", request_type, &request, &PyBytes_Type, &bytes) ||
		!request_may_begin(request, self->context) || !peer_is_usable(self))
		return NULL;
	note = note_of(bytes);
	request_begin(request, self->context, bytes);
	POST(self, tern_notify(l->peer, &request->req, &note));
	if (r < 0)
		return request_refused(request, r);
	Py_RETURN_NONE;
}

/* ---- types ---- */

#define METHOD(type, name, how)                                                          \
	{                                                                                \
#name, (PyCFunction)(void (*)(void))type##_##name, how, NULL             \
	}
static PyMethodDef window_methods[] = {
	METHOD(window, describe, METH_NOARGS),
	METHOD(window, close, METH_VARARGS),
	{NULL, NULL, 0, NULL},
};
static PyMethodDef remote_methods[] = {
	METHOD(remote, move, METH_VARARGS),
	METHOD(remote, close, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};

static PyType_Slot window_slots[] = {
	{Py_tp_dealloc, window_dealloc},
	{Py_tp_methods, window_methods},
	{0, NULL},
};
static PyType_Slot remote_slots[] = {
	{Py_tp_dealloc, remote_dealloc},
	{Py_tp_methods, remote_methods},
	{0, NULL},
};

PyType_Spec window_spec = {
	.name = "pytern._native.Window",
	.basicsize = sizeof(struct window),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = window_slots,
};
PyType_Spec remote_spec = {
	.name = "pytern._native.Remote",
	.basicsize = sizeof(struct remote),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = remote_slots,
};
