/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network transport of NCCL without NCCL's communicators, which need a GPU: Tern's plug-in, or
 * the socket transport that is part of NCCL. Each is a table of functions in version 11 of NCCL's
 * interface, and this program calls both as NCCL's proxy thread does: a connection carries data
 * one way, and the thread asks again and again whether the oldest request of each connection has
 * ended, and gives the processor up (sched_yield()) when none has.
 *
 * usage: nccl_net LIBRARY exported|TABLE,GET_DEVICE OPTIONS
 * exported: the table that plug-ins export. TABLE, GET_DEVICE: where the table of NCCL's sockets
 * and the function cudaGetDevice() are in NCCL's library, as nm prints it, since NCCL exports
 * neither. OPTIONS: those of pair.h.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/peers/tagged.h"
#include "plugins/nccl/abi.h"

#define TABLE_NAME "ncclNetPlugin_v11"
#define DEVICE     0 /* the first interface that the environment allows */
#define TAG        0
/* Bytes between two answers that are no tensors: a cache line. */
#define REPLY_ROOM 64

/* A connection, which carries data one way. Its requests end in the order in which they began. */
struct connection {
	void *comm, *memory;
	void *requests[REQUESTS_MAX];
	uint64_t begun, ended;
};

static const char *library, *place; /* the first two arguments */
static const struct nccl_net_11 *net;
static void *ctx, *listener;
static struct connection out, in;
/* By tagged_index(): how many requests of the connection had begun, with this one. */
static uint64_t *numbers;
/* Registered memory: p->tensors, and behind the tensors the answers that are no tensors. */
static size_t replies_at, registered_bytes;
static struct pair_ops ops;

static void must(const char *what, int result)
{
	pair_must(what, result, "NCCL's result");
}

/* Warnings, and with NCCL_DEBUG=INFO what NCCL would also log then. */
__attribute__((format(printf, 5, 6))) static void log_line(int level,
	unsigned long subsystems, const char *file, int line, const char *format, ...)
{
	const char *wanted = getenv("NCCL_DEBUG");
	char text[600];
	va_list ap;

	(void)subsystems, (void)file, (void)line;
	if (level > NCCL_WARN && (level > NCCL_INFO || !wanted || strcmp(wanted, "INFO")))
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	/* In one piece, since the other end writes to the same place. */
	dprintf(STDERR_FILENO, "%s\n", text);
}

/* ---- the beginning and the end ---- */

static unsigned char *nccl_memory(struct pair *p, size_t bytes)
{
	replies_at = (bytes + REPLY_ROOM - 1) / REPLY_ROOM * REPLY_ROOM;
	registered_bytes = replies_at + (size_t)p->inflight * REPLY_ROOM;
	return bench_memory(registered_bytes, false);
}

/* NCCL's sockets ask CUDA for the number of the current GPU when they connect, only to name their
 * threads by it, and fail where there is no GPU. This makes NCCL's copy of cudaGetDevice() answer
 * that it is number 0. */
static void answer_gpu_0(char *get_device)
{
	/* xor %eax, %eax; mov %eax, (%rdi); ret */
	static const unsigned char code[] = {0x31, 0xc0, 0x89, 0x07, 0xc3};
	char *page =
		get_device - (uintptr_t)get_device % (uintptr_t)sysconf(_SC_PAGESIZE);
	size_t bytes = (size_t)(get_device - page) + sizeof(code);

	if (mprotect(page, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) < 0)
		pair_die("%s: cudaGetDevice() cannot be replaced: %s", library,
			strerror(errno));
	memcpy(get_device, code, sizeof(code));
	mprotect(page, bytes, PROT_READ | PROT_EXEC);
}

/* Finds the table of NCCL's sockets, and makes them run without a GPU. NULL, or what is wrong. */
static const char *find_sockets(void *loaded)
{
	size_t table, get_device;
	struct link_map *map;
	char more;

	if (sscanf(place, "%zx,%zx%c", &table, &get_device, &more) != 2)
		return "the second argument is neither \"exported\" nor two addresses";
#ifndef __x86_64__
	return "cudaGetDevice() can be replaced on x86-64 only";
#endif
	if (dlinfo(loaded, RTLD_DI_LINKMAP, &map) != 0)
		return dlerror();
	answer_gpu_0((char *)(map->l_addr + get_device));
	net = (const struct nccl_net_11 *)(map->l_addr + table);
	return NULL;
}

/* NULL, or what is wrong. */
static const char *find_table(void)
{
	void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!loaded)
		return dlerror();
	if (strcmp(place, "exported") != 0)
		return find_sockets(loaded);
	net = dlsym(loaded, TABLE_NAME);
	return net ? NULL : dlerror();
}

static void init(void)
{
	struct nccl_config config = {.traffic_class = -1};
	const char *why = find_table();
	int count = 0;

	if (why)
		pair_die("%s: %s", library, why);
	ops.name = net->name;
	must("init", net->init(&ctx, 1, &config, log_line, NULL));
	must("devices", net->devices(&count));
	if (count == 0)
		pair_die("%s has found no network interface that it may use", ops.name);
}

static void register_for(struct pair *p, struct connection *conn)
{
	must("regMr", net->regMr(conn->comm, p->tensors, registered_bytes, MEMORY_HOST,
			      &conn->memory));
}

static void nccl_open(struct pair *p)
{
	char own[HANDLE_BYTES] = {0}, other[HANDLE_BYTES];
	void *of_gpu = NULL;

	if (p->inflight > REQUESTS_MAX)
		pair_die("a connection of NCCL has at most %u requests", REQUESTS_MAX);
	numbers = calloc(2 * (size_t)p->inflight, sizeof(*numbers));
	if (!numbers)
		pair_die("no memory for %u slots", p->inflight);
	init();
	must("listen", net->listen(ctx, DEVICE, own, &listener));
	pair_tell(p, own, sizeof(own));
	pair_hear(p, other, sizeof(other));
	while (!out.comm || !in.comm) {
		if (!out.comm)
			must("connect",
				net->connect(ctx, DEVICE, other, &out.comm, &of_gpu));
		if (!in.comm)
			must("accept", net->accept(listener, &in.comm, &of_gpu));
		sched_yield();
	}
	register_for(p, &out);
	register_for(p, &in);
}

static void nccl_close(struct pair *p)
{
	(void)p;
	must("deregMr", net->deregMr(out.comm, out.memory));
	must("deregMr", net->deregMr(in.comm, in.memory));
	must("closeSend", net->closeSend(out.comm));
	must("closeRecv", net->closeRecv(in.comm));
	must("closeListen", net->closeListen(listener));
	must("finalize", net->finalize(ctx));
}

static const char *nccl_version(void)
{
	void *loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	int (*of_nccl)(int *) = (int (*)(int *))dlsym(loaded, "ncclGetVersion");
	/* dlsym() finds it in Tern's library, which the plug-in needs. */
	const char *(*of_tern)(void) =
		(const char *(*)(void))dlsym(loaded, "tern_version");
	static char text[24];
	int version;

	if (!of_nccl)
		return of_tern ? of_tern() : "";
	if (of_nccl(&version) != NCCL_SUCCESS)
		return "";
	snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100,
		version % 100);
	return text;
}

/* ---- messages ---- */

/* Asks whether the oldest request has ended. Returns true if it has. */
static bool ask_oldest(struct connection *conn)
{
	int done = 0, bytes;

	if (conn->ended == conn->begun)
		return false;
	must("test",
		net->test(conn->requests[conn->ended % REQUESTS_MAX], &done, &bytes));
	conn->ended += done ? 1 : 0;
	return done;
}

static void drive(void)
{
	bool sent = ask_oldest(&out), received = ask_oldest(&in);

	if (!sent && !received)
		sched_yield();
}

static void begin(
	struct connection *conn, void *request, unsigned slot, enum tagged_what what)
{
	conn->requests[conn->begun++ % REQUESTS_MAX] = request;
	numbers[tagged_index(slot, what)] = conn->begun;
}

/* Where the data of a request is: an answer that is no tensor has its place in the registered
 * memory. */
static void *place_of(
	const struct pair *p, unsigned slot, enum tagged_what what, void *data)
{
	return what == TAGGED_REPLY && !p->both_ways
		       ? p->tensors + replies_at + (size_t)slot * REPLY_ROOM
		       : data;
}

static void nccl_send(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	void *request = NULL, *at = place_of(p, slot, what, data);

	for (;;) {
		must("isend",
			net->isend(out.comm, at, bytes, TAG, out.memory, NULL, &request));
		if (request)
			break;
		drive();
	}
	begin(&out, request, slot, what);
}

static void nccl_receive(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	void *request = NULL, *at = place_of(p, slot, what, data);
	int tag = TAG;

	for (;;) {
		must("irecv", net->irecv(in.comm, 1, &at, &bytes, &tag, &in.memory, NULL,
				      &request));
		if (request)
			break;
		drive();
	}
	begin(&in, request, slot, what);
}

static void nccl_wait(struct pair *p, unsigned slot, enum tagged_what what)
{
	const struct connection *conn = p->sender == (what == TAGGED_DATA) ? &out : &in;

	while (conn->ended < numbers[tagged_index(slot, what)])
		drive();
}

int main(int argc, char **argv)
{
	static const struct tagged_ops tagged = {
		.send = nccl_send, .receive = nccl_receive, .wait = nccl_wait};

	if (argc < 3)
		pair_die("expected LIBRARY exported|TABLE,GET_DEVICE, and the options of "
			 "a pair");
	library = argv[1];
	place = argv[2];
	argv[2] = argv[0];
	ops = (struct pair_ops){.name = "NCCL",
		.variants = "",
		.waits = "poll",
		.version = nccl_version,
		.memory = nccl_memory,
		.open = nccl_open,
		.close = nccl_close};
	return tagged_main(argc - 2, argv + 2, &ops, &tagged);
}
