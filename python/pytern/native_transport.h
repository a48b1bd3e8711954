/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of the Python package for the transport (<tern/channel.h>), and what their
 * files share: native_transport.c has contexts, listeners, peers and channels,
 * native_request.c requests, native_buffer.c memory, native_dlpack.c tensors of other
 * libraries, native_window.c windows and notifications, native_group.c groups. The rules of
 * native.c hold here, too, and these:
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
/* Notifications of a peer that the program has not taken: their bytes, and NOTE_BYTES for
 * each. The library acknowledges a notification when it was queued, so the sender does not
 * wait for the program, and a peer that fills the queue is cut off. */
#define NOTES_BYTES_MAX (64u << 20)
#define NOTE_BYTES      64u

struct context {
	PyObject_HEAD struct tern_shared *shared; /* NULL: freed */
	unsigned users;     /* calls of this context without the GIL */
	unsigned out_count; /* posted requests, buffers and pools: they keep `shared` */
	unsigned posted_count; /* requests that were not collected */
	bool closed;
	unsigned forks;
	struct listener *listeners; /* those that listen */
	struct peer *peers;         /* those that were not freed */
	struct window *windows;     /* those that are open */
	struct group *groups;       /* those that were not freed */
	pthread_mutex_t lock;       /* protects the fields below, and those of links */
	pthread_cond_t changed;     /* `changes` has grown */
	unsigned long long changes; /* peers that came, their states, ends of requests */
	struct request *ended, **last_ended;
	struct operation *ended_operations, **last_operation;
	int event_fd; /* readable when something has changed; -1: nobody has asked */
};

/* A notification that the program has not taken. */
struct note {
	struct note *next;
	size_t bytes;
	char data[];
};

/* A peer of the library, for its callbacks. */
struct link {
	struct tern_peer
		*peer; /* NULL: freed, since its queue of notifications was full */
	struct context *context;
	struct link *next; /* the next one that waits to be accepted */
	bool up, suspect, down;
	int status;
	struct note *notes, *last_note;
	size_t note_bytes; /* as NOTES_BYTES_MAX counts them */
	char name[200];    /* of the peer, when `peer` is NULL */
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
	int groups;                 /* that have the peer */
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
	PyObject *uses; /* what else the library uses until the request is collected */
	struct tern_piece *pieces; /* of a put or get of a list */
	struct tern_req req;
	struct request *next; /* in context->ended */
	bool receives, collected;
	bool quiet; /* it is not among what collect() returns */
	bool holds; /* it was collected, and holds a buffer or memory of the peer */
};

/* A window of this process. */
struct window {
	PyObject_HEAD struct context *context;
	struct tern_window *window;   /* NULL: closed */
	struct window *next, **place; /* in context->windows */
	struct buffer *memory;
	struct tern_window_desc desc;
};

/* A window of a peer. */
struct remote {
	PyObject_HEAD struct peer *peer;
	struct tern_remote *remote; /* NULL: closed; not valid without the peer */
	unsigned users;             /* calls that use `remote` */
	struct tern_window_desc desc;
};

extern PyTypeObject *context_type, *listener_type, *peer_type, *channel_type, *pool_type,
	*buffer_type, *request_type, *window_type, *remote_type;

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

/* Sets `r` to what the call returns, or, if the peer `self` is down, to the reason. */
#define POST(self, call)                                                                 \
	do {                                                                             \
		const struct link *l = (self)->link;                                     \
                                                                                         \
		USING(self, {                                                            \
			if (!l->down)                                                    \
				r = call;                                                \
			else                                                             \
				r = l->status ? l->status : -ESHUTDOWN;                  \
		});                                                                      \
	} while (0)

/* ---- native_transport.c ---- */

/* Adds the types to the module. */
int load_transport(PyObject *module);

/* Raises unless the context can be used by this process. */
bool context_is_usable(struct context *self);

/* Lets `self` keep the library's context, and let go of it. */
void context_keep(struct context *self);
void context_let_go(struct context *self);

/* Raises unless the peer can be used. */
bool peer_is_usable(struct peer *self);

/* Something has changed. Called with `lock` held. */
void context_notify(struct context *self);

/* ---- native_request.c ---- */

extern PyType_Spec request_spec;

/* Methods of Channel and Context. */
PyObject *channel_send(struct channel *self, PyObject *args);
PyObject *channel_recv(struct channel *self, PyObject *args);
PyObject *context_recv_any(struct context *self, PyObject *args);
PyObject *context_collect(struct context *self, PyObject *ignored);
/* Lets go of the buffer or the memory that a receive holds. */
void request_release(struct request *self);

/* Raises if the request was posted before, or the context cannot be used. */
bool request_may_begin(struct request *self, struct context *context);
/* Lets the context keep the request and `uses` (NULL: nothing) until it is collected. */
void request_begin(struct request *self, struct context *context, PyObject *uses);
/* Takes request_begin() back, since the library has not taken the request. */
void request_revert(struct request *self);
/* The same, and raises. */
PyObject *request_refused(struct request *self, int status);

/* ---- native_group.c ---- */

/* Adds the types to the module. */
int load_groups(PyObject *module);

/* A method of Context. */
PyObject *context_group(struct context *self, PyObject *args);
/* Leaves all groups of the context. */
void groups_shut(struct context *context);
/* Appends the operations that have ended to the list. */
void collect_operations(struct context *self, PyObject *list);

/* ---- native_buffer.c ---- */

extern PyType_Spec buffer_spec, pool_spec;

/* Methods of Context. */
PyObject *context_pool(struct context *self, PyObject *args);
PyObject *context_wrap(struct context *self, PyObject *args);

/* Makes the buffer of what the request has received. */
PyObject *buffer_of_request(struct request *request);

/* ---- native_window.c ---- */

extern PyType_Spec window_spec, remote_spec;

/* The callback of a peer's notifications; `arg` is its link. */
void on_notified(struct tern_peer *peer, const void *data, size_t bytes, void *arg);
/* Frees the link, whose peer was freed. */
void link_free(struct link *l);

/* Methods of Context and Peer. */
PyObject *context_window(struct context *self, PyObject *args);
PyObject *peer_open(struct peer *self, PyObject *args);
PyObject *peer_notify(struct peer *self, PyObject *args);
PyObject *peer_notified(struct peer *self, PyObject *ignored);

/* Starts to close the window. Its memory stays until no peer can access it any more. */
void window_shut(struct window *self);

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
