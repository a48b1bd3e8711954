/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a server's guests, which are processes that have not joined its job. Whatever
 * a guest does, no other process may end because of it, and it must leave nothing
 * behind. */
#include "tests/server/server_bed.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"

/* ---- a guest that cannot be accepted ---- */

static void (*accept_it)(struct tern_peer *peer, void *arg);

/* Opens the channel before the server does, so that the server's own call fails, as it
 * would without memory. */
static void accept_without_talk(struct tern_peer *peer, void *arg)
{
	struct tern_channel *channel;

	assert_int_equal(tern_channel_open(peer, TERN_PS_CHANNEL_TALK, &channel), 0);
	accept_it(peer, arg);
}

static void test_a_peer_that_could_not_be_accepted_is_forgotten(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	accept_it = rig.server->listener->accept;
	rig.server->listener->accept = accept_without_talk;
	visit(&rig, &v);
	run_until(&rig, &v.down);
	stop_and_close(&rig);
}

/* ---- guests that come and go ---- */

/* The guest says goodbye, or is disconnected without a message. */
static void test_a_guest_that_leaves_ends_nothing_and_leaves_nothing(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor guests[4], worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 4; i++) {
		visit(&rig, &guests[i]);
		until_peers(&rig, 1);
		if (i % 2)
			tern_peer_close(guests[i].peer);
		else
			tern_peer_free(guests[i].peer);
		until_peers(&rig, 0);
	}
	assert_false(rig.ended);
	join_well(&rig, &worker, &job, 0);
	stop_and_close(&rig);
}

static void test_a_guest_has_nothing_to_say_goodbye_to(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	say_bye(&v);
	refused_alone(&rig, &v);
	close_rig(&rig);
}

static void test_a_guest_does_not_hear_why_a_job_ends(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor guest, worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &guest);
	join_well(&rig, &worker, &job, 0);
	tern_server_stop(rig.server, "worker 7 of alice has no disk", false);
	run_until(&rig, &worker.aborted);
	assert_string_equal(worker.text, "worker 7 of alice has no disk");
	run_until(&rig, &guest.refused);
	assert_string_equal(guest.text, "the server is ending");
	close_rig(&rig);
}

static void test_the_oldest_guest_makes_place_for_one_more(void **state)
{
	struct visitor v[4];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.guests_max = 3;
	for (unsigned i = 0; i < 3; i++) {
		visit(&rig, &v[i]);
		until_peers(&rig, i + 1);
	}
	visit(&rig, &v[3]);
	run_until(&rig, &v[0].down);
	until_peers(&rig, 3);
	for (unsigned i = 1; i < 4; i++)
		assert_false(v[i].down);
	close_rig(&rig);
}

static void fire_now(struct rig *rig, struct tern_timer *timer)
{
	tern_timer_set(rig->at.ctx, timer, 0);
}

static void test_a_silent_guest_is_refused_and_then_cut(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	until_peers(&rig, 1);
	fire_now(&rig, &newest(&rig)->guest_timer);
	run_until(&rig, &v.refused);
	assert_string_equal(
		v.text, "it has not said within 30 s which worker or server it is");
	/* The guest does not answer the goodbye, so it is still connected. */
	assert_false(newest(&rig)->gone);
	fire_now(&rig, &newest(&rig)->guest_timer);
	until_peers(&rig, 0);
	close_rig(&rig);
}

/* ---- messages of guests ---- */

static void test_what_a_guest_announces_takes_no_memory(void **state)
{
	const uint64_t bytes = 60u << 20;
	struct tern_pool_opts opts = {.slab_bytes = bytes};
	struct tern_pool *pool;
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};
	struct tern_req req = {0};
	struct tern_pool_stats stats;
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	assert_int_equal(tern_pool_new(rig.guests.domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, bytes, &tensor.buf), 0);
	visit(&rig, &v);
	assert_int_equal(
		tern_send(v.talk.channel, &req, tern_key("talk"), 0, &tensor, NULL, 0),
		0);
	run_until(&rig, &v.refused);
	assert_int_equal(req.status, -EMSGSIZE);
	tern_pool_stats(rig.server->staging, &stats);
	assert_int_equal(stats.peak_bytes, 0);
	tern_pool_stats(rig.server->talk_pool, &stats);
	assert_true(stats.peak_bytes <= 3 * TERN_PS_PIECE_BYTES);
	tern_pool_put(pool, &tensor.buf);
	tern_pool_free(pool);
	close_rig(&rig);
}

/* Sends the first `count` pieces of a message, and never the last one. */
static void say_pieces(struct rig *rig, struct visitor *v, unsigned count)
{
	static struct tern_req reqs[64];
	struct tern_tensor tensor = {
		.shape = tern_shape_1d(TERN_U8, TERN_PS_PIECE_BYTES)};

	assert_true(count <= TERN_ARRAY_SIZE(reqs));
	assert_int_equal(tern_pool_get(rig->pool, TERN_PS_PIECE_BYTES, &tensor.buf), 0);
	memset(tern_buf_ptr(&tensor.buf), 'x', TERN_PS_PIECE_BYTES);
	for (unsigned i = 0; i < count; i++) {
		reqs[i] = (struct tern_req){0};
		assert_int_equal(tern_send(v->talk.channel, &reqs[i], tern_key("talk"),
					 v->talk.said_count + i, &tensor, NULL, 0),
			0);
	}
	for (unsigned i = 0; i < count; i++)
		while (tern_test(&reqs[i]) == -EINPROGRESS)
			step(rig);
	tern_pool_put(rig->pool, &tensor.buf);
}

/* True if the server is dropping the rest of a message of its i-th peer (in the order of
 * connecting). */
static bool is_dropped(const struct rig *rig, unsigned i)
{
	tern_list_for_each (n, &rig->server->peers)
		if (i-- == 0)
			return tern_list_entry(n, struct server_peer, node)->talk.skips;
	return false;
}

static void test_the_oldest_guest_with_half_a_message_makes_room(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v[3], worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->guest_text.bytes_left = 128u << 10;
	for (unsigned i = 0; i < 2; i++) {
		visit(&rig, &v[i]);
		until_peers(&rig, i + 1);
		say_pieces(&rig, &v[i], 16);
	}
	while (rig.server->guest_text.bytes_left)
		step(&rig);
	visit(&rig, &v[2]);
	say_pieces(&rig, &v[2], 13);
	while (!is_dropped(&rig, 0) || rig.server->guest_text.bytes_left)
		step(&rig);
	/* The worker's join message has several pieces, and the second guest is now the
	 * oldest one with an unfinished message. */
	visit(&rig, &worker);
	say_join(&worker, job_of(&rig, &job, 180, 10, 1), 0);
	run_until(&rig, &worker.welcome);
	assert_true(is_dropped(&rig, 1));
	assert_false(is_dropped(&rig, 2));
	for (unsigned i = 0; i < 3; i++) {
		assert_false(v[i].refused || v[i].again);
		tern_peer_free(v[i].peer);
	}
	until_peers(&rig, 1);
	assert_int_equal(rig.server->guest_text.bytes_left, 128u << 10);
	close_rig(&rig);
}

/* The oldest guest itself needs more memory than is left, and no older guest has any. */
static void test_the_oldest_guest_may_be_the_one_that_needs_more(void **state)
{
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->guest_text.bytes_left = 80u << 10;
	for (unsigned i = 0; i < 2; i++) {
		visit(&rig, &v[i]);
		until_peers(&rig, i + 1);
	}
	say_pieces(&rig, &v[1], 4);
	while (rig.server->guest_text.bytes_left > 64u << 10)
		step(&rig);
	say_pieces(&rig, &v[0], 17);
	while (!is_dropped(&rig, 0))
		step(&rig);
	assert_false(is_dropped(&rig, 1));
	assert_int_equal(rig.server->guest_text.bytes_left, 64u << 10);
	close_rig(&rig);
}

static void test_a_guest_whose_message_was_dropped_says_it_again(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->guest_text.bytes_left = 64u << 10;
	for (unsigned i = 0; i < 2; i++) {
		visit(&rig, &v[i]);
		until_peers(&rig, i + 1);
		say_pieces(&rig, &v[i], 16);
	}
	while (!is_dropped(&rig, 0))
		step(&rig);
	v[0].talk.said_count = 16;
	/* Completes a message, but its beginning was dropped. */
	say_join(&v[0], job_of(&rig, &job, 1, 10, 1), 0);
	run_until(&rig, &v[0].again);
	assert_false(v[0].welcome || is_dropped(&rig, 0));
	assert_true(newest(&rig)->talk.text != NULL);
	say_join(&v[0], job_of(&rig, &job, 180, 10, 1), 0);
	run_until(&rig, &v[0].welcome);
	assert_true(is_dropped(&rig, 1));
	assert_int_equal(rig.server->guest_text.bytes_left, 64u << 10);
	close_rig(&rig);
}

/* ---- long messages ---- */

static void assert_limits(const struct rig *rig, uint64_t bytes, uint64_t parts)
{
	assert_int_equal(rig->server->guest_text.message.bytes, bytes);
	assert_int_equal(rig->server->guest_text.message.parts, parts);
}

/* Parsing a long message holds up the server, so when the server has a job, a message may
 * be no longer than the joins of this job. */
static void test_messages_may_be_longer_only_until_the_job_is_known(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor worker, v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	assert_limits(&rig, TERN_PS_JOB_TEXT_MAX, TERN_PS_JOB_PARTS_MAX);
	join_well(&rig, &worker, &job, 0);
	assert_limits(&rig, TERN_PS_TEXT_MAX, TERN_PS_PARTS_MAX);
	visit(&rig, &v);
	for (unsigned i = 0; i <= TERN_PS_TEXT_MAX / TERN_PS_PIECE_BYTES; i++) {
		say_pieces(&rig, &v, 1);
		v.talk.said_count++;
	}
	run_until(&rig, &v.refused);
	assert_string_equal(
		v.text, "its message is longer than 2097152 bytes, the limit here");
	assert_int_equal(rig.server->guest_text.bytes_left, 2ull * TERN_PS_JOB_TEXT_MAX);
	close_rig(&rig);
}

/* ---- servers that do not belong to the job ---- */

static void say_peer(struct visitor *v, json_t *job, unsigned server)
{
	tern_talk_say(&v->talk, json_pack("{s:s, s:I, s:o}", "type", "peer", "server",
					(json_int_t)server, "job", job));
}

static void test_an_unknown_server_ends_nothing(void **state)
{
	static const char *const words[] = {"abort", "lost", "lost", NULL};
	static const int workers[] = {0, 0, -1, 0};
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v[4], worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 4; i++) {
		visit(&rig, &v[i]);
		say_peer(&v[i], job_of(&rig, &job, 1, 1000, 2), 1);
		if (words[i]) {
			tern_talk_say(
				&v[i].talk, json_pack("{s:s, s:i}", "type", words[i],
						    "worker", workers[i]));
		}
		run_until(&rig, &v[i].again);
		assert_true(newest(&rig)->talk.deaf);
		tern_peer_free(v[i].peer);
		until_peers(&rig, 0);
	}
	assert_false(rig.server->over);
	join_well(&rig, &worker, &job, 0);
	close_rig(&rig);
}

static void test_what_servers_say_is_refused_from_a_guest(void **state)
{
	static const char *const words[] = {"abort", "lost", "start", "again"};
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v, worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(words); i++) {
		visit(&rig, &v);
		tern_talk_say(
			&v.talk, json_pack("{s:s, s:i}", "type", words[i], "worker", 0));
		run_until(&rig, &v.refused);
		tern_peer_free(v.peer);
		until_peers(&rig, 0);
	}
	join_well(&rig, &worker, &job, 0);
	close_rig(&rig);
}

static void test_refusals_of_strangers_are_noted_sparingly(void **state)
{
	struct visitor v[20];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 20; i++) {
		visit(&rig, &v[i]);
		tern_talk_say(&v[i].talk, json_pack("{s:s}", "type", "nonsense"));
		run_until(&rig, &v[i].refused);
	}
	assert_int_equal(rig.refusals, 16);
	assert_int_equal(rig.server->notes_dropped, 4);
	/* At the end of the interval the number of dropped notes is logged even if no
	 * further peer comes. */
	tern_timer_set(rig.at.ctx, &rig.server->notes_timer, 0);
	while (rig.server->notes_dropped)
		step(&rig);
	assert_string_equal(
		rig.noted, "4 more notes about peers outside the job were left out");
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_peer_that_could_not_be_accepted_is_forgotten),
		cmocka_unit_test(
			test_a_guest_that_leaves_ends_nothing_and_leaves_nothing),
		cmocka_unit_test(test_a_guest_does_not_hear_why_a_job_ends),
		cmocka_unit_test(test_the_oldest_guest_makes_place_for_one_more),
		cmocka_unit_test(test_a_silent_guest_is_refused_and_then_cut),
		cmocka_unit_test(test_the_oldest_guest_with_half_a_message_makes_room),
		cmocka_unit_test(test_the_oldest_guest_may_be_the_one_that_needs_more),
		cmocka_unit_test(test_a_guest_whose_message_was_dropped_says_it_again),
		cmocka_unit_test(test_messages_may_be_longer_only_until_the_job_is_known),
		cmocka_unit_test(test_an_unknown_server_ends_nothing),
		cmocka_unit_test(test_what_servers_say_is_refused_from_a_guest),
		cmocka_unit_test(test_refusals_of_strangers_are_noted_sparingly),
		cmocka_unit_test(test_a_guest_has_nothing_to_say_goodbye_to),
		cmocka_unit_test(test_what_a_guest_announces_takes_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
