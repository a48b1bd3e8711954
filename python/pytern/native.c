/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C part of the Python package: one worker of a training job (<tern/shared.h>) as an
 * object, for the classes in session.py. It does what Python cannot do: it reads and offers
 * memory, lets other Python threads run during a call (releases the GIL), and makes
 * exceptions of errors.
 *
 * No misuse from Python may crash the interpreter:
 *
 * - A method counts itself in `users` while it runs without the GIL, and close() waits until
 *   `users` is 0, so the library never frees what a call uses. The counters need no lock:
 *   they change only under the GIL.
 * - A slot is named by its turn, a number that is never used again. A method with a turn that
 *   has ended raises; ending a slot waits for `slot_users`, the pushes in other threads.
 * - A view holds a reference to its session, and the library's memory is freed after the last
 *   view.
 * - The progress thread never calls Python. It appends notes to a list, and session.py takes
 *   them from there in its own thread. A callback that waited for the GIL with the context
 *   locked would deadlock with a thread that has the GIL and waits for the context.
 * - No method waits for longer than it was told, so that session.py can look for signals.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tern/shared.h>
#include <time.h>

/* Notes that wait for session.py; further ones are counted and dropped. */
#define NOTES_MAX 64

struct tensor {
	Py_ssize_t bytes;
	int rank;
	Py_ssize_t dims[TERN_RANK_MAX];
};

struct session {
	PyObject_HEAD struct tern_shared *shared; /* NULL: freed */
	struct tern_session *session;
	struct tern_slot *slot;  /* the slot that the program holds; NULL: none */
	unsigned long long turn; /* of that slot, or of the last one */
	unsigned batch;          /* number of its records */
	struct tensor *tensors;
	uint32_t tensor_count;
	unsigned users, slot_users, views;
	bool closed;
	unsigned forks;            /* the value of `forks` when the session was made */
	pthread_mutex_t note_lock; /* protects the fields below */
	char *notes[NOTES_MAX];
	unsigned note_count, notes_dropped;
};

/* Parameters in the library's memory, for the buffer protocol. */
struct view {
	PyObject_HEAD struct session *session; /* a reference */
	const float *data;
	struct tensor tensor;
	Py_ssize_t strides[TERN_RANK_MAX];
};

static PyObject *error_type; /* pytern.Error */
static PyTypeObject *view_type;

/* Number of forks between the process that loaded the module and this one. */
static unsigned forks;

static void count_fork(void)
{
	forks++;
}

/* ---- errors ---- */

static PyObject *raise_text(int status, const char *text)
{
	PyObject *error;

	error = PyObject_CallFunction(error_type, "iN", status,
		PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
	if (error) {
		PyErr_SetObject(error_type, error);
		Py_DECREF(error);
	}
	return NULL;
}

/* Raises what the library says of its last call in this thread. */
static PyObject *raise_status(int status)
{
	const char *text = tern_shared_text();

	return raise_text(status, *text ? text : tern_status_text(status));
}

static PyObject *none_or_raise(int status)
{
	if (status < 0)
		return raise_status(status);
	Py_RETURN_NONE;
}

/* Raises unless the session can be used by this process. */
static bool is_usable(struct session *self)
{
	char text[1];

	if (self->closed) {
		raise_text(-EBADF, "the session is closed");
		return false;
	}
	/* In a forked child any call fails, with the sentence that is raised. */
	if (self->forks != forks) {
		raise_status(tern_shared_describe(
			self->shared, self->session, text, sizeof(text)));
		return false;
	}
	return true;
}

static bool is_tensor(const struct session *self, unsigned long id)
{
	if (id < self->tensor_count)
		return true;
	PyErr_Format(PyExc_IndexError, "tensor %lu: the session has %u tensors", id,
		(unsigned)self->tensor_count);
	return false;
}

/* Raises unless the program holds the slot of this turn. */
static bool holds(struct session *self, unsigned long long turn)
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

/* Calls a function of the library without the GIL. */
#define WITHOUT_GIL(call)                                                                \
	do {                                                                             \
		PyThreadState *state = PyEval_SaveThread();                              \
                                                                                         \
		call;                                                                    \
		PyEval_RestoreThread(state);                                             \
	} while (0)

/* The same, and close() waits for the call. */
#define BUSY(self, call)                                                                 \
	do {                                                                             \
		(self)->users++;                                                         \
		WITHOUT_GIL(call);                                                       \
		(self)->users--;                                                         \
	} while (0)

/* Waits until *count is 0. Other Python threads run meanwhile. */
static void wait_for_none(const unsigned *count)
{
	const struct timespec pause = {.tv_nsec = 200000};

	while (*count)
		WITHOUT_GIL(nanosleep(&pause, NULL));
}

/* ---- making and closing ---- */

/* Called on the progress thread, or by a call of the library on any thread. */
static void keep_note(void *arg, const char *text)
{
	struct session *self = arg;

	pthread_mutex_lock(&self->note_lock);
	if (self->note_count < NOTES_MAX &&
		(self->notes[self->note_count] = strdup(text)))
		self->note_count++;
	else
		self->notes_dropped++;
	pthread_mutex_unlock(&self->note_lock);
}

/* Runs without the GIL. */
static int make(struct session *self, const char *join, const char *secret_file)
{
	const struct tern_shared_opts opts = {.secret_file = secret_file};
	const struct tern_session_opts session_opts = {
		.join = join, .note = keep_note, .arg = self};
	int r;

	r = tern_shared_new(&opts, &self->shared);
	if (r == 0)
		r = tern_shared_session(self->shared, &session_opts, &self->session);
	return r;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	const char *join, *secret_file;
	struct session *self;
	int r;

	(void)keywords;
	if (!PyArg_ParseTuple(args, "zz", &join, &secret_file))
		return NULL;
	self = (struct session *)alloc(type, 0);
	if (!self)
		return NULL;
	self->forks = forks;
	pthread_mutex_init(&self->note_lock, NULL);
	BUSY(self, r = make(self, join, secret_file));
	if (r < 0) {
		raise_status(r);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

/* Frees what the library has. Does nothing in a forked child. */
static void release(struct session *self)
{
	struct tern_shared *shared = self->shared;

	self->shared = NULL;
	self->slot = NULL;
	WITHOUT_GIL(tern_shared_free(shared));
}

static void session_dealloc(struct session *self)
{
	PyTypeObject *type = Py_TYPE((PyObject *)self);
	freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release(self);
	for (unsigned i = 0; i < self->note_count; i++)
		free(self->notes[i]);
	free(self->tensors);
	free_object(self);
	Py_DECREF(type);
}

/* close(): frees the session. Other workers take a session that was not over for lost. While
 * views exist, the library's memory stays. */
static PyObject *session_close(struct session *self, PyObject *ignored)
{
	struct tern_slot *slot = self->slot;

	(void)ignored;
	if (self->closed)
		Py_RETURN_NONE;
	self->closed = true;
	self->slot = NULL;
	if (self->forks != forks)
		Py_RETURN_NONE;
	wait_for_none(&self->users);
	if (slot)
		tern_shared_fail(self->shared, slot, "the session was closed");
	if (self->views == 0)
		release(self);
	Py_RETURN_NONE;
}

/* ---- before the start ---- */

/* Reads a shape from a tuple. */
static bool read_shape(PyObject *dims, struct tern_shape *shape, struct tensor *tensor)
{
	Py_ssize_t rank = PyTuple_Size(dims);

	if (rank < 0)
		return false;
	if (rank > (Py_ssize_t)TERN_RANK_MAX) {
		PyErr_Format(PyExc_ValueError,
			"a tensor has at most %d dimensions, not %zd", TERN_RANK_MAX,
			rank);
		return false;
	}
	*shape = (struct tern_shape){.dtype = TERN_F32, .rank = (uint32_t)rank};
	*tensor = (struct tensor){.rank = (int)rank, .bytes = sizeof(float)};
	for (Py_ssize_t i = 0; i < rank; i++) {
		Py_ssize_t dim = PyLong_AsSsize_t(PyTuple_GetItem(dims, i));

		if (dim < 0 && PyErr_Occurred())
			return false;
		if (dim < 0 ||
			__builtin_mul_overflow(tensor->bytes, dim, &tensor->bytes)) {
			PyErr_Format(
				PyExc_ValueError, "%zd: not a possible dimension", dim);
			return false;
		}
		tensor->dims[i] = dim;
		shape->dims[i] = (uint64_t)dim;
	}
	return true;
}

/* tensor(name, shape, init, a, b) -> id */
static PyObject *session_tensor(struct session *self, PyObject *args)
{
	struct tern_tensor_opts opts = {0};
	struct tensor tensor, *grown;
	PyObject *dims;
	uint32_t id;
	int init, r;

	if (!PyArg_ParseTuple(args, "sO!idd", &opts.name, &PyTuple_Type, &dims, &init,
		    &opts.a, &opts.b) ||
		!is_usable(self) || !read_shape(dims, &opts.shape, &tensor))
		return NULL;
	opts.init = (enum tern_init)init;
	grown = realloc(self->tensors, (self->tensor_count + 1) * sizeof(*grown));
	if (!grown)
		return PyErr_NoMemory();
	self->tensors = grown;
	/* With the GIL: the ids must come in the order of the calls. */
	r = tern_shared_tensor(self->shared, self->session, &opts, &id);
	if (r < 0)
		return raise_status(r);
	self->tensors[self->tensor_count++] = tensor;
	return PyLong_FromUnsignedLong(id);
}

/* start(workers, index, mode, slots, steps, seed, clip_norm, arithmetic, records, batch, data,
 *       rule, lr, momentum, beta1, beta2, epsilon, weight_decay, initial_accumulator) */
static PyObject *session_start(struct session *self, PyObject *args)
{
	struct tern_job_opts job = {0};
	struct tern_rule_opts *rule = &job.rule;
	unsigned long long steps, seed, records, data;
	int mode, r;

	if (!PyArg_ParseTuple(args, "IIiIKKdsKIKsddddddd", &job.workers, &job.index,
		    &mode, &job.slots, &steps, &seed, &job.clip_norm, &job.arithmetic,
		    &records, &job.batch, &data, &rule->name, &rule->lr, &rule->momentum,
		    &rule->beta1, &rule->beta2, &rule->epsilon, &rule->weight_decay,
		    &rule->initial_accumulator) ||
		!is_usable(self))
		return NULL;
	job.mode = mode ? TERN_TRAIN_ASYNC : TERN_TRAIN_SYNC;
	job.steps = steps;
	job.seed = seed;
	job.records = records;
	job.data = data;
	BUSY(self, r = tern_shared_start(self->shared, self->session, &job));
	return none_or_raise(r);
}

/* ---- slots ---- */

static uint64_t to_ns(double seconds)
{
	return seconds <= 0 ? 0 : (uint64_t)(seconds * 1e9);
}

/* next(seconds) -> (turn, step, number, batch, seed), or False: all steps are done, or None:
 * not within that time */
static PyObject *session_next(struct session *self, PyObject *args)
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
	return Py_BuildValue("KKIIK", self->turn, (unsigned long long)info.step,
		(unsigned)info.slot, (unsigned)info.batch, (unsigned long long)info.seed);
}

/* records(turn) -> bytes, with 8 for each record number */
static PyObject *session_records(struct session *self, PyObject *args)
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

/* Copies tensor `id` from `data` into the buffer of `to`. The session stays meanwhile. */
static bool copy_to(struct session *self, unsigned id, const float *data, PyObject *to)
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
static PyObject *session_read(struct session *self, PyObject *args)
{
	unsigned long long turn;
	PyObject *to;
	unsigned id;
	bool copied;

	if (!PyArg_ParseTuple(args, "KIO", &turn, &id, &to) || !holds(self, turn) ||
		!is_tensor(self, id))
		return NULL;
	self->slot_users++; /* the slot cannot end before the copy is made */
	copied = copy_to(self, id, tern_slot_param(self->slot, id), to);
	self->slot_users--;
	if (!copied)
		return NULL;
	Py_RETURN_NONE;
}

/* view(turn, id) -> an object with the buffer protocol: the library's own memory */
static PyObject *session_view(struct session *self, PyObject *args)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(view_type, Py_tp_alloc);
	unsigned long long turn;
	Py_ssize_t stride = sizeof(float);
	struct view *view;
	unsigned id;

	if (!PyArg_ParseTuple(args, "KI", &turn, &id) || !holds(self, turn) ||
		!is_tensor(self, id))
		return NULL;
	view = (struct view *)alloc(view_type, 0);
	if (!view)
		return NULL;
	Py_INCREF((PyObject *)self);
	view->session = self;
	self->views++;
	view->data = tern_slot_param(self->slot, id);
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
static PyObject *session_push(
	struct session *self, PyObject *const *args, Py_ssize_t count)
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

/* end(turn, loss) */
static PyObject *session_end(struct session *self, PyObject *args)
{
	struct tern_slot *slot;
	unsigned long long turn;
	double loss;
	int r;

	if (!PyArg_ParseTuple(args, "Kd", &turn, &loss) || !holds(self, turn))
		return NULL;
	slot = let_go(self);
	BUSY(self, r = tern_shared_end(self->shared, slot, loss));
	return none_or_raise(r);
}

/* fail(turn, text) */
static PyObject *session_fail(struct session *self, PyObject *args)
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
static PyObject *session_revoked(struct session *self, PyObject *args)
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

/* ---- the end ---- */

/* param(id, buffer): copies the final values of a tensor. */
static PyObject *session_param(struct session *self, PyObject *args)
{
	const float *data;
	PyObject *to;
	unsigned id;

	if (!PyArg_ParseTuple(args, "IO", &id, &to) || !is_usable(self) ||
		!is_tensor(self, id))
		return NULL;
	BUSY(self, {
		tern_shared_lock(self->shared);
		data = tern_session_param(self->session, id);
		tern_shared_unlock(self->shared);
	});
	if (!data)
		return raise_text(
			-EAGAIN, "the final values are there after the last slot");
	if (!copy_to(self, id, data, to))
		return NULL;
	Py_RETURN_NONE;
}

/* finisher(seconds) -> bool, or None: not known within that time */
static PyObject *session_finisher(struct session *self, PyObject *args)
{
	double seconds;
	int r;

	if (!PyArg_ParseTuple(args, "d", &seconds) || !is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_finisher(self->shared, self->session, to_ns(seconds)));
	if (r == -ETIMEDOUT)
		Py_RETURN_NONE;
	if (r < 0)
		return raise_status(r);
	return PyBool_FromLong(r);
}

/* goes_on(): the finisher is alive. */
static PyObject *session_goes_on(struct session *self, PyObject *ignored)
{
	(void)ignored;
	if (!is_usable(self))
		return NULL;
	BUSY(self, {
		tern_shared_lock(self->shared);
		tern_session_goes_on(self->session);
		tern_shared_unlock(self->shared);
	});
	Py_RETURN_NONE;
}

/* finished(text or None) */
static PyObject *session_finished(struct session *self, PyObject *args)
{
	const char *text;
	int r;

	if (!PyArg_ParseTuple(args, "z", &text) || !is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_finished(self->shared, self->session, text));
	return none_or_raise(r);
}

/* leave(why) */
static PyObject *session_leave(struct session *self, PyObject *args)
{
	const char *why;
	int r;

	if (!PyArg_ParseTuple(args, "s", &why) || !is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_leave(self->shared, self->session, why));
	return none_or_raise(r);
}

/* ended(seconds) -> True: the job is complete, or None: not within that time */
static PyObject *session_ended(struct session *self, PyObject *args)
{
	double seconds;
	int r;

	if (!PyArg_ParseTuple(args, "d", &seconds) || !is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_ended(self->shared, self->session, to_ns(seconds)));
	if (r == -ETIMEDOUT)
		Py_RETURN_NONE;
	if (r < 0)
		return raise_status(r);
	Py_RETURN_TRUE;
}

/* describe() -> what the session does or waits for */
static PyObject *session_describe(struct session *self, PyObject *ignored)
{
	char text[600] = "";
	int r;

	(void)ignored;
	if (!is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_describe(
			   self->shared, self->session, text, sizeof(text)));
	if (r < 0)
		return raise_status(r);
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* notes() -> list of what the user may want to read, since the last call */
static PyObject *session_notes(struct session *self, PyObject *ignored)
{
	char *notes[NOTES_MAX];
	unsigned count, dropped;
	PyObject *list;

	(void)ignored;
	if (self->forks != forks) /* the lock may have been held during the fork */
		return PyList_New(0);
	pthread_mutex_lock(&self->note_lock);
	count = self->note_count;
	dropped = self->notes_dropped;
	memcpy(notes, self->notes, sizeof(notes));
	self->note_count = self->notes_dropped = 0;
	pthread_mutex_unlock(&self->note_lock);
	list = PyList_New(0);
	for (unsigned i = 0; i <= count && list; i++) {
		PyObject *text = NULL;

		if (i < count)
			text = PyUnicode_DecodeUTF8(
				notes[i], (Py_ssize_t)strlen(notes[i]), "replace");
		else if (dropped)
			text = PyUnicode_FromFormat(
				"%u further notes were dropped", dropped);
		else
			break;
		if (!text || PyList_Append(list, text) < 0)
			Py_CLEAR(list);
		Py_XDECREF(text);
	}
	for (unsigned i = 0; i < count; i++)
		free(notes[i]);
	return list;
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
	PyTypeObject *type = Py_TYPE((PyObject *)self);
	freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
	struct session *session = self->session;

	if (session) {
		session->views--;
		if (session->views == 0 && session->closed)
			release(session);
		Py_DECREF((PyObject *)session);
	}
	free_object(self);
	Py_DECREF(type);
}

/* ---- the module ---- */

#define METHOD(name, how)                                                                \
	{                                                                                \
#name, (PyCFunction)(void (*)(void))session_##name, how, NULL            \
	}
static PyMethodDef session_methods[] = {
	METHOD(tensor, METH_VARARGS),
	METHOD(start, METH_VARARGS),
	METHOD(next, METH_VARARGS),
	METHOD(records, METH_VARARGS),
	METHOD(read, METH_VARARGS),
	METHOD(view, METH_VARARGS),
	METHOD(push, METH_FASTCALL),
	METHOD(end, METH_VARARGS),
	METHOD(fail, METH_VARARGS),
	METHOD(revoked, METH_VARARGS),
	METHOD(param, METH_VARARGS),
	METHOD(finisher, METH_VARARGS),
	METHOD(goes_on, METH_NOARGS),
	METHOD(finished, METH_VARARGS),
	METHOD(leave, METH_VARARGS),
	METHOD(ended, METH_VARARGS),
	METHOD(describe, METH_NOARGS),
	METHOD(notes, METH_NOARGS),
	METHOD(close, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};

static PyType_Slot session_slots[] = {
	{Py_tp_new, session_new},
	{Py_tp_dealloc, session_dealloc},
	{Py_tp_methods, session_methods},
	{0, NULL},
};

static PyType_Spec session_spec = {
	.name = "pytern._native.Session",
	.basicsize = sizeof(struct session),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = session_slots,
};

static PyType_Slot view_slots[] = {
	{Py_tp_dealloc, view_dealloc},
	{Py_bf_getbuffer, view_getbuffer},
	{0, NULL},
};

static PyType_Spec view_spec = {
	.name = "pytern._native.View",
	.basicsize = sizeof(struct view),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = view_slots,
};

static int load(PyObject *module)
{
	PyObject *errors = PyImport_ImportModule("pytern._errors"), *session;

	if (!errors)
		return -1;
	pthread_atfork(NULL, NULL, count_fork);
	error_type = PyObject_GetAttrString(errors, "Error");
	Py_DECREF(errors);
	if (!error_type)
		return -1;
	view_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &view_spec, NULL);
	session = PyType_FromModuleAndSpec(module, &session_spec, NULL);
	if (!view_type || !session ||
		PyModule_AddType(module, (PyTypeObject *)session) < 0 ||
		PyModule_AddStringConstant(module, "version", tern_version()) < 0)
		return -1;
	Py_DECREF((PyObject *)session);
	return 0;
}

static PyModuleDef_Slot module_slots[] = {
	{Py_mod_exec, load},
	{0, NULL},
};

static PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "pytern._native",
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void)
{
	return PyModuleDef_Init(&module);
}
