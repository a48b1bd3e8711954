/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training: a session is one worker of a job whose parameters are kept and updated by
 * parameter servers (`tern server`). The caller has the model: it says which tensors the
 * model has, computes gradients, and hands them over.
 *
 *     tern_session_new, tern_session_tensor (for each tensor), tern_session_start
 *     tern_session_next      a slot (a share of a step's work) to compute, or the end
 *       tern_slot_param      values of a tensor
 *       tern_slot_push       gradient of a tensor, in any order
 *       tern_slot_keep       what the program needs to go on (tern_session_kept)
 *       tern_slot_end
 *     tern_session_finisher  one worker saves the results
 *     tern_context_free, tern_session_free
 *
 * All functions of this header are called on the thread of the session's context, and
 * none blocks. tern_session_next() and tern_session_finisher() return -EAGAIN while there
 * is nothing to do. The callback event() says when to call them again. <tern/shared.h>
 * has the same functions for any thread, with a timeout.
 *
 * In sync mode the parameters of every step have the same bytes for any number of workers
 * and servers, whichever workers are lost, if a slot's gradient is a pure function of the
 * parameters, the slot's records and its seed. See docs/training.md. To find programs for
 * which that is not so, each worker computes its first slot twice (verify_first).
 *
 * Only libraries that are built with training (build option "train") have these
 * functions.
 */
#ifndef TERN_TRAIN_H
#define TERN_TRAIN_H

#include <tern/context.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_session;
struct tern_slot;

enum tern_train_mode {
	/* Each step adds up the gradients of all slots, always in the same order. */
	TERN_TRAIN_SYNC = 0,
	/* Each gradient is applied when it arrives. */
	TERN_TRAIN_ASYNC = 1,
	/* Stale synchronous parallel: as async, but a worker that has taken c steps gets
	 * parameters with at least the first c - `staleness` steps of every live worker,
	 * or of its last one, so it waits for those that are further behind. */
	TERN_TRAIN_SSP = 2,
};

/* Initial values of a tensor. Unless they are given, the servers compute them: value number
 * i is a function of the job's seed, the tensor's name and i. */
enum tern_init {
	TERN_INIT_ZEROS = 0,
	TERN_INIT_CONSTANT = 1, /* a */
	TERN_INIT_UNIFORM = 2,  /* in [a, b), a < b */
	TERN_INIT_NORMAL = 3,   /* with mean a and standard deviation b >= 0 */
	TERN_INIT_GIVEN = 4,    /* `values` of struct tern_tensor_opts */
};

/* The most seconds of `server_wait_s`. */
#define TERN_SERVER_WAIT_MAX 86400u

/* Bytes of the longest name of a tensor, without the NUL. */
#define TERN_TENSOR_NAME_MAX 255u

/* Bytes of the longest name of a metric, without the NUL, and the number of different names
 * in a session and in a job: tern_session_metric(). */
#define TERN_METRIC_NAME_MAX 63u
#define TERN_METRICS_MAX     32u

/* The most bytes of a blob: tern_slot_keep(). */
#define TERN_KEEP_MAX 65536u

/* How the servers update parameters. A number of 0 means the rule's default, and a
 * negative number means 0 (but lr cannot be 0). A number that the rule does not have must
 * be 0. */
struct tern_rule_opts {
	/* "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam" or "adamw"; NULL:
	 * "sgd". docs/training.md has the formulas and the defaults. For single tensors
	 * also "mean": the tensor becomes the mean of what was pushed, as statistics
	 * need; a slot that does not push it counts as 0, unless none does. */
	const char *name;
	double lr; /* learning rate */
	double momentum, beta1, beta2, epsilon, weight_decay, initial_accumulator;
};

struct tern_tensor_opts {
	const char *name;        /* copied */
	struct tern_shape shape; /* dtype TERN_F32; no dimension of 0 */
	enum tern_init init;
	double a, b;
	/* How the servers update this tensor; copied. NULL: as the job's rule says. A job
	 * may have 16 different rules of tensors. */
	const struct tern_rule_opts *rule;
	/* TERN_INIT_GIVEN: the initial values, finite numbers in row-major order; else NULL.
	 * The memory is the caller's. It is read until tern_session_start() has returned, and
	 * must not change until then. Every worker brings the values; those of the lowest
	 * live worker become the initial ones. */
	const float *values;
	/* Type of the gradients, and of the values, on the wire: TERN_F32 (or
	 * TERN_DTYPE_NONE) or TERN_BF16, with half the bytes. The program and the servers
	 * have float32 in any case. A gradient is rounded when it is pushed, to the nearest
	 * value, ties to even, NaN to NaN. The values that a slot sees are rounded, but for
	 * the last ones (tern_session_param()). */
	enum tern_dtype push, pull;
};

/* How the learning rate changes from step to step. docs/training.md has the formulas. */
struct tern_schedule_opts {
	const char *name; /* "constant", "step", "linear" or "cosine"; NULL: "constant" */
	uint64_t warmup;  /* steps in which the rate rises to lr */
	/* step: steps between two changes; linear, cosine: number of steps after which
	 * the rate stays at `factor` times lr, 0: those of the job */
	uint64_t steps;
	double factor; /* step: of each change; linear, cosine: of the end */
};

/* A job. All its workers must describe the same job: the servers refuse a worker that
 * does not, and say what differs. */
struct tern_job_opts {
	/*
	 * workers: number of workers with which the job begins, at least 1. index: which of them
	 * this one is, from 0; may differ.
	 *
	 * A session with server_wait_s, in sync mode, may have the next index that the job does not
	 * have, at most 4095, and `workers` and `slots` as the others have them: this worker is then
	 * added to the job between two steps, if the servers take snapshots and all workers wait. So
	 * the job may have more than `workers`. Nothing of a slot depends on their number.
	 */
	uint32_t workers, index;
	enum tern_train_mode mode;
	uint32_t slots; /* sync: gradients of each step; 0: as many as `workers` */
	uint64_t steps; /* sync: of the job; async, ssp: of all workers together */
	uint64_t seed;
	struct tern_rule_opts rule;
	double clip_norm; /* sync: limit of a gradient's global norm; 0: none */
	struct tern_schedule_opts schedule; /* of all rules */
	/* Names all that the bits of a gradient depend on, besides the parameters and the
	 * records. In sync mode the servers refuse workers with different names; at most
	 * 127 bytes. NULL: "". Then equal bytes are not promised. */
	const char *arithmetic;
	/* Records (such as images) of the training data, which are dealt out to slots in
	 * a random order, each once in an epoch. 0: slots have no records, and the caller
	 * chooses its data by slot and step. */
	uint64_t records;
	uint32_t batch; /* records of a slot; ignored if records is 0 */
	/* A digest of the data, so that workers with different data are refused; 0: the
	 * data is not compared. */
	uint64_t data;
	uint64_t staleness; /* ssp: see above, at most 2^40; else 0 */
	/* sync: number of this worker's first slots that it computes twice, to compare the
	 * gradients bit by bit, before anything of them is sent. If they differ, this
	 * worker leaves the job with -EBADMSG and a sentence that names the tensor, and
	 * others compute its slots. 0: 1; negative: none. Workers may have different
	 * numbers. */
	int64_t verify_first;
	/* The workers' values of given tensors may differ, and those of the lowest live worker
	 * count. If false, the servers refuse a worker whose values are not those of the
	 * others, so the result does not depend on which workers live. */
	bool init_from_first;
	/* A slot of every step that T = eval_every divides is marked (`evaluate` in struct
	 * tern_slot_info): whoever computes it also evaluates the parameters. 0 or negative:
	 * none. All workers should have the same T. */
	int64_t eval_every;
	/* sync: tern_session_next() gives out the first slot of a step as soon as this worker
	 * has computed its slots of the step before, while the parameters still arrive: an
	 * early slot. tern_slot_is_here() says which are here. So a program can load its
	 * records, and compute the first layers, meanwhile. Workers may differ in this. */
	bool early;
};

struct tern_session_opts {
	/* Addresses of all servers, "HOST:PORT,HOST:PORT", in the same order for all
	 * workers. An address may begin with a fabric, such as "tcp://". */
	const char *join;
	/* Something has changed: tern_session_next() or tern_session_finisher() may have
	 * an answer, a slot may have been revoked, or the session has ended. It must not
	 * call functions of this library. May be NULL. */
	void (*event)(void *arg);
	/* A line that the user may want to read: another worker was lost, or this one
	 * waits for others. `text` is valid during the call only. May be NULL. */
	void (*note)(void *arg, const char *text);
	void *arg;
	/*
	 * sync: seconds, at most TERN_SERVER_WAIT_MAX, that the session waits for a server that
	 * is lost during the steps, if the servers take snapshots and all workers wait. 0 or
	 * negative: the session ends then.
	 *
	 * When the server is here again, the job goes on from its newest snapshot, or, if no
	 * server was lost, or a follower has taken the place of the lost one (tern server
	 * --follow), from what the servers have in memory. A session without which the job
	 * has gone on, since its connections were cut, comes again by itself, at most three times
	 * in 10 minutes.
	 *
	 * The slot that the caller holds is revoked, and after its end tern_session_next() gives
	 * slots of an earlier step, if the job has gone back, with rolled_back_from in struct
	 * tern_slot_info. What the caller keeps from step to step must follow it back; the parameters do. tern_session_next() returns
	 * -ENODATA to a worker that is not the finisher only when the finisher has finished,
	 * since the job may go back until then. A copy of the given initial values is kept.
	 */
	int64_t server_wait_s;
	/* The job has gone back: steps `to` to `from` - 1, counted from 0, are made again.
	 * Called when the first slot of step `to` or a later one is about to come. It must not
	 * call functions of this library. May be NULL. */
	void (*rolled_back)(void *arg, uint64_t from, uint64_t to);
};

/* Makes a session. It uses `ctx` until it is freed. Errors: -EINVAL: `join` is missing or
 * malformed, or server_wait_s is too large; -E2BIG; -ENOMEM. */
TERN_API int tern_session_new_sized(struct tern_context *ctx,
	const struct tern_session_opts *opts, size_t opts_bytes,
	struct tern_session **out);
static inline int tern_session_new(struct tern_context *ctx,
	const struct tern_session_opts *opts, struct tern_session **out)
{
	return tern_session_new_sized(ctx, opts, sizeof(*opts), out);
}

/* Frees the session and the gradients and parameters in it. The context must have been
 * freed before. NULL is allowed. */
TERN_API void tern_session_free(struct tern_session *s);

/*
 * Declares a tensor of the model, before the start, and sets *id to its number, counted
 * from 0. Workers may declare the tensors in different orders. Errors, all of them with
 * tern_session_text(): -EINVAL: the name is missing or too long, or the dtype is not
 * TERN_F32; -EALREADY: the session has started; -E2BIG; -ENOMEM.
 */
TERN_API int tern_session_tensor_sized(struct tern_session *s,
	const struct tern_tensor_opts *opts, size_t opts_bytes, uint32_t *id);
static inline int tern_session_tensor(
	struct tern_session *s, const struct tern_tensor_opts *opts, uint32_t *id)
{
	return tern_session_tensor_sized(s, opts, sizeof(*opts), id);
}

/*
 * Starts to join the job. If a server refuses the worker, the session ends with -EINVAL.
 * Errors, all of them with tern_session_text(): -EINVAL: something in `job` or in a
 * tensor is impossible, two tensors have the same name, or a given value is not a finite
 * number; -EALREADY: the session has started; -E2BIG; -ENOMEM. A session that could not
 * start can only be freed.
 */
TERN_API int tern_session_start_sized(
	struct tern_session *s, const struct tern_job_opts *job, size_t job_bytes);
static inline int tern_session_start(
	struct tern_session *s, const struct tern_job_opts *job)
{
	return tern_session_start_sized(s, job, sizeof(*job));
}

/* ---- slots ---- */

struct tern_slot_info {
	uint64_t step;  /* sync: of the job; async: of this worker. Counted from 0 */
	uint32_t slot;  /* sync: which one of the step, from 0; async: 0 */
	uint32_t batch; /* number of its records; 0 if the job has none */
	/* For the random numbers that the gradient depends on; in sync mode a function of
	 * the job's seed, step and slot. */
	uint64_t seed;
	/* The caller has computed this slot once before: all else is as it was then
	 * (verify_first in struct tern_job_opts). */
	bool repeated;
	/* The caller is to evaluate the slot's parameters (eval_every in struct
	 * tern_job_opts), for example on a test set, and to name the result with
	 * tern_session_metric(). In sync mode that is slot 0 of the step, whichever worker
	 * has it; in async mode a step of the lowest live worker. The slot's gradient must
	 * not depend on it. */
	bool evaluate;
	bool early; /* its parameters are not all here yet: see tern_slot_is_here() */
	/* Only in the first slot after the job has gone back (server_wait_s in struct
	 * tern_session_opts): the caller was given slots of all steps below this one, and those
	 * from `step` on are made again. 0: the job did not go back. An early slot that is revoked
	 * spends it: rolled_back() is called in any case. */
	uint64_t rolled_back_from;
};

/*
 * Gives the caller a slot to compute. The caller holds it until tern_slot_end() or
 * tern_slot_fail(), and holds one slot at a time. `info` may be NULL. Returns 0, or
 *
 * - -EAGAIN: none is due now: event() says when to call again;
 * - -EBUSY: the caller still holds a slot;
 * - -ENODATA: all steps are done, and tern_session_param() has the final parameters. With
 *   server_wait_s also: this worker is the finisher, or the job is over;
 * - the status with which the session has ended: tern_session_text() says why;
 * - -EINVAL: the session has not started.
 */
TERN_API int tern_session_next_sized(struct tern_session *s, struct tern_slot **slot,
	struct tern_slot_info *info, size_t info_bytes);
static inline int tern_session_next(
	struct tern_session *s, struct tern_slot **slot, struct tern_slot_info *info)
{
	return tern_session_next_sized(s, slot, info, sizeof(*info));
}

/*
 * Writes to `infos` which slots, at most `count`, the caller will most likely be given next
 * by tern_session_next(), and returns their number. The first of them follows the slot that
 * the caller holds, if it holds one. A program that takes long to read records reads those
 * of these slots early, with tern_session_record().
 *
 * As long as no worker is lost or comes, these slots come, in this order, and a slot that
 * comes twice (`repeated`) is listed once. When a worker is lost, some of its slots may come
 * between them; when one comes in the place of a lost one, listed slots may become its. The
 * number is 0 until a server has answered, which says with which step the job begins, or
 * until a worker that joins during the steps was given slots; after the last slot; and
 * after the end of the session. So it is for a worker that has no slot of
 * its own, since there are more workers than slots.
 */
TERN_API int tern_session_ahead_sized(struct tern_session *s,
	struct tern_slot_info *infos, size_t info_bytes, uint32_t count);
static inline int tern_session_ahead(
	struct tern_session *s, struct tern_slot_info *infos, uint32_t count)
{
	return tern_session_ahead_sized(s, infos, sizeof(*infos), count);
}

/* Returns the number of the j-th record of any slot, 0 <= j < info->batch: it depends on the
 * job, the step and the slot alone, in async mode also on the worker. UINT64_MAX: the slot
 * has no such record, or the session has not started. Any thread may call this. */
TERN_API uint64_t tern_session_record(
	const struct tern_session *s, uint64_t step, uint32_t slot, uint32_t j);

/* A slot that has ended must not be used: its memory may serve the next slot. As long as
 * it does not, the functions below return -EINVAL, NULL or UINT64_MAX. */

/* Returns the number of the slot's j-th record, 0 <= j < info->batch; UINT64_MAX: the
 * slot has no such record. Any thread may call this while the caller holds the slot. */
TERN_API uint64_t tern_slot_record(const struct tern_slot *slot, uint32_t j);

/* For tern_slot_is_here(). */
#define TERN_ALL_TENSORS UINT32_MAX

/*
 * For slots that may be early (`early` in struct tern_job_opts): whether the values of
 * tensor `id` are here; with TERN_ALL_TENSORS: whether the slot is no longer early. Returns
 * 0, or
 *
 * - -EAGAIN: not yet: event() says when to ask again;
 * - -ECANCELED: they will not come, since the slot was revoked: the caller must end it, and
 *   its result is not needed. Perhaps another slot comes first, since a worker was lost or
 *   is slow. Values that were here are not any more;
 * - -EINVAL: there is no such tensor, or the caller does not hold the slot.
 */
TERN_API int tern_slot_is_here(const struct tern_slot *slot, uint32_t id);

/* Returns the values of tensor `id`, in row-major order, aligned to 4 bytes; NULL: there
 * is no such tensor, or it is not here yet. They do not change while the caller holds the
 * slot, unless it is an early slot that was revoked. */
TERN_API const float *tern_slot_param(const struct tern_slot *slot, uint32_t id);

/* A second mapping of the memory that the parameters of a slot are in. */
struct tern_slot_map {
	char *base; /* for munmap(2) */
	uint64_t bytes;
	/* Distance in bytes from what tern_slot_param() returns to the same tensor in this
	 * mapping. */
	int64_t shift;
};

/*
 * Maps the memory of the slot's parameters once more, for a program that computes with
 * them in place and cannot keep others from writing to them. The library receives a later
 * version in the same memory, and the mapping shows it, except in pages to which somebody
 * has written in the mapping: they keep what they have, and nobody else sees that. After
 * madvise(MADV_DONTNEED) they show the library's memory again. So to write to a page, even
 * the byte that it has, keeps its contents for good. The caller unmaps the mapping, which
 * may outlive the session. Any thread may call this while the caller holds the slot.
 *
 * -EINVAL: the caller does not hold the slot; -ENOTSUP: the memory cannot be mapped so:
 * it is on reserved huge pages; -errno of mmap(2).
 */
TERN_API int tern_slot_map_sized(
	const struct tern_slot *slot, struct tern_slot_map *map, size_t map_bytes);
static inline int tern_slot_map(const struct tern_slot *slot, struct tern_slot_map *map)
{
	return tern_slot_map_sized(slot, map, sizeof(*map));
}

/* Returns room for the gradient of tensor `id`, which the caller may fill until it pushes
 * the tensor; NULL: there is no such tensor, or the slot is early. Its first contents are
 * undefined. */
TERN_API float *tern_slot_gradient(const struct tern_slot *slot, uint32_t id);

/*
 * Hands over the gradient of tensor `id`: the mean over the slot's records. `from` is
 * copied; NULL: the gradient is in tern_slot_gradient(). It can be sent now, and cannot
 * be changed any more. (A slot that is computed twice is sent at its second end.)
 * -EINVAL: there is no such tensor; -EALREADY: it was pushed before; -EAGAIN: the slot is
 * early.
 */
TERN_API int tern_slot_push(struct tern_slot *slot, uint32_t id, const float *from);

/* Ends the slot: it is computed. A tensor that was not pushed counts as 0. If no slot of
 * the step pushes it (async, ssp: if this slot does not), it is skipped: it keeps its
 * values, also with weight decay, and its rule's state and number of updates stand still.
 * `loss` is the mean over the slot's records, for progress lines; a loss that is no number
 * ends the job, or if its servers have --on-nan skip, leaves the slot out of the step. The
 * caller no longer holds the slot. If the slot is to be computed twice,
 * tern_session_next() gives it out again now, and the loss of the second time counts; if
 * the gradients differ then, or another tensor is not pushed, the session ends. -EINVAL:
 * the caller did not hold the slot; -EAGAIN: the slot is early. */
TERN_API int tern_slot_end(struct tern_slot *slot, double loss);

/* Sets the weight of the slot's loss in means over slots, which are what progress lines
 * show: a finite number of 0 or more, such as the number of words in its records. Without
 * this call it is 1. It has no effect on gradients. -EINVAL: another weight, or the caller
 * does not hold the slot. */
TERN_API int tern_slot_weigh(struct tern_slot *slot, double weight);

/* Ends the slot without a result. `text` says why in one line. This worker leaves the
 * job, and other workers, if there are any, compute its slots from now on. The caller no
 * longer holds the slot. A slot that was revoked is only ended. -EINVAL: it did not hold
 * it. */
TERN_API int tern_slot_fail(struct tern_slot *slot, const char *text);

/* True if the result of this slot is not needed any more: the job has ended, goes back, or goes
 * on without this worker; or the slot was early, and another one must be computed before it.
 * The functions above still work and have no effect; the caller must
 * still end the slot. */
TERN_API bool tern_slot_is_revoked(const struct tern_slot *slot);

/* ---- the job's blob ---- */

/*
 * Gives the job a blob: at most TERN_KEEP_MAX bytes that the program needs to go on after this step,
 * such as its position in a stream or its settings. They are copied, and never looked into. Snapshots
 * have the blob, and tern_session_kept() returns it when the job goes on from one.
 *
 * sync: the blob counts if the caller holds slot 0 of its step, which exactly one worker does, and
 * otherwise the call has no effect. So a program calls it in every slot, or where it likes, as long as
 * it depends on the step alone in which steps it does so. The last call in a slot counts. The blob of
 * step s (counted from 0) belongs to version s + 1 of the parameters: those after the step. A snapshot
 * of version v has the newest blob of a version up to v. To have that of exactly v, give one in every
 * step, or in those before a snapshot. The last part of the slot's gradient is sent when server 0 has
 * the blob, so there is never a version without its blob, whichever process is lost: the slot ends one
 * round trip later.
 *
 * If the bytes are a function of (seed, step), or of the blob of an earlier step and the step, a job
 * that goes back, or in which another worker gets slot 0, has the same blobs as one without a break.
 *
 * `bytes` may be NULL if `size` is 0. Returns 1: the blob counts, as far as this slot does; 0: it does
 * not, since the slot is not slot 0 or was revoked; -EINVAL: the caller does not hold the slot, or the
 * job is not in sync mode; -E2BIG: the blob is larger: declare a tensor; -EAGAIN: the slot is early;
 * -ENOMEM.
 */
TERN_API int tern_slot_keep(struct tern_slot *slot, const void *bytes, size_t size);

/*
 * Copies to `bytes` the blob with which this worker has begun: of the snapshot, or of what the servers
 * have in memory, that the job goes on from, or, in a job whose steps had begun when this worker came,
 * the newest of a version up to its first one. After the job has gone back, it is the one for that
 * version from the first slot on. Blobs that are given meanwhile do not change it.
 *
 * *size: the room at `bytes`, and then the size of the blob. *step: the version that it belongs to, so
 * 1 more than the step in which it was given; 0, with *size 0: there is none. Returns 0, or -EAGAIN:
 * it is not known yet with which version this worker begins: event() says when to call again; -E2BIG:
 * there is less room than *size, which is set; -EINVAL: the session has not started; or the status
 * with which the session has ended before.
 */
TERN_API int tern_session_kept(
	struct tern_session *s, void *bytes, size_t *size, uint64_t *step);

/* ---- what is shown ---- */

/*
 * Names a number that those who watch the job see beside its loss, such as an accuracy:
 * `tern run` shows it, and so does server 0. The last value of a name counts, whichever
 * worker has set it; NaN and infinite values are told as such. It can be called at any time
 * from the start to the end of the job, also by the finisher before
 * tern_session_finished(). In a slot that is computed for the second time (verify_first) it
 * has no effect, since the first time counts; nor while the job goes back, since its steps are
 * made again.
 *
 * `name` has 1 to TERN_METRIC_NAME_MAX printable ASCII characters without blanks; it is
 * copied. A job shows at most TERN_METRICS_MAX different names. -EINVAL: another name, or
 * the session has not started; -E2BIG: this session has named as many others.
 */
TERN_API int tern_session_metric(struct tern_session *s, const char *name, double value);

/* ---- the end ---- */

/* Returns the final values of tensor `id` after tern_session_next() has returned
 * -ENODATA, until the session is freed; NULL before that, or if there is no such tensor.
 * In async mode workers that are not the finisher have the values after their own last
 * step. With a shared context, a thread without the lock may call it after
 * tern_shared_finisher() or tern_shared_ended() has returned. */
TERN_API const float *tern_session_param(const struct tern_session *s, uint32_t id);

/*
 * Whether this worker is the finisher: the one that uses the results, for example saves
 * them. Exactly one live worker is. Another one takes its place if it is lost before
 * tern_session_finished(). Returns 1, or
 *
 * - 0: the job is over, and another worker has finished it, or this one has;
 * - -EAGAIN: not known yet: event() says when to call again;
 * - -EINVAL: the session has not started; -EBUSY: tern_session_next() would not return
 *   -ENODATA yet;
 * - the status with which the session has ended before the end of the job.
 */
TERN_API int tern_session_finisher(struct tern_session *s);

/* This worker is alive. To be called every few seconds by a finisher that takes long, and
 * by a caller that evaluates for long in a slot with `evaluate`, since the servers take a
 * silent worker for one that hangs. In other slots it has no effect. */
TERN_API void tern_session_goes_on(struct tern_session *s);

/* The finisher has used the results. The session ends with 0, also if a server is lost before the
 * other processes know of that. If `text` is not NULL the finisher could not use them, for the
 * reason in `text` (one line), and another worker becomes the finisher. */
TERN_API void tern_session_finished(struct tern_session *s, const char *text);

/* Leaves the job; `why` gives the reason in a few words. Other workers, if there are any, compute
 * the slots of this one, otherwise the job ends. The session then ends with -ECANCELED,
 * within some seconds. */
TERN_API void tern_session_leave(struct tern_session *s, const char *why);

/* Returns -EAGAIN while the session has not ended; 0: the job is complete; -EINVAL: the
 * session has not started; or the status with which the session has ended:
 * tern_session_text() says why. */
TERN_API int tern_session_status(struct tern_session *s);

/* Says what went wrong, in one line; "": nothing. Valid until the next call. */
TERN_API const char *tern_session_text(const struct tern_session *s);

/* Writes one line that says which step the session is at and what it waits for. */
TERN_API void tern_session_describe(
	const struct tern_session *s, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
