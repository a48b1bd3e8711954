/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapping of the memory of a slot's parameters (tern_slot_map() in <tern/train.h>), as an
 * object with the buffer protocol. What is written to it stays in it. It holds no reference to
 * the session and may outlive it; it is unmapped when nobody refers to it any more.
 */
#include "python/pytern/native.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

PyTypeObject *map_type;

/* Finds the tensors of these ids in the mapping. Raises if there is no such tensor. */
static void set_offsets(
	struct session *self, const struct map *map, PyObject *ids, PyObject *offsets)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(ids); i++) {
		unsigned long id = PyLong_AsUnsignedLong(PyTuple_GetItem(ids, i));
		const char *data;

		if (PyErr_Occurred() || !is_tensor(self, id))
			return;
		data = (const char *)slot_values(self, (unsigned)id);
		if (!data)
			return;
		PyTuple_SetItem(offsets, i,
			PyLong_FromLongLong(data + map->map.shift - map->map.base));
	}
}

/* map(turn, (id, ...)) -> (Map, (offset in bytes, ...)), or None: the memory cannot be mapped */
PyObject *session_map(struct session *self, PyObject *args)
{
	PyObject *ids, *offsets;
	unsigned long long turn;
	struct map *map;
	int r;

	if (!PyArg_ParseTuple(args, "KO!", &turn, &PyTuple_Type, &ids) ||
		!holds(self, turn))
		return NULL;
	map = new_object(map_type);
	offsets = map ? PyTuple_New(PyTuple_Size(ids)) : NULL;
	r = offsets ? tern_slot_map(self->slot, &map->map) : 0;
	if (r == -ENOTSUP) {
		Py_DECREF((PyObject *)map);
		Py_DECREF(offsets);
		Py_RETURN_NONE;
	}
	if (r < 0)
		raise_text(r, tern_status_text(r));
	else if (offsets)
		set_offsets(self, map, ids, offsets);
	if (!PyErr_Occurred())
		return Py_BuildValue("NN", (PyObject *)map, offsets);
	Py_XDECREF((PyObject *)map);
	Py_XDECREF(offsets);
	return NULL;
}

/* place(turn) -> a number that tells apart the memory in which parameters are received */
PyObject *session_place(struct session *self, PyObject *args)
{
	unsigned long long turn;
	const float *values;

	if (!PyArg_ParseTuple(args, "K", &turn) || !holds(self, turn))
		return NULL;
	values = slot_values(self, 0);
	return values ? PyLong_FromVoidPtr((void *)(uintptr_t)values) : NULL;
}

/* Reads a range in bytes. */
static bool read_range(
	const struct map *self, PyObject *args, Py_ssize_t *first, Py_ssize_t *end)
{
	Py_ssize_t bytes;

	if (!PyArg_ParseTuple(args, "nn", first, &bytes))
		return false;
	if (*first >= 0 && bytes >= 0 && *first <= (Py_ssize_t)self->map.bytes &&
		bytes <= (Py_ssize_t)self->map.bytes - *first) {
		*end = *first + bytes;
		return true;
	}
	PyErr_Format(PyExc_ValueError, "%zd bytes at %zd: the mapping has %zd", bytes,
		*first, (Py_ssize_t)self->map.bytes);
	return false;
}

/* renew(first byte, bytes): the pages of this range show the library's memory again, whatever
 * was written to them. */
static PyObject *map_renew(struct map *self, PyObject *args)
{
	Py_ssize_t first, end, page = sysconf(_SC_PAGESIZE);
	int r;

	if (!read_range(self, args, &first, &end))
		return NULL;
	first &= -page;
	WITHOUT_GIL(r = madvise(self->map.base + first, (size_t)(end - first),
			    MADV_DONTNEED));
	return r < 0 ? raise_text(-errno, "the mapping of the parameters was not renewed")
		     : Py_NewRef(Py_None);
}

/* keep(first byte, bytes): this range has its present values from now on, whatever the library
 * receives. With the GIL: the values must not be in use. */
static PyObject *map_keep(struct map *self, PyObject *args)
{
	Py_ssize_t first, end, page = sysconf(_SC_PAGESIZE);

	if (!read_range(self, args, &first, &end))
		return NULL;
	for (Py_ssize_t at = first; at < end; at = (at & -page) + page) {
		volatile char *byte = self->map.base + at;

		*byte = *byte;
	}
	Py_RETURN_NONE;
}

static int map_getbuffer(struct map *self, Py_buffer *buffer, int flags)
{
	return PyBuffer_FillInfo(buffer, (PyObject *)self, self->map.base,
		(Py_ssize_t)self->map.bytes, 0, flags);
}

static void map_dealloc(struct map *self)
{

	if (self->map.base)
		munmap(self->map.base, self->map.bytes);
	free_object(self);
}

static PyMethodDef map_methods[] = {
	{"renew", (PyCFunction)map_renew, METH_VARARGS, NULL},
	{"keep", (PyCFunction)map_keep, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot map_slots[] = {
	{Py_tp_dealloc, map_dealloc},
	{Py_tp_methods, map_methods},
	{Py_bf_getbuffer, map_getbuffer},
	{0, NULL},
};

PyType_Spec map_spec = {
	.name = "pytern._native.Map",
	.basicsize = sizeof(struct map),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = map_slots,
};
