/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of guests that ask a server what its job does. Whatever they ask, the job goes on. */
#include "tests/server/server_bed.h"

#include <string.h>

#include "base/clock.h"
#include "base/util.h"

struct asker {
	struct visitor v;
	json_t *answer;
	uint64_t bytes; /* of its text */
	unsigned answer_count, again_count;
	bool answered, again;
};

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct asker *a = tern_container_of(talk, struct asker, v.talk);
	const char *type = tern_talk_type(message);

	assert_non_null(message);
	if (strcmp(type, "status") == 0) {
		a->answer = json_incref((json_t *)(uintptr_t)message);
		a->bytes = talk->last.bytes;
		a->answer_count++;
		a->answered = true;
	} else if (strcmp(type, "again") == 0) {
		a->again_count++;
		a->again = true;
	} else if (strcmp(type, "refused") == 0) {
		a->v.refused = true;
		snprintf(a->v.text, sizeof(a->v.text), "%s",
			json_string_value(json_object_get(message, "text")));
	}
}

static void visit_to_ask(struct rig *rig, struct asker *a)
{
	*a = (struct asker){0};
	visit(rig, &a->v);
	a->v.talk.heard = heard;
}

static void say(struct asker *a, const char *question)
{
	tern_talk_say(&a->v.talk, json_loads(question, 0, NULL));
}

/* Asks, and waits for the answer. */
static void ask_from(struct rig *rig, struct asker *a, unsigned from)
{
	a->answered = false;
	tern_talk_say(&a->v.talk,
		json_pack("{s:s, s:I}", "type", "status", "from", (json_int_t)from));
	run_until(rig, &a->answered);
}

static void open_and_ask(struct rig *rig, struct asker *a)
{
	open_rig(rig);
	visit_to_ask(rig, a);
	say(a, "{\"type\":\"status\"}");
	run_until(rig, &a->answered);
}

static json_int_t number(const json_t *object, const char *name)
{
	assert_true(json_is_integer(json_object_get(object, name)));
	return json_integer_value(json_object_get(object, name));
}

static void check_text(const json_t *object, const char *name, const char *text)
{
	assert_non_null(json_object_get(object, name));
	assert_string_equal(json_string_value(json_object_get(object, name)), text);
}

static const json_t *worker(const struct asker *a, size_t place)
{
	return json_array_get(json_object_get(a->answer, "workers"), place);
}

static size_t worker_count(const struct asker *a)
{
	return json_array_size(json_object_get(a->answer, "workers"));
}

static void test_a_server_without_a_job_waits_for_a_worker(void **state)
{
	struct asker a;
	struct rig rig;

	(void)state;
	open_and_ask(&rig, &a);
	check_text(a.answer, "state", "no_job");
	check_text(a.answer, "waits_for", "a worker");
	check_text(a.answer, "address", tern_server_address(rig.server));
	assert_int_equal(number(a.answer, "server"), 0);
	assert_null(json_object_get(a.answer, "job"));
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_before_the_steps_it_names_who_is_missing(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor first;
	struct asker a;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &first, &job, 1);
	visit_to_ask(&rig, &a);
	ask_from(&rig, &a, 0);
	check_text(a.answer, "state", "starts");
	check_text(a.answer, "waits_for", "worker 0");
	assert_int_equal(number(a.answer, "joined"), 1);
	assert_int_equal(number(json_object_get(a.answer, "job"), "workers"), 2);
	check_text(worker(&a, 0), "state", "missing");
	check_text(worker(&a, 1), "state", "joined");
	assert_non_null(json_object_get(worker(&a, 1), "name"));
	assert_null(json_object_get(a.answer, "step"));
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_during_the_steps_it_names_who_is_waited_for(void **state)
{
	const struct tern_ps_job job = {.slots = 3, .workers = 2};
	struct visitor workers[2];
	struct asker a;
	struct rig rig;

	(void)state;
	open_with_workers(&rig, workers, &job);
	while (!rig.server->running)
		step(&rig);
	visit_to_ask(&rig, &a);
	ask_from(&rig, &a, 0);
	check_text(a.answer, "state", "steps");
	assert_int_equal(number(a.answer, "step"), 0);
	assert_non_null(strstr(
		json_string_value(json_object_get(a.answer, "waits_for")), "of step 1"));
	assert_int_equal(number(worker(&a, 0), "slots"), 2);
	assert_int_equal(number(worker(&a, 1), "slots"), 1);
	check_text(worker(&a, 0), "owes", "slot 0 of step 1");
	assert_false(rig.ended);
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_an_answer_has_a_part_of_many_workers(void **state)
{
	const struct tern_ps_job job = {.slots = 4096, .workers = TERN_WORKERS_MAX};
	static struct asker askers[TERN_WORKERS_MAX];
	struct visitor first;
	struct rig rig;
	unsigned from = 0, count = 0;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &first, &job, 0);
	for (unsigned page = 0; page < TERN_WORKERS_MAX; page++) {
		struct asker *a = &askers[page];

		visit_to_ask(&rig, a);
		ask_from(&rig, a, from);
		assert_int_equal(number(worker(a, 0), "worker"), from);
		assert_in_range(a->bytes, 1, TERN_PS_TEXT_MAX / 2);
		assert_int_equal(a->again_count, 0);
		count += (unsigned)worker_count(a);
		from = json_object_get(a->answer, "next")
			       ? (unsigned)number(a->answer, "next")
			       : 0;
		json_decref(a->answer);
		if (!from)
			break;
		assert_int_equal(from, count);
	}
	assert_int_equal(count, TERN_WORKERS_MAX);
	stop_and_close(&rig);
}

static void test_a_page_behind_the_last_worker_is_empty(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor first;
	struct asker a;
	struct rig rig;

	(void)state;
	open_with_workers(&rig, &first, &job);
	visit_to_ask(&rig, &a);
	ask_from(&rig, &a, TERN_WORKERS_MAX - 1);
	assert_int_equal(worker_count(&a), 0);
	assert_null(json_object_get(a.answer, "next"));
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_a_wrong_question_ends_its_guest_alone(void **state)
{
	static const char *const wrong[] = {
		"{\"type\":\"status\",\"from\":-1}",
		"{\"type\":\"status\",\"from\":4096}",
		"{\"type\":\"status\",\"from\":1.5}",
		"{\"type\":\"status\",\"from\":\"0\"}",
		"{\"type\":\"status\",\"from\":null}",
		"{\"type\":\"status\",\"from\":[]}",
		"{\"type\":\"status\",\"from\":9223372036854775807}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct asker a;
		struct rig rig;

		open_rig(&rig);
		visit_to_ask(&rig, &a);
		say(&a, wrong[i]);
		run_until(&rig, &a.v.refused);
		assert_string_equal(a.v.text,
			"its message \"status\" is wrong: expected no \"from\", or a "
			"worker from 0 to 4095");
		refused_alone(&rig, &a.v);
		close_rig(&rig);
	}
}

static void test_many_questions_are_answered_at_once(void **state)
{
	static struct asker askers[32];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(askers); i++) {
		visit_to_ask(&rig, &askers[i]);
		say(&askers[i], "{\"type\":\"status\"}");
	}
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(askers); i++) {
		run_until(&rig, &askers[i].answered);
		assert_int_equal(askers[i].again_count, 0);
		json_decref(askers[i].answer);
	}
	stop_and_close(&rig);
}

/* Opens a server that has no answer left to give for some seconds, and asks it. */
static void open_and_ask_in_vain(struct rig *rig, struct asker *a)
{
	open_rig(rig);
	rig->server->questions_ns = tern_now_ns(rig->server->env) + 15 * TERN_NS_PER_S;
	visit_to_ask(rig, a);
	say(a, "{\"type\":\"status\"}");
}

static void test_without_an_answer_left_a_guest_is_told_to_ask_again(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor late;
	struct asker a;
	struct rig rig;

	(void)state;
	open_and_ask_in_vain(&rig, &a);
	run_until(&rig, &a.again);
	assert_int_equal(a.answer_count, 0);
	join_well(&rig, &late, &job, 0);
	rig.server->questions_ns = 0;
	ask_from(&rig, &a, 0);
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_a_guest_that_does_not_wait_for_again_is_refused(void **state)
{
	struct asker a;
	struct rig rig;

	(void)state;
	open_and_ask_in_vain(&rig, &a);
	say(&a, "{\"type\":\"status\"}");
	run_until(&rig, &a.v.refused);
	assert_string_equal(
		a.v.text, "it has repeated \"status\": expected it after \"again\" only");
	assert_int_equal(a.answer_count + a.again_count, 0);
	stop_and_close(&rig);
}

static void test_a_second_question_is_refused(void **state)
{
	struct asker a;
	struct rig rig;

	(void)state;
	open_and_ask(&rig, &a);
	say(&a, "{\"type\":\"status\"}");
	run_until(&rig, &a.v.refused);
	assert_string_equal(a.v.text,
		"it has had an answer to \"status\": expected one question for each "
		"connection");
	assert_int_equal(a.answer_count, 1);
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_again_does_not_renew_the_time_of_a_question(void **state)
{
	struct asker a;
	struct rig rig;
	uint64_t until_ns;

	(void)state;
	open_and_ask_in_vain(&rig, &a);
	run_until(&rig, &a.again);
	until_ns = newest(&rig)->question_until_ns;
	a.again = false;
	say(&a, "{\"type\":\"status\"}");
	run_until(&rig, &a.again);
	assert_true(until_ns && newest(&rig)->question_until_ns == until_ns);
	newest(&rig)->question_until_ns = 1;
	say(&a, "{\"type\":\"status\"}");
	run_until(&rig, &a.v.refused);
	assert_string_equal(a.v.text,
		"it is still connected 30 s after its question: expected the end of the "
		"connection");
	assert_int_equal(a.again_count, 2);
	stop_and_close(&rig);
}

static void test_a_guest_that_asks_stays_no_longer_than_others(void **state)
{
	struct asker a;
	struct rig rig;

	(void)state;
	open_and_ask(&rig, &a);
	tern_timer_set(rig.at.ctx, &newest(&rig)->guest_timer, 0);
	run_until(&rig, &a.v.refused);
	json_decref(a.answer);
	stop_and_close(&rig);
}

static void test_only_a_guest_may_ask(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor first;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &first, &job, 0);
	tern_talk_say(&first.talk, json_pack("{s:s}", "type", "status"));
	run_until(&rig, &first.refused);
	assert_string_equal(first.text,
		"its message is of type \"status\", which a worker does not send");
	close_rig(&rig);
}

static void test_a_server_without_chunks_has_the_first_step(void **state)
{
	struct tern_server_stats stats;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->first_version = 7;
	tern_server_stats(rig.server, &stats);
	assert_int_equal(stats.steps, 7);
	rig.server->first_version = 0;
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_without_chunks_has_the_first_step),
		cmocka_unit_test(test_a_server_without_a_job_waits_for_a_worker),
		cmocka_unit_test(test_before_the_steps_it_names_who_is_missing),
		cmocka_unit_test(test_during_the_steps_it_names_who_is_waited_for),
		cmocka_unit_test(test_an_answer_has_a_part_of_many_workers),
		cmocka_unit_test(test_a_page_behind_the_last_worker_is_empty),
		cmocka_unit_test(test_a_wrong_question_ends_its_guest_alone),
		cmocka_unit_test(test_many_questions_are_answered_at_once),
		cmocka_unit_test(
			test_without_an_answer_left_a_guest_is_told_to_ask_again),
		cmocka_unit_test(test_a_guest_that_does_not_wait_for_again_is_refused),
		cmocka_unit_test(test_a_second_question_is_refused),
		cmocka_unit_test(test_again_does_not_renew_the_time_of_a_question),
		cmocka_unit_test(test_a_guest_that_asks_stays_no_longer_than_others),
		cmocka_unit_test(test_only_a_guest_may_ask),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
