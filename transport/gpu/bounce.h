/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounce buffers: page-locked host memory, as large as a tensor. They are used when the
 * remote end must read or write GPU memory that its fabric cannot reach.
 *
 * Buffers come from slabs of 64 MiB, or of the tensor's size if that is larger,
 * registered with every fabric like any others. Slabs are kept, so that repeated
 * transfers register nothing. Only when a new slab would exceed the domain's bounce_bytes
 * are unused slabs freed. (A peer on shm that has mapped a slab keeps the mapping until
 * the connection ends.)
 *
 * Thread-safe.
 */
#ifndef TERN_TRANSPORT_GPU_BOUNCE_H
#define TERN_TRANSPORT_GPU_BOUNCE_H

#include <pthread.h>

#include <tern/memory.h>

#include "base/list.h"

struct tern_domain;
struct tern_gpu;

struct tern_bounces {
	pthread_mutex_t lock; /* protects all below; held while slabs are made */
	struct tern_list slabs;
	uint64_t bytes; /* size of all slabs */
};

void tern_bounces_open(struct tern_domain *domain);
void tern_bounces_close(struct tern_domain *domain);

/* Takes a bounce buffer of `bytes`. -EAGAIN: none is free now; -ENOBUFS: larger than
 * the domain's bounce_bytes; -ENOMEM, ...: the system or the driver gives no memory. */
int tern_bounce_get(struct tern_domain *domain, struct tern_gpu *gpu, uint64_t bytes,
	struct tern_buf *out);
/* Gives a buffer back and clears `buf`. Neither a copy nor a fabric may use it any
 * more. */
void tern_bounce_put(struct tern_domain *domain, struct tern_buf *buf);

#endif
