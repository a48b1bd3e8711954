/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instances on which the conformance lists and the storm run. An instance is defined
 * with INSTANCE in a file that the programs are linked with, and is found by its name. A
 * line in meson.build says which programs run on it.
 */
#ifndef TERN_TESTS_HARNESS_INSTANCE_H
#define TERN_TESTS_HARNESS_INSTANCE_H

#include <tern/context.h>

#include "base/env.h"
#include "transport/domain.h"

#define BED_ADDRESS_MAX 128

/* A fabric with one set of options. */
struct instance {
	struct instance *next; /* next in the list of all instances */
	const char *name;      /* "tcp-epoll" */
	const char *fabric;    /* "tcp" */
	struct tern_domain_opts opts;
	struct tern_domain_hooks hooks;
	/* Called first: returns why the instance cannot run here, or NULL. May be NULL
	 * itself. */
	const char *(*unavailable)(void);
	bool can_sleep; /* fd() and arm() can be used */
	bool alone;     /* both ends must be in one process */
	/* Conns are TCP sockets, which a test can cut, and there are rails. */
	bool sockets;
	unsigned gpus; /* ends whose memory is in a GPU: bits 1 << A, 1 << B */
	bool uses_gpu; /* the domains of the other ends use the device too */
	bool ipc;      /* the driver supports CUDA IPC */
	bool direct;   /* the fabric reaches GPU memory */
	/* Writes the number-th address to listen at, and an address at which nobody
	 * listens. */
	void (*address)(char *out, unsigned number);
	void (*nobody)(char *out);
	const char *const *malformed; /* malformed addresses, NULL-terminated */
	/* A well-formed address that is not of this machine; may be NULL. */
	const char *elsewhere;
	/* For fabrics that live in a simulated world; others leave these NULL. */
	void *(*world_new)(void);
	void (*world_free)(void *world);
	struct tern_env *(*world_env)(void *world, unsigned side);
	/* A domain in the world. */
	struct tern_domain *(*world_domain)(void *world, unsigned side);
	void (*world_step)(void *world); /* lets virtual time pass */
};

/* Defines an instance: INSTANCE(tcp_epoll) = {.name = "tcp-epoll", ...}; */
#define INSTANCE(symbol)                                                                 \
	static struct instance symbol;                                                   \
	__attribute__((constructor)) static void symbol##_add(void)                      \
	{                                                                                \
		instance_add(&symbol);                                                   \
	}                                                                                \
	static struct instance symbol
void instance_add(struct instance *instance);

/* The instance whose name is the `bytes` bytes at `name`; NULL: there is none. */
const struct instance *instance_find(const char *name, size_t bytes);
/* The first instance; the others follow by `next`. */
const struct instance *instance_first(void);

#endif
