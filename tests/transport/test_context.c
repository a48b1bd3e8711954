/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of contexts over a fabric made for these tests, whose port counts its calls. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <tern/channel.h>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/context.h"

/* ---- the fabric, the environment and the layer above ---- */

static struct {
	struct tern_port port;
	struct tern_fabric fabric;
	int fd;
	int polls, arms, frees;
	int events, arm_status;
} fake;

static int fake_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	(void)domain;
	(void)opts;
	(void)why;
	*out = &fake.fabric;
	return 0;
}

static void fake_close(struct tern_fabric *fabric)
{
	(void)fabric;
}

static int fake_port_new(struct tern_fabric *fabric, const struct tern_port_opts *opts,
	struct tern_port **out)
{
	(void)opts;
	fake.port.ops = fabric->ops;
	fake.port.fabric = fabric;
	*out = &fake.port;
	return 0;
}

static void fake_port_free(struct tern_port *port)
{
	(void)port;
	fake.frees++;
}

static int fake_poll(struct tern_port *port, int budget)
{
	int events = fake.events;

	(void)port;
	assert_true(budget > 0);
	fake.polls++;
	fake.events = events < 0 ? events : 0;
	return events;
}

static int fake_arm(struct tern_port *port)
{
	(void)port;
	fake.arms++;
	return fake.arm_status;
}

static int fake_fd(struct tern_port *port)
{
	(void)port;
	return fake.fd;
}

static const struct tern_fabric_ops fake_tcp = {.name = "tcp",
	.open = fake_open,
	.close = fake_close,
	.port_new = fake_port_new,
	.port_free = fake_port_free,
	.poll = fake_poll,
	.arm = fake_arm,
	.fd = fake_fd};
static const struct tern_fabric_ops fake_sim = {.name = "sim",
	.simulated = true,
	.open = fake_open,
	.close = fake_close,
	.port_new = fake_port_new,
	.port_free = fake_port_free,
	.poll = fake_poll,
	.arm = fake_arm,
	.fd = fake_fd};

const struct tern_fabric_ops *const tern_fabric_table[] = {&fake_tcp, &fake_sim, NULL};

static int user_frees, polls_to_drain;

static void user_free(void *arg)
{
	(void)arg;
	user_frees++;
}

static bool user_drained(void *arg)
{
	(void)arg;
	return fake.polls >= polls_to_drain;
}

int tern_rendezvous_init(struct tern_context *ctx)
{
	ctx->user = (struct tern_context_user){.arg = ctx,
		.message_bytes = 4096,
		.free = user_free,
		.drained = user_drained};
	return 0;
}

static uint64_t fake_now_ns;

static uint64_t now_ns(struct tern_env *env)
{
	(void)env;
	return fake_now_ns;
}

static const struct tern_env_ops env_ops = {.now_ns = now_ns};
static struct tern_env fake_env = {.ops = &env_ops};

static struct tern_domain *domain;
static struct tern_context *ctx;

/* Opens a domain and a context. `env` NULL: the context gets an environment of its own. */
static void open_hooked(const struct tern_domain_hooks *hooks,
	const struct tern_context_opts *opts, struct tern_env *env)
{
	struct tern_port *port;

	memset(&fake, 0, sizeof(fake));
	user_frees = polls_to_drain = 0;
	fake_now_ns = 1000;
	fake.fd = eventfd(0, EFD_NONBLOCK);
	assert_int_equal(tern_domain_new_hooked(NULL, hooks, &domain), 0);
	assert_int_equal(tern_context_new_in(domain, opts, env, &ctx), 0);
	assert_int_equal(tern_context_port(ctx, domain->fabrics[0], &port), 0);
}

static void open_context(const struct tern_context_opts *opts)
{
	open_hooked(NULL, opts, NULL);
}

static void close_context(void)
{
	tern_context_free(ctx);
	tern_domain_free(domain);
	assert_int_equal(user_frees, 1);
	assert_int_equal(fake.frees, 1);
	close(fake.fd);
}

static bool is_readable(int timeout_ms)
{
	struct pollfd pfd = {.fd = tern_context_fd(ctx), .events = POLLIN};

	return poll(&pfd, 1, timeout_ms) == 1;
}

/* Checks that the context's fd does not stay readable. */
static void check_quiet(void)
{
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tern_arm(ctx), 0);
		assert_false(is_readable(0));
		tern_progress(ctx);
	}
}

/* ---- timers ---- */

#define TIMERS 300

static struct tern_timer timers[TIMERS];
static uint64_t last_due_ns;
static int fired;

static void fire(struct tern_timer *timer)
{
	assert_int_equal(timer->place, 0);
	assert_true(timer->due_ns >= last_due_ns);
	assert_true(timer->due_ns <= fake_now_ns);
	last_due_ns = timer->due_ns;
	fired++;
}

static void test_timers_fire_in_order_after_any_changes(void **state)
{
	struct tern_rng rng = {.seed = 7};
	int set = 0, events;

	(void)state;
	open_hooked(NULL, NULL, &fake_env);
	memset(timers, 0, sizeof(timers));
	last_due_ns = 0;
	fired = 0;
	for (int i = 0; i < 5000; i++) {
		struct tern_timer *timer = &timers[tern_rng_below(&rng, TIMERS)];
		uint64_t least = UINT64_MAX;

		timer->fire = fire;
		if (tern_rng_below(&rng, 4) == 0)
			tern_timer_clear(ctx, timer);
		else
			assert_int_equal(tern_timer_set(ctx, timer,
						 2000 + tern_rng_below(&rng, 500)),
				0);
		for (int j = 0; j < TIMERS; j++) {
			if (timers[j].place && timers[j].due_ns < least)
				least = timers[j].due_ns;
		}
		assert_int_equal(tern_context_next_ns(ctx), least);
	}
	for (int j = 0; j < TIMERS; j++)
		set += timers[j].place != 0;
	assert_true(set > 100);
	assert_int_equal(tern_progress(ctx), 0);
	fake_now_ns = 2200;
	events = tern_progress(ctx);
	assert_int_equal(events, fired);
	assert_true(fired > 0 && fired < set);
	assert_true(tern_context_next_ns(ctx) > 2200);
	fake_now_ns = 9000;
	tern_progress(ctx);
	assert_int_equal(fired, set);
	assert_int_equal(tern_context_next_ns(ctx), UINT64_MAX);
	close_context();
}

static void fire_and_set_again(struct tern_timer *timer)
{
	fired++;
	tern_timer_set(ctx, timer, 0);
}

static void test_a_timer_that_sets_itself_does_not_hold_progress(void **state)
{
	struct tern_timer timer = {.fire = fire_and_set_again};

	(void)state;
	open_hooked(NULL, NULL, &fake_env);
	fired = 0;
	tern_timer_set(ctx, &timer, 0);
	assert_int_equal(tern_progress(ctx), 1);
	assert_int_equal(tern_progress(ctx), 1);
	assert_int_equal(fired, 2);
	assert_int_equal(tern_arm(ctx), -EAGAIN);
	tern_timer_clear(ctx, &timer);
	tern_timer_clear(ctx, &timer);
	assert_int_equal(tern_arm(ctx), 0);
	close_context();
}

static void count_fire(struct tern_timer *timer)
{
	(void)timer;
	fired++;
}

static void test_a_timer_makes_the_fd_readable(void **state)
{
	struct tern_timer timer = {.fire = count_fire};

	(void)state;
	open_context(NULL);
	fired = 0;
	tern_timer_set(ctx, &timer, tern_clock_ns() + TERN_NS_PER_MS);
	while (!fired) {
		if (tern_arm(ctx) == 0)
			assert_true(is_readable(-1));
		tern_progress(ctx);
	}
	check_quiet();
	close_context();
}

/* ---- deferred calls ---- */

static struct tern_deferred again;
static int calls;

static void call_and_defer(struct tern_deferred *deferred)
{
	calls++;
	tern_defer(ctx, deferred);
	tern_defer(ctx, deferred);
}

static void test_deferred_calls_run_once_each(void **state)
{
	(void)state;
	open_context(NULL);
	again = (struct tern_deferred){.call = call_and_defer};
	calls = 0;
	tern_defer(ctx, &again);
	tern_defer(ctx, &again);
	/* Deferred calls run at the start of tern_progress(). Those that they defer run
	 * after the ports, and those deferred by these run at the end. */
	assert_int_equal(tern_progress(ctx), 3);
	assert_int_equal(calls, 3);
	assert_int_equal(tern_arm(ctx), -EAGAIN);
	tern_list_remove(&again.node);
	assert_int_equal(tern_progress(ctx), 0);
	assert_int_equal(calls, 3);
	assert_int_equal(tern_arm(ctx), 0);
	close_context();
}

/* ---- sleeping and waking ---- */

static void *wake_thread(void *arg)
{
	tern_context_wake(arg);
	return NULL;
}

static void test_wake_from_another_thread_ends_sleep(void **state)
{
	(void)state;
	open_context(NULL);
	for (int i = 0; i < 500; i++) {
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, wake_thread, ctx), 0);
		/* The wake-up is not lost, whichever of the two threads is first. */
		while (tern_progress(ctx) == 0) {
			if (tern_arm(ctx) == 0)
				assert_true(is_readable(-1));
		}
		assert_int_equal(pthread_join(thread, NULL), 0);
	}
	close_context();
}

static void test_a_wake_while_awake_costs_no_sleep_later(void **state)
{
	(void)state;
	open_context(NULL);
	ctx->env->wake(ctx->env->wake_arg);
	assert_int_equal(tern_arm(ctx), -EAGAIN);
	assert_int_equal(tern_progress(ctx), 1);
	assert_int_equal(tern_arm(ctx), 0);
	assert_false(is_readable(0));
	close_context();
}

static void late_write(void)
{
	uint64_t one = 1;

	assert_int_equal(write(ctx->wake_fd, &one, sizeof(one)), sizeof(one));
}

/* A thread that is preempted in the middle of tern_context_wake() writes to the wake-up fd
 * when the sleep that it wanted to end is long over. The late write may cause one wake-up
 * without an event, but the fd must not stay readable. */
static void test_a_wakes_write_that_comes_late_is_read_once(void **state)
{
	(void)state;
	open_context(NULL);
	assert_int_equal(tern_arm(ctx), 0);
	assert_true(atomic_exchange(&ctx->sleeping, false));
	tern_progress(ctx);
	/* A second, complete wake-up must not be mistaken for the late one. */
	assert_int_equal(tern_arm(ctx), 0);
	tern_context_wake(ctx);
	assert_true(is_readable(0));
	assert_int_equal(tern_progress(ctx), 1);
	assert_int_equal(tern_arm(ctx), 0);
	assert_false(is_readable(0));
	late_write();
	assert_true(is_readable(0));
	tern_progress(ctx);
	check_quiet();
	close_context();
}

static void test_a_wake_between_two_arms_is_not_forgotten(void **state)
{
	(void)state;
	open_context(NULL);
	assert_int_equal(tern_arm(ctx), 0);
	tern_context_wake(ctx);
	assert_int_equal(tern_arm(ctx), -EAGAIN);
	assert_int_equal(tern_progress(ctx), 1);
	assert_int_equal(tern_arm(ctx), 0);
	assert_false(is_readable(0));
	/* Again, but here the waking thread writes to the fd after the second arm. */
	assert_true(atomic_exchange(&ctx->sleeping, false));
	assert_int_equal(tern_arm(ctx), 0);
	late_write();
	assert_true(is_readable(0));
	tern_progress(ctx);
	assert_int_equal(tern_arm(ctx), 0);
	assert_false(is_readable(0));
	close_context();
}

static void test_a_ports_event_makes_the_fd_readable(void **state)
{
	uint64_t one = 1;

	(void)state;
	open_context(NULL);
	fake.arm_status = -EAGAIN;
	assert_int_equal(tern_arm(ctx), -EAGAIN);
	fake.arm_status = 0;
	assert_int_equal(tern_arm(ctx), 0);
	assert_int_equal(fake.arms, 2);
	assert_false(is_readable(0));
	assert_int_equal(write(fake.fd, &one, sizeof(one)), sizeof(one));
	assert_true(is_readable(0));
	fake.events = 3;
	assert_int_equal(tern_progress(ctx), 3);
	close_context();
}

static void test_a_broken_port_is_told(void **state)
{
	(void)state;
	open_context(NULL);
	fake.events = -EIO;
	assert_int_equal(tern_progress(ctx), -EIO);
	assert_int_equal(tern_wait_any(ctx, UINT64_MAX), -EIO);
	close_context();
}

/* Runs in a child process that the kernel kills at its first system call, except exit and
 * reading the clock, which is a system call on machines without a vdso for it. Polls 1000
 * times. Returns 0, 1 if a poll returned a wrong number, or 77 if filters are refused. */
static int poll_without_system_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clock_gettime, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	int rounds_right = 0;
	struct sock_fprog program = {TERN_ARRAY_SIZE(filter), filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 77;
	for (int i = 0; i < 1000; i++) {
		fake.events = i % 2;
		rounds_right += tern_progress(ctx) == i % 2;
	}
	return rounds_right == 1000 ? 0 : 1;
}

static void test_polling_makes_no_system_call(void **state)
{
	struct tern_timer timer = {.fire = count_fire};
	pid_t child;
	int status;

	(void)state;
	open_context(NULL);
	tern_timer_set(ctx, &timer, UINT64_MAX - 1);
	child = fork();
	/* _exit() cannot be used, since a sanitizer makes system calls before it. */
	if (child == 0)
		syscall(__NR_exit_group, poll_without_system_calls());
	assert_int_equal(waitpid(child, &status, 0), child);
	close_context();
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("SKIP: seccomp filters are not allowed here\n");
		skip();
	}
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_the_simulated_context_has_no_fd(void **state)
{
	struct tern_domain_hooks hooks = {.sim = (void *)&fake};
	struct tern_req req = {.status = -EINPROGRESS, .posted = TERN_REQ_POSTED};
	struct tern_timer timer = {.fire = count_fire};

	(void)state;
	open_hooked(&hooks, NULL, &fake_env);
	assert_ptr_equal(domain->fabrics[0]->ops, &fake_sim);
	assert_int_equal(tern_context_fd(ctx), -1);
	tern_timer_set(ctx, &timer, 5000);
	assert_int_equal(tern_arm(ctx), 0);
	tern_context_wake(ctx);
	assert_int_equal(tern_progress(ctx), 1);
	assert_int_equal(tern_wait(ctx, &req, 0), -ENOTSUP);
	close_context();
}

/* ---- waiting ---- */

static void test_wait_any_ends_with_an_event_or_the_time(void **state)
{
	(void)state;
	open_context(NULL);
	assert_int_equal(tern_wait_any(ctx, 0), -ETIMEDOUT);
	assert_int_equal(tern_wait_any(ctx, TERN_NS_PER_MS), -ETIMEDOUT);
	assert_true(fake.arms > 0);
	fake.events = 1;
	assert_int_equal(tern_wait_any(ctx, 0), 0);
	fake.events = 1;
	assert_int_equal(tern_wait_any(ctx, UINT64_MAX), 0);
	close_context();
}

struct ending {
	struct tern_timer timer;
	struct tern_req req;
};

static void end_request(struct tern_timer *timer)
{
	tern_list_entry(timer, struct ending, timer)->req.status = -ECANCELED;
}

static void test_wait_returns_the_requests_status(void **state)
{
	struct ending ending = {.timer.fire = end_request,
		.req = {.status = -EINPROGRESS, .posted = TERN_REQ_POSTED}};

	(void)state;
	open_context(NULL);
	assert_int_equal(tern_wait(ctx, &ending.req, TERN_NS_PER_MS), -ETIMEDOUT);
	tern_timer_set(ctx, &ending.timer, tern_clock_ns() + 2 * TERN_NS_PER_MS);
	assert_int_equal(tern_wait(ctx, &ending.req, UINT64_MAX), -ECANCELED);
	assert_int_equal(tern_wait(ctx, &ending.req, 0), -ECANCELED);
	close_context();
}

static void test_spinning_stops_where_it_does_not_pay(void **state)
{
	struct tern_context_opts opts = {.spin_us = 100};
	struct tern_context_opts no_spin = {.spin_us = 100, .no_spin = true};

	(void)state;
	open_context(&opts);
	/* Set here, so that the context may spin also on a single processor. */
	ctx->spin_ns = ctx->spin_max_ns = 100 * TERN_NS_PER_US;
	for (int i = 0; i < 10; i++)
		assert_int_equal(tern_wait_any(ctx, TERN_NS_PER_MS), -ETIMEDOUT);
	assert_int_equal(ctx->spin_ns, 0);
	/* A limit of one second, so that the waits below are shorter on any machine. */
	ctx->spin_max_ns = TERN_NS_PER_S;
	for (int i = 0; i < 40; i++) {
		fake.events = 1;
		assert_int_equal(tern_wait_any(ctx, UINT64_MAX), 0);
	}
	assert_true(ctx->spin_ns > 100 * TERN_NS_PER_US);
	close_context();
	open_context(&no_spin);
	assert_int_equal(ctx->spin_max_ns, 0);
	fake.events = 1;
	assert_int_equal(tern_wait_any(ctx, UINT64_MAX), 0);
	assert_int_equal(ctx->spin_ns, 0);
	close_context();
}

/* ---- creating and freeing ---- */

static void test_free_waits_until_nothing_is_in_use(void **state)
{
	(void)state;
	open_context(NULL);
	polls_to_drain = 5;
	tern_context_free(ctx);
	assert_int_equal(fake.polls, 5);
	ctx = NULL;
	tern_context_free(NULL);
	tern_domain_free(domain);
	close(fake.fd);
}

static void test_options_have_defaults_and_limits(void **state)
{
	struct tern_context_opts bad = {.rail_count = 9, .secret = "s"};
	char secret[] = "s3cret";
	struct tern_context_opts opts = {.secret = secret, .dead_ns = 5};
	struct tern_context *refused;

	(void)state;
	open_context(&opts);
	secret[0] = 'x';
	assert_string_equal(ctx->opts.secret, "s3cret");
	assert_int_equal(ctx->opts.suspect_ns, TERN_NS_PER_S);
	assert_int_equal(ctx->opts.dead_ns, 5);
	assert_int_equal(ctx->opts.rail_count, 1);
	assert_int_equal(ctx->opts.record_count, 4096);
	assert_ptr_equal(tern_context_domain(ctx), domain);
	assert_non_null(tern_context_env(ctx));
	assert_ptr_not_equal(tern_context_env(ctx), tern_env_system());
	assert_int_equal(tern_context_new(domain, &bad, &refused), -EINVAL);
	close_context();
}

/* A second context in the same environment is refused. Wake-ups of the environment must
 * still reach its first context; after that one is freed, another one is accepted. */
static void test_an_environment_has_one_context(void **state)
{
	struct tern_env env = *tern_env_system();
	struct tern_context *second;

	(void)state;
	open_hooked(NULL, NULL, &env);
	assert_int_equal(tern_context_new_in(domain, NULL, &env, &second), -EBUSY);
	assert_ptr_equal(env.wake_arg, ctx);
	close_context();
	assert_null(env.wake);
	open_hooked(NULL, NULL, &env);
	assert_ptr_equal(env.wake_arg, ctx);
	close_context();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_timers_fire_in_order_after_any_changes),
		cmocka_unit_test(test_a_timer_that_sets_itself_does_not_hold_progress),
		cmocka_unit_test(test_a_timer_makes_the_fd_readable),
		cmocka_unit_test(test_deferred_calls_run_once_each),
		cmocka_unit_test(test_wake_from_another_thread_ends_sleep),
		cmocka_unit_test(test_a_wake_while_awake_costs_no_sleep_later),
		cmocka_unit_test(test_a_wakes_write_that_comes_late_is_read_once),
		cmocka_unit_test(test_a_wake_between_two_arms_is_not_forgotten),
		cmocka_unit_test(test_a_ports_event_makes_the_fd_readable),
		cmocka_unit_test(test_a_broken_port_is_told),
		cmocka_unit_test(test_polling_makes_no_system_call),
		cmocka_unit_test(test_the_simulated_context_has_no_fd),
		cmocka_unit_test(test_wait_any_ends_with_an_event_or_the_time),
		cmocka_unit_test(test_wait_returns_the_requests_status),
		cmocka_unit_test(test_spinning_stops_where_it_does_not_pay),
		cmocka_unit_test(test_free_waits_until_nothing_is_in_use),
		cmocka_unit_test(test_options_have_defaults_and_limits),
		cmocka_unit_test(test_an_environment_has_one_context),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
