/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a job. One worker, the finisher, checks that the last version has only
 * numbers, lets its computer (compute.h) evaluate them, and saves them. The finisher is
 * worker 0, or if that is lost, the first worker that is left. The others wait until it
 * has finished: if it is lost meanwhile, one of them does everything again, with the same
 * results. In async mode the finisher first waits until every live worker has taken its
 * last step, and then pulls the parameters once more.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "ps/params_file.h"

#define CHECK_COST_NS 1000000u /* virtual time for the check in the simulator */
#define SAVE_AGAIN_NS (10 * TERN_NS_PER_S)

/* ---- the parameters ---- */

static const float *present(const struct tern_worker *w)
{
	return tern_vector(versions_current(w));
}

/* True if the parameters are in memory of a GPU, where the CPU cannot read them. */
static bool are_on_device(const struct tern_worker *w)
{
	return w->opts.memory.kind != TERN_MEM_HOST;
}

/* Copies the present parameters to host memory, for readable(), if they are in memory of
 * a GPU. */
static int fetch(struct tern_worker *w, struct tern_ps_text *why)
{
	struct tern_computer *computer = w->opts.computer;
	int r;

	if (!are_on_device(w) || w->fetched_version == w->version)
		return 0;
	r = computer->ops->fetch(computer, w->fetched, present(w), w->job.element_count,
		why->text, sizeof(why->text));
	if (r == 0)
		w->fetched_version = w->version;
	return r;
}

/* The present parameters in host memory, after fetch(). */
static const float *readable(const struct tern_worker *w)
{
	return are_on_device(w) ? w->fetched : present(w);
}

/* True if no parameter is NaN or infinite. Perhaps no loss was computed with the present
 * version yet; if the last step diverged, only this shows it then. */
static bool are_numbers(const struct tern_worker *w)
{
	const float *values = readable(w);

	for (uint64_t i = 0; i < w->job.element_count; i++)
		if (!isfinite(values[i]))
			return false;
	return true;
}

/* ---- saving ---- */

static void save(struct tern_worker *w, const char *path);
static void save_failed(struct tern_worker *w, const char *path, int status);

static void save_again(struct tern_timer *timer)
{
	struct tern_worker *w = tern_container_of(timer, struct tern_worker, save_timer);
	struct tern_ps_text why;
	int r;

	if (w->opts.ctx->ending)
		return;
	/* The directory may be gone, or a user has removed a file of its name. */
	r = w->opts.finishing ? w->opts.finishing(w->opts.arg, &why) : 0;
	if (r < 0)
		save_failed(w, w->opts.save_path, r);
	else
		save(w, w->opts.save_path);
}

/* Saving is tried again until it works or the worker is over, whatever the error: the
 * parameters are in no file yet, and a user may free disk space. The other processes wait
 * meanwhile. Each reason is reported once in a row. */
static void save_failed(struct tern_worker *w, const char *path, int status)
{
	char text[600];

	snprintf(text, sizeof(text), "cannot save to %.400s: %s: %s", path,
		strerror(-status),
		w->over ? "the parameters are lost"
			: "tried again every 10 s until it works or this worker is asked "
			  "to end");
	if ((w->over || w->save_failed != status) && w->opts.unsaved)
		w->opts.unsaved(w->opts.arg, text);
	w->save_failed = status;
	if (w->over) {
		worker_saved(w);
		return;
	}
	w->save_timer.fire = save_again;
	tern_timer_set(w->opts.ctx, &w->save_timer, tern_now_ns(w->env) + SAVE_AGAIN_NS);
}

/* Number of steps in the present parameters. In async mode the finisher gets a last copy
 * of them after its steps, which counts as one more version. */
static uint64_t steps_in(const struct tern_worker *w)
{
	return TERN_MIN(w->version, w->my_steps);
}

static void saved(struct tern_file_op *op)
{
	struct tern_worker *w = tern_container_of(op, struct tern_worker, file);

	w->saving = false;
	if (op->status < 0) {
		save_failed(w, op->path, op->status);
		return;
	}
	w->results.saved_path = op->path;
	w->results.saved_step = w->final ? w->results.steps_made : steps_in(w);
	w->results.saved_own = w->job.mode == TERN_MODE_ASYNC && !w->final;
	if (w->over)
		worker_saved(w);
	else
		worker_leave(w);
}

static void forget_file(struct tern_worker *w)
{
	tern_params_file_free(w->file_parts);
	w->file_parts = NULL;
}

static int build_file(struct tern_worker *w, bool interrupted)
{
	char step[24];
	/* A file of final results does not have these, so that its bytes depend on the
	 * training alone. */
	const struct tern_safetensors_metadata more[] = {
		{TERN_WORKER_METADATA_JOB, w->opts.job_name},
		{TERN_WORKER_METADATA_STEP, step},
	};

	snprintf(step, sizeof(step), "%llu", (unsigned long long)steps_in(w));
	forget_file(w);
	return tern_params_file_build(&w->job, readable(w), more,
		interrupted && w->opts.job_name ? TERN_ARRAY_SIZE(more) : 0,
		&w->file_parts);
}

static void save(struct tern_worker *w, const char *path)
{
	int r = build_file(w, path == w->opts.interrupted_path);

	w->file = (struct tern_file_op){
		.kind = TERN_FILE_WRITE,
		.path = path,
		.parts = w->file_parts,
		.part_count = (int)w->job.param_count + 1,
		.done = saved,
	};
	if (r == 0)
		r = tern_env_file(w->env, &w->file);
	w->saving = r == 0;
	if (r < 0)
		save_failed(w, path, r);
	else if (w->opts.saving)
		w->opts.saving(w->opts.arg);
}

static int prepare_interrupted(struct tern_worker *w, struct tern_ps_text *why)
{
	int r = fetch(w, why);

	if (r < 0)
		return r;
	if (!are_numbers(w)) {
		snprintf(why->text, sizeof(why->text),
			"step %llu is not saved: its parameters are no longer numbers",
			(unsigned long long)w->version);
		return -EDOM;
	}
	if (w->final)
		return w->opts.finishing ? w->opts.finishing(w->opts.arg, why) : 0;
	return w->opts.interrupted ? w->opts.interrupted(w->opts.arg, steps_in(w), why)
				   : 0;
}

void finish_interrupted(struct tern_worker *w)
{
	const char *path = w->final ? w->opts.save_path : w->opts.interrupted_path;
	struct tern_ps_text why;

	tern_timer_clear(w->opts.ctx, &w->save_timer);
	if (!path || w->saving || w->version <= w->first_version ||
		w->finisher != w->opts.index)
		return;
	if (prepare_interrupted(w, &why) == 0)
		save(w, path);
	else if (w->opts.unsaved)
		w->opts.unsaved(w->opts.arg, why.text);
}

/* ---- the sequence ---- */

static void store(struct tern_worker *w)
{
	if (w->opts.save_path)
		save(w, w->opts.save_path);
	else
		worker_leave(w);
}

static void not_numbers(struct tern_worker *w)
{
	worker_fail(w, -EDOM,
		"after the last step the parameters or their loss are no longer numbers, "
		"nothing is saved: a lower learning rate may help");
}

void tern_evaluation_goes_on(struct tern_evaluation *evaluation)
{
	struct tern_worker *w =
		tern_container_of(evaluation, struct tern_worker, evaluation);

	w->worked_ns = tern_now_ns(w->env);
}

void tern_evaluation_end(struct tern_evaluation *evaluation, int status, const char *text)
{
	struct tern_worker *w =
		tern_container_of(evaluation, struct tern_worker, evaluation);

	if (w->over)
		return;
	if (status == -EDOM)
		not_numbers(w);
	else if (status < 0)
		worker_give_up(w, status, "%s", text);
	else
		store(w);
}

static void check(struct tern_task *task)
{
	struct tern_worker *w = tern_container_of(task, struct tern_worker, finish_task);

	w->finish_numbers = are_numbers(w);
}

static void checked(struct tern_task *task)
{
	struct tern_worker *w = tern_container_of(task, struct tern_worker, finish_task);
	struct tern_computer *computer = w->opts.computer;

	w->checking = false;
	if (w->over)
		return;
	w->evaluation = (struct tern_evaluation){
		.version = w->version, .params = versions_current(w)};
	if (!w->finish_numbers)
		not_numbers(w);
	else if (computer->ops->evaluate)
		computer->ops->evaluate(computer, &w->evaluation);
	else
		store(w);
}

/* Mean of the newest losses, at most WORKER_LOSS_WINDOW, in a ring buffer into which
 * `count` losses were written. */
static double mean_loss(const double *losses, uint64_t count)
{
	uint64_t n = TERN_MIN(count, (uint64_t)WORKER_LOSS_WINDOW);
	double sum = 0;

	for (uint64_t i = count - n; i < count; i++)
		sum += losses[i % WORKER_LOSS_WINDOW];
	return n ? sum / (double)n : (double)NAN;
}

static int set_slot_losses(struct tern_worker *w)
{
	uint32_t n = 0;

	w->slot_losses = calloc(w->slot_count + 1u, sizeof(*w->slot_losses));
	if (!w->slot_losses)
		return -ENOMEM;
	for (uint32_t i = 0; w->job.mode == TERN_MODE_SYNC && i < w->slot_count; i++) {
		const struct slot *slot = &w->slots[i];

		if (slot->loss_count)
			w->slot_losses[n++] = (struct tern_slot_loss){
				slot->number, mean_loss(slot->losses, slot->loss_count)};
	}
	w->results.slot_losses = w->slot_losses;
	w->results.slot_loss_count = n;
	return 0;
}

/* ---- async: steps that were applied ---- */

static int start_counting(struct tern_worker *w)
{
	w->uncounted_count = w->job.server_count;
	w->least_made = calloc(w->job.workers, sizeof(*w->least_made));
	w->most_made = calloc(w->job.workers, sizeof(*w->most_made));
	if (!w->least_made || !w->most_made)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->job.workers; i++)
		w->least_made[i] = tern_ps_job_steps_of(&w->job, i);
	return 0;
}

/* Reads "parts" of one server's message "applied", a list in the order of the workers.
 * All steps of a worker that is not in the list were applied. */
static int count_parts(struct tern_worker *w, const json_t *parts)
{
	size_t at = 0;

	for (uint32_t i = 0; i < w->job.workers; i++) {
		json_int_t worker = -1, least = 0, most = 0;
		json_int_t all = (json_int_t)tern_ps_job_steps_of(&w->job, i);

		if (at < json_array_size(parts) &&
			json_unpack(json_array_get(parts, at), "[I, I, I]", &worker,
				&least, &most) < 0)
			return -EPROTO;
		if (worker != i)
			least = most = all;
		else
			at++;
		if (least < 0 || least > most || most > all)
			return -EPROTO;
		w->least_made[i] = TERN_MIN(w->least_made[i], (uint64_t)least);
		w->most_made[i] = TERN_MAX(w->most_made[i], (uint64_t)most);
	}
	return at == json_array_size(parts) ? 0 : -EPROTO;
}

static void add_up(struct tern_worker *w)
{
	w->results.steps_made = w->results.steps_torn = 0;
	for (uint32_t i = 0; i < w->job.workers; i++) {
		w->results.steps_made += w->least_made[i];
		w->results.steps_torn += w->most_made[i] - w->least_made[i];
	}
}

void finish_start(struct tern_worker *w)
{
	struct tern_computer *computer = w->opts.computer;

	worker_enter(w, WORKER_FINISHING);
	w->results.steps = w->version;
	w->results.loss = mean_loss(w->losses, w->loss_count);
	w->results.first_loss = w->loss_count ? w->first_loss : (double)NAN;
	if (set_slot_losses(w) < 0) {
		worker_give_up(w, -ENOMEM, "no memory for the losses of the slots");
		return;
	}
	w->results.bytes = w->byte_count;
	report_say(w);
	if (computer->ops->complete)
		computer->ops->complete(computer, versions_current(w));
	if (w->job.mode == TERN_MODE_ASYNC)
		tern_talk_say(&w->servers[0].talk, json_pack("{s:s}", "type", "done"));
	finish_next(w);
}

void finish_next(struct tern_worker *w)
{
	struct tern_ps_text why;

	if (w->over || w->state != WORKER_FINISHING || w->results.finisher)
		return;
	if (w->finisher != w->opts.index) {
		if (w->finished)
			worker_leave(w);
		return;
	}
	if (w->job.mode == TERN_MODE_ASYNC && !w->all_done)
		return;
	w->results.finisher = true;
	if (w->opts.finishing && w->opts.finishing(w->opts.arg, &why) < 0) {
		worker_give_up(w, -EIO, "%s", why.text);
		return;
	}
	w->results.steps_made = w->job.steps;
	if (w->job.mode == TERN_MODE_SYNC)
		finish_run(w);
	else if (start_counting(w) < 0)
		worker_give_up(
			w, -ENOMEM, "no memory to count the steps that were applied");
	else
		versions_pull(w);
}

void finish_on_applied(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;

	if (s->counted || !w->uncounted_count ||
		count_parts(w, json_object_get(message, "parts")) < 0) {
		worker_fail(w, -EPROTO,
			"server %u sent a wrong list of applied steps: expected it once, "
			"in the order of the workers, with no more steps of each than "
			"the job has",
			s->number);
		return;
	}
	s->counted = true;
	if (--w->uncounted_count > 0)
		return;
	add_up(w);
	/* If the parameters that versions_pull() asked for are not all here yet,
	 * versions_complete() goes on. */
	if (w->version > w->my_steps)
		finish_run(w);
}

void finish_run(struct tern_worker *w)
{
	struct tern_ps_text why;
	int r = fetch(w, &why);

	if (r < 0) {
		worker_give_up(w, r, "%s", why.text);
		return;
	}
	w->final = true;
	w->worked_ns = tern_now_ns(w->env);
	w->finish_task.run = check;
	w->finish_task.done = checked;
	w->finish_task.cost_ns = CHECK_COST_NS;
	r = tern_env_submit(w->env, &w->finish_task);
	w->checking = r == 0;
	if (r == -ENOTSUP) { /* the environment of a program has no threads for tasks */
		check(&w->finish_task);
		checked(&w->finish_task);
	} else if (r < 0) {
		worker_give_up(
			w, r, "no thread for computation: %s", tern_status_text(r));
	}
}

int finish_init(struct tern_worker *w)
{
	w->fetched_version = UINT64_MAX;
	if (!are_on_device(w))
		return 0;
	w->fetched = malloc(w->job.element_count * sizeof(*w->fetched));
	return w->fetched ? 0 : -ENOMEM;
}

void finish_fini(struct tern_worker *w)
{
	forget_file(w);
	free(w->fetched);
	free(w->slot_losses);
	free(w->least_made);
	free(w->most_made);
}
