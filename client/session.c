/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session is a computer (compute.h) for the worker, whose slots and final parameters it
 * passes on to the program, tensor by tensor. It checks what the program says: the worker
 * relies on it.
 */
#include "client/session.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/sized.h"
#include "client/session_state.h"
#include "transport/memory/mem.h"

/* Sums of losses times weights stay finite. */
#define WEIGHT_MAX  1e30
#define SEED_STREAM 0x736c6f74ull /* "slot" */

int session_complain(struct tern_session *s, int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->text, sizeof(s->text), fmt, ap);
	va_end(ap);
	return status;
}

static void tell(struct tern_session *s)
{
	if (s->opts.event)
		s->opts.event(s->opts.arg);
}

static struct tern_session *of_computer(struct tern_computer *computer)
{
	return tern_container_of(computer, struct tern_session, computer);
}

/* ---- what the worker says ---- */

/* Offers the slot to the program, which has pushed nothing of it. */
static void offer(struct tern_session *s)
{
	s->slot.revoked = false;
	s->slot.weight = 1;
	memset(s->slot.pushed, 0, s->job.param_count * sizeof(*s->slot.pushed));
	tell(s);
}

/* The worker begins a work after it has announced one, which the program may hold. */
static void begin_early(struct tern_slot *slot)
{
	if (!slot->held)
		return;
	slot->revoked = slot->work->version != slot->now.version ||
			slot->work->slot != slot->now.slot;
	if (!slot->revoked)
		slot->early = false;
}

static void on_begin(struct tern_computer *computer, struct tern_work *work)
{
	struct tern_session *s = of_computer(computer);

	tern_assert(!s->slot.work);
	s->slot.work = work;
	verify_begin(&s->verify);
	if (s->slot.announced)
		begin_early(&s->slot);
	s->slot.announced = NULL;
	if (!s->slot.held)
		offer(s);
	else
		tell(s);
}

static void on_announce(struct tern_computer *computer, const struct tern_work *work)
{
	struct tern_session *s = of_computer(computer);

	if (!s->early)
		return;
	s->slot.announced = work;
	if (work) {
		tern_assert(!s->slot.held);
		offer(s);
	} else {
		s->slot.revoked = s->slot.held;
		tell(s);
	}
}

static void on_arrived(struct tern_computer *computer)
{
	tell(of_computer(computer));
}

static void on_revoke(struct tern_computer *computer, struct tern_work *work)
{
	struct tern_session *s = of_computer(computer);

	/* The program has ended the slot, and the worker gives up while it sends the gradient, which
	 * it has held back (client/omit.c). */
	if (!s->slot.work)
		return;
	tern_assert(s->slot.work == work);
	verify_revoked(&s->verify);
	if (s->slot.held && !s->slot.early) {
		s->slot.revoked = true;
	} else {
		s->slot.work = NULL;
		tern_work_end(work, 0);
	}
	tell(s);
}

static void on_complete(struct tern_computer *computer, const struct tern_buf *params)
{
	struct tern_session *s = of_computer(computer);

	s->final = params;
	tell(s);
}

static void on_evaluate(
	struct tern_computer *computer, struct tern_evaluation *evaluation)
{
	struct tern_session *s = of_computer(computer);

	s->final = evaluation->params;
	s->evaluation = evaluation;
	s->was_finisher = true;
	tell(s);
}

void session_note(struct tern_session *s, const char *text)
{
	if (s->opts.note)
		s->opts.note(s->opts.arg, text);
}

static void note(void *arg, const char *text)
{
	session_note(arg, text);
}

/* The worker has begun with this blob. */
static void kept(void *arg, const struct tern_blob *blob)
{
	struct tern_session *s = arg;

	if (tern_blob_copy(&s->kept, blob) < 0) {
		tern_worker_stop(s->worker, "no memory for the blob of the job");
		return;
	}
	s->is_kept_known = true;
	tell(s);
}

static void lost(void *arg, uint32_t worker, const char *text)
{
	(void)worker;
	note(arg, text);
}

/* The status with which the session ends, which must not be one that has another meaning
 * for the callers of this file. */
static int end_status(int status)
{
	switch (status) {
	case -ENODATA: /* no host has the name of a server */
		return -EHOSTUNREACH;
	case -EAGAIN:
	case -EBUSY:
		return -EIO;
	default:
		return status;
	}
}

void session_end(struct tern_session *s, int status, const char *text)
{
	s->ended = true;
	s->status = end_status(status);
	snprintf(s->end_text, sizeof(s->end_text), "%s", text);
	tell(s);
}

static void ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	struct tern_session *s = arg;

	if (session_back_ended(s, status, text, results->cut))
		tell(s);
	else
		session_end(s, status, text);
}

/* ---- before the start ---- */

/* True if an address before the last one is the same: one server cannot have two numbers in a job. */
static bool has_last_twice(const struct tern_ps_job *job)
{
	uint32_t last = job->server_count - 1;

	for (uint32_t i = 0; i < last; i++)
		if (strcmp(job->servers[i], job->servers[last]) == 0)
			return true;
	return false;
}

/* Reads the list of addresses of `join` into the job. An address without "FABRIC://" gets
 * "auto://". */
static int read_servers(struct tern_ps_job *job, const char *join)
{
	const size_t room = sizeof(job->servers[0]);
	size_t count = 1;

	for (const char *p = join; *p; p++)
		count += *p == ',';
	if (count > TERN_SERVERS_MAX)
		return -EINVAL;
	job->servers = calloc(count, room);
	if (!job->servers)
		return -ENOMEM;
	for (const char *p = join; job->server_count < count; p++) {
		size_t n = strcspn(p, ",");
		const char *fabric = memmem(p, n, "://", 3) ? "" : "auto://";

		if (n == 0 ||
			(size_t)snprintf(job->servers[job->server_count++], room,
				"%s%.*s", fabric, (int)n, p) >= room ||
			has_last_twice(job))
			return -EINVAL;
		p += n;
	}
	return 0;
}

int tern_session_new_sized(struct tern_context *ctx, const struct tern_session_opts *opts,
	size_t opts_bytes, struct tern_session **out)
{
	static const struct tern_computer_ops ops = {.announce = on_announce,
		.arrived = on_arrived,
		.begin = on_begin,
		.revoke = on_revoke,
		.complete = on_complete,
		.evaluate = on_evaluate};
	struct tern_session *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	r = tern_read_sized(&s->opts, sizeof(s->opts), opts, opts_bytes);
	if (r == 0)
		r = s->opts.join && s->opts.server_wait_s <= (int64_t)TERN_SERVER_WAIT_MAX
			    ? read_servers(&s->job, s->opts.join)
			    : -EINVAL;
	if (r < 0) {
		tern_session_free(s);
		return r;
	}
	s->opts.join = NULL; /* the caller's */
	s->ctx = ctx;
	s->computer.ops = &ops;
	s->slot.session = s;
	*out = s;
	return 0;
}

void session_forget_tensors(struct tern_session *s)
{
	for (uint32_t i = 0; i < s->job.param_count; i++)
		free((char *)(uintptr_t)s->job.params[i].name);
}

void tern_session_free(struct tern_session *s)
{
	if (!s)
		return;
	tern_worker_free(s->worker);
	session_back_fini(s);
	if (!s->settled)
		session_forget_tensors(s);
	tern_ps_job_fini(&s->job);
	free(s->params_of);
	free(s->rules_of);
	free(s->values_of);
	free(s->slot.pushed);
	free(s->verify.digests);
	tern_blob_fini(&s->kept);
	free(s);
}

int session_join(struct tern_session *s, const float *const *given,
	struct tern_worker_pools *pools)
{
	struct tern_ps_job job = s->job;
	struct tern_worker_opts opts = {.domain = tern_context_domain(s->ctx),
		.ctx = s->ctx,
		.computer = &s->computer,
		.job = &job,
		.index = s->index,
		.given = given,
		.pools = pools,
		.note = note,
		.kept = kept,
		.lost = lost,
		.waiting = note,
		.ended = ended,
		.arg = s};
	struct tern_ps_text why;
	int r;

	session_back_join(s, &opts, &job);
	r = tern_worker_new(&opts, &s->worker, &why);
	return r < 0 ? session_complain(s, end_status(r), "%s", why.text) : 0;
}

/* ---- slots ---- */

/* Returns the status with which the session has ended, and sets the text. */
static int how_it_ended(struct tern_session *s)
{
	return session_complain(s, s->status, "%s", s->end_text);
}

struct tern_slot_info session_info(
	const struct tern_session *s, uint64_t step, uint32_t slot)
{
	return (struct tern_slot_info){.step = step,
		.slot = slot,
		.batch = s->job.records ? s->job.batch : 0,
		.seed = tern_rng_at(s->job.seed, SEED_STREAM, step, slot)};
}

/* Tells whether the worker that computes the work evaluates its parameters. In sync mode
 * slot 0 says which one that is; in async mode all have a slot 0. */
static bool is_for_evaluation(const struct tern_session *s, const struct tern_work *work)
{
	return s->eval_every && work->version % s->eval_every == 0 && work->slot == 0 &&
	       (s->job.mode == TERN_MODE_SYNC || tern_worker_is_finisher(s->worker));
}

/* The program holds the slot for the second time. */
static bool is_repeated(const struct tern_slot *slot)
{
	return slot->held && !slot->early && slot->session->verify.phase == VERIFY_SECOND;
}

/* True if all steps are done, and no loss of a server can change that for the program. */
static bool is_complete(const struct tern_session *s)
{
	return s->final && (!s->back.wait_ns || s->was_finisher || s->ended);
}

int tern_session_next_sized(struct tern_session *s, struct tern_slot **out,
	struct tern_slot_info *info, size_t info_bytes)
{
	struct tern_slot *slot = &s->slot;
	struct tern_slot_info own;

	if (!s->started)
		return session_complain(s, -EINVAL, "the session has not started");
	if (slot->held)
		return session_complain(
			s, -EBUSY, "the previous slot has not been ended");
	if (is_complete(s))
		return session_complain(s, -ENODATA, "all steps are done");
	if (s->ended)
		return how_it_ended(s);
	if (!slot->work && !slot->announced)
		return -EAGAIN;
	slot->held = true;
	slot->early = !slot->work;
	slot->early_work = slot->announced;
	slot->now = slot->early ? *slot->announced : *slot->work;
	slot->evaluate = is_for_evaluation(s, &slot->now);
	own = session_info(s, slot->now.version, slot->now.slot);
	own.repeated = is_repeated(slot);
	own.evaluate = slot->evaluate;
	own.early = slot->early;
	own.rolled_back_from = session_back_given(s, slot->now.version);
	if (info)
		tern_write_sized(info, info_bytes, &own, sizeof(own));
	*out = slot;
	return 0;
}

uint64_t tern_slot_record(const struct tern_slot *slot, uint32_t j)
{
	if (!slot->held || slot->now.record_count == 0 || j >= slot->now.batch)
		return UINT64_MAX;
	return tern_work_record(&slot->now, j);
}

const struct tern_param *session_param(const struct tern_session *s, uint32_t id)
{
	return s->params_of && id < s->job.param_count ? &s->job.params[s->params_of[id]]
						       : NULL;
}

static int has_ended(const struct tern_slot *slot)
{
	return session_complain(slot->session, -EINVAL, "the slot has ended");
}

static int is_unknown(const struct tern_slot *slot, uint32_t id)
{
	return session_complain(slot->session, -EINVAL, "tensor %u: expected 0 to %u", id,
		slot->session->job.param_count - 1);
}

/* True if the parameters of elements first to first + count - 1 are here. Those of an early slot that was
 * revoked are not, since the worker may have no other slot, and receives later versions in their place. */
static bool is_here(const struct tern_slot *slot, uint64_t first, uint64_t count)
{
	if (!slot->early)
		return true;
	return !slot->revoked && tern_work_is_here(slot->early_work, first, count);
}

int tern_slot_is_here(const struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = session_param(slot->session, id);

	if (!slot->held)
		return has_ended(slot);
	if (!p && id != TERN_ALL_TENSORS)
		return is_unknown(slot, id);
	if (!slot->early || (p && is_here(slot, p->first, p->count)))
		return 0;
	return slot->revoked
		       ? session_complain(slot->session, -ECANCELED,
				 "the slot was revoked before all of its parameters "
				 "were here")
		       : -EAGAIN;
}

const float *tern_slot_param(const struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = session_param(slot->session, id);

	if (!p || !slot->held || !is_here(slot, p->first, p->count))
		return NULL;
	return tern_vector(slot->now.params) + p->first;
}

int tern_slot_map_sized(
	const struct tern_slot *slot, struct tern_slot_map *map, size_t map_bytes)
{
	const struct tern_mem *mem;
	struct tern_slot_map own;
	void *base;
	int r;

	if (!slot->held)
		return -EINVAL;
	mem = slot->now.params->mem;
	r = tern_mem_map_private(mem, &base);
	if (r < 0)
		return r;
	own = (struct tern_slot_map){.base = base,
		.bytes = mem->bytes,
		.shift = (char *)base - tern_mem_at(mem, 0)};
	tern_write_sized(map, map_bytes, &own, sizeof(own));
	return 0;
}

float *tern_slot_gradient(const struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = session_param(slot->session, id);

	if (!p || !slot->held || slot->early)
		return NULL;
	return tern_vector(slot->work->gradient) + p->first;
}

struct tern_worker *session_worker(const struct tern_session *s)
{
	return s->worker;
}

struct tern_session *session_of_slot(const struct tern_slot *slot)
{
	return slot->session;
}

/* Checks that the program may end the slot now. */
static int check_end(const struct tern_slot *slot)
{
	if (!slot->held)
		return has_ended(slot);
	if (slot->pushing)
		return session_complain(slot->session, -EBUSY,
			"another thread still pushes a tensor of this slot");
	return 0;
}

/* An early slot that was revoked has ended: the worker may have begun another one
 * meanwhile. */
static int end_early(struct tern_slot *slot)
{
	slot->held = false;
	slot->early = false;
	if (slot->work)
		offer(slot->session);
	session_back_slot_ended(slot->session);
	return 0;
}

int session_reserve(struct tern_slot *slot, uint32_t id)
{
	struct tern_session *s = slot->session;
	const struct tern_param *p = session_param(s, id);

	if (!slot->held)
		return has_ended(slot);
	if (!p)
		return is_unknown(slot, id);
	if (slot->early && !slot->revoked)
		return -EAGAIN;
	if (slot->pushed[id])
		return session_complain(s, -EALREADY,
			"tensor %s was pushed before in this slot", p->name);
	slot->pushed[id] = true;
	slot->pushing++;
	return 0;
}

bool session_goes_through(const struct tern_slot *slot, uint32_t id, const float *from)
{
	return from || session_verifies(slot) ||
	       session_param(slot->session, id)->push_bf16;
}

void session_take(struct tern_slot *slot, uint32_t id, const float *from)
{
	struct tern_session *s = slot->session;
	const struct tern_param *p = session_param(s, id);
	float *to = tern_slot_gradient(slot, id);

	if (slot->early)
		return;
	if (!p->push_bf16) {
		verify_take(&s->verify, id, to, from, p->count * sizeof(*from));
		return;
	}
	/* The digest is that of the gradient before it is rounded. */
	verify_see(&s->verify, id, from ? from : to, p->count * sizeof(*from));
	if (s->verify.phase != VERIFY_FIRST)
		tern_work_put(slot->work, p->first, p->count, from);
}

bool session_verifies(const struct tern_slot *slot)
{
	return slot->session->verify.phase != VERIFY_OFF;
}

void session_pushed(struct tern_slot *slot, uint32_t id)
{
	const struct tern_param *p = session_param(slot->session, id);

	slot->pushing--;
	if (!slot->early && !session_verifies(slot))
		tern_work_final(slot->work, p->first, p->count);
}

bool session_is_pushing(const struct tern_slot *slot)
{
	return slot->pushing > 0;
}

int tern_slot_push(struct tern_slot *slot, uint32_t id, const float *from)
{
	int r = session_reserve(slot, id);

	if (r < 0)
		return r;
	session_take(slot, id, from);
	session_pushed(slot, id);
	return 0;
}

static struct tern_work *let_go(struct tern_slot *slot)
{
	struct tern_work *work = slot->work;

	tern_assert(slot->pushing == 0);
	work->weight = slot->weight;
	slot->work = NULL;
	slot->held = false;
	session_back_slot_ended(slot->session);
	return work;
}

/* The slot was computed for the first of two times: the program gets it again. */
static void repeat(struct tern_slot *slot, double loss)
{
	slot->held = false;
	verify_again(&slot->session->verify, loss);
	offer(slot->session);
}

/* The slot was computed twice: sends the gradients if they are the same, else this worker
 * leaves. */
static void compare(struct tern_slot *slot, double loss)
{
	struct tern_session *s = slot->session;
	const struct verify_slot which = {.worker = s->index,
		.slot = slot->work->slot,
		.step = slot->work->version};
	uint32_t count = s->job.param_count, first = 0;
	uint32_t differing = verify_differing(&s->verify, count, &first);
	char text[VERIFY_TEXT_BYTES];

	if (differing > 0) {
		verify_describe(text, sizeof(text), &which, session_param(s, first)->name,
			differing, count);
		tern_work_fail(let_go(slot), -EBADMSG, text);
		return;
	}
	if (!verify_loss(&s->verify, loss, &which, text, sizeof(text)))
		note(s, text);
	for (uint32_t id = 0; id < count; id++) {
		if (slot->pushed[id])
			tern_work_final(slot->work, session_param(s, id)->first,
				session_param(s, id)->count);
		else
			tern_work_unpushed(slot->work, s->params_of[id]);
	}
	tern_work_end(let_go(slot), loss);
}

/* The slot ends, and the program has not pushed this tensor. */
static void not_pushed(struct tern_slot *slot, uint32_t id)
{
	struct tern_session *s = slot->session;
	const struct tern_param *p = session_param(s, id);

	memset(tern_slot_gradient(slot, id), 0, p->count * sizeof(float));
	if (p->push_bf16)
		tern_work_put(slot->work, p->first, p->count, NULL);
	verify_unpushed(&s->verify, id);
	if (!session_verifies(slot))
		tern_work_unpushed(slot->work, s->params_of[id]);
}

/* Notes once that a slot has pushed nothing, since its computation was most likely for
 * nothing: the servers only tell at the end which tensors no slot has pushed. */
static void note_empty(struct tern_slot *slot, uint32_t unpushed)
{
	struct tern_session *s = slot->session;
	char text[160];

	if (unpushed < s->job.param_count || s->noted_empty || slot->revoked)
		return;
	s->noted_empty = true;
	snprintf(text, sizeof(text),
		"slot %u of step %llu has pushed no gradient: gradients count only if "
		"they "
		"are pushed before the end of the slot",
		slot->work->slot, (unsigned long long)slot->work->version);
	note(s, text);
}

int tern_slot_end(struct tern_slot *slot, double loss)
{
	struct tern_session *s = slot->session;
	uint32_t unpushed = 0;
	int r = check_end(slot);

	if (r < 0)
		return r;
	if (slot->early)
		return slot->revoked ? end_early(slot) : -EAGAIN;
	for (uint32_t id = 0; id < s->job.param_count; id++)
		if (!slot->pushed[id]) {
			not_pushed(slot, id);
			unpushed++;
		}
	note_empty(slot, unpushed);
	if (!session_verifies(slot) || slot->revoked)
		tern_work_end(let_go(slot), loss);
	else if (s->verify.phase == VERIFY_FIRST)
		repeat(slot, loss);
	else
		compare(slot, loss);
	return 0;
}

int tern_slot_weigh(struct tern_slot *slot, double weight)
{
	if (!slot->held)
		return has_ended(slot);
	if (!(weight >= 0 && weight <= WEIGHT_MAX))
		return session_complain(slot->session, -EINVAL,
			"the weight of a loss: expected a number from 0 to %g, got %g",
			WEIGHT_MAX, weight);
	slot->weight = weight;
	return 0;
}

int tern_slot_fail(struct tern_slot *slot, const char *text)
{
	int r = check_end(slot);

	if (r < 0)
		return r;
	if (!slot->early) {
		tern_work_fail(let_go(slot), -ECANCELED, text);
		return 0;
	}
	if (!slot->revoked)
		tern_work_refuse(slot->announced, -ECANCELED, text);
	return end_early(slot);
}

bool tern_slot_is_revoked(const struct tern_slot *slot)
{
	return slot->revoked;
}

/* ---- the job's blob ---- */

int tern_slot_keep(struct tern_slot *slot, const void *bytes, size_t size)
{
	struct tern_session *s = slot->session;

	if (!slot->held)
		return has_ended(slot);
	if (s->job.mode != TERN_MODE_SYNC)
		return session_complain(
			s, -EINVAL, "a blob of the job: only jobs in sync mode keep one");
	if (size > TERN_KEEP_MAX)
		return session_complain(s, -E2BIG,
			"a blob of the job: expected at most %u bytes, got %zu: declare "
			"a tensor for more",
			TERN_KEEP_MAX, size);
	if (slot->revoked || slot->now.slot != 0)
		return 0;
	if (slot->early)
		return -EAGAIN;
	return tern_work_keep(slot->work, bytes, size) < 0
		       ? session_complain(
				 s, -ENOMEM, "no memory for a blob of %zu bytes", size)
		       : 1;
}

int tern_session_kept(struct tern_session *s, void *bytes, size_t *size, uint64_t *step)
{
	size_t room = *size;

	if (!s->started)
		return session_complain(s, -EINVAL, "the session has not started");
	if (!s->is_kept_known)
		return s->ended ? how_it_ended(s) : -EAGAIN;
	*size = s->kept.bytes;
	*step = s->kept.step;
	if (room < s->kept.bytes)
		return session_complain(s, -E2BIG,
			"the blob of the job has %zu bytes, and there is room for %zu",
			s->kept.bytes, room);
	if (s->kept.bytes)
		memcpy(bytes, s->kept.data, s->kept.bytes);
	return 0;
}

/* ---- what is shown ---- */

int tern_session_metric(struct tern_session *s, const char *name, double value)
{
	int r;

	if (!s->worker)
		return session_complain(s, -EINVAL, "the session has not started");
	if (s->ended || is_repeated(&s->slot))
		return 0;
	/* The worker has not yet come to the step of an early slot. */
	r = tern_worker_metric(
		s->worker, name, value, s->slot.held ? s->slot.now.version : 0);
	if (r == -EINVAL)
		return session_complain(s, r,
			"the name of a metric: expected 1 to %u printable ASCII "
			"characters without blanks",
			TERN_METRIC_NAME_MAX);
	return r < 0 ? session_complain(s, r,
			       "metric %s: a session has at most %u different ones", name,
			       TERN_METRICS_MAX)
		     : 0;
}

/* ---- the end ---- */

const float *tern_session_param(const struct tern_session *s, uint32_t id)
{
	const struct tern_param *p = session_param(s, id);

	return s->final && p ? tern_vector(s->final) + p->first : NULL;
}

int tern_session_finisher(struct tern_session *s)
{
	if (!s->started)
		return session_complain(s, -EINVAL, "the session has not started");
	if (s->ended)
		return how_it_ended(s);
	if (!is_complete(s))
		return session_complain(s, -EBUSY,
			"the finisher is known after the last slot only: not all steps "
			"are done");
	return s->evaluation ? 1 : -EAGAIN;
}

void tern_session_goes_on(struct tern_session *s)
{
	if (s->evaluation)
		tern_evaluation_goes_on(s->evaluation);
	else if (s->slot.held && s->slot.evaluate && s->slot.work)
		tern_work_goes_on(s->slot.work);
}

void tern_session_finished(struct tern_session *s, const char *text)
{
	struct tern_evaluation *evaluation = s->evaluation;

	s->evaluation = NULL;
	if (evaluation && !session_back_finished(s, text))
		tern_evaluation_end(evaluation, text ? -ECANCELED : 0, text);
}

void tern_session_leave(struct tern_session *s, const char *why)
{
	if (s->worker && !s->ended && !session_back_leave(s, why))
		tern_worker_ask_to_leave(s->worker, why);
}

int tern_session_status(struct tern_session *s)
{
	if (!s->started)
		return session_complain(s, -EINVAL, "the session has not started");
	return s->ended ? how_it_ended(s) : -EAGAIN;
}

const char *tern_session_text(const struct tern_session *s)
{
	return s->text;
}

void tern_session_describe(const struct tern_session *s, char *text, size_t bytes)
{
	if (s->ended)
		snprintf(text, bytes, "the session has ended: %s", s->end_text);
	else if (s->worker && !session_back_describe(s, text, bytes))
		tern_worker_describe(s->worker, text, bytes);
	else if (!s->worker)
		snprintf(text, bytes, "the session has not started");
}
