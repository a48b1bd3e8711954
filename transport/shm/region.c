/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that peers may access, and how a get, a put or a peek of a peer's memory begins.
 *
 * A region refers to one of three things: a range of a slab (shared memory segment of a
 * pool), which the peer maps completely and read-only at its first use and then reads
 * without asking; memory at an address in this process, which the peer reads by
 * process_vm_readv or asks this process to copy; or a range of GPU memory that the peer
 * has opened before (gpu.c). Reading a mapped slab cannot be stopped, nor can reading and
 * writing by the system calls: the table of exposures decides which slabs a peer may map
 * and what is copied for it. Beyond that the peer is trusted, as fabric.h describes for
 * withdraw(): a process of the same user could write to this one's memory anyway.
 *
 * A region comes over the wire. shm_region_take() checks that it is consistent. Before
 * any byte of a mapping (a slab, GPU memory) is read, the code that reads it also checks
 * that the region lies inside the mapping, whose size is known without trusting the peer.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <string.h>

int shm_expose(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	struct shm_port *port = shm_port_of(conn->port);
	bool slab = tern_mem_is_slab(mem), gpu = mem->kind == TERN_MEM_CUDA;
	struct shm_exposure *exposure;
	struct shm_region region;
	uint32_t slot;

	tern_assert(tern_mem_holds(mem, offset, bytes));
	if (gpu && !shm_offer_was_taken(shm_conn_of(conn), mem))
		return -ENOTSUP;
	if (port->exposure_free) {
		slot = port->exposure_free - 1;
		port->exposure_free = port->exposures[slot].next_free;
	} else if (port->exposure_top < SHM_EXPOSURE_COUNT) {
		slot = port->exposure_top++;
	} else {
		return -EAGAIN;
	}
	exposure = &port->exposures[slot];
	exposure->mem = mem;
	exposure->owner = conn->owner;
	exposure->start = gpu ? 0 : (uintptr_t)tern_mem_at(mem, offset);
	exposure->bytes = bytes;
	exposure->readable = access & TERN_ACCESS_READ;
	region = (struct shm_region){
		.kind = gpu    ? SHM_REGION_GPU
			: slab ? SHM_REGION_SLAB
			       : SHM_REGION_USER,
		.slot = (uint16_t)slot,
		.generation = ++exposure->generation,
		.mem_id = mem->id,
		.start = slab || gpu ? offset : exposure->start,
		.bytes = bytes,
		.address = access & TERN_ACCESS_WRITE ? exposure->start : 0,
	};
	*out = (struct tern_region){{0}};
	memcpy(out, &region, sizeof(region));
	return 0;
}

static struct shm_exposure *find(
	struct shm_port *port, uint32_t slot, uint32_t generation)
{
	struct shm_exposure *exposure;

	if (slot >= port->exposure_top)
		return NULL;
	exposure = &port->exposures[slot];
	return exposure->mem && exposure->generation == generation ? exposure : NULL;
}

int shm_withdraw(
	struct tern_port *base, struct tern_op *op, const struct tern_region *region)
{
	struct shm_port *port = shm_port_of(base);
	struct shm_exposure *exposure;
	struct shm_region ours;

	/* The result is never -EINPROGRESS, because a copy for a peer is completed within
	 * one poll(). */
	(void)op;
	memcpy(&ours, region, sizeof(ours));
	exposure = find(port, ours.slot, ours.generation);
	if (!exposure)
		return 0;
	exposure->mem = NULL;
	exposure->next_free = port->exposure_free;
	port->exposure_free = ours.slot + 1u;
	return 0;
}

struct shm_exposure *shm_exposure_find(
	struct shm_conn *conn, uint32_t slot, uint32_t generation)
{
	struct shm_exposure *exposure = find(shm_conn_port(conn), slot, generation);

	if (!exposure || exposure->owner != conn->base.owner || !exposure->readable)
		return NULL;
	return exposure;
}

int shm_region_take(struct shm_conn *conn, const struct tern_region *wire,
	uint64_t offset, uint64_t bytes, struct shm_region *region)
{
	uint64_t end;

	if (conn->state != SHM_UP)
		return -ENOTCONN;
	memcpy(region, wire, sizeof(*region));
	if (region->kind < SHM_REGION_SLAB || region->kind > SHM_REGION_GPU)
		shm_conn_blame(conn, "it sent a region of an unknown kind");
	else if (offset > region->bytes || bytes > region->bytes - offset)
		shm_conn_blame(conn, "it sent a region smaller than what it announced");
	else if (__builtin_add_overflow(region->start, region->bytes, &end) ||
		 __builtin_add_overflow(region->address, region->bytes, &end))
		shm_conn_blame(
			conn, "it sent a region that wraps around the address space");
	else
		return 0;
	return -ENOTCONN;
}

static struct shm_op *op_init(struct shm_conn *conn, struct tern_op *op,
	enum shm_op_kind kind, const struct shm_region *region)
{
	struct shm_op *inner = shm_op_of(op);

	op->conn = &conn->base;
	*inner = (struct shm_op){
		.id = kind == SHM_OP_USER ? region->generation : region->mem_id,
		.slot = region->slot,
		.kind = (uint16_t)kind,
	};
	tern_list_init(&inner->node);
	return inner;
}

int shm_get(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct shm_conn *conn = shm_conn_of(base);
	struct shm_slab *slab = NULL;
	struct shm_region region;
	struct shm_op *inner;
	int status;

	tern_assert(tern_mem_holds(mem, offset, bytes));
	status = shm_region_take(conn, remote, remote_offset, bytes, &region);
	if (status)
		return status;
	shm_conn_rouse(conn);
	if (region.kind == SHM_REGION_GPU) {
		/* Only borrow() can read GPU memory, and only if this process has opened
		 * it. Otherwise the peer must send a region of a copy in host memory. */
		shm_conn_blame(
			conn, "it sent a region of GPU memory that was not opened here");
		return -ENOTCONN;
	}
	if (region.kind == SHM_REGION_SLAB) {
		slab = shm_slab_of(conn, &region);
		if (!slab) {
			conn->starved = true;
			return -EAGAIN;
		}
	}
	inner = op_init(conn, op, slab ? SHM_OP_SLAB : SHM_OP_USER, &region);
	inner->local = tern_mem_at(mem, offset);
	inner->remote = region.start + remote_offset;
	inner->bytes = bytes;
	if (slab && slab->state != SHM_SLAB_MAPPED)
		tern_list_push(&slab->waiting, &inner->node);
	else
		shm_op_start(conn, op, slab);
	return 0;
}

int shm_put(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct shm_conn *conn = shm_conn_of(base);
	struct shm_region region;
	struct shm_op *inner;
	int status;

	tern_assert(tern_mem_holds(mem, offset, bytes));
	tern_assert(base->caps & TERN_CAP_WINDOW_PUT);
	status = shm_region_take(conn, remote, remote_offset, bytes, &region);
	if (status)
		return status;
	if (!region.address) {
		shm_conn_blame(conn, "it sent a region without an address to put to");
		return -ENOTCONN;
	}
	shm_conn_rouse(conn);
	inner = op_init(conn, op, SHM_OP_PUT, &region);
	inner->local = tern_mem_at(mem, offset);
	inner->remote = region.address + remote_offset;
	inner->bytes = bytes;
	shm_op_start(conn, op, NULL);
	return 0;
}

int shm_peek(struct tern_conn *base, struct tern_op *op, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, const void **out)
{
	struct shm_conn *conn = shm_conn_of(base);
	struct shm_region region;
	struct shm_slab *slab;
	int status;

	status = shm_region_take(conn, remote, remote_offset, bytes, &region);
	if (status)
		return status;
	if (region.kind != SHM_REGION_SLAB)
		return -ENOTSUP;
	slab = shm_slab_of(conn, &region);
	if (!slab)
		return -ENOTSUP;
	if (slab->state != SHM_SLAB_MAPPED) {
		tern_list_push(
			&slab->waiting, &op_init(conn, op, SHM_OP_PEEK, &region)->node);
		return -EAGAIN;
	}
	if (!shm_slab_holds(slab, region.start + remote_offset, bytes)) {
		shm_conn_blame(conn, "it sent a region outside its memory segment");
		return -ENOTCONN;
	}
	status = shm_slab_peek(slab);
	if (!status)
		*out = slab->base + region.start + remote_offset;
	return status;
}
