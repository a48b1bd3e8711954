/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a listening process that has no memory for the records of one more peer, in
 * which it would keep the peer's messages: the peer is refused, tries again, and is
 * accepted when there is memory; if there is none until its time limit, it goes down.
 * The tests limit the address space; a slab of records (unit of allocation) takes more of
 * it than anything else in this process.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "rendezvous/rendezvous.h"
#include "transport/context.h"

#define SLAB_PEERS 16u /* number of peers whose records are in one slab */
#define DIALLERS   (SLAB_PEERS + 1)
#define EARLY      4u /* dialling ends that send before there is memory again */
/* Address space that is left: less than a slab of records, 16 MiB. */
#define ROOM_BYTES (12u << 20)
#define DATA_BYTES 100u
#define LIMIT_NS   (20 * TERN_NS_PER_S)

struct caller {
	struct world *world;
	struct tern_peer *peer, *accepted;
	struct tern_channel *channel;
	struct tern_req send;
	char data[DATA_BYTES];
	struct tern_mem *mem;
	unsigned up_count, down_count;
	int down_status;
};

struct world {
	struct tern_env_ops env_ops;
	struct tern_env env[2];
	struct tern_domain *domain;
	struct tern_context *client, *server;
	struct tern_listener *listener;
	struct caller callers[DIALLERS];
	struct tern_peer *accepted[DIALLERS];
	unsigned accepted_count;
	struct rlimit old;
};

static unsigned refused_count; /* number of log lines about a refusal */

static void count_refusals(
	struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	(void)level;
	if (strstr(line, "no memory for the records of one more peer"))
		refused_count++;
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct caller *c = arg;

	(void)peer;
	c->up_count += event == TERN_PEER_UP;
	c->down_count += event == TERN_PEER_DOWN;
	if (event == TERN_PEER_DOWN)
		c->down_status = status;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;

	w->accepted[w->accepted_count++] = peer;
}

static void world_init(struct world *w, const char *address, uint64_t connect_ns)
{
	struct tern_context_opts opts = {.connect_ns = connect_ns};

	*w = (struct world){.env_ops = *tern_env_system()->ops};
	refused_count = 0;
	w->env_ops.log = count_refusals;
	for (unsigned i = 0; i < 2; i++)
		w->env[i] =
			(struct tern_env){.ops = &w->env_ops, .log_level = TERN_LOG_WARN};
	assert_int_equal(tern_domain_new(NULL, &w->domain), 0);
	assert_int_equal(
		tern_context_new_in(w->domain, &opts, &w->env[0], &w->client), 0);
	assert_int_equal(
		tern_context_new_in(w->domain, &opts, &w->env[1], &w->server), 0);
	assert_int_equal(
		tern_listen(w->server, address, NULL, on_accept, w, &w->listener), 0);
	assert_int_equal(getrlimit(RLIMIT_AS, &w->old), 0);
}

/* Limits the address space so that no slab of records can be allocated. */
static void run_short(struct world *w)
{
	struct rlimit tight = w->old;
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "re");

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%lu", &pages), 1);
	fclose(file);
	tight.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ROOM_BYTES;
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
}

static void have_enough(struct world *w)
{
	assert_int_equal(setrlimit(RLIMIT_AS, &w->old), 0);
}

static void world_fini(struct world *w)
{
	have_enough(w);
	tern_context_free(w->client);
	tern_context_free(w->server);
	for (unsigned i = 0; i < DIALLERS; i++)
		tern_mem_put(w->callers[i].mem);
	tern_domain_free(w->domain);
}

static void dial(struct world *w, unsigned i)
{
	struct caller *c = &w->callers[i];
	const struct tern_peer_opts opts = {.event = on_event, .arg = c};

	assert_int_equal(tern_connect(w->client, tern_listener_address(w->listener),
				 &opts, &c->peer),
		0);
	assert_int_equal(tern_channel_open(c->peer, 1, &c->channel), 0);
}

/* Sends a tensor from dialler `i` to the server. */
static void say(struct world *w, unsigned i)
{
	struct caller *c = &w->callers[i];
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, DATA_BYTES)};

	memset(c->data, (int)(i + 1), DATA_BYTES);
	assert_int_equal(tern_mem_wrap(w->domain, c->data, DATA_BYTES, &c->mem), 0);
	tensor.buf = (struct tern_buf){c->mem, 0, DATA_BYTES};
	assert_int_equal(tern_send(c->channel, &c->send, 1, 0, &tensor, NULL, 0), 0);
}

static void turn(struct world *w)
{
	if (tern_progress(w->client) + tern_progress(w->server) == 0)
		usleep(50);
}

#define UNTIL(w, turn, condition)                                                        \
	do {                                                                             \
		uint64_t limit_ns_ = tern_clock_ns() + LIMIT_NS;                         \
		while (!(condition) && tern_clock_ns() < limit_ns_)                      \
			turn;                                                            \
		assert_true(condition);                                                  \
	} while (0)

/* Checks that the tensor of each dialling end has arrived exactly once. */
static void check_all_came(struct world *w, unsigned count)
{
	bool came[DIALLERS + 1] = {false};

	UNTIL(w, turn(w), w->accepted_count == count);
	for (unsigned i = 0; i < count; i++) {
		struct tern_channel *channel;
		struct tern_req recv = {0};
		char data[DATA_BYTES] = {0};
		struct tern_buf room = {NULL, 0, DATA_BYTES};

		assert_int_equal(
			tern_mem_wrap(w->domain, data, DATA_BYTES, &room.mem), 0);
		assert_int_equal(tern_channel_open(w->accepted[i], 1, &channel), 0);
		assert_int_equal(tern_recv(channel, &recv, 1, 0, &room, NULL, 0), 0);
		UNTIL(w, turn(w), tern_test(&recv) != -EINPROGRESS);
		assert_int_equal(tern_test(&recv), 0);
		assert_in_range(data[0], 1, count);
		assert_false(came[(unsigned)data[0]]);
		came[(unsigned)data[0]] = true;
		tern_mem_put(room.mem);
	}
	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(w->callers[i].up_count, 1);
		assert_int_equal(w->callers[i].down_count, 0);
	}
}

static void test_who_is_refused_for_memory_gets_in_when_there_is_some(void **state)
{
	struct world w;

	world_init(&w, *state, LIMIT_NS);
	dial(&w, 0);
	say(&w, 0);
	run_short(&w);
	UNTIL(&w, turn(&w), refused_count > 1);
	assert_int_equal(w.callers[0].up_count + w.callers[0].down_count, 0);
	have_enough(&w);
	check_all_came(&w, 1);
	world_fini(&w);
}

static void test_who_is_refused_for_memory_to_the_end_is_told(void **state)
{
	struct world w;

	world_init(&w, *state, 200 * TERN_NS_PER_MS);
	dial(&w, 0);
	run_short(&w);
	UNTIL(&w, turn(&w), w.callers[0].down_count);
	assert_int_equal(w.callers[0].down_status, -ENOMEM);
	assert_int_equal(w.callers[0].up_count, 0);
	world_fini(&w);
}

static unsigned peers_of(struct tern_context *ctx)
{
	unsigned count = 0;

	tern_list_for_each (n, &tern_rdv_of(ctx)->peers)
		count++;
	return count;
}

/* Each dialling end was promised records, but the last one to complete its handshake
 * finds none free: it loses its connection, and its session must connect again. */
static void test_memory_may_end_within_a_handshake(void **state)
{
	struct world w;

	world_init(&w, *state, LIMIT_NS);
	for (unsigned i = 0; i < DIALLERS; i++)
		dial(&w, i);
	/* A sender keeps its messages until they are acknowledged, which takes 1 MiB for
	 * each dialling end. That is more memory than there is for all of them. */
	for (unsigned i = DIALLERS - EARLY; i < DIALLERS; i++)
		say(&w, i);
	for (unsigned i = 0; i < 100; i++)
		tern_progress(w.client);
	UNTIL(&w, tern_progress(w.server), peers_of(w.server) == DIALLERS);
	assert_int_equal(w.accepted_count, 0);
	run_short(&w);
	UNTIL(&w, turn(&w), refused_count > 2);
	assert_int_equal(w.accepted_count, SLAB_PEERS);
	have_enough(&w);
	for (unsigned i = 0; i < DIALLERS - EARLY; i++)
		say(&w, i);
	check_all_came(&w, DIALLERS);
	world_fini(&w);
}

int main(void)
{
	static char tcp[] = "tcp://127.0.0.1:0", shm[] = "shm://*";
	const struct CMUnitTest tests[] = {
		{"gets in later, tcp",
			test_who_is_refused_for_memory_gets_in_when_there_is_some, NULL,
			NULL, tcp},
		{"gets in later, shm",
			test_who_is_refused_for_memory_gets_in_when_there_is_some, NULL,
			NULL, shm},
		{"is told, tcp", test_who_is_refused_for_memory_to_the_end_is_told, NULL,
			NULL, tcp},
		{"is told, shm", test_who_is_refused_for_memory_to_the_end_is_told, NULL,
			NULL, shm},
		{"within a handshake, tcp", test_memory_may_end_within_a_handshake, NULL,
			NULL, tcp},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
