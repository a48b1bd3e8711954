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
#include "python/pytern/native_transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static PyObject *error_type; /* pytern.Error */

static unsigned forks;

static void count_fork(void)
{
	forks++;
}

unsigned fork_count(void)
{
	return forks;
}

/* ---- objects ---- */

void *new_object(PyTypeObject *type)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);

	return alloc(type, 0);
}

void free_object(void *object)
{
	PyTypeObject *type = Py_TYPE((PyObject *)object);
	freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);

	free_memory(object);
	Py_DECREF(type);
}

/* ---- errors ---- */

PyObject *raise_text(int status, const char *text)
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

PyObject *raise_status(int status)
{
	const char *text = tern_shared_text();

	return raise_text(status, *text ? text : tern_status_text(status));
}

PyObject *none_or_raise(int status)
{
	if (status < 0)
		return raise_status(status);
	Py_RETURN_NONE;
}

bool is_usable(struct session *self)
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

bool is_tensor(const struct session *self, unsigned long id)
{
	if (id < self->tensor_count)
		return true;
	PyErr_Format(PyExc_IndexError, "tensor %lu: the session has %u tensors", id,
		(unsigned)self->tensor_count);
	return false;
}

void wait_for_none(const unsigned *count)
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
static int make(struct session *self, const char *join, const char *secret_file,
	long long server_wait_s)
{
	const struct tern_shared_opts opts = {.secret_file = secret_file};
	const struct tern_session_opts session_opts = {.join = join,
		.note = keep_note,
		.arg = self,
		.server_wait_s = server_wait_s};
	int r;

	r = tern_shared_new(&opts, &self->shared);
	if (r == 0)
		r = tern_shared_session(self->shared, &session_opts, &self->session);
	return r;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	const char *join, *secret_file;
	long long server_wait_s = 0;
	struct session *self;
	int r;

	(void)keywords;
	if (!PyArg_ParseTuple(args, "zz|L", &join, &secret_file, &server_wait_s))
		return NULL;
	self = new_object(type);
	if (!self)
		return NULL;
	self->forks = forks;
	pthread_mutex_init(&self->note_lock, NULL);
	BUSY(self, r = make(self, join, secret_file, server_wait_s));
	if (r < 0) {
		raise_status(r);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

void release(struct session *self)
{
	struct tern_shared *shared = self->shared;

	self->shared = NULL;
	self->slot = NULL;
	WITHOUT_GIL(tern_shared_free(shared));
}

/* Lets the program change or free its arrays with initial values. */
static void drop_last_given(struct session *self)
{
	Py_buffer *buffer = self->given[--self->given_count];

	PyBuffer_Release(buffer);
	free(buffer);
}

static void drop_given(struct session *self)
{
	while (self->given_count > 0)
		drop_last_given(self);
	free(self->given);
	self->given = NULL;
}

static void session_dealloc(struct session *self)
{

	release(self);
	drop_given(self);
	for (unsigned i = 0; i < self->note_count; i++)
		free(self->notes[i]);
	free(self->tensors);
	free_object(self);
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
	drop_given(self);
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

/* Reads an update rule from a tuple (name, lr, momentum, beta1, beta2, epsilon, weight_decay,
 * initial_accumulator). The tuple keeps the name. */
static bool read_rule(PyObject *from, struct tern_rule_opts *rule)
{
	if (PyTuple_Check(from))
		return PyArg_ParseTuple(from, "sddddddd", &rule->name, &rule->lr,
			&rule->momentum, &rule->beta1, &rule->beta2, &rule->epsilon,
			&rule->weight_decay, &rule->initial_accumulator);
	PyErr_SetString(PyExc_TypeError, "a rule: expected a tuple");
	return false;
}

/* Keeps the initial values in `from` until the session has started. Returns their memory. */
static const float *keep_given(
	struct session *self, PyObject *from, const struct tensor *tensor)
{
	Py_buffer **grown =
		realloc(self->given, (self->given_count + 1) * sizeof(*grown));
	Py_buffer *buffer = malloc(sizeof(*buffer));

	if (grown)
		self->given = grown;
	if (!grown || !buffer) {
		free(buffer);
		PyErr_NoMemory();
		return NULL;
	}
	if (PyObject_GetBuffer(from, buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
		free(buffer);
		return NULL;
	}
	if (buffer->len != tensor->bytes || !buffer->format ||
		strcmp(buffer->format, "f") != 0) {
		PyErr_SetString(PyExc_ValueError,
			"initial values: expected float32 of the tensor's size");
		PyBuffer_Release(buffer);
		free(buffer);
		return NULL;
	}
	self->given[self->given_count++] = buffer;
	return buffer->buf;
}

/* tensor(name, shape, init, a, b, rule or None, values or None, push as bf16, pull as bf16)
 * -> id */
static PyObject *session_tensor(struct session *self, PyObject *args)
{
	struct tern_tensor_opts opts = {0};
	struct tern_rule_opts rule = {0};
	struct tensor tensor, *grown;
	PyObject *dims, *of_rule, *values;
	uint32_t id;
	int init, push = 0, pull = 0, r;

	if (!PyArg_ParseTuple(args, "sO!iddOO|pp", &opts.name, &PyTuple_Type, &dims,
		    &init, &opts.a, &opts.b, &of_rule, &values, &push, &pull) ||
		!is_usable(self) || !read_shape(dims, &opts.shape, &tensor) ||
		(of_rule != Py_None && !read_rule(of_rule, &rule)))
		return NULL;
	opts.init = (enum tern_init)init;
	opts.push = push ? TERN_BF16 : TERN_F32;
	opts.pull = pull ? TERN_BF16 : TERN_F32;
	opts.rule = of_rule != Py_None ? &rule : NULL;
	grown = realloc(self->tensors, (self->tensor_count + 1) * sizeof(*grown));
	if (!grown)
		return PyErr_NoMemory();
	self->tensors = grown;
	if (values != Py_None) {
		opts.values = keep_given(self, values, &tensor);
		if (!opts.values)
			return NULL;
	}
	/* With the GIL: the ids must come in the order of the calls. */
	r = tern_shared_tensor(self->shared, self->session, &opts, &id);
	if (r < 0) {
		if (opts.values)
			drop_last_given(self);
		return raise_status(r);
	}
	self->tensors[self->tensor_count++] = tensor;
	return PyLong_FromUnsignedLong(id);
}

/* start(workers, index, (mode, staleness), slots, steps, seed, clip_norm, arithmetic, records,
 *       batch, data, verify_first, rule, (schedule, warmup, steps, factor), init_from_first,
 *       eval_every, early) */
static PyObject *session_start(struct session *self, PyObject *args)
{
	struct tern_job_opts job = {0};
	unsigned long long staleness, steps, seed, records, data, warmup, schedule_steps;
	long long verify_first, eval_every;
	PyObject *rule;
	int mode, init_from_first, early, r;

	if (!PyArg_ParseTuple(args, "II(iK)IKKdsKIKLO(sKKd)pLp", &job.workers, &job.index,
		    &mode, &staleness, &job.slots, &steps, &seed, &job.clip_norm,
		    &job.arithmetic, &records, &job.batch, &data, &verify_first, &rule,
		    &job.schedule.name, &warmup, &schedule_steps, &job.schedule.factor,
		    &init_from_first, &eval_every, &early) ||
		!read_rule(rule, &job.rule) || !is_usable(self))
		return NULL;
	job.mode = (enum tern_train_mode)mode;
	job.staleness = staleness;
	job.steps = steps;
	job.seed = seed;
	job.records = records;
	job.data = data;
	job.verify_first = verify_first;
	job.schedule.warmup = warmup;
	job.schedule.steps = schedule_steps;
	job.init_from_first = init_from_first;
	job.eval_every = eval_every;
	job.early = early;
	BUSY(self, r = tern_shared_start(self->shared, self->session, &job));
	/* After an error the library may be asked again, and reads the values then. */
	if (r == 0)
		drop_given(self);
	return none_or_raise(r);
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

/* metric(name, value) */
static PyObject *session_metric(struct session *self, PyObject *args)
{
	const char *name;
	double value;
	int r;

	if (!PyArg_ParseTuple(args, "sd", &name, &value) || !is_usable(self))
		return NULL;
	BUSY(self, r = tern_shared_metric(self->shared, self->session, name, value));
	return none_or_raise(r);
}

/* goes_on(): this worker is alive. */
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
	METHOD(ahead, METH_VARARGS),
	METHOD(keep, METH_VARARGS),
	METHOD(kept, METH_VARARGS),
	METHOD(read, METH_VARARGS),
	METHOD(view, METH_VARARGS),
	METHOD(push, METH_FASTCALL),
	METHOD(end, METH_VARARGS),
	METHOD(fail, METH_VARARGS),
	METHOD(arrived, METH_VARARGS),
	METHOD(revoked, METH_VARARGS),
	METHOD(map, METH_VARARGS),
	METHOD(place, METH_VARARGS),
	METHOD(param, METH_VARARGS),
	METHOD(finisher, METH_VARARGS),
	METHOD(metric, METH_VARARGS),
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
	map_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &map_spec, NULL);
	session = PyType_FromModuleAndSpec(module, &session_spec, NULL);
	if (!view_type || !map_type || !session ||
		PyModule_AddType(module, (PyTypeObject *)session) < 0 ||
		PyModule_AddStringConstant(module, "version", tern_version()) < 0 ||
		load_transport(module) < 0)
		return -1;
	Py_DECREF((PyObject *)session);
	return 0;
}

/* key(name) -> tern_key() of it */
static PyObject *module_key(PyObject *ignored, PyObject *args)
{
	const char *name;

	(void)ignored;
	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	return PyLong_FromUnsignedLongLong(tern_key(name));
}

/* status_text(status) -> the status in words */
static PyObject *module_status_text(PyObject *ignored, PyObject *args)
{
	int status;

	(void)ignored;
	if (!PyArg_ParseTuple(args, "i", &status))
		return NULL;
	return PyUnicode_FromString(tern_status_text(status));
}

static PyMethodDef module_methods[] = {
	{"key", module_key, METH_VARARGS, NULL},
	{"status_text", module_status_text, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
	{Py_mod_exec, load},
	{0, NULL},
};

static PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "pytern._native",
	.m_methods = module_methods,
	.m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void)
{
	return PyModuleDef_Init(&module);
}
