/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instances (a fabric with one set of options) on which the conformance lists and the
 * storm run. An instance is defined with INSTANCE in a file that the programs are linked
 * with, and is found by its name. A line in tests/harness/meson.build says which programs
 * run on it.
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
	const char *name;      /* such as "tcp-epoll" */
	const char *fabric;    /* name of its fabric, such as "tcp" */
	struct tern_domain_opts opts;
	struct tern_domain_hooks hooks;
	/* Returns why the instance cannot run on this machine, or NULL if it can. Called
	 * before anything else. The pointer may be NULL: the instance can always run. */
	const char *(*unavailable)(void);
	bool can_sleep; /* a program can sleep until an event: fd() and arm() work */
	bool alone;     /* both ends must be in one process */
	/* Conns are TCP sockets, which a test can cut, and a session can have several
	 * rails (parallel connections). */
	bool sockets;
	unsigned gpus; /* which ends have their memory in a GPU: bits 1 << A, 1 << B */
	/* Both ends open the GPU. So an end whose memory is not in the GPU can copy from
	 * the other end's GPU memory by IPC. */
	bool uses_gpu;
	bool ipc;    /* the simulated CUDA driver supports IPC */
	bool direct; /* the fabric's network cards read and write GPU memory */
	/* address() writes an address to listen at. Listeners of different numbers get
	 * different addresses (the text may be the same: port 0).
	 * nobody() writes an address at which no process listens. */
	void (*address)(char *out, unsigned number);
	void (*nobody)(char *out);
	/* Addresses that must be refused as malformed; NULL-terminated. */
	const char *const *malformed;
	/* A well-formed address that this machine does not have; may be NULL. */
	const char *elsewhere;
	/* For the simulator, in which one world has a process for each side. Other
	 * instances leave these NULL; only verbs_bed.c uses them, too, to give both sides
	 * one domain. */
	void *(*world_new)(void);
	void (*world_free)(void *world);
	struct tern_env *(*world_env)(void *world, unsigned side);
	/* The domain of side A's or B's process; it belongs to the world. */
	struct tern_domain *(*world_domain)(void *world, unsigned side);
	void (*world_step)(void *world); /* advances virtual time */
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

/* Finds an instance by name (`bytes` bytes at `name`, without a NUL); NULL: there is
 * none. */
const struct instance *instance_find(const char *name, size_t bytes);
/* Start of the list of all instances, linked by `next`. */
const struct instance *instance_first(void);

#endif
