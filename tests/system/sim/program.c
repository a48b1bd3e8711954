/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/program_state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/train.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/rng.h"
#include "base/util.h"
#include "ps/safetensors.h"
#include "client/session.h"
#include "tests/system/sim/bf16_numbers.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/rare.h"
#include "tests/system/sim/scenario.h"

/* Longest time between two calls of the program. */
#define PAUSE_NS (300 * TERN_NS_PER_US)
/* Fills gradients that were not pushed. If a server adds this up, the counts are
 * wrong. */
#define NOT_FINAL 1e6f
/* Added to a gradient by a program that is not deterministic, times the number of such
 * gradients that it has made. */
#define NOISE 1e4f

static uint64_t below(const struct program *p, uint64_t end)
{
	return tern_rng_below(tern_sim_rng(p->job->sim), end);
}

static bool dice(const struct program *p, unsigned permille)
{
	return tern_sim_dice(p->job->sim, permille);
}

static void complain(struct program *p, const char *what)
{
	fprintf(stderr, "program: member %u %s\n",
		(unsigned)(p->member - p->job->members), what);
	p->job->broken = true;
}

static void expect(struct program *p, int status, int expected, const char *what)
{
	char text[200];

	if (status == expected)
		return;
	snprintf(
		text, sizeof(text), "got %d for %s, expected %d", status, what, expected);
	complain(p, text);
}

static void shuffle(const struct program *p, unsigned *order)
{
	for (unsigned i = 0; i < TENSORS; i++) {
		unsigned at = (unsigned)below(p, i + 1);

		order[i] = order[at];
		order[at] = i;
	}
}

/* ---- slots ---- */

static uint64_t digest_of_tensor(const struct program *p, unsigned k)
{
	return tern_digest(
		tern_slot_param(p->slot, p->ids[k]), tensors[k].count * sizeof(float));
}

static uint64_t digest_of(const struct program *p)
{
	uint64_t digest = 0;

	for (unsigned k = 0; k < TENSORS; k++)
		digest = tern_mix64(digest ^ digest_of_tensor(p, k));
	return digest;
}

/* The evaluator of a step is the worker with slot 0; in async mode it is known to be one. */
static void check_evaluate(struct program *p)
{
	bool may = p->info.step % EVAL_EVERY == 0 && p->info.slot == 0;

	if (p->job->async ? p->info.evaluate && !may : p->info.evaluate != may)
		complain(p, "got a slot with the wrong mark to evaluate");
	if (p->info.evaluate)
		tern_session_goes_on(p->session);
}

static bool is_value(const struct program *p, uint64_t element, float value);

/* The values of a slot are those of the job, rounded if they travel as bf16. */
static void check_values(struct program *p)
{
	for (unsigned k = 0; k < TENSORS; k++) {
		const float *values = tern_slot_param(p->slot, p->ids[k]);

		for (uint64_t i = 0; i < tensors[k].count; i++) {
			if (is_value(p, tensors[k].first + i, values[i]))
				continue;
			fprintf(stderr, "program: tensor %s, value %u is %.9g\n",
				tensors[k].name, (unsigned)i, (double)values[i]);
			complain(p, "saw a value that the job cannot have");
			return;
		}
	}
}

/* The slots that are computed twice come again at once, and nothing else has changed. */
static void check_again(struct program *p, const struct tern_slot_info *before)
{
	if (p->info.repeated != p->again)
		complain(p, p->again ? "got another slot than the one to be repeated"
				     : "got a slot again");
	if (p->caught)
		complain(p, "was not found out, though it is not deterministic");
	if (!p->again)
		return;
	if (p->info.step != before->step || p->info.slot != before->slot ||
		p->info.seed != before->seed || p->info.batch != before->batch ||
		digest_of(p) != p->digest)
		complain(p, "got a slot again with something else");
}

/* The first slot after the job has gone back says so. */
static void check_back(struct program *p)
{
	uint64_t from = p->is_anew && p->reached > p->info.step ? p->reached : 0;

	if (p->info.rolled_back_from != from)
		complain(p, "was told a wrong step that it goes back from");
	if (from && (p->told_from != from || p->told_to > p->info.step))
		complain(p, "was not told that it goes back");
	p->reached = p->info.step + 1;
	p->is_anew = false;
	p->told_from = 0;
}

static void rolled_back(void *arg, uint64_t from, uint64_t to)
{
	struct program *p = arg;

	p->told_from = from;
	p->told_to = to;
}

/* Looks at the tensors of an early slot: what can be seen must not change any more. */
static void look_early(struct program *p)
{
	for (unsigned k = 0; k < TENSORS; k++) {
		int r = tern_slot_is_here(p->slot, p->ids[k]);

		if (r == 0 && !p->seen[k])
			p->seen[k] = digest_of_tensor(p, k);
		else if (r == 0 && p->seen[k] != digest_of_tensor(p, k))
			complain(p, "saw a tensor change after it was here");
		else if (r < 0 && tern_slot_param(p->slot, p->ids[k]))
			complain(p, "has a tensor that is not here");
		else if (r == -EAGAIN && p->seen[k])
			complain(p, "had a tensor that is not here any more");
		if (r < 0 && r != -EAGAIN && r != -ECANCELED)
			complain(p, "cannot learn whether a tensor is here");
	}
}

static bool is_said(
	const struct tern_slot_info *said, int count, const struct tern_slot_info *info)
{
	return count > 0 && said->step == info->step && said->slot == info->slot &&
	       said->seed == info->seed && said->batch == info->batch && !said->repeated;
}

/* Tells the worker's slots from others. A slot of a lost worker that it has not taken yet may
 * not come, and one that it computes although it was moved away has perhaps come since: then the sum
 * is another one each time. */
static uint64_t sum_of_slots(const struct program *p)
{
	static uint64_t other;
	const struct tern_worker *w = p->member->worker;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < w->slot_count; i++)
		if (!w->slots[i].taken || w->slots[i].moved)
			return UINT64_MAX - other++;
		else
			sum += (w->slots[i].number + 1) * 1000003ull +
			       w->slots[i].generation * 999999937ull;
	return sum;
}

/* The program has got a slot. `said`: the slots that came, as the session said right before
 * that. As long as the worker has the same slots, what the session said longer ago comes,
 * too. */
static void check_ahead(struct program *p, const struct tern_slot_info *said, int count)
{
	bool undisturbed = sum_of_slots(p) == p->own_slots;
	struct tern_slot_info now[AHEAD];
	int n = tern_session_ahead(p->session, now, AHEAD);

	if (tern_session_record(p->session, p->info.step, p->info.slot, 0) !=
		tern_slot_record(p->slot, 0))
		complain(p, "got another record than the one of the slot's number");
	if (!p->info.repeated && !is_said(said, count, &p->info))
		complain(p, "got another slot than the session said");
	for (int k = 0; undisturbed && !p->info.repeated && k < p->ahead_count; k++)
		if (k ? !is_said(&p->ahead[k], 1, &now[k - 1]) || k > n
		      : !is_said(&p->ahead[0], 1, &p->info))
			complain(p, "gets other slots than the session said");
	p->ahead_count = n;
	p->own_slots = sum_of_slots(p);
	memcpy(p->ahead, now, sizeof(now));
}

/* Begins to compute the slot: all of its parameters are here. */
static void begin(struct program *p)
{
	if (p->early)
		look_early(p);
	p->early = false;
	p->digest = digest_of(p);
	check_values(p);
	p->pushed = 0;
	shuffle(p, p->order);
	for (unsigned k = 0; k < TENSORS; k++)
		for (uint64_t i = 0; i < tensors[k].count; i++)
			tern_slot_gradient(p->slot, p->ids[k])[i] = NOT_FINAL;
}

/* Goes on with an early slot, which can only be looked at, or fail. */
static void go_on_early(struct program *p)
{
	struct tern_slot *slot = p->slot;
	int r = tern_slot_is_here(slot, TERN_ALL_TENSORS);

	if (r == 0) {
		begin(p);
		return;
	}
	look_early(p);
	if (r == -ECANCELED) {
		expect(p, tern_slot_is_revoked(slot), true, "an early slot that ends");
		expect(p, tern_slot_push(slot, p->ids[0], p->room), 0,
			"a push of an early slot that was revoked");
		expect(p, tern_slot_end(slot, 0.5), 0, "the end of an early slot");
		p->slot = NULL;
		return;
	}
	expect(p, r, -EAGAIN, "an early slot");
	expect(p, tern_slot_push(slot, p->ids[0], p->room), -EAGAIN, "an early push");
	expect(p, tern_slot_end(slot, 0.5), -EAGAIN, "an early end");
	if (tern_slot_gradient(slot, p->ids[0]))
		complain(p, "got memory for a gradient of an early slot");
	if (p->member->fails) {
		p->slot = NULL;
		expect(p, tern_slot_fail(slot, "the program has failed"), 0,
			"the failure of an early slot");
	}
}

static bool is_zero(const float *values, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (values[i] != 0)
			return false;
	return true;
}

/* Makes mistakes that the session must refuse. */
static void blunder(struct program *p)
{
	struct tern_slot *other;

	expect(p, tern_slot_push(p->slot, TENSORS + (uint32_t)below(p, 3), NULL), -EINVAL,
		"a push of a tensor that there is not");
	expect(p, tern_session_next(p->session, &other, NULL), -EBUSY,
		"a second slot at the same time");
	if (tern_slot_param(p->slot, TENSORS) || tern_slot_gradient(p->slot, UINT32_MAX))
		complain(p, "got memory of a tensor that there is not");
	if (tern_slot_record(p->slot, p->info.batch) != UINT64_MAX)
		complain(p, "got a record that the slot has not");
}

/* Makes a wrong gradient, in the second computation of a slot always, so that the two
 * differ. */
static void disturb(struct program *p, unsigned k, float *to)
{
	if (!p->member->fickle || k != p->odd || (!p->info.repeated && dice(p, 300)))
		return;
	to[below(p, tensors[k].count)] += NOISE * (float)++p->noises;
}

/* The rare tensor that this tensor is; NULL: it is none. */
static const struct rare *rare_of(unsigned k)
{
	for (unsigned i = 0; i < RARE_COUNT; i++)
		if (tensors[k].first == rare_tensors[i].first)
			return &rare_tensors[i];
	return NULL;
}

/* Computes the gradient of a tensor. Returns false if it is not to be pushed, which is the
 * same if the slot is computed again. */
static bool fill(struct program *p, unsigned k, float *to)
{
	const struct rare *rare = rare_of(k);
	uint64_t record = tern_slot_record(p->slot, 0);
	uint32_t share = p->job->async ? p->member->worker->opts.index : p->info.slot;

	if (rare) {
		rare_fill(rare, p->info.step, share, to);
		return rare_is_pushed(rare, p->info.step, share);
	}
	ledger_fill(record, p->info.step, to, tensors[k].first, tensors[k].count);
	for (uint64_t i = 0; p->job->push_bf16 >> k & 1 && i < tensors[k].count; i++)
		to[i] = bf16_blur(to[i], tern_mix64(p->info.seed ^ i));
	disturb(p, k, to);
	return !is_zero(to, tensors[k].count) || tern_mix64(record * TENSORS + k) % 2;
}

static void push(struct program *p)
{
	unsigned k = p->order[p->pushed++];
	bool in_place = dice(p, 500);
	float *to = in_place ? tern_slot_gradient(p->slot, p->ids[k]) : p->room;

	if (!fill(p, k, to))
		return;
	expect(p, tern_slot_push(p->slot, p->ids[k], in_place ? NULL : to), 0, "a push");
	if (!in_place)
		for (uint64_t i = 0; i < tensors[k].count; i++)
			to[i] = NOT_FINAL;
	if (dice(p, 200))
		expect(p, tern_slot_push(p->slot, p->ids[k], NULL), -EALREADY,
			"a second push of a tensor");
}

/* ---- the blob of the job ---- */

#define BLOB_WORDS 40u

/* True if programs give a blob in this step. */
static bool gives_blob(uint64_t step)
{
	return tern_mix64(step ^ 0xb10b) % 3 == 0;
}

/* Writes the blob that belongs to the version. Returns its size in bytes. */
static size_t make_blob(uint64_t version, uint64_t words[BLOB_WORDS])
{
	size_t count = version % BLOB_WORDS;

	for (size_t i = 0; i < count; i++)
		words[i] = tern_mix64(version * BLOB_WORDS + i);
	return count * sizeof(*words);
}

static void give_blob(struct program *p)
{
	uint64_t words[BLOB_WORDS];
	size_t bytes = make_blob(p->info.step + 1, words);
	int expected = p->info.slot == 0 && !tern_slot_is_revoked(p->slot);

	if (p->job->async)
		expect(p, tern_slot_keep(p->slot, words, bytes), -EINVAL,
			"a blob in async mode");
	else if (gives_blob(p->info.step))
		expect(p, tern_slot_keep(p->slot, words, bytes), expected, "a blob");
}

/* The blob with which the worker has begun is the newest up to its first version, as in a job to which
 * nothing has happened. */
static void check_blob(struct program *p)
{
	uint64_t first = p->job->async ? 0 : p->member->worker->own_version;
	uint64_t words[BLOB_WORDS], found[BLOB_WORDS], step;
	size_t bytes = sizeof(found);

	if (p->kept_by == p->incarnation)
		return;
	p->kept_by = p->incarnation;
	while (first > 0 && !gives_blob(first - 1))
		first--;
	expect(p, tern_session_kept(p->session, found, &bytes, &step), 0, "the blob");
	if (step != first || bytes != (first ? make_blob(first, words) : 0) ||
		memcmp(found, words, bytes) != 0)
		complain(p, "has begun with another blob than that of its version");
}

/* A slot with a blob has ended. The last part of its gradient, without which the next version is not
 * complete, waits until server 0 has the blob. */
static void check_version_waits(struct program *p)
{
	const struct tern_worker *w = p->member->worker;

	if (!w->keep.awaited || w->ready.taken == w->plan.chunk_count)
		complain(p, "has ended a slot, and its last part has not waited for the "
			    "blob");
}

/* A slot with a blob counts when server 0 has the blob. It does not if it was revoked before. */
static void settle(struct program *p)
{
	if (p->gave && p->member->worker->record_count + 1 == p->computed)
		p->computed--;
	p->gave = false;
}

static void hand_in(struct program *p)
{
	struct tern_slot *slot = p->slot;
	bool counts = !tern_slot_is_revoked(slot);
	bool omitted = job_omits(p->job, p->info.step, p->info.slot);

	p->slot = NULL;
	expect(p, tern_slot_end(slot, omitted ? (double)NAN : 0.5), 0,
		"the end of a slot");
	p->again = counts && p->verify_left > 0 && !p->info.repeated;
	p->verify_left -= p->again;
	/* Another slot is computed twice in place of one that was revoked meanwhile. */
	p->verify_left += !counts && p->info.repeated;
	p->caught = counts && p->info.repeated && p->member->fickle;
	p->computed += counts && !p->again && !p->caught;
	p->gave = !p->job->async && p->info.slot == 0 && gives_blob(p->info.step);
	if (p->gave && counts && !p->again && !p->caught)
		check_version_waits(p);
}

static void end_slot(struct program *p)
{
	uint64_t which = p->info.step + p->info.slot;

	give_blob(p);
	if (which % 3 == 0)
		expect(p, tern_session_metric(p->session, "step", (double)p->info.step),
			0, "a metric");
	if (which % 4 == 0)
		expect(p, tern_slot_weigh(p->slot, 1 + (double)(which % 3)), 0,
			"a weight");
	hand_in(p);
}

/* Goes on with the slot: pushes a tensor, if one is left; then it may fail, or after the
 * last tensor end the slot, either at once or at a later call. */
static void go_on(struct program *p)
{
	struct tern_slot *slot = p->slot;

	if (dice(p, 200))
		blunder(p);
	if (p->pushed < TENSORS)
		push(p);
	if (digest_of(p) != p->digest)
		complain(p, "saw parameters change while it held the slot");
	if (p->member->fails && (p->pushed == TENSORS || dice(p, 300))) {
		p->slot = NULL;
		expect(p, tern_slot_fail(slot, "the program has failed"), 0,
			"the failure of a slot");
		expect(p, tern_slot_end(slot, 0.5), -EINVAL,
			"the end of a slot that failed");
		expect(p, tern_slot_push(slot, 0, NULL), -EINVAL, "a push after the end");
		if (tern_slot_param(slot, 0) || tern_slot_gradient(slot, 0))
			complain(p, "got memory of a slot that has ended");
	} else if (p->pushed == TENSORS && dice(p, 500)) {
		end_slot(p);
	}
}

/* ---- the end ---- */

static void wait_a_while(struct program *p)
{
	struct tern_context *ctx = p->member->ctx;

	if (!p->timer.place &&
		tern_timer_set(ctx, &p->timer,
			tern_now_ns(tern_context_env(ctx)) + below(p, PAUSE_NS)) < 0)
		tern_never("a timer");
}

static void saved(struct tern_file_op *op)
{
	struct program *p = tern_container_of(op, struct program, file);

	if (op->status < 0)
		complain(p, "cannot save");
	free(p->parts[0].iov_base);
	p->parts[0].iov_base = NULL;
	p->saving = false;
	p->has_saved = true;
	wait_a_while(p);
}

static void save(struct program *p)
{
	struct tern_safetensor list[TENSORS];

	for (unsigned k = 0; k < TENSORS; k++)
		list[k] = (struct tern_safetensor){.name = tensors[k].name,
			.shape = tern_shape_1d(TERN_F32, tensors[k].count),
			.data = tern_session_param(p->session, p->ids[k])};
	if (tern_safetensors_build(list, TENSORS, NULL, 0, p->parts) < 0)
		tern_never("a file");
	p->file = (struct tern_file_op){.kind = TERN_FILE_WRITE,
		.path = "result",
		.parts = p->parts,
		.part_count = TENSORS + 1,
		.done = saved};
	p->saving = true;
	if (tern_env_file(tern_sim_env(p->member->process), &p->file) < 0)
		tern_never("a file operation");
}

/* This worker is the finisher: it saves, or says that it cannot; then another worker does
 * it. */
static void begin_to_finish(struct program *p)
{
	if (p->job->goes_back || job_workers_left(p->job) < 2 || !dice(p, 100)) {
		save(p);
		return;
	}
	p->member->stalled = true;
	p->has_finished = true;
	tern_session_finished(p->session, "its disk is full");
}

/* Servers may fall while the finisher has the results. It may have used them when its worker is
 * over, but has not ended: there is little time for that, so it finishes at once then. */
static void use_results(struct program *p)
{
	if (!p->has_saved) {
		begin_to_finish(p);
	} else if (p->job->goes_back && !p->member->worker->over && dice(p, 985)) {
		wait_a_while(p);
	} else {
		p->has_finished = true;
		tern_session_finished(p->session, NULL);
	}
}

static void keep_final(struct program *p)
{
	p->has_final = true;
	for (unsigned k = 0; k < TENSORS; k++)
		memcpy(p->final + tensors[k].first,
			tern_session_param(p->session, p->ids[k]),
			tensors[k].count * sizeof(float));
}

/* A program that was found out is named, with the tensor. */
static void check_caught(struct program *p)
{
	const char *text = tern_session_text(p->session);
	char words[100];

	expect(p, p->member->status, -EBADMSG, "different gradients");
	snprintf(words, sizeof(words),
		"twice, and 1 of %u gradients differ, first that of "
		"tensor %s.",
		(unsigned)TENSORS, tensors[p->odd].name);
	if (!strstr(text, words))
		complain(p, text);
}

/* The session has ended. */
static void end(struct program *p)
{
	struct member *m = p->member;

	m->ended = true;
	m->status = tern_session_status(p->session);
	m->results = m->worker->results;
	/* Others finish the job in place of a program that says that it could not. */
	snprintf(m->text, sizeof(m->text), "%s", tern_session_text(p->session));
	if (m->status == 0 && !p->has_final)
		keep_final(p);
	if (p->caught)
		check_caught(p);
	settle(p);
	if (m->worker->record_count != p->computed)
		complain(p, "has handed in another number of slots than counts");
}

/* ---- when the program calls ---- */

/* The slot was to be computed for the second time, and is not needed any more. */
static void was_revoked_between(struct program *p)
{
	p->again = false;
	if (p->member->worker->computing)
		complain(p, "left with a slot that nobody computes");
}

/* The program holds no slot. */
static void look(struct program *p)
{
	const struct tern_slot_info before = p->info;
	struct tern_slot_info said;
	int count = tern_session_ahead(p->session, &said, 1), r;

	if (p->again && dice(p, 980)) /* the slot may be revoked meanwhile */
		return wait_a_while(p);
	r = tern_session_next(p->session, &p->slot, &p->info);
	if (r == 0)
		settle(p);
	if (r == 0) {
		if (p->has_finished)
			complain(p, "got a slot after it had used the results");
		p->early = p->info.early;
		memset(p->seen, 0, sizeof(p->seen));
		check_again(p, &before);
		check_back(p);
		check_blob(p);
		check_ahead(p, &said, count);
		check_evaluate(p);
		if (!p->early)
			begin(p);
		wait_a_while(p);
	} else if (tern_session_status(p->session) != -EAGAIN) {
		if (p->again)
			was_revoked_between(p);
		end(p);
	} else if (r == -ENODATA) {
		if (!p->has_final || p->job->async) {
			p->job->falls += p->job->goes_back && dice(p, 500);
			keep_final(p);
		}
		if (!p->saving && tern_session_finisher(p->session) == 1)
			use_results(p);
	} else {
		expect(p, r, -EAGAIN, "the next slot");
	}
}

static void fire(struct tern_timer *timer)
{
	struct program *p = tern_container_of(timer, struct program, timer);

	if (p->gone || p->member->ctx->ending || p->member->ended)
		return;
	if (!p->slot) {
		look(p);
		return;
	}
	/* A program that hangs goes on when its slot was revoked. */
	if (p->member->hangs && !tern_slot_is_revoked(p->slot))
		return;
	/* The next worker must wait for the end of the slot, however long that takes. */
	if (p->job->goes_back && tern_slot_is_revoked(p->slot) && dice(p, 970)) {
		if (!p->early && digest_of(p) != p->digest)
			complain(p, "saw parameters change while it held a revoked slot");
		wait_a_while(p);
		return;
	}
	if (!p->early) {
		go_on(p);
	} else {
		go_on_early(p);
		if (p->early && p->slot)
			return; /* event() says when there is more to do */
	}
	wait_a_while(p);
}

/* Follows what the session knows of its servers, and its worker, which may be another one. */
static void follow(struct program *p)
{
	struct member *m = p->member;
	const struct tern_view *view = session_view(p->session);

	if (view && m->view)
		*m->view = *view;
	m->worker = session_worker(p->session);
	if (!m->worker || m->worker->incarnation == p->incarnation)
		return;
	p->incarnation = m->worker->incarnation;
	p->is_anew = true;
	p->computed = 0;
	p->verify_left += p->again;
	p->again = false;
	p->ahead_count = 0;
	p->has_final = false;
}

static void event(void *arg)
{
	struct program *p = arg;

	if (p->gone)
		return;
	follow(p);
	wait_a_while(p);
}

/* ---- making the program ---- */

/* True if the slot's parameters may have this value at the element: the initial one of a
 * worker, without or with the gradient of a record, which is at most the number of steps. */
static bool is_value(const struct program *p, uint64_t element, float value)
{
	const struct job *j = p->job;
	bool given = is_in(j->given, element), bf16 = is_in(j->pull_bf16, element);
	uint64_t most = ledger_counts(element) ? TERN_MAX(j->plan.steps, 1u) : 0;

	if (rare_has(element)) /* checked at the end */
		return true;
	for (unsigned worker = 0; worker < j->workers; worker++)
		for (uint64_t count = 0; count <= most; count++) {
			float exact = updated(j, given ? value_of(j, worker, element) : 0,
				(float)count);

			if (value == (bf16 ? bf16_nearest(exact) : exact))
				return true;
		}
	return false;
}

static enum tern_dtype wire_type(bool bf16)
{
	return bf16 ? TERN_BF16 : TERN_F32;
}

static void declare(struct program *p, unsigned index)
{
	unsigned order[TENSORS];
	uint32_t ignored;

	for (uint64_t i = 0; i < ELEMENTS; i++)
		p->given[i] = value_of(p->job, index, i);
	shuffle(p, order);
	for (unsigned i = 0; i < TENSORS; i++) {
		unsigned k = order[i];
		bool given = p->job->given >> k & 1;
		const struct rare *rare = rare_of(k);

		expect(p,
			tern_session_tensor(p->session,
				&(struct tern_tensor_opts){.name = tensors[k].name,
					.shape =
						tern_shape_1d(TERN_F32, tensors[k].count),
					.init = given ? TERN_INIT_GIVEN : TERN_INIT_ZEROS,
					.rule = rare ? &rare->rule : NULL,
					.values = given ? p->given + tensors[k].first
							: NULL,
					.push = wire_type(p->job->push_bf16 >> k & 1),
					.pull = wire_type(p->job->pull_bf16 >> k & 1)},
				&p->ids[k]),
			0, "a tensor");
	}
	expect(p,
		tern_session_tensor(p->session,
			&(struct tern_tensor_opts){
				.name = "", .shape = tern_shape_1d(TERN_F32, 1)},
			&ignored),
		-EINVAL, "a tensor without a name");
}

/* The last tensor that the program has declared is chosen more often, since a loop over all
 * of them may leave that one out. */
static void choose_odd(struct program *p)
{
	bool last;

	do {
		last = dice(p, 400);
		p->odd = (unsigned)below(p, TENSORS);
	} while (rare_of(p->odd) || (last && p->ids[p->odd] != TENSORS - 1));
}

static void start(struct program *p, unsigned index)
{
	const struct job *j = p->job;
	/* As many slots as that are computed twice. */
	static const int64_t verify_first[] = {0, -1, 2, 1000};
	int64_t verify = p->member->fickle ? 1 : verify_first[below(p, 4)];
	struct tern_job_opts opts = {.workers = j->workers,
		.index = index,
		.mode = j->async ? TERN_TRAIN_ASYNC : TERN_TRAIN_SYNC,
		.slots = j->plan.slots,
		.steps = j->plan.steps,
		.seed = j->plan.seed,
		.rule = {.name = "sgd", .lr = 1},
		.arithmetic = "ledger",
		.records = ledger_data()->count,
		.batch = 1,
		.verify_first = verify,
		.eval_every = EVAL_EVERY,
		.init_from_first = j->from_first,
		.early = dice(p, 700)};
	struct tern_slot *slot;

	p->verify_left = j->async || verify < 0 ? 0 : verify ? (uint64_t)verify : 1;
	expect(p, tern_session_next(p->session, &slot, NULL), -EINVAL,
		"a slot before the start");
	expect(p, tern_session_start(p->session, &opts), 0, "the start");
	memset(p->given, 0xff, sizeof(p->given));
	expect(p, tern_session_start(p->session, &opts), -EALREADY, "a second start");
}

struct program *program_new(struct job *j, struct member *m, unsigned index)
{
	struct program *p = calloc(1, sizeof(*p));
	struct tern_session_opts opts = {.event = event,
		.arg = p,
		.server_wait_s = j->goes_back ? 600 : 0,
		.rolled_back = rolled_back};
	char join[sizeof(j->addresses)];
	size_t n = 0;

	for (unsigned i = 0; i < j->servers; i++)
		n += (size_t)snprintf(join + n, sizeof(join) - n, "%s%s", i ? "," : "",
			j->addresses[i]);
	opts.join = join;
	if (!p)
		tern_never("a program");
	p->job = j;
	p->member = m;
	p->timer.fire = fire;
	m->fickle = index < j->workers && index + j->fickle >= j->workers;
	m->stalled = m->fickle;
	if (tern_session_new(m->ctx, &opts, &p->session) < 0)
		tern_never("a session");
	declare(p, index);
	choose_odd(p);
	start(p, index);
	follow(p);
	p->own_slots = sum_of_slots(p);
	p->ahead_count = tern_session_ahead(p->session, p->ahead, AHEAD);
	return p;
}

void program_is_gone(struct program *p)
{
	if (p)
		p->gone = true;
}

void program_free(struct program *p)
{
	if (!p)
		return;
	free(p->parts[0].iov_base);
	tern_session_free(p->session);
	free(p);
}
