/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of the C part of the Python package, and what its files share: native.c has
 * the module, errors, the start and the end of a session, native_slots.c has slots and the
 * views of parameters, native_map.c mappings of their memory. native.c says which rules keep
 * the interpreter from crashing.
 */
#ifndef PYTERN_NATIVE_H
#define PYTERN_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <tern/shared.h>

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
	/* The program's arrays with given initial values, which the library reads until the
	 * session has started. */
	Py_buffer **given;
	uint32_t given_count;
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

struct map { /* native_map.c */
	PyObject_HEAD struct tern_slot_map map;
};

extern PyTypeObject *view_type, *map_type;
extern PyType_Spec view_spec, map_spec;

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

/* Number of forks between the process that loaded the module and this one. */
unsigned fork_count(void);

/* ---- objects: native.c ---- */

/* Makes an object of the type; NULL with an exception. */
void *new_object(PyTypeObject *type);
/* Frees its memory. */
void free_object(void *object);

/* ---- errors: native.c ---- */

/* Raise pytern.Error, and return NULL. raise_status() has the sentence that the library left
 * for its last call in this thread. */
PyObject *raise_text(int status, const char *text);
PyObject *raise_status(int status);

/* Returns None, or raises as raise_status() does if `status` is negative. */
PyObject *none_or_raise(int status);

/* Raises unless the session can be used by this process. */
bool is_usable(struct session *self);

/* Raises unless the session has a tensor of this number. */
bool is_tensor(const struct session *self, unsigned long id);

/* ---- sessions: native.c ---- */

/* Waits until *count is 0. Other Python threads run meanwhile. */
void wait_for_none(const unsigned *count);

/* Frees what the library has. Does nothing in a forked child. */
void release(struct session *self);

static inline uint64_t to_ns(double seconds)
{
	return seconds <= 0 ? 0 : (uint64_t)(seconds * 1e9);
}

/* ---- slots: native_slots.c, native_map.c ---- */

/* Raises unless the program holds the slot of this turn. */
bool holds(struct session *self, unsigned long long turn);

/* Copies tensor `id` from `data` into the buffer of `to`. The session stays meanwhile. */
bool copy_to(struct session *self, unsigned id, const float *data, PyObject *to);

/* Methods of Session. */
PyObject *session_next(struct session *self, PyObject *args);
PyObject *session_records(struct session *self, PyObject *args);
PyObject *session_ahead(struct session *self, PyObject *args);
PyObject *session_keep(struct session *self, PyObject *args);
PyObject *session_kept(struct session *self, PyObject *args);
PyObject *session_read(struct session *self, PyObject *args);
PyObject *session_view(struct session *self, PyObject *args);
PyObject *session_push(struct session *self, PyObject *const *args, Py_ssize_t count);
PyObject *session_end(struct session *self, PyObject *args);
PyObject *session_fail(struct session *self, PyObject *args);
/* The values of a tensor of the slot, which the program must hold; NULL with an exception: they
 * have not arrived, or the slot has ended meanwhile. */
const float *slot_values(struct session *self, unsigned id);
PyObject *session_arrived(struct session *self, PyObject *args);
PyObject *session_revoked(struct session *self, PyObject *args);
PyObject *session_map(struct session *self, PyObject *args);
PyObject *session_place(struct session *self, PyObject *args);

#endif
