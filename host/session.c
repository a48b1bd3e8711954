/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of a shared context: calls of <tern/train.h> with the lock, from any
 * thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "client/session.h"
#include "host/shared.h"

struct shared_session {
	struct shared_tenant tenant;
	struct tern_session *session;
};

static void free_session(struct shared_tenant *tenant)
{
	struct shared_session *entry =
		tern_container_of(tenant, struct shared_session, tenant);

	tern_session_free(entry->session);
	free(entry);
}

/* Leaves, and takes the session's sentence if the call has failed. */
static int leave(struct tern_shared *shared, struct tern_session *s, int status)
{
	if (status < 0)
		shared_complain(status, "%s", tern_session_text(s));
	shared_leave(shared);
	return status;
}

/* Reads a number of at most `most` from the environment. */
static int read_number_to(const char *name, uint32_t most, uint32_t *out)
{
	const char *text = getenv(name);
	char *end;
	unsigned long value;

	if (!text)
		return -ENOENT;
	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || value > most || *text == '-')
		return shared_complain(-EINVAL,
			"%s=%.40s: expected a number from 0 to %u", name, text, most);
	*out = (uint32_t)value;
	return 0;
}

static int read_number(const char *name, uint32_t *out)
{
	return read_number_to(name, UINT32_MAX, out);
}

/* Reads an option from the environment, if the program has not given it. 0 there means
 * none, which is a negative number here. */
static int find_option(const char *name, uint32_t most, int64_t *option)
{
	uint32_t count;
	int r = *option == 0 ? read_number_to(name, most, &count) : -ENOENT;

	if (r == 0)
		*option = count > 0 ? (int64_t)count : -1;
	return r == -ENOENT ? 0 : r;
}

static void complain_of_join(int status, const char *join)
{
	if (!join)
		shared_complain(status,
			"no address of a server: give `join`, or set TERN_JOIN, or start "
			"the program with `tern run`");
	else if (!*join)
		shared_complain(status,
			"the address of a server is empty: set TERN_JOIN, or `join`, to "
			"HOST:PORT of each server, with commas between them");
	else
		shared_complain(status,
			"join %.300s: expected HOST:PORT of each server, with commas "
			"between them, and each server once",
			join);
}

static int find_server_wait(struct tern_session_opts *o)
{
	if (o->server_wait_s > (int64_t)TERN_SERVER_WAIT_MAX)
		return shared_complain(-EINVAL,
			"server_wait_s: expected at most %u, got %lld",
			TERN_SERVER_WAIT_MAX, (long long)o->server_wait_s);
	return find_option("TERN_SERVER_WAIT", TERN_SERVER_WAIT_MAX, &o->server_wait_s);
}

int tern_shared_session_sized(struct tern_shared *shared,
	const struct tern_session_opts *opts, size_t opts_bytes,
	struct tern_session **out)
{
	struct shared_session *entry = calloc(1, sizeof(*entry));
	struct tern_session_opts o;
	int r = tern_read_sized(&o, sizeof(o), opts, opts_bytes);

	if (!entry)
		return shared_complain(-ENOMEM, "no memory for a session");
	if (r < 0)
		shared_complain(r, "the session has an option that this library lacks");
	if (r == 0)
		r = find_server_wait(&o);
	if (r == 0)
		r = shared_enter(shared);
	if (r < 0) {
		free(entry);
		return r;
	}
	if (!o.join)
		o.join = getenv("TERN_JOIN");
	r = tern_session_new(shared->ctx, &o, &entry->session);
	if (r == 0) {
		entry->tenant.free = free_session;
		tern_list_push(&shared->tenants, &entry->tenant.node);
		*out = entry->session;
	} else {
		free(entry);
		complain_of_join(r, o.join);
	}
	shared_leave(shared);
	return r;
}

int tern_shared_tensor_sized(struct tern_shared *shared, struct tern_session *s,
	const struct tern_tensor_opts *opts, size_t opts_bytes, uint32_t *id)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	return leave(shared, s, tern_session_tensor_sized(s, opts, opts_bytes, id));
}

/* Finds out how many workers there are, and which one this is. */
static int find_place(struct tern_job_opts *job)
{
	int r = read_number("TERN_WORKERS", &job->workers);

	if (r == 0) {
		r = read_number("TERN_INDEX", &job->index);
		if (r == -ENOENT)
			return shared_complain(-EINVAL,
				"TERN_WORKERS is %u, and TERN_INDEX is not set: which of "
				"the workers is this one?",
				job->workers);
	}
	if (r == -ENOENT)
		shared_complain(-EINVAL,
			"the number of workers is not known: give `workers` and `index`, "
			"or set TERN_WORKERS and TERN_INDEX, or start the program with "
			"`tern run --workers N`");
	return r < 0 ? -EINVAL : 0;
}

int tern_shared_start_sized(struct tern_shared *shared, struct tern_session *s,
	const struct tern_job_opts *opts, size_t opts_bytes)
{
	struct tern_job_opts job;
	int r = tern_read_sized(&job, sizeof(job), opts, opts_bytes);

	if (r < 0)
		return shared_complain(
			r, "the job has an option that this library lacks");
	if (job.workers == 0)
		r = find_place(&job);
	if (r == 0)
		r = find_option("TERN_VERIFY_FIRST", UINT32_MAX, &job.verify_first);
	if (r == 0)
		r = find_option("TERN_EVAL_EVERY", UINT32_MAX, &job.eval_every);
	if (r == 0)
		r = shared_enter(shared);
	if (r < 0)
		return r;
	return leave(shared, s, tern_session_start(s, &job));
}

/* ---- slots ---- */

struct session_waiter {
	struct shared_waiter waiter;
	struct tern_session *session;
	/* The answer, and its sentence if it is negative. */
	int status;
	char text[600];
	/* The session does not end before this worker says that it has finished. */
	bool is_finisher;
	struct tern_slot *slot;
	struct tern_slot_info info;
};

/* Keeps the answer, if it is one. Its sentence must be copied now: the thread that waits
 * wakes up later, when another one may have set the session's sentence. */
static bool keep_answer(struct session_waiter *w, int status)
{
	w->status = status;
	if (status < 0 && status != -EAGAIN)
		snprintf(w->text, sizeof(w->text), "%s", tern_session_text(w->session));
	return status != -EAGAIN;
}

static bool has_slot(struct shared_waiter *waiter)
{
	struct session_waiter *w =
		tern_container_of(waiter, struct session_waiter, waiter);

	return keep_answer(w, tern_session_next(w->session, &w->slot, &w->info));
}

static bool knows_finisher(struct shared_waiter *waiter)
{
	struct session_waiter *w =
		tern_container_of(waiter, struct session_waiter, waiter);

	return keep_answer(w, tern_session_finisher(w->session));
}

struct kept_waiter {
	struct session_waiter wait;
	void *bytes;
	size_t size;
	uint64_t step;
};

static bool knows_kept(struct shared_waiter *waiter)
{
	struct session_waiter *wait =
		tern_container_of(waiter, struct session_waiter, waiter);
	struct kept_waiter *w = tern_container_of(wait, struct kept_waiter, wait);

	return keep_answer(
		wait, tern_session_kept(wait->session, w->bytes, &w->size, &w->step));
}

static bool has_ended(struct shared_waiter *waiter)
{
	struct session_waiter *w =
		tern_container_of(waiter, struct session_waiter, waiter);

	if (keep_answer(w, tern_session_status(w->session)))
		return true;
	w->is_finisher = tern_session_finisher(w->session) == 1;
	return w->is_finisher;
}

/* Waits until is_answered() is true, and returns the answer. */
static int wait_for(
	struct tern_shared *shared, struct session_waiter *w, uint64_t timeout_ns)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	r = shared_wait_for(shared, &w->waiter, timeout_ns);
	shared_leave(shared);
	if (r == 0 && !w->is_finisher)
		return w->status < 0 ? shared_complain(w->status, "%s", w->text)
				     : w->status;
	return w->is_finisher ? shared_complain(-EBUSY,
					"this worker is the finisher: the job ends after "
					"tern_shared_finished()")
			      : r;
}

int tern_shared_next_sized(struct tern_shared *shared, struct tern_session *s,
	struct tern_slot **slot, struct tern_slot_info *info, size_t info_bytes,
	uint64_t timeout_ns)
{
	struct session_waiter w = {.waiter.is_answered = has_slot, .session = s};
	int r = wait_for(shared, &w, timeout_ns);

	if (r < 0)
		return r;
	*slot = w.slot;
	if (info)
		tern_write_sized(info, info_bytes, &w.info, sizeof(w.info));
	return 0;
}

int tern_shared_ahead_sized(struct tern_shared *shared, struct tern_session *s,
	struct tern_slot_info *infos, size_t info_bytes, uint32_t count)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	r = tern_session_ahead_sized(s, infos, info_bytes, count);
	shared_leave(shared);
	return r;
}

struct slot_waiter {
	struct shared_waiter waiter;
	const struct tern_slot *slot;
	uint32_t id;
};

static bool is_here(struct shared_waiter *waiter)
{
	struct slot_waiter *w = tern_container_of(waiter, struct slot_waiter, waiter);

	return tern_slot_is_here(w->slot, w->id) != -EAGAIN;
}

/* Takes the lock, when the tensor is here or will not come. */
static int enter_here(struct tern_shared *shared, const struct tern_slot *slot,
	uint32_t id, uint64_t timeout_ns)
{
	struct slot_waiter w = {.waiter.is_answered = is_here, .slot = slot, .id = id};
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	r = shared_wait_for(shared, &w.waiter, timeout_ns);
	if (r < 0)
		shared_leave(shared);
	return r;
}

int tern_shared_await(struct tern_shared *shared, const struct tern_slot *slot,
	uint32_t id, uint64_t timeout_ns)
{
	int r = enter_here(shared, slot, id, timeout_ns);

	if (r < 0)
		return r;
	return leave(shared, session_of_slot(slot), tern_slot_is_here(slot, id));
}

int tern_shared_push(struct tern_shared *shared, struct tern_slot *slot, uint32_t id,
	const float *from)
{
	struct tern_session *s = session_of_slot(slot);
	int r = enter_here(shared, slot, TERN_ALL_TENSORS, TERN_NEVER);

	if (r < 0)
		return r;
	r = session_reserve(slot, id);
	if (r == 0 && session_goes_through(slot, id, from)) {
		/* The gradient is gone through without the lock, so that other threads
		 * need not wait for it. */
		shared_leave(shared);
		session_take(slot, id, from);
		r = shared_enter(shared);
		if (r < 0)
			return r;
	}
	if (r == 0)
		session_pushed(slot, id);
	return leave(shared, s, r);
}

static bool is_quiet(struct shared_waiter *waiter)
{
	return !session_is_pushing(
		tern_container_of(waiter, struct slot_waiter, waiter)->slot);
}

/* Waits with the lock until no other thread copies a gradient of the slot any more. On an
 * error it leaves. */
static int wait_quiet(struct tern_shared *shared, const struct tern_slot *slot)
{
	struct slot_waiter w = {.waiter.is_answered = is_quiet, .slot = slot};
	int r = 0;

	/* A wait ends before this thread has the lock again, so another push may have
	 * begun. */
	while (r == 0 && session_is_pushing(slot))
		r = shared_wait_for(shared, &w.waiter, TERN_NEVER);
	if (r < 0)
		shared_leave(shared);
	return r;
}

int tern_shared_end(struct tern_shared *shared, struct tern_slot *slot, double loss)
{
	int r = enter_here(shared, slot, TERN_ALL_TENSORS, TERN_NEVER);

	if (r == 0)
		r = wait_quiet(shared, slot);
	if (r < 0)
		return r;
	return leave(shared, session_of_slot(slot), tern_slot_end(slot, loss));
}

int tern_shared_weigh(struct tern_shared *shared, struct tern_slot *slot, double weight)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	return leave(shared, session_of_slot(slot), tern_slot_weigh(slot, weight));
}

int tern_shared_fail(struct tern_shared *shared, struct tern_slot *slot, const char *text)
{
	int r = shared_enter(shared);

	if (r == 0)
		r = wait_quiet(shared, slot);
	if (r < 0)
		return r;
	return leave(shared, session_of_slot(slot), tern_slot_fail(slot, text));
}

int tern_shared_keep(struct tern_shared *shared, struct tern_slot *slot,
	const void *bytes, size_t size)
{
	int r = enter_here(shared, slot, TERN_ALL_TENSORS, TERN_NEVER);

	if (r < 0)
		return r;
	return leave(shared, session_of_slot(slot), tern_slot_keep(slot, bytes, size));
}

int tern_shared_kept(struct tern_shared *shared, struct tern_session *s, void *bytes,
	size_t *size, uint64_t *step, uint64_t timeout_ns)
{
	struct kept_waiter w = {.wait = {.waiter.is_answered = knows_kept, .session = s},
		.bytes = bytes,
		.size = *size};
	int r = wait_for(shared, &w.wait, timeout_ns);

	if (r == 0 || r == -E2BIG)
		*size = w.size;
	*step = w.step;
	return r;
}

int tern_shared_metric(struct tern_shared *shared, struct tern_session *s,
	const char *name, double value)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	return leave(shared, s, tern_session_metric(s, name, value));
}

/* ---- the end ---- */

int tern_shared_finisher(
	struct tern_shared *shared, struct tern_session *s, uint64_t timeout_ns)
{
	struct session_waiter w = {.waiter.is_answered = knows_finisher, .session = s};

	return wait_for(shared, &w, timeout_ns);
}

int tern_shared_finished(
	struct tern_shared *shared, struct tern_session *s, const char *text)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	tern_session_finished(s, text);
	shared_leave(shared);
	return 0;
}

int tern_shared_leave(struct tern_shared *shared, struct tern_session *s, const char *why)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	tern_session_leave(s, why);
	shared_leave(shared);
	return 0;
}

int tern_shared_ended(
	struct tern_shared *shared, struct tern_session *s, uint64_t timeout_ns)
{
	struct session_waiter w = {.waiter.is_answered = has_ended, .session = s};

	return wait_for(shared, &w, timeout_ns);
}

int tern_shared_describe(struct tern_shared *shared, const struct tern_session *s,
	char *text, size_t bytes)
{
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	tern_session_describe(s, text, bytes);
	shared_leave(shared);
	return 0;
}
