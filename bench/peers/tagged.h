/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of pair.h for libraries that match messages by tags (UCX, MPI,
 * libfabric). A library's file provides send, receive, wait and progress; tagged.c
 * implements the operations of pair.h with them, in the order that suits these libraries
 * best: see there.
 */
#ifndef TERN_BENCH_TAGGED_H
#define TERN_BENCH_TAGGED_H

#include "bench/pair.h"

enum tagged_what { TAGGED_DATA, TAGGED_REPLY };

/* A request is identified by (slot, what). At one end, the requests of one `what` are all
 * sends or all receives. */
struct tagged_ops {
	void (*send)(struct pair *p, unsigned slot, enum tagged_what what, void *data,
		size_t bytes);
	void (*receive)(struct pair *p, unsigned slot, enum tagged_what what, void *data,
		size_t bytes);
	/* Waits until the request is complete. It may be complete already. */
	void (*wait)(struct pair *p, unsigned slot, enum tagged_what what);
	void (*progress)(struct pair *p); /* as of struct pair_ops */
};

static inline unsigned tagged_index(unsigned slot, enum tagged_what what)
{
	return slot * 2 + what;
}

/* Sets the operations of `pair` for messages (begin to progress), and calls pair_main(). */
int tagged_main(
	int argc, char **argv, struct pair_ops *pair, const struct tagged_ops *ops);

#endif
