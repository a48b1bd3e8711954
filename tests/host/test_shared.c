/* SPDX-License-Identifier: Apache-2.0 */
/* Shared contexts: many threads, timeouts, fork(), and errors that a user makes. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/channel.h>
#include <tern/shared.h>
#include <tern/window.h>

#include "base/clock.h"
#include "base/util.h"
#include "host/shared.h"
#include "transport/context.h"

#define THREADS 4u
#define EACH    200u
#define FLOATS  3000u /* more than an eager message carries */
#define LIMIT   (30 * TERN_NS_PER_S)

/* ---- two ends in one process ---- */

struct end {
	struct tern_shared *shared;
	struct tern_peer *peer;
	struct tern_channel *channel;
	bool up, down;
};

static struct end ends[2]; /* the one that dials, and the one that listens */
static struct tern_listener *listener;

static void event(
	struct tern_peer *peer, enum tern_peer_event what, int status, void *arg)
{
	struct end *e = arg;

	(void)peer, (void)status;
	e->up = e->up || what == TERN_PEER_UP;
	e->down = e->down || what == TERN_PEER_DOWN;
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;

	e->peer = peer;
	e->up = true;
}

/* Polls `flag` with the lock of the end. */
static void until(struct end *e, const bool *flag)
{
	uint64_t limit = tern_clock_ns() + LIMIT;
	bool done = false;

	while (!done) {
		tern_shared_lock(e->shared);
		done = *flag;
		tern_shared_unlock(e->shared);
		if (tern_clock_ns() > limit)
			fail_msg("never happened");
		usleep(100);
	}
}

#define ADDRESS_BYTES 200

/* Lets ends[1] listen, and writes its address. */
static void start_listening(const char *listen, char *address)
{
	const struct tern_peer_opts opts = {.event = event, .arg = &ends[1]};

	tern_shared_lock(ends[1].shared);
	assert_int_equal(tern_listen(tern_shared_context(ends[1].shared), listen, &opts,
				 accepted, &ends[1], &listener),
		0);
	snprintf(address, ADDRESS_BYTES, "%s", tern_listener_address(listener));
	tern_shared_unlock(ends[1].shared);
}

/* Lets ends[0] connect: the callers wait until it is up. */
static void start_dialling(const char *address)
{
	const struct tern_peer_opts opts = {.event = event, .arg = &ends[0]};

	tern_shared_lock(ends[0].shared);
	tern_connect(tern_shared_context(ends[0].shared), address, &opts, &ends[0].peer);
	tern_shared_unlock(ends[0].shared);
}

static void open_ends(const char *listen)
{
	char address[ADDRESS_BYTES];

	memset(ends, 0, sizeof(ends));
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(tern_shared_new(NULL, &ends[i].shared), 0);
	start_listening(listen, address);
	start_dialling(address);
	for (unsigned i = 0; i < 2; i++) {
		until(&ends[i], &ends[i].up);
		tern_shared_lock(ends[i].shared);
		assert_int_equal(tern_channel_open(ends[i].peer, 1, &ends[i].channel), 0);
		tern_shared_unlock(ends[i].shared);
	}
}

static void close_ends(void)
{
	for (unsigned i = 0; i < 2; i++) {
		tern_shared_lock(ends[i].shared);
		tern_peer_close(ends[i].peer);
		tern_shared_unlock(ends[i].shared);
	}
	for (unsigned i = 0; i < 2; i++)
		until(&ends[i], &ends[i].down);
	for (unsigned i = 2; i-- > 0;)
		tern_shared_free(ends[i].shared);
}

/* ---- many threads ---- */

struct mover {
	pthread_t thread;
	unsigned number;
	bool sends;
	unsigned wrong;
};

/* Sends or receives EACH tensors, one after the other. */
static void *move(void *arg)
{
	struct mover *m = arg;
	struct end *e = &ends[m->sends ? 0 : 1];
	float *values = calloc(FLOATS, sizeof(*values));
	struct tern_mem *mem;
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_F32, FLOATS)};

	tern_mem_wrap(tern_context_domain(tern_shared_context(e->shared)), values,
		FLOATS * sizeof(*values), &mem);
	tensor.buf = (struct tern_buf){.mem = mem, .bytes = FLOATS * sizeof(*values)};
	for (unsigned i = 0; i < EACH; i++) {
		struct tern_req req = {0};

		for (unsigned k = 0; m->sends && k < FLOATS; k++)
			values[k] = (float)(m->number * EACH + i + k);
		tern_shared_lock(e->shared);
		if (m->sends)
			tern_send(e->channel, &req, m->number, i, &tensor, NULL, 0);
		else
			tern_recv(e->channel, &req, m->number, i, &tensor.buf, NULL, 0);
		tern_shared_unlock(e->shared);
		m->wrong += tern_shared_wait(e->shared, &req, LIMIT) != 0;
		for (unsigned k = 0; !m->sends && k < FLOATS; k++)
			m->wrong += values[k] != (float)(m->number * EACH + i + k);
	}
	tern_mem_put(mem);
	free(values);
	return NULL;
}

static void all_threads_move_tensors(const char *listen)
{
	struct mover movers[2 * THREADS];

	open_ends(listen);
	for (unsigned i = 0; i < 2 * THREADS; i++) {
		movers[i] = (struct mover){.number = i / 2, .sends = i % 2 == 0};
		assert_int_equal(
			pthread_create(&movers[i].thread, NULL, move, &movers[i]), 0);
	}
	for (unsigned i = 0; i < 2 * THREADS; i++) {
		pthread_join(movers[i].thread, NULL);
		assert_int_equal(movers[i].wrong, 0);
	}
	close_ends();
}

static void test_many_threads_share_a_context_over_tcp(void **state)
{
	(void)state;
	all_threads_move_tensors("tcp://127.0.0.1:0");
}

static void test_many_threads_share_a_context_over_shm(void **state)
{
	char address[64];

	(void)state;
	snprintf(address, sizeof(address), "shm://shared-%d", (int)getpid());
	all_threads_move_tensors(address);
}

/* ---- who drives the context ---- */

/* Some receives of ends[1], and sends of ends[0] that meet them. */
#define PAIRS 2u

struct pair {
	pthread_t thread;
	struct tern_req send, receive;
	atomic_bool received;
	float sent, value;
	int waited; /* what tern_shared_wait() returned */
};

static struct pair pairs[PAIRS];
static struct tern_mem *pair_memory[2]; /* of the ends */

static void has_received(struct tern_req *req)
{
	struct pair *pair = req->arg;

	atomic_store(&pair->received, true);
}

static struct tern_buf buffer_in(struct tern_mem *mem, const float *value)
{
	return (struct tern_buf){.mem = mem,
		.offset = (uint64_t)((const char *)value - (const char *)pairs),
		.bytes = sizeof(*value)};
}

static void open_pairs(void)
{
	memset(pairs, 0, sizeof(pairs));
	open_ends("tcp://127.0.0.1:0");
	for (unsigned i = 0; i < 2; i++)
		tern_mem_wrap(tern_context_domain(tern_shared_context(ends[i].shared)),
			pairs, sizeof(pairs), &pair_memory[i]);
	tern_shared_lock(ends[1].shared);
	for (unsigned i = 0; i < PAIRS; i++) {
		struct tern_buf buf = buffer_in(pair_memory[1], &pairs[i].value);

		pairs[i].receive.done = has_received;
		pairs[i].receive.arg = &pairs[i];
		tern_recv(ends[1].channel, &pairs[i].receive, i, 0, &buf, NULL, 0);
	}
	tern_shared_unlock(ends[1].shared);
}

static void send_pair(unsigned i)
{
	struct tern_tensor tensor = {.buf = buffer_in(pair_memory[0], &pairs[i].sent),
		.shape = tern_shape_1d(TERN_F32, 1)};

	pairs[i].sent = (float)i + 0.5f;
	tern_shared_lock(ends[0].shared);
	tern_send(ends[0].channel, &pairs[i].send, i, 0, &tensor, NULL, 0);
	tern_shared_unlock(ends[0].shared);
}

static void close_pairs(void)
{
	for (unsigned i = 0; i < 2; i++)
		tern_mem_put(pair_memory[i]);
	close_ends();
}

/* Looks for the tensor without the lock, since a caller with the lock makes progress. */
static void await_pair(unsigned i)
{
	uint64_t limit = tern_clock_ns() + LIMIT;

	while (!atomic_load(&pairs[i].received) && tern_clock_ns() < limit)
		usleep(100);
	assert_true(atomic_load(&pairs[i].received));
	assert_true(pairs[i].value == (float)i + 0.5f);
}

static void test_tensors_come_while_nobody_waits(void **state)
{
	(void)state;
	open_pairs();
	/* This thread drives the context for a moment. */
	assert_int_equal(
		tern_shared_wait(ends[1].shared, &pairs[1].receive, 1), -ETIMEDOUT);
	send_pair(0);
	await_pair(0);
	send_pair(1); /* the progress thread drives already */
	await_pair(1);
	close_pairs();
}

/* Waits until the progress thread of the end sleeps as its driver. */
static void until_asleep(struct end *e)
{
	bool asleep = false;

	while (!asleep) {
		usleep(1000);
		turns_take(&e->shared->lock);
		asleep = e->shared->asleep && e->shared->driver == DRIVEN_BY_THREAD;
		turns_give(&e->shared->lock);
	}
}

static atomic_bool got;

/* False if the get has not ended, and the thread that has to go on with it sleeps and is
 * not woken. */
static bool goes_on(struct end *e)
{
	struct pollfd fd = {
		.fd = tern_context_fd(tern_shared_context(e->shared)), .events = POLLIN};
	bool on;

	turns_take(&e->shared->lock);
	on = atomic_load(&got) || !e->shared->asleep || poll(&fd, 1, 0) > 0;
	turns_give(&e->shared->lock);
	return on;
}

static void get_ended(struct tern_req *req)
{
	assert_int_equal(req->status, 0);
	atomic_store(&got, true);
}

/* The caller copies the first part of a get over shared memory, and the progress thread the
 * rest. Nobody asks for anything meanwhile. */
static void test_a_long_get_goes_on_after_the_call_that_posted_it(void **state)
{
	const size_t bytes = 16u << 20;
	struct tern_req req = {.done = get_ended};
	struct tern_window_desc desc;
	struct tern_window *window;
	struct tern_remote *remote;
	struct tern_buf bufs[2];
	struct tern_req closed = {0};
	void *data[2];
	uint64_t limit;

	(void)state;
	open_ends("auto://127.0.0.1:0");
	for (unsigned i = 0; i < 2; i++) {
		data[i] = calloc(1, bytes);
		bufs[i] = (struct tern_buf){.bytes = bytes};
		assert_int_equal(tern_mem_wrap(tern_context_domain(tern_shared_context(
						       ends[i].shared)),
					 data[i], bytes, &bufs[i].mem),
			0);
	}
	tern_shared_lock(ends[1].shared);
	assert_int_equal(tern_window_new(tern_shared_context(ends[1].shared), &bufs[1],
				 TERN_WINDOW_READ, &window),
		0);
	tern_window_describe(window, &desc);
	tern_shared_unlock(ends[1].shared);
	tern_shared_lock(ends[0].shared);
	assert_int_equal(tern_remote_open(ends[0].peer, &desc, &remote), 0);
	assert_int_equal(tern_get(remote, &req, &bufs[0], 0), 0);
	tern_shared_unlock(ends[0].shared);
	/* Later gets need no answer of the owner. */
	assert_int_equal(tern_shared_wait(ends[0].shared, &req, LIMIT), 0);
	for (unsigned i = 0; i < 10; i++) {
		until_asleep(&ends[0]);
		atomic_store(&got, false);
		limit = tern_clock_ns() + LIMIT;
		tern_shared_lock(ends[0].shared);
		assert_int_equal(tern_get(remote, &req, &bufs[0], 0), 0);
		tern_shared_unlock(ends[0].shared);
		assert_true(goes_on(&ends[0]));
		while (!atomic_load(&got)) {
			assert_true(tern_clock_ns() < limit);
			usleep(1000);
		}
	}
	tern_shared_lock(ends[1].shared);
	assert_int_equal(tern_window_close(window, &closed, TERN_NEVER), 0);
	tern_shared_unlock(ends[1].shared);
	assert_int_equal(tern_shared_wait(ends[1].shared, &closed, LIMIT), 0);
	tern_mem_put(bufs[0].mem);
	tern_mem_put(bufs[1].mem);
	close_ends();
	free(data[0]);
	free(data[1]);
}

/* Polls both ends until the tensor of the pair is there. */
static void poll_pair(unsigned i)
{
	uint64_t limit = tern_clock_ns() + LIMIT;

	while (!atomic_load(&pairs[i].received) && tern_clock_ns() < limit)
		for (unsigned k = 0; k < 2; k++)
			assert_true(tern_shared_poll(ends[k].shared) >= 0);
	assert_true(pairs[i].value == (float)i + 0.5f);
}

static void test_who_polls_needs_no_progress_thread(void **state)
{
	enum shared_driver drivers[2];

	(void)state;
	open_pairs();
	send_pair(0);
	poll_pair(0);
	for (unsigned k = 0; k < 2; k++) {
		tern_shared_poll(ends[k].shared);
		turns_take(&ends[k].shared->lock);
		drivers[k] = ends[k].shared->driver;
		turns_give(&ends[k].shared->lock);
	}
	assert_int_equal(drivers[0], DRIVEN_BY_NOBODY);
	assert_int_equal(drivers[1], DRIVEN_BY_NOBODY);
	send_pair(1);
	await_pair(1); /* nobody polls any more */
	close_pairs();
}

static void *wait_for_pair(void *arg)
{
	struct pair *pair = arg;

	pair->waited = tern_shared_wait(ends[1].shared, &pair->receive, LIMIT);
	return NULL;
}

static void test_a_waiter_is_answered_by_a_poll(void **state)
{
	uint64_t limit = tern_clock_ns() + LIMIT;
	pthread_t thread;

	(void)state;
	open_pairs();
	assert_int_equal(pthread_create(&thread, NULL, wait_for_pair, &pairs[0]), 0);
	for (unsigned k = 0; k < 100; k++) {
		tern_shared_poll(ends[1].shared);
		usleep(100);
	}
	send_pair(0);
	while (!atomic_load(&pairs[0].received) && tern_clock_ns() < limit)
		tern_shared_poll(ends[1].shared);
	pthread_join(thread, NULL);
	assert_int_equal(pairs[0].waited, 0);
	send_pair(1);
	await_pair(1);
	close_pairs();
}

static void test_a_waiter_drives_when_another_one_has_its_answer(void **state)
{
	(void)state;
	open_pairs();
	for (unsigned i = 0; i < PAIRS; i++) {
		pthread_create(&pairs[i].thread, NULL, wait_for_pair, &pairs[i]);
		usleep(5000);
	}
	for (unsigned i = 0; i < PAIRS; i++) {
		send_pair(i);
		pthread_join(pairs[i].thread, NULL);
		assert_int_equal(pairs[i].waited, 0);
	}
	close_pairs();
}

struct flag {
	struct shared_waiter waiter;
	struct tern_shared *shared;
	bool set;
};

static bool is_set(struct shared_waiter *waiter)
{
	return tern_container_of(waiter, struct flag, waiter)->set;
}

static void *wait_for_flag(void *arg)
{
	struct flag *flag = arg;

	assert_int_equal(shared_enter(flag->shared), 0);
	assert_int_equal(shared_wait_for(flag->shared, &flag->waiter, TERN_NEVER), 0);
	shared_leave(flag->shared);
	return NULL;
}

/* This context has no peer, and so no event, not even a timer, that wakes the driver. */
static void test_a_driver_is_woken_by_a_call_of_another_thread(void **state)
{
	struct flag flag = {.waiter.is_answered = is_set};
	pthread_t thread;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &flag.shared), 0);
	pthread_create(&thread, NULL, wait_for_flag, &flag);
	usleep(5000);
	assert_int_equal(shared_enter(flag.shared), 0);
	flag.set = true;
	shared_leave(flag.shared);
	pthread_join(thread, NULL);
	tern_shared_free(flag.shared);
}

struct chain {
	struct tern_deferred call;
	struct tern_context *ctx;
	unsigned left;
	atomic_bool over;
};

static void next_link(struct tern_deferred *call)
{
	struct chain *chain = tern_container_of(call, struct chain, call);

	if (--chain->left)
		tern_defer(chain->ctx, call);
	else
		atomic_store(&chain->over, true);
}

/* Each round of progress leaves work for the next one, of which no descriptor tells. */
static void test_a_driver_goes_on_with_what_a_call_has_begun(void **state)
{
	struct tern_shared *shared;
	bool sleeps = false;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	for (unsigned i = 0; i < 20; i++) {
		struct chain chain = {.call.call = next_link,
			.ctx = tern_shared_context(shared),
			.left = 1000};

		for (sleeps = false; !sleeps; usleep(100)) {
			assert_int_equal(tern_shared_lock(shared), 0);
			sleeps = shared->asleep;
			tern_shared_unlock(shared);
		}
		assert_int_equal(tern_shared_lock(shared), 0);
		tern_defer(chain.ctx, &chain.call);
		tern_shared_unlock(shared);
		for (uint64_t end = tern_clock_ns() + LIMIT; !atomic_load(&chain.over);
			usleep(100))
			if (tern_clock_ns() > end)
				fail_msg("nobody makes progress");
	}
	tern_shared_free(shared);
}

/* ---- timeouts ---- */

static void test_a_wait_ends_after_its_time(void **state)
{
	struct tern_req req = {0};
	struct tern_buf buf;
	struct tern_mem *mem;
	float values[4];
	uint64_t start_ns;

	(void)state;
	open_ends("tcp://127.0.0.1:0");
	assert_int_equal(
		tern_mem_wrap(tern_context_domain(tern_shared_context(ends[1].shared)),
			values, sizeof(values), &mem),
		0);
	buf = (struct tern_buf){.mem = mem, .bytes = sizeof(values)};
	tern_shared_lock(ends[1].shared);
	tern_recv(ends[1].channel, &req, 1, 0, &buf, NULL, 0);
	tern_shared_unlock(ends[1].shared);
	start_ns = tern_clock_ns();
	assert_int_equal(tern_shared_wait(ends[1].shared, &req, 0), -ETIMEDOUT);
	assert_int_equal(
		tern_shared_wait(ends[1].shared, &req, 20 * TERN_NS_PER_MS), -ETIMEDOUT);
	assert_true(tern_clock_ns() - start_ns >= 20 * TERN_NS_PER_MS);
	assert_non_null(strstr(tern_shared_text(), "timed out"));
	/* The request goes on: it ends when the connection does. */
	tern_shared_lock(ends[0].shared);
	tern_peer_close(ends[0].peer);
	tern_shared_unlock(ends[0].shared);
	assert_true(tern_shared_wait(ends[1].shared, &req, LIMIT) < 0);
	assert_int_not_equal(tern_test(&req), -EINPROGRESS);
	tern_mem_put(mem);
	close_ends();
}

/* ---- fork ---- */

static void test_a_forked_child_cannot_use_the_context(void **state)
{
	struct tern_shared *shared;
	struct tern_req req = {.status = -EINPROGRESS};
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int r = tern_shared_wait(shared, &req, TERN_NEVER);

		r = tern_shared_lock(shared) == -ECHILD ? r : 0;
		tern_shared_unlock(shared);

		tern_shared_free(shared);
		_exit(r == -ECHILD && strstr(tern_shared_text(), "child") ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	tern_shared_free(shared);
}

/* What the parent does: it reads an address, connects to it, forks a child, tells its
 * pid, and waits to be killed, as the child does. */
static void be_parent(int in, int out)
{
	char address[ADDRESS_BYTES];
	pid_t pid;

	alarm(60); /* if the test fails */
	memset(ends, 0, sizeof(ends));
	if (read(in, address, sizeof(address)) != sizeof(address) ||
		tern_shared_new(NULL, &ends[0].shared) < 0)
		_exit(1);
	start_dialling(address);
	until(&ends[0], &ends[0].up);
	pid = fork();
	alarm(60);
	if (pid && write(out, &pid, sizeof(pid)) != sizeof(pid))
		_exit(1);
	for (;;)
		pause();
}

static void a_child_does_not_keep_peers(const char *listen)
{
	char address[ADDRESS_BYTES];
	int to[2], from[2], status;
	pid_t parent, child;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	parent = fork(); /* before there is a thread: ThreadSanitizer needs that */
	assert_true(parent >= 0);
	if (parent == 0)
		be_parent(to[0], from[1]);
	memset(ends, 0, sizeof(ends));
	assert_int_equal(tern_shared_new(NULL, &ends[1].shared), 0);
	start_listening(listen, address);
	assert_int_equal(write(to[1], address, sizeof(address)), sizeof(address));
	assert_int_equal(read(from[0], &child, sizeof(child)), sizeof(child));
	kill(parent, SIGKILL);
	assert_int_equal(waitpid(parent, &status, 0), parent);
	/* The child lives on: it would keep the connection for ever. */
	until(&ends[1], &ends[1].down);
	assert_int_equal(kill(child, SIGKILL), 0);
	tern_shared_free(ends[1].shared);
	for (unsigned i = 0; i < 2; i++) {
		close(to[i]);
		close(from[i]);
	}
}

static void test_a_child_does_not_keep_its_parents_peers_over_tcp(void **state)
{
	(void)state;
	a_child_does_not_keep_peers("tcp://127.0.0.1:0");
}

static void test_a_child_does_not_keep_its_parents_peers_over_shm(void **state)
{
	char address[64];

	(void)state;
	snprintf(address, sizeof(address), "shm://forked-%d", (int)getpid());
	a_child_does_not_keep_peers(address);
}

/* ---- what users do wrong ---- */

static void test_a_secret_that_cannot_be_read_is_named(void **state)
{
	char path[] = "/tmp/tern-shared-XXXXXX";
	struct tern_shared *shared;
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "0123456789abcdef0123\n", 21), 21);
	setenv("TERN_SECRET_FILE", "/nowhere/secret", 1);
	assert_int_equal(tern_shared_new(NULL, &shared), -EINVAL);
	assert_non_null(strstr(tern_shared_text(), "/nowhere/secret: No such file"));
	setenv("TERN_SECRET_FILE", path, 1);
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(tern_shared_new(NULL, &shared), -EINVAL);
	assert_non_null(strstr(tern_shared_text(), "mode 0644"));
	assert_int_equal(fchmod(fd, 0600), 0);
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	tern_shared_free(shared);
	unsetenv("TERN_SECRET_FILE");
	close(fd);
	unlink(path);
}

static void test_an_option_of_a_newer_program_is_refused(void **state)
{
	struct {
		struct tern_shared_opts opts;
		uint64_t newer;
	} opts = {.newer = 1};
	struct tern_shared *shared;

	(void)state;
	assert_int_equal(
		tern_shared_new_sized(&opts.opts, sizeof(opts), &shared), -E2BIG);
	tern_shared_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_threads_share_a_context_over_tcp),
		cmocka_unit_test(test_many_threads_share_a_context_over_shm),
		cmocka_unit_test(test_tensors_come_while_nobody_waits),
		cmocka_unit_test(test_a_long_get_goes_on_after_the_call_that_posted_it),
		cmocka_unit_test(test_who_polls_needs_no_progress_thread),
		cmocka_unit_test(test_a_waiter_is_answered_by_a_poll),
		cmocka_unit_test(test_a_waiter_drives_when_another_one_has_its_answer),
		cmocka_unit_test(test_a_driver_is_woken_by_a_call_of_another_thread),
		cmocka_unit_test(test_a_driver_goes_on_with_what_a_call_has_begun),
		cmocka_unit_test(test_a_wait_ends_after_its_time),
		cmocka_unit_test(test_a_forked_child_cannot_use_the_context),
		cmocka_unit_test(test_a_child_does_not_keep_its_parents_peers_over_tcp),
		cmocka_unit_test(test_a_child_does_not_keep_its_parents_peers_over_shm),
		cmocka_unit_test(test_a_secret_that_cannot_be_read_is_named),
		cmocka_unit_test(test_an_option_of_a_newer_program_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
