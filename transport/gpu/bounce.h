/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounce buffers: page-locked host memory, as large as a whole tensor. They are used when
 * the remote end must read or write a tensor in GPU memory that the fabric cannot access.
 *
 * Buffers are cut from slabs: blocks of 64 MiB, or of the tensor's size if that is larger
 * (but at most bounce_bytes), that are registered with every fabric. Unused slabs are
 * kept, so that repeated transfers register nothing. Before the domain is freed, they are
 * freed only when a new slab would exceed its limit bounce_bytes. (A peer on shm that has
 * mapped a slab is then asked to unmap it: transport/shm/share.c.)
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
	/* Protects all members below. Also held while a slab is allocated and registered,
	 * which takes long. */
	pthread_mutex_t lock;
	struct tern_list slabs;
	uint64_t bytes; /* total size of the slabs in `slabs` */
};

void tern_bounces_open(struct tern_domain *domain);
void tern_bounces_close(struct tern_domain *domain);

/* Takes a bounce buffer of `bytes`. -EAGAIN: none is free now; -ENOBUFS: larger than the
 * domain's bounce_bytes; -ENOMEM, ...: the system or the CUDA driver has no memory. */
int tern_bounce_get(struct tern_domain *domain, struct tern_gpu *gpu, uint64_t bytes,
	struct tern_buf *out);
/* Gives a buffer back and clears `buf`. No copy and no fabric may use the buffer any
 * more. */
void tern_bounce_put(struct tern_domain *domain, struct tern_buf *buf);

#endif
