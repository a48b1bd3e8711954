/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack (its documents and header dlpack.h): how libraries of Python exchange tensors
 * without copying them, also such that the buffer protocol has no format for (bf16, GPUs). The
 * structures are declared here as its version 1 has them, and the former form without a
 * version, which PyTorch before 2.9 and NumPy before 2.1 speak.
 */
#include "python/pytern/native_transport.h"

#include <stdlib.h>

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2, DEVICE_CUDA_HOST = 3, DEVICE_CUDA_MANAGED = 13 };
enum { CODE_INT = 0, CODE_UINT = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4, CODE_BOOL = 6 };
#define FLAG_READ_ONLY 1u

struct dl_tensor {
	void *data;
	int32_t device_type, device;
	int32_t rank;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *dims;
	int64_t *strides; /* in elements; NULL: row-major order */
	uint64_t offset;  /* in bytes, of the first element */
};

struct dl_managed {
	struct dl_tensor tensor;
	void *owner;
	void (*deleter)(struct dl_managed *self);
};

struct dl_versioned {
	uint32_t major, minor;
	void *owner;
	void (*deleter)(struct dl_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};

#define NAME           "dltensor"
#define NAME_VERSIONED "dltensor_versioned"

static const struct {
	enum tern_dtype dtype;
	uint8_t code, bits;
} types[] = {
	{TERN_U8, CODE_UINT, 8},
	{TERN_I8, CODE_INT, 8},
	{TERN_U16, CODE_UINT, 16},
	{TERN_I16, CODE_INT, 16},
	{TERN_U32, CODE_UINT, 32},
	{TERN_I32, CODE_INT, 32},
	{TERN_U64, CODE_UINT, 64},
	{TERN_I64, CODE_INT, 64},
	{TERN_F16, CODE_FLOAT, 16},
	{TERN_BF16, CODE_BFLOAT, 16},
	{TERN_F32, CODE_FLOAT, 32},
	{TERN_F64, CODE_FLOAT, 64},
	{TERN_U8, CODE_BOOL, 8},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

/* ---- tensors of other libraries ---- */

static bool read_dtype(const struct dl_tensor *t, struct borrowed *out)
{
	for (size_t i = 0; i < TYPES; i++)
		if (types[i].code == t->code && types[i].bits == t->bits &&
			t->lanes == 1) {
			out->shape.dtype = types[i].dtype;
			out->is_bool = t->code == CODE_BOOL;
			return true;
		}
	PyErr_Format(PyExc_TypeError,
		"no tensor has elements of DLPack's type (%d, %d, %d)", t->code, t->bits,
		t->lanes);
	return false;
}

static bool read_dims(const struct dl_tensor *t, struct borrowed *out)
{
	int64_t stride = 1;

	if (t->rank < 0 || t->rank > (int32_t)TERN_RANK_MAX) {
		PyErr_Format(PyExc_ValueError,
			"a tensor has at most %d dimensions, not %d", TERN_RANK_MAX,
			t->rank);
		return false;
	}
	out->shape.rank = (uint32_t)t->rank;
	for (int32_t i = t->rank; i-- > 0;) {
		out->shape.dims[i] = (uint64_t)t->dims[i];
		if (t->strides && t->dims[i] > 1 && t->strides[i] != stride) {
			PyErr_SetString(PyExc_ValueError,
				"the tensor is not contiguous: make it so, in row-major "
				"order");
			return false;
		}
		stride *= t->dims[i];
	}
	return true;
}

static bool read_tensor(const struct dl_tensor *t, struct borrowed *out)
{
	out->is_cuda =
		t->device_type == DEVICE_CUDA || t->device_type == DEVICE_CUDA_MANAGED;
	if (!out->is_cuda && t->device_type != DEVICE_CPU &&
		t->device_type != DEVICE_CUDA_HOST) {
		PyErr_Format(PyExc_TypeError,
			"a tensor of DLPack's device %d: expected one of the CPU or of "
			"CUDA",
			t->device_type);
		return false;
	}
	out->data = (char *)t->data + t->offset;
	return read_dtype(t, out) && read_dims(t, out);
}

/* Calls the object's __dlpack__(), which older libraries do not let say a version. */
static PyObject *ask(PyObject *from)
{
	PyObject *method = PyObject_GetAttrString(from, "__dlpack__");
	PyObject *nothing = PyTuple_New(0);
	PyObject *version = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
	PyObject *capsule = NULL;

	if (method && nothing && version)
		capsule = PyObject_Call(method, nothing, version);
	if (!capsule && method && nothing && PyErr_ExceptionMatches(PyExc_TypeError)) {
		PyErr_Clear();
		capsule = PyObject_Call(method, nothing, NULL);
	}
	Py_XDECREF(method);
	Py_XDECREF(nothing);
	Py_XDECREF(version);
	return capsule;
}

/* Takes what the capsule has, which belongs to the caller then. */
static bool take(PyObject *capsule, struct borrowed *out)
{
	out->has_version = PyCapsule_IsValid(capsule, NAME_VERSIONED);
	out->managed =
		PyCapsule_GetPointer(capsule, out->has_version ? NAME_VERSIONED : NAME);
	return out->managed &&
	       PyCapsule_SetName(capsule,
		       out->has_version ? "used_" NAME_VERSIONED : "used_" NAME) == 0;
}

struct borrowed *borrow(PyObject *from)
{
	struct borrowed *out = calloc(1, sizeof(*out));
	PyObject *capsule = out ? ask(from) : PyErr_NoMemory();
	bool good = false;

	if (capsule && take(capsule, out)) {
		const struct dl_versioned *versioned = out->managed;

		if (out->has_version && versioned->major != 1) {
			PyErr_Format(PyExc_BufferError, "DLPack %u: expected version 1",
				versioned->major);
		} else {
			out->readonly =
				out->has_version && (versioned->flags & FLAG_READ_ONLY);
			good = read_tensor(
				out->has_version
					? &versioned->tensor
					: &((struct dl_managed *)out->managed)->tensor,
				out);
		}
	}
	Py_XDECREF(capsule);
	if (good)
		return out;
	if (out)
		give_back(out);
	return NULL;
}

void give_back(struct borrowed *b)
{
	struct dl_versioned *versioned = b->managed;
	struct dl_managed *managed = b->managed;

	if (versioned && b->has_version && versioned->deleter)
		versioned->deleter(versioned);
	else if (managed && !b->has_version && managed->deleter)
		managed->deleter(managed);
	free(b);
}

/* ---- tensors for other libraries ---- */

struct lent {
	union {
		struct dl_managed plain;
		struct dl_versioned versioned;
	};
	struct buffer *buffer; /* a reference */
	int64_t dims[TERN_RANK_MAX], strides[TERN_RANK_MAX];
};

/* Other libraries free tensors on any thread, also without the GIL. */
static void end_loan(struct lent *l)
{
	PyGILState_STATE state;

	if (Py_IsInitialized()) {
		state = PyGILState_Ensure();
		Py_DECREF((PyObject *)l->buffer);
		PyGILState_Release(state);
	}
	free(l);
}

static void delete_plain(struct dl_managed *self)
{
	end_loan(self->owner);
}

static void delete_versioned(struct dl_versioned *self)
{
	end_loan(self->owner);
}

/* Nobody has taken the tensor out of the capsule. */
static void delete_capsule(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, NAME) ||
		PyCapsule_IsValid(capsule, NAME_VERSIONED))
		end_loan(PyCapsule_GetContext(capsule));
}

static struct dl_tensor describe(struct buffer *self, struct lent *l)
{
	struct dl_tensor t = {.data = self->data,
		.device_type = DEVICE_CPU,
		.rank = (int32_t)self->shape.rank,
		.lanes = 1,
		.dims = l->dims,
		.strides = l->strides};
	int64_t stride = 1;

	if (!self->data) {
		t.data = (void *)(uintptr_t)tern_buf_cuda_address(&self->buf);
		t.device_type = DEVICE_CUDA;
		t.device = tern_mem_cuda_device(self->buf.mem);
	}
	for (size_t i = 0; i < TYPES; i++)
		if (types[i].dtype == self->shape.dtype &&
			(types[i].code == CODE_BOOL) == self->is_bool) {
			t.code = types[i].code;
			t.bits = types[i].bits;
		}
	for (uint32_t i = self->shape.rank; i-- > 0;) {
		l->dims[i] = self->dims[i];
		l->strides[i] = stride;
		stride *= self->dims[i] ? self->dims[i] : 1;
	}
	return t;
}

static struct lent *lend(struct buffer *self)
{
	struct lent *l = calloc(1, sizeof(*l));

	if (!l) {
		PyErr_NoMemory();
		return NULL;
	}
	l->buffer = self;
	return l;
}

static PyObject *capsule_of(struct lent *l, void *content, const char *name)
{
	PyObject *capsule = PyCapsule_New(content, name, delete_capsule);

	if (!capsule || PyCapsule_SetContext(capsule, l) < 0) {
		Py_XDECREF(capsule);
		free(l);
		return NULL;
	}
	Py_INCREF((PyObject *)l->buffer);
	return capsule;
}

/* True if the buffer is on this device, a tuple of type and number; None: any. */
static bool is_on(const struct buffer *self, PyObject *device)
{
	int type, number;

	if (device == Py_None)
		return true;
	if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &type, &number)) {
		PyErr_Clear();
		return false;
	}
	return self->data ? type == DEVICE_CPU
			  : type == DEVICE_CUDA &&
				    number == tern_mem_cuda_device(self->buf.mem);
}

/* __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None). A buffer is
 * complete when a program has it, so there is no stream to wait for. */
PyObject *buffer_dlpack(struct buffer *self, PyObject *args, PyObject *keywords)
{
	static char *names[] = {(char *)"stream", (char *)"max_version",
		(char *)"dl_device", (char *)"copy", NULL};
	PyObject *stream = Py_None, *version = Py_None, *device = Py_None,
		 *copy = Py_None;
	struct lent *l;
	unsigned major = 0, minor = 0;

	if (!PyArg_ParseTupleAndKeywords(
		    args, keywords, "|$OOOO", names, &stream, &version, &device, &copy))
		return NULL;
	if (version != Py_None && !PyTuple_Check(version)) {
		PyErr_SetString(
			PyExc_TypeError, "max_version: expected a tuple of two numbers");
		return NULL;
	}
	if (version != Py_None && !PyArg_ParseTuple(version, "II", &major, &minor))
		return NULL;
	if (!is_on(self, device)) {
		PyErr_SetString(PyExc_BufferError, "the buffer is on another device");
		return NULL;
	}
	if (copy == Py_True) {
		PyErr_SetString(PyExc_BufferError, "a buffer is exported without a copy");
		return NULL;
	}
	if (major == 0 && self->readonly) {
		PyErr_SetString(PyExc_BufferError,
			"the buffer cannot be written to, which DLPack before version 1 "
			"cannot say");
		return NULL;
	}
	l = lend(self);
	if (!l)
		return NULL;
	if (major == 0) {
		l->plain = (struct dl_managed){
			.tensor = describe(self, l), .owner = l, .deleter = delete_plain};
		return capsule_of(l, &l->plain, NAME);
	}
	l->versioned = (struct dl_versioned){.major = 1,
		.owner = l,
		.deleter = delete_versioned,
		.flags = self->readonly ? FLAG_READ_ONLY : 0,
		.tensor = describe(self, l)};
	return capsule_of(l, &l->versioned, NAME_VERSIONED);
}

PyObject *buffer_dlpack_device(struct buffer *self, PyObject *ignored)
{
	(void)ignored;
	if (self->data)
		return Py_BuildValue("ii", DEVICE_CPU, 0);
	return Py_BuildValue("ii", DEVICE_CUDA, tern_mem_cuda_device(self->buf.mem));
}
