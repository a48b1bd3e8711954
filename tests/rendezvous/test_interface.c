/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the public functions: calls in the wrong order, uninitialized requests, and
 * programs that were compiled with the headers of another version than the library's.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"

static void test_the_headers_version_is_the_projects(void **state)
{
	char text[32];

	(void)state;
	assert_string_equal(TERN_VERSION, TERN_PROJECT_VERSION);
	assert_string_equal(tern_version(), TERN_VERSION);
	snprintf(text, sizeof(text), "%d.%d.%d", TERN_VERSION_MAJOR, TERN_VERSION_MINOR,
		TERN_VERSION_PATCH);
	assert_string_equal(text, TERN_VERSION);
	assert_true(TERN_VERSION_NUMBER >= TERN_VERSION_OF(0, 0, 9));
	assert_true(TERN_VERSION_NUMBER < TERN_VERSION_OF(1, 0, 0));
}

/* ---- sizes ---- */

/* Space for options or statistics of another version of the library, which may be longer
 * than ours, and have the same beginning. */
union grown {
	struct tern_context_opts opts;
	struct tern_pool_opts pool;
	struct tern_peer_opts peer;
	struct tern_pool_stats stats;
	char bytes[4096];
};

static void test_what_an_old_program_does_not_know_is_not_read(void **state)
{
	struct tern_domain *domain;
	struct tern_context *ctx;
	union grown old;

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	memset(&old, 0xee, sizeof(old));
	memset(&old, 0, offsetof(struct tern_context_opts, rail_count));
	old.opts.suspect_ns = 1234;
	/* The bytes of rail_count and of the pointer `secret` are 0xee. The library must
	 * not read them: it would refuse the call or crash. */
	assert_int_equal(tern_context_new_sized(domain, &old.opts,
				 offsetof(struct tern_context_opts, rail_count), &ctx),
		0);
	assert_int_equal(ctx->opts.suspect_ns, 1234);
	assert_int_equal(ctx->opts.rail_count, 1);
	assert_null(ctx->opts.secret);
	tern_context_free(ctx);
	tern_domain_free(domain);
}

static void test_what_an_old_library_does_not_know_is_refused_unless_it_is_zero(
	void **state)
{
	struct tern_domain *domain;
	struct tern_pool *pool;
	union grown new = {.bytes = {0}};

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	new.pool.slab_bytes = 1 << 20;
	assert_int_equal(tern_pool_new_sized(domain, &new.pool, sizeof(new), &pool), 0);
	tern_pool_free(pool);
	new.bytes[sizeof(new) - 1] = 1;
	assert_int_equal(
		tern_pool_new_sized(domain, &new.pool, sizeof(new), &pool), -E2BIG);
	tern_domain_free(domain);
}

static void test_results_are_as_long_as_the_program_knows(void **state)
{
	struct tern_domain *domain;
	struct tern_pool *pool;
	union grown out;

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_pool_new(domain,
				 &(struct tern_pool_opts){.slab_bytes = 1 << 20}, &pool),
		0);
	memset(&out, 0xee, sizeof(out));
	tern_pool_stats_sized(pool, &out.stats, 8);
	assert_int_equal(out.stats.slab_count, 1);
	assert_int_equal((unsigned char)out.bytes[8], 0xee);
	tern_pool_stats_sized(pool, &out.stats, sizeof(out));
	assert_int_equal(out.stats.slab_bytes, 1 << 20);
	assert_int_equal(out.bytes[sizeof(out.stats)], 0);
	assert_int_equal(out.bytes[sizeof(out) - 1], 0);
	tern_pool_free(pool);
	tern_domain_free(domain);
}

/* ---- order of calls ---- */

static void test_a_pool_given_up_goes_with_its_last_buffer(void **state)
{
	struct tern_pool_opts opts = {.slab_bytes = 1 << 20};
	struct tern_domain_stats stats;
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct tern_buf a, b;

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_pool_new(domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, 100, &a), 0);
	assert_int_equal(tern_pool_get(pool, 100, &b), 0);
	tern_pool_free(pool);
	tern_pool_put(pool, &a);
	memset(tern_buf_ptr(&b), 1, b.bytes);
	tern_domain_stats(domain, &stats);
	assert_int_equal(stats.registered_bytes, 1 << 20);
	tern_pool_put(pool, &b);
	tern_domain_stats(domain, &stats);
	assert_int_equal(stats.registered_bytes, 0);
	tern_domain_free(domain);
}

static void test_a_domain_given_up_first_serves_its_context_and_its_pool(void **state)
{
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_buf buf;

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_context_new(domain, NULL, &ctx), 0);
	assert_int_equal(tern_pool_new(domain,
				 &(struct tern_pool_opts){.slab_bytes = 1 << 20}, &pool),
		0);
	tern_domain_free(domain);
	assert_int_equal(tern_pool_get(pool, 5, &buf), 0);
	assert_int_equal(tern_progress(ctx), 0);
	tern_pool_put(pool, &buf);
	tern_context_free(ctx);
	tern_pool_free(pool);
}

static void test_memory_belongs_to_a_domain(void **state)
{
	struct tern_mem *mem;
	char byte;

	(void)state;
	assert_int_equal(tern_mem_wrap(NULL, &byte, 1, &mem), -EINVAL);
	assert_int_equal(tern_mem_wrap_readonly(NULL, &byte, 1, &mem), -EINVAL);
	tern_mem_put(NULL);
}

/* ---- requests ---- */

struct meeting {
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct tern_context *ctx;
	struct tern_listener *listener;
	struct tern_peer *dialled, *accepted;
	struct tern_channel *out, *in;
	struct tern_buf buf;
	struct tern_tensor tensor;
};

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct meeting *)arg)->accepted = peer;
}

static void meeting_open(struct meeting *m)
{
	struct tern_peer_opts opts;

	*m = (struct meeting){.tensor.shape = tern_shape_1d(TERN_U8, 16)};
	assert_int_equal(tern_domain_new(NULL, &m->domain), 0);
	assert_int_equal(
		tern_pool_new(m->domain, &(struct tern_pool_opts){.slab_bytes = 1 << 20},
			&m->pool),
		0);
	assert_int_equal(tern_context_new(m->domain, NULL, &m->ctx), 0);
	opts = (struct tern_peer_opts){.pool = m->pool};
	assert_int_equal(tern_listen(m->ctx, "tcp://127.0.0.1:0", &opts, on_accept, m,
				 &m->listener),
		0);
	assert_int_equal(tern_connect(m->ctx, tern_listener_address(m->listener), NULL,
				 &m->dialled),
		0);
	while (!m->accepted)
		tern_wait_any(m->ctx, TERN_NS_PER_S);
	assert_int_equal(tern_channel_open(m->dialled, 1, &m->out), 0);
	assert_int_equal(tern_channel_open(m->accepted, 1, &m->in), 0);
	assert_int_equal(tern_pool_get(m->pool, 16, &m->buf), 0);
	m->tensor.buf = m->buf;
}

static void meeting_close(struct meeting *m)
{
	tern_peer_free(m->dialled);
	tern_peer_free(m->accepted);
	tern_listener_free(m->listener);
	tern_context_free(m->ctx);
	tern_pool_put(m->pool, &m->buf);
	tern_pool_free(m->pool);
	tern_domain_free(m->domain);
}

static void test_a_request_that_was_never_posted_is_told_apart(void **state)
{
	struct tern_req req = {0};

	(void)state;
	assert_int_equal(tern_test(&req), -EINVAL);
	tern_release(&req); /* no effect: the request holds no buffer */
	tern_cancel(&req);
	assert_int_equal(tern_test(&req), -EINVAL);
}

static void test_a_request_is_posted_once_at_a_time(void **state)
{
	struct tern_req send = {0}, receive = {0};
	struct meeting m;

	(void)state;
	meeting_open(&m);
	assert_int_equal(tern_recv(m.in, &receive, 1, 0, NULL, NULL, TERN_RECV_ALLOC), 0);
	assert_int_equal(tern_test(&receive), -EINPROGRESS);
	assert_int_equal(
		tern_recv(m.in, &receive, 2, 0, NULL, NULL, TERN_RECV_ALLOC), -EBUSY);
	tern_release(&receive); /* no effect, since the request has not ended */
	assert_int_equal(tern_send(m.out, &send, 1, 0, &m.tensor, NULL, 0), 0);
	assert_int_equal(tern_wait(m.ctx, &receive, 10 * TERN_NS_PER_S), 0);
	assert_int_equal(tern_wait(m.ctx, &send, 10 * TERN_NS_PER_S), 0);
	/* The receive holds a buffer until the caller releases it. */
	assert_int_equal(
		tern_recv(m.in, &receive, 2, 0, NULL, NULL, TERN_RECV_ALLOC), -EBUSY);
	tern_release(&receive);
	tern_release(&receive);
	assert_int_equal(tern_recv(m.in, &receive, 2, 0, NULL, NULL, TERN_RECV_ALLOC), 0);
	assert_int_equal(tern_send(m.out, &send, 2, 0, &m.tensor, NULL, 0), 0);
	assert_int_equal(tern_wait(m.ctx, &receive, 10 * TERN_NS_PER_S), 0);
	tern_release(&receive);
	meeting_close(&m);
}

static void test_a_receive_that_can_never_be_served_is_refused(void **state)
{
	struct tern_req req = {0};
	struct meeting m;

	(void)state;
	meeting_open(&m);
	/* Refused, since the dialling end has no pool. */
	assert_int_equal(
		tern_recv(m.out, &req, 1, 0, NULL, NULL, TERN_RECV_ALLOC), -EINVAL);
	assert_int_equal(tern_test(&req), -EINVAL);
	meeting_close(&m);
}

static void test_a_request_too_small_for_the_library_is_refused(void **state)
{
	struct tern_req req = {0};
	struct meeting m;

	(void)state;
	meeting_open(&m);
	assert_int_equal(tern_send_sized(m.out, &req, offsetof(struct tern_req, priv), 1,
				 0, &m.tensor, NULL, 0),
		-EOVERFLOW);
	assert_int_equal(tern_recv_sized(m.in, &req, offsetof(struct tern_req, priv), 1,
				 0, &m.buf, NULL, 0),
		-EOVERFLOW);
	meeting_close(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_headers_version_is_the_projects),
		cmocka_unit_test(test_what_an_old_program_does_not_know_is_not_read),
		cmocka_unit_test(
			test_what_an_old_library_does_not_know_is_refused_unless_it_is_zero),
		cmocka_unit_test(test_results_are_as_long_as_the_program_knows),
		cmocka_unit_test(test_a_pool_given_up_goes_with_its_last_buffer),
		cmocka_unit_test(
			test_a_domain_given_up_first_serves_its_context_and_its_pool),
		cmocka_unit_test(test_memory_belongs_to_a_domain),
		cmocka_unit_test(test_a_request_that_was_never_posted_is_told_apart),
		cmocka_unit_test(test_a_request_is_posted_once_at_a_time),
		cmocka_unit_test(test_a_receive_that_can_never_be_served_is_refused),
		cmocka_unit_test(test_a_request_too_small_for_the_library_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
