/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and collective operations: all-reduce, broadcast and others among several
 * processes.
 *
 * A group has `size` ranks, 0 to size - 1. Every rank is connected to every other rank by a
 * peer (channel.h), which the caller gives; several groups may share peers, if their
 * numbers differ. Each rank calls the same operations in the same order. The k-th call of
 * one rank belongs to the k-th call of every other rank: k, counted from 0, is the number
 * of the operation. Several operations may be under way at a time. They begin in the order
 * of the calls, and may end in another order.
 *
 * Results. Every rank gets the same bytes, also if ranks have different processors or were
 * built by different compilers. Sums and products have one NaN (positive, quiet). Which algorithm is used follows from the size,
 * the number of ranks, their hosts and the dtype alone. With x[r] the tensor of rank r, the
 * order of the operations on an element is
 *
 * - two ranks: x[0] + x[1], the order that every other library has, too;
 * - f16 and bf16 on three or more ranks: ((x[j] + x[j+1]) + x[j+2]) + ..., around the ring
 *   of ranks. j is the rank that owns the element's block: the tensor is cut into pieces,
 *   and each piece into `size` blocks, whose owners are ranks 0, 1, ... The sum is computed
 *   in f32 and rounded once;
 * - other types, tensors of at most TERN_GROUP_SMALL_BYTES (or piece_bytes, if less): in
 *   pairs, (x[0] + x[1]) + (x[2] + x[3]), and so on. If `size` is no power of two, as many
 *   of the first ranks are added in pairs before that as leaves a power of two.
 *   tern_reduce() counts the ranks from the root on, and the last ones have no pair;
 * - other types, tensors of at most TERN_GROUP_MEDIUM_BYTES (or two pieces) on four or
 *   more ranks (all-reduce only): in pairs, too, at first of ranks whose distance is half of the
 *   largest power of two in `size`, then a quarter of it, and so on;
 * - larger tensors: around the ring, ((x[j+1] + x[j+2]) + ...) + x[j] with the owner j;
 * - larger tensors on several hosts, at least one of which has more than one rank
 *   (all-reduce only): first the ranks of each host, in the order of their numbers from
 *   the host's leader on, around; then the hosts' sums, around the ring of hosts. The
 *   piece with number i has as leader of each host its rank with index i modulo the number
 *   of its ranks.
 *
 * Memory. Tensors lie in the caller's memory. A group takes `lanes` x 2 x `piece_bytes` as
 * scratch memory, 8 MiB by default, and some kilobytes for each rank; operations allocate
 * nothing. More operations than there are lanes wait for their turn. Memory of GPUs is
 * refused.
 *
 * Failures. A group ends at its first failure: every operation under way ends with the same
 * status at every rank that still runs, every later call returns this status, and
 * tern_group_text() has one line that names the operation and the rank that is to blame:
 *
 * - a rank's process or host is lost: the status of its peer (-ECONNRESET, ...);
 * - a rank calls another operation than its neighbour, or with another size, type, operator
 *   or root, or has made its group with other hosts or another piece_bytes: -EBADMSG. No
 *   rank gets wrong data;
 * - the deadline of an operation passes: -ETIMEDOUT. While ranks wait they tell each other
 *   which operations they have called, so the line names the rank that is furthest behind.
 *
 * The rank that notices a failure tells all others. Then each rank cancels what is under
 * way; if that does not end soon, because a rank does not answer, the connection to that
 * rank is cut: its peer goes DOWN. So done() of every operation runs, at the latest a
 * quarter of the group's limit (at most one second) after its deadline. (A process that was
 * stopped for a while itself first listens for half of the limit, at most four seconds, so
 * that it blames no other rank for its own pause.)
 *
 * Threads: every function must be called on the context's thread. The calls may be made
 * inside callbacks, except that of a peer of the group that goes DOWN.
 */
#ifndef TERN_GROUP_H
#define TERN_GROUP_H

#include <tern/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_group;

#define TERN_GROUP_SIZE_MAX     4096u
#define TERN_GROUP_SMALL_BYTES  (16u << 10)
#define TERN_GROUP_MEDIUM_BYTES (512u << 10)

/* How two elements are combined. Sums and products of integers wrap around. */
enum tern_reduction {
	TERN_REDUCE_SUM = 0,
	/* The sum divided by the number of ranks, before it is rounded to the type. A
	 * quotient of integers is truncated towards 0. */
	TERN_REDUCE_AVG = 1,
	TERN_REDUCE_MIN = 2, /* NaN if any element is NaN */
	TERN_REDUCE_MAX = 3, /* NaN if any element is NaN */
	TERN_REDUCE_PRODUCT = 4,
	/* For truth values, which are TERN_U8: any value but 0 is true, the result is 0 or
	 * 1. The sum of truth values is OR, their product is AND. */
	TERN_REDUCE_OR = 5,
	TERN_REDUCE_AND = 6,
};

struct tern_group_opts {
	uint32_t rank, size;
	/*
	 * The peers to all ranks, by rank: `size` pointers; the entry of this rank is
	 * ignored. Each must be connected to that rank, or be connecting. The array is
	 * copied. A peer that has not gone DOWN must not be freed before the group.
	 */
	struct tern_peer *const *peers;
	/* Number of the channel of every peer that the group uses for itself. It is the
	 * same at all ranks, and no other group with one of these peers has or had it. */
	uint32_t number;
	/* For each rank the number of its host: equal numbers mean the same host. The same
	 * at all ranks. It is copied. NULL: all ranks are on one host. */
	const uint32_t *hosts;
	/* Time that an operation may take from its call on; 0: five minutes. The clocks of
	 * ranks are not compared: the first rank whose limit has passed ends the group. */
	uint64_t timeout_ns;
	/* Tensors are moved and reduced in pieces, so that sending, receiving and reducing
	 * overlap. Bytes of a piece, a multiple of 128, the same at all ranks; 0: 512 KiB. */
	uint32_t piece_bytes;
	uint32_t lanes; /* pieces under way at a time, 1 to 64; 0: 8 */
};

/*
 * Makes a group. The ranks need not do so at the same time: the first operation waits for
 * all.
 *
 * -EINVAL: `rank` is not below `size`, a peer is missing, a peer belongs to another
 * context, `number` is UINT32_MAX, piece_bytes is not a multiple of 128, or more than 64
 * lanes; -EEXIST: a peer has already opened the channel `number`; -E2BIG: as
 * tern_domain_new(), or more than TERN_GROUP_SIZE_MAX ranks; -ENOMEM.
 */
TERN_API int tern_group_new_sized(struct tern_context *ctx,
	const struct tern_group_opts *opts, size_t opts_bytes, struct tern_group **out);
static inline int tern_group_new(struct tern_context *ctx,
	const struct tern_group_opts *opts, struct tern_group **out)
{
	return tern_group_new_sized(ctx, opts, sizeof(*opts), out);
}

/*
 * Leaves the group. Operations under way end with -ECANCELED in a later tern_progress(),
 * and fail at the other ranks. If a rank does not let go of their memory, its connection is
 * cut, as after any failure. Other ranks that still have operations in which this rank has
 * done its part may end them. The group's memory is freed when all other ranks have left,
 * too, or their peers are gone. Call it before tern_context_free(). NULL is allowed.
 */
TERN_API void tern_group_free(struct tern_group *group);

TERN_API uint32_t tern_group_rank(const struct tern_group *group);
TERN_API uint32_t tern_group_size(const struct tern_group *group);
/* 0, or the status with which the group has failed. */
TERN_API int tern_group_status(const struct tern_group *group);
/* The line that says why the group has failed; "" if it has not. Valid until the group is
 * freed. */
TERN_API const char *tern_group_text(const struct tern_group *group);

/* An operation of one rank. The caller owns it, zeroes it before its first use, and keeps it
 * in place until done() has run or tern_group_test() returns another value than
 * -EINPROGRESS. */
struct tern_group_req {
	/* Set by the caller. done() runs once, in tern_progress(); it may be NULL. It may
	 * call operations of the group. */
	void (*done)(struct tern_group_req *req);
	void *arg;
	uint64_t timeout_ns; /* 0: the group's */
	/* Set by the library. */
	int status;      /* -EINPROGRESS until the end */
	uint32_t posted; /* private: TERN_REQ_POSTED */
	uint64_t number; /* the operation's number */
	uint64_t priv[32];
};

static inline int tern_group_test(const struct tern_group_req *req)
{
	return req->posted == TERN_REQ_POSTED ? req->status : -EINVAL;
}

/*
 * The operations. `in` and `out` are buffers in host memory that stay in place, `in`
 * unchanged, until the operation has ended; afterwards `out` has the result. Buffers may
 * be empty (0 bytes). `in` and `out` may be the same memory: the same range where both have
 * the same size, else the range of this rank's part in the larger one; otherwise they do
 * not overlap. After a failure the contents of `out` are undefined.
 *
 * They return 0 if the operation was taken; done() will then run. Otherwise done() does
 * not run:
 *
 * - the status with which the group has failed;
 * - -EBUSY: the request is under way;
 * - -EINVAL: a root or a type that does not exist, an operator that the type does not have
 *   (OR and AND are for TERN_U8), a size that is not a multiple of the element or does not
 *   fit the other buffer, or a buffer outside its memory;
 * - -EACCES: the memory of `out` was wrapped read-only, or that of a broadcast's `buf` at
 *   another rank than the root;
 * - -ENOTSUP: a buffer is in the memory of a GPU.
 */

/* out = the reduction of all ranks' `in`, at every rank. */
TERN_API int tern_allreduce(struct tern_group *group, struct tern_group_req *req,
	enum tern_dtype dtype, enum tern_reduction how, const struct tern_buf *in,
	const struct tern_buf *out);
/* out = the reduction of all ranks' `in`, at `root`; elsewhere `out` is not used and may be
 * NULL. */
TERN_API int tern_reduce(struct tern_group *group, struct tern_group_req *req,
	enum tern_dtype dtype, enum tern_reduction how, const struct tern_buf *in,
	const struct tern_buf *out, uint32_t root);
/* buf = the root's buf. */
TERN_API int tern_broadcast(struct tern_group *group, struct tern_group_req *req,
	const struct tern_buf *buf, uint32_t root);
/* Part r of the root's `out` = `in` of rank r; out has size x in.bytes. Elsewhere `out` may
 * be NULL. */
TERN_API int tern_gather(struct tern_group *group, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out, uint32_t root);
/* `out` of rank r = part r of the root's `in`; in has size x out.bytes. Elsewhere `in` may
 * be NULL. */
TERN_API int tern_scatter(struct tern_group *group, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out, uint32_t root);
/* Part r of `out` = `in` of rank r, at every rank. */
TERN_API int tern_all_gather(struct tern_group *group, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out);
/* `out` of rank r = the reduction of part r of all ranks' `in`; in has size x out.bytes. */
TERN_API int tern_reduce_scatter(struct tern_group *group, struct tern_group_req *req,
	enum tern_dtype dtype, enum tern_reduction how, const struct tern_buf *in,
	const struct tern_buf *out);
/* Part r of `out` = part `rank` of the `in` of rank r. Both have the same size, a multiple of
 * the group's. */
TERN_API int tern_all_to_all(struct tern_group *group, struct tern_group_req *req,
	const struct tern_buf *in, const struct tern_buf *out);
/*
 * As tern_all_to_all(), with parts of any sizes: part r of `in` has in_bytes[r] bytes, and
 * part r of `out` has out_bytes[r]. Parts lie one after another, without gaps. in_bytes[r]
 * of rank q is out_bytes[q] of rank r: where they differ, the group fails with -EBADMSG.
 * The two arrays have an entry for each rank, and stay in place until the operation has
 * ended. -EINVAL: the sum of an array is not the size of its buffer, the arrays differ
 * in this rank's own part, or the buffers overlap.
 */
TERN_API int tern_all_to_all_v(struct tern_group *group, struct tern_group_req *req,
	const struct tern_buf *in, const uint64_t *in_bytes, const struct tern_buf *out,
	const uint64_t *out_bytes);
/* Ends when every rank has called it. */
TERN_API int tern_barrier(struct tern_group *group, struct tern_group_req *req);

#ifdef __cplusplus
}
#endif
#endif
