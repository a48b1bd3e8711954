/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the addresses of a listener, in a network namespace of this process, whose
 * interfaces it chooses. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"

#define LIMIT_NS (20 * TERN_NS_PER_S)
#define ALL      8u

static struct tern_domain *domain;
static struct tern_context *ctx;
static unsigned accepted;

static void on_accept(struct tern_peer *peer, void *arg)
{
	(void)peer, (void)arg;
	accepted++;
}

static bool command(const char *line)
{
	return system(line) == 0;
}

/* A namespace in which no interface is up. */
static void enter(void)
{
	if (geteuid() != 0 && unshare(CLONE_NEWUSER) < 0)
		skip();
	if (unshare(CLONE_NEWNET) < 0)
		skip();
}

static void up(void)
{
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_context_new(domain, NULL, &ctx), 0);
	accepted = 0;
}

static void down(void)
{
	tern_context_free(ctx);
	tern_domain_free(domain);
}

static struct tern_listener *listen_at(const char *address)
{
	struct tern_listener *listener;

	assert_int_equal(tern_listen(ctx, address, NULL, on_accept, NULL, &listener), 0);
	return listener;
}

/* The listener's addresses, without their ports: "auto://10.77.0.1 auto://[fd77::1]". Each
 * is dialled, and accepted. */
static void find(const char *address, char *out, size_t bytes)
{
	struct tern_listener *listener = listen_at(address);
	char found[ALL][TERN_ADDRESS_BYTES];
	int count = tern_listener_addresses(listener, found, ALL);
	uint64_t until_ns = tern_clock_ns() + LIMIT_NS;
	unsigned before = accepted;
	struct tern_peer *peer;
	size_t n = 0;

	assert_in_range(count, 1, ALL);
	for (int i = 0; i < count; i++) {
		n += (size_t)snprintf(out + n, bytes - n, "%s%.*s", i ? " " : "",
			(int)(strrchr(found[i], ':') - found[i]), found[i]);
		assert_int_equal(tern_connect(ctx, found[i], NULL, &peer), 0);
	}
	while (accepted < before + (unsigned)count) {
		assert_true(tern_clock_ns() < until_ns);
		tern_progress(ctx);
	}
	tern_listener_free(listener);
}

static void test_without_an_interface_there_is_none(void **state)
{
	char found[ALL][TERN_ADDRESS_BYTES];

	(void)state;
	enter();
	up();
	assert_int_equal(
		tern_listener_addresses(listen_at("tcp://0.0.0.0:0"), found, ALL),
		-EADDRNOTAVAIL);
	down();
}

static void test_loopback_is_told_if_there_is_nothing_else(void **state)
{
	char text[400];

	(void)state;
	enter();
	assert_true(command("ip link set lo up"));
	up();
	find("auto://0.0.0.0:0", text, sizeof(text));
	assert_string_equal(text, "auto://127.0.0.1");
	assert_true(command("ip link add tern-a type veth peer name tern-b && "
			    "ip addr add 10.77.0.1/24 dev tern-a && "
			    "ip link set tern-a up && ip link set tern-b up"));
	find("auto://0.0.0.0:0", text, sizeof(text));
	assert_string_equal(text, "auto://10.77.0.1");
	down();
}

static void test_all_interfaces_are_told(void **state)
{
	char found[ALL][TERN_ADDRESS_BYTES] = {"", "untouched"}, text[400];
	bool has_v6;

	(void)state;
	enter();
	assert_true(command("ip link set lo up && "
			    "ip link add tern-a type veth peer name tern-b && "
			    "ip addr add 10.77.0.1/24 dev tern-b && "
			    "ip addr add 10.78.0.1/24 dev tern-a && "
			    "ip link set tern-a up && ip link set tern-b up"));
	has_v6 = command("ip addr add fd77::1/64 dev tern-b nodad");
	up();
	find("tcp://0.0.0.0:0", text, sizeof(text));
	assert_string_equal(text, "tcp://10.77.0.1 tcp://10.78.0.1");
	find("tcp://:0", text, sizeof(text));
	assert_string_equal(
		text, has_v6 ? "tcp://10.77.0.1 tcp://10.78.0.1 tcp://[fd77::1]"
			     : "tcp://10.77.0.1 tcp://10.78.0.1");
	assert_int_equal(
		tern_listener_addresses(listen_at("tcp://0.0.0.0:0"), found, 1), 2);
	assert_string_equal(found[1], "untouched");
	assert_true(command("ip link set tern-a down"));
	find("tcp://0.0.0.0:0", text, sizeof(text));
	assert_string_equal(text, "tcp://10.77.0.1");
	down();
}

static void test_another_listener_has_its_own_address(void **state)
{
	static const char *const at[] = {
		"tcp://127.0.0.1:0", "shm://tern-listening:1:2", "shm://tern-listening"};
	char found[ALL][TERN_ADDRESS_BYTES];

	(void)state;
	enter();
	assert_true(command("ip link set lo up"));
	up();
	for (size_t i = 0; i < TERN_ARRAY_SIZE(at); i++) {
		struct tern_listener *listener = listen_at(at[i]);

		assert_int_equal(tern_listener_addresses(listener, found, ALL), 1);
		assert_string_equal(found[0], tern_listener_address(listener));
	}
	down();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_an_interface_there_is_none),
		cmocka_unit_test(test_loopback_is_told_if_there_is_nothing_else),
		cmocka_unit_test(test_all_interfaces_are_told),
		cmocka_unit_test(test_another_listener_has_its_own_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
