/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that freeing a context waits while a peer reads its memory in place: the call
 * logs which peer it waits for, and the bytes do not change. Over shm; a second
 * thread frees the sender's context, while the first one drives the reader. */
#include "tests/harness/cmocka.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/env.h"
#include "transport/context.h"

#define BYTES 100000u

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_req req;
};

static struct end sender, reader;
static atomic_bool was_said, is_free;

static void look_for_line(
	struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	if (level == TERN_LOG_WARN &&
		strstr(line, "the tensors that it reads in place (1)"))
		atomic_store(&was_said, true);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	(void)arg;
	reader.peer = peer;
}

static void *free_sender(void *arg)
{
	(void)arg;
	tern_context_free(sender.ctx);
	atomic_store(&is_free, true);
	return NULL;
}

static void turn(void)
{
	tern_progress(sender.ctx);
	tern_progress(reader.ctx);
}

static void open_both(struct tern_env *env)
{
	struct tern_listener *listener;
	char url[64];

	snprintf(url, sizeof(url), "shm://test-reader-%d", (int)getpid());
	assert_int_equal(tern_domain_new(NULL, &sender.domain), 0);
	assert_int_equal(tern_domain_new(NULL, &reader.domain), 0);
	assert_int_equal(tern_context_new_in(sender.domain, NULL, env, &sender.ctx), 0);
	assert_int_equal(tern_context_new(reader.domain, NULL, &reader.ctx), 0);
	assert_int_equal(
		tern_listen(reader.ctx, url, NULL, on_accept, NULL, &listener), 0);
	assert_int_equal(tern_connect(sender.ctx, url, NULL, &sender.peer), 0);
	while (!reader.peer)
		turn();
	assert_int_equal(tern_channel_open(sender.peer, 1, &sender.channel), 0);
	assert_int_equal(tern_channel_open(reader.peer, 1, &reader.channel), 0);
}

static void test_who_is_waited_for_is_said_and_keeps_its_bytes(void **state)
{
	struct tern_env_ops ops = *tern_env_system()->ops;
	struct tern_env env = {.ops = &ops, .log_level = TERN_LOG_WARN};
	struct tern_pool_opts opts = {.slab_bytes = 1 << 20};
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, BYTES)};
	struct tern_pool *pool;
	pthread_t thread;

	(void)state;
	ops.log = look_for_line;
	open_both(&env);
	assert_int_equal(tern_pool_new(sender.domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, BYTES, &tensor.buf), 0);
	memset(tern_buf_ptr(&tensor.buf), 7, BYTES);
	assert_int_equal(
		tern_send(sender.channel, &sender.req, 1, 0, &tensor, NULL, 0), 0);
	assert_int_equal(
		tern_recv(reader.channel, &reader.req, 1, 0, NULL, NULL, TERN_RECV_PEEK),
		0);
	while (reader.req.status == -EINPROGRESS)
		turn();
	assert_true(reader.req.peeked);
	assert_int_equal(pthread_create(&thread, NULL, free_sender, NULL), 0);
	while (!atomic_load(&was_said))
		tern_wait_any(reader.ctx, 10000000);
	assert_false(atomic_load(&is_free));
	for (unsigned i = 0; i < BYTES; i++)
		assert_int_equal(((const unsigned char *)reader.req.data)[i], 7);
	tern_release(&reader.req);
	while (!atomic_load(&is_free))
		tern_wait_any(reader.ctx, 10000000);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(sender.req.status < 0);
	tern_context_free(reader.ctx);
	tern_pool_put(pool, &tensor.buf);
	tern_pool_free(pool);
	tern_domain_free(sender.domain);
	tern_domain_free(reader.domain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who_is_waited_for_is_said_and_keeps_its_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
