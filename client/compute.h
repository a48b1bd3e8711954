/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between a slot (a share of each step's records) that is to be computed, and
 * the computer: the code that computes the slot's gradient. The worker (worker.h) knows
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
 * Before that, the worker may announce a work: it has computed its slots of a version, and
 * the next version is arriving. The computer may read what is here of it, and so begin the
 * computation; nothing can be sent yet, and the work has no gradient. The announcement
 * ends with the next begin(), or with announce(NULL). If that begin() is about another slot
 * or version, what was computed is of no use: after a loss, the worker may have to compute
 * a slot of the older version first.
 *
 * A computer cannot give back a single slot: a gradient that the servers were told to
 * expect is always sent. tern_work_fail() gives all slots of this worker to other
 * workers, and so does tern_worker_ask_to_leave().
 *
 * After the last step the computer of one worker may evaluate the final parameters before
 * they are saved:
 *
 *     evaluate() ------------------------> holds the evaluation
 *             <--------------------------- tern_evaluation_goes_on(), any number of times
 *             <--------------------------- tern_evaluation_end(), once
 *
 * If the worker ends meanwhile, these calls have no effect. The computer must have ended
 * the evaluation before tern_worker_free() is called.
 */
#ifndef TERN_CLIENT_COMPUTE_H
#define TERN_CLIENT_COMPUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tern_buf;
struct tern_mem;

/* A slot that a computer holds. The worker owns the structure; the fields do not change
 * while the computer holds it, except for `weight`. */
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
	/* Weight of the slot's loss in the mean over slots, 1 at the beginning. The computer
	 * may set another one, 0 or more, before it ends the work. */
	double weight;
};

/* An evaluation that a computer holds. The worker owns the structure. */
struct tern_evaluation {
	/* Number of steps that the parameters contain; in async mode one more than the
	 * number of this worker's steps. */
	uint64_t version;
	/* Flat vector of all parameters, as in struct tern_work. They are numbers: none is
	 * NaN or infinite. They do not change while the computer holds the evaluation. */
	const struct tern_buf *params;
};

struct tern_computer;

struct tern_computer_ops {
	/* Announces a work, which the computer does not hold; its `gradient` is NULL. With
	 * NULL: the work that was announced will not be begun. NULL: the computer does not
	 * want to know. */
	void (*announce)(struct tern_computer *computer, const struct tern_work *work);
	/* More parameters of the announced work are here. May be NULL. */
	void (*arrived)(struct tern_computer *computer);
	/* The computer holds the work from now on. It holds no other work then, except
	 * revoked work. */
	void (*begin)(struct tern_computer *computer, struct tern_work *work);
	/* The work was revoked. The computer must still end it, now or later. NULL: the
	 * computer does not want to know. */
	void (*revoke)(struct tern_computer *computer, struct tern_work *work);
	/* All steps of this worker are done, and `params` (as in struct tern_work) is the
	 * flat vector of the parameters after them, which does not change until the worker is
	 * freed. In async mode other workers may still make steps. NULL: the computer does
	 * not want to know. */
	void (*complete)(struct tern_computer *computer, const struct tern_buf *params);
	/* The computer holds the evaluation from now on. It may still hold a revoked work.
	 * NULL: there is nothing to evaluate. */
	void (*evaluate)(
		struct tern_computer *computer, struct tern_evaluation *evaluation);
	/* Parameters or gradients will be in this slab (a segment from which a pool takes
	 * buffers), so a device may page-lock it. Called while the worker is made, perhaps
	 * several times for the same slab. Returns 0, or a negative status with a line in
	 * `why`: the worker cannot be made. NULL: the computer does not want to know. */
	int (*pin)(struct tern_computer *computer, const struct tern_mem *mem, char *why,
		size_t why_bytes);
	/* All slabs will be released. Called when the worker is freed. May be NULL. */
	void (*unpin)(struct tern_computer *computer);
	/* Copies `count` elements of the parameters from memory of the worker's GPU to host
	 * memory, at any time. Returns 0, or a negative status with a line in `why`. NULL if
	 * the worker's parameters are in host memory. */
	int (*fetch)(struct tern_computer *computer, float *to, const float *from,
		uint64_t count, char *why, size_t why_bytes);
};

struct tern_computer {
	const struct tern_computer_ops *ops;
};

/* The number of the slot's j-th record, 0 <= j < batch. If the job names no number of
 * records, numbers grow without end, and each belongs to one slot of one step (async mode:
 * to one step of one worker). Any thread may call this while the computer holds the
 * work. */
uint64_t tern_work_record(const struct tern_work *work, uint32_t j);

/* True if elements first to first + count - 1 of the parameters of an announced work are
 * here. They then stay as they are, as those of a work that the computer holds. */
bool tern_work_is_here(const struct tern_work *work, uint64_t first, uint64_t count);

/* The announced work cannot be computed: as tern_work_fail(). */
void tern_work_refuse(const struct tern_work *work, int status, const char *text);

/* Takes elements first to first + count - 1 of the gradient from `from`, to where they are
 * sent from: copies them, or rounds them to bf16 if they are sent so. `from` NULL: they are in
 * the gradient's buffer. In a job with tensors that are pushed as bf16 a computer calls this
 * for all elements, once, before it says that they are final. Any threads may call it at the
 * same time, for different elements. */
void tern_work_put(
	struct tern_work *work, uint64_t first, uint64_t count, const float *from);

/* Elements first to first + count - 1 of the gradient are final: the worker may send them.
 * The calls for one slot must cover each element exactly once. */
void tern_work_final(struct tern_work *work, uint64_t first, uint64_t count);

/* Tensor number `param` of the job has no gradient in this slot: takes the place of
 * tern_work_final() for its elements, which the computer has set to 0. If no slot of a step
 * has a gradient of a tensor, the tensor is not updated. */
void tern_work_unpushed(struct tern_work *work, uint32_t param);

/* Gives the job a blob (ps/blob.h) with a work of slot 0 in sync mode; the last one counts. -ENOMEM. */
int tern_work_keep(struct tern_work *work, const void *bytes, size_t size);

/* The computer is alive, so this worker is not taken for one that hangs. For what takes long
 * besides the gradient, such as an evaluation of the slot's parameters. */
void tern_work_goes_on(struct tern_work *work);

/* The slot is computed: all elements are final. `loss` is the mean over its records. The
 * computer no longer holds the work. */
void tern_work_end(struct tern_work *work, double loss);

/* The slot cannot be computed; `text` says why in one line, `status` is negative. This
 * worker gives up, and other workers, if there are any, compute its slots. The computer
 * no longer holds the work. */
void tern_work_fail(struct tern_work *work, int status, const char *text);

/* The computer has got further with the evaluation, so this worker is not taken for one
 * that hangs. */
void tern_evaluation_goes_on(struct tern_evaluation *evaluation);

/* The evaluation has ended, and the computer no longer holds it. `status` 0: the parameters
 * are saved now. -EDOM: what was computed is no number, so the job fails and nothing is
 * saved. Any other negative status: `text` says why in one line; this worker gives up, and
 * another one evaluates and saves. */
void tern_evaluation_end(
	struct tern_evaluation *evaluation, int status, const char *text);

#endif
