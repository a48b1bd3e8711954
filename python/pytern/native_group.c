/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and collective operations for Python (<tern/group.h>): native_transport.h has the
 * rules.
 *
 *     Operation() --start()--> started --the library's done()--> ended --collect()--> collected
 *
 * - A group has a reference to its peers, which cannot be freed before it.
 * - From start() to collect() the library uses the operation and its memory: the operation
 *   has a reference to itself then.
 */
#include "python/pytern/native_transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static PyTypeObject *group_type, *operation_type;

struct group {
	PyObject_HEAD struct context *context;
	struct tern_group *group; /* NULL: closed. Changes with the GIL */
	struct tern_group
		*live; /* NULL: freed. Changes with the context locked, and while
				  * `users` is 0 */
	struct group *next, **place; /* in context->groups */
	PyObject *peers;             /* a tuple */
	unsigned users;              /* calls that use `group` */
};

struct operation {
	PyObject_HEAD struct context *context; /* NULL: never started */
	struct group *group;
	struct buffer *in, *out;
	struct tern_group_req req;
	struct operation *next; /* in context->ended_operations */
	uint64_t *parts;        /* ALL_TO_ALL_V: bytes of those of `in`, then of `out` */
	char *text;             /* why it has failed; or NULL */
	bool collected;
};

/* The operations, by the numbers that _groups.py has. */
enum kind {
	ALL_REDUCE,
	REDUCE,
	BROADCAST,
	GATHER,
	SCATTER,
	ALL_GATHER,
	REDUCE_SCATTER,
	ALL_TO_ALL,
	BARRIER,
	ALL_TO_ALL_V,
};

/* ---- groups ---- */

/* Counts the group in, or out of, the groups that use each peer of the tuple. */
static void use_peers(PyObject *peers, int by)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(peers); i++) {
		PyObject *peer = PyTuple_GetItem(peers, i);

		if (Py_TYPE(peer) == peer_type)
			((struct peer *)peer)->groups += by;
	}
}

/* Keeps what the peers have in the library, or lets go of it. */
static void use_links(PyObject *peers, int by)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(peers); i++) {
		PyObject *peer = PyTuple_GetItem(peers, i);

		if (Py_TYPE(peer) == peer_type)
			((struct peer *)peer)->users += (unsigned)by;
	}
}

static void group_shut(struct group *self)
{
	struct context *context = self->context;
	struct tern_group *group = self->group;

	if (!group)
		return;
	self->group = NULL;
	*self->place = self->next;
	if (self->next)
		self->next->place = self->place;
	if (context->forks == fork_count()) {
		wait_for_none(&self->users);
		LOCKED(context, {
			self->live = NULL;
			tern_group_free(group);
		});
	}
	use_peers(self->peers, -1);
	Py_CLEAR(self->peers);
}

void groups_shut(struct context *context)
{
	while (context->groups) {
		struct group *g = context->groups;

		Py_INCREF((PyObject *)g);
		group_shut(g);
		Py_DECREF((PyObject *)g);
	}
}

/* Lists what the peers have in the library. Returns false with an exception. */
static bool list_links(
	struct context *context, PyObject *peers, uint32_t rank, const struct link **out)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(peers); i++) {
		struct peer *peer = (struct peer *)PyTuple_GetItem(peers, i);

		if (i == (Py_ssize_t)rank)
			continue;
		if (Py_TYPE((PyObject *)peer) != peer_type || peer->context != context ||
			!peer->link) {
			PyErr_Format(PyExc_ValueError,
				"peers: expected an open peer of this context for rank "
				"%zd",
				i);
			return false;
		}
		out[i] = peer->link;
	}
	return true;
}

static bool list_hosts(PyObject *hosts, uint32_t *out)
{
	for (Py_ssize_t i = 0; i < PyTuple_Size(hosts); i++)
		out[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(hosts, i));
	return !PyErr_Occurred();
}

/* Called with the context locked, since only then no peer is freed: on_notified() may. */
static int find_peers(const struct tern_group_opts *opts, const struct link **links,
	struct tern_peer **out)
{
	for (uint32_t i = 0; i < opts->size; i++) {
		if (i == opts->rank)
			continue;
		out[i] = links[i]->peer;
		if (!out[i])
			return -ENOBUFS;
	}
	return 0;
}

/* Makes the group of these peers, for which opts->peers has room. Returns false with an
 * exception. */
static bool make(struct group *self, struct tern_group_opts *opts,
	const struct link **links, struct tern_peer **peers)
{
	struct context *context = self->context;
	int r;

	use_links(self->peers, 1);
	LOCKED(context, {
		r = find_peers(opts, links, peers);
		if (r == 0)
			r = tern_group_new(
				tern_shared_context(context->shared), opts, &self->live);
	});
	use_links(self->peers, -1);
	if (r < 0) {
		raise_text(r,
			r == -EEXIST
				? "a peer has or had a group or channel of this number"
			: r == -ENOBUFS ? "a peer is down: the program has not taken its "
					  "notifications, which fill 64 MiB"
					: tern_status_text(r));
		return false;
	}
	self->group = self->live;
	self->next = context->groups;
	self->place = &context->groups;
	if (self->next)
		self->next->place = &self->next;
	context->groups = self;
	if (!context->closed)
		return true;
	group_shut(self); /* closed by another thread */
	context_is_usable(context);
	return false;
}

/* group(rank, number, peers by rank, hosts by rank, seconds) -> Group */
PyObject *context_group(struct context *self, PyObject *args)
{
	struct tern_group_opts opts = {0};
	const struct link **links;
	struct tern_peer **peers;
	PyObject *tuple, *hosts;
	struct group *out;
	uint32_t *numbers;
	double seconds;
	bool good;

	if (!PyArg_ParseTuple(args, "IIO!O!d", &opts.rank, &opts.number, &PyTuple_Type,
		    &tuple, &PyTuple_Type, &hosts, &seconds) ||
		!context_is_usable(self))
		return NULL;
	if (PyTuple_Size(tuple) != PyTuple_Size(hosts))
		return raise_text(-EINVAL, "expected as many hosts as peers");
	out = new_object(group_type);
	if (!out)
		return NULL;
	Py_INCREF((PyObject *)self);
	out->context = self;
	Py_INCREF(tuple);
	out->peers = tuple;
	use_peers(tuple, 1);
	opts.size = (uint32_t)PyTuple_Size(tuple);
	opts.timeout_ns = to_ns(seconds);
	links = calloc(opts.size + 1, sizeof(links[0]));
	peers = calloc(opts.size + 1, sizeof(peers[0]));
	numbers = calloc(opts.size + 1, sizeof(numbers[0]));
	opts.peers = peers;
	opts.hosts = numbers;
	if (!links || !peers || !numbers)
		PyErr_NoMemory();
	good = links && peers && numbers && list_hosts(hosts, numbers) &&
	       list_links(self, tuple, opts.rank, links) &&
	       make(out, &opts, links, peers);
	free(links);
	free(peers);
	free(numbers);
	if (good)
		return (PyObject *)out;
	Py_DECREF((PyObject *)out);
	return NULL;
}

static bool group_is_usable(struct group *self)
{
	if (!context_is_usable(self->context))
		return false;
	if (!self->group)
		raise_text(-EBADF, "the group is closed");
	return self->group;
}

/* status() -> (0 or the status of the failure, the line that says why) */
static PyObject *group_status(struct group *self, PyObject *ignored)
{
	char text[500] = "";
	int status;

	(void)ignored;
	if (!group_is_usable(self))
		return NULL;
	USING(self, {
		status = tern_group_status(self->live);
		strncpy(text, tern_group_text(self->live), sizeof(text) - 1);
	});
	return Py_BuildValue("iN", status,
		PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
}

static PyObject *group_close(struct group *self, PyObject *ignored)
{
	(void)ignored;
	group_shut(self);
	Py_RETURN_NONE;
}

static void group_dealloc(struct group *self)
{
	group_shut(self);
	if (self->peers)
		use_peers(self->peers, -1);
	Py_XDECREF(self->peers);
	Py_XDECREF((PyObject *)self->context);
	free_object(self);
}

/* ---- operations ---- */

static PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	(void)args;
	(void)keywords;
	return new_object(type);
}

/* Called with the context locked, without the GIL. */
static void ended(struct tern_group_req *req)
{
	struct operation *self = req->arg;
	struct context *context = self->context;

	if (req->status < 0 && self->group->live)
		self->text = strdup(tern_group_text(self->group->live));
	pthread_mutex_lock(&context->lock);
	*context->last_operation = self;
	context->last_operation = &self->next;
	context_notify(context);
	pthread_mutex_unlock(&context->lock);
}

static bool is_memory_of(struct context *context, PyObject *object)
{
	struct buffer *memory = (struct buffer *)object;

	if (Py_TYPE(object) != buffer_type) {
		PyErr_SetString(PyExc_TypeError, "start: expected a Buffer");
		return false;
	}
	if (memory->context != context) {
		PyErr_SetString(PyExc_ValueError, "the memory is of another context");
		return false;
	}
	if (memory->buf.mem)
		return true;
	PyErr_SetString(PyExc_ValueError,
		"the buffer is memory of a peer that is read in "
		"place: copy it");
	return false;
}

/* Gives the operation what it needs. Returns false with an exception. */
static bool prepare(
	struct operation *self, struct group *group, PyObject *in, PyObject *out)
{
	struct context *context = group->context;
	PyObject *memory[] = {in, out};

	if (self->context) {
		raise_text(-EBUSY, "the operation was started before: make another one");
		return false;
	}
	if (!group_is_usable(group))
		return false;
	for (unsigned i = 0; i < 2; i++)
		if (memory[i] != Py_None && !is_memory_of(context, memory[i]))
			return false;
	context_keep(context);
	Py_INCREF((PyObject *)context);
	self->context = context;
	Py_INCREF((PyObject *)group);
	self->group = group;
	self->in = in == Py_None ? NULL : (struct buffer *)in;
	self->out = out == Py_None ? NULL : (struct buffer *)out;
	Py_XINCREF((PyObject *)self->in);
	Py_XINCREF((PyObject *)self->out);
	self->req.done = ended;
	self->req.arg = self;
	context->posted_count++;
	Py_INCREF((PyObject *)self);
	return true;
}

/* Takes the sizes of parts, of a tuple that has `size` counts of elements for each buffer.
 * Returns false with an exception. */
static bool read_parts(struct operation *self, PyObject *parts, Py_ssize_t size)
{
	const struct buffer *buffers[] = {self->in, self->out};

	if (!PyTuple_Check(parts) || PyTuple_Size(parts) != 2 * size || !self->in ||
		!self->out) {
		raise_text(-EINVAL, "expected two counts of elements for each rank");
		return false;
	}
	self->parts = calloc((size_t)(2 * size), sizeof(self->parts[0]));
	if (!self->parts) {
		PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < 2 * size; i++)
		self->parts[i] = tern_dtype_bytes(buffers[i / size]->shape.dtype) *
				 PyLong_AsUnsignedLongLong(PyTuple_GetItem(parts, i));
	return !PyErr_Occurred();
}

/* Lets go of what the library no longer uses. */
static void let_go(struct operation *self)
{
	self->context->posted_count--;
	Py_CLEAR(self->in);
	Py_CLEAR(self->out);
	Py_CLEAR(self->group);
	context_let_go(self->context);
}

static int call(struct tern_group *g, struct operation *self, enum kind kind,
	enum tern_dtype dtype, enum tern_reduction how, uint32_t root)
{
	const struct tern_buf *in = self->in ? &self->in->buf : NULL;
	const struct tern_buf *out = self->out ? &self->out->buf : NULL;
	struct tern_group_req *req = &self->req;

	switch (kind) {
	case ALL_REDUCE:
		return tern_allreduce(g, req, dtype, how, in, out);
	case REDUCE:
		return tern_reduce(g, req, dtype, how, in, out, root);
	case BROADCAST:
		return tern_broadcast(g, req, in, root);
	case GATHER:
		return tern_gather(g, req, in, out, root);
	case SCATTER:
		return tern_scatter(g, req, in, out, root);
	case ALL_GATHER:
		return tern_all_gather(g, req, in, out);
	case REDUCE_SCATTER:
		return tern_reduce_scatter(g, req, dtype, how, in, out);
	case ALL_TO_ALL:
		return tern_all_to_all(g, req, in, out);
	case BARRIER:
		return tern_barrier(g, req);
	case ALL_TO_ALL_V:
		return tern_all_to_all_v(
			g, req, in, self->parts, out, self->parts + tern_group_size(g));
	}
	return -EINVAL;
}

/* Whether the operation has the memory that the library reads without asking. */
static bool has_memory(enum kind kind, const struct operation *self)
{
	switch (kind) {
	case ALL_REDUCE:
	case ALL_GATHER:
	case REDUCE_SCATTER:
	case ALL_TO_ALL:
		return self->in && self->out;
	case REDUCE:
	case BROADCAST:
	case GATHER:
		return self->in;
	case SCATTER:
		return self->out;
	case ALL_TO_ALL_V:
		return self->parts;
	case BARRIER:
		break;
	}
	return true;
}

/* The library has not taken the operation. */
static PyObject *withdraw(struct operation *self)
{
	struct context *context = self->context;

	let_go(self);
	self->context = NULL;
	Py_DECREF((PyObject *)context);
	Py_DECREF((PyObject *)self);
	return NULL;
}

/* start(operation, kind, dtype, how, in or None, out or None, root, seconds or 0, sizes of parts
 * or None) */
static PyObject *group_start(struct group *self, PyObject *args)
{
	struct operation *operation;
	int kind, dtype, how, r = -EINVAL;
	char text[500] = "";
	PyObject *in, *out, *parts;
	double seconds;
	unsigned root;

	if (!PyArg_ParseTuple(args, "O!iiiOOIdO", operation_type, &operation, &kind,
		    &dtype, &how, &in, &out, &root, &seconds, &parts) ||
		!prepare(operation, self, in, out))
		return NULL;
	if (parts != Py_None && !read_parts(operation, parts, PyTuple_Size(self->peers)))
		return withdraw(operation);
	operation->req.timeout_ns = to_ns(seconds);
	if (has_memory((enum kind)kind, operation))
		USING(self, {
			r = call(self->live, operation, (enum kind)kind,
				(enum tern_dtype)dtype, (enum tern_reduction)how, root);
			if (r < 0)
				strncpy(text, tern_group_text(self->live),
					sizeof(text) - 1);
		});
	if (r == 0)
		Py_RETURN_NONE;
	raise_text(r, *text ? text : tern_status_text(r));
	return withdraw(operation);
}

void collect_operations(struct context *self, PyObject *list)
{
	struct operation *next;

	pthread_mutex_lock(&self->lock);
	next = self->ended_operations;
	self->ended_operations = NULL;
	self->last_operation = &self->ended_operations;
	pthread_mutex_unlock(&self->lock);
	/* All before the first let_go(), as in context_collect(). */
	for (struct operation *o = next; o; o = o->next)
		o->collected = true;
	while (next) {
		struct operation *o = next;

		next = o->next;
		let_go(o);
		if (PyList_Append(list, (PyObject *)o) < 0)
			PyErr_Clear(); /* no memory: nobody hears of this end at once */
		Py_DECREF((PyObject *)o);
	}
}

static bool was_started(const struct operation *self)
{
	if (!self->context)
		raise_text(-EINVAL, "the operation was not started");
	return self->context;
}

/* wait(seconds) -> whether the operation was collected; False also if it has only ended, or not
 * within that time */
static PyObject *operation_wait(struct operation *self, PyObject *args)
{
	struct context *context = self->context;
	double seconds;

	if (!PyArg_ParseTuple(args, "d", &seconds) || !was_started(self))
		return NULL;
	if (self->collected)
		Py_RETURN_TRUE;
	if (seconds <= 0) /* asks only, also of a closed context */
		Py_RETURN_FALSE;
	if (!context_is_usable(context))
		return NULL;
	BUSY(context,
		tern_shared_wait_group(context->shared, &self->req, to_ns(seconds)));
	return PyBool_FromLong(self->collected);
}

/* result() -> (status, the line that says why it has failed) */
static PyObject *operation_result(struct operation *self, PyObject *ignored)
{
	const char *text;

	(void)ignored;
	if (!was_started(self))
		return NULL;
	if (!self->collected)
		return raise_text(-EINPROGRESS, "the operation has not ended");
	text = self->text && *self->text ? self->text
					 : tern_status_text(self->req.status);
	return Py_BuildValue("iN", self->req.status,
		PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
}

static void operation_dealloc(struct operation *self)
{
	free(self->text);
	free(self->parts);
	Py_XDECREF((PyObject *)self->context);
	free_object(self);
}

/* ---- types ---- */

#define METHOD(type, name, how)                                                          \
	{                                                                                \
#name, (PyCFunction)(void (*)(void))type##_##name, how, NULL             \
	}
static PyMethodDef group_methods[] = {
	METHOD(group, start, METH_VARARGS),
	METHOD(group, status, METH_NOARGS),
	METHOD(group, close, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};
static PyMethodDef operation_methods[] = {
	METHOD(operation, wait, METH_VARARGS),
	METHOD(operation, result, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};

static PyType_Slot group_slots[] = {
	{Py_tp_dealloc, group_dealloc},
	{Py_tp_methods, group_methods},
	{0, NULL},
};
static PyType_Slot operation_slots[] = {
	{Py_tp_new, operation_new},
	{Py_tp_dealloc, operation_dealloc},
	{Py_tp_methods, operation_methods},
	{0, NULL},
};

static PyType_Spec group_spec = {
	.name = "pytern._native.Group",
	.basicsize = sizeof(struct group),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = group_slots,
};
static PyType_Spec operation_spec = {
	.name = "pytern._native.Operation",
	.basicsize = sizeof(struct operation),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = operation_slots,
};

int load_groups(PyObject *module)
{
	group_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &group_spec, NULL);
	operation_type =
		(PyTypeObject *)PyType_FromModuleAndSpec(module, &operation_spec, NULL);
	if (!group_type || !operation_type || PyModule_AddType(module, group_type) < 0)
		return -1;
	return PyModule_AddType(module, operation_type);
}
