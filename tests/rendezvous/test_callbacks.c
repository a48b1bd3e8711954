/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of which calls are allowed in which callback, as in the table of
 * <tern/channel.h>, and of the events of an accepted peer. Each test runs over tcp and
 * over shm.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"

#define LIMIT_NS (20 * TERN_NS_PER_S)

/* One end: the events that it has seen, and what its callbacks do. */
struct end {
	struct world *world;
	struct tern_peer *peer;
	unsigned up, down, done;
	unsigned called; /* how often call_what_is_always_allowed() ran */
	int status;      /* status of the DOWN event */
	void (*on_up)(struct end *end);
	void (*on_down)(struct end *end);
	void (*on_done)(struct end *end);
	struct tern_req req, sent, cancelled, released;
};

struct world {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_listener *listener;
	struct tern_mem *mem;
	char bytes[64];
	void (*on_accept)(struct end *end);
	struct end accepted, dialled;
	unsigned accepted_count;
};

static void event(
	struct tern_peer *peer, enum tern_peer_event what, int status, void *arg)
{
	struct end *end = arg;

	assert_ptr_equal(peer, end->peer);
	if (what == TERN_PEER_UP) {
		end->up++;
		if (end->on_up)
			end->on_up(end);
	} else if (what == TERN_PEER_DOWN) {
		end->down++;
		end->status = status;
		if (end->on_down)
			end->on_down(end);
	}
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;
	struct tern_peer_opts opts = {.event = event, .arg = &w->accepted};

	w->accepted_count++;
	w->accepted.peer = peer;
	assert_int_equal(tern_peer_set_opts(peer, &opts), 0);
	if (w->on_accept)
		w->on_accept(&w->accepted);
}

static void dial(struct world *w)
{
	struct tern_peer_opts opts = {.event = event, .arg = &w->dialled, .name = "it"};

	assert_int_equal(tern_connect(w->ctx, tern_listener_address(w->listener), &opts,
				 &w->dialled.peer),
		0);
}

static void open_world(struct world *w, const char *address)
{
	static const struct tern_context_opts quiet = {
		.log_level = TERN_LOG_NONE, .reconnect_ns = 50 * TERN_NS_PER_MS};

	*w = (struct world){.accepted = {.world = w}, .dialled = {.world = w}};
	assert_int_equal(tern_domain_new(NULL, &w->domain), 0);
	assert_int_equal(tern_context_new(w->domain, &quiet, &w->ctx), 0);
	assert_int_equal(tern_mem_wrap(w->domain, w->bytes, 64, &w->mem), 0);
	assert_int_equal(
		tern_listen(w->ctx, address, NULL, accepted, w, &w->listener), 0);
}

static void close_world(struct world *w)
{
	tern_listener_free(w->listener);
	tern_context_free(w->ctx);
	tern_mem_put(w->mem);
	tern_domain_free(w->domain);
}

#define UNTIL(w, condition)                                                              \
	do {                                                                             \
		uint64_t until_ns = tern_clock_ns() + LIMIT_NS;                          \
		while (!(condition) && tern_clock_ns() < until_ns)                       \
			tern_wait_any((w)->ctx, 10 * TERN_NS_PER_MS);                    \
		assert_true(condition);                                                  \
	} while (0)

/* ---- what callbacks do ---- */

static void free_peer(struct end *end)
{
	tern_peer_free(TERN_TAKE(end->peer));
}

static void close_peer(struct end *end)
{
	tern_peer_close(end->peer);
}

static void free_listener(struct end *end)
{
	tern_listener_free(TERN_TAKE(end->world->listener));
}

static void done(struct tern_req *req)
{
	struct end *end = req->arg;

	end->done++;
	if (end->on_done)
		end->on_done(end);
}

static void post(struct end *end, bool sends, uint64_t key)
{
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, 16),
		.buf = {.mem = end->world->mem, .bytes = 16, .offset = sends ? 0 : 32}};
	struct tern_channel *channel;
	int r = tern_channel_open(end->peer, 7, &channel);

	assert_true(r == 0 || r == -EEXIST);
	end->req.done = done;
	end->req.arg = end;
	if (sends)
		r = tern_send(channel, &end->req, key, 0, &tensor, NULL, 0);
	else
		r = tern_recv(channel, &end->req, key, 0, &tensor.buf, NULL, 0);
	assert_int_equal(r, 0);
}

static void post_again(struct end *end)
{
	if (end->done < 3)
		post(end, end == &end->world->dialled, end->done);
}

static void post_first(struct end *end)
{
	end->on_done = post_again;
	post_again(end);
}

/* Makes the calls that the table allows in every callback. */
static void call_what_is_always_allowed(struct end *end)
{
	struct world *w = end->world;
	struct tern_listener *listener;
	struct tern_pool *pool;
	struct tern_peer *peer;
	struct tern_buf buf;
	struct tern_mem *mem;

	assert_int_not_equal(*tern_peer_name(end->peer), '\0');
	assert_non_null(tern_peer_fabric(end->peer));
	assert_non_null(tern_peer_address(end->peer));
	tern_peer_can_peek(end->peer);
	assert_int_equal(tern_connect(w->ctx, "tcp://127.0.0.1:1", NULL, &peer), 0);
	tern_peer_free(peer);
	assert_int_equal(
		tern_listen(w->ctx, "tcp://127.0.0.1:0", NULL, NULL, NULL, &listener), 0);
	tern_listener_free(listener);
	assert_int_equal(tern_mem_wrap(w->domain, w->bytes, 64, &mem), 0);
	tern_mem_put(mem);
	assert_int_equal(tern_pool_new(w->domain,
				 &(struct tern_pool_opts){.slab_bytes = 4096}, &pool),
		0);
	assert_int_equal(tern_pool_get(pool, 64, &buf), 0);
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
	tern_context_wake(w->ctx);
	end->called++;
}

/* Makes also the calls that the table allows unless the peer is down. */
static void call_what_is_allowed_on_a_live_peer(struct end *end)
{
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, 16),
		.buf = {.mem = end->world->mem, .bytes = 16}};
	struct tern_peer_opts opts = {.event = event, .arg = end};
	struct tern_channel *channel;

	call_what_is_always_allowed(end);
	assert_int_equal(tern_channel_open(end->peer, 100 + end->called, &channel), 0);
	assert_int_equal(
		tern_recv(channel, &end->cancelled, 1, 0, &tensor.buf, NULL, 0), 0);
	tern_cancel(&end->cancelled);
	assert_int_equal(tern_send(channel, &end->sent, 2, 0, &tensor, NULL, 0), 0);
	tern_release(&end->released);
	assert_int_equal(tern_peer_set_opts(end->peer, &opts), 0);
}

/* Makes a call that the table allows in no callback; so do the functions below. */
static void call_progress(struct end *end)
{
	tern_progress(end->world->ctx);
}

static void call_arm(struct end *end)
{
	tern_arm(end->world->ctx);
}

static void call_wait(struct end *end)
{
	tern_wait(end->world->ctx, &end->released, 0);
}

static void call_wait_any(struct end *end)
{
	tern_wait_any(end->world->ctx, 0);
}

static void call_context_free(struct end *end)
{
	tern_context_free(end->world->ctx);
}

static void free_peer_and_context(struct end *end)
{
	free_peer(end);
	tern_context_free(end->world->ctx);
}

/* ---- tests ---- */

static const char *address_of(unsigned i)
{
	static char shm[64];

	snprintf(shm, sizeof(shm), "shm://tern-callbacks-%d", (int)getpid());
	return i ? shm : "tcp://127.0.0.1:0";
}

#define ON_EACH(w)                                                                       \
	for (unsigned each = 0; each < 2 && (open_world(w, address_of(each)), true);     \
		close_world(w), each++)

static void test_accept_may_refuse(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		w.on_accept = free_peer;
		dial(&w);
		UNTIL(&w, w.dialled.down);
		assert_int_equal(w.dialled.status, -ECONNRESET);
		/* No event may come after tern_peer_free(). */
		assert_int_equal(w.accepted.down, 0);
		free_peer(&w.dialled);
		w.on_accept = NULL;
		w.dialled.up = 0;
		dial(&w);
		UNTIL(&w, w.dialled.up && w.accepted.peer);
	}
}

static void test_accept_is_what_an_accepted_peer_has_for_up(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		dial(&w);
		UNTIL(&w, w.dialled.up && w.accepted_count);
		assert_int_equal(w.accepted.up, 0);
		tern_peer_close(w.dialled.peer);
		UNTIL(&w, w.dialled.down && w.accepted.down);
		assert_int_equal(w.accepted.status, 0);
		assert_int_equal(w.dialled.up, 1);
	}
}

static void test_a_listener_may_be_freed_by_its_accept(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		w.on_accept = free_listener;
		dial(&w);
		UNTIL(&w, w.dialled.up && w.accepted_count);
		tern_peer_close(w.dialled.peer);
		UNTIL(&w, w.dialled.down && w.accepted.down);
	}
}

static void test_a_peer_may_be_closed_or_freed_by_its_events(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		w.dialled.on_up = close_peer;
		w.dialled.on_down = w.accepted.on_down = free_peer;
		dial(&w);
		UNTIL(&w, w.dialled.down && w.accepted.down);
		assert_int_equal(w.accepted.status, 0);
		w.dialled.on_up = free_peer;
		w.accepted.down = 0;
		dial(&w);
		UNTIL(&w, w.accepted_count == 1 || w.accepted.down);
	}
}

static void test_done_may_post_again_and_accept_may_post(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		w.on_accept = post_first;
		w.dialled.on_up = post_first;
		dial(&w);
		UNTIL(&w, w.dialled.done == 3 && w.accepted.done == 3);
	}
}

static void test_done_may_free_the_peer(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		dial(&w);
		UNTIL(&w, w.dialled.up && w.accepted_count);
		w.accepted.on_done = free_peer;
		post(&w.accepted, false, 1);
		post(&w.dialled, true, 1);
		UNTIL(&w, w.accepted.done && w.dialled.down);
	}
}

static void test_callbacks_may_call_what_the_table_says(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		w.on_accept = call_what_is_allowed_on_a_live_peer;
		w.dialled.on_up = call_what_is_allowed_on_a_live_peer;
		w.accepted.on_down = w.dialled.on_down = call_what_is_always_allowed;
		dial(&w);
		UNTIL(&w, w.dialled.up && w.accepted_count);
		w.accepted.on_done = w.dialled.on_done =
			call_what_is_allowed_on_a_live_peer;
		UNTIL(&w, w.accepted.cancelled.status == -ECANCELED &&
				  w.dialled.cancelled.status == -ECANCELED &&
				  w.accepted.sent.status == 0 &&
				  w.dialled.sent.status == 0);
		post(&w.accepted, false, 1);
		post(&w.dialled, true, 1);
		UNTIL(&w, w.accepted.done && w.dialled.done);
		tern_peer_free(TERN_TAKE(w.dialled.peer));
		UNTIL(&w, w.accepted.down);
		assert_int_equal(w.accepted.called, 3);
		assert_int_equal(w.dialled.called, 2);
	}
}

enum caller { ON_ACCEPT, ON_UP, ON_DONE, ON_DOWN, CALLER_COUNT };

/* Has the callback `caller` run `call`, which must abort the process. */
static void call_from(enum caller caller, void (*call)(struct end *end), unsigned each)
{
	struct world w;

	open_world(&w, address_of(each));
	w.on_accept = caller == ON_ACCEPT ? call : NULL;
	w.dialled.on_up = caller == ON_UP ? call : NULL;
	w.dialled.on_done = caller == ON_DONE ? call : NULL;
	w.dialled.on_down = caller == ON_DOWN ? call : NULL;
	dial(&w);
	UNTIL(&w, w.dialled.up && w.accepted_count);
	if (caller == ON_DONE) {
		post(&w.accepted, false, 1);
		post(&w.dialled, true, 1);
		UNTIL(&w, w.dialled.done);
	}
	tern_peer_free(TERN_TAKE(w.accepted.peer));
	UNTIL(&w, w.dialled.down);
}

static void test_what_no_callback_may_call_aborts_the_process(void **state)
{
	static void (*const calls[])(struct end * end) = {call_progress, call_arm,
		call_wait, call_wait_any, call_context_free, free_peer_and_context};

	(void)state;
	for (unsigned i = 0; i < CALLER_COUNT * TERN_ARRAY_SIZE(calls) * 2; i++) {
		const enum caller caller = i / 2 % CALLER_COUNT;
		int status;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			/* Restores the default, since cmocka catches the signal. */
			signal(SIGABRT, SIG_DFL);
			prctl(PR_SET_DUMPABLE, 0);
			close(STDERR_FILENO);
			call_from(caller, calls[i / 2 / CALLER_COUNT], i % 2);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
			fail_msg("call %u from callback %u: status %#x",
				i / 2 / CALLER_COUNT, (unsigned)caller, status);
	}
}

/* Events are reported only in tern_progress(), never inside the call that causes them:
 * the caller may be changing its own state. */
static void test_events_come_in_progress_only(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		dial(&w);
		tern_peer_close(w.dialled.peer);
		assert_int_equal(w.dialled.down, 0);
		UNTIL(&w, w.dialled.down);
		assert_int_equal(w.dialled.status, 0);
	}
}

static void test_an_open_channel_is_found(void **state)
{
	struct tern_channel *first, *again;
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		dial(&w);
		assert_int_equal(
			tern_channel_open(w.dialled.peer, UINT32_MAX - 1, &first), 0);
		assert_int_equal(
			tern_channel_open(w.dialled.peer, UINT32_MAX - 1, &again),
			-EEXIST);
		assert_ptr_equal(first, again);
		assert_int_equal(
			tern_channel_open(w.dialled.peer, UINT32_MAX, &again), -EINVAL);
	}
	assert_non_null(strstr(tern_status_text(-EEXIST), "already"));
}

static void test_where_a_peer_is_can_be_asked(void **state)
{
	struct world w;
	char pid[32];

	(void)state;
	snprintf(pid, sizeof(pid), "pid %d", (int)getpid());
	ON_EACH(&w)
	{
		dial(&w);
		assert_string_equal(tern_peer_address(w.dialled.peer), "");
		UNTIL(&w, w.dialled.up && w.accepted_count);
		assert_non_null(strstr(
			tern_peer_address(w.dialled.peer), each ? pid : "127.0.0.1:"));
		assert_non_null(strstr(
			tern_peer_address(w.accepted.peer), each ? pid : "127.0.0.1:"));
		assert_non_null(strstr(tern_peer_name(w.accepted.peer), "it ("));
	}
}

/* Options set before the first connection replace the ones of tern_connect(), the name, too. */
static void test_a_name_can_be_taken_back(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		const struct tern_peer_opts nameless = {
			.event = event, .arg = &w.dialled};

		dial(&w);
		assert_int_equal(tern_peer_set_opts(w.dialled.peer, &nameless), 0);
		UNTIL(&w, w.dialled.up && w.accepted_count);
		assert_null(strstr(tern_peer_name(w.accepted.peer), "it ("));
	}
}

static void test_a_wait_that_ran_out_of_time_goes_on(void **state)
{
	struct world w;

	(void)state;
	ON_EACH(&w)
	{
		dial(&w);
		UNTIL(&w, w.dialled.up && w.accepted_count);
		post(&w.accepted, false, 1);
		assert_int_equal(
			tern_wait(w.ctx, &w.accepted.req, TERN_NS_PER_MS), -ETIMEDOUT);
		assert_int_equal(tern_test(&w.accepted.req), -EINPROGRESS);
		post(&w.dialled, true, 1);
		assert_int_equal(tern_wait(w.ctx, &w.accepted.req, LIMIT_NS), 0);
		post(&w.accepted, false, 2);
		tern_cancel(&w.accepted.req);
		assert_int_equal(tern_wait(w.ctx, &w.accepted.req, LIMIT_NS), -ECANCELED);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_accept_may_refuse),
		cmocka_unit_test(test_accept_is_what_an_accepted_peer_has_for_up),
		cmocka_unit_test(test_a_listener_may_be_freed_by_its_accept),
		cmocka_unit_test(test_a_peer_may_be_closed_or_freed_by_its_events),
		cmocka_unit_test(test_done_may_post_again_and_accept_may_post),
		cmocka_unit_test(test_done_may_free_the_peer),
		cmocka_unit_test(test_callbacks_may_call_what_the_table_says),
		cmocka_unit_test(test_what_no_callback_may_call_aborts_the_process),
		cmocka_unit_test(test_events_come_in_progress_only),
		cmocka_unit_test(test_an_open_channel_is_found),
		cmocka_unit_test(test_where_a_peer_is_can_be_asked),
		cmocka_unit_test(test_a_name_can_be_taken_back),
		cmocka_unit_test(test_a_wait_that_ran_out_of_time_goes_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
