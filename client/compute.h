/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between a slot (a share of each step's records) that is to be computed, and
 * the computer: the code that computes the slot's gradient. The worker (slots.c) knows
 * nothing of models and data. A computer knows nothing of servers and chunks.
 *
 * The worker begins one slot at a time. The slot's `struct tern_work` (the work) says what
 * is to be computed and where the gradient goes. The computer holds the work until it
 * ends it:
 *
 *     worker                               computer
 *     begin() ---------------------------> holds the work
 *             <--------------------------- tern_work_final(), any number of times
 *             <--------------------------- tern_work_end() or tern_work_fail(), once
 *
 * The computer may make these calls from within begin() or at any later time, on the
 * thread of the worker's context. While it holds the work, the parameters do not change,
 * and nobody else writes to the gradient; elements that are final are sent.
 *
 * If the job ends, or if it goes on without this worker, the worker revokes the work. The
 * computer then still holds the work until it ends it, and may go on computing. Its calls
 * have no effect meanwhile, so it need not know that the work was revoked. It must have
 * ended the work before tern_worker_free() is called.
 *
 * A computer cannot give back a single slot: a gradient that the servers were told to
 * expect is always sent. tern_work_fail() gives all slots of this worker to other
 * workers, and so does tern_worker_ask_to_leave().
 */
#ifndef TERN_CLIENT_COMPUTE_H
#define TERN_CLIENT_COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

struct tern_buf;

/* A slot that a computer holds. The worker owns the structure; the fields do not change
 * while the computer holds it. */
struct tern_work {
	/* Number of steps that the parameters contain; in async mode the number of this
	 * worker's steps. */
	uint64_t version;
	uint32_t slot;  /* async mode: 0 */
	uint32_t batch; /* number of records of the slot */
	/* Flat vectors of all parameters, in host memory or in memory of the worker's
	 * GPU. The gradient is the mean over the slot's records. The computer may write
	 * an element until it says that the element is final. */
	const struct tern_buf *params, *gradient;
	/* No gradient was computed in this buffer before. A computer whose device copies
	 * from it may page-lock it now. */
	bool is_new_memory;
	/* For tern_work_record(). */
	uint64_t seed, record_count, first;
};

struct tern_computer;

struct tern_computer_ops {
	/* The computer holds the work from now on. It holds no other work then, except
	 * revoked work. */
	void (*begin)(struct tern_computer *computer, struct tern_work *work);
	/* The work was revoked. The computer must still end it, now or later. NULL: the
	 * computer does not want to know. */
	void (*revoke)(struct tern_computer *computer, struct tern_work *work);
};

struct tern_computer {
	const struct tern_computer_ops *ops;
};

/* The number of the slot's j-th record, 0 <= j < batch. Any thread may call this while
 * the computer holds the work. */
uint64_t tern_work_record(const struct tern_work *work, uint32_t j);

/* Elements first to first + count - 1 of the gradient are final: the worker may send them.
 * The calls for one slot must cover each element exactly once. */
void tern_work_final(struct tern_work *work, uint64_t first, uint64_t count);

/* The slot is computed: all elements are final. `loss` is the mean over its records. The
 * computer no longer holds the work. */
void tern_work_end(struct tern_work *work, double loss);

/* The slot cannot be computed; `text` says why in one line, `status` is negative. This
 * worker gives up, and other workers, if there are any, compute its slots. The computer
 * no longer holds the work. */
void tern_work_fail(struct tern_work *work, int status, const char *text);

#endif
