/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern evaluator`: watches the directory of a job's snapshots, and evaluates each one on the
 * test data. It belongs to no job: it only reads files that are published, whose manifests
 * are written last, and holds no lock. So training does not wait for it, whatever it does,
 * and a snapshot may be removed while it is read. It runs at a nice value of 19, since it
 * may share the processors with the job.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/escape.h"
#include "client/engine_test.h"
#include "tools/checkpoint.h"
#include "tools/data.h"
#include "tools/evaluator_best.h"
#include "tools/role.h"

#define LOOK_MS 1000 /* how often the directory is listed */

struct evaluator_settings {
	struct job_settings job; /* must be first: JOB_DATA_OPTIONS has offsets into it */
	const char *snapshots, *save_best;
	bool all, once;
	uint64_t nice;
};

static const struct option options[] = {
	OPTION(TEXT, "snapshots", "DIR",
		"the directory to watch: that which the job has as --snapshots",
		struct evaluator_settings, snapshots),
	OPTION(FLAG, "all", NULL,
		"begin with the oldest snapshot that is there, and not with the newest",
		struct evaluator_settings, all),
	OPTION(FLAG, "once", NULL,
		"evaluate the newest snapshot (with --all: all that are there), and end",
		struct evaluator_settings, once),
	OPTION(TEXT, "save-best", "FILE",
		"write the parameters with the highest accuracy into this file as "
		"safetensors",
		struct evaluator_settings, save_best),
	OPTION(COUNT, "nice", "N",
		"nice value of this process; it never becomes lower than it was",
		struct evaluator_settings, nice, .initial = "19", .max = 19),
	JOB_DATA_OPTIONS,
	JOB_OPTION(CUSTOM, "device", "cpu|cuda[:N]", device,
		"where to evaluate; cuda: GPU 0", .initial = "cpu",
		.parse = device_parse),
	ARITHMETIC_OPTION(struct job_settings, arithmetic),
	JOB_OPTION(FLAG, "json", NULL, json, "one JSON object per line"),
	LOG_LEVEL_OPTION(struct job_settings, log_level),
	OPTION_END,
};

struct evaluator {
	struct role role;
	const struct evaluator_settings *settings;
	struct job_data data;
	uint64_t digest; /* of the training data */
	struct device device;
	struct tern_model *model;
	struct tern_engine *engine;
	struct engine_test test;
	struct evaluator_best best;
	/* The snapshots of the last look, which are evaluated, or are not to be. */
	struct snapshots_found known;
	bool begun;       /* what was there at the start is dealt with: all else is new */
	bool waits;       /* a note has said that there is no snapshot yet */
	uint64_t version; /* number of the parameters that the engine has had last */
	uint64_t evaluated, damaged;
	uint64_t step; /* of the last evaluation */
};

enum outcome {
	EVALUATED,
	GONE, /* the job has removed the snapshot */
	DAMAGED,
	ENDED, /* this process is to end: the role says why */
};

/* ---- does the snapshot belong to the model and the data? ---- */

/* The job of the snapshot with the tensors of this model, which differ only in name and shape. */
static int describe_own(
	const struct evaluator *e, const struct tern_ps_job *job, struct tern_ps_job *out)
{
	size_t count;
	const struct tern_param *params = tern_model_params(e->model, &count);

	*out = *job;
	out->params = calloc(count + 1, sizeof(*out->params));
	if (!out->params)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		out->params[i] = i < job->param_count ? job->params[i] : params[i];
		out->params[i].name = params[i].name;
		out->params[i].shape = params[i].shape;
	}
	out->param_count = (uint32_t)count;
	out->element_count = tern_model_size(e->model);
	/* A program of its own may not have named its data. */
	if (job->records) {
		out->records = e->data.train->count;
		out->data = e->digest;
	}
	return 0;
}

/* Other training data may have other symbols, features or classes, so their test set would
 * be given to the model in another form than it was trained on. */
static int check_job(
	const struct evaluator *e, const struct checkpoint *c, struct tern_ps_text *why)
{
	struct tern_ps_job own;
	bool differs;

	if (describe_own(e, &c->snapshot.job, &own) < 0) {
		snprintf(why->text, sizeof(why->text), "no memory");
		return -ENOMEM;
	}
	differs = tern_ps_job_differs(&c->snapshot.job, &own, "this evaluator", why);
	free(own.params);
	return differs ? -EINVAL : 0;
}

/* ---- evaluating ---- */

static void tell(struct evaluator *e, const struct checkpoint *c,
	const struct engine_test_results *results)
{
	const struct tern_snapshot *s = &c->snapshot;
	json_t *event = json_pack("{ss sI sI ss}", "event", "evaluated", "step",
		(json_int_t)s->id.step, "steps", (json_int_t)s->job.steps, "snapshot",
		tern_snapshot_short_name(s->id).text);

	report_number(event, "test_loss", results->loss);
	report_number(event, "test_accuracy", results->accuracy);
	if (isfinite(results->auc))
		report_number(event, "test_auc", results->auc);
	role_report(&e->role, event);
}

/* Reports an event with a line of text: "note" or "warning". */
static void say(struct evaluator *e, const char *event, const char *text)
{
	role_report(&e->role,
		json_pack("{ss so}", "event", event, "text", report_text(text)));
}

/* A file that cannot be written, such as on a full disk, is tried again with the next better
 * parameters. */
static void save_best(struct evaluator *e, const struct checkpoint *c, const float *flat,
	double accuracy)
{
	int r = evaluator_best_take(&e->best, c, flat, accuracy);
	char text[500];

	if (r < 0) {
		snprintf(text, sizeof(text),
			"--save-best %.300s: the parameters of step %llu are not saved: "
			"%s",
			e->best.path, (unsigned long long)c->snapshot.id.step,
			strerror(-r));
		say(e, "warning", text);
	} else if (r > 0) {
		role_report(&e->role, json_pack("{ss so sI sI}", "event", "saved", "path",
					      report_text(e->best.path), "step",
					      (json_int_t)c->snapshot.id.step, "steps",
					      (json_int_t)c->snapshot.job.steps));
	}
}

static enum outcome evaluate(
	struct evaluator *e, const struct checkpoint *c, const float *flat)
{
	struct tern_engine_params params = {.values = flat, .version = ++e->version};
	struct engine_test_results results;
	int r = engine_test_run(&e->test, &params, &results);

	if (*e->engine->note)
		role_note(&e->role, e->engine->note);
	*e->engine->note = '\0';
	if (r == -ECANCELED)
		return ENDED;
	/* -EDOM: the loss is not a number, since the job has diverged: this is a result, too. */
	if (r < 0 && r != -EDOM) {
		role_fail(&e->role, false, "%s: %s",
			tern_snapshot_short_name(c->snapshot.id).text, e->engine->error);
		return ENDED;
	}
	tell(e, c, &results);
	save_best(e, c, flat, results.accuracy);
	e->step = c->snapshot.id.step;
	e->evaluated++;
	return EVALUATED;
}

/* The snapshot could not be read because of `why`, which may be that it was removed. */
static enum outcome pass_over(
	struct evaluator *e, struct tern_snapshot_id id, const char *why)
{
	bool gone = checkpoint_is_gone(e->settings->snapshots, id);
	char text[600];

	if (role_is_asked(&e->role))
		return ENDED;
	if (gone)
		snprintf(text, sizeof(text),
			"%s: the job has removed it while it was read: it is not "
			"evaluated",
			tern_snapshot_short_name(id).text);
	else
		snprintf(text, sizeof(text), "%s is damaged, and not evaluated: %.480s",
			tern_snapshot_short_name(id).text, why);
	say(e, gone ? "note" : "warning", text);
	e->damaged += !gone;
	return gone ? GONE : DAMAGED;
}

static enum outcome look_into(struct evaluator *e, struct checkpoint *c)
{
	struct tern_snapshot_id id = c->snapshot.id;
	struct tern_ps_text why;
	struct message error;
	enum outcome outcome;
	float *flat;
	int r = check_job(e, c, &why);

	if (r == -ENOMEM) {
		role_fail(&e->role, false, "%s: %s", tern_snapshot_short_name(id).text,
			why.text);
		return ENDED;
	}
	if (r < 0) {
		role_fail(&e->role, true, "%s is of another job: %s",
			tern_snapshot_short_name(id).text, why.text);
		return ENDED;
	}
	c->stop = role_is_asked;
	c->stop_arg = &e->role;
	flat = checkpoint_read_params(c, &error);
	outcome = flat ? evaluate(e, c, flat) : pass_over(e, id, error.text);
	free(flat);
	return outcome;
}

static enum outcome take(struct evaluator *e, struct tern_snapshot_id id)
{
	struct tern_ps_text why;
	struct checkpoint c;
	enum outcome outcome;

	if (checkpoint_read(e->settings->snapshots, id, &c, &why) < 0)
		return pass_over(e, id, why.text);
	outcome = look_into(e, &c);
	checkpoint_close(&c);
	return outcome;
}

/* ---- watching ---- */

static bool is_wanted(
	const struct evaluator *e, const struct snapshots_found *found, size_t i)
{
	if (!e->begun && !e->settings->all)
		return i + 1 == found->count;
	return !snapshots_has(&e->known, found->ids[i]);
}

/* Evaluates the new snapshots, the oldest first. False: this process is to end. */
static bool take_new(struct evaluator *e, const struct snapshots_found *found)
{
	bool gone = false;

	for (size_t i = 0; i < found->count; i++) {
		enum outcome outcome;

		if (!is_wanted(e, found, i))
			continue;
		outcome = take(e, found->ids[i]);
		if (outcome == ENDED || role_is_asked(&e->role))
			return false;
		gone = gone || outcome == GONE;
	}
	/* If the newest one is gone, a newer one is there, or comes. */
	e->begun = e->begun || e->settings->all || !gone;
	return true;
}

/* Lists the directory and evaluates what is new. False: this process is to end. */
static bool look(struct evaluator *e)
{
	const char *directory = e->settings->snapshots;
	struct snapshots_found found;
	int r = snapshots_list(directory, &found);
	bool goes_on;

	if (r < 0) {
		role_fail(&e->role, false, "--snapshots %.300s: %s", directory,
			strerror(-r));
		return false;
	}
	goes_on = take_new(e, &found);
	free(e->known.ids);
	e->known = found;
	return goes_on;
}

/* Ends --once. False: the newest snapshot was removed while it was read, so there is
 * another one. */
static bool is_done(struct evaluator *e)
{
	if (e->known.count == 0)
		role_fail(&e->role, true,
			"--snapshots %.300s: no complete snapshot is there: expected the "
			"directory that a job has as --snapshots",
			e->settings->snapshots);
	else if (e->damaged)
		e->role.code = EXIT_JOB; /* the warning has said why */
	return e->known.count == 0 || e->begun;
}

/* Says the first time that there is nothing to evaluate yet. */
static void note_wait(struct evaluator *e)
{
	char text[400];

	if (e->waits || e->known.count > 0)
		return;
	e->waits = true;
	snprintf(text, sizeof(text),
		"no complete snapshot is in %.300s yet: waiting for the first one",
		e->settings->snapshots);
	say(e, "note", text);
}

static void watch(struct evaluator *e)
{
	while (look(e)) {
		struct pollfd fd = {.fd = e->role.signal_fd, .events = POLLIN};

		if (e->settings->once && is_done(e))
			return;
		note_wait(e);
		poll(&fd, 1, LOOK_MS);
		if (role_is_asked(&e->role))
			return;
	}
}

static void describe(struct role *role, char *text, size_t bytes)
{
	const struct evaluator *e = (const struct evaluator *)role;
	size_t n = (size_t)snprintf(text, bytes, "%llu snapshot%s evaluated",
		(unsigned long long)e->evaluated, e->evaluated == 1 ? "" : "s");

	if (e->evaluated)
		n += (size_t)snprintf(text + n, bytes - n, ", the last of step %llu",
			(unsigned long long)e->step);
	if (e->damaged)
		snprintf(text + n, bytes - n, ", %llu damaged",
			(unsigned long long)e->damaged);
}

/* ---- starting ---- */

/* Only the main thread computes, so its nice value is that of the evaluation. */
static void be_nice(uint64_t nice)
{
	if (getpriority(PRIO_PROCESS, 0) < (int)nice)
		setpriority(PRIO_PROCESS, 0, (int)nice);
}

static int check(const struct evaluator_settings *s, struct message *error)
{
	struct stat st;

	if (!s->snapshots)
		return options_refuse(error,
			"--snapshots is missing: the directory that the job has as "
			"--snapshots");
	if (stat(s->snapshots, &st) < 0)
		return options_refuse(error,
			"--snapshots %.300s: %s: begin the job first, or make the "
			"directory",
			s->snapshots, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return options_refuse(
			error, "--snapshots %.300s: not a directory", s->snapshots);
	if (job_check_data(&s->job, error))
		return -EINVAL;
	if (!s->job.test && !s->job.split.given)
		return options_refuse(
			error, "there is no data to evaluate on: give --test or --split");
	return device_check_arithmetic(s->job.arithmetic, &s->job.device, error);
}

static int read_data(struct evaluator *e, struct message *error)
{
	const struct job_settings *job = &e->settings->job;
	struct tern_data_error why;
	int r = job_data_read(job, role_is_asked, &e->role, &e->data, error);

	if (r)
		return r;
	if (tern_model_new(job->model, e->data.train, &e->model, &why))
		return options_refuse(
			error, "--model %.100s: %.380s", job->model, why.text);
	e->digest = tern_dataset_digest(e->data.train);
	return 0;
}

static int open_best(struct evaluator *e, struct message *error)
{
	struct message found;
	int r = evaluator_best_open(e->settings->save_best,
		tern_model_size(e->model) * sizeof(float) + 1, &e->best, &found, error);

	if (r == 0 && *found.text)
		say(e, "note", found.text);
	return r;
}

static int make_engine(struct evaluator *e, struct message *error)
{
	int r = device_engine(&e->device, e->model, TERN_ENGINE_ROWS, &e->engine, error);

	if (r)
		return r;
	e->test = (struct engine_test){.engine = e->engine,
		.set = e->data.test,
		.stop = role_is_asked,
		.arg = &e->role};
	r = engine_test_make_room(&e->test);
	if (r < 0)
		options_refuse(error, "no memory for the scores of the test data");
	return r;
}

static int prepare(struct evaluator *e)
{
	const struct job_settings *job = &e->settings->job;
	struct message error;
	int r;

	be_nice(e->settings->nice);
	r = device_find("device", &job->device, 0, job->arithmetic, &e->device, &error);
	if (r == 0)
		r = read_data(e, &error);
	if (r == 0)
		r = open_best(e, &error);
	if (r == 0)
		r = make_engine(e, &error);
	if (r && r != -ECANCELED)
		role_fail(&e->role, r == -EINVAL, "%s", error.text);
	return r;
}

static int evaluator_run(int argc, char **argv)
{
	struct evaluator_settings settings = {.all = false};
	struct evaluator e = {.settings = &settings};
	struct message error;

	if (options_parse(options, argc, argv, &settings, &error) ||
		log_open("evaluator", settings.job.log_level, &error) ||
		check(&settings, &error))
		return command_refuse(&evaluator_command, "%s", error.text);
	if (role_open_alone(&e.role, &evaluator_command, settings.job.json) == 0) {
		e.role.describe = describe;
		if (prepare(&e) == 0)
			watch(&e);
	}
	free(e.known.ids);
	engine_test_fini(&e.test);
	tern_engine_free(e.engine);
	tern_model_free(e.model);
	job_data_free(&e.data);
	return role_close(&e.role);
}

const struct command evaluator_command = {
	.name = "evaluator",
	.usage = "--snapshots DIR --model SPEC --data PATH --test PATH|--split A:B "
		 "[options]",
	.summary = "evaluate the snapshots of a job as they are published",
	.options = options,
	.run = evaluator_run,
};
