/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of tensors for Python: pools, buffers of them, memory of other objects, and what was
 * received. A buffer offers its memory by the buffer protocol and by DLPack, and it stays
 * until the last array that was made of it is gone.
 */
#include "python/pytern/native_transport.h"

#include <errno.h>
#include <string.h>

/* The formats of the buffer protocol for the types of elements; bf16 has none. */
static const struct {
	const char *format;
	enum tern_dtype dtype;
} formats[] = {
	{"B", TERN_U8},
	{"b", TERN_I8},
	{"H", TERN_U16},
	{"h", TERN_I16},
	{"I", TERN_U32},
	{"i", TERN_I32},
	{"Q", TERN_U64},
	{"q", TERN_I64},
	{"L", TERN_U64},
	{"l", TERN_I64},
	{"e", TERN_F16},
	{"f", TERN_F32},
	{"d", TERN_F64},
	{"?", TERN_U8},
	{"c", TERN_U8},
	{"H", TERN_BF16},
};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

_Static_assert(sizeof(long) == 8, "the formats l and L have 8 bytes");

static const char *format_of(const struct buffer *self)
{
	if (self->is_bool)
		return "?";
	for (size_t i = 0; i < FORMATS; i++)
		if (formats[i].dtype == self->shape.dtype)
			return formats[i].format;
	return "B";
}

/* The type of a format; TERN_DTYPE_NONE: the library has none. */
static enum tern_dtype dtype_of(const char *format)
{
	/* '@' and '=' are the byte order of this machine, and so is '<': Tern has no other. */
	if (format[0] == '@' || format[0] == '=' ||
		format[0] == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>'))
		format++;
	for (size_t i = 0; i < FORMATS; i++)
		if (strcmp(formats[i].format, format) == 0)
			return formats[i].dtype;
	return TERN_DTYPE_NONE;
}

/* ---- making buffers ---- */

static void set_dims(struct buffer *self)
{
	Py_ssize_t stride = (Py_ssize_t)tern_dtype_bytes(self->shape.dtype);

	for (uint32_t i = self->shape.rank; i-- > 0;) {
		self->dims[i] = (Py_ssize_t)self->shape.dims[i];
		self->strides[i] = stride;
		stride *= self->dims[i] ? self->dims[i] : 1;
	}
}

static struct buffer *new_buffer(struct context *context)
{
	struct buffer *self = new_object(buffer_type);

	if (!self)
		return NULL;
	context_keep(context);
	self->context = context;
	return self;
}

/* Takes a buffer of the pool. Returns false with an exception. */
static bool take(struct buffer *self, struct pool *pool, uint64_t bytes)
{
	int r;

	WITHOUT_GIL(r = tern_pool_get(pool->pool, bytes, &self->buf));
	if (r == 0) {
		Py_INCREF((PyObject *)pool);
		self->pool = pool;
		self->data = tern_buf_ptr(&self->buf);
		return true;
	}
	raise_text(r, r == -EAGAIN ? "the pool has no free block of this size now"
		      : r == -EMSGSIZE
			      ? "the buffer would be larger than a slab of the pool"
			      : tern_status_text(r));
	return false;
}

PyObject *buffer_of_request(struct request *request)
{
	struct buffer *self = new_buffer(request->context);

	if (!self)
		return NULL;
	Py_INCREF((PyObject *)request);
	self->request = request;
	self->shape = request->req.shape;
	if (!request->req.peeked)
		self->buf = request->req.buf;
	/* The cast is safe: what is not in a buffer of this process cannot be written to. */
	self->data = (void *)(uintptr_t)request->req.data;
	self->readonly = request->req.peeked;
	set_dims(self);
	return (PyObject *)self;
}

/* Wraps memory of another object. `brief`: for one operation. Returns false with an
 * exception. */
static bool register_memory(struct buffer *self, bool is_cuda, bool brief)
{
	struct tern_domain *domain =
		tern_context_domain(tern_shared_context(self->context->shared));
	uint64_t bytes;
	int r = tern_shape_bytes(&self->shape, &bytes);

	if (r == 0 && bytes == 0)
		return true; /* without memory: see context_wrap() */
	if (r == 0)
		WITHOUT_GIL({
			if (is_cuda)
				r = tern_mem_wrap_cuda(domain, (uintptr_t)self->data,
					bytes, &self->buf.mem);
			else if (brief)
				r = tern_mem_wrap_brief(domain, self->data, bytes,
					!self->readonly, &self->buf.mem);
			else if (self->readonly)
				r = tern_mem_wrap_readonly(
					domain, self->data, bytes, &self->buf.mem);
			else
				r = tern_mem_wrap(
					domain, self->data, bytes, &self->buf.mem);
		});
	if (r < 0) {
		raise_text(r, tern_status_text(r));
		return false;
	}
	self->buf.bytes = bytes;
	if (is_cuda)
		self->data = NULL;
	return true;
}

/* Fills in what the buffer protocol says of the object. Returns false with an exception. */
static bool wrap_view(struct buffer *self, PyObject *from, bool writable)
{
	const char *format;

	if (PyObject_GetBuffer(from, &self->view,
		    PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) <
		0)
		return false;
	format = self->view.format ? self->view.format : "B";
	self->shape.dtype = dtype_of(format);
	self->is_bool = strchr(format, '?') != NULL;
	if (self->shape.dtype == TERN_DTYPE_NONE ||
		tern_dtype_bytes(self->shape.dtype) != (size_t)self->view.itemsize) {
		PyErr_Format(PyExc_TypeError, "no tensor has elements of the format %s",
			format);
		return false;
	}
	if (self->view.ndim > (int)TERN_RANK_MAX) {
		PyErr_Format(PyExc_ValueError,
			"a tensor has at most %d dimensions, not %d", TERN_RANK_MAX,
			self->view.ndim);
		return false;
	}
	self->shape.rank = (uint32_t)self->view.ndim;
	for (int i = 0; i < self->view.ndim; i++)
		self->shape.dims[i] = (uint64_t)self->view.shape[i];
	self->data = self->view.buf;
	self->readonly = self->view.readonly;
	return true;
}

static bool wrap_borrowed(struct buffer *self, PyObject *from, bool writable)
{
	self->borrowed = borrow(from);
	if (!self->borrowed)
		return false;
	if (writable && self->borrowed->readonly) {
		PyErr_SetString(PyExc_ValueError, "the tensor cannot be written to");
		return false;
	}
	self->shape = self->borrowed->shape;
	self->is_bool = self->borrowed->is_bool;
	self->data = self->borrowed->data;
	self->readonly = self->borrowed->readonly;
	return true;
}

/* wrap(object, writable, brief, pool) -> Buffer with the memory of the object. `brief`: for
 * one operation; `pool`: for an object without elements. */
PyObject *context_wrap(struct context *self, PyObject *args)
{
	struct buffer *out;
	struct pool *pool;
	PyObject *from;
	int writable, brief;
	bool good;

	if (!PyArg_ParseTuple(
		    args, "OppO!", &from, &writable, &brief, pool_type, &pool) ||
		!context_is_usable(self))
		return NULL;
	out = new_buffer(self);
	if (!out)
		return NULL;
	/* Not all that PyObject_CheckBuffer() is true of has a format: bf16 has none. */
	if (PyObject_HasAttrString(from, "__dlpack__") && !PyObject_CheckBuffer(from))
		good = wrap_borrowed(out, from, writable);
	else
		good = wrap_view(out, from, writable);
	if (good)
		set_dims(out);
	if (good &&
		register_memory(out, out->borrowed && out->borrowed->is_cuda, brief) &&
		(out->buf.mem || take(out, pool, 0)))
		return (PyObject *)out;
	Py_DECREF((PyObject *)out);
	return NULL;
}

/* ---- what a buffer offers ---- */

static int buffer_getbuffer(struct buffer *self, Py_buffer *buffer, int flags)
{
	uint64_t bytes = 0;

	if (!self->data) {
		PyErr_SetString(
			PyExc_BufferError, "the buffer is in GPU memory: use DLPack");
		return -1;
	}
	if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && self->shape.rank > 1) {
		PyErr_SetString(PyExc_BufferError, "the buffer is in row-major order");
		return -1;
	}
	tern_shape_bytes(&self->shape, &bytes);
	if (PyBuffer_FillInfo(buffer, (PyObject *)self, self->data, (Py_ssize_t)bytes,
		    self->readonly, flags) < 0)
		return -1;
	buffer->itemsize = (Py_ssize_t)tern_dtype_bytes(self->shape.dtype);
	if (flags & PyBUF_FORMAT)
		buffer->format = (char *)(uintptr_t)format_of(self);
	if (flags & PyBUF_ND) {
		buffer->ndim = (int)self->shape.rank;
		buffer->shape = self->dims;
	}
	if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES)
		buffer->strides = self->strides;
	return 0;
}

static PyObject *buffer_shape(struct buffer *self, void *ignored)
{
	PyObject *dims = PyTuple_New((Py_ssize_t)self->shape.rank);

	(void)ignored;
	for (uint32_t i = 0; dims && i < self->shape.rank; i++) {
		PyObject *dim = PyLong_FromSsize_t(self->dims[i]);

		if (!dim || PyTuple_SetItem(dims, (Py_ssize_t)i, dim) < 0)
			Py_CLEAR(dims);
	}
	return dims;
}

static PyObject *buffer_dtype(struct buffer *self, void *ignored)
{
	static const char *const names[TERN_DTYPE_COUNT] = {"", "uint8", "int8", "uint16",
		"int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
		"float32", "float64"};

	(void)ignored;
	return PyUnicode_FromString(self->is_bool ? "bool" : names[self->shape.dtype]);
}

static PyObject *buffer_readonly(struct buffer *self, void *ignored)
{
	(void)ignored;
	return PyBool_FromLong(self->readonly);
}

static void buffer_dealloc(struct buffer *self)
{
	struct context *context = self->context;
	bool is_child = context && context->forks != fork_count();

	if (self->pool) {
		if (!is_child)
			tern_pool_put(self->pool->pool, &self->buf);
		Py_DECREF((PyObject *)self->pool);
	} else if (self->buf.mem && !self->request && !is_child) {
		WITHOUT_GIL(tern_mem_put(self->buf.mem));
	}
	if (self->view.obj)
		PyBuffer_Release(&self->view);
	if (self->borrowed)
		give_back(self->borrowed);
	Py_XDECREF((PyObject *)self->request);
	if (context)
		context_let_go(context);
	free_object(self);
}

static PyMethodDef buffer_methods[] = {
	{"__dlpack__", (PyCFunction)(void (*)(void))buffer_dlpack,
		METH_VARARGS | METH_KEYWORDS, NULL},
	{"__dlpack_device__", (PyCFunction)(void (*)(void))buffer_dlpack_device,
		METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef buffer_fields[] = {
	{"shape", (getter)buffer_shape, NULL, NULL, NULL},
	{"dtype", (getter)buffer_dtype, NULL, NULL, NULL},
	{"readonly", (getter)buffer_readonly, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot buffer_slots[] = {
	{Py_tp_getset, buffer_fields},
	{Py_tp_dealloc, buffer_dealloc},
	{Py_bf_getbuffer, buffer_getbuffer},
	{Py_tp_methods, buffer_methods},
	{0, NULL},
};

PyType_Spec buffer_spec = {
	.name = "pytern._native.Buffer",
	.basicsize = sizeof(struct buffer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = buffer_slots,
};

/* ---- pools ---- */

/* pool(slab bytes, most bytes, CUDA device or -1) -> Pool */
PyObject *context_pool(struct context *self, PyObject *args)
{
	struct tern_pool_opts opts = {0};
	unsigned long long slab_bytes, max_bytes;
	struct pool *out;
	int device, r;

	if (!PyArg_ParseTuple(args, "KKi", &slab_bytes, &max_bytes, &device) ||
		!context_is_usable(self))
		return NULL;
	opts.slab_bytes = slab_bytes;
	opts.max_bytes = max_bytes;
	opts.kind = device < 0 ? TERN_MEM_HOST : TERN_MEM_CUDA;
	opts.cuda_device = device < 0 ? 0 : (uint32_t)device;
	out = new_object(pool_type);
	if (!out)
		return NULL;
	context_keep(self);
	out->context = self;
	BUSY(self,
		r = tern_pool_new(tern_context_domain(tern_shared_context(self->shared)),
			&opts, &out->pool));
	if (r == 0)
		return (PyObject *)out;
	Py_DECREF((PyObject *)out);
	return raise_text(
		r, r == -EINVAL ? "a pool: expected slab_bytes <= max_bytes <= 64 GiB"
				: tern_status_text(r));
}

/* take(dtype, dims, is bool) -> Buffer */
static PyObject *pool_take(struct pool *self, PyObject *args)
{
	struct tern_shape shape = {0};
	struct buffer *out;
	uint64_t bytes;
	PyObject *dims;
	int dtype, is_bool, r;

	if (!PyArg_ParseTuple(args, "iO!p", &dtype, &PyTuple_Type, &dims, &is_bool) ||
		!context_is_usable(self->context))
		return NULL;
	shape.dtype = (enum tern_dtype)dtype;
	shape.rank = (uint32_t)PyTuple_Size(dims);
	for (uint32_t i = 0; i < shape.rank && i < TERN_RANK_MAX; i++)
		shape.dims[i] =
			PyLong_AsUnsignedLongLong(PyTuple_GetItem(dims, (Py_ssize_t)i));
	if (PyErr_Occurred())
		return NULL;
	r = tern_shape_bytes(&shape, &bytes);
	if (r < 0 || (is_bool && shape.dtype != TERN_U8))
		return raise_text(r < 0 ? r : -EINVAL, "no tensor has this shape");
	out = new_buffer(self->context);
	if (!out)
		return NULL;
	out->shape = shape;
	out->is_bool = is_bool;
	set_dims(out);
	if (take(out, self, bytes))
		return (PyObject *)out;
	Py_DECREF((PyObject *)out);
	return NULL;
}

static void pool_dealloc(struct pool *self)
{
	struct context *context = self->context;

	if (self->pool && context->forks == fork_count())
		WITHOUT_GIL(tern_pool_free(self->pool));
	if (context)
		context_let_go(context);
	free_object(self);
}

static PyMethodDef pool_methods[] = {
	{"take", (PyCFunction)(void (*)(void))pool_take, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot pool_slots[] = {
	{Py_tp_dealloc, pool_dealloc},
	{Py_tp_methods, pool_methods},
	{0, NULL},
};

PyType_Spec pool_spec = {
	.name = "pytern._native.Pool",
	.basicsize = sizeof(struct pool),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = pool_slots,
};
