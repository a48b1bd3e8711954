/* SPDX-License-Identifier: Apache-2.0 */
/* What a session over verbs does not overcome: a device that does not take the memory, as
 * with too low a limit on locked memory; a path that comes up and carries nothing. */
#include "tests/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"
#include "tests/fake_verbs/fake_verbs.h"

static unsigned line_count;
static char last_line[512];
static enum tern_log_level kept_level = TERN_LOG_ERROR;

static void keep(struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	if (level != kept_level)
		return;
	line_count++;
	snprintf(last_line, sizeof(last_line), "%s", line);
}

static void down(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer;
	if (event == TERN_PEER_DOWN)
		*(int *)arg = status;
}

static void test_refusal_is_told_once_whatever_is_tried(void **state)
{
	struct fake_verbs_opts machine = fake_verbs_defaults();
	struct tern_domain_opts opts = {.verbs_api = fake_verbs_api()};
	struct tern_env_ops ops = *tern_env_system()->ops;
	struct tern_env env = {.ops = &ops, .log_level = TERN_LOG_WARN};
	struct tern_context_opts ctx_opts = {
		.env = &env, .connect_ns = 300 * TERN_NS_PER_MS};
	struct tern_pool_opts pool_opts = {.slab_bytes = 8u << 20};
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer;
	int status = 1;
	struct tern_peer_opts peer_opts = {.event = down, .arg = &status};

	(void)state;
	ops.log = keep;
	machine.device_count = 1;
	machine.reg_limit_bytes = 4u << 20;
	fake_verbs_reset(&machine);
	assert_int_equal(tern_domain_new(&opts, &domain), 0);
	assert_int_equal(tern_pool_new(domain, &pool_opts, &pool), 0);
	assert_int_equal(tern_context_new(domain, &ctx_opts, &ctx), 0);
	assert_int_equal(
		tern_connect(ctx, "verbs://10.7.0.1:7000", &peer_opts, &peer), 0);
	while (status == 1)
		tern_wait_any(ctx, 10 * TERN_NS_PER_MS);
	assert_int_equal(status, -ENOMEM);
	assert_true(fake_verbs_calls("reg_mr") > 1);
	assert_int_equal(line_count, 1);
	assert_non_null(strstr(last_line, "cannot register 8 MiB"));
	tern_peer_free(peer);
	tern_context_free(ctx);
	tern_pool_free(pool);
	tern_domain_free(domain);
	fake_verbs_reset(NULL);
}

/* ---- links that carry nothing ---- */

struct fruitless {
	struct tern_peer *a, *b;
	unsigned recovered_count;
	int status;
};

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct fruitless *)arg)->b = peer;
}

static void break_all_pairs(void)
{
	struct fake_verbs_qp qps[16];
	unsigned count = fake_verbs_qps(qps, TERN_ARRAY_SIZE(qps));

	for (unsigned i = 0; i < count; i++)
		fake_verbs_qp_break(qps[i].qp_num);
}

/* As soon as it is there again, before anything that waits has left. */
static void break_again(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct fruitless *f = arg;

	(void)peer;
	if (event == TERN_PEER_RECOVERED) {
		f->recovered_count++;
		break_all_pairs();
	} else if (event == TERN_PEER_DOWN) {
		f->status = status;
	}
}

static void test_a_path_that_carries_nothing_is_the_end(void **state)
{
	struct fake_verbs_opts machine = fake_verbs_defaults();
	struct tern_domain_opts opts = {
		.verbs_api = fake_verbs_api(), .verbs = "from=10.7.0.1"};
	struct tern_env_ops ops = *tern_env_system()->ops;
	struct tern_env env = {.ops = &ops, .log_level = TERN_LOG_WARN};
	struct tern_context_opts ctx_opts = {.env = &env,
		.suspect_ns = 50 * TERN_NS_PER_MS,
		.dead_ns = 300 * TERN_NS_PER_MS};
	struct fruitless f = {.status = 1};
	struct tern_peer_opts peer_opts = {.event = break_again, .arg = &f};
	struct tern_domain *domain;
	struct tern_context *a, *b;
	struct tern_listener *listener;
	struct tern_channel *channel;
	struct tern_pool *pool;
	struct tern_req req = {0};
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, 64)};
	uint64_t until_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;

	(void)state;
	ops.log = keep;
	line_count = 0;
	kept_level = TERN_LOG_WARN;
	fake_verbs_reset(&machine);
	assert_int_equal(tern_domain_new(&opts, &domain), 0);
	assert_int_equal(tern_pool_new(domain,
				 &(struct tern_pool_opts){.slab_bytes = 1 << 20}, &pool),
		0);
	assert_int_equal(tern_pool_get(pool, 64, &tensor.buf), 0);
	assert_int_equal(tern_context_new(domain, &ctx_opts, &a), 0);
	assert_int_equal(tern_context_new(domain, &ctx_opts, &b), 0);
	assert_int_equal(
		tern_listen(b, "verbs://10.7.0.2:0", NULL, on_accept, &f, &listener), 0);
	assert_int_equal(
		tern_connect(a, tern_listener_address(listener), &peer_opts, &f.a), 0);
	while (!f.b) {
		tern_progress(a);
		tern_progress(b);
	}
	break_all_pairs();
	assert_int_equal(tern_channel_open(f.a, 1, &channel), 0);
	assert_int_equal(tern_send(channel, &req, 1, 0, &tensor, NULL, 0), 0);
	while (f.status == 1 && tern_clock_ns() < until_ns) {
		tern_progress(a);
		tern_progress(b);
	}
	assert_true(f.status < 0);
	assert_in_range(f.recovered_count, 15, 10000);
	assert_non_null(strstr(last_line, " connections in a row carried nothing"));
	tern_peer_free(f.a);
	tern_context_free(a);
	tern_context_free(b);
	tern_pool_put(pool, &tensor.buf);
	tern_pool_free(pool);
	tern_domain_free(domain);
	fake_verbs_reset(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusal_is_told_once_whatever_is_tried),
		cmocka_unit_test(test_a_path_that_carries_nothing_is_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
