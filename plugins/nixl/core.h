/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIXL over Tern, without NIXL's types: plugin.cc translates between the two.
 *
 *     version.c   which NIXL has loaded the plug-in
 *     engine.c    an engine: its context, its listeners, the agents that it knows
 *     memory.c    registered memory, which is a window, and memory of other agents
 *     request.c   transfers
 *     notes.c     notifications
 *
 * An engine is the backend of one agent of NIXL. It has a shared context, so all
 * functions may be called by any thread, except engine_free(). All of them return an enum
 * result, and have written a line to stderr if it is an error that the caller could not
 * expect.
 *
 * Each pair of agents has up to two connections: the agent that transfers dials the other
 * one, and its notifications take the same connection.
 */
#ifndef TERN_PLUGINS_NIXL_CORE_H
#define TERN_PLUGINS_NIXL_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct engine;
struct memory;
struct target;
struct request;

/* NIXL's numbers. */
enum result {
	RESULT_IN_PROGRESS = 1,
	RESULT_OK = 0,
	RESULT_NOT_POSTED = -1,
	RESULT_INVALID = -2,
	RESULT_BACKEND = -3,
	RESULT_NOT_FOUND = -4,
	RESULT_MISMATCH = -5,
	RESULT_NOT_ALLOWED = -6,
	RESULT_ACTIVE = -7,
	RESULT_DISCONNECTED = -10,
	RESULT_CANCELED = -11,
};

/* True if abi.hh was tried with the NIXL that has called nixl_plugin_init() from the
 * code at `caller`. Else a line says why not. */
bool version_is_known(const void *caller);

/* ---- engine.c ---- */

/* Returns NULL after a line that says why. `agent`: name of the agent. */
struct engine *engine_new(const char *agent);
/* Says that there is no such parameter. */
void engine_refuse(const char *parameter);
/* Nothing of the engine may be in use any more. Waits for up to 2 s until
 * notifications that were sent have arrived. NULL is allowed. */
void engine_free(struct engine *e);
/* A text from which other agents learn how to connect; it includes a secret. */
const char *engine_info(const struct engine *e);
/* Loads another agent's engine_info(), in place of an earlier one. */
int engine_load(struct engine *e, const char *agent, const char *info);
/* Starts to connect, and does not wait. */
int engine_connect(struct engine *e, const char *agent);
/* Forgets the agent. Transfers with it that are under way end. */
int engine_disconnect(struct engine *e, const char *agent);

/* ---- memory.c ---- */

/* gpu: `base` is the address of memory of a CUDA device. */
int memory_register(
	struct engine *e, bool gpu, uintptr_t base, size_t bytes, struct memory **out);
/* Waits until nobody accesses the memory any more. */
int memory_deregister(struct engine *e, struct memory *m);
/* A text by which other agents can load the memory. */
const char *memory_text(const struct memory *m);

int target_load(
	struct engine *e, const char *agent, const char *text, struct target **out);
int target_unload(struct engine *e, struct target *t);

/* ---- request.c ---- */

/* A range of a transfer. */
struct span {
	struct memory *local;
	uintptr_t local_address;
	struct target *target; /* NULL: remote_address is of this process */
	uintptr_t remote_address;
	size_t bytes;
	bool gpu; /* one of the addresses, or both, are of a GPU */
};

/* `agent`: NULL for transfers within the agent, which take host memory only. The spans are
 * copied. */
int request_new(struct engine *e, const char *agent, bool write, const struct span *spans,
	size_t count, struct request **out);
/* Starts the transfer. With `note`, a notification of `note_bytes` bytes follows. */
int request_post(struct request *r, const void *note, size_t note_bytes);
int request_check(struct request *r);
/* Frees the request and does not wait. A transfer under way is stopped first: until it
 * has ended, the first call returns RESULT_ACTIVE; a second one leaves the request to
 * the engine. */
int request_release(struct request *r);

/* ---- notes.c ---- */

int notes_send(struct engine *e, const char *agent, const void *data, size_t bytes);
/* Calls take() for each notification that has arrived, once and in order. */
int notes_take(struct engine *e,
	void (*take)(void *arg, const char *agent, const void *data, size_t bytes),
	void *arg);

#ifdef __cplusplus
}
#endif
#endif
