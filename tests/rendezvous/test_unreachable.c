/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a network that loses all packets for a while, or for ever: two network
 * namespaces of this process, joined by a pair of virtual interfaces, one of which is
 * switched off. A socket belongs to the namespace in which its thread is when it creates
 * the socket, so each end enters its namespace before each of its turns. Both interfaces
 * have the same hardware address and do not use ARP: the kernel would report an
 * unanswered ARP request to the sender, which would then retransmit sooner than it does
 * behind a router.
 *
 * Several pairs of contexts go through the same cut, since each cut takes long.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"

#define UNREACHABLE_NS (3 * TERN_NS_PER_S / 2)
/* Time limit of each TURN_UNTIL, so that a lost event is a failure and not a hang. */
#define LIMIT_NS    (60 * TERN_NS_PER_S)
#define BLOCK_BYTES (64u << 10)
#define QUEUE       50u /* blocks in flight that fill all buffers between two ends */

/* ---- the network ---- */

static int namespaces[2] = {-1, -1};
static const char *const interfaces[2] = {"tern-a", "tern-b"};
#define MAC "02:00:00:00:00:01"
static const char *const addresses[2] = {"10.77.0.1", "10.77.0.2"};

static void enter(unsigned side)
{
	assert_int_equal(setns(namespaces[side], CLONE_NEWNET), 0);
}

static void switch_link(unsigned side, bool on)
{
	struct ifreq request = {0};
	int fd;

	enter(side);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", interfaces[side]);
	request.ifr_flags = (short)(IFF_NOARP | (on ? IFF_UP : 0));
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
	close(fd);
}

static bool command(const char *line)
{
	return system(line) == 0;
}

/* Creates a namespace for this end, with a process in it, since `ip` refers to a namespace
 * by a process. Returns the process; -1: the system refuses namespaces. */
static pid_t settle(unsigned side)
{
	pid_t pid;

	if (unshare(CLONE_NEWNET) < 0)
		return -1;
	namespaces[side] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

/* Creates the network. Returns NULL, or the reason why it cannot. */
static const char *make_network(void)
{
	char line[256];
	pid_t inhabitant;

	if (geteuid() != 0 && unshare(CLONE_NEWUSER) < 0)
		return "the system allows no user namespaces";
	inhabitant = settle(1);
	if (inhabitant < 0)
		return "the system allows no network namespaces";
	if (unshare(CLONE_NEWNET) < 0)
		return "the system allows no second network namespace";
	namespaces[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	snprintf(line, sizeof(line),
		"ip link add %s address " MAC " type veth peer name %s address " MAC
		" netns %d && ip addr add %s/24 dev %s && ip link set %s arp off up",
		interfaces[0], interfaces[1], (int)inhabitant, addresses[0],
		interfaces[0], interfaces[0]);
	if (!command(line))
		return "`ip link add ... type veth` fails";
	enter(1);
	snprintf(line, sizeof(line),
		"ip addr add %s/24 dev %s && ip link set %s arp off up", addresses[1],
		interfaces[1], interfaces[1]);
	return command(line) ? NULL : "`ip addr add` fails";
}

/* ---- pairs ---- */

enum { A, B }; /* end A dials */

struct end {
	struct pair *pair;
	unsigned side;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	bool asleep; /* no turns for this end: its program does not poll */
	unsigned suspect_count, recovered_count, down_count;
	int down_status;
	struct tern_req sends[QUEUE], recvs[QUEUE];
	char out[BLOCK_BYTES], in[BLOCK_BYTES];
	struct tern_mem *out_mem, *in_mem;
	uint64_t step; /* number of the tensor in flight in each direction */
};

struct pair {
	const char *name;
	struct tern_listener *listener;
	struct end ends[2];
	bool talks; /* this pair always has a tensor in flight in each direction */
};

static struct tern_domain *domain;
static struct pair *pairs[4];
static unsigned pair_count;

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *end = arg;

	(void)peer;
	end->suspect_count += event == TERN_PEER_SUSPECT;
	end->recovered_count += event == TERN_PEER_RECOVERED;
	end->down_count += event == TERN_PEER_DOWN;
	if (event == TERN_PEER_DOWN)
		end->down_status = status;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *end = arg;
	struct tern_peer_opts opts = {.event = on_event, .arg = end};

	tern_peer_set_opts(peer, &opts);
	end->peer = peer;
}

static void send_block(struct end *end, unsigned i, uint64_t step)
{
	struct tern_tensor tensor = {
		{end->out_mem, 0, BLOCK_BYTES}, tern_shape_1d(TERN_U8, BLOCK_BYTES)};

	assert_int_equal(
		tern_send(end->channel, &end->sends[i], i, step, &tensor, NULL, 0), 0);
}

static void receive_block(struct end *end, unsigned i, uint64_t step)
{
	struct tern_buf room = {end->in_mem, 0, BLOCK_BYTES};

	assert_int_equal(
		tern_recv(end->channel, &end->recvs[i], i, step, &room, NULL, 0), 0);
}

/* Sends the next tensor in each direction in which the last one has arrived. Each byte of
 * a tensor is the tensor's number. */
static void talk(struct pair *pair)
{
	if (pair->ends[A].down_count || pair->ends[B].down_count)
		return;
	for (unsigned side = 0; side < 2; side++) {
		struct end *from = &pair->ends[side], *to = &pair->ends[!side];

		if (from->step && (from->sends[0].status == -EINPROGRESS ||
					  to->recvs[0].status == -EINPROGRESS))
			continue;
		if (from->step) {
			assert_int_equal(from->sends[0].status, 0);
			assert_int_equal(to->recvs[0].status, 0);
			assert_memory_equal(to->in, from->out, BLOCK_BYTES);
		}
		from->step++;
		memset(from->out, (int)from->step, BLOCK_BYTES);
		receive_block(to, 0, from->step);
		send_block(from, 0, from->step);
	}
}

static void turn(void)
{
	struct timespec pause = {.tv_nsec = 200000};
	int events = 0;

	for (unsigned i = 0; i < 2 * pair_count; i++) {
		struct end *end = &pairs[i / 2]->ends[i % 2];

		if (end->asleep || !end->ctx)
			continue;
		enter(end->side);
		events += tern_progress(end->ctx);
	}
	for (unsigned i = 0; i < pair_count; i++)
		if (pairs[i]->talks)
			talk(pairs[i]);
	if (events == 0)
		nanosleep(&pause, NULL);
}

static void turn_for(uint64_t ns)
{
	uint64_t end_ns = tern_clock_ns() + ns;

	while (tern_clock_ns() < end_ns)
		turn();
}

#define TURN_UNTIL(cond)                                                                 \
	do {                                                                             \
		uint64_t limit_ = tern_clock_ns() + LIMIT_NS;                            \
		while (!(cond)) {                                                        \
			turn();                                                          \
			assert_true(tern_clock_ns() < limit_);                           \
		}                                                                        \
	} while (0)

static void open_end(struct end *end, struct pair *pair, unsigned side)
{
	struct tern_context_opts opts = {.suspect_ns = 200 * TERN_NS_PER_MS,
		.unreachable_ns = UNREACHABLE_NS,
		.no_spin = true};

	*end = (struct end){.pair = pair, .side = side};
	enter(side);
	assert_int_equal(tern_context_new(domain, &opts, &end->ctx), 0);
	assert_int_equal(tern_mem_wrap(domain, end->out, BLOCK_BYTES, &end->out_mem), 0);
	assert_int_equal(tern_mem_wrap(domain, end->in, BLOCK_BYTES, &end->in_mem), 0);
}

static struct pair *add_pair(const char *name)
{
	struct pair *pair = calloc(1, sizeof(*pair));
	struct end *a, *b;
	struct tern_peer_opts opts = {.event = on_event};
	char url[64];

	assert_non_null(pair);
	pair->name = name;
	a = &pair->ends[A];
	b = &pair->ends[B];
	open_end(b, pair, B);
	snprintf(url, sizeof(url), "tcp://%s:0", addresses[B]);
	assert_int_equal(
		tern_listen(b->ctx, url, NULL, on_accept, b, &pair->listener), 0);
	open_end(a, pair, A);
	opts.arg = a;
	assert_int_equal(tern_connect(a->ctx, tern_listener_address(pair->listener),
				 &opts, &a->peer),
		0);
	pairs[pair_count++] = pair;
	TURN_UNTIL(b->peer);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			tern_channel_open(pair->ends[i].peer, 1, &pair->ends[i].channel),
			0);
	return pair;
}

/* Makes end `sleeper` stop polling, and sends to it more than sockets and windows hold. */
static void clog_up(struct pair *pair, unsigned sleeper)
{
	struct end *from = &pair->ends[!sleeper], *to = &pair->ends[sleeper];

	for (unsigned i = 0; i < QUEUE; i++)
		receive_block(to, i, 1);
	turn_for(50 * TERN_NS_PER_MS);
	to->asleep = true;
	for (unsigned i = 0; i < QUEUE; i++)
		send_block(from, i, 1);
}

static void open_all(void)
{
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
}

static void close_all(void)
{
	for (unsigned i = 0; i < pair_count; i++) {
		for (unsigned side = 0; side < 2; side++) {
			struct end *end = &pairs[i]->ends[side];

			enter(side);
			tern_context_free(end->ctx);
			tern_mem_put(end->out_mem);
			tern_mem_put(end->in_mem);
		}
		free(pairs[i]);
	}
	pair_count = 0;
	tern_domain_free(domain);
}

/* True if all peers are down, except at ends that are asleep. */
static bool all_down(void)
{
	for (unsigned i = 0; i < 2 * pair_count; i++) {
		const struct end *end = &pairs[i / 2]->ends[i % 2];

		if (!end->asleep && !end->down_count)
			return false;
	}
	return true;
}

/* ---- tests ---- */

static void test_a_host_that_vanishes_is_noticed(void **state)
{
	(void)state;
	open_all();
	add_pair("idle");
	add_pair("busy")->talks = true;
	clog_up(add_pair("window closed by B"), B);
	clog_up(add_pair("window closed by A"), A);
	/* Waits until the TCP windows are closed; no peer may be reported as down yet. */
	turn_for(UNREACHABLE_NS);
	for (unsigned i = 0; i < 2 * pair_count; i++)
		assert_int_equal(pairs[i / 2]->ends[i % 2].down_count, 0);
	switch_link(A, false);
	TURN_UNTIL(all_down());
	for (unsigned i = 0; i < 2 * pair_count; i++)
		assert_int_equal(pairs[i / 2]->ends[i % 2].down_status,
			pairs[i / 2]->ends[i % 2].asleep ? 0 : -ETIMEDOUT);
	switch_link(A, true);
	close_all();
}

/* The network is cut for slightly less than unreachable_ns, and no session may end. (The
 * kernel's last retransmission falls into the cut, and its next one comes long after it.) */
static void test_a_cut_shorter_than_promised_is_survived(void **state)
{
	const uint64_t cut_ns = UNREACHABLE_NS * 19 / 20;
	struct pair *clogged;
	uint64_t step;

	(void)state;
	open_all();
	add_pair("idle");
	add_pair("busy")->talks = true;
	clogged = add_pair("window closed by B");
	clog_up(clogged, B);
	turn_for(300 * TERN_NS_PER_MS);
	step = pairs[1]->ends[A].step;
	switch_link(B, false);
	turn_for(cut_ns);
	switch_link(B, true);
	TURN_UNTIL(
		pairs[1]->ends[A].step > step + 20 && pairs[1]->ends[B].step > step + 20);
	/* A makes a new connection for the blocked session while the program of B still
	 * sleeps. */
	turn_for(UNREACHABLE_NS * 2);
	clogged->ends[B].asleep = false;
	for (unsigned i = 0; i < QUEUE; i++) {
		TURN_UNTIL(clogged->ends[A].sends[i].status != -EINPROGRESS &&
			   clogged->ends[B].recvs[i].status != -EINPROGRESS);
		assert_int_equal(clogged->ends[A].sends[i].status, 0);
		assert_int_equal(clogged->ends[B].recvs[i].status, 0);
	}
	for (unsigned i = 0; i < 2 * pair_count; i++)
		assert_int_equal(pairs[i / 2]->ends[i % 2].down_count, 0);
	close_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_host_that_vanishes_is_noticed),
		cmocka_unit_test(test_a_cut_shorter_than_promised_is_survived),
	};
	const char *why = make_network();

	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
