/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of snapshots of servers that share no directory (server/store.h): what a hostile or broken process
 * sends costs its connection or its snapshot, and no file but the part of that server is written. A
 * visitor plays server 1, or server 0. (Whole jobs are in the simulator, scenarios snapshots and back, and
 * in tests/system/e2e/one_directory.py.)
 */
#include "server/store.h"
#include "tests/server/server_bed.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/host_file.h"

#define ELEMENTS 100000u /* of two servers: each has a chunk */
#define PIECE    1000u

static const struct tern_ps_job sync_job = {.steps = 100, .slots = 1, .workers = 1};

/* ---- server 0, and a visitor that is server 1 ---- */

struct pair {
	struct rig rig;
	struct visitor worker, second;
	char directory[64];
};

static struct { /* what the visitor has heard of its part */
	bool goes, ended;
	char text[300];
} heard;

static void (*heard_else)(struct tern_talk *talk, const json_t *message);

static void hear(struct tern_talk *talk, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));

	if (strcmp(tern_talk_type(message), "part") != 0) {
		heard_else(talk, message);
		return;
	}
	heard.goes = heard.goes || json_is_true(json_object_get(message, "go"));
	heard.ended = !json_is_true(json_object_get(message, "go"));
	snprintf(heard.text, sizeof(heard.text), "%s", text ? text : "");
}

/* Begins a job of two servers, and on server 0 a snapshot. */
static void open_pair(struct pair *p)
{
	memset(&heard, 0, sizeof(heard));
	strcpy(p->directory, "/tmp/tern-store-XXXXXX");
	assert_non_null(mkdtemp(p->directory));
	open_rig(&p->rig);
	p->rig.server->opts.snapshots.directory = p->directory;
	visit(&p->rig, &p->worker);
	say_join(&p->worker, job_of(&p->rig, &sync_job, 1, ELEMENTS, 2), 0);
	run_until(&p->rig, &p->worker.welcome);
	visit(&p->rig, &p->second);
	heard_else = p->second.talk.heard;
	p->second.talk.heard = hear;
	tern_talk_say(&p->second.talk,
		json_pack("{s:s, s:i, s:o, s:s, s:b}", "type", "peer", "server", 1, "job",
			job_of(&p->rig, &sync_job, 1, ELEMENTS, 2), "arithmetic", "",
			"snapshots", 1));
	run_until(&p->rig, &p->rig.server->running);
	snapshots_ask(p->rig.server);
	assert_true(snapshots_is_announced(p->rig.server->snapshots));
}

/* Counts the files in the directory, and removes them and it. */
static unsigned close_pair(struct pair *p)
{
	struct tern_file_op op = {.kind = TERN_FILE_LIST, .path = p->directory};
	unsigned count = 0;
	char path[400];

	close_rig(&p->rig);
	host_file_run(&op);
	assert_int_equal(op.status, 0);
	for (size_t at = 0; at < op.bytes; at += strlen((char *)op.data + at) + 1) {
		snprintf(path, sizeof(path), "%s/%s", p->directory, (char *)op.data + at);
		assert_int_equal(unlink(path), 0);
		count++;
	}
	free(op.data);
	assert_int_equal(rmdir(p->directory), 0);
	return count;
}

static void say_part(struct pair *p, int step_more, json_int_t bytes, json_int_t piece,
	const char *digest)
{
	const struct tern_snapshot_id id = p->rig.server->snapshots->id;

	tern_talk_say(&p->second.talk,
		json_pack("{s:s, s:I, s:I, s:I, s:I, s:s}", "type", "part", "step",
			(json_int_t)id.step + step_more, "number", (json_int_t)id.number,
			"bytes", bytes, "piece", piece, "digest", digest));
}

static void test_a_part_that_was_not_asked_for_is_refused(void **state)
{
	static const struct {
		int step_more;
		json_int_t bytes, piece;
		const char *digest, *why;
	} cases[] = {
		{1, 100, 100, "0123456789abcdef", "was not asked for"},
		{0, 0, 100, "0123456789abcdef", "was not asked for"},
		{0, -1, 100, "0123456789abcdef", "was not asked for"},
		{0, 100, 0, "0123456789abcdef", "was not asked for"},
		{0, 100, STORE_PIECE_MOST + 1, "0123456789abcdef", "was not asked for"},
		{0, 100, 100, "0123456789abcde", "was not asked for"},
		{0, 100, 100, "0123456789abcdeg", "was not asked for"},
		{0, 100, 100, "../../etc/passwd", "was not asked for"},
		{0, ELEMENTS * 16ll, PIECE, "0123456789abcdef", "expected at most"},
		{0, INT64_MAX, PIECE, "0123456789abcdef", "expected at most"},
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		struct pair p;

		open_pair(&p);
		say_part(&p, cases[i].step_more, cases[i].bytes, cases[i].piece,
			cases[i].digest);
		run_until(&p.rig, &p.second.refused);
		if (!strstr(p.second.text, cases[i].why))
			fail_msg("case %zu: %s", i, p.second.text);
		assert_int_equal(close_pair(&p), 0);
	}
}

static struct {
	struct tern_req reqs[4];
	struct tern_buf bufs[4];
	unsigned char bytes[3 * PIECE + 7];
} part;

/* Sends a part of four pieces, the last one with `more` bytes too many, and waits until `flag` is set. */
static void send_part(struct pair *p, unsigned more, const bool *flag)
{
	uint64_t number = p->rig.server->snapshots->id.number;
	struct tern_channel *data;

	run_until(&p->rig, &heard.goes);
	assert_int_equal(
		tern_channel_open(p->second.peer, TERN_PS_CHANNEL_DATA, &data), 0);
	for (unsigned i = 0; i < 4; i++) {
		size_t bytes = i < 3 ? PIECE : 7 + more;
		struct tern_tensor t = {.shape = tern_shape_1d(TERN_U8, bytes)};

		assert_int_equal(tern_pool_get(p->rig.pool, bytes, &part.bufs[i]), 0);
		memcpy(tern_buf_ptr(&part.bufs[i]), part.bytes + (size_t)PIECE * i,
			i < 3 ? bytes : 7);
		t.buf = part.bufs[i];
		part.reqs[i] = (struct tern_req){0};
		assert_int_equal(tern_send(data, &part.reqs[i], tern_key("snapshot/part"),
					 (number << 32) + i, &t, NULL, 0),
			0);
	}
	run_until(&p->rig, flag);
	for (unsigned i = 0; i < 4; i++)
		tern_pool_put(p->rig.pool, &part.bufs[i]);
}

static void announce(struct pair *p, uint64_t digest)
{
	char text[20];

	for (size_t i = 0; i < sizeof(part.bytes); i++)
		part.bytes[i] = (unsigned char)(i * 7 + i / PIECE);
	snprintf(text, sizeof(text), "%016llx",
		(unsigned long long)(digest ? digest
					    : tern_digest(
						      part.bytes, sizeof(part.bytes))));
	say_part(p, 0, sizeof(part.bytes), PIECE, text);
}

static void test_a_part_is_written_as_it_was_sent(void **state)
{
	struct tern_file_op op = {.kind = TERN_FILE_READ};
	struct pair p;

	(void)state;
	open_pair(&p);
	announce(&p, 0);
	send_part(&p, 0, &heard.ended);
	assert_string_equal(heard.text, "");
	op.path = tern_snapshot_path(p.directory,
		tern_snapshot_part_name(p.rig.server->snapshots->id, 1).text);
	host_file_run(&op);
	assert_int_equal(op.status, 0);
	assert_int_equal(op.bytes, sizeof(part.bytes));
	assert_memory_equal(op.data, part.bytes, op.bytes);
	free(op.data);
	free((char *)(uintptr_t)op.path);
	assert_int_equal(close_pair(&p), 1);
}

static void test_a_part_with_another_digest_is_not_kept(void **state)
{
	struct pair p;

	(void)state;
	open_pair(&p);
	announce(&p, 1);
	send_part(&p, 0, &heard.ended);
	assert_non_null(strstr(heard.text, "its digest is"));
	assert_false(p.second.refused);
	assert_int_equal(close_pair(&p), 0);
}

static void test_a_piece_of_another_size_ends_the_connection(void **state)
{
	struct pair p;

	(void)state;
	open_pair(&p);
	announce(&p, 0);
	send_part(&p, 1, &p.second.refused);
	assert_non_null(strstr(p.second.text, "another size than 7"));
	close_pair(&p);
}

static void test_a_directory_that_is_gone_costs_the_part_only(void **state)
{
	struct pair p;

	(void)state;
	open_pair(&p);
	assert_int_equal(rmdir(p.directory), 0);
	announce(&p, 0);
	send_part(&p, 0, &heard.ended);
	assert_non_null(strstr(heard.text, strerror(ENOENT)));
	assert_false(p.second.refused);
	close_rig(&p.rig);
}

/* A part is complete only if it is here as the other server reports. */
static void test_a_report_of_a_part_that_is_not_here_is_refused(void **state)
{
	struct tern_snapshot_id id;
	struct pair p;

	(void)state;
	open_pair(&p);
	id = p.rig.server->snapshots->id;
	announce(&p, 0);
	run_until(&p.rig, &heard.goes);
	tern_talk_say(&p.second.talk,
		json_pack("{s:s, s:I, s:I, s:I, s:s, s:b}", "type", "snapshot", "step",
			(json_int_t)id.step, "number", (json_int_t)id.number, "bytes",
			(json_int_t)sizeof(part.bytes), "digest", "0123456789abcdef",
			"late", 0));
	run_until(&p.rig, &p.second.refused);
	close_pair(&p);
}

/* ---- server 0, and a guest that reads ---- */

static void check_guest(const char *text, const char *directory, const char *why)
{
	struct visitor v;
	struct rig rig;

	open_rig(&rig);
	rig.server->opts.snapshots.directory = directory;
	visit(&rig, &v);
	tern_talk_say(&v.talk, json_loads(text, 0, NULL));
	run_until(&rig, &v.refused);
	if (!strstr(v.text, why))
		fail_msg("%s: %s", text, v.text);
	close_rig(&rig);
}

static void test_a_guest_that_asks_wrongly_is_refused(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"read\"}",
		"{\"type\":\"read\",\"step\":0,\"number\":1,\"part\":0,\"at\":0}",
		"{\"type\":\"read\",\"step\":1,\"number\":-1,\"part\":0,\"at\":0}",
		"{\"type\":\"read\",\"step\":1,\"number\":4294967296,\"part\":0,\"at\":"
		"0}",
		"{\"type\":\"read\",\"step\":1,\"number\":1,\"part\":-2,\"at\":0}",
		"{\"type\":\"read\",\"step\":1,\"number\":1,\"part\":0,\"at\":-1}",
		"{\"type\":\"read\",\"step\":1,\"number\":1,\"part\":\"/etc/"
		"passwd\",\"at\":0}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++)
		check_guest(texts[i], "nowhere", "its message \"read\" is wrong");
	check_guest("{\"type\":\"begins\"}", NULL, "without --snapshots");
	check_guest("{\"type\":\"part\"}", "nowhere", "\"part\"");
}

/* ---- a server without a directory, and a visitor that is server 0 ---- */

static struct { /* the visitor */
	struct tern_listener *listener;
	struct tern_talk talk;
	const char *begins, *piece; /* its answers */
	struct tern_pool *pool;
	struct tern_context *ctx;
} zero;

static void zero_heard(struct tern_talk *talk, const json_t *message)
{
	const char *type = tern_talk_type(message);

	if (strcmp(type, "begins") == 0)
		tern_talk_say(talk, json_loads(zero.begins, 0, NULL));
	else if (strcmp(type, "read") == 0)
		tern_talk_say(talk, json_loads(zero.piece, 0, NULL));
}

static void zero_broken(struct tern_talk *talk, int status)
{
	(void)talk;
	(void)status;
}

static void zero_accepts(struct tern_peer *peer, void *arg)
{
	(void)arg;
	zero.talk = (struct tern_talk){.ctx = zero.ctx,
		.pool = zero.pool,
		.heard = zero_heard,
		.broken = zero_broken};
	assert_int_equal(tern_talk_open(&zero.talk, peer), 0);
}

/* Lets the server ask the visitor. */
static void ask(struct rig *rig, const char *begins, const char *piece)
{
	const struct tern_peer_opts opts = {.name = "zero"};

	open_rig(rig);
	zero.begins = begins;
	zero.piece = piece;
	zero.pool = rig->pool;
	zero.ctx = rig->guests.ctx;
	assert_int_equal(tern_listen(rig->guests.ctx, "tcp://127.0.0.1:0", &opts,
				 zero_accepts, NULL, &zero.listener),
		0);
	rig->server->opts.index = 1;
	rig->server->opts.snapshots.via = tern_listener_address(zero.listener);
	assert_int_equal(resume_init(rig->server), 0);
	assert_true(resume_is_searching(rig->server));
}

#define BEGINS "{\"type\":\"begins\",\"step\":7,\"number\":1}"

static void test_wrong_answers_of_server_0_end_the_server(void **state)
{
	static const struct {
		const char *begins, *piece, *why;
	} cases[] = {
		{"{\"type\":\"begins\"}", "", "does not say with which snapshot"},
		{"{\"type\":\"begins\",\"step\":-1,\"number\":1}", "", "does not say"},
		{"{\"type\":\"begins\",\"step\":1,\"number\":4294967296}", "",
			"does not say"},
		{"{\"type\":\"piece\",\"at\":0,\"bytes\":1,\"all\":1}", "",
			"not asked for"},
		{"{\"type\":\"refused\",\"text\":\"so\"}", "", "so"},
		{BEGINS, "{\"type\":\"begins\",\"step\":8,\"number\":1}",
			"another snapshot"},
		{BEGINS, "{\"type\":\"piece\"}", "not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":1,\"bytes\":1,\"all\":2}",
			"not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":2,\"all\":1}",
			"not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":0,\"all\":1}",
			"not asked for"},
		{BEGINS,
			"{\"type\":\"piece\",\"at\":0,\"bytes\":1048577,\"all\":2000000}",
			"not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":1,\"all\":999999999999}",
			"not asked for"},
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		struct rig rig;

		ask(&rig, cases[i].begins, cases[i].piece);
		run_until(&rig, &rig.server->over);
		if (!strstr(rig.server->text, cases[i].why) ||
			!strstr(rig.server->text, "--snapshots-via"))
			fail_msg("case %zu: %s", i, rig.server->text);
		close_rig(&rig);
	}
}

/* A worker cannot make a server the first one of a job that has no directory. */
static void test_a_server_without_a_directory_is_not_server_0(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.snapshots.via = "tcp://127.0.0.1:9";
	join(&rig, &v, &sync_job, 1000, 0);
	run_until(&rig, &v.refused);
	assert_non_null(strstr(v.text, "needs --snapshots DIR"));
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_part_that_was_not_asked_for_is_refused),
		cmocka_unit_test(test_a_part_is_written_as_it_was_sent),
		cmocka_unit_test(test_a_part_with_another_digest_is_not_kept),
		cmocka_unit_test(test_a_piece_of_another_size_ends_the_connection),
		cmocka_unit_test(test_a_directory_that_is_gone_costs_the_part_only),
		cmocka_unit_test(test_a_report_of_a_part_that_is_not_here_is_refused),
		cmocka_unit_test(test_a_guest_that_asks_wrongly_is_refused),
		cmocka_unit_test(test_wrong_answers_of_server_0_end_the_server),
		cmocka_unit_test(test_a_server_without_a_directory_is_not_server_0),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
