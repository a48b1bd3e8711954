/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: the parameters, records and gradients of the slot that the program holds, and views
 * of parameters. A slot is named by its turn, so one that has ended is never used. A call
 * that uses the slot without the GIL counts itself in `slot_users`, and the slot ends after
 * it.
 */
#include "python/pytern/native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Most slots that ahead() tells of. */
#define AHEAD_MAX 256u

PyTypeObject *view_type;

bool holds(struct session *self, unsigned long long turn)
{
	if (!is_usable(self))
		return false;
	if (self->slot && turn == self->turn)
		return true;
	raise_text(-EINVAL,
		"the slot has ended: its parameters and records are only there "
		"inside its `with` block");
	return false;
}

/* next(seconds) -> (turn, step, number, batch, seed, repeated, evaluate, early, rolled_back_from),
 * or False: all steps are done, or None: not within that time */
PyObject *session_next(struct session *self, PyObject *args)
{
	struct tern_slot_info info;
	struct tern_slot *slot;
	double seconds;
	int r;

	if (!PyArg_ParseTuple(args, "d", &seconds) || !is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_next(
			   self->shared, self->session, &slot, &info, to_ns(seconds)));
	if (r == -ETIMEDOUT)
		Py_RETURN_NONE;
	if (r == -ENODATA)
		Py_RETURN_FALSE;
	if (r < 0)
		return raise_status(r);
	self->slot = slot;
	self->turn++;
	self->batch = info.batch;
	if (self->closed) { /* by another thread, which waits for this one */
		tern_shared_fail(self->shared, slot, "the session was closed");
		self->slot = NULL;
		is_usable(self);
		return NULL;
	}
	return Py_BuildValue("KKIIKNNNK", self->turn, (unsigned long long)info.step,
		(unsigned)info.slot, (unsigned)info.batch, (unsigned long long)info.seed,
		PyBool_FromLong(info.repeated), PyBool_FromLong(info.evaluate),
		PyBool_FromLong(info.early), (unsigned long long)info.rolled_back_from);
}

/* arrived(turn, id or -1, seconds) -> True: the tensor, or the whole slot, is here; False: the
 * slot was revoked before; None: not within that time */
PyObject *session_arrived(struct session *self, PyObject *args)
{
	const struct tern_slot *slot;
	unsigned long long turn;
	double seconds;
	int id, r;

	if (!PyArg_ParseTuple(args, "Kid", &turn, &id, &seconds) || !holds(self, turn) ||
		(id >= 0 && !is_tensor(self, (unsigned)id)))
		return NULL;
	slot = self->slot;
	self->slot_users++;
	BUSY(self, r = tern_shared_await(self->shared, slot,
			   id < 0 ? TERN_ALL_TENSORS : (uint32_t)id, to_ns(seconds)));
	self->slot_users--;
	if (r == -ETIMEDOUT)
		Py_RETURN_NONE;
	if (r < 0 && r != -ECANCELED)
		return raise_status(r);
	return PyBool_FromLong(r == 0);
}

const float *slot_values(struct session *self, unsigned id)
{
	const struct tern_slot *slot = self->slot;
	const float *values = NULL;
	int r;

	self->slot_users++;
	BUSY(self, {
		r = tern_shared_await(self->shared, slot, id, 0);
		if (r == 0)
			values = tern_slot_param(slot, id);
	});
	self->slot_users--;
	if (r == -ETIMEDOUT)
		raise_text(-EAGAIN, "the values of the tensor have not arrived yet");
	else if (r < 0)
		raise_status(r);
	else if (!self->slot)
		raise_text(-EINVAL, "the slot has ended");
	return PyErr_Occurred() ? NULL : values;
}

/* records(turn) -> bytes, with 8 for each record number */
PyObject *session_records(struct session *self, PyObject *args)
{
	unsigned long long turn;
	PyObject *bytes;

	if (!PyArg_ParseTuple(args, "K", &turn) || !holds(self, turn))
		return NULL;
	bytes = PyBytes_FromStringAndSize(
		NULL, (Py_ssize_t)(self->batch * sizeof(uint64_t)));
	if (!bytes)
		return NULL;
	for (unsigned j = 0; j < self->batch; j++) {
		uint64_t record = tern_slot_record(self->slot, j);

		memcpy(PyBytes_AsString(bytes) + j * sizeof(record), &record,
			sizeof(record));
	}
	return bytes;
}

/* Returns (step, number, seed, records) of a slot that comes, where `records` is as above. */
static PyObject *describe_ahead(
	const struct session *self, const struct tern_slot_info *info)
{
	PyObject *bytes = PyBytes_FromStringAndSize(
		NULL, (Py_ssize_t)(info->batch * sizeof(uint64_t)));

	if (!bytes)
		return NULL;
	for (unsigned j = 0; j < info->batch; j++) {
		uint64_t record =
			tern_session_record(self->session, info->step, info->slot, j);

		memcpy(PyBytes_AsString(bytes) + j * sizeof(record), &record,
			sizeof(record));
	}
	return Py_BuildValue("KIKN", (unsigned long long)info->step, (unsigned)info->slot,
		(unsigned long long)info->seed, bytes);
}

/* ahead(count) -> a list with (step, number, seed, records) of each slot that comes next, at
 * most `count` */
PyObject *session_ahead(struct session *self, PyObject *args)
{
	struct tern_slot_info infos[AHEAD_MAX];
	PyObject *list = NULL, *item;
	unsigned count;
	int r;

	if (!PyArg_ParseTuple(args, "I", &count) || !is_usable(self))
		return NULL;
	self->users++; /* close() waits until the records are read */
	WITHOUT_GIL(r = tern_shared_ahead(self->shared, self->session, infos,
			    count < AHEAD_MAX ? count : AHEAD_MAX));
	if (r < 0)
		raise_status(r);
	else
		list = PyList_New(0);
	for (int i = 0; list && i < r; i++) {
		item = describe_ahead(self, &infos[i]);
		if (!item || PyList_Append(list, item) < 0)
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	self->users--;
	return list;
}

bool copy_to(struct session *self, unsigned id, const float *data, PyObject *to)
{
	Py_ssize_t bytes = self->tensors[id].bytes;
	Py_buffer buffer;

	if (PyObject_GetBuffer(to, &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
		return false;
	if (buffer.len == bytes)
		BUSY(self, memcpy(buffer.buf, data, (size_t)bytes));
	else
		PyErr_Format(PyExc_ValueError, "expected a buffer of %zd bytes, got %zd",
			bytes, buffer.len);
	PyBuffer_Release(&buffer);
	return !PyErr_Occurred();
}

/* read(turn, id, buffer): copies the values of a tensor. */
PyObject *session_read(struct session *self, PyObject *args)
{
	unsigned long long turn;
	PyObject *to;
	const float *values;
	unsigned id;
	bool copied;

	if (!PyArg_ParseTuple(args, "KIO", &turn, &id, &to) || !holds(self, turn) ||
		!is_tensor(self, id))
		return NULL;
	self->slot_users++; /* the slot cannot end before the copy is made */
	values = slot_values(self, id);
	copied = values && copy_to(self, id, values, to);
	self->slot_users--;
	if (!copied)
		return NULL;
	Py_RETURN_NONE;
}

/* view(turn, id) -> an object with the buffer protocol: the library's own memory */
PyObject *session_view(struct session *self, PyObject *args)
{
	unsigned long long turn;
	Py_ssize_t stride = sizeof(float);
	const float *values;
	struct view *view;
	unsigned id;

	if (!PyArg_ParseTuple(args, "KI", &turn, &id) || !holds(self, turn) ||
		!is_tensor(self, id))
		return NULL;
	values = slot_values(self, id);
	view = values ? new_object(view_type) : NULL;
	if (!view)
		return NULL;
	Py_INCREF((PyObject *)self);
	view->session = self;
	self->views++;
	view->data = values;
	view->tensor = self->tensors[id];
	for (int i = view->tensor.rank - 1; i >= 0; i--) {
		view->strides[i] = stride;
		stride *= view->tensor.dims[i];
	}
	return (PyObject *)view;
}

/* True if the buffer has the tensor's shape, and float32 in row-major order. */
static bool fits(const Py_buffer *buffer, const struct tensor *tensor)
{
	const char *format = buffer->format ? buffer->format : "B";

	if (*format == '=' || *format == '@' ||
		*format == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>'))
		format++;
	if (strcmp(format, "f") != 0 || buffer->ndim != tensor->rank ||
		buffer->len != tensor->bytes)
		return false;
	for (int i = 0; i < tensor->rank; i++)
		if (buffer->shape[i] != tensor->dims[i])
			return false;
	return true;
}

/* push(turn, id, gradient) -> True, or False: `gradient` has to be converted first */
PyObject *session_push(struct session *self, PyObject *const *args, Py_ssize_t count)
{
	unsigned long long turn;
	struct tern_slot *slot;
	Py_buffer buffer;
	unsigned long id;
	int r;

	if (count != 3) {
		PyErr_Format(
			PyExc_TypeError, "push: expected 3 arguments, got %zd", count);
		return NULL;
	}
	turn = PyLong_AsUnsignedLongLong(args[0]);
	id = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLong(args[1]);
	if (PyErr_Occurred() || !holds(self, turn) || !is_tensor(self, id))
		return NULL;
	if (PyObject_GetBuffer(args[2], &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
		if (!PyErr_ExceptionMatches(PyExc_Exception))
			return NULL;
		PyErr_Clear();
		Py_RETURN_FALSE;
	}
	if (!fits(&buffer, &self->tensors[id])) {
		PyBuffer_Release(&buffer);
		Py_RETURN_FALSE;
	}
	/* GetBuffer() may have run Python code, which may have ended the slot. */
	if (!holds(self, turn)) {
		PyBuffer_Release(&buffer);
		return NULL;
	}
	slot = self->slot;
	self->slot_users++;
	BUSY(self, r = tern_shared_push(self->shared, slot, (uint32_t)id, buffer.buf));
	self->slot_users--;
	PyBuffer_Release(&buffer);
	if (r < 0)
		return raise_status(r);
	Py_RETURN_TRUE;
}

/* keep(turn, bytes) -> bool: does the blob count? */
PyObject *session_keep(struct session *self, PyObject *args)
{
	unsigned long long turn;
	struct tern_slot *slot;
	Py_buffer buffer;
	PyObject *from;
	int r;

	if (!PyArg_ParseTuple(args, "KO", &turn, &from) || !holds(self, turn) ||
		PyObject_GetBuffer(from, &buffer, PyBUF_C_CONTIGUOUS) < 0)
		return NULL;
	/* GetBuffer() may have run Python code, which may have ended the slot. */
	if (!holds(self, turn)) {
		PyBuffer_Release(&buffer);
		return NULL;
	}
	slot = self->slot;
	self->slot_users++;
	BUSY(self,
		r = tern_shared_keep(self->shared, slot, buffer.buf, (size_t)buffer.len));
	self->slot_users--;
	PyBuffer_Release(&buffer);
	return r < 0 ? raise_status(r) : PyBool_FromLong(r);
}

/* kept(seconds) -> (bytes, step), or None: not within that time */
PyObject *session_kept(struct session *self, PyObject *args)
{
	char *bytes;
	size_t size = TERN_KEEP_MAX;
	uint64_t step = 0;
	PyObject *pair = NULL;
	double seconds;
	int r;

	if (!PyArg_ParseTuple(args, "d", &seconds) || !is_usable(self))
		return NULL;
	bytes = malloc(TERN_KEEP_MAX);
	if (!bytes)
		return PyErr_NoMemory();
	BUSY(self, r = tern_shared_kept(self->shared, self->session, bytes, &size, &step,
			   to_ns(seconds)));
	if (r == 0)
		pair = Py_BuildValue(
			"y#K", bytes, (Py_ssize_t)size, (unsigned long long)step);
	else if (r != -ETIMEDOUT)
		raise_status(r);
	free(bytes);
	if (r == -ETIMEDOUT)
		Py_RETURN_NONE;
	return pair;
}

/* Takes the slot from the program, after the pushes in other threads. */
static struct tern_slot *let_go(struct session *self)
{
	struct tern_slot *slot = self->slot;

	self->users++; /* close() waits, too */
	self->slot = NULL;
	wait_for_none(&self->slot_users);
	self->users--;
	return slot;
}

/* end(turn, loss, weight) */
PyObject *session_end(struct session *self, PyObject *args)
{
	struct tern_slot *slot;
	unsigned long long turn;
	double loss, weight;
	int r;

	if (!PyArg_ParseTuple(args, "Kdd", &turn, &loss, &weight) || !holds(self, turn))
		return NULL;
	slot = let_go(self);
	BUSY(self, {
		r = weight == 1 ? 0 : tern_shared_weigh(self->shared, slot, weight);
		if (r == 0)
			r = tern_shared_end(self->shared, slot, loss);
	});
	return none_or_raise(r);
}

/* fail(turn, text) */
PyObject *session_fail(struct session *self, PyObject *args)
{
	struct tern_slot *slot;
	unsigned long long turn;
	const char *text;
	int r;

	if (!PyArg_ParseTuple(args, "Ks", &turn, &text) || !holds(self, turn))
		return NULL;
	slot = let_go(self);
	BUSY(self, r = tern_shared_fail(self->shared, slot, text));
	return none_or_raise(r);
}

/* revoked(turn) -> bool */
PyObject *session_revoked(struct session *self, PyObject *args)
{
	unsigned long long turn;
	struct tern_slot *slot;
	bool revoked;

	if (!PyArg_ParseTuple(args, "K", &turn) || !holds(self, turn))
		return NULL;
	slot = self->slot;
	self->slot_users++;
	BUSY(self, {
		tern_shared_lock(self->shared);
		revoked = tern_slot_is_revoked(slot);
		tern_shared_unlock(self->shared);
	});
	self->slot_users--;
	return PyBool_FromLong(revoked);
}

/* ---- views ---- */

static int view_getbuffer(struct view *self, Py_buffer *buffer, int flags)
{
	if (PyBuffer_FillInfo(buffer, (PyObject *)self, (void *)self->data,
		    self->tensor.bytes, 1, flags) < 0)
		return -1;
	buffer->itemsize = sizeof(float);
	if (flags & PyBUF_FORMAT)
		buffer->format = (char *)"f";
	if (flags & PyBUF_ND) {
		buffer->ndim = self->tensor.rank;
		buffer->shape = self->tensor.dims;
	}
	if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES)
		buffer->strides = self->strides;
	return 0;
}

static void view_dealloc(struct view *self)
{
	struct session *session = self->session;

	if (session) {
		session->views--;
		if (session->views == 0 && session->closed)
			release(session);
		Py_DECREF((PyObject *)session);
	}
	free_object(self);
}

static PyType_Slot view_slots[] = {
	{Py_tp_dealloc, view_dealloc},
	{Py_bf_getbuffer, view_getbuffer},
	{0, NULL},
};

PyType_Spec view_spec = {
	.name = "pytern._native.View",
	.basicsize = sizeof(struct view),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = view_slots,
};
