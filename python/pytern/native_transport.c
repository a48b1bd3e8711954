/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, listeners, peers and channels for Python: native_transport.h has the rules. */
#include "python/pytern/native_transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { ADDRESSES_MAX = 64 }; /* of a listener */

PyTypeObject *context_type, *listener_type, *peer_type, *channel_type, *pool_type,
	*buffer_type, *request_type, *window_type, *remote_type;

static PyObject *raise_about(int status, const char *what, const char *which)
{
	char text[500];

	snprintf(text, sizeof(text), "%s %.300s: %s", what, which,
		tern_status_text(status));
	return raise_text(status, text);
}

/* ---- contexts ---- */

bool context_is_usable(struct context *self)
{
	if (self->closed) {
		raise_text(-EBADF, "the context is closed");
		return false;
	}
	if (self->forks != fork_count()) {
		raise_text(-ECHILD, "a forked process cannot use its parent's context: "
				    "make one in the child");
		return false;
	}
	return true;
}

void context_notify(struct context *self)
{
	uint64_t one = 1;

	self->changes++;
	pthread_cond_broadcast(&self->changed);
	/* The write can only fail if the counter is full, and then it is readable. */
	if (self->event_fd >= 0 && write(self->event_fd, &one, sizeof(one)) < 0)
		return;
}

void context_keep(struct context *self)
{
	self->out_count++;
	Py_INCREF((PyObject *)self);
}

static void free_shared(struct context *self)
{
	struct tern_shared *shared = self->shared;

	if (!self->closed || self->out_count > 0 || self->users > 0)
		return;
	self->shared = NULL;
	WITHOUT_GIL(tern_shared_free(shared)); /* nothing in a forked child */
}

void context_let_go(struct context *self)
{
	self->out_count--;
	free_shared(self);
	Py_DECREF((PyObject *)self);
}

/* Context(secret, secret_file, seconds: connect, dead, unreachable; rails) */
static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
	struct tern_context_opts opts = {0};
	struct tern_shared_opts shared_opts = {.context = &opts};
	double connect_s, dead_s, unreachable_s;
	struct context *self;
	int r;

	(void)keywords;
	if (!PyArg_ParseTuple(args, "zzdddI", &opts.secret, &shared_opts.secret_file,
		    &connect_s, &dead_s, &unreachable_s, &opts.rail_count))
		return NULL;
	opts.connect_ns = to_ns(connect_s);
	opts.dead_ns = to_ns(dead_s);
	opts.unreachable_ns = to_ns(unreachable_s);
	self = new_object(type);
	if (!self)
		return NULL;
	self->forks = fork_count();
	self->event_fd = -1;
	self->last_ended = &self->ended;
	self->last_operation = &self->ended_operations;
	pthread_mutex_init(&self->lock, NULL);
	pthread_cond_init(&self->changed, NULL);
	BUSY(self, r = tern_shared_new(&shared_opts, &self->shared));
	if (r < 0) {
		raise_status(r);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

static void listener_shut(struct listener *self);
static void peer_shut(struct peer *self);

/* close(): ends all connections. The library's memory stays as long as buffers are out, and
 * until the requests were collected. */
static PyObject *context_close(struct context *self, PyObject *ignored)
{
	(void)ignored;
	if (self->closed)
		Py_RETURN_NONE;
	self->closed = true;
	if (self->forks != fork_count())
		Py_RETURN_NONE;
	/* Another thread may drop the last other reference meanwhile. */
	while (self->listeners) {
		struct listener *l = self->listeners;

		Py_INCREF((PyObject *)l);
		listener_shut(l);
		Py_DECREF((PyObject *)l);
	}
	groups_shut(self);
	while (self->peers) {
		struct peer *p = self->peers;

		Py_INCREF((PyObject *)p);
		peer_shut(p);
		Py_DECREF((PyObject *)p);
	}
	while (self->windows) {
		struct window *w = self->windows;

		Py_INCREF((PyObject *)w);
		window_shut(w);
		Py_DECREF((PyObject *)w);
	}
	wait_for_none(&self->users);
	free_shared(self);
	Py_RETURN_NONE;
}

static void context_dealloc(struct context *self)
{
	self->closed = true;
	free_shared(self);
	if (self->event_fd >= 0)
		close(self->event_fd);
	if (self->forks == fork_count()) { /* another thread of the parent may use them */
		pthread_mutex_destroy(&self->lock);
		pthread_cond_destroy(&self->changed);
	}
	free_object(self);
}

/* fileno() -> a descriptor that is readable when something has changed: read 8 bytes of it,
 * and then look */
static PyObject *context_fileno(struct context *self, PyObject *ignored)
{
	int fd;

	(void)ignored;
	if (!context_is_usable(self))
		return NULL;
	if (self->event_fd < 0) {
		fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
		if (fd < 0)
			return raise_text(-errno, "no descriptor for events");
		pthread_mutex_lock(&self->lock);
		self->event_fd = fd;
		pthread_mutex_unlock(&self->lock);
	}
	return PyLong_FromLong(self->event_fd);
}

/* wait(seen, seconds) -> the number of changes so far, when it is no longer `seen`, or after so
 * long */
static PyObject *context_wait(struct context *self, PyObject *args)
{
	unsigned long long seen, now;
	struct timespec until;
	double seconds;
	uint64_t ns;

	if (!PyArg_ParseTuple(args, "Kd", &seen, &seconds) || !context_is_usable(self))
		return NULL;
	clock_gettime(CLOCK_MONOTONIC, &until);
	ns = (uint64_t)until.tv_nsec + to_ns(seconds);
	until.tv_sec += (time_t)(ns / 1000000000u);
	until.tv_nsec = (long)(ns % 1000000000u);
	BUSY(self, {
		pthread_mutex_lock(&self->lock);
		if (self->changes == seen)
			pthread_cond_clockwait(
				&self->changed, &self->lock, CLOCK_MONOTONIC, &until);
		now = self->changes;
		pthread_mutex_unlock(&self->lock);
	});
	return PyLong_FromUnsignedLongLong(now);
}

/* posted() -> how many requests were not collected */
static PyObject *context_posted(struct context *self, PyObject *ignored)
{
	(void)ignored;
	return PyLong_FromUnsignedLong(self->posted_count);
}

/* ---- listeners ---- */

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct link *l = arg;

	(void)peer;
	pthread_mutex_lock(&l->context->lock);
	l->status = status;
	l->suspect = event == TERN_PEER_SUSPECT;
	l->up = l->up || event == TERN_PEER_UP;
	l->down = event == TERN_PEER_DOWN;
	context_notify(l->context);
	pthread_mutex_unlock(&l->context->lock);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct listener *self = arg;
	struct link *l = calloc(1, sizeof(*l));
	bool full;

	pthread_mutex_lock(&self->context->lock);
	full = self->accepted_count >= ACCEPTED_MAX;
	pthread_mutex_unlock(&self->context->lock);
	if (!l || full) {
		free(l);
		tern_peer_free(peer); /* which refuses it */
		return;
	}
	*l = (struct link){.peer = peer, .context = self->context, .up = true};
	tern_peer_set_opts(peer, &(struct tern_peer_opts){.event = on_event,
					 .arg = l,
					 .pool = self->pool->pool,
					 .notified = on_notified});
	pthread_mutex_lock(&self->context->lock);
	*self->last_accepted = l;
	self->last_accepted = &l->next;
	self->accepted_count++;
	context_notify(self->context);
	pthread_mutex_unlock(&self->context->lock);
}

static struct link *take_accepted(struct listener *self)
{
	struct link *l;

	pthread_mutex_lock(&self->context->lock);
	l = self->accepted;
	if (l) {
		self->accepted = l->next;
		self->accepted_count--;
		if (!self->accepted)
			self->last_accepted = &self->accepted;
	}
	pthread_mutex_unlock(&self->context->lock);
	return l;
}

/* Stops listening. Peers that nobody has accepted are refused. */
static void listener_shut(struct listener *self)
{
	struct context *context = self->context;
	struct tern_listener *listener = self->listener;
	struct link *l;

	if (!listener)
		return;
	self->listener = NULL;
	*self->place = self->next;
	if (self->next)
		self->next->place = self->place;
	if (context->forks != fork_count())
		return;
	wait_for_none(&self->users);
	LOCKED(context, tern_listener_free(listener));
	while ((l = take_accepted(self))) {
		LOCKED(context, tern_peer_free(l->peer));
		link_free(l);
	}
	Py_CLEAR(self->pool);
}

/* listen(address, name, secret, pool) -> Listener */
static PyObject *context_listen(struct context *self, PyObject *args)
{
	struct tern_peer_opts opts = {0};
	const char *address;
	struct listener *out;
	struct pool *pool;
	int r;

	if (!PyArg_ParseTuple(args, "szzO!", &address, &opts.name, &opts.secret,
		    pool_type, &pool) ||
		!context_is_usable(self))
		return NULL;
	out = new_object(listener_type);
	if (!out)
		return NULL;
	Py_INCREF((PyObject *)self);
	out->context = self;
	out->last_accepted = &out->accepted;
	Py_INCREF((PyObject *)pool);
	out->pool = pool;
	LOCKED(self, r = tern_listen(tern_shared_context(self->shared), address, &opts,
			     on_accept, out, &out->listener));
	if (r < 0) {
		raise_about(r, "cannot listen at", address);
		Py_DECREF((PyObject *)out);
		return NULL;
	}
	out->next = self->listeners;
	out->place = &self->listeners;
	if (out->next)
		out->next->place = &out->next;
	self->listeners = out;
	if (!self->closed)
		return (PyObject *)out;
	Py_DECREF((PyObject *)out); /* closed by another thread */
	context_is_usable(self);
	return NULL;
}

static bool listens(struct listener *self)
{
	if (!context_is_usable(self->context))
		return false;
	if (!self->listener)
		raise_text(-EBADF, "the listener is closed");
	return self->listener;
}

static PyObject *listener_address(struct listener *self, PyObject *ignored)
{
	const struct tern_listener *listener;
	const char *address;

	(void)ignored;
	if (!listens(self))
		return NULL;
	listener =
		self->listener; /* another thread may close it, and then waits for us */
	USING(self, address = tern_listener_address(listener));
	return PyUnicode_FromString(address);
}

static PyObject *listener_addresses(struct listener *self, PyObject *ignored)
{
	char found[ADDRESSES_MAX][TERN_ADDRESS_BYTES];
	const struct tern_listener *listener;
	PyObject *list;
	int r;

	(void)ignored;
	if (!listens(self))
		return NULL;
	listener = self->listener; /* as in listener_address() */
	USING(self, r = tern_listener_addresses(listener, found, ADDRESSES_MAX));
	if (r < 0)
		return raise_status(r);
	list = PyList_New(0);
	for (int i = 0; list && i < r && i < ADDRESSES_MAX; i++) {
		PyObject *text = PyUnicode_FromString(found[i]);

		if (!text || PyList_Append(list, text) < 0)
			Py_CLEAR(list);
		Py_XDECREF(text);
	}
	return list;
}

static struct peer *peer_of(struct context *context, struct link *l, struct pool *pool)
{
	struct peer *p = new_object(peer_type);

	if (!p)
		return NULL;
	Py_INCREF((PyObject *)context);
	p->context = context;
	p->link = l;
	Py_INCREF((PyObject *)pool);
	p->pool = pool;
	p->next = context->peers;
	p->place = &context->peers;
	if (p->next)
		p->next->place = &p->next;
	context->peers = p;
	return p;
}

/* accept() -> Peer, or None: nobody waits */
static PyObject *listener_accept(struct listener *self, PyObject *ignored)
{
	struct link *l;
	struct peer *p;

	(void)ignored;
	if (!listens(self))
		return NULL;
	l = take_accepted(self);
	if (!l)
		Py_RETURN_NONE;
	p = peer_of(self->context, l, self->pool);
	if (!p) {
		LOCKED(self->context, tern_peer_free(l->peer));
		link_free(l);
	}
	return (PyObject *)p;
}

static PyObject *listener_close(struct listener *self, PyObject *ignored)
{
	(void)ignored;
	listener_shut(self);
	Py_RETURN_NONE;
}

static void listener_dealloc(struct listener *self)
{
	listener_shut(self);
	Py_CLEAR(self->pool);
	Py_XDECREF((PyObject *)self->context);
	free_object(self);
}

/* ---- peers ---- */

static void peer_shut(struct peer *self)
{
	struct context *context = self->context;
	struct link *l = self->link;

	if (!l)
		return;
	self->link = NULL;
	*self->place = self->next;
	if (self->next)
		self->next->place = self->place;
	if (context->forks == fork_count()) {
		wait_for_none(&self->users);
		LOCKED(context, tern_peer_free(l->peer));
	}
	link_free(l);
	Py_CLEAR(self->pool);
}

/* connect(address, name, secret, pool) -> Peer */
static PyObject *context_connect(struct context *self, PyObject *args)
{
	struct tern_peer_opts opts = {.event = on_event, .notified = on_notified};
	struct link *l;
	const char *address;
	struct pool *pool;
	struct peer *p;
	int r;

	if (!PyArg_ParseTuple(args, "szzO!", &address, &opts.name, &opts.secret,
		    pool_type, &pool) ||
		!context_is_usable(self))
		return NULL;
	l = calloc(1, sizeof(*l));
	if (!l)
		return PyErr_NoMemory();
	l->context = self;
	opts.arg = l;
	opts.pool = pool->pool;
	LOCKED(self, r = tern_connect(tern_shared_context(self->shared), address, &opts,
			     &l->peer));
	if (r < 0) {
		free(l);
		return raise_about(r, "cannot connect to", address);
	}
	p = self->closed ? NULL : peer_of(self, l, pool);
	if (!p) {
		context_is_usable(self); /* closed by another thread */
		LOCKED(self, tern_peer_free(l->peer));
		link_free(l);
	}
	return (PyObject *)p;
}

bool peer_is_usable(struct peer *self)
{
	if (!context_is_usable(self->context))
		return false;
	if (!self->link)
		raise_text(-EBADF, "the peer is closed");
	return self->link;
}

/* state() -> (up, suspect, down, status, name, fabric, address) */
static PyObject *peer_state(struct peer *self, PyObject *ignored)
{
	char name[200], address[100] = "";
	const struct link *l;
	const char *fabric = "";
	struct link now;

	(void)ignored;
	if (!peer_is_usable(self))
		return NULL;
	l = self->link;
	USING(self, {
		const struct tern_peer *peer = l->peer;

		snprintf(name, sizeof(name), "%s", peer ? tern_peer_name(peer) : l->name);
		if (peer) {
			snprintf(address, sizeof(address), "%s", tern_peer_address(peer));
			fabric = tern_peer_fabric(peer);
		}
		now = *l;
	});
	return Py_BuildValue("NNNisss", PyBool_FromLong(now.up && !now.down),
		PyBool_FromLong(now.suspect), PyBool_FromLong(now.down), now.status, name,
		fabric, address);
}

/* stats() -> a dict of the peer's counters */
static PyObject *peer_stats(struct peer *self, PyObject *ignored)
{
	struct tern_peer_stats s;
	const struct link *l;

	(void)ignored;
	if (!peer_is_usable(self))
		return NULL;
	l = self->link;
	memset(&s, 0, sizeof(s));
	USING(self, {
		if (l->peer)
			tern_peer_stats(l->peer, &s);
	});
	return Py_BuildValue("{sK sK sK sK sK sK sK sK sK}", "messages_sent",
		(unsigned long long)s.messages_sent, "messages_received",
		(unsigned long long)s.messages_received, "bytes_sent",
		(unsigned long long)s.bytes_sent, "bytes_received",
		(unsigned long long)s.bytes_received, "eager",
		(unsigned long long)s.eager_count, "put", (unsigned long long)s.put_count,
		"get", (unsigned long long)s.get_count, "peek",
		(unsigned long long)s.peek_count, "reconnects",
		(unsigned long long)s.reconnect_count);
}

/* say_goodbye(): starts to close the connection in an orderly way. */
static PyObject *peer_say_goodbye(struct peer *self, PyObject *ignored)
{
	const struct link *l;

	(void)ignored;
	if (!peer_is_usable(self))
		return NULL;
	l = self->link;
	USING(self, {
		if (!l->down)
			tern_peer_close(l->peer);
	});
	Py_RETURN_NONE;
}

static PyObject *peer_free(struct peer *self, PyObject *ignored)
{
	(void)ignored;
	if (self->groups > 0)
		return raise_text(
			-EBUSY, "the peer belongs to a group: close that first");
	peer_shut(self);
	Py_RETURN_NONE;
}

/* channel(number) -> Channel */
static PyObject *peer_channel(struct peer *self, PyObject *args)
{
	const struct link *l;
	struct channel *c;
	unsigned number;
	int r = 0;

	if (!PyArg_ParseTuple(args, "I", &number) || !peer_is_usable(self))
		return NULL;
	c = new_object(channel_type);
	if (!c)
		return NULL;
	Py_INCREF((PyObject *)self);
	c->peer = self;
	l = self->link;
	USING(self, {
		if (!l->down)
			r = tern_channel_open(l->peer, number, &c->channel);
	});
	if (r == 0 || r == -EEXIST)
		return (PyObject *)c;
	Py_DECREF((PyObject *)c);
	return raise_text(r, tern_status_text(r));
}

static void peer_dealloc(struct peer *self)
{
	peer_shut(self);
	Py_XDECREF((PyObject *)self->context);
	free_object(self);
}

static void channel_dealloc(struct channel *self)
{
	Py_XDECREF((PyObject *)self->peer);
	free_object(self);
}

/* ---- types ---- */

#define METHOD(type, name, how)                                                          \
	{                                                                                \
#name, (PyCFunction)(void (*)(void))type##_##name, how, NULL             \
	}
static PyMethodDef context_methods[] = {
	METHOD(context, close, METH_NOARGS),
	METHOD(context, fileno, METH_NOARGS),
	METHOD(context, wait, METH_VARARGS),
	METHOD(context, listen, METH_VARARGS),
	METHOD(context, connect, METH_VARARGS),
	METHOD(context, collect, METH_NOARGS),
	METHOD(context, recv_any, METH_VARARGS),
	METHOD(context, posted, METH_NOARGS),
	METHOD(context, pool, METH_VARARGS),
	METHOD(context, wrap, METH_VARARGS),
	METHOD(context, window, METH_VARARGS),
	METHOD(context, group, METH_VARARGS),
	{NULL, NULL, 0, NULL},
};
static PyMethodDef listener_methods[] = {
	METHOD(listener, address, METH_NOARGS),
	METHOD(listener, addresses, METH_NOARGS),
	METHOD(listener, accept, METH_NOARGS),
	METHOD(listener, close, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};
static PyMethodDef peer_methods[] = {
	METHOD(peer, state, METH_NOARGS),
	METHOD(peer, stats, METH_NOARGS),
	METHOD(peer, say_goodbye, METH_NOARGS),
	METHOD(peer, free, METH_NOARGS),
	METHOD(peer, channel, METH_VARARGS),
	METHOD(peer, open, METH_VARARGS),
	METHOD(peer, notify, METH_VARARGS),
	METHOD(peer, notified, METH_NOARGS),
	{NULL, NULL, 0, NULL},
};
static PyMethodDef channel_methods[] = {
	METHOD(channel, send, METH_VARARGS),
	METHOD(channel, recv, METH_VARARGS),
	{NULL, NULL, 0, NULL},
};

static PyType_Slot context_slots[] = {
	{Py_tp_new, context_new},
	{Py_tp_dealloc, context_dealloc},
	{Py_tp_methods, context_methods},
	{0, NULL},
};
static PyType_Slot listener_slots[] = {
	{Py_tp_dealloc, listener_dealloc},
	{Py_tp_methods, listener_methods},
	{0, NULL},
};
static PyType_Slot peer_slots[] = {
	{Py_tp_dealloc, peer_dealloc},
	{Py_tp_methods, peer_methods},
	{0, NULL},
};
static PyType_Slot channel_slots[] = {
	{Py_tp_dealloc, channel_dealloc},
	{Py_tp_methods, channel_methods},
	{0, NULL},
};

#define SPEC(type, title, more)                                                          \
	static PyType_Spec type##_spec = {                                               \
		.name = "pytern._native." title,                                         \
		.basicsize = sizeof(struct type),                                        \
		.flags = Py_TPFLAGS_DEFAULT | (more),                                    \
		.slots = type##_slots,                                                   \
	}
SPEC(context, "Context", 0);
SPEC(listener, "Listener", Py_TPFLAGS_DISALLOW_INSTANTIATION);
SPEC(peer, "Peer", Py_TPFLAGS_DISALLOW_INSTANTIATION);
SPEC(channel, "Channel", Py_TPFLAGS_DISALLOW_INSTANTIATION);

int load_transport(PyObject *module)
{
	struct {
		PyTypeObject **type;
		PyType_Spec *spec;
	} types[] = {
		{&context_type, &context_spec},
		{&listener_type, &listener_spec},
		{&peer_type, &peer_spec},
		{&channel_type, &channel_spec},
		{&pool_type, &pool_spec},
		{&buffer_type, &buffer_spec},
		{&request_type, &request_spec},
		{&window_type, &window_spec},
		{&remote_type, &remote_spec},
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		*types[i].type = (PyTypeObject *)PyType_FromModuleAndSpec(
			module, types[i].spec, NULL);
		if (!*types[i].type || PyModule_AddType(module, *types[i].type) < 0)
			return -1;
	}
	return load_groups(module);
}
