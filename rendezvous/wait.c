/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tern_wait() and tern_wait_any(), which block: loops over tern_progress, tern_test,
 * tern_arm and poll(2), for callers with nothing else to do.
 *
 * A wait first spins, for at most the time budget ctx->spin_ns, and then sleeps. The
 * budget adapts: a wait that took at most spin_max_ns in all would have gained from
 * spinning, so it doubles the budget (up to spin_max_ns); a longer wait halves the
 * budget, down to nothing. spin_max_ns is 0 if spinning would take the processor away
 * from the peer: with a single processor, or if the caller asked for that.
 */
#include <errno.h>
#include <poll.h>
#include <tern/channel.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"

#define SPIN_STEP_NS 1000u
#define CLOCK_EVERY  8u

static void adapt(struct tern_context *ctx, uint64_t waited_ns)
{
	if (waited_ns <= ctx->spin_max_ns)
		ctx->spin_ns = TERN_MIN(
			TERN_MAX(2 * ctx->spin_ns, SPIN_STEP_NS), ctx->spin_max_ns);
	else
		ctx->spin_ns = ctx->spin_ns > SPIN_STEP_NS ? ctx->spin_ns / 2 : 0;
}

static bool is_over(const struct tern_req *req, int events)
{
	return events < 0 || (req ? tern_test(req) != -EINPROGRESS : events > 0);
}

/* Spins until the wait is over or the time `until_ns` has come. Returns what the last
 * tern_progress() returned. */
static int spin(struct tern_context *ctx, const struct tern_req *req, uint64_t until_ns)
{
	for (unsigned round = 1;; round++) {
		int events = tern_progress(ctx);

		if (is_over(req, events) || !ctx->spin_ns)
			return events;
		if (round % CLOCK_EVERY == 0 && tern_now_ns(ctx->env) >= until_ns)
			return events;
		if (!events)
			tern_cpu_relax();
	}
}

/* Sleeps until the context has an event. Returns 0, also after a wake-up without an
 * event; -ETIMEDOUT when `deadline_ns` has passed; or the error of tern_arm(). */
static int sleep_until(struct tern_context *ctx, uint64_t deadline_ns)
{
	struct pollfd pfd = {.fd = tern_context_fd(ctx), .events = POLLIN};
	uint64_t now_ns = deadline_ns == TERN_NEVER ? 0 : tern_now_ns(ctx->env);
	uint64_t left_ns = deadline_ns - now_ns;
	struct timespec timeout = {.tv_sec = (time_t)(left_ns / TERN_NS_PER_S),
		.tv_nsec = (long)(left_ns % TERN_NS_PER_S)};
	int status;

	if (now_ns >= deadline_ns)
		return -ETIMEDOUT;
	status = tern_arm(ctx);
	if (status)
		return status == -EAGAIN ? 0 : status;
	ppoll(&pfd, 1, deadline_ns == TERN_NEVER ? NULL : &timeout, NULL);
	return 0;
}

static int wait_for(
	struct tern_context *ctx, const struct tern_req *req, uint64_t timeout_ns)
{
	uint64_t start_ns = tern_now_ns(ctx->env);
	uint64_t deadline_ns = tern_ns_add(start_ns, timeout_ns);
	int status = 0, events;

	if (tern_context_fd(ctx) < 0)
		return -ENOTSUP;
	events = spin(ctx, req, TERN_MIN(start_ns + ctx->spin_ns, deadline_ns));
	while (!is_over(req, events) && !status) {
		status = sleep_until(ctx, deadline_ns);
		events = tern_progress(ctx);
	}
	adapt(ctx, tern_now_ns(ctx->env) - start_ns);
	if (events < 0)
		return events;
	return is_over(req, events) ? 0 : status;
}

int tern_wait(struct tern_context *ctx, struct tern_req *req, uint64_t timeout_ns)
{
	int status = 0;

	if (tern_test(req) == -EINPROGRESS)
		status = wait_for(ctx, req, timeout_ns);
	else /* a small send has ended, but its bytes may still be queued: send them */
		status = TERN_MIN(tern_progress(ctx), 0);
	return status ? status : tern_test(req);
}

int tern_wait_any(struct tern_context *ctx, uint64_t timeout_ns)
{
	return wait_for(ctx, NULL, timeout_ns);
}
