/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of pair.h for libraries that match messages by tags (UCX, MPI,
 * libfabric). A peer's file provides send, receive and wait; tagged.c implements the
 * other operations in the way that suits these libraries best: each receive is posted
 * before the other end can send.
 */
#ifndef TERN_BENCH_TAGGED_H
#define TERN_BENCH_TAGGED_H

#include "bench/pair.h"

enum tagged_what { TAGGED_DATA, TAGGED_REPLY };

/* A request is identified by (slot, what). At each end a request is either always a send
 * or always a receive. */
struct tagged_ops {
	void (*send)(struct pair *p, unsigned slot, enum tagged_what what, void *data,
		size_t bytes);
	void (*receive)(struct pair *p, unsigned slot, enum tagged_what what, void *data,
		size_t bytes);
	/* Waits until the request is complete, which it may have been for long. */
	void (*wait)(struct pair *p, unsigned slot, enum tagged_what what);
	void (*progress)(struct pair *p); /* as of struct pair_ops */
};

static inline unsigned tagged_index(unsigned slot, enum tagged_what what)
{
	return slot * 2 + what;
}

/* Sets what `pair` has for messages, and calls pair_main(). */
int tagged_main(
	int argc, char **argv, struct pair_ops *pair, const struct tagged_ops *ops);

#endif
