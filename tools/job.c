/* SPDX-License-Identifier: Apache-2.0 */
/* See job.h. job_check() checks what can be checked without reading the data; the worker
 * that reads the data checks the rest. */
#include "tools/job.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "client/models/model.h"
#include "tools/earlier.h"

const char *const job_on_stall[] = {"reassign", "wait", "end", NULL};
const char *const job_on_nan[] = {"stop", "skip", NULL};

int job_parse_mode(const char *text, void *at, struct message *why)
{
	struct job_mode *mode = at;

	return tern_mode_parse(text, &mode->kind, &mode->ssp)
		       ? 0
		       : options_refuse(why, "must be " TERN_MODES);
}

/* Checks that `path` is a readable file; if `directory` is set, a readable directory is
 * right, too. NULL (the option was not given) is right. */
static int check_path(
	const char *option, const char *path, bool directory, struct message *error)
{
	struct stat st;

	if (!path)
		return 0;
	if (stat(path, &st) < 0 || access(path, R_OK) < 0)
		return options_refuse(
			error, "--%s %.300s: %s", option, path, strerror(errno));
	/* A device file may have no end, and a pipe could be read by one worker only, but
	 * every worker reads the whole file. */
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return options_refuse(error, "--%s %.300s: must be a file", option, path);
	if (S_ISDIR(st.st_mode) && !directory)
		return options_refuse(error,
			"--%s %.300s: is a directory, must be a file", option, path);
	return 0;
}

/* True if `path` is the file that an interrupted run of this same job has left. */
static bool is_interrupted_run(
	const struct job_settings *job, const char *path, const char *name)
{
	char job_name[EARLIER_NAME_BYTES];
	uint64_t step;

	if (strcmp(name, JOB_INTERRUPTED) != 0)
		return false;
	earlier_name(job, job_name);
	return earlier_is_of(path, job_name, &step);
}

/* Refuses to replace the files of an earlier job, which may be hours of training. The
 * user is not asked, since the job may run unattended. */
static int check_earlier(const struct job_settings *job, struct message *error)
{
	static const char *const names[] = {JOB_SAVED, JOB_INTERRUPTED};
	char path[4200];

	if (!job->save || job->overwrite)
		return 0;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		snprintf(path, sizeof(path), "%.4000s/%s", job->save, names[i]);
		if (access(path, F_OK) == 0 && !is_interrupted_run(job, path, names[i]))
			return options_refuse(error,
				"--save %.300s: an earlier job has saved its %s there: "
				"choose another directory, or give --overwrite",
				job->save, names[i]);
	}
	return 0;
}

/* Checks for --save that files can be created in the directory `path` or, if it does not
 * exist, that the directory can be created. */
static int check_save(const char *path, struct message *error)
{
	struct stat st;
	char parent[4096];
	char *slash;

	if (!path)
		return 0;
	if (snprintf(parent, sizeof(parent), "%s", path) >= (int)sizeof(parent))
		return options_refuse(error, "--save: the path is too long");
	if (stat(path, &st) < 0) {
		if (errno != ENOENT)
			return options_refuse(
				error, "--save %.300s: %s", path, strerror(errno));
		/* The parent of "a/b/" is "a", that of "b" is ".". */
		while (strlen(parent) > 1 && parent[strlen(parent) - 1] == '/')
			parent[strlen(parent) - 1] = '\0';
		slash = strrchr(parent, '/');
		if (slash)
			slash[slash == parent] = '\0';
		else
			strcpy(parent, ".");
		if (stat(parent, &st) < 0)
			return options_refuse(
				error, "--save %.300s: %s", path, strerror(errno));
	}
	if (!S_ISDIR(st.st_mode))
		return options_refuse(error, "--save %.300s: not a directory", path);
	if (access(parent, W_OK | X_OK) < 0)
		return options_refuse(error, "--save %.300s: %s", path, strerror(errno));
	return 0;
}

/* Checks the options about model and data, but not whether the files exist. Sets *context to
 * the number of characters that a charlm looks at; 0: another model. */
static int check_data_words(
	const struct job_settings *job, int *context, struct message *error)
{
	struct tern_data_error why;

	if (!job->model)
		return options_refuse(error,
			"--model is missing: softmax, logreg, mlp:WIDTH,... or "
			"charlm:CONTEXT,EMBED,HIDDEN");
	*context = tern_model_context(job->model, &why);
	if (*context < 0)
		return options_refuse(
			error, "--model %.100s: %.380s", job->model, why.text);
	if (!job->data)
		return options_refuse(
			error, "--data is missing: a file of records or text");
	if (job->test && job->split.given)
		return options_refuse(error, "--test and --split exclude each other");
	if (job->test && *context)
		return options_refuse(error,
			"--test: for charlm use --split: both parts need the same "
			"characters");
	if (job->test && job->labels)
		return options_refuse(
			error, "--test has no labels file: use --split with --labels");
	if (job->labels && *context)
		return options_refuse(error,
			"--labels %.300s: charlm trains on text, which has none",
			job->labels);
	return 0;
}

static int check_data_files(
	const struct job_settings *job, int context, struct message *error)
{
	int r = check_path("data", job->data, context > 0, error);

	if (r == 0)
		r = check_path("labels", job->labels, false, error);
	return r ? r : check_path("test", job->test, false, error);
}

int job_check_data(const struct job_settings *job, struct message *error)
{
	int context = 0, r = check_data_words(job, &context, error);

	return r ? r : check_data_files(job, context, error);
}

int job_check(struct job_settings *job, struct message *error)
{
	int context = 0, r = check_data_words(job, &context, error);

	if (r)
		return r;
	if (job->eval_every && !job->test && !job->split.given)
		return options_refuse(error,
			"--eval-every %llu: there is no data to test on: give --test or "
			"--split",
			(unsigned long long)job->eval_every);
	if (job->generate && !context)
		return options_refuse(error,
			"--generate %llu: only charlm writes text, the model is %.100s",
			(unsigned long long)job->generate, job->model);
	if (job->clip_norm > 0 && job->mode.kind != TERN_MODE_SYNC)
		return options_refuse(error, "--clip-norm needs --mode sync");
	if (!job->slots)
		job->slots = job->workers;
	r = optimizer_check(&job->optimizer, job->steps, error);
	if (r == 0)
		r = fabric_check(&job->fabric, error);
	if (r == 0)
		r = device_check_arithmetic(job->arithmetic, &job->device, error);
	if (r == 0)
		r = check_data_files(job, context, error);
	if (r == 0)
		r = check_path("init-from", job->init_from, false, error);
	if (r == 0)
		r = check_save(job->save, error);
	if (r == 0)
		r = check_earlier(job, error);
	return r;
}

uint64_t job_drain_ns(double within_s, unsigned eighths)
{
	return (uint64_t)(within_s * 1e9 / 8 * eighths);
}
