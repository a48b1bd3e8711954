/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shared context: a context with a progress thread of its own, which any thread may
 * use. Threads take turns: between tern_shared_lock() and tern_shared_unlock() the
 * caller's thread is the context's thread, and it may call all functions of
 * <tern/channel.h>, <tern/window.h>, <tern/group.h> and <tern/train.h> that do not block.
 * Callbacks run with the lock held, on the progress thread or on a thread that is in a call
 * of this header. They must not lock, wait, or take a mutex that a caller may hold during a
 * call.
 *
 *     tern_shared_new
 *     tern_shared_lock, tern_send or others, tern_shared_unlock
 *     tern_shared_wait       until a request has ended
 *     tern_shared_free
 *
 * For training, the functions below have the form that a program with threads of its own
 * needs: any thread may call them, and they block until there is an answer:
 *
 *     tern_shared_session, tern_shared_tensor (for each tensor), tern_shared_start
 *     tern_shared_next
 *       tern_slot_param, tern_shared_push, tern_shared_end
 *     tern_shared_finisher, tern_shared_finished, tern_shared_ended
 *     tern_shared_free
 *
 * Every call that fails leaves a sentence for tern_shared_text(). A timeout is in
 * nanoseconds, and TERN_NEVER means without limit; when it has passed the call returns
 * -ETIMEDOUT and has changed nothing. After fork() the child may not use a shared
 * context: calls return -ECHILD, and tern_shared_unlock() and tern_shared_free() do
 * nothing.
 */
#ifndef TERN_SHARED_H
#define TERN_SHARED_H

#include <tern/group.h>
#include <tern/train.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_shared;

struct tern_shared_opts {
	/* Options of the domain and of the context; NULL: defaults. If the context has no
	 * secret, it is read from the file that the environment variable TERN_SECRET_FILE
	 * names, if that is set. */
	const struct tern_domain_opts *domain;
	const struct tern_context_opts *context;
	/* Path of the file with the secret; NULL: the environment variable has it.
	 * Ignored if the context's options have a secret. */
	const char *secret_file;
};

/* Makes a domain, a context and the thread. opts may be NULL. Errors: those of
 * tern_domain_new() and tern_context_new(); -EINVAL: the secret cannot be read; -EAGAIN:
 * the system has no thread left. */
TERN_API int tern_shared_new_sized(
	const struct tern_shared_opts *opts, size_t opts_bytes, struct tern_shared **out);
static inline int tern_shared_new(
	const struct tern_shared_opts *opts, struct tern_shared **out)
{
	return tern_shared_new_sized(opts, sizeof(*opts), out);
}

/* Ends the thread, and frees the sessions and the context as tern_context_free() does. No
 * other thread may use them any more. NULL is allowed. */
TERN_API void tern_shared_free(struct tern_shared *shared);

TERN_API struct tern_context *tern_shared_context(struct tern_shared *shared);

/* Makes the calling thread the context's thread until tern_shared_unlock(). Threads get
 * the lock in the order of their calls. Not recursive. Returns 0; or -ECHILD, only in a
 * forked child, and then the caller does not have the lock. */
TERN_API int tern_shared_lock(struct tern_shared *shared);
TERN_API void tern_shared_unlock(struct tern_shared *shared);

/* Waits until the request has ended, and returns its status; or -ETIMEDOUT, as
 * tern_wait(). The caller does not hold the lock. */
TERN_API int tern_shared_wait(
	struct tern_shared *shared, struct tern_req *req, uint64_t timeout_ns);
/* Waits until the operation of a group has ended, and returns its status; or -ETIMEDOUT, and
 * then the operation goes on. The caller does not hold the lock. */
TERN_API int tern_shared_wait_group(
	struct tern_shared *shared, struct tern_group_req *req, uint64_t timeout_ns);

/*
 * Makes one round of progress on the calling thread, as tern_progress() does, for programs that
 * ask again and again whether something has ended (plug-ins of frameworks). The progress
 * thread leaves the context alone for 10 ms after it, so it takes no processor time from a
 * program that polls, and connections live on when the program does not. The caller does not
 * hold the lock. Returns the number of events handled, or a negative status: -ECHILD, or the
 * context is broken.
 */
TERN_API int tern_shared_poll(struct tern_shared *shared);

/* Returns a line that says why the last failed call of this thread has failed. Valid until
 * the thread's next call. */
TERN_API const char *tern_shared_text(void);

/* ---- training ---- */

/* Makes a session, which tern_shared_free() frees. If opts->join is NULL, the environment
 * variable TERN_JOIN has the addresses; if opts->server_wait_s is 0, TERN_SERVER_WAIT has the
 * seconds, if it is set, and 0 there means none. Errors: those of tern_session_new(). */
TERN_API int tern_shared_session_sized(struct tern_shared *shared,
	const struct tern_session_opts *opts, size_t opts_bytes,
	struct tern_session **out);
static inline int tern_shared_session(struct tern_shared *shared,
	const struct tern_session_opts *opts, struct tern_session **out)
{
	return tern_shared_session_sized(shared, opts, sizeof(*opts), out);
}

TERN_API int tern_shared_tensor_sized(struct tern_shared *shared, struct tern_session *s,
	const struct tern_tensor_opts *opts, size_t opts_bytes, uint32_t *id);
static inline int tern_shared_tensor(struct tern_shared *shared, struct tern_session *s,
	const struct tern_tensor_opts *opts, uint32_t *id)
{
	return tern_shared_tensor_sized(shared, s, opts, sizeof(*opts), id);
}

/* Starts to join the job. If job->workers is 0, the environment variables TERN_WORKERS
 * and TERN_INDEX have the number of workers and the number of this one. If
 * job->verify_first is 0, TERN_VERIFY_FIRST has it, if it is set, and if job->eval_every
 * is 0, TERN_EVAL_EVERY; 0 there means none. Does not wait for other workers:
 * tern_shared_next() does. */
TERN_API int tern_shared_start_sized(struct tern_shared *shared, struct tern_session *s,
	const struct tern_job_opts *job, size_t job_bytes);
static inline int tern_shared_start(struct tern_shared *shared, struct tern_session *s,
	const struct tern_job_opts *job)
{
	return tern_shared_start_sized(shared, s, job, sizeof(*job));
}

/* As tern_session_next(), but waits for a slot. */
TERN_API int tern_shared_next_sized(struct tern_shared *shared, struct tern_session *s,
	struct tern_slot **slot, struct tern_slot_info *info, size_t info_bytes,
	uint64_t timeout_ns);
static inline int tern_shared_next(struct tern_shared *shared, struct tern_session *s,
	struct tern_slot **slot, struct tern_slot_info *info, uint64_t timeout_ns)
{
	return tern_shared_next_sized(shared, s, slot, info, sizeof(*info), timeout_ns);
}

/* As tern_session_ahead(). tern_session_record() needs no lock. */
TERN_API int tern_shared_ahead_sized(struct tern_shared *shared, struct tern_session *s,
	struct tern_slot_info *infos, size_t info_bytes, uint32_t count);
static inline int tern_shared_ahead(struct tern_shared *shared, struct tern_session *s,
	struct tern_slot_info *infos, uint32_t count)
{
	return tern_shared_ahead_sized(shared, s, infos, sizeof(*infos), count);
}

/* As tern_slot_is_here(), but waits until the tensor is here. While a slot is early, this
 * function must return 0 before tern_slot_param() is called for the tensor, and before
 * tern_slot_gradient() for all tensors. */
TERN_API int tern_shared_await(struct tern_shared *shared, const struct tern_slot *slot,
	uint32_t id, uint64_t timeout_ns);

/* As the functions of the same names in <tern/train.h>, but a push and the end wait until
 * the slot is no longer early. Several threads may push
 * different tensors of a slot at the same time; the end of the slot waits for these
 * calls, and what was not pushed by then is not pushed. tern_slot_param(),
 * tern_slot_map(), tern_slot_gradient() and tern_slot_record() need no lock while the
 * caller holds the slot. */
TERN_API int tern_shared_push(struct tern_shared *shared, struct tern_slot *slot,
	uint32_t id, const float *from);
TERN_API int tern_shared_end(
	struct tern_shared *shared, struct tern_slot *slot, double loss);
TERN_API int tern_shared_weigh(
	struct tern_shared *shared, struct tern_slot *slot, double weight);
TERN_API int tern_shared_fail(
	struct tern_shared *shared, struct tern_slot *slot, const char *text);

/* As tern_slot_keep(), but waits until the slot is no longer early. */
TERN_API int tern_shared_keep(struct tern_shared *shared, struct tern_slot *slot,
	const void *bytes, size_t size);

/* As tern_session_kept(), but waits for the answer. */
TERN_API int tern_shared_kept(struct tern_shared *shared, struct tern_session *s,
	void *bytes, size_t *size, uint64_t *step, uint64_t timeout_ns);

/* As tern_session_metric(). */
TERN_API int tern_shared_metric(struct tern_shared *shared, struct tern_session *s,
	const char *name, double value);

/* As tern_session_finisher(), but waits for the answer. */
TERN_API int tern_shared_finisher(
	struct tern_shared *shared, struct tern_session *s, uint64_t timeout_ns);
TERN_API int tern_shared_finished(
	struct tern_shared *shared, struct tern_session *s, const char *text);

/* Asks to leave, as tern_session_leave(). */
TERN_API int tern_shared_leave(
	struct tern_shared *shared, struct tern_session *s, const char *why);

/* Waits until the session has ended. Returns 0 if the job is complete, or the status with
 * which the session has ended. -EBUSY: this worker is the finisher and has not called
 * tern_shared_finished(). */
TERN_API int tern_shared_ended(
	struct tern_shared *shared, struct tern_session *s, uint64_t timeout_ns);

/* Writes in one line what the session does or waits for. */
TERN_API int tern_shared_describe(struct tern_shared *shared,
	const struct tern_session *s, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
