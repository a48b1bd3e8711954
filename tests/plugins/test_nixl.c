/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plug-in for NIXL, driven as NIXL's agent drives it. Agent "I" transfers with agent
 * "T", which is in this process, or in a child that is killed and starts again under its
 * name.
 */
#include "tests/harness/cmocka.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tests/plugins/kills.h"
#include "tests/plugins/nixl_pair.h"

/* ---- cases ---- */

static void test_lists_are_written_and_read(void **state)
{
	enum { COUNT = 300 };
	struct nixl_range ranges[COUNT];
	struct nixl_handle *h;
	struct notes notes = {0};
	struct pair p;
	int status;

	(void)state;
	open_pair(&p);
	/* Ranges in all regions, of 0 to 40000 bytes, that are disjoint. */
	for (unsigned i = 0; i < COUNT; i++)
		ranges[i] = range_of(&p, i % REGIONS, (i / REGIONS) * 40000,
			(i / REGIONS) * 40000,
			i % 7 == 0 ? 0 : tern_rng_at(1, i, 0, 0) % 40000);
	for (unsigned round = 0; round < 4; round++) {
		bool write = round % 2 == 0;

		fill_side(&p.i, round);
		fill_side(&p.t, 100 + round);
		h = prepare(&p, write, ranges, COUNT);
		status = nixl_post(h, "landed", 6);
		/* The bytes are there when the notification is. */
		await_notes(p.t.agent, &notes, round + 1);
		if (!write)
			status = end_of(h, status);
		for (unsigned i = 0; i < COUNT; i++)
			assert_memory_equal(ranges[i].at, (void *)ranges[i].remote_at,
				ranges[i].bytes);
		assert_int_equal(end_of(h, status), 0);
		assert_string_equal(notes.last, "landed");
		assert_string_equal(notes.name, "I");
		assert_int_equal(nixl_release(h), 0);
	}
	close_pair(&p);
}

static void test_bytes_beside_the_ranges_stay(void **state)
{
	struct pair p;
	struct nixl_range range;
	struct nixl_handle *h;
	struct notes notes = {0};

	(void)state;
	open_pair(&p);
	memset(p.i.data[1], 7, REGION);
	range = range_of(&p, 1, 100, 5000, 70000);
	h = prepare(&p, true, &range, 1);
	assert_int_equal(run(h, "landed"), 0);
	await_notes(p.t.agent, &notes, 1);
	assert_int_equal(p.t.data[1][4999], 0);
	assert_int_equal(p.t.data[1][5000], 7);
	assert_int_equal(p.t.data[1][74999], 7);
	assert_int_equal(p.t.data[1][75000], 0);
	assert_int_equal(nixl_release(h), 0);
	close_pair(&p);
}

static void test_nothing_may_be_transferred(void **state)
{
	struct pair p;
	struct nixl_range range;
	struct nixl_handle *h;
	struct notes notes = {0};

	(void)state;
	open_pair(&p);
	range = range_of(&p, 0, 0, 0, 0);
	for (unsigned i = 0; i < 2; i++) {
		h = prepare(&p, i, &range, 1);
		assert_int_equal(nixl_check(h), NOT_POSTED);
		assert_int_equal(run(h, NULL), 0);
		assert_int_equal(run(h, "empty"), 0);
		await_notes(p.t.agent, &notes, i + 1);
		assert_int_equal(nixl_release(h), 0);
	}
	close_pair(&p);
}

static void test_an_agent_transfers_with_itself(void **state)
{
	struct notes notes = {0};
	struct nixl_range range;
	struct nixl_handle *h;
	struct side s;

	(void)state;
	open_side(&s, "A");
	memset(s.data[0], 5, 1000);
	range = (struct nixl_range){.local = s.own[0],
		.remote = s.own[1],
		.at = s.data[0],
		.remote_at = (uintptr_t)s.data[1] + 8,
		.bytes = 1000};
	assert_int_equal(nixl_prepare(s.agent, "A", true, &range, 1, &h), 0);
	assert_int_equal(nixl_post(h, "here", 4), 0);
	assert_int_equal(nixl_check(h), 0);
	assert_memory_equal(s.data[0], s.data[1] + 8, 1000);
	await_notes(s.agent, &notes, 1);
	assert_string_equal(notes.name, "A");
	assert_int_equal(nixl_notify(s.agent, "A", "again", 5), 0);
	await_notes(s.agent, &notes, 2);
	assert_int_equal(nixl_release(h), 0);
	close_side(&s);
}

static void test_notifications_of_all_sizes_arrive_once(void **state)
{
	static const size_t sizes[] = {
		0, 1, 4000, 4071, 4072, 4096, 5000, 100000, 16u << 20};
	struct nixl_range range;
	struct notes notes = {0};
	struct nixl_handle *h;
	unsigned sent = 0;
	struct pair p;
	char *blob = malloc((16u << 20) + 1);

	(void)state;
	assert_non_null(blob);
	for (size_t i = 0; i <= 16u << 20; i++)
		blob[i] = (char)tern_rng_at(2, i, 0, 0);
	open_pair(&p);
	range = range_of(&p, 0, 0, 0, 1000);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		assert_int_equal(nixl_notify(p.i.agent, "T", blob, sizes[i]), 0);
		await_notes(p.t.agent, &notes, ++sent);
		assert_int_equal(notes.bytes, sizes[i]);
		assert_true(notes.sum == sum_of(blob, sizes[i]));
		h = prepare(&p, i % 2, &range, 1);
		assert_int_equal(end_of(h, nixl_post(h, blob, sizes[i])), 0);
		await_notes(p.t.agent, &notes, ++sent);
		assert_true(
			notes.bytes == sizes[i] && notes.sum == sum_of(blob, sizes[i]));
		assert_int_equal(nixl_release(h), 0);
	}
	assert_int_equal(nixl_notify(p.i.agent, "T", blob, (16u << 20) + 1), INVALID);
	h = prepare(&p, true, &range, 1);
	assert_int_equal(nixl_post(h, blob, (16u << 20) + 1), INVALID);
	assert_int_equal(run(h, NULL), 0);
	assert_int_equal(nixl_release(h), 0);
	/* Many, with no wait between them. */
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(nixl_notify(p.i.agent, "T", &i, sizeof(i)), 0);
	await_notes(p.t.agent, &notes, sent + 1000);
	assert_int_equal(nixl_notify(p.t.agent, "I", "back", 4), 0);
	notes = (struct notes){0};
	await_notes(p.i.agent, &notes, 1);
	assert_string_equal(notes.name, "T");
	close_pair(&p);
	free(blob);
}

static void test_notifications_arrive_although_the_sender_ends(void **state)
{
	struct notes notes = {0};
	struct side i, t;

	(void)state;
	open_side(&t, "T");
	for (unsigned k = 0; k < 20; k++) {
		open_side(&i, "I");
		assert_int_equal(nixl_load_info(i.agent, "T", nixl_info(t.agent)), 0);
		assert_int_equal(nixl_notify(i.agent, "T", "bye", 3), 0);
		if (k % 2)
			assert_int_equal(nixl_disconnect(i.agent, "T"), 0);
		close_side(&i);
		await_notes(t.agent, &notes, k + 1);
	}
	close_side(&t);
}

static void test_a_request_is_posted_many_times(void **state)
{
	struct nixl_handle *write, *read;
	struct notes notes = {0};
	struct nixl_range there, back;
	unsigned count = 10000;
	struct pair p;

	(void)state;
	open_pair(&p);
	there = range_of(&p, 0, 0, 64, 64);
	back = range_of(&p, 0, 4096, 64, 64);
	write = prepare(&p, true, &there, 1);
	read = prepare(&p, false, &back, 1);
	for (unsigned i = 0; i < count; i++) {
		memcpy(p.i.data[0], &i, sizeof(i));
		assert_int_equal(run(write, i % 8 == 0 ? "x" : NULL), 0);
		assert_int_equal(run(read, NULL), 0);
		assert_memory_equal(p.i.data[0] + 4096, &i, sizeof(i));
	}
	await_notes(p.t.agent, &notes, (count + 7) / 8);
	assert_int_equal(nixl_release(write), 0);
	assert_int_equal(nixl_release(read), 0);
	close_pair(&p);
}

/* ---- threads ---- */

#define THREADS 8u

struct worker {
	struct pair *p;
	unsigned number;
	pthread_t thread;
	_Atomic bool wrong;
};

/* Prepares, posts, checks and releases in a slice of each region. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct pair *p = w->p;

	for (unsigned i = 0; i < 300 && !w->wrong; i++) {
		unsigned k = i % REGIONS, k2 = (i + 1) % REGIONS;
		size_t slice = REGION / THREADS, at = w->number * slice,
		       bytes = 1 + tern_rng_at(3, w->number, i, 0) % (slice / 16);
		struct nixl_range ranges[] = {
			range_of(p, k, at, at, bytes), range_of(p, k2, at, at, bytes)};
		struct nixl_handle *h;

		memset(p->i.data[k] + at, (int)(i % 250), bytes);
		memset(p->i.data[k2] + at, (int)(i % 250), bytes);
		if (nixl_prepare(p->i.agent, "T", true, ranges, 2, &h) != 0 ||
			run(h, i % 3 ? NULL : "n") != 0 || nixl_release(h) != 0)
			w->wrong = true;
		memset(p->i.data[k] + at, 255, bytes);
		if (nixl_prepare(p->i.agent, "T", false, ranges, 1, &h) != 0 ||
			run(h, NULL) != 0 || nixl_release(h) != 0 ||
			p->i.data[k][at] != i % 250 ||
			p->i.data[k][at + bytes - 1] != i % 250)
			w->wrong = true;
	}
	return NULL;
}

static void test_threads_transfer_at_the_same_time(void **state)
{
	struct worker workers[THREADS] = {0};
	struct notes notes = {0};
	struct pair p;

	(void)state;
	open_pair(&p);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].p = &p;
		workers[i].number = i;
		assert_int_equal(
			pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	await_notes(p.t.agent, &notes, THREADS * 100);
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		assert_false(workers[i].wrong);
	}
	close_pair(&p);
}

/* ---- the end of things ---- */

/* Releases a request that may be under way. */
static void give_up(struct nixl_handle *h)
{
	int r = nixl_release(h);

	if (r == ACTIVE)
		r = nixl_release(h);
	assert_int_equal(r, 0);
}

static void test_a_transfer_under_way_is_released_and_its_memory_freed(void **state)
{
	struct nixl_range ranges[REGIONS];
	struct nixl_handle *h;
	struct pair p;

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		open_pair(&p);
		for (unsigned k = 0; k < REGIONS; k++)
			ranges[k] = range_of(&p, k, 0, 0, REGION);
		h = prepare(&p, i % 2, ranges, REGIONS);
		nixl_post(h, "n", 1);
		for (unsigned n = 0; n < i % 5; n++)
			nixl_check(h);
		give_up(h);
		close_pair(&p); /* deregisters and unmaps */
	}
}

/* The connection lives on: nobody has touched the memory after it was deregistered. */
static void test_memory_is_deregistered_while_its_transfer_moves(void **state)
{
	struct nixl_range moving, later;
	struct nixl_handle *h;
	struct pair p;

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		open_pair(&p);
		moving = range_of(&p, 0, 0, 0, REGION);
		h = prepare(&p, i % 2, &moving, 1);
		nixl_post(h, NULL, 0);
		give_up(h);
		assert_int_equal(nixl_deregister(p.i.agent, p.i.own[0]), 0);
		p.i.own[0] = NULL;
		assert_ptr_equal(mmap(p.i.data[0], REGION, PROT_NONE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			p.i.data[0]);
		later = range_of(&p, 1, 0, 0, REGION);
		h = prepare(&p, i % 2, &later, 1);
		assert_int_equal(run(h, NULL), 0);
		assert_int_equal(nixl_release(h), 0);
		close_pair(&p);
	}
}

static void test_an_agent_is_disconnected_while_bytes_move(void **state)
{
	struct nixl_range range;
	struct nixl_handle *h;
	struct pair p;
	int status;

	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		open_pair(&p);
		range = range_of(&p, 0, 0, 0, REGION);
		h = prepare(&p, i % 2, &range, 1);
		status = nixl_post(h, NULL, 0);
		assert_int_equal(nixl_disconnect(p.i.agent, "T"), 0);
		status = end_of(h, status);
		assert_true(status == 0 || status == DISCONNECTED);
		assert_int_equal(nixl_post(h, NULL, 0), NOT_FOUND);
		assert_int_equal(nixl_release(h), 0);
		assert_int_equal(nixl_load_info(p.i.agent, "T", nixl_info(p.t.agent)), 0);
		assert_int_equal(
			nixl_prepare(p.i.agent, "T", true, &range, 1, &h), NOT_FOUND);
		close_pair(&p);
	}
}

static void test_memory_that_was_deregistered_is_refused(void **state)
{
	struct nixl_range range;
	struct nixl_handle *h;
	struct pair p;

	(void)state;
	open_pair(&p);
	range = range_of(&p, 0, 0, 0, 1000);
	h = prepare(&p, true, &range, 1);
	assert_int_equal(run(h, NULL), 0);
	assert_int_equal(nixl_deregister(p.t.agent, p.t.own[0]), 0);
	p.t.own[0] = NULL;
	memset(p.t.data[0], 9, 1000);
	assert_int_equal(run(h, "never"), NOT_FOUND);
	assert_int_equal(p.t.data[0][0], 9);
	assert_int_equal(nixl_release(h), 0);
	/* Other memory of this agent is still there. */
	range = range_of(&p, 1, 0, 0, 1000);
	h = prepare(&p, true, &range, 1);
	assert_int_equal(run(h, NULL), 0);
	assert_int_equal(nixl_release(h), 0);
	close_pair(&p);
}

/* ---- a target in a child ---- */

struct killer {
	pid_t pid;
	int signal;
	useconds_t after;
};

static void *kill_later(void *arg)
{
	const struct killer *k = arg;

	usleep(k->after);
	kill(k->pid, k->signal);
	return NULL;
}

/* Transfers with the child until that fails, since the child gets a signal. */
static void lose_child(struct side *s, struct child *c, struct nixl_region *remote,
	unsigned mark, const struct killer *k)
{
	struct nixl_range range = {.local = s->own[0],
		.remote = remote,
		.at = s->data[0],
		.remote_at = c->base,
		.bytes = REGION / 2};
	struct nixl_handle *read, *write;
	bool wrong = false;
	pthread_t thread;
	struct lines l;
	int status = 0;

	assert_int_equal(nixl_prepare(s->agent, "T", false, &range, 1, &read), 0);
	range.at = s->data[1];
	range.local = s->own[1];
	range.remote_at += REGION / 2;
	assert_int_equal(nixl_prepare(s->agent, "T", true, &range, 1, &write), 0);
	pthread_create(&thread, NULL, kill_later, (void *)k);
	collect(&l);
	for (unsigned i = 0; status == 0; i++) {
		memset(s->data[0], 0, REGION / 2);
		status = run(i % 2 ? write : read, i % 5 ? NULL : "n");
		wrong |= status == 0 && i % 2 == 0 &&
			 (s->data[0][0] != mark || s->data[0][REGION / 2 - 1] != mark);
	}
	collected(&l);
	pthread_join(thread, NULL);
	assert_int_equal(status, DISCONNECTED);
	assert_false(wrong);
	has(&l, "agent T (");
	has(&l, ") is gone: ");
	/* As NIXL does: it drops the metadata. */
	assert_int_equal(nixl_unload(s->agent, remote), 0);
	assert_int_equal(nixl_disconnect(s->agent, "T"), 0);
	assert_int_equal(nixl_post(read, NULL, 0), NOT_FOUND);
	give_up(read);
	give_up(write);
}

static void test_a_target_that_is_killed_may_start_again(void **state)
{
	struct nixl_region *remote;
	unsigned count = kills_count();
	struct child old, new;
	struct side s;

	(void)state;
	open_side(&s, "I");
	start_child(&new, 1);
	for (unsigned i = 0; i < count; i++) {
		struct killer k = {.pid = new.pid,
			.signal = SIGKILL,
			.after =
				(useconds_t)(tern_rng_at(kills_seed(), i, 0, 0) % 20000)};

		remote = load_child(&s, &new);
		lose_child(&s, &new, remote, i % 200 + 1, &k);
		end_child(&new, SIGKILL);
		old = new;
		start_child(&new, (i + 1) % 200 + 1);
		/* The memory of the former process with the connection of the new one. */
		assert_int_equal(nixl_load_info(s.agent, "T", new.info), 0);
		assert_int_equal(
			nixl_load(s.agent, "T", old.text, old.base, REGION, &remote),
			MISMATCH);
		assert_null(remote);
	}
	kills_tell(count);
	end_child(&new, SIGKILL);
	close_side(&s);
}

static void test_a_target_that_stands_still_is_gone_after_the_timeout(void **state)
{
	struct child c;
	struct killer k = {.signal = SIGSTOP, .after = 5000};
	struct side s;

	(void)state;
	setenv("TERN_DEAD_TIMEOUT", "1", 1);
	open_side(&s, "I");
	unsetenv("TERN_DEAD_TIMEOUT");
	start_child(&c, 1);
	k.pid = c.pid;
	lose_child(&s, &c, load_child(&s, &c), 1, &k);
	end_child(&c, SIGKILL);
	close_side(&s);
}

/* A transfer that was prepared with a process that has ended never reaches its
 * successor. */
static void test_a_restarted_target_gets_no_stale_transfer(void **state)
{
	struct nixl_region *remote, *renewed;
	struct nixl_range range;
	struct nixl_handle *h;
	struct child old, new;
	struct side s;

	(void)state;
	open_side(&s, "I");
	start_child(&old, 1);
	remote = load_child(&s, &old);
	range = (struct nixl_range){.local = s.own[0],
		.remote = remote,
		.at = s.data[0],
		.remote_at = old.base,
		.bytes = 1000};
	assert_int_equal(nixl_prepare(s.agent, "T", false, &range, 1, &h), 0);
	assert_int_equal(run(h, NULL), 0);
	end_child(&old, SIGKILL);
	start_child(&new, 2);
	/* NIXL's agents without a check of generations keep the handle. */
	renewed = load_child(&s, &new);
	memset(s.data[0], 77, 1000);
	assert_int_equal(nixl_post(h, NULL, 0), NOT_FOUND);
	assert_int_equal(s.data[0][0], 77);
	assert_int_equal(nixl_release(h), 0);
	range.remote = renewed;
	range.remote_at = new.base;
	assert_int_equal(nixl_prepare(s.agent, "T", false, &range, 1, &h), 0);
	assert_int_equal(run(h, NULL), 0);
	assert_int_equal(s.data[0][999], 2);
	assert_int_equal(nixl_release(h), 0);
	assert_int_equal(nixl_unload(s.agent, remote), 0);
	assert_int_equal(nixl_unload(s.agent, renewed), 0);
	end_child(&new, SIGKILL);
	close_side(&s);
}

/* ---- what is refused, and the lines that say why ---- */

static void test_an_unknown_version_of_nixl_is_refused(void **state)
{
	static const char *const versions[] = {"", "0.10.1", "1.5", "9.9.9"};
	void *plugin = &plugin;
	struct lines l;

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(versions); i++) {
		setenv("TERN_NIXL_VERSION", versions[i], 1);
		collect(&l);
		assert_null(nixl_open(nixl_path, &plugin));
		collected(&l);
		assert_null(plugin);
		has(&l, *versions[i] ? versions[i] : "set TERN_NIXL_VERSION to it");
		has(&l, "1.5.1");
		assert_ptr_equal(strchr(l.text, '\n'), l.text + strlen(l.text) - 1);
	}
	setenv("TERN_NIXL_VERSION", "1.5.1", 1);
}

static void test_settings_that_are_wrong_are_named(void **state)
{
	struct lines l;
	char name[300];

	(void)state;
	collect(&l);
	assert_null(nixl_agent_new(open_plugin(), "A", "num_threads"));
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_null(nixl_agent_new(open_plugin(), name, NULL));
	collected(&l);
	has(&l, "num_threads: TERN has no parameters");
	has(&l, "the name of an agent has up to 255 bytes");
}

static void test_bad_metadata_is_refused(void **state)
{
	static const char *const infos[] = {"", "ucx", "tern1 12 34 tcp://127.0.0.1:1",
		"tern2 0123456789abcdef 0123456789abcdef0123456789abcdef "
		"tcp://127.0.0.1:1",
		"tern1 0123456789abcdef 0123456789abcdef0123456789abcdef tcp://[::1 "
		"more"};
	struct nixl_region *remote;
	struct nixl_range range;
	struct nixl_handle *h;
	struct lines l;
	struct pair p;
	char text[200];

	(void)state;
	open_pair(&p);
	collect(&l);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(infos); i++)
		assert_int_equal(nixl_load_info(p.i.agent, "X", infos[i]), MISMATCH);
	assert_int_equal(nixl_load_info(p.i.agent, "", nixl_info(p.t.agent)), INVALID);
	assert_int_equal(nixl_connect(p.i.agent, "X"), NOT_FOUND);
	assert_int_equal(nixl_notify(p.i.agent, "X", "n", 1), NOT_FOUND);
	assert_int_equal(nixl_load(p.i.agent, "X", nixl_text(p.t.own[0]), 0, 0, &remote),
		NOT_FOUND);
	for (unsigned i = 0; i < 60; i += 3) {
		snprintf(text, sizeof(text), "%.*s", (int)i, nixl_text(p.t.own[0]));
		assert_int_equal(
			nixl_load(p.i.agent, "T", text, 0, 0, &remote), MISMATCH);
	}
	assert_int_equal(
		nixl_register(p.i.agent, p.i.data[0], 0, false, &remote), INVALID);
	assert_int_equal(
		nixl_register(p.i.agent, p.i.data[0], 64, true, &remote), INVALID);
	range = range_of(&p, 0, 0, REGION - 10, 11);
	assert_int_equal(nixl_prepare(p.i.agent, "T", true, &range, 1, &h), INVALID);
	range = range_of(&p, 0, REGION - 10, 0, 11);
	assert_int_equal(nixl_prepare(p.i.agent, "T", true, &range, 1, &h), INVALID);
	range = range_of(&p, 0, 0, 0, 11);
	range.remote = p.i.own[1];
	assert_int_equal(nixl_prepare(p.i.agent, "T", true, &range, 1, &h), INVALID);
	collected(&l);
	has(&l, "agent I: agent X is unknown: load its metadata first");
	has(&l, "is not of this version of Tern: ucx");
	has(&l, "a transfer with agent T is outside of registered memory");
	close_pair(&p);
}

static void test_a_line_shows_what_others_say_in_printable_characters(void **state)
{
	struct lines l;
	struct side s;

	(void)state;
	open_side(&s, "I");
	collect(&l);
	assert_int_equal(
		nixl_load_info(s.agent, "X\ntern nixl: error: forged", "ucx \x1b[2J"),
		MISMATCH);
	assert_int_equal(nixl_connect(s.agent, "\r"), NOT_FOUND);
	collected(&l);
	has(&l, "of agent X\\x0atern nixl: error: forged is not of");
	has(&l, "ucx \\x1b[2J\n");
	has(&l, "agent I: agent \\x0d is unknown");
	close_side(&s);
}

/* A descriptor with another capability opens nothing. */
static void test_nobody_guesses_a_descriptor(void **state)
{
	struct nixl_region *remote;
	struct nixl_range range;
	struct nixl_handle *h;
	struct pair p;
	char text[200];

	(void)state;
	open_pair(&p);
	strcpy(text, nixl_text(p.t.own[0]));
	text[23 + 2 * 16] = text[23 + 2 * 16] == '0' ? '1' : '0';
	assert_int_equal(nixl_load(p.i.agent, "T", text, 0, 0, &remote), 0);
	range = range_of(&p, 0, 0, 0, 100);
	range.remote = remote;
	h = prepare(&p, false, &range, 1);
	assert_int_equal(run(h, NULL), NOT_ALLOWED);
	assert_int_equal(nixl_release(h), 0);
	assert_int_equal(nixl_unload(p.i.agent, remote), 0);
	close_pair(&p);
}

static void test_nobody_connects_without_the_secret(void **state)
{
	struct nixl_region *remote;
	struct nixl_range range;
	struct nixl_handle *h;
	struct lines l;
	struct pair p;
	char info[900];
	int r;

	(void)state;
	open_pair(&p);
	snprintf(info, sizeof(info), "%s", nixl_info(p.t.agent));
	info[30] = info[30] == '0' ? '1' : '0';
	collect(&l);
	assert_int_equal(nixl_load_info(p.i.agent, "X", info), 0);
	assert_int_equal(
		nixl_load(p.i.agent, "X", nixl_text(p.t.own[0]), 0, 0, &remote), 0);
	range = range_of(&p, 0, 0, 0, 100);
	range.remote = remote;
	r = nixl_prepare(p.i.agent, "X", false, &range, 1, &h);
	if (r == 0)
		r = run(h, NULL);
	assert_int_equal(r, DISCONNECTED);
	collected(&l);
	has(&l, "agent X (");
	has(&l, "is gone: refused: another secret, or no permission");
	if (h)
		assert_int_equal(nixl_release(h), 0);
	assert_int_equal(nixl_unload(p.i.agent, remote), 0);
	assert_int_equal(nixl_disconnect(p.i.agent, "X"), 0);
	close_pair(&p);
}

static void test_the_log_names_the_fabric_the_device_and_the_address(void **state)
{
	const char *fabric = getenv("TERN_FABRICS");
	bool tcp = fabric && strcmp(fabric, "tcp") == 0;
	struct nixl_range range;
	struct nixl_handle *h;
	struct lines l;
	struct pair p;

	(void)state;
	setenv("TERN_LOG", "info", 1);
	collect(&l);
	open_pair(&p);
	range = range_of(&p, 0, 0, 0, 100);
	h = prepare(&p, true, &range, 1);
	assert_int_equal(run(h, "n"), 0);
	assert_int_equal(nixl_release(h), 0);
	close_pair(&p);
	collected(&l);
	unsetenv("TERN_LOG");
	has(&l, tcp ? "agent T listens at tcp://127.0.0.1:"
		    : "agent T listens at auto://127.0.0.1:");
	has(&l, ", device lo\n");
	has(&l, tcp ? "agent I transfers with agent T by tcp 127.0.0.1:"
		    : "agent I transfers with agent T by shm pid ");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lists_are_written_and_read),
		cmocka_unit_test(test_bytes_beside_the_ranges_stay),
		cmocka_unit_test(test_nothing_may_be_transferred),
		cmocka_unit_test(test_an_agent_transfers_with_itself),
		cmocka_unit_test(test_notifications_of_all_sizes_arrive_once),
		cmocka_unit_test(test_notifications_arrive_although_the_sender_ends),
		cmocka_unit_test(test_a_request_is_posted_many_times),
		cmocka_unit_test(test_threads_transfer_at_the_same_time),
		cmocka_unit_test(
			test_a_transfer_under_way_is_released_and_its_memory_freed),
		cmocka_unit_test(test_memory_is_deregistered_while_its_transfer_moves),
		cmocka_unit_test(test_an_agent_is_disconnected_while_bytes_move),
		cmocka_unit_test(test_memory_that_was_deregistered_is_refused),
		cmocka_unit_test(test_a_target_that_is_killed_may_start_again),
		cmocka_unit_test(
			test_a_target_that_stands_still_is_gone_after_the_timeout),
		cmocka_unit_test(test_a_restarted_target_gets_no_stale_transfer),
		cmocka_unit_test(test_an_unknown_version_of_nixl_is_refused),
		cmocka_unit_test(test_settings_that_are_wrong_are_named),
		cmocka_unit_test(test_bad_metadata_is_refused),
		cmocka_unit_test(
			test_a_line_shows_what_others_say_in_printable_characters),
		cmocka_unit_test(test_nobody_guesses_a_descriptor),
		cmocka_unit_test(test_nobody_connects_without_the_secret),
		cmocka_unit_test(
			test_the_log_names_the_fabric_the_device_and_the_address),
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
