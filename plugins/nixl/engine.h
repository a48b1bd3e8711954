/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the plug-in for NIXL; core.h has what C++ sees, too. */
#ifndef TERN_PLUGINS_NIXL_ENGINE_H
#define TERN_PLUGINS_NIXL_ENGINE_H

#include <stdatomic.h>
#include <tern/shared.h>
#include <tern/tern.h>
#include <tern/window.h>

#include "plugins/common/devices.h"
#include "plugins/common/settings.h"
#include "plugins/nixl/core.h"

#define NAME_MAX_BYTES 255u /* of an agent */
#define LISTENERS_MAX  8u
#define ADDRESSES_MAX  640u /* bytes */
#define INFO_MAX       (ADDRESSES_MAX + 128u)

/* Everything that changes is changed with the context locked, unless it says
 * otherwise. */
struct engine {
	struct tern_shared *shared;
	struct tern_listener *listeners[LISTENERS_MAX];
	unsigned listener_count;
	char name[NAME_MAX_BYTES + 1]; /* of the agent */
	char secret[SECRET_BYTES];
	char addresses[ADDRESSES_MAX];
	char info[INFO_MAX];
	uint64_t incarnation;
	struct agent *agents;
	struct agent *leaving; /* forgotten ones whose goodbye is awaited */
	struct inbound *inbound;
	struct request *requests;
	/* Notifications that have arrived, their bytes and those of notifications of which parts
	 * are missing, as WAITING_MAX (notes.c) counts them. */
	struct arrived *arrived, **last_arrived;
	size_t waiting_bytes, partial_bytes;
	struct note *notes;  /* sent by notes_send(), and under way */
	uint64_t note_count; /* that were sent */
	/* How fast the program asks: engine_progress(). The time is that of the last answer. */
	_Atomic uint64_t asked_ns;
	_Atomic unsigned asked_count;
};

/* Another agent. It is counted by the list of agents, targets, requests and notes. */
struct agent {
	struct engine *engine;
	struct agent *next, **place; /* in engine->agents or engine->leaving */
	unsigned users;
	char name[NAME_MAX_BYTES + 1];
	char secret[SECRET_BYTES];
	char addresses[ADDRESSES_MAX];
	char info[INFO_MAX];
	uint64_t incarnation;
	char where[160]; /* "tcp 10.0.0.7:5000", once it was connected */
	/* NULL before the agent is dialled, and when the peer was freed. The remotes of
	 * targets exist as long as the peer. */
	struct tern_peer *peer;
	bool down;      /* for good */
	bool forgotten; /* NIXL does not know it any more, by this text */
};

struct memory {
	struct tern_mem *mem;
	struct tern_window *window;
	uintptr_t base;
	size_t bytes;
	struct tern_req closed; /* the request that closes the window */
	char text[17 + 2 * sizeof(struct tern_window_desc) + 8];
};

/* Memory of another agent, counted by NIXL and by requests. */
struct target {
	struct agent *agent;
	struct tern_window_desc desc;
	uintptr_t base;
	unsigned users;
	struct tern_remote *remote; /* NULL: not open */
};

/* A notification that leaves, in parts that are small enough. */
struct note {
	struct note *next, **place; /* in engine->notes, if notes_send() sends it */
	struct agent *agent;
	char *data; /* the parts, one behind the other */
	size_t room;
	struct tern_note *parts;
	struct tern_req *reqs;
	unsigned count, room_count;
	unsigned posted;
	unsigned left; /* notes_send(): parts that have not ended */
	int status;
};

/* engine.c */

/* Writes a line to stderr if TERN_LOG allows this level. */
void nixl_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void nixl_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Locks the context. Returns false, after a line, if this process is a fork. */
bool engine_lock(struct engine *e);
/* Makes progress for a caller that asks for something, without the lock. Returns the number
 * of events, 0 also if the context's thread does the rest, or a negative status. */
int engine_progress(struct engine *e);
uint64_t engine_now_ns(void);
/* The context is locked in all functions about agents. */
struct agent *agent_find(struct engine *e, const char *name);
void agent_put(struct agent *a);
/* Dials the agent if that was not done yet. Returns RESULT_DISCONNECTED if it is down. */
int agent_dial(struct agent *a);
/* Ends the connection with an agent that does not answer. Its requests end. */
void agent_cut(struct agent *a);
/* NIXL's result for a request of this agent that has ended so, or could not be posted. */
int agent_result(const struct agent *a, const char *what, int status);

/* memory.c: with the context locked. */
void target_put(struct target *t);
int target_open(struct target *t);

/* notes.c: with the context locked. */

/* Writes the parts of a notification. Returns 0 or -ENOMEM. */
int note_write(struct note *n, struct engine *e, const void *data, size_t bytes);
void note_fini(struct note *n);
/* The callback of peers. */
void notes_notified(
	struct tern_peer *peer, const void *data, size_t bytes, void *inbound);
/* Gives this agent a notification of its own. */
int notes_deliver(struct engine *e, const void *data, size_t bytes);

struct inbound *inbound_new(struct engine *e, struct tern_peer *peer);
void inbound_free(struct inbound *in);
/* Says goodbye to all. */
void inbound_close(struct engine *e);

/* The context is gone. */
void notes_free(struct engine *e);

/* request.c */

/* The context is locked. */
bool requests_are_moving(const struct agent *a);
/* Ends what uses the memory, and waits: for 10 s, and then connections are cut. Requests that
 * were prepared with it can no longer be posted. The context is not locked. */
void requests_leave(struct engine *e, const struct tern_mem *mem);
/* The context is gone. */
void requests_free(struct engine *e);

#endif
