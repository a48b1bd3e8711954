/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounce buffers: page-locked memory of the host, as large as a tensor, where the other
 * end must read from or write into memory of a GPU that its fabric does not reach.
 *
 * They come from slabs of 64 MiB, or of the tensor's size if it is larger, registered
 * with every fabric like any others. Slabs are kept: what repeats registers nothing. Only
 * when a new one would go beyond the domain's bound are those given back that are not in
 * use. (A peer on shm that has mapped one keeps the mapping until the connection ends.)
 *
 * Thread-safe.
 */
#ifndef TERN_TRANSPORT_BOUNCE_H
#define TERN_TRANSPORT_BOUNCE_H

#include <pthread.h>

#include <tern/memory.h>

#include "base/list.h"

struct tern_domain;
struct tern_gpu;

struct tern_bounces {
	pthread_mutex_t lock; /* protects all below; slabs are made under it */
	struct tern_list slabs;
	uint64_t bytes; /* of all of them */
};

void tern_bounces_open(struct tern_domain *domain);
void tern_bounces_close(struct tern_domain *domain);

/* -EAGAIN: there is none now, but others are in use; -ENOBUFS: larger than the domain's
 * bound; -ENOMEM, ...: the system, or the driver, does not give any. */
int tern_bounce_get(struct tern_domain *domain, struct tern_gpu *gpu, uint64_t bytes,
	struct tern_buf *out);
/* Nobody may be at it. `buf` is cleared. */
void tern_bounce_put(struct tern_domain *domain, struct tern_buf *buf);

#endif
