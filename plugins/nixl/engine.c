/* SPDX-License-Identifier: Apache-2.0 */
/* Engines, and the agents that they know: core.h. */
#include "plugins/nixl/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INFO_WORD "tern1"
/* Longest time for which engine_free() waits until the peers have said goodbye. */
#define GOODBYE_NS 2000000000ull
/* SOON_ASKS calls in a row, each within SOON_NS of the last: the program polls. */
#define SOON_NS   200000u
#define SOON_ASKS 8u

/* ---- log ---- */

/* Names of agents and their metadata come from other processes, and must not forge a line or
 * move the cursor of a terminal. `out` has four bytes for each of the text. */
static void escape(char *out, const char *text)
{
	for (; *text; text++) {
		if (*text >= ' ' && *text <= '~')
			*out++ = *text;
		else
			out += sprintf(out, "\\x%02x", (unsigned char)*text);
	}
	*out = '\0';
}

__attribute__((format(printf, 2, 0))) static void say(
	const char *level, const char *format, va_list ap)
{
	char text[900], shown[4 * sizeof(text)];

	vsnprintf(text, sizeof(text), format, ap);
	escape(shown, text);
	fprintf(stderr, "tern nixl: %s: %s\n", level, shown);
}

static void say_nothing(const char *format, ...)
{
	(void)format;
}

void nixl_warn(const char *format, ...)
{
	va_list ap;

	if (settings_log_level(say_nothing) < TERN_LOG_WARN)
		return;
	va_start(ap, format);
	say("warning", format, ap);
	va_end(ap);
}

void nixl_info(const char *format, ...)
{
	va_list ap;

	if (settings_log_level(say_nothing) < TERN_LOG_INFO)
		return;
	va_start(ap, format);
	say("info", format, ap);
	va_end(ap);
}

/* ---- the context ---- */

uint64_t engine_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

bool engine_lock(struct engine *e)
{
	if (tern_shared_lock(e->shared) == 0)
		return true;
	nixl_warn("agent %s: %s", e->name, tern_shared_text());
	return false;
}

/*
 * After tern_shared_poll() nobody but its caller drives the context for 10 ms. That is
 * right for a program that waits in a loop, and wrong for one that looks now and then,
 * such as once for each token: its peers would wait for it. So only the first kind polls;
 * for the second one a lock and an unlock are a round of progress, and the context's
 * thread goes on.
 */
int engine_progress(struct engine *e)
{
	int events = 0;

	if (engine_now_ns() - atomic_load(&e->asked_ns) > SOON_NS)
		atomic_store(&e->asked_count, 0);
	if (atomic_fetch_add(&e->asked_count, 1) >= SOON_ASKS)
		events = tern_shared_poll(e->shared);
	else if (engine_lock(e))
		tern_shared_unlock(e->shared);
	else
		events = -ECHILD;
	atomic_store(&e->asked_ns, engine_now_ns());
	return events;
}

/* ---- agents ---- */

struct agent *agent_find(struct engine *e, const char *name)
{
	struct agent *a = e->agents;

	while (a && strcmp(a->name, name) != 0)
		a = a->next;
	return a;
}

void agent_put(struct agent *a)
{
	if (--a->users > 0)
		return;
	free(a);
}

static void agent_list(struct agent *a, struct agent **list)
{
	a->next = *list;
	a->place = list;
	if (a->next)
		a->next->place = &a->next;
	*list = a;
}

static void agent_unlist(struct agent *a)
{
	*a->place = a->next;
	if (a->next)
		a->next->place = a->place;
}

/* Frees the peer and its reference to the agent. */
static void agent_free_peer(struct agent *a)
{
	tern_peer_free(a->peer);
	a->peer = NULL;
	a->down = true;
	agent_put(a);
}

void agent_cut(struct agent *a)
{
	if (!a->peer)
		return;
	nixl_warn("agent %s (%s) is gone: it does not answer, and memory that it may "
		  "access is deregistered",
		a->name, a->where);
	agent_free_peer(a);
}

static void agent_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct agent *a = arg;

	if (event == TERN_PEER_UP) {
		snprintf(a->where, sizeof(a->where), "%s %s", tern_peer_fabric(peer),
			tern_peer_address(peer));
		nixl_info("agent %s transfers with agent %s by %s", a->engine->name,
			a->name, a->where);
	}
	if (event == TERN_PEER_SUSPECT)
		nixl_info("agent %s (%s) is silent: %s", a->name, a->where,
			tern_status_text(status));
	if (event == TERN_PEER_RECOVERED)
		nixl_info("agent %s (%s) answers again", a->name, a->where);
	if (event != TERN_PEER_DOWN)
		return;
	if (a->forgotten)
		agent_unlist(a);
	else
		nixl_warn("agent %s (%s) is gone: %s", a->name,
			a->where[0] ? a->where : a->addresses,
			status ? tern_status_text(status)
			       : "it has closed the connection");
	agent_free_peer(a);
}

int agent_dial(struct agent *a)
{
	struct engine *e = a->engine;
	char name[64];
	struct tern_peer_opts opts = {
		.event = agent_event, .arg = a, .name = name, .secret = a->secret};
	int r;

	if (a->down)
		return RESULT_DISCONNECTED;
	if (a->peer)
		return RESULT_OK;
	snprintf(name, sizeof(name), "agent %.40s, pid %d", e->name, (int)getpid());
	r = tern_connect(tern_shared_context(e->shared), a->addresses, &opts, &a->peer);
	if (r == 0) {
		a->users++;
		return RESULT_OK;
	}
	nixl_warn("agent %s: cannot connect to agent %s at %s: %s", e->name, a->name,
		a->addresses, tern_status_text(r));
	return r == -EINVAL || r == -E2BIG ? RESULT_INVALID : RESULT_BACKEND;
}

int agent_result(const struct agent *a, const char *what, int status)
{
	if (status == 0)
		return RESULT_OK;
	if (a->down)
		return RESULT_DISCONNECTED; /* agent_event() has said why */
	if (status == -ECANCELED)
		return RESULT_CANCELED;
	nixl_warn("agent %s: %s agent %s (%s): %s", a->engine->name, what, a->name,
		a->where,
		status == -ESTALE ? "its memory was deregistered, or it was restarted"
				  : tern_status_text(status));
	switch (status) {
	case -ESTALE:
		return RESULT_NOT_FOUND;
	case -EACCES:
		return RESULT_NOT_ALLOWED;
	case -EINVAL:
	case -ERANGE:
		return RESULT_INVALID;
	case -ECONNRESET:
	case -ECONNREFUSED:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -EPIPE:
	case -ESHUTDOWN:
	case -ETIMEDOUT:
		return RESULT_DISCONNECTED;
	default:
		return RESULT_BACKEND;
	}
}

/* Takes the agent out of the list, and says goodbye to it. If requests are under way,
 * NIXL has given them up: the connection is cut, and they end. */
static void agent_forget(struct agent *a)
{
	agent_unlist(a);
	a->forgotten = true;
	if (!a->peer) {
		agent_put(a);
	} else if (requests_are_moving(a)) {
		a->users--; /* it is the peer's, too */
		agent_free_peer(a);
	} else {
		agent_list(a, &a->engine->leaving);
		tern_peer_close(a->peer);
		agent_put(a);
	}
}

/* Reads an agent's text. Returns false if it is not one of Tern's. */
static bool read_info(struct agent *a, const char *info)
{
	int end = 0;

	if (strlen(info) >= sizeof(a->info))
		return false;
	strcpy(a->info, info);
	return sscanf(info, INFO_WORD " %16" SCNx64 " %32[0-9a-f] %639s%n",
		       &a->incarnation, a->secret, a->addresses, &end) == 3 &&
	       info[end] == '\0' && strlen(a->secret) == SECRET_BYTES - 1;
}

int engine_load(struct engine *e, const char *name, const char *info)
{
	struct agent *a, *old;

	if (!*name || strlen(name) > NAME_MAX_BYTES) {
		nixl_warn("agent %s: the name of an agent has 1 to %u bytes, not %zu",
			e->name, NAME_MAX_BYTES, strlen(name));
		return RESULT_INVALID;
	}
	a = calloc(1, sizeof(*a));
	if (!a)
		return RESULT_BACKEND;
	if (!read_info(a, info)) {
		nixl_warn("agent %s: the connection information of agent %s is not of "
			  "this version of Tern: %.80s",
			e->name, name, info);
		free(a);
		return RESULT_MISMATCH;
	}
	if (!engine_lock(e)) {
		free(a);
		return RESULT_BACKEND;
	}
	a->engine = e;
	a->users = 1;
	strcpy(a->name, name);
	old = agent_find(e, name);
	if (old && !old->down && strcmp(old->info, a->info) == 0) {
		free(a);
	} else {
		if (old)
			agent_forget(old);
		agent_list(a, &e->agents);
	}
	tern_shared_unlock(e->shared);
	return RESULT_OK;
}

int engine_connect(struct engine *e, const char *name)
{
	struct agent *a;
	int r;

	if (strcmp(name, e->name) == 0)
		return RESULT_OK; /* transfers within the agent are copies */
	if (!engine_lock(e))
		return RESULT_BACKEND;
	a = agent_find(e, name);
	r = a ? agent_dial(a) : RESULT_NOT_FOUND;
	tern_shared_unlock(e->shared);
	if (!a)
		nixl_warn("agent %s: agent %s is unknown: load its metadata first",
			e->name, name);
	return r;
}

int engine_disconnect(struct engine *e, const char *name)
{
	struct agent *a;

	if (strcmp(name, e->name) == 0)
		return RESULT_OK;
	if (!engine_lock(e))
		return RESULT_BACKEND;
	a = agent_find(e, name);
	if (a)
		agent_forget(a);
	tern_shared_unlock(e->shared);
	return a ? RESULT_OK : RESULT_NOT_FOUND;
}

/* ---- engines ---- */

static void inbound_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer, (void)status;
	if (event == TERN_PEER_DOWN)
		inbound_free(arg);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct engine *e = arg;
	struct inbound *in = inbound_new(e, peer);

	if (!in) {
		tern_peer_free(peer);
		return;
	}
	nixl_info("agent %s serves %s by %s", e->name, tern_peer_name(peer),
		tern_peer_fabric(peer));
	tern_peer_set_opts(peer,
		&(struct tern_peer_opts){
			.event = inbound_event, .arg = in, .notified = notes_notified});
}

/* Listens on one device, and appends the address. */
static int listen_on(struct engine *e, const char *fabric, const struct device *d)
{
	const struct tern_peer_opts opts = {.name = e->name, .secret = e->secret};
	size_t used = strlen(e->addresses);
	char address[100];
	const char *own;
	int r;

	snprintf(address, sizeof(address), "%s://%s:0", fabric, d->address);
	r = tern_listen(tern_shared_context(e->shared), address, &opts, on_accept, e,
		&e->listeners[e->listener_count]);
	if (r < 0) {
		nixl_warn("agent %s: cannot listen at %s (%s): %s", e->name, address,
			d->name, tern_status_text(r));
		return r;
	}
	own = tern_listener_address(e->listeners[e->listener_count++]);
	if (used + strlen(own) + 2 > sizeof(e->addresses))
		return -ENAMETOOLONG;
	if (used)
		strcat(e->addresses, "+");
	strcat(e->addresses, own);
	nixl_info("agent %s listens at %s, device %s", e->name, own, d->name);
	return 0;
}

static int listen_on_devices(struct engine *e)
{
	const char *fabric = settings_fabric(nixl_warn);
	const struct device *devices;
	unsigned count = devices_find(&devices), limit = LISTENERS_MAX;
	int r = count ? 0 : -ENODEV;
	char why[500];

	if (!fabric)
		return -EINVAL;
	if (!count) {
		devices_why_none(why, sizeof(why));
		nixl_warn("agent %s: %s", e->name, why);
	}
	/* A list of addresses may have eight, and auto stands for up to four. */
	if (strcmp(fabric, "auto") == 0)
		limit = 2;
	for (unsigned i = 0; i < count && i < limit && r == 0; i++)
		r = listen_on(e, fabric, &devices[i]);
	return r;
}

/* The incarnation of a context stands in the descriptors of its windows. */
static int find_incarnation(struct engine *e)
{
	static char byte[1];
	struct tern_window_desc desc;
	struct tern_window *window;
	struct tern_mem *mem;
	struct tern_context *ctx = tern_shared_context(e->shared);
	int r = tern_mem_wrap(tern_context_domain(ctx), byte, sizeof(byte), &mem);

	if (r < 0)
		return r;
	r = tern_window_new(ctx, &(struct tern_buf){.mem = mem, .bytes = sizeof(byte)},
		TERN_WINDOW_READ, &window);
	if (r == 0) {
		tern_window_describe(window, &desc);
		e->incarnation = desc.incarnation;
		r = tern_window_close(window, NULL, 0);
	}
	tern_mem_put(mem);
	return r;
}

struct engine *engine_new(const char *agent)
{
	struct tern_context_opts opts = {.dead_ns = settings_dead_ns(nixl_warn),
		.log_level = settings_log_level(nixl_warn)};
	struct engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e || strlen(agent) > NAME_MAX_BYTES) {
		nixl_warn("the name of an agent has up to %u bytes: %.80s...",
			NAME_MAX_BYTES, agent);
		free(e);
		return NULL;
	}
	strcpy(e->name, agent);
	e->last_arrived = &e->arrived;
	if (!settings_make_secret(e->secret) ||
		tern_shared_new(
			&(struct tern_shared_opts){.context = &opts}, &e->shared) < 0) {
		nixl_warn("agent %s cannot start: %s", agent, tern_shared_text());
		free(e);
		return NULL;
	}
	tern_shared_lock(e->shared);
	r = listen_on_devices(e);
	if (r == 0)
		r = find_incarnation(e);
	tern_shared_unlock(e->shared);
	if (r < 0) {
		nixl_warn("agent %s cannot start: %s", agent, tern_status_text(r));
		engine_free(e);
		return NULL;
	}
	snprintf(e->info, sizeof(e->info), INFO_WORD " %016" PRIx64 " %s %s",
		e->incarnation, e->secret, e->addresses);
	return e;
}

void engine_refuse(const char *parameter)
{
	nixl_warn("%.60s: TERN has no parameters, it takes its settings from the "
		  "environment (TERN_FABRICS, TERN_NET_IFNAME, TERN_DEAD_TIMEOUT, "
		  "TERN_LOG)",
		parameter);
}

const char *engine_info(const struct engine *e)
{
	return e->info;
}

/* True while a goodbye is awaited. */
static bool is_closing(struct engine *e)
{
	bool closing;

	tern_shared_lock(e->shared);
	closing = e->leaving || e->inbound;
	tern_shared_unlock(e->shared);
	return closing;
}

static void say_goodbye(struct engine *e)
{
	for (unsigned i = 0; i < e->listener_count; i++)
		tern_listener_refuse_new(e->listeners[i]);
	while (e->agents)
		agent_forget(e->agents);
	inbound_close(e);
}

void engine_free(struct engine *e)
{
	uint64_t limit = engine_now_ns() + GOODBYE_NS;
	struct agent *a;

	if (!e || !engine_lock(e))
		return;
	say_goodbye(e);
	tern_shared_unlock(e->shared);
	while (is_closing(e) && engine_now_ns() < limit)
		if (tern_shared_poll(e->shared) < 0)
			break;
	tern_shared_lock(e->shared);
	while ((a = e->leaving)) {
		agent_unlist(a);
		agent_free_peer(a);
	}
	while (e->inbound)
		inbound_free(e->inbound);
	tern_shared_unlock(e->shared);
	tern_shared_free(e->shared);
	requests_free(e);
	notes_free(e);
	free(e);
}
