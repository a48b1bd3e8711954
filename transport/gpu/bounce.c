/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce buffers; see bounce.h. Each slab (block of registered host memory) is a pool of
 * its own, so that it can be freed separately. Slabs are sorted by size, so that small
 * tensors use small slabs and leave the large ones free. */
#include "transport/gpu/bounce.h"

#include <errno.h>
#include <stdlib.h>

#include "transport/domain.h"

#define SLAB_BYTES  (64ull << 20)
#define BOUND_BYTES (1ull << 30)
#define ROUND_BYTES (2ull << 20)

struct slab {
	struct tern_list node;
	struct tern_pool *pool;
	struct tern_mem *mem;
	uint64_t bytes;
	uint32_t used_count;
};

void tern_bounces_open(struct tern_domain *domain)
{
	struct tern_bounces *b = &domain->bounces;

	pthread_mutex_init(&b->lock, NULL);
	tern_list_init(&b->slabs);
	if (!domain->opts.bounce_bytes)
		domain->opts.bounce_bytes = BOUND_BYTES;
}

static void slab_free(struct tern_bounces *b, struct slab *slab)
{
	b->bytes -= slab->bytes;
	tern_list_remove(&slab->node);
	tern_pool_free(slab->pool);
	free(slab);
}

void tern_bounces_close(struct tern_domain *domain)
{
	struct tern_bounces *b = &domain->bounces;

	while (!tern_list_empty(&b->slabs))
		slab_free(b, tern_list_first(&b->slabs, struct slab, node));
	pthread_mutex_destroy(&b->lock);
}

static int get_from(struct slab *slab, uint64_t bytes, struct tern_buf *out)
{
	int r = tern_pool_get(slab->pool, bytes, out);

	if (r)
		return r;
	slab->mem = out->mem;
	slab->used_count++;
	return 0;
}

static int get_from_any(struct tern_bounces *b, uint64_t bytes, struct tern_buf *out)
{
	tern_list_for_each (n, &b->slabs)
		if (get_from(tern_list_entry(n, struct slab, node), bytes, out) == 0)
			return 0;
	return -EAGAIN;
}

static bool any_used(const struct tern_bounces *b)
{
	tern_list_for_each (n, &b->slabs)
		if (tern_list_entry(n, struct slab, node)->used_count)
			return true;
	return false;
}

/* Frees unused slabs until `bytes` more fit within `bound`. -EAGAIN: they do not fit,
 * because of slabs in use. */
static int make_room(struct tern_bounces *b, uint64_t bytes, uint64_t bound)
{
	tern_list_for_each_safe (n, &b->slabs) {
		struct slab *slab = tern_list_entry(n, struct slab, node);

		if (b->bytes + bytes <= bound)
			return 0;
		if (!slab->used_count)
			slab_free(b, slab);
	}
	return b->bytes + bytes <= bound ? 0 : -EAGAIN;
}

static void insert(struct tern_bounces *b, struct slab *slab)
{
	struct tern_list *before = &b->slabs;

	tern_list_for_each (n, &b->slabs) {
		if (tern_list_entry(n, struct slab, node)->bytes > slab->bytes) {
			before = n;
			break;
		}
	}
	tern_list_push(before, &slab->node);
	b->bytes += slab->bytes;
}

static int add_slab(struct tern_domain *domain, struct tern_gpu *gpu, uint64_t bytes,
	struct slab **out)
{
	struct tern_pool_opts opts = {.slab_bytes = bytes, .max_bytes = bytes};
	struct slab *slab = calloc(1, sizeof(*slab));
	int r = slab ? tern_pool_new_locked(domain, &opts, gpu, &slab->pool) : -ENOMEM;

	if (r) {
		free(slab);
		return r;
	}
	slab->bytes = bytes;
	insert(&domain->bounces, slab);
	*out = slab;
	return 0;
}

/* Takes a bounce buffer, from a new slab if necessary. The caller holds the lock. */
static int get(struct tern_domain *domain, struct tern_gpu *gpu, uint64_t bytes,
	struct tern_buf *out)
{
	struct tern_bounces *b = &domain->bounces;
	uint64_t bound = domain->opts.bounce_bytes;
	uint64_t slab_bytes =
		TERN_MIN(TERN_MAX(SLAB_BYTES, tern_align_up(bytes, ROUND_BYTES)), bound);
	struct slab *slab;
	int r;

	if (get_from_any(b, bytes, out) == 0)
		return 0;
	r = make_room(b, slab_bytes, bound);
	if (r)
		return r;
	r = add_slab(domain, gpu, slab_bytes, &slab);
	if (r)
		return any_used(b) ? -EAGAIN : r;
	return get_from(slab, bytes, out);
}

int tern_bounce_get(struct tern_domain *domain, struct tern_gpu *gpu, uint64_t bytes,
	struct tern_buf *out)
{
	int r;

	if (bytes > domain->opts.bounce_bytes)
		return -ENOBUFS;
	pthread_mutex_lock(&domain->bounces.lock);
	r = get(domain, gpu, bytes, out);
	pthread_mutex_unlock(&domain->bounces.lock);
	return r;
}

void tern_bounce_put(struct tern_domain *domain, struct tern_buf *buf)
{
	struct tern_bounces *b = &domain->bounces;

	pthread_mutex_lock(&b->lock);
	tern_list_for_each (n, &b->slabs) {
		struct slab *slab = tern_list_entry(n, struct slab, node);

		if (slab->mem != buf->mem)
			continue;
		slab->used_count--;
		tern_pool_put(slab->pool, buf);
		break;
	}
	pthread_mutex_unlock(&b->lock);
}
