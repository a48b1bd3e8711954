/* SPDX-License-Identifier: Apache-2.0 */
/* A device that does not take the memory, as with too low a limit on locked memory. */
#include "tests/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "tests/fake_verbs/fake_verbs.h"

static unsigned line_count;
static char last_line[512];

static void keep(struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	if (level != TERN_LOG_ERROR)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusal_is_told_once_whatever_is_tried),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
