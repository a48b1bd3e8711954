/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of the Python package for the transport (<tern/channel.h>), and what their
 * files share: native_transport.c has contexts, listeners, peers and channels,
 * native_request.c requests, native_buffer.c memory, native_dlpack.c tensors of other
 * libraries. The rules of native.c hold here, too, and these:
 *
 * - Callbacks of the library run with the context locked and without the GIL. They note what
 *   has happened under `lock`, which nobody holds while it waits for anything.
 * - The context is locked without the GIL only.
 * - Each object has a reference to what it uses: a request to its channel and its memory
 *   until it was collected, a channel to its peer, a buffer to its pool, all of them to
 *   their context. So nothing is freed before the library lets go of it.
 */
#ifndef PYTERN_NATIVE_TRANSPORT_H
#define PYTERN_NATIVE_TRANSPORT_H

#include <tern/tern.h>

#include "python/pytern/native.h"

/* Peers of a listener that nobody has accepted; further ones are refused. */
#define ACCEPTED_MAX 1024u

struct context {
	PyObject_HEAD struct tern_shared *shared; /* NULL: freed */
	unsigned users;     /* calls of this context without the GIL */
	unsigned out_count; /* posted requests, buffers and pools: they keep `shared` */
	unsigned posted_count; /* requests that were not collected */
	bool closed;
	unsigned forks;
	struct listener *listeners; /* those that listen */
	struct peer *peers;         /* those that were not freed */
	pthread_mutex_t lock;       /* protects the fields below, and those of links */
	pthread_cond_t changed;     /* `changes` has grown */
	unsigned long long changes; /* peers that came, their states, ends of requests */
	struct request *ended, **last_ended;
	int event_fd; /* readable when something has changed; -1: nobody has asked */
};

/* A peer of the library, for its callbacks. */
struct link {
	struct tern_peer *peer;
	struct context *context;
	struct link *next; /* the next one that waits to be accepted */
	bool up, suspect, down;
	int status;
};

struct listener {
	PyObject_HEAD struct context *context;
	struct tern_listener *listener; /* NULL: closed */
	struct listener *next, **place; /* in context->listeners */
	struct pool *pool;              /* for what its peers receive */
	unsigned users;                 /* calls that use `listener` */
	struct link *accepted, **last_accepted;
	unsigned accepted_count;
};

struct peer {
	PyObject_HEAD struct context *context;
	struct link *link;          /* NULL: freed */
	struct peer *next, **place; /* in context->peers */
	struct pool *pool;          /* for what is received; NULL: freed */
	unsigned users;             /* calls that use `link` */
};

struct channel {
	PyObject_HEAD struct peer *peer;
	struct tern_channel *channel;
};

struct pool {
	PyObject_HEAD struct context *context;
	struct tern_pool *pool;
};

/* Memory of a tensor: in a pool, of another object, or what a request has received. */
struct buffer {
	PyObject_HEAD struct context *context;
	struct tern_buf buf;
	struct tern_shape shape;
	void *data; /* for the CPU; NULL: GPU memory */
	bool readonly;
	bool is_bool;              /* elements of u8 that were or become bool */
	struct pool *pool;         /* what `buf` was taken from; or NULL */
	Py_buffer view;            /* what `buf` lies in, if view.obj is set */
	struct borrowed *borrowed; /* the same, by DLPack; or NULL */
	struct request *request;   /* what has received it; or NULL */
	Py_ssize_t dims[TERN_RANK_MAX], strides[TERN_RANK_MAX];
};

struct request {
	PyObject_HEAD struct context *context; /* NULL: never posted */
	struct channel *channel;
	struct buffer *memory; /* that is sent, or received into */
	struct pool *pool;     /* of what is received without `memory` */
	struct tern_req req;
	struct request *next; /* in context->ended */
	bool receives, collected;
	bool holds; /* it was collected, and holds a buffer or memory of the peer */
};

extern PyTypeObject *context_type, *listener_type, *peer_type, *channel_type, *pool_type,
	*buffer_type, *request_type;

/* Calls a function of the library with the context locked. */
#define LOCKED(context, call)                                                            \
	BUSY(context, {                                                                  \
		tern_shared_lock((context)->shared);                                     \
		call;                                                                    \
		tern_shared_unlock((context)->shared);                                   \
	})

/* The same, for a call that uses what `self` has in the library: it is not freed before. */
#define USING(self, call)                                                                \
	do {                                                                             \
		(self)->users++;                                                         \
		LOCKED((self)->context, call);                                           \
		(self)->users--;                                                         \
	} while (0)

/* ---- native_transport.c ---- */

/* Adds the types to the module. */
int load_transport(PyObject *module);

/* Raises unless the context can be used by this process. */
bool context_is_usable(struct context *self);

/* Lets `self` keep the library's context, and let go of it. */
void context_keep(struct context *self);
void context_let_go(struct context *self);

/* Something has changed. Called with `lock` held. */
void context_notify(struct context *self);

/* ---- native_request.c ---- */

extern PyType_Spec request_spec;

/* Methods of Channel and Context. */
PyObject *channel_send(struct channel *self, PyObject *args);
PyObject *channel_recv(struct channel *self, PyObject *args);
PyObject *context_collect(struct context *self, PyObject *ignored);
/* Lets go of the buffer or the memory that a receive holds. */
void request_release(struct request *self);

/* ---- native_buffer.c ---- */

extern PyType_Spec buffer_spec, pool_spec;

/* Methods of Context. */
PyObject *context_pool(struct context *self, PyObject *args);
PyObject *context_wrap(struct context *self, PyObject *args);

/* Makes the buffer of what the request has received. */
PyObject *buffer_of_request(struct request *request);

/* ---- native_dlpack.c ---- */

struct borrowed {   /* a tensor of another library */
	void *data; /* the first element */
	bool is_cuda;
	bool readonly;
	bool is_bool;
	struct tern_shape shape;
	/* The structure that the other library wants back. */
	void *managed;
	bool has_version;
};

/* Borrows the tensor of an object with the method __dlpack__(). NULL with an exception. */
struct borrowed *borrow(PyObject *from);
void give_back(struct borrowed *b);

/* Methods of Buffer. */
PyObject *buffer_dlpack(struct buffer *self, PyObject *args, PyObject *keywords);
PyObject *buffer_dlpack_device(struct buffer *self, PyObject *ignored);

#endif
