/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker begins one slot at a time, so there is one task. It writes the gradient and
 * tells `ready` which elements are final; the context's thread takes whole chunks from
 * `ready` and tells the worker. A task cannot be stopped: if its slot is revoked it runs
 * to its end, and the worker ignores what it says.
 */
#include "client/engine_computer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ps/job.h"
#include "ps/vector.h"
#include "transport/memory/mem.h"

/* Virtual time for a slot in the simulator. */
#define SLOT_COST_NS 200000u

static struct engine_computer *of_task(struct tern_task *task)
{
	return tern_container_of(task, struct engine_computer, task);
}

static struct engine_computer *of_computer(struct tern_computer *computer)
{
	return tern_container_of(computer, struct engine_computer, computer);
}

void engine_say_note(struct engine_computer *c)
{
	struct tern_engine *engine = c->opts.engine;

	if (*engine->note && c->opts.note)
		c->opts.note(c->opts.arg, engine->note);
	*engine->note = '\0';
}

/* ---- the engine's memory ---- */

/* Announces a slab (memory segment of a pool) to the engine, so that the engine can
 * page-lock it. Does nothing for GPU memory. */
static int pin(struct tern_engine *engine, const struct tern_mem *mem)
{
	if (tern_mem_kind(mem) != TERN_MEM_HOST)
		return 0;
	return tern_engine_pin(engine, tern_mem_base(mem), tern_mem_bytes(mem));
}

static int pin_slab(struct tern_computer *computer, const struct tern_mem *mem, char *why,
	size_t why_bytes)
{
	struct engine_computer *c = of_computer(computer);
	int r = pin(c->opts.engine, mem);

	engine_say_note(c);
	if (r < 0)
		snprintf(why, why_bytes, "%s", c->opts.engine->error);
	return r;
}

static void unpin(struct tern_computer *computer)
{
	tern_engine_unpin(of_computer(computer)->opts.engine);
}

static int fetch(struct tern_computer *computer, float *to, const float *from,
	uint64_t count, char *why, size_t why_bytes)
{
	return tern_engine_fetch(
		of_computer(computer)->opts.engine, to, from, count, why, why_bytes);
}

/* ---- on the task's thread ---- */

static void say_ready(void *arg, uint64_t first, uint64_t count)
{
	struct engine_computer *c = arg;

	ready_say(&c->ready, first, count);
	tern_task_signal(&c->task);
}

static void compute(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);
	const struct tern_work *work = c->work;
	struct tern_engine *engine = c->opts.engine;
	const struct tern_engine_params params = {
		.values = tern_vector(work->params), .version = work->version};

	for (uint32_t j = 0; j < work->batch; j++)
		c->records[j] = tern_work_record(work, j);
	tern_dataset_batch(c->opts.train, c->records, work->batch, &engine->batch);
	/* Memory that was added late is announced here, since the engine was perhaps busy
	 * when the worker got the memory. */
	c->status = work->is_new_memory ? pin(engine, work->gradient->mem) : 0;
	if (c->status == 0)
		c->status = tern_engine_gradient(engine, &params,
			tern_vector(work->gradient), say_ready, c, &c->result);
}

/* ---- on the context's thread ---- */

static void tell_ready(struct engine_computer *c)
{
	uint32_t chunk;

	while (ready_take(&c->ready, &chunk)) {
		const struct tern_chunk *part = &c->plan.chunks[chunk];

		tern_work_final(c->work, part->first, part->count);
	}
}

static void progress(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);

	if (c->work)
		tell_ready(c);
}

static void computed(struct tern_task *task)
{
	struct engine_computer *c = of_task(task);
	struct tern_work *work = c->work;

	engine_say_note(c);
	if (c->status == 0)
		tell_ready(c);
	if (c->status < 0) {
		engine_fail(c, c->status, c->opts.engine->error);
		return;
	}
	c->work = NULL;
	tern_work_end(work, c->result.loss / work->batch);
}

void engine_fail(struct engine_computer *c, int status, const char *text)
{
	struct tern_work *work = TERN_TAKE(c->work);

	tern_work_fail(work, status, text);
}

static void begin(struct tern_computer *computer, struct tern_work *work)
{
	struct engine_computer *c = of_computer(computer);

	tern_assert(!c->work && work->batch == c->opts.batch);
	c->work = work;
	if (c->opts.eval_every && work->slot == 0 &&
		work->version % c->opts.eval_every == 0 &&
		c->opts.is_evaluator(c->opts.arg))
		engine_evaluate_slot(c);
	else
		engine_compute(c);
}

void engine_compute(struct engine_computer *c)
{
	char text[200];
	int r;

	ready_begin(&c->ready);
	c->task.run = compute;
	c->task.done = computed;
	c->task.progress = progress;
	c->task.cost_ns = SLOT_COST_NS;
	r = tern_env_submit(c->opts.env, &c->task);
	if (r == 0)
		return;
	snprintf(
		text, sizeof(text), "no thread for computation: %s", tern_status_text(r));
	engine_fail(c, r, text);
}

/* ---- making the computer ---- */

int engine_computer_new(
	const struct engine_computer_opts *opts, struct engine_computer **out)
{
	static const struct tern_computer_ops ops = {.begin = begin,
		.evaluate = engine_evaluate,
		.pin = pin_slab,
		.unpin = unpin,
		.fetch = fetch};
	struct engine_computer *c = calloc(1, sizeof(*c));
	/* The division into chunks does not depend on the number of servers. */
	struct tern_ps_job job = {.server_count = 1};
	int r;

	if (!c)
		return -ENOMEM;
	c->computer.ops = &ops;
	c->opts = *opts;
	engine_evaluation_init(c);
	c->results = (struct engine_results){.test_loss = (double)NAN,
		.test_accuracy = (double)NAN,
		.test_auc = (double)NAN};
	c->records = calloc(opts->batch, sizeof(*c->records));
	engine_computer_describe(c, &job);
	r = tern_plan_init(&c->plan, &job);
	if (r == 0)
		r = ready_init(&c->ready, &c->plan);
	if (r < 0 || !c->records) {
		engine_computer_free(c);
		return -ENOMEM;
	}
	*out = c;
	return 0;
}

void engine_computer_describe(const struct engine_computer *c, struct tern_ps_job *job)
{
	const struct tern_engine *engine = c->opts.engine;
	size_t count;

	job->params =
		(struct tern_param *)(uintptr_t)tern_model_params(engine->model, &count);
	job->param_count = (uint32_t)count;
	job->element_count = tern_model_size(engine->model);
	job->records = c->opts.train->count;
	job->data = tern_dataset_digest(c->opts.train);
	snprintf(job->arithmetic, sizeof(job->arithmetic), "%s", engine->fingerprint);
}

void engine_computer_free(struct engine_computer *c)
{
	if (!c)
		return;
	engine_evaluation_fini(c);
	ready_fini(&c->ready);
	tern_plan_fini(&c->plan);
	free(c->records);
	free(c);
}
