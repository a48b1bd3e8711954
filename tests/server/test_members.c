/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a server that is told where another one is, which comes in the place of a lost one:
 * whatever a process says that claims to be one, only that process ends. */
#include "server/membership.h"
#include "server/memory.h"
#include "tests/server/server_bed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct tern_ps_job job = {.slots = 1, .workers = 2};

static void say(struct visitor *v, const char *text)
{
	tern_talk_say(&v->talk, json_loads(text, 0, NULL));
}

/* Opens a server that may go back, and lets a visitor say `text`. */
static void open_and_say(struct rig *rig, struct visitor *v, const char *text)
{
	open_rig(rig);
	rig->server->opts.goes_back = true;
	visit(rig, v);
	say(v, text);
}

/* Opens a server that may go back, with a job of which one worker has joined. */
static void open_with_worker(struct rig *rig, struct visitor *worker)
{
	open_rig(rig);
	rig->server->opts.goes_back = true;
	join_well(rig, worker, &job, 0);
}

static void test_a_wrong_address_is_refused(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"address\"}",
		"{\"type\":\"address\",\"server\":1}",
		"{\"type\":\"address\",\"server\":-1,\"address\":\"tcp://a:1\"}",
		"{\"type\":\"address\",\"server\":256,\"address\":\"tcp://a:1\"}",
		"{\"type\":\"address\",\"server\":\"1\",\"address\":\"tcp://a:1\"}",
		"{\"type\":\"address\",\"server\":1,\"address\":\"\"}",
		"{\"type\":\"address\",\"server\":1,\"address\":\"a\\nb\"}",
		"{\"type\":\"address\",\"server\":1,\"address\":7}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		struct visitor v;
		struct rig rig;

		open_and_say(&rig, &v, texts[i]);
		run_until(&rig, &v.refused);
		assert_non_null(strstr(v.text, "its message \"address\" is wrong"));
		stop_and_close(&rig);
	}
}

static void test_an_address_of_128_characters_is_refused(void **state)
{
	char text[300], address[129] = "";
	struct visitor v;
	struct rig rig;

	(void)state;
	memset(address, 'a', sizeof(address) - 1);
	snprintf(text, sizeof(text),
		"{\"type\":\"address\",\"server\":1,\"address\":\"%s\"}", address);
	open_and_say(&rig, &v, text);
	run_until(&rig, &v.refused);
	stop_and_close(&rig);
}

static const char *const of_1 =
	"{\"type\":\"address\",\"server\":1,\"address\":\"tcp://127.0.0.1:9\"}";

static void test_a_server_that_does_not_go_back_takes_no_address(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	say(&v, of_1);
	run_until(&rig, &v.refused);
	assert_non_null(strstr(v.text, "does not go back to snapshots"));
	stop_and_close(&rig);
}

/* The server's own number, and one that the job has not, for which it is too early. */
static void test_only_other_servers_may_come(void **state)
{
	struct visitor worker, v;
	struct rig rig;

	(void)state;
	open_with_worker(&rig, &worker);
	visit(&rig, &v);
	say(&v, "{\"type\":\"address\",\"server\":0,\"address\":\"tcp://127.0.0.1:9\"}");
	run_until(&rig, &v.refused);
	assert_string_equal(
		v.text, "this is server 0 itself: --join has the addresses of others");
	visit(&rig, &v);
	say(&v, of_1);
	run_until(&rig, &v.again);
	assert_null(newest(&rig)->address);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* A process that has been server 1 of a job asks one that has none of that number, and knows no
 * newer list of servers: it must not be told that it was removed. */
static void test_who_knows_less_removes_nobody(void **state)
{
	struct visitor worker, v;
	struct rig rig;

	(void)state;
	open_with_worker(&rig, &worker);
	visit(&rig, &v);
	say(&v, "{\"type\":\"address\",\"server\":1,\"begun\":true,"
		"\"address\":\"tcp://127.0.0.1:9\"}");
	for (int i = 0; i < 200; i++)
		step(&rig);
	assert_false(v.refused);
	assert_null(newest(&rig)->address);
	close_rig(&rig);
}

/* ---- which process is the server ---- */

/* A worker of another job brings a newer list of servers: this server's job keeps its own. */
static void test_a_view_of_another_job_is_not_taken(void **state)
{
	struct tern_ps_job other = job;
	struct visitor worker, v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &worker, &job, 0);
	other.slots = 2;
	other.view = 5;
	join(&rig, &v, &other, 1000, 1);
	run_until(&rig, &v.refused);
	assert_int_equal(rig.server->view.number, 0);
	close_rig(&rig);
}

static const char *address_of_1(const struct rig *rig)
{
	tern_list_for_each (n, &rig->server->peers) {
		const struct server_peer *p =
			tern_list_entry(n, struct server_peer, node);

		if (p->address && p->index == 1 && !p->gone)
			return p->address;
	}
	return "";
}

/* The second process of a number is asked to say it again, until the first one is gone. */
static void test_one_process_is_a_server(void **state)
{
	struct visitor first, second;
	struct rig rig;

	(void)state;
	open_and_say(&rig, &first, of_1);
	while (!newest(&rig) || !newest(&rig)->address)
		step(&rig);
	assert_string_equal(address_of_1(&rig), "tcp://127.0.0.1:9");
	visit(&rig, &second);
	say(&second, of_1);
	run_until(&rig, &second.again);
	assert_null(newest(&rig)->address);
	tern_peer_close(first.peer);
	until_peers(&rig, 1);
	say(&second, of_1);
	while (!newest(&rig)->address)
		step(&rig);
	stop_and_close(&rig);
}

static void claim_1(struct rig *rig, struct visitor *v, unsigned port, unsigned claim)
{
	char text[160];

	snprintf(text, sizeof(text),
		"{\"type\":\"address\",\"server\":1,\"address\":\"tcp://127.0.0.1:%u\","
		"\"claim\":%u}",
		port, claim);
	visit(rig, v);
	say(v, text);
}

/* Other members, which hear of the processes in another order, know the same one in the end. */
static void test_the_process_with_the_higher_claim_is_the_server(void **state)
{
	struct visitor v[3];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.goes_back = true;
	claim_1(&rig, &v[0], 9, 5);
	while (!newest(&rig) || !newest(&rig)->address)
		step(&rig);
	claim_1(&rig, &v[1], 10, 7);
	run_until(&rig, &v[0].again);
	assert_string_equal(address_of_1(&rig), "tcp://127.0.0.1:10");
	claim_1(&rig, &v[2], 11, 6);
	run_until(&rig, &v[2].again);
	assert_string_equal(address_of_1(&rig), "tcp://127.0.0.1:10");
	stop_and_close(&rig);
}

/* Says that the steps have begun with server 1, at `port`, in life `life` of the job. */
static void say_life(struct visitor *v, unsigned port, unsigned life)
{
	char text[160];

	snprintf(text, sizeof(text),
		"{\"type\":\"address\",\"server\":1,\"address\":\"tcp://127.0.0.1:%u\","
		"\"life\":%u}",
		port, life);
	say(v, text);
}

static void know_first(struct rig *rig, struct visitor *first)
{
	open_and_say(rig, first, of_1);
	while (!newest(rig) || !newest(rig)->address)
		step(rig);
	rig->server->running = true;
	rig->server->life = 7;
}

/* Ends a server that has no job, although its steps seem to have begun. */
static void close_running(struct rig *rig)
{
	rig->server->running = false;
	stop_and_close(rig);
}

static void test_the_process_with_which_the_steps_begin_is_the_server(void **state)
{
	struct visitor first, second;
	struct rig rig;

	(void)state;
	know_first(&rig, &first);
	visit(&rig, &second);
	say_life(&second, 10,
		6); /* another life of the job, as that of a server that was replaced */
	run_until(&rig, &second.again);
	assert_string_equal(address_of_1(&rig), "tcp://127.0.0.1:9");
	say_life(&second, 10, 7);
	run_until(&rig, &first.again);
	assert_string_equal(address_of_1(&rig), "tcp://127.0.0.1:10");
	close_running(&rig);
}

/* A server that was replaced and has woken up may know the same life. */
static void test_of_two_that_make_steps_the_known_one_stays(void **state)
{
	struct visitor first, second;
	struct rig rig;

	(void)state;
	know_first(&rig, &first);
	say_life(&first, 9, 7);
	visit(&rig, &second);
	say_life(&second, 10, 7);
	run_until(&rig, &second.again);
	assert_false(first.again);
	assert_string_equal(address_of_1(&rig), "tcp://127.0.0.1:9");
	close_running(&rig);
}

/* During the steps a worker hears of no other process than the one with which they have begun. */
static void test_workers_are_sent_to_no_process_that_waits(void **state)
{
	struct visitor worker, first;
	struct rig rig;

	(void)state;
	know_first(&rig, &first);
	visit(&rig, &worker);
	for (int i = 0; i < 200; i++)
		step(&rig);
	members_tell(newest(&rig));
	for (int i = 0; i < 200; i++)
		step(&rig);
	assert_false(worker.told);
	say_life(&first, 9, 7);
	for (int i = 0; i < 200; i++)
		step(&rig);
	members_tell(newest(&rig));
	run_until(&rig, &worker.told);
	close_running(&rig);
}

/* Two processes say that they are server 1: the first one is known, and the second one waits. */
static void test_who_was_in_the_job_hears_that_it_is_complete(void **state)
{
	static const char *const begun =
		"{\"type\":\"address\",\"server\":1,\"begun\":true,"
		"\"address\":\"tcp://127.0.0.1:9\"}";
	struct visitor first, second;
	struct rig rig;

	(void)state;
	open_and_say(&rig, &first, begun);
	while (!newest(&rig) || !newest(&rig)->address)
		step(&rig);
	visit(&rig, &second);
	say(&second, begun);
	run_until(&rig, &second.again);
	server_fail(rig.server, 0, "the job is complete");
	run_until(&rig, &first.complete);
	run_until(&rig, &second.complete);
	assert_false(first.refused || second.refused);
	close_rig(&rig);
}

/* Server 1 was not lost, so no worker is told its address, and it hears that the newest view does
 * not have it. */
static void test_a_server_that_stays_hears_that_it_is_removed(void **state)
{
	struct tern_ps_job fewer = job;
	struct visitor first, second, v;
	struct rig rig;

	(void)state;
	open_and_say(&rig, &v,
		"{\"type\":\"address\",\"server\":1,\"begun\":true,\"stays\":true,"
		"\"address\":\"tcp://127.0.0.1:9\"}");
	while (!newest(&rig) || !newest(&rig)->address)
		step(&rig);
	visit(&rig, &first);
	say_join(&first, job_of(&rig, &job, 1, 1000, 2), 0);
	run_until(&rig, &first.welcome);
	assert_false(first.told);
	fewer.view = 5;
	join(&rig, &second, &fewer, 1000, 1);
	run_until(&rig, &v.removed);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* A server that has told its address sends "abort", which only processes of a job may. */
static void test_who_has_told_its_address_may_say_nothing_more(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_and_say(&rig, &v, of_1);
	say(&v, "{\"type\":\"abort\",\"text\":\"no\",\"back\":true}");
	run_until(&rig, &v.refused);
	assert_non_null(
		strstr(v.text, "which a server that has told its address does not send"));
	assert_null(newest(&rig)->address);
	stop_and_close(&rig);
}

/* Makes the server of `comer` tell its address to a member, and to server 0 of its job. */
static void come(struct rig *comer, const char *const *member, const struct rig *zero)
{
	open_rig(comer);
	comer->server->opts.index = 1;
	comer->server->opts.members = member;
	comer->server->opts.member_count = 1;
	comer->server->opts.zero = tern_server_address(zero->server);
	assert_int_equal(members_init(comer->server), 0);
}

static unsigned peers_of(const struct rig *rig)
{
	unsigned count = 0;

	tern_list_for_each (n, &rig->server->peers)
		count++;
	return count;
}

static void open_told(struct rig *rig)
{
	open_rig(rig);
	rig->server->opts.goes_back = true;
}

static void until_told(struct rig *rig, struct rig *comer)
{
	while (!newest(rig) || !newest(rig)->address) {
		step(rig);
		step(comer);
	}
}

static void step_both(struct rig *rig, struct rig *comer)
{
	for (int i = 0; i < 200; i++) {
		step(rig);
		step(comer);
	}
}

/* The view must be known to others if the server that has made it is lost. */
static void test_who_tells_its_address_hears_the_view(void **state)
{
	static const struct tern_view view = {.number = 7,
		.workers = 1,
		.count = 2,
		.numbers = {0, 1},
		.servers = {"tcp://127.0.0.1:9", "tcp://127.0.0.1:10"}};
	struct rig member, comer;
	const char *address;

	(void)state;
	open_told(&member);
	member.server->view = view;
	address = tern_server_address(member.server);
	come(&comer, &address, &member);
	while (comer.server->view.number != 7) {
		step(&member);
		step(&comer);
	}
	assert_int_equal(comer.server->view.count, 2);
	close_rig(&comer);
	close_rig(&member);
}

/* A member whose newest list has servers 0 and 2 hears of a process that comes in server 1's place. */
static void come_for_removed(uint32_t member_number, bool believed)
{
	static const struct tern_view view = {.number = 7,
		.workers = 1,
		.count = 2,
		.numbers = {0, 2},
		.servers = {"tcp://127.0.0.1:9", "tcp://127.0.0.1:10"}};
	struct rig member, comer;
	const char *address;

	open_told(&member);
	member.server->view = view;
	member.server->opts.index = member_number;
	address = tern_server_address(member.server);
	open_rig(&comer);
	comer.server->opts.index = 1;
	comer.server->opts.replaces = true;
	comer.server->opts.members = &address;
	comer.server->opts.member_count = 1;
	assert_int_equal(members_init(comer.server), 0);
	while (!comer.server->over && !strstr(comer.noted, "may know an old list")) {
		step(&member);
		step(&comer);
	}
	assert_int_equal(comer.server->over, believed);
	assert_int_equal(comer.server->stats.drained, believed);
	close_rig(&comer);
	close_rig(&member);
}

/* Another server may have stood still while the job was given the server anew. */
static void test_a_replacement_believes_only_server_0_that_it_is_removed(void **state)
{
	(void)state;
	come_for_removed(0, true);
	come_for_removed(2, false);
}

static void test_a_server_that_waits_ends_when_the_job_is_complete(void **state)
{
	struct rig member, comer;
	const char *address;

	(void)state;
	open_told(&member);
	address = tern_server_address(member.server);
	come(&comer, &address, &member);
	comer.server->opts.has_begun = true;
	until_told(&member, &comer);
	newest(&member)->has_begun = true;
	server_fail(member.server, 0, "the job is complete");
	while (!comer.server->over) {
		step(&member);
		step(&comer);
	}
	assert_int_equal(comer.server->status, 0);
	close_rig(&comer);
	close_rig(&member);
}

/* When the steps begin, the link stays: workers that come later ask the member. */
static void test_a_member_that_is_server_0_is_told_once(void **state)
{
	struct rig member, comer;
	const char *address;

	(void)state;
	open_told(&member);
	address = tern_server_address(member.server);
	come(&comer, &address, &member);
	until_told(&member, &comer);
	members_begun(comer.server);
	step_both(&member, &comer);
	assert_int_equal(peers_of(&member), 1);
	assert_non_null(newest(&member)->address);
	close_rig(&comer);
	close_rig(&member);
}

static void test_server_0_need_not_know_more_when_the_steps_begin(void **state)
{
	struct rig member, zero, comer;
	const char *address;

	(void)state;
	open_told(&member);
	open_told(&zero);
	address = tern_server_address(member.server);
	come(&comer, &address, &zero);
	until_told(&member, &comer);
	until_told(&zero, &comer);
	members_begun(comer.server);
	while (peers_of(&zero) > 0) {
		step(&zero);
		step(&comer);
	}
	step_both(&member, &comer);
	assert_int_equal(peers_of(&member), 1);
	close_rig(&comer);
	close_rig(&zero);
	close_rig(&member);
}

/* ---- a follower that waits to take its server's place ---- */

static const char *const waits =
	"{\"type\":\"address\",\"server\":0,\"address\":\"tcp://127.0.0.1:9\","
	"\"follows\":true,\"step\":5}";

static void test_a_server_that_has_the_job_keeps_its_place(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_told(&rig);
	rig.server->opts.has_begun = true;
	visit(&rig, &v);
	say(&v, waits);
	run_until(&rig, &v.serves);
	assert_false(rig.server->over);
	stop_and_close(&rig);
}

static void test_a_server_with_a_newer_snapshot_keeps_its_place(void **state)
{
	struct visitor worker, v;
	struct rig rig;

	(void)state;
	open_with_worker(&rig, &worker);
	rig.server->opts.returns = true;
	rig.server->first_version = 6;
	visit(&rig, &v);
	say(&v, waits);
	run_until(&rig, &v.serves);
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void test_a_server_that_was_started_anew_makes_room(void **state)
{
	struct visitor worker, v;
	struct rig rig;

	(void)state;
	open_with_worker(&rig, &worker);
	rig.server->opts.returns = true;
	visit(&rig, &v);
	say(&v, waits);
	run_until(&rig, &rig.server->over);
	assert_true(rig.server->stats.replaced);
	run_until(&rig, &worker.told);
	close_rig(&rig);
}

/* The server has no job yet, so its follower waits; then the follower's steps begin without it. */
static void test_a_server_without_a_job_makes_room_when_its_follower_begins(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_told(&rig);
	visit(&rig, &v);
	say(&v, waits);
	run_until(&rig, &v.again);
	assert_true(members_follower_waits(rig.server));
	say(&v, "{\"type\":\"address\",\"server\":0,\"address\":\"tcp://127.0.0.1:9\","
		"\"follows\":true,\"step\":5,\"serves\":true}");
	run_until(&rig, &rig.server->over);
	assert_true(rig.server->stats.replaced);
	close_rig(&rig);
}

/* ---- a process comes in the place of a server that was killed ---- */

/* Begins a job of two servers. */
static void open_with_server(
	struct rig *rig, struct visitor *worker, struct visitor *server)
{
	static const struct tern_ps_job one = {.slots = 1, .workers = 1};

	open_rig(rig);
	rig->server->opts.goes_back = true;
	rig->server->opts.snapshots.directory = "nowhere";
	visit(rig, worker);
	say_join(worker, job_of(rig, &one, 1, 1, 2), 0);
	run_until(rig, &worker->welcome);
	rig->server->workers[0]->goes_back = true;
	visit(rig, server);
	tern_talk_say(&server->talk,
		json_pack("{s:s, s:i, s:o, s:s, s:b}", "type", "peer", "server", 1, "job",
			job_of(rig, &one, 1, 1, 2), "arithmetic", "", "snapshots", 1));
	run_until(rig, &rig->server->running);
}

/* Server 1's connection is broken, and another process says that it is server 1. */
static void come_as_1(struct rig *rig, struct visitor *v, const char *more)
{
	char text[200];

	others_find(rig->server, 1)->unlinked = true;
	snprintf(text, sizeof(text),
		"{\"type\":\"address\",\"server\":1,\"address\":\"tcp://127.0.0.1:9\"%s}",
		more);
	visit(rig, v);
	say(v, text);
}

static void test_a_server_that_was_killed_is_not_waited_for(void **state)
{
	struct tern_server_memory *memory;
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	come_as_1(&rig, &v, "");
	run_until(&rig, &worker.aborted);
	assert_int_equal(rig.server->status, -EAGAIN);
	assert_non_null(strstr(worker.text, "another process has come in its place"));
	assert_int_equal(tern_server_keep(rig.server, &memory), 0);
	assert_null(memory);
	close_rig(&rig);
}

/* A killed server's follower may come in its place, which has the job in memory. */
static void test_a_server_that_has_a_follower_is_waited_for(void **state)
{
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	say(&server, "{\"type\":\"followed\",\"complete\":true}");
	while (!others_find(rig.server, 1)->is_followed)
		step(&rig);
	come_as_1(&rig, &v, "");
	run_until(&rig, &v.again);
	assert_false(rig.server->over);
	say(&server, "{\"type\":\"followed\",\"complete\":false}");
	while (others_find(rig.server, 1)->is_followed)
		step(&rig);
	say(&v, of_1);
	run_until(&rig, &rig.server->over);
	close_rig(&rig);
}

/* A process that was here before the connection broke was not started because of that. */
static void test_a_process_that_waits_already_is_no_proof_of_a_loss(void **state)
{
	struct visitor worker, server, v;
	struct server_peer *lost;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	visit(&rig, &v);
	say(&v, of_1);
	run_until(&rig, &v.again);
	lost = others_find(rig.server, 1);
	server_suspects(lost, -ECONNRESET);
	v.again = false;
	say(&v, of_1);
	run_until(&rig, &v.again);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* A process that has been in the job may have it in memory. */
static void test_a_process_that_has_begun_is_no_proof_of_a_loss(void **state)
{
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	come_as_1(&rig, &v, ",\"begun\":true");
	run_until(&rig, &v.again);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* A server that makes steps may connect anew to tell its address. */
static void test_a_process_that_makes_steps_is_no_proof_of_a_loss(void **state)
{
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	come_as_1(&rig, &v, ",\"life\":7");
	run_until(&rig, &v.again);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* Server 1 knows a process that has said that it is server 0, but the steps have begun with another one. */
static void test_server_0_is_the_one_with_which_the_steps_have_begun(void **state)
{
	struct server_peer zero = {.zero = "tcp://127.0.0.1:10"};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.goes_back = true;
	rig.server->opts.index = 1;
	visit(&rig, &v);
	say(&v, "{\"type\":\"address\",\"server\":0,\"address\":\"tcp://127.0.0.1:9\"}");
	while (!newest(&rig) || !newest(&rig)->address)
		step(&rig);
	rig.server->to_zero = &zero;
	assert_string_equal(tern_server_zero(rig.server), "tcp://127.0.0.1:9");
	rig.server->running = true;
	assert_string_equal(tern_server_zero(rig.server), "tcp://127.0.0.1:10");
	zero.gone = true;
	assert_string_equal(tern_server_zero(rig.server), "tcp://127.0.0.1:9");
	rig.server->to_zero = NULL;
	rig.server->running = false;
	close_rig(&rig);
}

/* A launcher may start a lost server again before it hears that the server was removed. */
static void test_who_comes_for_a_removed_server_is_not_added(void **state)
{
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	visit(&rig, &v);
	say(&v, "{\"type\":\"address\",\"server\":2,\"replaces\":true,"
		"\"address\":\"tcp://127.0.0.1:9\"}");
	run_until(&rig, &v.removed);
	assert_int_equal(rig.server->next_view.number, 0);
	close_rig(&rig);
}

/* Server 0 has servers 0 and 1, and `v` comes as server 2 and leaves before all go back for it. */
static void come_and_leave(struct rig *rig, struct visitor *v)
{
	visit(rig, v);
	say(v, "{\"type\":\"address\",\"server\":2,\"address\":\"tcp://127.0.0.1:9\"}");
	while (rig->server->next_view.count == 0 ||
		tern_view_find(&rig->server->next_view, 2) == UINT32_MAX)
		step(rig);
	assert_non_null(strstr(rig->server->back_text, "server 2 at"));
	tern_peer_close(v->peer);
	while (tern_view_find(&rig->server->next_view, 2) != UINT32_MAX)
		step(rig);
}

static void test_the_job_stays_if_an_added_server_leaves_at_once(void **state)
{
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	come_and_leave(&rig, &v);
	assert_string_equal(rig.server->back_text, "");
	assert_int_equal(rig.server->next_view.number, 0);
	close_rig(&rig);
}

static void test_it_still_goes_back_for_a_server_that_is_removed(void **state)
{
	struct visitor worker, server, v;
	struct rig rig;

	(void)state;
	open_with_server(&rig, &worker, &server);
	assert_null(tern_server_drain(rig.server, 1));
	come_and_leave(&rig, &v);
	assert_true(*rig.server->back_text);
	assert_int_equal(rig.server->next_view.count, 1);
	close_rig(&rig);
}

/* A tensor in the place of a message breaks the talk with that process only. */
static void test_a_broken_talk_ends_only_that_process(void **state)
{
	struct server_peer *p;
	struct visitor v;
	struct rig rig;

	(void)state;
	open_and_say(&rig, &v, of_1);
	while (!newest(&rig) || !newest(&rig)->address)
		step(&rig);
	p = newest(&rig);
	server_broken(&p->talk, -EMSGSIZE);
	run_until(&rig, &v.refused);
	stop_and_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_wrong_address_is_refused),
		cmocka_unit_test(test_an_address_of_128_characters_is_refused),
		cmocka_unit_test(test_a_server_that_does_not_go_back_takes_no_address),
		cmocka_unit_test(test_only_other_servers_may_come),
		cmocka_unit_test(test_who_knows_less_removes_nobody),
		cmocka_unit_test(test_a_view_of_another_job_is_not_taken),
		cmocka_unit_test(test_one_process_is_a_server),
		cmocka_unit_test(test_the_process_with_the_higher_claim_is_the_server),
		cmocka_unit_test(
			test_the_process_with_which_the_steps_begin_is_the_server),
		cmocka_unit_test(test_of_two_that_make_steps_the_known_one_stays),
		cmocka_unit_test(test_workers_are_sent_to_no_process_that_waits),
		cmocka_unit_test(test_who_was_in_the_job_hears_that_it_is_complete),
		cmocka_unit_test(test_who_tells_its_address_hears_the_view),
		cmocka_unit_test(
			test_a_replacement_believes_only_server_0_that_it_is_removed),
		cmocka_unit_test(test_a_server_that_waits_ends_when_the_job_is_complete),
		cmocka_unit_test(test_a_server_that_stays_hears_that_it_is_removed),
		cmocka_unit_test(test_who_has_told_its_address_may_say_nothing_more),
		cmocka_unit_test(test_a_member_that_is_server_0_is_told_once),
		cmocka_unit_test(test_server_0_need_not_know_more_when_the_steps_begin),
		cmocka_unit_test(test_a_server_that_has_the_job_keeps_its_place),
		cmocka_unit_test(test_a_server_with_a_newer_snapshot_keeps_its_place),
		cmocka_unit_test(test_a_server_that_was_started_anew_makes_room),
		cmocka_unit_test(
			test_a_server_without_a_job_makes_room_when_its_follower_begins),
		cmocka_unit_test(test_a_server_that_was_killed_is_not_waited_for),
		cmocka_unit_test(test_a_server_that_has_a_follower_is_waited_for),
		cmocka_unit_test(test_a_process_that_waits_already_is_no_proof_of_a_loss),
		cmocka_unit_test(test_a_process_that_has_begun_is_no_proof_of_a_loss),
		cmocka_unit_test(test_a_process_that_makes_steps_is_no_proof_of_a_loss),
		cmocka_unit_test(
			test_server_0_is_the_one_with_which_the_steps_have_begun),
		cmocka_unit_test(test_who_comes_for_a_removed_server_is_not_added),
		cmocka_unit_test(test_the_job_stays_if_an_added_server_leaves_at_once),
		cmocka_unit_test(test_it_still_goes_back_for_a_server_that_is_removed),
		cmocka_unit_test(test_a_broken_talk_ends_only_that_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
