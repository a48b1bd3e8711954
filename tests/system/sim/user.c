/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/user.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/scenario.h"

#define PIECES_MAX 12u
/* Longest time between two calls of the user. */
#define PAUSE_NS (300 * TERN_NS_PER_US)
/* Fills the parts of a gradient that are not final. If a server adds this up, the counts
 * are wrong. */
#define NOT_FINAL 1e6f

struct piece {
	uint64_t first, count;
};

struct user {
	struct tern_computer computer;
	struct job *job;
	struct member *member;
	struct tern_timer timer; /* set until the user goes on with its slot */
	struct tern_work *work;  /* the slot that it holds; NULL: none */
	bool revoked;            /* `work` was revoked */
	struct piece pieces[PIECES_MAX];
	unsigned piece_count, said;
};

static uint64_t below(const struct user *u, uint64_t end)
{
	return tern_rng_below(tern_sim_rng(u->job->sim), end);
}

static void complain(struct user *u, const char *what)
{
	fprintf(stderr, "user: worker %u %s\n", u->member->worker->opts.index, what);
	u->job->broken = true;
}

/* ---- pieces ---- */

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Cuts a gradient of `size` elements into random pieces, in a random order. */
static void cut(struct user *u, uint64_t size)
{
	uint64_t bounds[PIECES_MAX + 1] = {0};

	u->said = 0;
	u->piece_count = 1 + (unsigned)below(u, PIECES_MAX);
	for (unsigned i = 1; i < u->piece_count; i++)
		bounds[i] = below(u, size);
	bounds[u->piece_count] = size;
	qsort(bounds, u->piece_count + 1, sizeof(bounds[0]), by_value);
	for (unsigned i = 0; i < u->piece_count; i++) {
		unsigned at = (unsigned)below(u, i + 1);

		u->pieces[i] = u->pieces[at];
		u->pieces[at] = (struct piece){bounds[i], bounds[i + 1] - bounds[i]};
	}
}

/* ---- what the user says ---- */

/* A report about a revoked slot has returned: the worker must have sent nothing. */
static void expect_nothing_sent(struct user *u, uint64_t bytes)
{
	if (u->member->worker->byte_count != bytes)
		complain(u, "has sent a gradient that was revoked");
}

static void say_piece(struct user *u)
{
	const struct piece *p = &u->pieces[u->said++];
	uint64_t bytes = u->member->worker->byte_count;
	bool revoked = u->revoked;

	ledger_fill(tern_work_record(u->work, 0), u->work->version,
		tern_vector(u->work->gradient) + p->first, p->first, p->count);
	tern_work_final(u->work, p->first, p->count);
	if (revoked)
		expect_nothing_sent(u, bytes);
}

static void end(struct user *u)
{
	struct tern_work *work = u->work;
	uint64_t records = u->member->worker->record_count;
	bool revoked = u->revoked;

	u->work = NULL;
	tern_work_end(work, 0.5);
	if (revoked && u->member->worker->record_count != records)
		complain(u, "has counted a slot that was revoked");
}

static void fail(struct user *u)
{
	struct tern_work *work = u->work;

	u->work = NULL;
	tern_work_fail(work, -EIO, "the user's code has failed");
}

/* Lets the user go on with its slot: it says that the next piece is final, if one is
 * left; then it may fail, or after the last piece end the slot, either at once or at a
 * later call. */
static void go_on(struct user *u)
{
	if (u->said < u->piece_count)
		say_piece(u);
	if (!u->work) /* revoked meanwhile, and ended */
		return;
	if (u->member->fails &&
		(u->said == u->piece_count || tern_sim_dice(u->job->sim, 300)))
		fail(u);
	else if (u->said == u->piece_count && tern_sim_dice(u->job->sim, 500))
		end(u);
}

/* ---- when the user calls ---- */

static void wait_for(struct user *u, uint64_t ns)
{
	struct tern_context *ctx = u->member->ctx;

	if (tern_timer_set(ctx, &u->timer, tern_now_ns(tern_context_env(ctx)) + ns) < 0)
		tern_never("a timer");
}

static void fire(struct tern_timer *timer)
{
	struct user *u = tern_container_of(timer, struct user, timer);
	struct tern_work *work = u->work;

	/* The user may have ended its slot meanwhile, when the slot was revoked. A user
	 * that hangs goes on when it hears that its slot was revoked. */
	if (!work || u->member->ctx->ending || (u->member->hangs && !u->revoked))
		return;
	go_on(u);
	/* Set the timer only if the user still holds this slot. If go_on() has ended it,
	 * on_begin() may have begun the next one (perhaps in the same struct tern_work), and
	 * then it has set the timer. */
	if (u->work && u->work == work && !u->timer.place)
		wait_for(u, below(u, PAUSE_NS));
}

static void on_begin(struct tern_computer *computer, struct tern_work *work)
{
	struct user *u = tern_container_of(computer, struct user, computer);
	uint64_t size = u->member->worker->job.element_count;

	if (u->work) {
		complain(u, "begins a slot although its user holds another one");
		return;
	}
	u->work = work;
	u->revoked = false;
	for (uint64_t i = 0; i < size; i++)
		tern_vector(work->gradient)[i] = NOT_FINAL;
	cut(u, size);
	if (u->member->hangs || tern_sim_dice(u->job->sim, 750)) {
		wait_for(u, below(u, PAUSE_NS));
		return;
	}
	/* Says all pieces at once, and ends the slot. Ending it does not begin the next
	 * slot within this call, so `work` is NULL then. */
	while (u->work)
		go_on(u);
}

static void on_revoke(struct tern_computer *computer, struct tern_work *work)
{
	struct user *u = tern_container_of(computer, struct user, computer);

	if (u->work != work)
		complain(u, "revokes a slot that its user does not hold");
	u->revoked = true;
	if (u->member->hangs)
		wait_for(u, below(u, PAUSE_NS));
	else if (tern_sim_dice(u->job->sim, 300))
		end(u);
}

struct user *user_new(struct job *j, struct member *m)
{
	static const struct tern_computer_ops ops = {
		.begin = on_begin, .revoke = on_revoke};
	struct user *u = calloc(1, sizeof(*u));

	if (!u)
		tern_never("a user");
	u->computer.ops = &ops;
	u->job = j;
	u->member = m;
	u->timer.fire = fire;
	return u;
}

struct tern_computer *user_computer(struct user *u)
{
	return &u->computer;
}

void user_free(struct user *u)
{
	free(u);
}

/* ---- the scenario ---- */

bool scenario_user(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct job job = {.servers = 1 + (unsigned)(seed % 3),
		.workers = 1 + (unsigned)(seed / 2 % 6),
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed / 32 % 2 ? 20 : 0,
		.losses = (unsigned)(seed / 16 % 3),
		.polite = true,
		.fails = seed % 5 < 3,
		.hangs = seed % 7 == 3,
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.async = seed % 8 == 5,
		.users = true,
		.no_records = seed / 8 % 2};

	return ledger_run(&job, seed, verbose, hash);
}
