/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plug-in for NIXL bears: notifications that nobody takes, a peer that knows the
 * secret of an agent and sends notifications as no Tern sends them, a target that stands
 * still, and transfers of memory that was deregistered. Agents are those of nixl_pair.h.
 */
#include "tests/harness/cmocka.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <tern/shared.h>
#include <tern/window.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/plugins/nixl_pair.h"

#define NOTE_BYTES (16u << 20) /* of the largest notification */

/* ---- a peer that is not NIXL ---- */

struct stranger {
	struct tern_shared *shared;
	struct tern_peer *peer;
};

/* Connects to the agent, with its secret. */
static void come(struct stranger *s, struct nixl_agent *agent)
{
	char secret[40], addresses[640];
	const struct tern_peer_opts opts = {.name = "stranger", .secret = secret};

	assert_int_equal(
		sscanf(nixl_info(agent), "tern1 %*s %39s %639s", secret, addresses), 2);
	assert_int_equal(tern_shared_new(NULL, &s->shared), 0);
	tern_shared_lock(s->shared);
	assert_int_equal(
		tern_connect(tern_shared_context(s->shared), addresses, &opts, &s->peer),
		0);
	tern_shared_unlock(s->shared);
}

/* Returns the status with which the notification has ended. */
static int say(struct stranger *s, const void *data, size_t bytes)
{
	const struct tern_note note = {data, bytes};
	struct tern_req req = {0};
	int r;

	tern_shared_lock(s->shared);
	r = tern_notify(s->peer, &req, &note);
	tern_shared_unlock(s->shared);
	assert_int_equal(r, 0);
	r = tern_shared_wait(s->shared, &req, LIMIT_NS);
	assert_int_not_equal(r, -ETIMEDOUT);
	return r;
}

static void leave(struct stranger *s)
{
	tern_shared_free(s->shared);
}

/* A part of a notification, as notes.c sends it. */
struct part {
	uint32_t magic, name_bytes;
	uint64_t number;
	uint32_t bytes, offset;
	char data[8];
};

static struct part part_of(uint64_t number, uint32_t bytes, uint32_t offset)
{
	return (struct part){0x544e4958u, 1, number, bytes, offset, "Sxxxxxx"};
}

static size_t address_space(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	size_t pages;

	assert_non_null(file);
	assert_int_equal(fscanf(file, "%zu", &pages), 1);
	fclose(file);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static unsigned count_lines(const struct lines *l)
{
	unsigned count = 0;

	for (const char *c = l->text; (c = strchr(c, '\n')); c++)
		count++;
	return count;
}

/* ---- cases ---- */

/* The agent whose program takes nothing goes on, and so does a sender that loads it again. */
static void test_notifications_that_nobody_takes_are_bounded(void **state)
{
	char *blob = calloc(1, NOTE_BYTES);
	struct notes notes = {0};
	struct nixl_range range;
	struct nixl_handle *h;
	unsigned sent = 0;
	struct lines l;
	struct pair p;
	int status;

	(void)state;
	assert_non_null(blob);
	open_pair(&p);
	range = range_of(&p, 0, 0, 0, 0);
	h = prepare(&p, true, &range, 1);
	collect(&l);
	do
		status = end_of(h, nixl_post(h, blob, NOTE_BYTES));
	while (status == 0 && ++sent < 30);
	collected(&l);
	assert_int_equal(status, DISCONNECTED);
	assert_int_equal(sent, (256u << 20) / NOTE_BYTES - 1);
	has(&l, "agent T: the connection of agent I, pid ");
	has(&l, " is cut: 256 MiB of notifications wait, which the program does not "
		"take");
	assert_int_equal(nixl_release(h), 0);
	await_notes(p.t.agent, &notes, sent);
	assert_int_equal(notes.bytes, NOTE_BYTES);
	assert_int_equal(nixl_disconnect(p.i.agent, "T"), 0);
	assert_int_equal(nixl_load_info(p.i.agent, "T", nixl_info(p.t.agent)), 0);
	assert_int_equal(nixl_notify(p.i.agent, "T", "again", 5), 0);
	await_notes(p.t.agent, &notes, sent + 1);
	assert_string_equal(notes.last, "again");
	close_pair(&p);
	free(blob);
}

static void test_an_agent_bounds_its_own_notifications(void **state)
{
	char *blob = calloc(1, NOTE_BYTES);
	struct notes notes = {0};
	unsigned sent = 0;
	struct lines l;
	struct side s;

	(void)state;
	assert_non_null(blob);
	open_side(&s, "A");
	collect(&l);
	while (sent < 30 && nixl_notify(s.agent, "A", blob, NOTE_BYTES) == 0)
		sent++;
	collected(&l);
	assert_int_equal(sent, (256u << 20) / NOTE_BYTES - 1);
	has(&l, "agent A: a notification to itself: 256 MiB of notifications wait");
	await_notes(s.agent, &notes, sent);
	assert_int_equal(nixl_notify(s.agent, "A", "again", 5), 0);
	await_notes(s.agent, &notes, sent + 1);
	close_side(&s);
	free(blob);
}

/* The first part of a notification takes the memory of all parts. */
static void test_notifications_that_never_end_are_bounded(void **state)
{
	struct stranger stranger;
	size_t before;
	struct side s;

	(void)state;
	open_side(&s, "A");
	come(&stranger, s.agent);
	before = address_space();
	for (unsigned i = 0; i < 64; i++) {
		struct part part = part_of(i, NOTE_BYTES, 0);

		assert_int_equal(say(&stranger, &part, sizeof(part)), 0);
	}
	/* A sanitizer keeps up to 256 MiB of what was freed. */
	assert_true(address_space() - before < 512u << 20);
	leave(&stranger);
	close_side(&s);
}

static void take_text(void *arg, const char *name, const void *data, size_t bytes)
{
	(void)name;
	snprintf(arg, 16, "%.*s", (int)TERN_MIN(bytes, (size_t)15), (const char *)data);
}

static void test_a_sender_may_cancel_long_notifications(void **state)
{
	char *blob = calloc(1, NOTE_BYTES);
	struct nixl_range range;
	struct nixl_handle *h;
	char text[16] = "";
	struct lines l;
	struct pair p;

	(void)state;
	assert_non_null(blob);
	open_pair(&p);
	range = range_of(&p, 0, 0, 0, 1000);
	collect(&l);
	for (unsigned i = 0; i < 40; i++) {
		int r;

		h = prepare(&p, i % 2, &range, 1);
		nixl_post(h, blob, NOTE_BYTES);
		for (unsigned n = 0; n < i % 5; n++)
			nixl_check(h);
		r = nixl_release(h);
		if (r == ACTIVE)
			r = nixl_release(h);
		assert_int_equal(r, 0);
	}
	collected(&l);
	assert_string_equal(l.text, "");
	h = prepare(&p, true, &range, 1);
	assert_int_equal(run(h, "the last one"), 0);
	assert_int_equal(nixl_release(h), 0);
	while (strcmp(text, "the last one") != 0) /* others have arrived before it */
		assert_int_equal(nixl_take(p.t.agent, take_text, text), 0);
	close_pair(&p);
	free(blob);
}

/* The log has one line, however often the peer repeats its message. */
static void test_a_peer_that_is_not_nixl_is_cut(void **state)
{
	const struct part wrong[] = {
		{.magic = 1},
		part_of(1, NOTE_BYTES, 8),     /* without a first part */
		part_of(1, NOTE_BYTES + 1, 0), /* too long */
		part_of(1, 6, 0),              /* more bytes than it says */
		part_of(1, 10, 11),
		{.magic = 0x544e4958u, .name_bytes = 200},
	};
	struct stranger stranger;
	struct lines l;
	struct side s;

	(void)state;
	open_side(&s, "A");
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		come(&stranger, s.agent);
		collect(&l);
		for (unsigned n = 0; n < 50; n++)
			say(&stranger, &wrong[i], sizeof(wrong[i]));
		collected(&l);
		assert_true(say(&stranger, &wrong[i], sizeof(wrong[i])) < 0);
		assert_int_equal(count_lines(&l), 1);
		has(&l, "agent A: the connection of stranger (");
		has(&l, "its notification is not of this version of Tern");
		leave(&stranger);
	}
	close_side(&s);
}

/* Over tcp, neither the target's program nor a timeout ends the transfer. */
static void test_memory_is_deregistered_although_its_target_stands_still(void **state)
{
	struct nixl_region *remote;
	struct nixl_range range;
	struct nixl_handle *h;
	struct child c;
	struct lines l;
	struct side s;
	int posted;

	(void)state;
	alarm(60);
	setenv("TERN_DEAD_TIMEOUT", "0", 1);
	open_side(&s, "I");
	unsetenv("TERN_DEAD_TIMEOUT");
	start_child(&c, 1);
	remote = load_child(&s, &c);
	range = (struct nixl_range){.local = s.own[0],
		.remote = remote,
		.at = s.data[0],
		.remote_at = c.base,
		.bytes = REGION};
	assert_int_equal(nixl_prepare(s.agent, "T", true, &range, 1, &h), 0);
	assert_int_equal(run(h, NULL), 0);
	kill(c.pid, SIGSTOP);
	assert_int_equal(waitpid(c.pid, NULL, WUNTRACED), c.pid);
	posted = nixl_post(h, NULL, 0);
	collect(&l);
	assert_int_equal(nixl_deregister(s.agent, s.own[0]), 0);
	collected(&l);
	s.own[0] = NULL;
	if (strcmp(getenv("TERN_FABRICS"), "tcp") == 0) {
		assert_int_equal(posted, IN_PROGRESS);
		has(&l, "is gone: it does not answer, and memory that it may access is "
			"deregistered");
		assert_int_equal(nixl_check(h), DISCONNECTED);
	} else {
		/* Over shared memory the kernel writes, whatever the target does. */
		assert_true(posted == 0 || posted == IN_PROGRESS);
		assert_string_equal(l.text, "");
	}
	assert_int_equal(nixl_release(h), 0);
	assert_int_equal(nixl_unload(s.agent, remote), 0);
	end_child(&c, SIGKILL);
	close_side(&s);
	alarm(0);
}

static void test_a_transfer_of_memory_that_was_deregistered_is_refused(void **state)
{
	struct nixl_handle *h, *own;
	struct nixl_range ranges[2];
	struct lines l;
	struct pair p;

	(void)state;
	open_pair(&p);
	ranges[0] = range_of(&p, 1, 0, 0, 1000);
	ranges[1] = range_of(&p, 0, 0, 0, 1000);
	h = prepare(&p, true, ranges, 2);
	for (unsigned k = 0; k < 2; k++) {
		ranges[k].remote = p.i.own[2];
		ranges[k].remote_at = (uintptr_t)p.i.data[2] + k * 1000;
	}
	assert_int_equal(nixl_prepare(p.i.agent, "I", true, ranges, 2, &own), 0);
	assert_int_equal(run(h, NULL), 0);
	assert_int_equal(run(own, NULL), 0);
	collect(&l);
	for (unsigned k = 0; k < 2; k++) {
		assert_int_equal(nixl_deregister(p.i.agent, p.i.own[k]), 0);
		p.i.own[k] = NULL;
		assert_int_equal(nixl_post(h, "n", 1), INVALID);
		assert_int_equal(nixl_post(own, "n", 1), INVALID);
	}
	collected(&l);
	has(&l, "agent I: a transfer with agent T uses memory that was deregistered "
		"after it was prepared");
	has(&l, "agent I: a transfer with agent I uses memory");
	assert_int_equal(nixl_release(h), 0);
	assert_int_equal(nixl_release(own), 0);
	close_pair(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_notifications_that_nobody_takes_are_bounded),
		cmocka_unit_test(test_an_agent_bounds_its_own_notifications),
		cmocka_unit_test(test_notifications_that_never_end_are_bounded),
		cmocka_unit_test(test_a_sender_may_cancel_long_notifications),
		cmocka_unit_test(test_a_peer_that_is_not_nixl_is_cut),
		cmocka_unit_test(
			test_memory_is_deregistered_although_its_target_stands_still),
		cmocka_unit_test(
			test_a_transfer_of_memory_that_was_deregistered_is_refused),
	};

	if (argc < 2)
		return 2;
	nixl_path = argv[1];
	setenv("TERN_NET_IFNAME", "=lo", 1);
	setenv("TERN_NIXL_VERSION", "1.5.1", 1);
	if (argc == 3 && argv[2][0] >= '0' && argv[2][0] <= '9')
		return serve(argv[2]);
	if (argc == 3)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
