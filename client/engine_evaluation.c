/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine evaluates parameters on the test set: that of the finisher the final ones, after
 * which it lets a character model write a few lines, and that of the worker with slot 0
 * those of some steps, before it computes the slot.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "client/engine_computer.h"
#include "ps/vector.h"

#define TEST_COST_NS      1000000u        /* virtual time for it in the simulator */
#define WRITE_STREAM      0x7772697465ull /* "write" */
#define WRITE_TEMPERATURE 0.6f
#define SIGNAL_WRITTEN    64u /* written characters after which the task signals progress */

static struct engine_computer *of_task(struct tern_task *task)
{
	return tern_container_of(task, struct engine_computer, evaluation_task);
}

/* ---- on the task's thread ---- */

static struct tern_engine_params params_of(const struct engine_computer *c)
{
	if (c->evaluation)
		return (struct tern_engine_params){
			.values = tern_vector(c->evaluation->params),
			.version = c->evaluation->version};
	return (struct tern_engine_params){
		.values = tern_vector(c->work->params), .version = c->work->version};
}

/* Signals progress after each batch. The task is never stopped. */
static bool tested_batch(void *arg)
{
	struct engine_computer *c = arg;

	tern_task_signal(&c->evaluation_task);
	return false;
}

static int test(struct engine_computer *c, struct engine_results *results)
{
	const struct tern_engine_params params = params_of(c);
	struct engine_test_results tested;
	int r = engine_test_run(&c->test, &params, &tested);

	results->test_loss = tested.loss;
	results->test_accuracy = tested.accuracy;
	results->test_auc = tested.auc;
	return r;
}

/* Lets the model write text. The first context is taken from a random place of the training
 * text (and not from its beginning, where a text may have only blanks); later contexts end
 * with what the model has written. */
static int write_text(struct engine_computer *c)
{
	const struct tern_engine_params params = params_of(c);
	const struct tern_dataset *data = c->opts.train;
	uint64_t first = tern_rng_at(c->opts.seed, WRITE_STREAM, 1, 0) % data->count;
	struct tern_batch *batch = &c->opts.engine->batch;
	int32_t *ids = batch->ids;

	tern_dataset_batch(data, &first, 1, batch);
	for (uint32_t i = 0; i < c->opts.write_count; i++) {
		float u = tern_unit_f32(tern_rng_at(c->opts.seed, WRITE_STREAM, 0, i));
		int32_t next;
		int r = tern_engine_sample(
			c->opts.engine, &params, WRITE_TEMPERATURE, u, &next);

		if (r < 0)
			return r;
		c->written[i] = (char)data->symbol_bytes[next];
		memmove(ids, ids + 1, (data->width - 1) * sizeof(*ids));
		ids[data->width - 1] = next;
		if (i % SIGNAL_WRITTEN == 0)
			tern_task_signal(&c->evaluation_task);
	}
	return 0;
}

static void run(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);

	c->evaluation_status = c->opts.test ? test(c, &c->results) : 0;
	if (c->evaluation_status == 0 && c->written)
		c->evaluation_status = write_text(c);
}

static void run_slot(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);

	c->evaluation_status = test(c, &c->slot_results);
}

/* ---- on the context's thread ---- */

static void slot_progress(struct tern_task *task)
{
	tern_work_goes_on(of_task(task)->work);
}

static void slot_ran(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);

	engine_say_note(c);
	/* -EDOM: the loss is no number, which ends the job if a slot has such a loss. */
	if (c->evaluation_status < 0 && c->evaluation_status != -EDOM) {
		engine_fail(c, c->evaluation_status, c->opts.engine->error);
		return;
	}
	c->opts.evaluated(c->opts.arg, c->work->version, c->slot_results.test_loss,
		c->slot_results.test_accuracy);
	engine_compute(c);
}

void engine_evaluate_slot(struct engine_computer *c)
{
	int r;

	c->evaluation_task.run = run_slot;
	c->evaluation_task.done = slot_ran;
	c->evaluation_task.progress = slot_progress;
	c->evaluation_task.cost_ns = TEST_COST_NS;
	r = tern_env_submit(c->opts.env, &c->evaluation_task);
	if (r < 0)
		engine_fail(c, r, "no thread for an evaluation");
}

static void progress(struct tern_task *task)
{
	tern_evaluation_goes_on(of_task(task)->evaluation);
}

static void ran(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);

	engine_say_note(c);
	c->results.written = c->written;
	if (c->evaluation_status == 0 && c->opts.test && c->opts.tested)
		c->opts.tested(
			c->opts.arg, c->results.test_loss, c->results.test_accuracy);
	tern_evaluation_end(c->evaluation, c->evaluation_status, c->opts.engine->error);
}

static int make_room(struct engine_computer *c)
{
	if (c->opts.write_count && c->opts.train->kind == TERN_DATA_TEXT) {
		c->written = calloc(c->opts.write_count + 1u, 1);
		if (!c->written)
			return -ENOMEM;
	}
	return c->opts.test ? engine_test_make_room(&c->test) : 0;
}

void engine_evaluate(struct tern_computer *computer, struct tern_evaluation *evaluation)
{
	struct engine_computer *c =
		tern_container_of(computer, struct engine_computer, computer);
	char text[200] = "no memory to evaluate";
	int r = make_room(c);

	c->evaluation = evaluation;
	if (r == 0 && !c->opts.test && !c->written) {
		tern_evaluation_end(evaluation, 0, NULL);
		return;
	}
	c->evaluation_task.run = run;
	c->evaluation_task.done = ran;
	c->evaluation_task.progress = progress;
	c->evaluation_task.cost_ns = TEST_COST_NS;
	if (r == 0) {
		r = tern_env_submit(c->opts.env, &c->evaluation_task);
		snprintf(text, sizeof(text), "no thread for computation: %s",
			tern_status_text(r));
	}
	if (r < 0)
		tern_evaluation_end(evaluation, r, text);
}

void engine_evaluation_init(struct engine_computer *c)
{
	c->test = (struct engine_test){.engine = c->opts.engine,
		.set = c->opts.test,
		.stop = tested_batch,
		.arg = c};
}

void engine_evaluation_fini(struct engine_computer *c)
{
	free(c->written);
	engine_test_fini(&c->test);
}
