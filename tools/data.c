/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads data sets from paths. A directory stands for all regular files in it whose names
 * do not begin with a dot, concatenated in the order of their names. Symbolic links are
 * skipped: their targets are either in the directory already or do not belong to it.
 */
#include "tools/data.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/util.h"
#include "client/models/model.h"
#include "tools/host_file.h"

static void free_file(struct tern_data_file *file)
{
	free((void *)file->data);
}

/* ---- reading files ---- */

/* Reads a whole file into file->data and file->bytes. */
static int read_one(const char *path, struct tern_data_file *file, struct message *error)
{
	void *data;
	int r = host_file_read(path, file->stop, file->stop_arg, &data, &file->bytes);

	if (r == 0)
		file->data = data;
	else if (r != -ECANCELED)
		r = options_refuse(error, "%.400s: %s", path, strerror(-r));
	return r;
}

static int append_one(const char *path, struct tern_data_file *all, struct message *error)
{
	TERN_CLEANUP(free_file)
	struct tern_data_file one = {.stop = all->stop, .stop_arg = all->stop_arg};
	char *more;
	int r = read_one(path, &one, error);

	if (r)
		return r;
	more = realloc((void *)all->data, all->bytes + one.bytes + 1);
	if (!more)
		return options_refuse(
			error, "%.400s: not enough memory to read it", path);
	memcpy(more + all->bytes, one.data, one.bytes);
	all->data = more;
	all->bytes += one.bytes;
	return 0;
}

static int plain_files(const struct dirent *entry)
{
	return entry->d_name[0] != '.' &&
	       (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN);
}

/* Compares names by bytes, independent of the locale, so that every machine reads the
 * texts in the same order. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int append_all(const char *directory, struct dirent **entries, int count,
	struct tern_data_file *all, struct message *error)
{
	for (int i = 0; i < count; i++) {
		char path[4096];
		struct stat st;
		int r;

		if (snprintf(path, sizeof(path), "%s/%s", directory,
			    entries[i]->d_name) >= (int)sizeof(path))
			return options_refuse(error,
				"%.400s: the path of a file in this directory is too "
				"long",
				directory);
		/* Some file systems leave d_type unknown, so lstat() tells whether this
		 * is a regular file. */
		if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode))
			continue;
		r = append_one(path, all, error);
		if (r)
			return r;
	}
	return 0;
}

static int read_directory(
	const char *directory, struct tern_data_file *all, struct message *error)
{
	struct dirent **entries;
	int count = scandir(directory, &entries, plain_files, by_name);
	int r;

	if (count < 0)
		return options_refuse(error, "%.400s: %s", directory, strerror(errno));
	r = append_all(directory, entries, count, all, error);
	for (int i = 0; i < count; i++)
		free(entries[i]);
	free(entries);
	if (r == 0 && !all->data)
		return options_refuse(
			error, "%.400s: the directory has no files", directory);
	return r;
}

/* Reads file->path, a file or a directory. Does nothing if the path is NULL. */
static int read_path(struct tern_data_file *file, struct message *error)
{
	struct stat st;

	if (!file->path)
		return 0;
	if (stat(file->path, &st) == 0 && S_ISDIR(st.st_mode))
		return read_directory(file->path, file, error);
	return read_one(file->path, file, error);
}

/* ---- data sets ---- */

/* A callback that returns true if the reading is to be stopped. */
struct stop {
	bool (*asked)(void *arg);
	void *arg;
};

static int read_set(const struct stop *stop, const char *path, const char *labels_path,
	uint32_t context, uint32_t min_width, struct tern_dataset **out,
	struct message *error)
{
	TERN_CLEANUP(free_file)
	struct tern_data_file data = {
		.path = path, .stop = stop->asked, .stop_arg = stop->arg};
	TERN_CLEANUP(free_file)
	struct tern_data_file labels = {
		.path = labels_path, .stop = stop->asked, .stop_arg = stop->arg};
	struct tern_data_error why;
	int r = read_path(&data, error);

	if (r == 0)
		r = read_path(&labels, error);
	if (r)
		return r;
	r = tern_dataset_read(
		&data, labels_path ? &labels : NULL, context, min_width, out, &why);
	switch (r) {
	case 0:
	case -ECANCELED:
		return r;
	case -ENOTSUP:
		return options_refuse(
			error, "%.400s: this tern was built without bzip2", path);
	case -ENOMEM:
		return options_refuse(
			error, "%.400s: not enough memory to read it", path);
	default:
		return options_refuse(error, "%s", why.text);
	}
}

/* Replaces data->train by its first A records, and sets data->test to its last B records
 * (--split A:B). */
static int split(
	const struct job_settings *job, struct job_data *data, struct message *error)
{
	struct tern_dataset *whole = data->train;
	uint64_t a = job->split.a, b = job->split.b;
	int r;

	data->train = NULL;
	if (a > whole->count || b > whole->count - a)
		r = options_refuse(error, "--split %llu:%llu: the data has %llu records",
			(unsigned long long)a, (unsigned long long)b,
			(unsigned long long)whole->count);
	else if (tern_dataset_range(whole, 0, a, &data->train) ||
		 tern_dataset_range(whole, whole->count - b, b, &data->test))
		r = options_refuse(error, "--split: not enough memory for the two parts");
	else
		r = 0;
	tern_dataset_free(whole);
	return r;
}

static int read_test(const struct stop *stop, const struct job_settings *job,
	struct job_data *data, struct message *error)
{
	const struct tern_dataset *train = data->train;
	int r = read_set(stop, job->test, NULL, 0, train->width, &data->test, error);

	if (r)
		return r;
	if (data->test->width > train->width)
		return options_refuse(error,
			"%.300s: has %u features, the training data has %u", job->test,
			data->test->width, train->width);
	if (data->test->class_count > train->class_count)
		return options_refuse(error,
			"%.300s: has %u classes, the training data has %u", job->test,
			data->test->class_count, train->class_count);
	return 0;
}

int job_data_read(const struct job_settings *job, bool (*asked)(void *arg), void *arg,
	struct job_data *data, struct message *error)
{
	const struct stop stop = {asked, arg};
	struct tern_data_error why;
	int context = tern_model_context(job->model, &why);
	int r;

	*data = (struct job_data){0};
	if (context < 0)
		return options_refuse(
			error, "--model %.100s: %.380s", job->model, why.text);
	r = read_set(
		&stop, job->data, job->labels, (uint32_t)context, 0, &data->train, error);
	if (r == 0 && job->split.given)
		r = split(job, data, error);
	else if (r == 0 && job->test)
		r = read_test(&stop, job, data, error);
	return r;
}

void job_data_free(struct job_data *data)
{
	if (data->train)
		tern_dataset_free(data->train);
	if (data->test)
		tern_dataset_free(data->test);
}
