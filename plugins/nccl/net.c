/* SPDX-License-Identifier: Apache-2.0 */
/* Nets, and how their comms begin and end: net.h. */
#include "plugins/nccl/net.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x5445524eu /* "TERN" */
/* Longest time for which finalize() waits until the peers have said goodbye. */
#define GOODBYE_NS 2000000000ull

/* The handle, by which the listening end tells the other one how to connect. */
struct handle {
	uint32_t magic;
	char secret[SECRET_BYTES];
	char address[83];
	struct comm *connecting; /* used by the end that connects */
};
_Static_assert(sizeof(struct handle) == HANDLE_BYTES, "NCCL's handle");

static _Atomic(nccl_log) log_function;

void net_set_log(nccl_log log)
{
	atomic_store(&log_function, log);
}

__attribute__((format(printf, 2, 0))) static void say(
	int level, const char *format, va_list ap)
{
	nccl_log log = atomic_load(&log_function);
	char text[600];

	vsnprintf(text, sizeof(text), format, ap);
	if (log)
		log(level,
			level == NCCL_WARN ? NCCL_SUBSYS_ALL
					   : NCCL_SUBSYS_INIT | NCCL_SUBSYS_NET,
			"NET/Tern", 0, "NET/Tern : %s", text);
}

void net_warn(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	say(NCCL_WARN, format, ap);
	va_end(ap);
}

void net_info(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	say(NCCL_INFO, format, ap);
	va_end(ap);
}

/* ---- nets ---- */

int net_open(struct net **out)
{
	static char nothing[8];
	char host[40] = "";
	struct net *net = calloc(1, sizeof(*net));
	struct tern_context_opts opts = {.dead_ns = settings_dead_ns(net_warn),
		.log_level = settings_log_level(net_warn)};
	int r = -ENOMEM;

	/* The bytes of an eager message lie in host memory, and would be copied to a GPU.
	 * NCCL receives into GPU memory also what it sends from host memory. */
	if (gpu_find())
		opts.eager_bytes = 1;
	if (net)
		r = tern_shared_new(
			&(struct tern_shared_opts){.context = &opts}, &net->shared);
	if (r == 0)
		r = tern_mem_wrap(tern_context_domain(tern_shared_context(net->shared)),
			nothing, sizeof(nothing), &net->nothing);
	if (r == 0) {
		gethostname(host, sizeof(host) - 1);
		snprintf(net->name, sizeof(net->name), "%s, pid %d", host, (int)getpid());
		*out = net;
		return NCCL_SUCCESS;
	}
	net_warn("cannot start: %s",
		net && !net->shared ? tern_shared_text() : tern_status_text(r));
	if (net)
		tern_shared_free(net->shared);
	free(net);
	return NCCL_SYSTEM_ERROR;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void abandon(struct net *net);
static void free_rest(struct net *net);

int net_close(struct net *net)
{
	uint64_t limit = now_ns() + GOODBYE_NS;

	if (!net)
		return NCCL_SUCCESS;
	while (atomic_load(&net->closing) > 0 && now_ns() < limit)
		if (tern_shared_poll(net->shared) < 0)
			break;
	abandon(net);
	tern_mem_put(net->nothing);
	tern_shared_free(net->shared);
	free_rest(net);
	free(net);
	return NCCL_SUCCESS;
}

/* ---- comms ---- */

/* The context is locked, or nobody else knows the listener. */
static void let_go(struct listener *l)
{
	if (--l->users > 0)
		return;
	tern_listener_free(l->listener);
	*l->place = l->other;
	if (l->other)
		l->other->place = l->place;
	free(l);
}

/* The context is locked, and nothing of the comm is posted. */
static void comm_free(struct comm *comm)
{
	tern_peer_free(comm->peer);
	if (comm->listener)
		let_go(comm->listener);
	*comm->place = comm->other;
	if (comm->other)
		comm->other->place = comm->place;
	if (comm->closing)
		atomic_fetch_sub(&comm->net->closing, 1);
	free(comm);
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct comm *comm = arg;

	if (event == TERN_PEER_UP)
		comm->up = true;
	if (event == TERN_PEER_SUSPECT)
		net_info("%s is silent: %s", tern_peer_name(peer),
			tern_status_text(status));
	if (event == TERN_PEER_RECOVERED)
		net_info("%s answers again", tern_peer_name(peer));
	if (event != TERN_PEER_DOWN)
		return;
	comm->down = true;
	comm->status = status;
	if (comm->closing)
		comm_free(comm);
}

/* The context is locked. */
static struct comm *comm_new(struct net *net, bool sends)
{
	unsigned parts = sends ? 1 : RECEIVES_MAX;
	struct comm *comm =
		calloc(1, sizeof(*comm) + REQUESTS_MAX * parts * sizeof(comm->reqs[0]));

	if (!comm)
		return NULL;
	comm->net = net;
	comm->sends = sends;
	for (unsigned i = 0; i < REQUESTS_MAX; i++) {
		comm->requests[i].comm = comm;
		comm->requests[i].reqs = &comm->reqs[i * parts];
	}
	comm->other = net->comms;
	comm->place = &net->comms;
	if (comm->other)
		comm->other->place = &comm->other;
	net->comms = comm;
	return comm;
}

int comm_broken(const struct comm *comm, const char *what)
{
	tern_shared_lock(comm->net->shared);
	if (comm->peer)
		net_warn("%s: %s is down: %s", what, tern_peer_name(comm->peer),
			comm->status ? tern_status_text(comm->status)
				     : "it has closed the connection");
	else
		net_warn("%s: the connection was closed", what);
	tern_shared_unlock(comm->net->shared);
	return NCCL_REMOTE_ERROR;
}

static bool has_posted(const struct comm *comm)
{
	for (unsigned i = 0; i < REQUESTS_MAX; i++)
		if (comm->requests[i].count > 0 &&
			atomic_load(&comm->requests[i].left) > 0)
			return true;
	return false;
}

void comm_abort(struct comm *comm)
{
	struct tern_shared *shared = comm->net->shared;

	tern_shared_lock(shared);
	tern_peer_free(comm->peer);
	comm->peer = NULL;
	tern_shared_unlock(shared);
	/* The library ends the requests when nobody can access their memory any more. */
	while (has_posted(comm) && tern_shared_poll(shared) >= 0)
		;
}

/* Takes the peer of a comm away, after which no event of it comes. NULL: there is no comm. */
static struct comm *take_comm(struct net *net)
{
	struct comm *comm;

	tern_shared_lock(net->shared);
	comm = net->comms;
	if (comm) {
		tern_peer_free(comm->peer);
		comm->peer = NULL;
	}
	tern_shared_unlock(net->shared);
	return comm;
}

/* Frees what NCCL has not closed, as after a set-up that was given up, and the comms whose
 * peers have not said goodbye. */
static void abandon(struct net *net)
{
	struct comm *comm;

	tern_shared_lock(net->shared);
	for (struct listener *l = net->listeners; l; l = l->other) {
		tern_listener_free(l->listener);
		l->listener = NULL;
		l->accepted = NULL;
	}
	tern_shared_unlock(net->shared);
	while ((comm = take_comm(net))) {
		while (has_posted(comm))
			if (tern_shared_poll(net->shared) < 0)
				return; /* the context is broken: free_rest() */
		tern_shared_lock(net->shared);
		comm_free(comm);
		tern_shared_unlock(net->shared);
	}
}

/* The context is gone: frees the memory that it may have used until now. */
static void free_rest(struct net *net)
{
	while (net->comms) {
		struct comm *comm = net->comms;

		net->comms = comm->other;
		free(comm);
	}
	while (net->listeners) {
		struct listener *l = net->listeners;

		net->listeners = l->other;
		free(l);
	}
}

/* ---- listening ---- */

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct listener *l = arg;
	struct comm *comm = comm_new(l->net, false);

	if (!comm || tern_channel_open(peer, 0, &comm->channel) < 0) {
		if (comm)
			comm_free(comm);
		tern_peer_free(peer);
		return;
	}
	tern_peer_set_opts(
		peer, &(struct tern_peer_opts){.event = on_event, .arg = comm});
	comm->peer = peer;
	comm->listener = l;
	comm->up = true;
	l->users++;
	*l->last_accepted = comm;
	l->last_accepted = &comm->next;
}

static int start_listening(struct listener *l, const char *address, struct handle *handle)
{
	const struct tern_peer_opts opts = {.name = l->net->name, .secret = l->secret};
	const char *own;
	int r;

	tern_shared_lock(l->net->shared);
	r = tern_listen(tern_shared_context(l->net->shared), address, &opts, on_accept, l,
		&l->listener);
	if (r == 0) {
		own = tern_listener_address(l->listener);
		if (strlen(own) < sizeof(handle->address))
			strcpy(handle->address, own);
		else
			r = -ENAMETOOLONG;
	}
	if (r < 0) {
		tern_listener_free(l->listener);
	} else {
		l->other = l->net->listeners;
		l->place = &l->net->listeners;
		if (l->other)
			l->other->place = &l->other;
		l->net->listeners = l;
	}
	tern_shared_unlock(l->net->shared);
	return r;
}

int net_listen(struct net *net, int device, void *out_handle, void **out)
{
	struct handle handle = {.magic = HANDLE_MAGIC};
	const struct device *devices;
	unsigned count = devices_find(&devices);
	const char *by = settings_fabric(net_warn);
	struct listener *l;
	char address[100];
	int r;

	*out = NULL;
	if (!by || device < 0 || (unsigned)device >= count)
		return NCCL_INVALID_ARGUMENT;
	if (gpu_kinds(device) != MEMORY_HOST && strcmp(by, "auto") == 0)
		by = "verbs"; /* a connection must not go on over tcp: gpu.c */
	l = calloc(1, sizeof(*l));
	if (!l || !settings_make_secret(l->secret)) {
		free(l);
		return NCCL_SYSTEM_ERROR;
	}
	l->net = net;
	l->last_accepted = &l->accepted;
	l->users = 1;
	snprintf(address, sizeof(address), "%s://%s:0", by, devices[device].address);
	r = start_listening(l, address, &handle);
	if (r < 0) {
		net_warn("cannot listen at %s: %s", address, tern_status_text(r));
		free(l);
		return NCCL_SYSTEM_ERROR;
	}
	memcpy(handle.secret, l->secret, sizeof(handle.secret));
	memcpy(out_handle, &handle, sizeof(handle));
	*out = l;
	return NCCL_SUCCESS;
}

int net_accept(void *listener, void **out)
{
	struct listener *l = listener;
	struct comm *comm;

	*out = NULL;
	if (tern_shared_poll(l->net->shared) < 0)
		return NCCL_SYSTEM_ERROR;
	tern_shared_lock(l->net->shared);
	comm = l->accepted;
	if (comm) {
		l->accepted = comm->next;
		if (!l->accepted)
			l->last_accepted = &l->accepted;
		net_info("receives from %s by %s", tern_peer_name(comm->peer),
			tern_peer_fabric(comm->peer));
	}
	tern_shared_unlock(l->net->shared);
	*out = comm;
	return NCCL_SUCCESS;
}

int net_close_listener(void *listener)
{
	struct listener *l = listener;
	struct net *net;

	if (!l)
		return NCCL_SUCCESS;
	net = l->net;
	tern_shared_lock(net->shared);
	/* The listener keeps its address, so that accepted comms can reconnect. */
	tern_listener_refuse_new(l->listener);
	while (l->accepted) {
		struct comm *comm = l->accepted;

		l->accepted = comm->next;
		comm_free(comm);
	}
	let_go(l);
	tern_shared_unlock(net->shared);
	return NCCL_SUCCESS;
}

/* ---- connecting ---- */

/* The address to connect to: by RDMA only if NCCL may hand over GPU memory. */
static void choose_address(
	const struct handle *handle, int device, char *out, size_t size)
{
	static const char by_auto[] = "auto://";
	size_t n = strlen(by_auto);

	if (gpu_kinds(device) != MEMORY_HOST && strncmp(handle->address, by_auto, n) == 0)
		snprintf(out, size, "verbs://%s", handle->address + n);
	else
		snprintf(out, size, "%s", handle->address);
}

static int start_connecting(struct net *net, int device, struct handle *handle)
{
	struct tern_peer_opts opts = {
		.event = on_event, .name = net->name, .secret = handle->secret};
	char address[sizeof(handle->address) + 8];
	struct comm *comm;
	int r = -ENOMEM;

	choose_address(handle, device, address, sizeof(address));
	tern_shared_lock(net->shared);
	comm = opts.arg = comm_new(net, true);
	if (comm)
		r = tern_connect(
			tern_shared_context(net->shared), address, &opts, &comm->peer);
	if (r == 0)
		r = tern_channel_open(comm->peer, 0, &comm->channel);
	if (r < 0 && comm)
		comm_free(comm);
	tern_shared_unlock(net->shared);
	if (r < 0) {
		net_warn("cannot connect to %s: %s", address, tern_status_text(r));
		return NCCL_SYSTEM_ERROR;
	}
	handle->connecting = comm;
	return NCCL_SUCCESS;
}

static bool is_handle(const struct handle *handle)
{
	return handle->magic == HANDLE_MAGIC &&
	       memchr(handle->secret, '\0', sizeof(handle->secret)) &&
	       memchr(handle->address, '\0', sizeof(handle->address));
}

int net_connect(struct net *net, int device, void *of_nccl, void **out)
{
	struct handle *handle = of_nccl;
	struct comm *comm;
	bool up, down;
	int r;

	*out = NULL;
	if (!is_handle(handle)) {
		net_warn("the other rank's handle is not of Tern's plug-in: all ranks "
			 "need "
			 "it");
		return NCCL_INVALID_ARGUMENT;
	}
	if (!handle->connecting) {
		r = start_connecting(net, device, handle);
		if (r != NCCL_SUCCESS)
			return r;
	}
	comm = handle->connecting;
	if (tern_shared_poll(net->shared) < 0)
		return NCCL_SYSTEM_ERROR;
	tern_shared_lock(net->shared);
	up = comm->up;
	down = comm->down;
	if (up && !down)
		net_info("sends to %s by %s", tern_peer_name(comm->peer),
			tern_peer_fabric(comm->peer));
	tern_shared_unlock(net->shared);
	if (down) {
		handle->connecting = NULL;
		r = comm_broken(comm, "connecting");
		tern_shared_lock(net->shared);
		comm_free(comm);
		tern_shared_unlock(net->shared);
		return r;
	}
	if (up) {
		handle->connecting = NULL;
		*out = comm;
	}
	return NCCL_SUCCESS;
}

/* ---- closing ---- */

int net_close_comm(void *of_nccl)
{
	struct comm *comm = of_nccl;
	struct net *net;

	if (!comm)
		return NCCL_SUCCESS;
	net = comm->net;
	if (comm->peer && has_posted(comm))
		comm_abort(comm); /* NCCL has given the communicator up */
	tern_shared_lock(net->shared);
	if (comm->peer && !comm->down) {
		/* Sent data must arrive, so the comm is freed when the goodbye is heard. */
		comm->closing = true;
		atomic_fetch_add(&net->closing, 1);
		tern_peer_close(comm->peer);
	} else {
		comm_free(comm);
	}
	tern_shared_unlock(net->shared);
	return NCCL_SUCCESS;
}
