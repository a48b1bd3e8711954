/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of peers with several addresses, over simulated verbs devices and tcp. */
#include "tests/harness/cmocka.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/address.h"
#include "tests/fakes/verbs/fake_verbs.h"

#define LIMIT_NS   (20 * TERN_NS_PER_S)
#define BULK_BYTES 200000u

struct pair {
	struct tern_domain *domain;
	struct tern_context *a, *b; /* `a` dials, `b` listens */
	struct tern_peer *dialled, *accepted;
};

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct pair *)arg)->accepted = peer;
}

static void pair_init(struct pair *p, uint32_t rail_count, unsigned device_count)
{
	struct fake_verbs_opts machine = fake_verbs_defaults();
	struct tern_domain_hooks hooks = {.verbs_api = fake_verbs_api()};
	struct tern_context_opts ctx_opts = {
		.rail_count = rail_count, .bulk_bytes = BULK_BYTES};

	machine.device_count = device_count;
	fake_verbs_reset(&machine);
	*p = (struct pair){0};
	assert_int_equal(tern_domain_new_hooked(NULL, &hooks, &p->domain), 0);
	assert_int_equal(tern_context_new(p->domain, &ctx_opts, &p->a), 0);
	assert_int_equal(tern_context_new(p->domain, &ctx_opts, &p->b), 0);
}

static void pair_fini(struct pair *p)
{
	tern_peer_free(p->dialled);
	tern_context_free(p->a);
	tern_context_free(p->b);
	tern_domain_free(p->domain);
	fake_verbs_reset(NULL);
}

static const char *listen_at(struct pair *p, const char *address)
{
	struct tern_listener *listener;

	assert_int_equal(tern_listen(p->b, address, NULL, on_accept, p, &listener), 0);
	return tern_listener_address(listener);
}

static void join(struct pair *p, const char *address)
{
	uint64_t until_ns = tern_clock_ns() + LIMIT_NS;

	assert_int_equal(tern_connect(p->a, address, NULL, &p->dialled), 0);
	while (!p->accepted || !*tern_peer_fabric(p->dialled)) {
		assert_true(tern_clock_ns() < until_ns);
		tern_progress(p->a);
		tern_progress(p->b);
	}
}

/* Number of queue pairs on the device whose connection was accepted, not dialled. */
static unsigned accepted_on(unsigned device)
{
	struct fake_verbs_qp qps[32];
	unsigned count = fake_verbs_qps(qps, TERN_ARRAY_SIZE(qps)), found = 0;

	for (unsigned i = 0; i < count; i++)
		found += qps[i].device == device && qps[i].passive &&
			 qps[i].state == IBV_QPS_RTS;
	return found;
}

static void test_the_next_address_is_tried(void **state)
{
	struct pair p;
	char list[300];

	(void)state;
	pair_init(&p, 1, 3);
	snprintf(list, sizeof(list), "verbs://10.7.0.2:7+tcp://127.0.0.1:9+%s",
		listen_at(&p, "tcp://127.0.0.1:0"));
	join(&p, list);
	assert_string_equal(tern_peer_fabric(p.dialled), "tcp");
	pair_fini(&p);
}

static void keep_line(enum tern_log_level level, const char *text, void *arg)
{
	(void)level;
	snprintf(arg, 300, "%s", text);
}

/* Opens a socket that the kernel connects, and to which nobody speaks. Writes its address. */
static int listen_silently(char *out, size_t bytes)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, length), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
	snprintf(out, bytes, "tcp://127.0.0.1:%u", ntohs(at.sin_port));
	return fd;
}

static void test_a_fabric_that_does_not_answer_is_named(void **state)
{
	char list[300], line[300] = "", silent[64], said[200];
	struct pair p;
	int fd;

	(void)state;
	tern_log_set(TERN_LOG_DEFAULT, keep_line, line);
	pair_init(&p, 1, 3);
	fd = listen_silently(silent, sizeof(silent));
	snprintf(
		list, sizeof(list), "%s+%s", silent, listen_at(&p, "verbs://10.7.0.2:0"));
	join(&p, list);
	assert_string_equal(tern_peer_fabric(p.dialled), "verbs");
	snprintf(said, sizeof(said), "session begins over verbs: %s has not answered",
		silent);
	assert_non_null(strstr(line, said));
	pair_fini(&p);
	assert_int_equal(close(fd), 0);
	tern_log_set(TERN_LOG_DEFAULT, NULL, NULL);
}

static void test_rails_go_to_the_addresses_in_turn(void **state)
{
	uint64_t until_ns = tern_clock_ns() + LIMIT_NS;
	struct pair p;
	char list[300];

	(void)state;
	pair_init(&p, 4, 3);
	snprintf(list, sizeof(list), "%s+%s+%s", listen_at(&p, "verbs://10.7.0.2:0"),
		listen_at(&p, "tcp://127.0.0.1:0"), listen_at(&p, "verbs://10.7.0.3:0"));
	join(&p, list);
	while (accepted_on(1) < 2 || accepted_on(2) < 2) {
		assert_true(tern_clock_ns() < until_ns);
		tern_progress(p.a);
		tern_progress(p.b);
	}
	assert_int_equal(accepted_on(1), 2);
	assert_int_equal(accepted_on(2), 2);
	pair_fini(&p);
}

#define DEVICES      8u
#define TENSOR_BYTES (24u << 20)

/* Sends a tensor of end `from` (0: the dialling one) from mem[from] to mem[!from].
 * `first`: the receive is posted before the send. */
static void move(struct pair *p, struct tern_mem *const mem[2], unsigned from, bool first)
{
	struct tern_peer *peers[] = {p->dialled, p->accepted};
	struct tern_tensor tensor = {.buf = {mem[from], 0, TENSOR_BYTES},
		.shape = tern_shape_1d(TERN_U8, TENSOR_BYTES)};
	struct tern_buf room = {mem[!from], 0, TENSOR_BYTES};
	uint64_t until_ns = tern_clock_ns() + LIMIT_NS;
	struct tern_channel *out, *in;
	struct tern_req reqs[2] = {{0}};
	uint32_t number = from * 2u + first;
	char *bytes = tern_buf_ptr(&tensor.buf);

	for (unsigned i = 0; i < TENSOR_BYTES; i++)
		bytes[i] = (char)((i + number) * 2654435761u >> 24);
	memset(tern_buf_ptr(&room), 0, TENSOR_BYTES);
	assert_int_equal(tern_channel_open(peers[from], number, &out), 0);
	assert_int_equal(tern_channel_open(peers[!from], number, &in), 0);
	for (unsigned turn = 0; turn < 2; turn++) {
		if (first == (turn == 0))
			assert_int_equal(
				tern_recv(in, &reqs[0], 1, 0, &room, NULL, 0), 0);
		else
			assert_int_equal(
				tern_send(out, &reqs[1], 1, 0, &tensor, NULL, 0), 0);
		for (unsigned i = 0; i < 200; i++) {
			tern_progress(p->a);
			tern_progress(p->b);
		}
	}
	while ((tern_test(&reqs[0]) == -EINPROGRESS ||
		       tern_test(&reqs[1]) == -EINPROGRESS) &&
		tern_clock_ns() < until_ns) {
		tern_progress(p->a);
		tern_progress(p->b);
	}
	assert_int_equal(tern_test(&reqs[0]), 0);
	assert_int_equal(tern_test(&reqs[1]), 0);
	assert_memory_equal(tern_buf_ptr(&room), bytes, TENSOR_BYTES);
}

static void test_eight_devices_carry_eight_rails(void **state)
{
	uint64_t until_ns = tern_clock_ns() + LIMIT_NS;
	char list[600] = "", *memory[2];
	struct tern_mem *mem[2];
	unsigned up = 0;
	struct pair p;

	(void)state;
	pair_init(&p, DEVICES, DEVICES);
	for (unsigned i = 0; i < 2; i++) {
		memory[i] = malloc(TENSOR_BYTES);
		assert_int_equal(
			tern_mem_wrap(p.domain, memory[i], TENSOR_BYTES, &mem[i]), 0);
	}
	/* Lists the addresses in reverse order, so that the main link is on the eighth
	 * device. */
	for (unsigned i = DEVICES; i > 0; i--) {
		char address[64];

		snprintf(address, sizeof(address), "verbs://10.7.0.%u:0", i);
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s",
			*list ? "+" : "", listen_at(&p, address));
	}
	join(&p, list);
	while (up < DEVICES) {
		assert_true(tern_clock_ns() < until_ns);
		tern_progress(p.a);
		tern_progress(p.b);
		up = 0;
		for (unsigned i = 0; i < DEVICES; i++)
			up += accepted_on(i) == 1;
	}
	for (unsigned i = 0; i < 4; i++)
		move(&p, mem, i / 2, i % 2);
	for (unsigned i = 0; i < 2; i++)
		tern_mem_put(mem[i]);
	pair_fini(&p);
	for (unsigned i = 0; i < 2; i++)
		free(memory[i]);
}

/* ---- one address or device of several ---- */

static void test_devices_are_listed_with_where_they_are(void **state)
{
	struct tern_rdma_device found[DEVICES + 1];
	struct pair p;

	(void)state;
	pair_init(&p, 1, DEVICES);
	assert_int_equal(tern_rdma_devices(p.domain, found, DEVICES + 1), DEVICES);
	for (unsigned i = 0; i < DEVICES; i++) {
		char text[32];

		snprintf(text, sizeof(text), "fake_%u", i);
		assert_string_equal(found[i].name, text);
		snprintf(text, sizeof(text), "0000:%02x:00.0", i + 1);
		assert_string_equal(found[i].pci, text);
		assert_int_equal(found[i].guid & 0xff, i);
		assert_int_equal(found[i].port, 1);
		assert_true(found[i].active);
		assert_int_equal(found[i].bits_per_s, 100000000000);
		assert_int_equal(found[i].gpu_direct, TERN_GPU_DIRECT_UNTRIED);
	}
	assert_string_equal(found[6].address, "10.7.0.7");
	memset(found, 0, sizeof(found));
	assert_int_equal(tern_rdma_devices(p.domain, found, 1), DEVICES);
	assert_string_equal(found[0].name, "fake_0");
	assert_string_equal(found[1].name, "");
	assert_int_equal(tern_rdma_devices(p.domain, NULL, 0), DEVICES);
	pair_fini(&p);
}

/* Device of the only queue pair of the accepting (passive) or the dialling end. */
static unsigned device_of(bool passive)
{
	struct fake_verbs_qp qps[32];
	unsigned count = fake_verbs_qps(qps, TERN_ARRAY_SIZE(qps)), found = UINT_MAX;

	for (unsigned i = 0; i < count; i++)
		if (qps[i].passive == passive && qps[i].state == IBV_QPS_RTS)
			found = qps[i].device;
	return found;
}

static void test_an_address_chooses_the_device_of_its_end(void **state)
{
	struct tern_listener *listener;
	char address[128];
	struct pair p;

	(void)state;
	pair_init(&p, 1, DEVICES);
	snprintf(address, sizeof(address), "%s@fake_5",
		listen_at(&p, "verbs://:0@fake_6"));
	assert_non_null(strstr(address, "10.7.0.7:"));
	join(&p, address);
	assert_int_equal(device_of(false), 5);
	assert_int_equal(device_of(true), 6);
	/* Refused: an address of another device, an unknown device, an empty device
	 * name. */
	assert_int_equal(tern_listen(p.b, "verbs://10.7.0.2:0@fake_0", NULL, on_accept,
				 &p, &listener),
		-EADDRNOTAVAIL);
	assert_int_equal(tern_listen(p.b, "verbs://10.7.0.2:0@nobody", NULL, on_accept,
				 &p, &listener),
		-ENODEV);
	assert_int_equal(
		tern_listen(p.b, "verbs://10.7.0.2:0@", NULL, on_accept, &p, &listener),
		-EINVAL);
	pair_fini(&p);
}

static void test_a_context_chooses_the_device_of_all_its_ends(void **state)
{
	struct tern_context_opts opts;
	char name[] = "fake_3";
	struct pair p;

	(void)state;
	pair_init(&p, 1, DEVICES);
	tern_context_free(p.a);
	tern_context_free(p.b);
	opts = (struct tern_context_opts){.rdma_device = name};
	assert_int_equal(tern_context_new(p.domain, &opts, &p.a), 0);
	name[5] = '4';
	assert_int_equal(tern_context_new(p.domain, &opts, &p.b), 0);
	memset(name, 'x', sizeof(name) - 1); /* the context must have copied the name */
	join(&p, listen_at(&p, "verbs://0.0.0.0:0"));
	assert_int_equal(device_of(false), 3);
	assert_int_equal(device_of(true), 4);
	pair_fini(&p);
}

/* Number of connected sockets of this process whose remote port is this one. */
static unsigned sockets_to(uint16_t port)
{
	unsigned count = 0;

	for (int fd = 3; fd < 256; fd++) {
		struct sockaddr_in at;
		socklen_t bytes = sizeof(at);

		if (getpeername(fd, (struct sockaddr *)&at, &bytes) == 0 &&
			at.sin_family == AF_INET)
			count += ntohs(at.sin_port) == port;
	}
	return count;
}

static uint16_t port_of(const char *address)
{
	return (uint16_t)atoi(strrchr(address, ':') + 1);
}

/* With the first large tensor the session makes a second connection. It must go to the
 * tcp address that the session uses, although the list has another. */
static void test_bulk_goes_to_the_address_in_use(void **state)
{
	uint64_t until_ns = tern_clock_ns() + LIMIT_NS;
	struct tern_pool_opts pool_opts = {0};
	struct tern_req send = {0}, recv = {0};
	struct tern_channel *from, *to;
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, BULK_BYTES)};
	struct tern_buf room;
	struct tern_pool *pool;
	uint16_t first, second;
	struct pair p;
	char list[300];

	(void)state;
	pair_init(&p, 1, 3);
	snprintf(list, sizeof(list), "%s", listen_at(&p, "tcp://127.0.0.1:0"));
	first = port_of(list);
	strcat(list, "+");
	strcat(list, listen_at(&p, "tcp://127.0.0.1:0"));
	second = port_of(list);
	join(&p, list);
	assert_int_equal(tern_pool_new(p.domain, &pool_opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, BULK_BYTES, &tensor.buf), 0);
	assert_int_equal(tern_pool_get(pool, BULK_BYTES, &room), 0);
	assert_int_equal(tern_channel_open(p.dialled, 1, &from), 0);
	assert_int_equal(tern_channel_open(p.accepted, 1, &to), 0);
	assert_int_equal(sockets_to(first), 1);
	assert_int_equal(tern_recv(to, &recv, 1, 1, &room, NULL, 0), 0);
	assert_int_equal(tern_send(from, &send, 1, 1, &tensor, NULL, 0), 0);
	while (tern_test(&recv) == -EINPROGRESS || tern_test(&send) == -EINPROGRESS ||
		sockets_to(first) < 2) {
		assert_true(tern_clock_ns() < until_ns);
		tern_progress(p.a);
		tern_progress(p.b);
	}
	assert_int_equal(recv.status, 0);
	assert_int_equal(sockets_to(first), 2);
	assert_int_equal(sockets_to(second), 0);
	tern_pool_put(pool, &tensor.buf);
	tern_pool_put(pool, &room);
	tern_pool_free(pool);
	pair_fini(&p);
}

static void test_what_is_no_list_is_refused(void **state)
{
	static const struct {
		const char *list;
		int status;
	} rows[] = {
		{"", -EINVAL},
		{"+", -EINVAL},
		{"+tcp://127.0.0.1:1", -EINVAL},
		/* A "+" that is not followed by a scheme is part of the port, which only
		 * tern_connect() refuses. */
		{"tcp://127.0.0.1:1+", 0},
		{"tcp://127.0.0.1:1+tcp://", -EINVAL},
		{"tcp://127.0.0.1:1+none://127.0.0.1:2", -ENODEV},
		{"none://127.0.0.1:2+tcp://127.0.0.1:1", -ENODEV},
		{"tcp://a:1+tcp://a:1+tcp://a:1+tcp://a:1+tcp://a:1+tcp://a:1+"
		 "tcp://a:1+tcp://a:1",
			0},
		{"tcp://a:1+tcp://a:1+tcp://a:1+tcp://a:1+tcp://a:1+tcp://a:1+"
		 "tcp://a:1+tcp://a:1+tcp://a:1",
			-E2BIG},
	};
	char name[400] = "tcp://127.0.0.1:1+shm://";
	struct tern_candidates found;
	struct pair p;

	(void)state;
	pair_init(&p, 1, 3);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(rows); i++)
		assert_int_equal(tern_address_dial(p.domain, rows[i].list, &found),
			rows[i].status);
	memset(name + strlen(name), 'x', 200);
	assert_int_equal(tern_address_dial(p.domain, name, &found), -EINVAL);
	strcat(name, "+tcp://127.0.0.1:1");
	assert_int_equal(tern_address_dial(p.domain, name, &found), -EINVAL);
	/* The first plus is part of the name, since no scheme follows. */
	assert_int_equal(tern_address_dial(p.domain, "shm://a+b+tcp://c:1", &found), 0);
	assert_int_equal(found.count, 2);
	assert_string_equal(found.at[0].address, "a+b");
	assert_int_equal(
		tern_connect(p.a, "tcp://127.0.0.1:1+", NULL, &p.dialled), -EINVAL);
	pair_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_next_address_is_tried),
		cmocka_unit_test(test_a_fabric_that_does_not_answer_is_named),
		cmocka_unit_test(test_rails_go_to_the_addresses_in_turn),
		cmocka_unit_test(test_eight_devices_carry_eight_rails),
		cmocka_unit_test(test_devices_are_listed_with_where_they_are),
		cmocka_unit_test(test_an_address_chooses_the_device_of_its_end),
		cmocka_unit_test(test_a_context_chooses_the_device_of_all_its_ends),
		cmocka_unit_test(test_bulk_goes_to_the_address_in_use),
		cmocka_unit_test(test_what_is_no_list_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
