/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a fabric gets by its row in the table of fabrics, without further code:
 * `auto` tries the fabrics in the order of the table, and the command line offers the
 * fabric. */
#include "tests/harness/cmocka.h"

#include <stdio.h>

#include <tern/tern.h>

#include "tools/fabric.h"

static void on_peer(struct tern_peer *peer, void *arg)
{
	*(struct tern_peer **)arg = peer;
}

/* Connects to auto://127.0.0.1 and stores the name of the fabric that was chosen. */
static void meet_by_auto(char *fabric, size_t bytes)
{
	struct tern_context_opts opts = {.log_level = TERN_LOG_NONE};
	struct tern_peer *dialled, *accepted = NULL;
	struct tern_listener *listener;
	struct tern_context *a, *b;
	struct tern_domain *domain;

	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_context_new(domain, &opts, &a), 0);
	assert_int_equal(tern_context_new(domain, &opts, &b), 0);
	assert_int_equal(
		tern_listen(b, "auto://127.0.0.1:0", NULL, on_peer, &accepted, &listener),
		0);
	assert_int_equal(
		tern_connect(a, tern_listener_address(listener), NULL, &dialled), 0);
	while (!accepted) {
		tern_progress(a);
		tern_progress(b);
	}
	snprintf(fabric, bytes, "%s", tern_peer_fabric(accepted));
	tern_peer_free(dialled);
	tern_context_free(a);
	tern_context_free(b);
	tern_domain_free(domain);
}

static void test_auto_prefers_the_first_row(void **state)
{
	char fabric[16];

	(void)state;
	meet_by_auto(fabric, sizeof(fabric));
	assert_string_equal(fabric, "loopback");
}

static void test_the_command_line_offers_it(void **state)
{
	static const char *const names[] = {"auto", "verbs", "tcp", "loopback", "shm"};
	struct fabric_settings settings = {.choice = 3};
	char address[80];

	(void)state;
	assert_int_equal(fabric_count(), 5);
	for (unsigned i = 0; i < 5; i++)
		assert_string_equal(fabric_names()[i], names[i]);
	assert_null(fabric_names()[5]);
	assert_true(fabric_stays_here(&settings));
	fabric_listen_address(&settings, NULL, "job", address, sizeof(address));
	assert_memory_equal(address, "loopback://job-", 15);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_auto_prefers_the_first_row),
		cmocka_unit_test(test_the_command_line_offers_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
