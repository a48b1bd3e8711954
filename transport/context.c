/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context: ports (one per fabric), timers, deferred calls, and one epoll fd that
 * becomes readable when any of them needs tern_progress().
 *
 * While its thread polls, tern_progress makes no system call of its own. Before sleeping,
 * tern_arm() prepares the ports, sets the timer fd and sets `sleeping`; the next
 * tern_progress undoes that, so that the fds of the context itself are quiet again.
 *
 * tern_context_wake() on another thread sets `woken` and then reads `sleeping`;
 * tern_arm() sets `sleeping` and then reads `woken`. Both use sequentially consistent
 * order, so at least one of them sees the other's flag: either the owner does not sleep,
 * or the waker writes to the eventfd. So a wake-up of a thread that is awake costs no
 * system call.
 *
 * `sleeping` is cleared by an atomic exchange, either by the owner (the context's thread)
 * or by a waker (another thread). If the owner clears it, no waker writes to the eventfd
 * for this sleep. If a waker clears it, that waker adds one to the eventfd: immediately
 * or, if it is preempted in between, during a later sleep, which then ends early. The
 * owner therefore counts in `wakes_owed` the writes that wakers have made or will make,
 * minus those it has read. While the count is zero, the eventfd is empty and stays empty;
 * otherwise each awakening reads it. A late write finds the count above zero and is read
 * after it has ended a sleep.
 *
 * The simulator uses no fds; it finds the next event by tern_context_next_ns().
 */
#include "transport/context.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/sized.h"
#include "transport/gpu/stager.h"

#define PORT_BUDGET 64
/* Assumed limit of open descriptors if it is unknown, as in the simulator. */
#define FILES_UNKNOWN 512u
#define SPIN_US       20u
#define RAILS_MAX     8
#define DRAIN_WAIT_MS 10

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
	return value ? value : otherwise;
}

static unsigned cpu_count(void)
{
	cpu_set_t set;

	/* The call fails on machines with more than 1024 CPUs: assume more than one
	 * CPU. */
	if (sched_getaffinity(0, sizeof(set), &set))
		return 2;
	return (unsigned)CPU_COUNT(&set);
}

static int set_opts(
	struct tern_context *ctx, const struct tern_context_opts *opts, size_t opts_bytes)
{
	struct tern_context_opts *o = &ctx->opts;
	char *secret, *device;
	int r = tern_read_sized(o, sizeof(*o), opts, opts_bytes);

	if (r)
		return r;
	o->suspect_ns = or_default(o->suspect_ns, TERN_NS_PER_S);
	o->dead_ns = or_default(o->dead_ns, TERN_NEVER);
	o->unreachable_ns =
		or_default(o->unreachable_ns, TERN_MIN(o->dead_ns, 10 * TERN_NS_PER_S));
	o->reconnect_ns = or_default(o->reconnect_ns, 500 * TERN_NS_PER_MS);
	o->connect_ns = or_default(o->connect_ns, 5 * TERN_NS_PER_S);
	o->record_count = (uint32_t)or_default(o->record_count, 4096);
	o->rail_count = (uint32_t)or_default(o->rail_count, 1);
	if (!o->spin_us)
		o->spin_us = SPIN_US;
	if (o->no_spin || cpu_count() == 1)
		o->spin_us = 0;
	ctx->spin_ns = ctx->spin_max_ns = o->spin_us * TERN_NS_PER_US;
	/* Both copies are made before either is checked, so that ctx never points to
	 * the caller's strings. */
	secret = o->secret ? strdup(o->secret) : NULL;
	device = o->rdma_device ? strdup(o->rdma_device) : NULL;
	if ((o->secret && !secret) || (o->rdma_device && !device))
		r = -ENOMEM;
	o->secret = secret;
	o->rdma_device = device;
	return !r && o->rail_count > RAILS_MAX ? -EINVAL : r;
}

static int watch(struct tern_context *ctx, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};

	return epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static uint64_t file_max(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) ? FILES_UNKNOWN : limit.rlim_cur;
}

static int open_fds(struct tern_context *ctx)
{
	ctx->file_max = file_max();
	ctx->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (ctx->epoll_fd < 0)
		return -errno;
	ctx->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (ctx->wake_fd < 0)
		return -errno;
	ctx->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (ctx->timer_fd < 0)
		return -errno;
	return watch(ctx, ctx->wake_fd) ?: watch(ctx, ctx->timer_fd);
}

static void wake_context(void *arg)
{
	tern_context_wake(arg);
}

/* Makes this context the one that the environment wakes. -EBUSY: another context uses the
 * environment. */
static int take_env(struct tern_context *ctx)
{
	if (ctx->env->wake == wake_context)
		return -EBUSY;
	ctx->env->wake = wake_context;
	ctx->env->wake_arg = ctx;
	return 0;
}

static void destroy(struct tern_context *ctx)
{
	tern_fork_remove(&ctx->forkable);
	tern_stagers_free(ctx);
	for (unsigned i = 0; i < ctx->port_count; i++) {
		if (ctx->ports[i])
			ctx->ports[i]->ops->port_free(ctx->ports[i]);
	}
	if (ctx->env && ctx->env->wake_arg == ctx) {
		ctx->env->wake = NULL;
		ctx->env->wake_arg = NULL;
	}
	tern_cleanup_close(&ctx->timer_fd);
	tern_cleanup_close(&ctx->wake_fd);
	tern_cleanup_close(&ctx->epoll_fd);
	if (ctx->opts.secret)
		explicit_bzero(
			(char *)(uintptr_t)ctx->opts.secret, strlen(ctx->opts.secret));
	free((char *)(uintptr_t)ctx->opts.secret);
	free((char *)(uintptr_t)ctx->opts.rdma_device);
	free(ctx->heap);
	free(ctx);
}

static void log_to_program(
	struct tern_env *env, enum tern_log_level level, const char *line)
{
	struct tern_context *ctx = tern_container_of(env, struct tern_context, own_env);

	ctx->opts.log(level, line, ctx->opts.log_arg);
}

static struct tern_env *make_env(struct tern_context *ctx)
{
	ctx->own_env = *tern_env_system();
	ctx->own_env.log_level = ctx->opts.log_level;
	if (ctx->opts.log) {
		ctx->own_ops = *ctx->own_env.ops;
		ctx->own_ops.log = log_to_program;
		ctx->own_env.ops = &ctx->own_ops;
	}
	return &ctx->own_env;
}

static int open_context(struct tern_domain *domain, const struct tern_context_opts *opts,
	size_t opts_bytes, struct tern_env *env, struct tern_context **out)
{
	struct tern_context *ctx =
		calloc(1, sizeof(*ctx) + domain->fabric_count * sizeof(ctx->ports[0]));
	int status;

	if (!ctx)
		return -ENOMEM;
	ctx->domain = domain;
	ctx->port_count = domain->fabric_count;
	ctx->epoll_fd = ctx->wake_fd = ctx->timer_fd = -1;
	ctx->timer_fd_ns = TERN_NEVER;
	ctx->file_max = FILES_UNKNOWN;
	tern_list_init(&ctx->deferred);
	tern_list_init(&ctx->stagers);
	status = set_opts(ctx, opts, opts_bytes);
	if (!status && !domain->hooks.sim)
		status = open_fds(ctx);
	if (!status) {
		ctx->env = env ? env : make_env(ctx);
		status = take_env(ctx);
	}
	if (!status)
		status = tern_rendezvous_init(ctx);
	if (status) {
		destroy(ctx);
		return status;
	}
	tern_domain_hold(domain, TERN_TENANT_CONTEXT);
	if (ctx->epoll_fd >= 0)
		tern_fork_add(&ctx->forkable, ctx->epoll_fd);
	*out = ctx;
	return 0;
}

int tern_context_new_sized(struct tern_domain *domain,
	const struct tern_context_opts *opts, size_t opts_bytes,
	struct tern_context **out)
{
	return open_context(domain, opts, opts_bytes, NULL, out);
}

int tern_context_new_in(struct tern_domain *domain, const struct tern_context_opts *opts,
	struct tern_env *env, struct tern_context **out)
{
	return open_context(domain, opts, sizeof(*opts), env, out);
}

int tern_context_port(
	struct tern_context *ctx, struct tern_fabric *fabric, struct tern_port **out)
{
	struct tern_port **slot = &ctx->ports[fabric->index];
	struct tern_port_opts opts = {
		.env = ctx->env,
		.handler = ctx->user.handler,
		.arg = ctx->user.arg,
		.message_bytes = ctx->user.message_bytes,
		.device = ctx->opts.rdma_device,
		.unreachable_ns = ctx->opts.unreachable_ns,
	};
	struct tern_port *port;
	int status, fd;

	if (!*slot) {
		status = fabric->ops->port_new(fabric, &opts, &port);
		if (status)
			return status;
		fd = fabric->ops->fd(port);
		if (fd >= 0 && ctx->epoll_fd >= 0) {
			status = watch(ctx, fd);
			if (status) {
				fabric->ops->port_free(port);
				return status;
			}
		}
		*slot = port;
	}
	*out = *slot;
	return 0;
}

/* ---- progress ---- */

static int set_timer_fd(struct tern_context *ctx, uint64_t next_ns, uint64_t now_ns)
{
	struct itimerspec spec = {0};

	if (ctx->timer_fd < 0 || next_ns == ctx->timer_fd_ns)
		return 0;
	/* The time is relative, since the environment's clock may have another origin;
	 * zero turns the timer off. */
	if (next_ns != TERN_NEVER) {
		spec.it_value.tv_sec = (time_t)((next_ns - now_ns) / TERN_NS_PER_S);
		spec.it_value.tv_nsec = (long)((next_ns - now_ns) % TERN_NS_PER_S);
	}
	if (timerfd_settime(ctx->timer_fd, 0, &spec, NULL))
		return -errno;
	ctx->timer_fd_ns = next_ns;
	return 0;
}

/* Empties wake_fd, and counts what wakers have written to it. */
static void empty_wake_fd(struct tern_context *ctx)
{
	uint64_t count;
	ssize_t n;

	do {
		n = read(ctx->wake_fd, &count, sizeof(count));
	} while (n < 0 && errno == EINTR);
	if (n == sizeof(count))
		ctx->wakes_owed -= count;
}

static void disarm(struct tern_context *ctx)
{
	ctx->armed = false;
	/* If `sleeping` is already cleared, a waker has cleared it, and writes to
	 * wake_fd, now or later. Count this write, as the head of this file explains. */
	if (!atomic_exchange(&ctx->sleeping, false) && ctx->wake_fd >= 0)
		ctx->wakes_owed++;
	if (ctx->wakes_owed)
		empty_wake_fd(ctx);
	/* Turn the timer off instead of reading it: the kernel's clock may lag behind
	 * the environment's, and then the timer would expire after the read. */
	if (ctx->timer_fd_ns <= tern_now_ns(ctx->env))
		set_timer_fd(ctx, TERN_NEVER, 0);
}

void tern_defer(struct tern_context *ctx, struct tern_deferred *deferred)
{
	if (!deferred->node.next || !tern_list_linked(&deferred->node)) {
		tern_list_init(&deferred->node);
		tern_list_push(&ctx->deferred, &deferred->node);
	}
}

/* Makes the deferred calls. Calls deferred meanwhile are made in the next round. */
static int run_deferred(struct tern_context *ctx)
{
	struct tern_list round, *node;
	int count = 0;

	if (tern_list_empty(&ctx->deferred))
		return 0;
	tern_list_init(&round);
	tern_list_splice(&round, &ctx->deferred);
	while ((node = tern_list_pop(&round))) {
		struct tern_deferred *deferred =
			tern_list_entry(node, struct tern_deferred, node);

		deferred->call(deferred);
		count++;
	}
	return count;
}

/* False if the CPU's tick counter shows that at most about 4 us have passed since this
 * function last returned true: the timers may wait that long. Reading the clock instead
 * would take half of the time of a poll that finds nothing. */
static bool time_has_passed(struct tern_context *ctx)
{
	uint64_t ticks;

	if (!ctx->env->ops->ticks)
		return true;
	ticks = ctx->env->ops->ticks(ctx->env);
	if (ticks - ctx->timers_ticks < TERN_TICKS_LULL)
		return false;
	ctx->timers_ticks = ticks;
	return true;
}

static int run_timers(struct tern_context *ctx)
{
	/* One call fires at most as many timers as are set now, so timers that set
	 * themselves again in fire() cannot keep it from returning. */
	uint32_t left = ctx->timer_count;
	uint64_t now_ns;
	int count = 0;

	if (!left || !time_has_passed(ctx))
		return 0;
	now_ns = tern_now_ns(ctx->env);
	while (left-- > 0 && tern_context_next_ns(ctx) <= now_ns) {
		struct tern_timer *timer = ctx->heap[0];

		tern_timer_clear(ctx, timer);
		timer->fire(timer);
		count++;
	}
	return count;
}

static int progress(struct tern_context *ctx)
{
	int count = 0;

	if (ctx->armed)
		disarm(ctx);
	/* Clear `woken` before the environment is polled: if more work is queued after
	 * this, `woken` is set again. */
	if (tern_unlikely(atomic_load_explicit(&ctx->woken, memory_order_relaxed)))
		count += atomic_exchange(&ctx->woken, false);
	count += run_deferred(ctx);
	for (unsigned i = 0; i < ctx->port_count; i++) {
		struct tern_port *port = ctx->ports[i];
		int events = port ? port->ops->poll(port, PORT_BUDGET) : 0;

		if (events < 0)
			return events;
		count += events;
	}
	/* Call done() of completed requests before reading the clock: often a caller is
	 * waiting for that done(). */
	count += run_deferred(ctx);
	if (!tern_list_empty(&ctx->stagers))
		count += tern_stagers_poll(ctx);
	count += tern_env_poll(ctx->env);
	count += run_timers(ctx);
	return count + run_deferred(ctx);
}

int tern_progress(struct tern_context *ctx)
{
	int count;

	tern_assert(!ctx->in_progress);
	ctx->in_progress = true;
	count = progress(ctx);
	ctx->in_progress = false;
	return count;
}

/* ---- sleeping ---- */

int tern_arm(struct tern_context *ctx)
{
	uint64_t next_ns, now_ns = 0;
	int status;

	tern_assert(!ctx->in_progress);
	/* tern_arm() was called twice without tern_progress() in between: undo the first
	 * call. */
	if (ctx->armed)
		disarm(ctx);
	if (!tern_list_empty(&ctx->deferred))
		return -EAGAIN;
	tern_stagers_arm(ctx);
	next_ns = tern_context_next_ns(ctx);
	if (next_ns != TERN_NEVER) {
		now_ns = tern_now_ns(ctx->env);
		if (next_ns <= now_ns)
			return -EAGAIN;
	}
	for (unsigned i = 0; i < ctx->port_count; i++) {
		status = ctx->ports[i] ? ctx->ports[i]->ops->arm(ctx->ports[i]) : 0;
		if (status)
			return status;
	}
	status = set_timer_fd(ctx, next_ns, now_ns);
	if (status)
		return status;
	ctx->armed = true;
	/* One half of the handshake with tern_context_wake(): see the head of this
	 * file. */
	atomic_store(&ctx->sleeping, true);
	return atomic_load(&ctx->woken) ? -EAGAIN : 0;
}

static void write_wake_fd(struct tern_context *ctx)
{
	uint64_t one = 1;

	/* The write fails only if the eventfd's counter is full; then the fd is readable
	 * anyway. */
	while (write(ctx->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void tern_context_wake(struct tern_context *ctx)
{
	atomic_store(&ctx->woken, true);
	if (atomic_exchange(&ctx->sleeping, false) && ctx->wake_fd >= 0)
		write_wake_fd(ctx);
}

void tern_context_rouse(struct tern_context *ctx)
{
	if (ctx->wake_fd < 0)
		return;
	if (ctx->armed) {
		tern_context_wake(ctx);
		return;
	}
	ctx->wakes_owed++;
	write_wake_fd(ctx);
}

/* ---- the end ---- */

void tern_context_free(struct tern_context *ctx)
{
	struct tern_domain *domain;
	struct pollfd pfd;

	if (!ctx)
		return;
	pfd = (struct pollfd){.fd = ctx->epoll_fd, .events = POLLIN};
	ctx->ending = true;
	if (ctx->user.free)
		ctx->user.free(ctx->user.arg);
	/* Wait until network devices and peers have stopped using memory through this
	 * context. An error returned to the caller would not stop them. */
	while (ctx->user.drained && !ctx->user.drained(ctx->user.arg)) {
		if (tern_progress(ctx) == 0 && pfd.fd >= 0 && tern_arm(ctx) == 0)
			poll(&pfd, 1, DRAIN_WAIT_MS);
	}
	domain = ctx->domain;
	destroy(ctx);
	tern_domain_drop(domain, TERN_TENANT_CONTEXT);
}

int tern_context_fd(struct tern_context *ctx)
{
	return ctx->epoll_fd;
}

struct tern_domain *tern_context_domain(struct tern_context *ctx)
{
	return ctx->domain;
}

int tern_context_prepare(struct tern_context *ctx, const struct tern_mem *mem)
{
	struct tern_stager *stager;

	return mem->kind == TERN_MEM_HOST ? 0
					  : tern_context_stager(ctx, mem->gpu, &stager);
}

struct tern_env *tern_context_env(struct tern_context *ctx)
{
	return ctx->env;
}
