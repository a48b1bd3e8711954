/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of snapshots of servers that share no directory (server/store.h), on server 0:
 * what a hostile or broken process sends costs its connection or its snapshot, and no
 * file but the part of that server is written. A visitor plays server 1, or a guest that
 * reads. (test_remote.c has the other servers. Whole jobs are in the simulator, scenarios
 * snapshots and back, and in tests/system/e2e/one_directory.py.)
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

/* ---- a disk that stands still ---- */

static struct {
	const struct tern_env_ops *ops; /* those of the disk */
	struct tern_file_op *op;        /* was not begun */
	bool asked;
} disk;

static int stand_still(struct tern_env *env, struct tern_file_op *op)
{
	(void)env;
	disk.op = op;
	disk.asked = true;
	return 0;
}

static int write_only(struct tern_env *env, struct tern_file_op *op)
{
	return op->kind == TERN_FILE_PUBLISH ? stand_still(env, op)
					     : disk.ops->file(env, op);
}

/* From now on `file` starts the operations of the server's disk. */
static void slow_down(
	struct rig *rig, int (*file)(struct tern_env *env, struct tern_file_op *op))
{
	static struct tern_env_ops slow;

	disk.ops = rig->at.env->ops;
	disk.asked = false;
	slow = *disk.ops;
	slow.file = file;
	rig->at.env->ops = &slow;
}

/* The disk executes the operation that it has not begun. */
static void execute(struct rig *rig)
{
	assert_int_equal(disk.ops->file(rig->at.env, disk.op), 0);
}

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
		{-1, 100, 100, "0123456789abcdef", "was not asked for"},
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

/* Sends a part of four pieces, the last one of this type and with `more` bytes too many, and waits until
 * `flag` is set. */
static void send_part(
	struct pair *p, enum tern_dtype last, unsigned more, const bool *flag)
{
	uint64_t number = p->rig.server->snapshots->id.number;
	struct tern_channel *data;

	run_until(&p->rig, &heard.goes);
	assert_int_equal(
		tern_channel_open(p->second.peer, TERN_PS_CHANNEL_DATA, &data), 0);
	for (unsigned i = 0; i < 4; i++) {
		size_t bytes = i < 3 ? PIECE : 7 + more;
		struct tern_tensor t = {
			.shape = tern_shape_1d(i < 3 ? TERN_U8 : last, bytes)};

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
	send_part(&p, TERN_U8, 0, &heard.ended);
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
	send_part(&p, TERN_U8, 0, &heard.ended);
	assert_non_null(strstr(heard.text, "its digest is"));
	assert_false(p.second.refused);
	assert_int_equal(close_pair(&p), 0);
}

static void test_a_piece_of_another_size_or_type_ends_the_connection(void **state)
{
	static const char *const whys[] = {"has 7 bytes, i8: expected 7 bytes, u8",
		"has 8 bytes, u8: expected 7 bytes, u8"};

	(void)state;
	for (unsigned more = 0; more < 2; more++) {
		struct pair p;

		open_pair(&p);
		announce(&p, 0);
		send_part(&p, more ? TERN_U8 : TERN_I8, more, &p.second.refused);
		if (!strstr(p.second.text, whys[more]))
			fail_msg("%s", p.second.text);
		close_pair(&p);
	}
}

static void test_a_directory_that_is_gone_costs_the_part_only(void **state)
{
	struct pair p;

	(void)state;
	open_pair(&p);
	assert_int_equal(rmdir(p.directory), 0);
	announce(&p, 0);
	send_part(&p, TERN_U8, 0, &heard.ended);
	assert_non_null(strstr(heard.text, strerror(ENOENT)));
	assert_false(p.second.refused);
	close_rig(&p.rig);
}

static void report(struct pair *p, const char *digest)
{
	const struct tern_snapshot_id id = p->rig.server->snapshots->id;

	tern_talk_say(&p->second.talk,
		json_pack("{s:s, s:I, s:I, s:I, s:s, s:b}", "type", "snapshot", "step",
			(json_int_t)id.step, "number", (json_int_t)id.number, "bytes",
			(json_int_t)sizeof(part.bytes), "digest", digest, "late", 0));
	run_until(&p->rig, &p->second.refused);
}

/* A part is complete only if it is here as the other server reports. */
static void test_a_report_of_a_part_that_is_not_here_is_refused(void **state)
{
	struct pair p;

	(void)state;
	open_pair(&p);
	announce(&p, 0);
	run_until(&p.rig, &heard.goes);
	report(&p, "0123456789abcdef");
	close_pair(&p);
}

/* A part counts when it is synced and has its name: a crash before that would lose it. */
static void test_a_part_counts_when_it_is_published(void **state)
{
	char digest[20];
	struct pair p;

	(void)state;
	open_pair(&p);
	slow_down(&p.rig, write_only);
	announce(&p, 0);
	send_part(&p, TERN_U8, 0, &disk.asked);
	for (unsigned i = 0; i < 1000; i++)
		step(&p.rig);
	assert_false(heard.ended);
	snprintf(digest, sizeof(digest), "%016llx",
		(unsigned long long)tern_digest(part.bytes, sizeof(part.bytes)));
	report(&p, digest);
	p.rig.at.env->ops = disk.ops;
	assert_int_equal(close_pair(&p), 1); /* the file that has no name yet */
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

/* Server 0 that begins with a snapshot of one part. */
struct found {
	struct rig rig;
	char directory[64];
	char *manifest, *part;
};

static const struct tern_snapshot_id found_id = {.step = 7, .number = 1};

static void write_file(const char *path, const void *data, size_t bytes)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

static void write_snapshot(struct found *f)
{
	struct tern_snapshot_part parts[1] = {{.bytes = sizeof(part.bytes),
		.digest = tern_digest(part.bytes, sizeof(part.bytes))}};
	struct tern_snapshot snapshot = {.id = found_id, .parts = parts};
	json_t *object = job_of(&f->rig, &sync_job, 1, ELEMENTS, 1);
	struct tern_ps_text why;
	struct tern_plan plan;
	char *text;

	assert_int_equal(tern_ps_job_read(object, &snapshot.job, &why), 0);
	assert_int_equal(tern_plan_init(&plan, &snapshot.job), 0);
	text = tern_snapshot_encode(&snapshot, &plan);
	assert_non_null(text);
	write_file(f->manifest, text, strlen(text));
	write_file(f->part, part.bytes, sizeof(part.bytes));
	free(text);
	tern_plan_fini(&plan);
	tern_ps_job_fini(&snapshot.job);
	json_decref(object);
}

static void open_found(struct found *f)
{
	strcpy(f->directory, "/tmp/tern-store-XXXXXX");
	assert_non_null(mkdtemp(f->directory));
	f->manifest = tern_snapshot_path(
		f->directory, tern_snapshot_manifest_name(found_id).text);
	f->part = tern_snapshot_path(
		f->directory, tern_snapshot_part_name(found_id, 0).text);
	open_rig(&f->rig);
	write_snapshot(f);
	f->rig.server->opts.snapshots.directory = f->directory;
	f->rig.server->opts.snapshots.piece_bytes = PIECE;
	f->rig.server->opts.resume = f->directory;
	assert_int_equal(resume_init(f->rig.server), 0);
	while (resume_is_searching(f->rig.server) && !f->rig.server->over)
		step(&f->rig);
	assert_false(f->rig.server->over);
}

static void close_found(struct found *f)
{
	close_rig(&f->rig);
	unlink(f->manifest);
	unlink(f->part);
	assert_int_equal(rmdir(f->directory), 0);
	free(f->manifest);
	free(f->part);
}

static struct { /* what a guest that reads has heard */
	bool piece, later;
	char text[300]; /* of the piece: why there is none */
} guest;

static void hear_piece(struct tern_talk *talk, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));

	if (strcmp(tern_talk_type(message), "piece") == 0) {
		guest.piece = true;
		snprintf(guest.text, sizeof(guest.text), "%s", text ? text : "");
		return;
	}
	guest.later = json_is_true(json_object_get(message, "later"));
	heard_else(talk, message);
}

static void visit_as_guest(struct rig *rig, struct visitor *v)
{
	memset(&guest, 0, sizeof(guest));
	visit(rig, v);
	heard_else = v->talk.heard;
	v->talk.heard = hear_piece;
}

static void say_read_at(struct visitor *v, json_int_t step, json_int_t at)
{
	tern_talk_say(&v->talk, json_pack("{s:s, s:I, s:i, s:i, s:I}", "type", "read",
					"step", step, "number", 1, "part", 0, "at", at));
}

static void say_read(struct rig *rig, struct visitor *v)
{
	visit_as_guest(rig, v);
	say_read_at(v, 7, 0);
}

static void read_part(struct rig *rig, struct visitor *v)
{
	say_read(rig, v);
	run_until(rig, &guest.piece);
}

static void test_a_guest_that_takes_no_piece_is_sent_away_for_now(void **state)
{
	struct found f;
	struct visitor v;
	uint64_t until_ns;

	(void)state;
	open_found(&f);
	read_part(&f.rig, &v);
	assert_string_equal(guest.text, "");
	until_ns = newest(&f.rig)->question_until_ns;
	tern_talk_say(&v.talk, json_pack("{s:s}", "type", "begins"));
	for (unsigned i = 0; i < 1000; i++)
		step(&f.rig);
	assert_true(newest(&f.rig)->question_until_ns == until_ns);
	tern_timer_set(f.rig.at.ctx, &newest(&f.rig)->guest_timer, 0);
	run_until(&f.rig, &v.refused);
	assert_non_null(strstr(v.text, "no more of the snapshot within 30 s"));
	assert_true(guest.later);
	close_found(&f);
}

/* A guest that asks on and takes no answers would fill the memory for messages. */
static void test_a_guest_that_asks_on_is_refused(void **state)
{
	struct found f;
	struct visitor v[3];

	(void)state;
	open_found(&f);
	visit_as_guest(&f.rig, &v[0]);
	visit_as_guest(&f.rig, &v[1]);
	for (unsigned i = 0; i < 3; i++) {
		tern_talk_say(&v[0].talk, json_pack("{s:s}", "type", "begins"));
		say_read_at(&v[1], 8, 0); /* of another snapshot */
	}
	visit_as_guest(&f.rig, &v[2]);
	for (unsigned i = 0; i < 3; i++) {
		guest.piece = false;
		say_read_at(&v[2], 7, 1000000); /* behind the end */
		run_until(&f.rig, i < 2 ? &guest.piece : &v[2].refused);
	}
	for (unsigned i = 0; i < 3; i++) {
		run_until(&f.rig, &v[i].refused);
		assert_non_null(strstr(v[i].text, "it has had 2 answers"));
	}
	close_found(&f);
}

/* Lets a guest ask a disk that stands still for a piece. */
static void read_slowly(struct rig *rig, struct visitor *v)
{
	slow_down(rig, stand_still);
	say_read(rig, v);
	run_until(rig, &disk.asked);
}

static void test_a_guest_is_not_sent_away_while_the_disk_stands_still(void **state)
{
	struct found f;
	struct visitor v;

	(void)state;
	open_found(&f);
	read_slowly(&f.rig, &v);
	tern_timer_set(f.rig.at.ctx, &newest(&f.rig)->guest_timer, 0);
	for (unsigned i = 0; i < 1000; i++)
		step(&f.rig);
	assert_false(v.refused);
	f.rig.at.env->ops = disk.ops;
	execute(&f.rig);
	run_until(&f.rig, &guest.piece);
	assert_string_equal(guest.text, "");
	close_found(&f);
}

/* The time of a guest ends when it joins. */
static void test_a_guest_that_joins_gets_no_piece_and_no_time_limit(void **state)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct found f;
	struct visitor v;

	(void)state;
	open_found(&f);
	read_slowly(&f.rig, &v);
	say_join(&v, job_of(&f.rig, &sync_job, 1, ELEMENTS, 1), 0);
	run_until(&f.rig, &newest(&f.rig)->is_worker);
	/* The disk does not begin to read the part that the job needs, so the server
	 * goes on. */
	execute(&f.rig);
	while (f.rig.server->reading_count && tern_clock_ns() < limit)
		step(&f.rig);
	assert_int_equal(f.rig.server->reading_count, 0);
	assert_false(f.rig.server->over);
	assert_false(guest.piece);
	assert_int_equal(newest(&f.rig)->guest_timer.place, 0);
	f.rig.at.env->ops = disk.ops;
	close_found(&f);
}

static void test_a_guest_hears_why_a_part_cannot_be_read(void **state)
{
	struct found f;
	struct visitor v;

	(void)state;
	open_found(&f);
	assert_int_equal(unlink(f.part), 0);
	read_part(&f.rig, &v);
	assert_non_null(strstr(guest.text, strerror(ENOENT)));
	assert_int_equal(f.rig.server->reading_count, 0);
	assert_false(v.refused);
	close_found(&f);
}

/* Opens a server without a directory, and waits until it has the manifest. */
static void open_other(struct rig *other, struct found *f)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	open_rig(other);
	other->server->opts.index = 1;
	other->server->opts.snapshots.via = tern_server_address(f->rig.server);
	assert_int_equal(resume_init(other->server), 0);
	while ((resume_is_searching(other->server) ||
		       !tern_list_empty(&f->rig.server->peers)) &&
		tern_clock_ns() < limit) {
		step(&f->rig);
		step(other);
	}
	assert_false(other->server->over);
	assert_false(resume_is_searching(other->server));
}

/* A server that waits for its job is not connected to server 0, where it would be a silent guest. */
static void test_a_server_hangs_up_when_it_has_the_manifest(void **state)
{
	struct rig other;
	struct found f;

	(void)state;
	open_found(&f);
	open_other(&other, &f);
	assert_true(tern_snapshot_compare(resume_found(other.server)->id, found_id) == 0);
	assert_true(tern_list_empty(&f.rig.server->peers));
	close_rig(&other);
	close_found(&f);
}

/* A part may be changed on the disk of server 0 after server 0 has looked at it. */
static void test_a_part_that_is_read_back_is_compared_with_its_digest(void **state)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct rig other;
	struct visitor v;
	struct found f;

	(void)state;
	open_found(&f);
	open_other(&other, &f);
	part.bytes[PIECE] ^= 1;
	write_file(f.part, part.bytes, sizeof(part.bytes));
	visit(&other, &v);
	tern_talk_say(&v.talk, json_pack("{s:s, s:i, s:i, s:i, s:o}", "type", "join",
				       "worker", 0, "incarnation", 1, "server", 1, "job",
				       job_of(&f.rig, &sync_job, 1, ELEMENTS, 2)));
	while (!other.server->over && tern_clock_ns() < limit) {
		step(&f.rig);
		step(&other);
	}
	if (!strstr(other.server->text, "its digest is"))
		fail_msg("%s", other.server->text);
	close_rig(&other);
	close_found(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_part_that_was_not_asked_for_is_refused),
		cmocka_unit_test(test_a_part_is_written_as_it_was_sent),
		cmocka_unit_test(test_a_part_with_another_digest_is_not_kept),
		cmocka_unit_test(
			test_a_piece_of_another_size_or_type_ends_the_connection),
		cmocka_unit_test(test_a_directory_that_is_gone_costs_the_part_only),
		cmocka_unit_test(test_a_report_of_a_part_that_is_not_here_is_refused),
		cmocka_unit_test(test_a_part_counts_when_it_is_published),
		cmocka_unit_test(test_a_guest_that_asks_wrongly_is_refused),
		cmocka_unit_test(test_a_guest_that_takes_no_piece_is_sent_away_for_now),
		cmocka_unit_test(test_a_guest_that_asks_on_is_refused),
		cmocka_unit_test(
			test_a_guest_is_not_sent_away_while_the_disk_stands_still),
		cmocka_unit_test(test_a_guest_that_joins_gets_no_piece_and_no_time_limit),
		cmocka_unit_test(test_a_guest_hears_why_a_part_cannot_be_read),
		cmocka_unit_test(test_a_server_hangs_up_when_it_has_the_manifest),
		cmocka_unit_test(
			test_a_part_that_is_read_back_is_compared_with_its_digest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
