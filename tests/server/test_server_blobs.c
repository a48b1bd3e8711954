/* SPDX-License-Identifier: Apache-2.0 */
/* The blobs of a job on server 0: the newest two are kept, and a worker that sends a wrong one is
 * refused. */
#include "tests/server/server_bed.h"

#include <errno.h>
#include <string.h>

#include "server/blobs.h"

static void say_keep(struct visitor *v, uint64_t step, const char *text)
{
	json_t *blob = json_pack(
		"{s:I, s:i, s:s}", "step", (json_int_t)step, "bytes", 3, "data", text);

	tern_talk_say(&v->talk, json_pack("{s:s, s:o}", "type", "keep", "blob", blob));
}

static void test_the_first_blob_of_a_step_counts(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2, .steps = 5};
	struct visitor v[2];
	struct tern_server *s;
	struct rig rig;

	(void)state;
	open_with_workers(&rig, v, &job);
	s = rig.server;
	say_keep(&v[0], 1, "YWJj");
	while (!s->blobs[0].step || s->workers[0]->keep_step)
		step(&rig);
	say_keep(&v[1], 1, "YWJk");
	for (unsigned i = 0; i < 200; i++)
		step(&rig);
	assert_memory_equal(s->blobs[0].data, "abc", 3);
	assert_true(s->blobs[0].step == 1 && s->blobs[1].step == 0);
	assert_null(blobs_find(s, 0));
	assert_ptr_equal(blobs_find(s, 7), &s->blobs[0]);
	stop_and_close(&rig);
}

static void check_refused(uint64_t step_of_blob, const char *text)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2, .steps = 5};
	struct visitor v[2];
	struct rig rig;

	open_with_workers(&rig, v, &job);
	say_keep(&v[0], step_of_blob, text);
	while (rig.server->lost_count == 0)
		step(&rig);
	assert_true(rig.server->blobs[0].step == 0);
	stop_and_close(&rig);
}

static void test_a_wrong_blob_costs_its_worker_only(void **state)
{
	(void)state;
	check_refused(0, "YWJj");
	check_refused(2, "YWJj"); /* version 1 is not here */
	check_refused(6, "YWJj"); /* after the last step */
	check_refused(1, "YWJ");
	check_refused(1, "YW=j");
}

static void add(struct tern_server *s, uint64_t step_of_blob)
{
	struct tern_blob blob = {0};

	assert_int_equal(tern_blob_set(&blob, step_of_blob, "x", 1), 0);
	blobs_add(s, &blob);
	assert_null(blob.data);
}

/* Checks how many blobs of versions up to this one are told, and that they can be read. */
static void check_told(const struct tern_server *s, uint64_t version, unsigned count)
{
	json_t *list = blobs_json(s, version);
	struct tern_server reader = {.job = {.steps = 100}};

	assert_int_equal(json_array_size(list), count);
	assert_int_equal(blobs_read(&reader, list), 0);
	assert_true(reader.blobs[0].step == (count ? s->blobs[2 - count].step : 0));
	json_array_append_new(list, json_string("no blob"));
	assert_int_equal(blobs_read(&reader, list), -EPROTO);
	json_decref(list);
	blobs_fini(&reader);
}

static void test_the_newest_up_to_a_version_is_found(void **state)
{
	struct tern_server s = {.index = 0};

	(void)state;
	add(&s, 3);
	add(&s, 7);
	add(&s, 9);
	add(&s, 9);
	add(&s, 8);
	assert_true(blobs_find(&s, 100)->step == 9 && blobs_find(&s, 9)->step == 9);
	assert_true(blobs_find(&s, 8)->step == 7 && blobs_find(&s, 7)->step == 7);
	assert_null(blobs_find(&s, 6));
	check_told(&s, 100, 2);
	check_told(&s, 8, 1);
	check_told(&s, 6, 0);
	s.index = 1;
	check_told(&s, 100, 0);
	blobs_begin(&s, 9);
	assert_true(s.blobs[0].step == 9);
	blobs_begin(&s, 8);
	assert_true(s.blobs[0].step == 7 && s.blobs[1].step == 0);
	blobs_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_first_blob_of_a_step_counts),
		cmocka_unit_test(test_a_wrong_blob_costs_its_worker_only),
		cmocka_unit_test(test_the_newest_up_to_a_version_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
