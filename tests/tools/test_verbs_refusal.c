/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of failures over verbs that reconnecting does not cure: a device that refuses to
 * register memory, as with a low limit of locked memory; and a network path on which
 * connections come up but carry no data. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "tests/fakes/verbs/fake_verbs.h"
#include "transport/context.h"
#include "transport/domain.h"

static unsigned line_count;
static char last_line[512];
static enum tern_log_level kept_level = TERN_LOG_ERROR;
/* Number of log lines about links that carried no data. */
static unsigned fruitless_count;

static void keep(struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	if (level != kept_level)
		return;
	line_count++;
	if (strstr(line, " connections in a row carried nothing"))
		fruitless_count++;
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
	struct tern_domain_hooks hooks = {.verbs_api = fake_verbs_api()};
	struct tern_env_ops ops = *tern_env_system()->ops;
	struct tern_env env = {.ops = &ops, .log_level = TERN_LOG_WARN};
	struct tern_context_opts ctx_opts = {.connect_ns = 300 * TERN_NS_PER_MS};
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
	assert_int_equal(tern_domain_new_hooked(NULL, &hooks, &domain), 0);
	assert_int_equal(tern_pool_new(domain, &pool_opts, &pool), 0);
	assert_int_equal(tern_context_new_in(domain, &ctx_opts, &env, &ctx), 0);
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

/* ---- memory that a device refuses to register ---- */

#define PART_BYTES   (768u << 10)
#define PARTS        4u
#define MEMORY_BYTES (PARTS * PART_BYTES)

/* An end that dials and an end that accepts, in one process, each with its own memory. */
struct meeting {
	struct tern_env_ops ops;
	struct tern_env env[2];
	struct tern_context_opts ctx_opts;
	struct tern_peer_opts opts[2];
	struct tern_domain *domain;
	struct tern_context *ctx[2];
	struct tern_listener *listener;
	struct tern_peer *peer[2];
	struct tern_channel *channel[2];
	char *memory[2];
	struct tern_mem *mem[2];
	unsigned lost_count;
};

static void meeting_accept(struct tern_peer *peer, void *arg)
{
	((struct meeting *)arg)->peer[1] = peer;
}

static void meeting_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer;
	(void)status;
	if (event != TERN_PEER_UP)
		((struct meeting *)arg)->lost_count++;
}

static void meeting_turn(struct meeting *m)
{
	tern_progress(m->ctx[0]);
	tern_progress(m->ctx[1]);
}

static void meeting_wait(struct meeting *m, struct tern_req *req)
{
	uint64_t until_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;

	while (tern_test(req) == -EINPROGRESS && tern_clock_ns() < until_ns)
		meeting_turn(m);
}

static void meeting_connect(struct meeting *m)
{
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tern_context_new_in(
					 m->domain, &m->ctx_opts, &m->env[i], &m->ctx[i]),
			0);
	assert_int_equal(tern_listen(m->ctx[1], "verbs://10.7.0.2:0", &m->opts[1],
				 meeting_accept, m, &m->listener),
		0);
	assert_int_equal(tern_connect(m->ctx[0], tern_listener_address(m->listener),
				 &m->opts[0], &m->peer[0]),
		0);
	while (!m->peer[1])
		meeting_turn(m);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tern_channel_open(m->peer[i], 1, &m->channel[i]), 0);
}

static void meeting_open(struct meeting *m, const char *verbs)
{
	struct tern_domain_opts opts = {.verbs = verbs};
	struct tern_domain_hooks hooks = {.verbs_api = fake_verbs_api()};

	*m = (struct meeting){.ops = *tern_env_system()->ops};
	m->ops.log = keep;
	for (unsigned i = 0; i < 2; i++) {
		m->env[i] = (struct tern_env){.ops = &m->ops, .log_level = TERN_LOG_WARN};
		m->opts[i] = (struct tern_peer_opts){.event = meeting_event, .arg = m};
	}
	kept_level = TERN_LOG_WARN;
	line_count = 0;
	fake_verbs_reset(NULL);
	assert_int_equal(tern_domain_new_hooked(&opts, &hooks, &m->domain), 0);
	m->memory[0] = malloc(2 * MEMORY_BYTES);
	m->memory[1] = m->memory[0] + MEMORY_BYTES;
}

static void meeting_close(struct meeting *m)
{
	for (unsigned i = 0; i < 2; i++)
		tern_peer_free(m->peer[i]);
	tern_listener_free(m->listener);
	for (unsigned i = 0; i < 2; i++) {
		tern_context_free(m->ctx[i]);
		tern_mem_put(m->mem[i]);
	}
	free(m->memory[0]);
	tern_domain_free(m->domain);
	fake_verbs_reset(NULL);
}

static void meeting_wrap(struct meeting *m, unsigned i)
{
	assert_int_equal(
		tern_mem_wrap(m->domain, m->memory[i], MEMORY_BYTES, &m->mem[i]), 0);
}

static struct tern_tensor part_of(const struct meeting *m, unsigned i, unsigned part)
{
	return (struct tern_tensor){
		.buf = {m->mem[i], part * PART_BYTES + part, PART_BYTES - PARTS},
		.shape = tern_shape_1d(TERN_U8, PART_BYTES - PARTS),
	};
}

/* Sends from the memory of end `from` to that of the other end, under two keys: one
 * receive is posted before its send, the other one after it. */
static void meeting_exchange(struct meeting *m, unsigned from)
{
	struct tern_req sends[2] = {{0}}, receives[2] = {{0}};

	for (unsigned i = 0; i < MEMORY_BYTES; i++)
		m->memory[from][i] = (char)(i * 2654435761u >> 24);
	memset(m->memory[!from], 0, MEMORY_BYTES);
	for (unsigned i = 0; i < 2; i++) {
		struct tern_tensor source = part_of(m, from, i);
		struct tern_tensor room = part_of(m, !from, 2 + i);

		for (unsigned half = 0; half < 2; half++) {
			if (half == i)
				assert_int_equal(tern_send(m->channel[from], &sends[i], i,
							 0, &source, NULL, 0),
					0);
			else
				assert_int_equal(
					tern_recv(m->channel[!from], &receives[i], i, 0,
						&room.buf, NULL, 0),
					0);
			for (unsigned turn = 0; turn < 100; turn++)
				meeting_turn(m);
		}
		meeting_wait(m, &sends[i]);
		meeting_wait(m, &receives[i]);
		assert_int_equal(tern_test(&sends[i]), 0);
		assert_int_equal(tern_test(&receives[i]), 0);
		assert_memory_equal(tern_buf_ptr(&source.buf), tern_buf_ptr(&room.buf),
			source.buf.bytes);
	}
}

/* Bit i of `refused`: the device refuses to register the memory of end i. The two
 * memories are adjacent. */
static void check_copied(const char *verbs, unsigned refused, bool early)
{
	struct meeting m;

	meeting_open(&m, verbs);
	if (!early)
		meeting_connect(&m);
	fake_verbs_refuse(
		m.memory[refused == 2], (refused == 3 ? 2 : 1) * MEMORY_BYTES, EFAULT);
	meeting_wrap(&m, 0);
	meeting_wrap(&m, 1);
	if (early)
		meeting_connect(&m);
	meeting_exchange(&m, 0);
	meeting_exchange(&m, 1);
	assert_int_equal(m.lost_count, 0);
	meeting_close(&m);
}

static void test_memory_that_a_device_refuses_costs_a_copy_and_no_connection(void **state)
{
	(void)state;
	for (unsigned early = 0; early < 2; early++)
		for (unsigned refused = 1; refused < 4; refused++) {
			check_copied("from=10.7.0.1", refused, early);
			check_copied("from=10.7.0.1,guard=on", refused, early);
		}
}

static void test_what_is_wrapped_read_only_is_registered_so(void **state)
{
	struct tern_req req = {0};
	struct tern_tensor room;
	struct meeting m;

	(void)state;
	meeting_open(&m, "from=10.7.0.1");
	meeting_connect(&m);
	fake_verbs_refuse(m.memory[0], MEMORY_BYTES, EFAULT);
	assert_int_equal(
		tern_mem_wrap_readonly(m.domain, m.memory[0], MEMORY_BYTES, &m.mem[0]),
		0);
	assert_int_equal(line_count, 0);
	meeting_wrap(&m, 1);
	meeting_exchange(&m, 0);
	room = part_of(&m, 0, 0);
	assert_int_equal(
		tern_recv(m.channel[0], &req, 7, 0, &room.buf, NULL, 0), -EACCES);
	assert_int_equal(m.lost_count, 0);
	meeting_close(&m);
}

static void test_fork_is_prepared_before_anything_is_registered(void **state)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct meeting m;

	(void)state;
	meeting_open(&m, "from=10.7.0.1");
	meeting_wrap(&m, 0);
	meeting_wrap(&m, 1);
	meeting_connect(&m);
	assert_true(fake_verbs_calls("reg_mr") > 0);
	assert_int_equal(fake_verbs_calls("prepare_fork"), 1);
	/* The call would fail if the first call had come after a registration. */
	assert_int_equal(api->prepare_fork(), 0);
	meeting_close(&m);
}

/* ---- links that carry no data ---- */

struct fruitless {
	struct meeting meeting;
	unsigned recovered_count;
	int status;
};

static void keep_status(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer;
	if (event == TERN_PEER_DOWN)
		((struct fruitless *)arg)->status = status;
}

static void break_all_pairs(void)
{
	struct fake_verbs_qp qps[16];
	unsigned count = fake_verbs_qps(qps, TERN_ARRAY_SIZE(qps));

	for (unsigned i = 0; i < count; i++)
		fake_verbs_qp_break(qps[i].qp_num);
}

/* Cuts the link as soon as it is restored at both ends, before the accepting end reads
 * waiting data. */
static void break_again(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)status;
	if (event != TERN_PEER_RECOVERED)
		return;
	((struct fruitless *)arg)->recovered_count++;
	break_all_pairs();
	tern_peer_cut(peer, -ETIMEDOUT);
}

/* reconnect_ns is 8 ms, so the pauses between two attempts to connect are at most 2 ms.
 * The accepting end gets 2 s: so long it waits to be dialled again, which a slow machine
 * may need. */
static void fruitless_open(struct fruitless *f)
{
	*f = (struct fruitless){.status = 1};
	meeting_open(&f->meeting, "from=10.7.0.1");
	f->meeting.ctx_opts =
		(struct tern_context_opts){.suspect_ns = 50 * TERN_NS_PER_MS,
			.reconnect_ns = 8 * TERN_NS_PER_MS,
			.unreachable_ns = 2 * TERN_NS_PER_S};
	f->meeting.opts[0] = (struct tern_peer_opts){.event = keep_status, .arg = f};
	f->meeting.opts[1] = (struct tern_peer_opts){.event = break_again, .arg = f};
	meeting_wrap(&f->meeting, 0);
	meeting_connect(&f->meeting);
	f->meeting.ctx[1]->opts.reconnect_ns = f->meeting.ctx_opts.unreachable_ns;
}

static void test_a_path_that_carries_nothing_is_the_end(void **state)
{
	uint64_t until_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct tern_req req = {0};
	struct tern_tensor tensor;
	struct fruitless f;

	(void)state;
	fruitless_open(&f);
	break_all_pairs();
	tensor = part_of(&f.meeting, 0, 0);
	assert_int_equal(
		tern_send(f.meeting.channel[0], &req, 1, 0, &tensor, NULL, 0), 0);
	while (f.status == 1 && tern_clock_ns() < until_ns)
		meeting_turn(&f.meeting);
	assert_true(f.status < 0);
	assert_int_equal(req.status, f.status);
	/* The peer goes down after 16 links without data, where 16 short ones count as
	 * one, but not before unreachable_ns. So at least 256 links are made, or fewer if
	 * some of them lasted for a second. */
	assert_in_range(f.recovered_count, 200, 5000);
	assert_int_equal(fruitless_count, 1);
	meeting_close(&f.meeting);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refusal_is_told_once_whatever_is_tried),
		cmocka_unit_test(
			test_memory_that_a_device_refuses_costs_a_copy_and_no_connection),
		cmocka_unit_test(test_what_is_wrapped_read_only_is_registered_so),
		cmocka_unit_test(test_fork_is_prepared_before_anything_is_registered),
		cmocka_unit_test(test_a_path_that_carries_nothing_is_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
