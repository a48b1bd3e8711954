/* SPDX-License-Identifier: Apache-2.0 */
/* See bed.h. This file has bulk data: memory with known contents, regions that the peer
 * may access, and puts and gets. */
#include "tests/harness/bed.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

const struct device_memory *device_memory;

/* ---- buffers ---- */

/* Sizes of a pool's segments. Most tests take little, and each segment is cleared and
 * registered as a whole; a simulated GPU maps and unmaps it, at a cost per page. */
#define SLAB_BYTES       (8u << 20)
#define LARGE_SLAB_BYTES (80u << 20)
#define GPU_SLAB_BYTES   (2u << 20)
/* Larger buffers come from the pool with large segments. */
#define SMALL_BYTES (2u << 20)
#define POOL_BYTES  (240u << 20)

struct tern_buf buf_part(const struct tern_buf *buf, uint64_t offset, uint64_t bytes)
{
	return (struct tern_buf){
		.mem = buf->mem, .offset = buf->offset + offset, .bytes = bytes};
}

void buf_fill_from(const struct tern_buf *buf, uint64_t seed, uint64_t start)
{
	uint64_t address = tern_buf_cuda_address(buf);
	void *bytes;

	if (!address || !buf->bytes) {
		pattern_fill(tern_buf_ptr(buf), buf->bytes, seed, start);
		return;
	}
	bytes = malloc(buf->bytes);
	assert_non_null(bytes);
	pattern_fill(bytes, buf->bytes, seed, start);
	device_memory->write(address, bytes, buf->bytes);
	free(bytes);
}

bool buf_holds_from(const struct tern_buf *buf, uint64_t seed, uint64_t start)
{
	uint64_t address = tern_buf_cuda_address(buf);
	void *bytes;
	bool holds;

	if (!address || !buf->bytes)
		return pattern_holds(tern_buf_ptr(buf), buf->bytes, seed, start);
	bytes = malloc(buf->bytes);
	assert_non_null(bytes);
	device_memory->read(bytes, address, buf->bytes);
	holds = pattern_holds(bytes, buf->bytes, seed, start);
	free(bytes);
	return holds;
}

/* ---- memory ---- */

/* One buffer of a box, and what box_free() must free with it. */
struct wrap {
	struct tern_list node;
	struct tern_mem *mem;
	void *base;
	uint64_t address;       /* GPU memory taken for this buffer; 0: none */
	struct tern_pool *pool; /* to which `buf` belongs; NULL: it is in `mem` */
	struct tern_buf buf;
};

void box_init(struct memory_box *box, struct tern_domain *domain)
{
	box->domain = domain;
	box->gpu = false;
	box->pools[0] = box->pools[1] = NULL;
	tern_list_init(&box->wraps);
}

/* Returns the box's pool for a buffer of this size. */
static struct tern_pool *pool_of(struct memory_box *box, uint64_t bytes)
{
	struct tern_pool_opts opts = {
		.slab_bytes = bytes > SMALL_BYTES ? LARGE_SLAB_BYTES : SLAB_BYTES,
		.max_bytes = POOL_BYTES,
		.kind = box->gpu ? TERN_MEM_CUDA : TERN_MEM_HOST,
	};
	struct tern_pool **pool = &box->pools[bytes > SMALL_BYTES];

	if (box->gpu)
		opts.slab_bytes = GPU_SLAB_BYTES;
	if (!*pool)
		assert_int_equal(tern_pool_new(box->domain, &opts, pool), 0);
	return *pool;
}

struct tern_buf box_take(struct memory_box *box, enum memory kind, uint64_t bytes)
{
	struct wrap *wrap = calloc(1, sizeof(*wrap));

	assert_non_null(wrap);
	if (box->gpu && (kind != SLAB || bytes > GPU_SLAB_BYTES)) {
		uint64_t room = tern_align_up(bytes + 64, 64);

		wrap->address = device_memory->take(room);
		assert_int_equal(
			tern_mem_wrap_cuda(box->domain, wrap->address, room, &wrap->mem),
			0);
		wrap->buf = (struct tern_buf){.mem = wrap->mem, .bytes = bytes};
	} else if (kind != SLAB) {
		uint64_t room = tern_align_up(bytes + 64, 64);

		wrap->base = malloc(room);
		assert_non_null(wrap->base);
		assert_int_equal(
			kind == USER
				? tern_mem_wrap(box->domain, wrap->base, room, &wrap->mem)
				: tern_mem_wrap_brief(box->domain, wrap->base, room, true,
					  &wrap->mem),
			0);
		wrap->buf = (struct tern_buf){.mem = wrap->mem, .bytes = bytes};
	} else {
		wrap->pool = pool_of(box, bytes);
		assert_int_equal(tern_pool_get(wrap->pool, bytes, &wrap->buf), 0);
	}
	tern_list_push(&box->wraps, &wrap->node);
	return wrap->buf;
}

void box_free(struct memory_box *box)
{
	struct tern_list *node;

	while ((node = tern_list_pop(&box->wraps))) {
		struct wrap *wrap = tern_list_entry(node, struct wrap, node);

		if (wrap->mem)
			tern_mem_put(wrap->mem);
		else
			tern_pool_put(wrap->pool, &wrap->buf);
		if (wrap->address)
			device_memory->give(wrap->address);
		free(wrap->base);
		free(wrap);
	}
	for (unsigned i = 0; i < 2; i++) {
		tern_pool_free(box->pools[i]);
		box->pools[i] = NULL;
	}
}

static void work_done(struct tern_op *op, int status)
{
	struct work *work = tern_container_of(op, struct work, op);

	assert_true(work->side->polling);
	assert_int_equal(work->done_count, 0);
	assert_true(status <= 0 && status != -EINPROGRESS && status != -EAGAIN);
	if (work->link) {
		assert_int_equal(work->link->closed_count, 0);
		assert_true(work->link->ops_out > 0);
		work->link->ops_out--;
	}
	work->done_count++;
	work->status = status;
	if (work->then)
		work->then(work);
}

static void work_init(struct work *work, struct side *side, struct link *link)
{
	work->op.done = work_done;
	work->side = side;
	work->link = link;
	work->done_count = 0;
	work->status = -EINPROGRESS;
}

static int link_started(struct link *link, const struct work *work, int r)
{
	/* put() and get() themselves must not call done(): only poll() may. */
	assert_int_equal(work->done_count, 0);
	if (r == 0) {
		assert_ptr_equal(work->op.conn, link->conn);
		link->ops_out++;
	}
	return r;
}

int link_put(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset)
{
	work_init(work, link->side, link);
	return link_started(link, work,
		link->side->fabric->ops->put(link->conn, &work->op, from->mem,
			from->offset, from->bytes, region, remote_offset));
}

int link_get(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset)
{
	work_init(work, link->side, link);
	return link_started(link, work,
		link->side->fabric->ops->get(link->conn, &work->op, to->mem, to->offset,
			to->bytes, region, remote_offset));
}

void link_put_surely(struct link *link, struct work *work, const struct tern_buf *from,
	const struct tern_region *region, uint64_t remote_offset)
{
	int r;

	PUMP(link->side->bed,
		(r = link_put(link, work, from, region, remote_offset)) != -EAGAIN);
	assert_int_equal(r, 0);
}

void link_get_surely(struct link *link, struct work *work, const struct tern_buf *to,
	const struct tern_region *region, uint64_t remote_offset)
{
	int r;

	PUMP(link->side->bed,
		(r = link_get(link, work, to, region, remote_offset)) != -EAGAIN);
	assert_int_equal(r, 0);
}

struct tern_region link_expose(
	struct link *link, const struct tern_buf *buf, enum tern_access access)
{
	struct side *side = link->side;
	struct tern_region region;

	assert_int_equal(link->side->fabric->ops->expose(link->conn, buf->mem,
				 buf->offset, buf->bytes, access, &region),
		0);
	assert_true(side->region_count < TERN_ARRAY_SIZE(side->regions));
	side->regions[side->region_count++] = region;
	return region;
}

static void forget_region(struct side *side, const struct tern_region *region)
{
	for (unsigned i = 0; i < side->region_count; i++) {
		if (memcmp(&side->regions[i], region, sizeof(*region)) == 0) {
			side->regions[i] = side->regions[--side->region_count];
			return;
		}
	}
}

bool side_withdraw_start(
	struct side *side, struct work *work, const struct tern_region *region)
{
	int r;

	forget_region(side, region);
	work_init(work, side, NULL);
	r = side->fabric->ops->withdraw(side->port, &work->op, region);
	assert_true(r == 0 || r == -EINPROGRESS);
	assert_int_equal(work->done_count, 0);
	return r == -EINPROGRESS;
}

void side_withdraw(struct side *side, const struct tern_region *region)
{
	struct work work = {0};

	if (side_withdraw_start(side, &work, region))
		PUMP(side->bed, work.done_count);
}

int link_peek(struct link *link, const struct tern_region *region, uint64_t remote_offset,
	uint64_t bytes, const void **out)
{
	const struct tern_fabric_ops *ops = link->side->fabric->ops;
	struct work work = {0};
	int r;

	for (;;) {
		work_init(&work, link->side, link);
		r = ops->peek(link->conn, &work.op, region, remote_offset, bytes, out);
		if (r == -ENOTSUP && link->side->bed->world)
			/* The simulator refuses some peeks at random: try again. */
			continue;
		if (r != -EAGAIN)
			return r;
		link->ops_out++;
		PUMP(link->side->bed, work.done_count);
		if (!link->conn)
			return link->status;
	}
}
