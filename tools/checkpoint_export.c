/* SPDX-License-Identifier: Apache-2.0 */
/* `tern checkpoint export`: writes the parameters of a snapshot as a safetensors file,
 * with the bytes that the job would write if it ended at that step (ps/params_file.h), and the job's
 * blob (ps/blob.h) as it was given. */
#include "tools/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/host_file.h"
#include "tools/report.h"

static uint64_t bytes_of(const struct iovec *parts, int count)
{
	uint64_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += parts[i].iov_len;
	return bytes;
}

/* The directory of a path; the caller frees it. NULL: no memory. */
static char *directory_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("./");
}

int checkpoint_check_target(
	const char *option, const char *path, uint64_t bytes, struct message *error)
{
	struct stat st;
	char *directory;
	int r;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return options_refuse(
			error, "%s %.300s: expected the path of a file", option, path);
	directory = directory_of(path);
	r = directory ? host_file_probe(directory, bytes) : -ENOMEM;
	free(directory);
	return r < 0 ? options_refuse(error, "%s %.300s: %s", option, path, strerror(-r))
		     : 0;
}

static int check_target(const struct checkpoint_call *call, const char *option,
	const char *path, uint64_t bytes, struct message *error)
{
	struct stat st;

	if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && !call->overwrite)
		return options_refuse(error,
			"%s %.300s: the file is there already: --overwrite replaces it",
			option, path);
	return checkpoint_check_target(option, path, bytes, error);
}

static bool have_one_inode(const char *a, const char *b)
{
	struct stat at_a, at_b;

	return stat(a, &at_a) == 0 && stat(b, &at_b) == 0 && at_a.st_dev == at_b.st_dev &&
	       at_a.st_ino == at_b.st_ino;
}

static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* True if both paths lead to one file, which need not be there yet. */
static bool is_one_file(const char *a, const char *b)
{
	char *of_a, *of_b;
	bool is_one;

	if (strcmp(a, b) == 0 || have_one_inode(a, b))
		return true;
	if (strcmp(name_of(a), name_of(b)) != 0)
		return false;
	of_a = directory_of(a);
	of_b = directory_of(b);
	is_one = of_a && of_b && have_one_inode(of_a, of_b);
	free(of_a);
	free(of_b);
	return is_one;
}

/* Tells a wrong --to or --blob before the parts are read. */
static int check_targets(const struct checkpoint_call *call, const struct checkpoint *c,
	struct message *error)
{
	const struct tern_blob *blob = &c->snapshot.blob;

	if (call->blob && !blob->step)
		return options_refuse(error,
			"--blob %.300s: snapshot %s has no blob: its program gave none",
			call->blob, tern_snapshot_short_name(c->snapshot.id).text);
	if (call->blob && call->to && is_one_file(call->to, call->blob))
		return options_refuse(error,
			"--blob %.300s: --to names the same file: expected two files",
			call->blob);
	if (call->blob && check_target(call, "--blob", call->blob, blob->bytes, error))
		return -1;
	return call->to ? check_target(call, "--to", call->to,
				  c->plan.element_count * sizeof(float) + 1, error)
			: 0;
}

/* Adds the blob to an event, in which "step" and "bytes" are those of the parameters. */
static void tell_blob(
	json_t *event, const struct checkpoint_call *call, const struct tern_blob *blob)
{
	json_object_set_new(event, "blob", report_text(call->blob));
	json_object_set_new(event, "blob_step", json_integer((json_int_t)blob->step));
	json_object_set_new(event, "blob_bytes", json_integer((json_int_t)blob->bytes));
}

static void tell(struct checkpoint_call *call, const struct checkpoint *c, uint64_t bytes)
{
	const struct tern_snapshot *s = &c->snapshot;
	struct tern_snapshot_name name = tern_snapshot_short_name(s->id);

	if (call->out.json) {
		json_t *event = json_pack("{ss sI so sI sI}", "snapshot", name.text,
			"step", (json_int_t)s->id.step, "file", report_text(call->to),
			"bytes", (json_int_t)bytes, "tensors",
			(json_int_t)s->job.param_count);

		if (call->blob)
			tell_blob(event, call, &s->blob);
		output_json(event);
	} else {
		output_line(&call->out,
			"%s: the parameters of %s, after step %llu: %u tensors, %llu "
			"bytes",
			call->to, name.text, (unsigned long long)s->id.step,
			s->job.param_count, (unsigned long long)bytes);
	}
}

int checkpoint_write_params(const struct tern_ps_job *job, const float *flat,
	const struct tern_safetensors_metadata *more, size_t more_count, const char *path,
	uint64_t *bytes)
{
	struct tern_file_op op = {.kind = TERN_FILE_WRITE,
		.path = path,
		.part_count = (int)job->param_count + 1};
	struct iovec *parts;
	int r = tern_params_file_build(job, flat, more, more_count, &parts);

	if (r < 0)
		return r;
	op.parts = parts;
	*bytes = bytes_of(parts, op.part_count);
	host_file_run(&op);
	tern_params_file_free(parts);
	return op.status;
}

static int write_params(
	struct checkpoint_call *call, const struct checkpoint *c, const float *flat)
{
	uint64_t bytes;
	int r = checkpoint_write_params(
		&c->snapshot.job, flat, NULL, 0, call->to, &bytes);

	if (r < 0)
		return command_fail(
			&checkpoint_command, "--to %.300s: %s", call->to, strerror(-r));
	tell(call, c, bytes);
	return EXIT_OK;
}

static int write_blob(struct checkpoint_call *call, const struct checkpoint *c)
{
	const struct tern_blob *blob = &c->snapshot.blob;
	struct tern_snapshot_name name = tern_snapshot_short_name(c->snapshot.id);
	struct iovec part = {blob->data, blob->bytes};
	struct tern_file_op op = {.kind = TERN_FILE_WRITE,
		.path = call->blob,
		.parts = &part,
		.part_count = 1};

	host_file_run(&op);
	if (op.status < 0)
		return command_fail(&checkpoint_command, "--blob %.300s: %s", call->blob,
			strerror(-op.status));
	output_line(&call->out, "%s: the blob of %s, of step %llu: %zu bytes", call->blob,
		name.text, (unsigned long long)blob->step, blob->bytes);
	if (call->out.json && !call->to)
		output_json(json_pack("{ss sI so sI}", "snapshot", name.text, "step",
			(json_int_t)blob->step, "blob", report_text(call->blob), "bytes",
			(json_int_t)blob->bytes));
	return EXIT_OK;
}

/* Reads the parameters, and writes them to --to. */
static int export_params(struct checkpoint_call *call, const struct checkpoint *c)
{
	struct message error;
	float *flat = checkpoint_read_params(c, &error);
	int code = flat ? write_params(call, c, flat)
			: command_refuse(&checkpoint_command, "%s", error.text);

	free(flat);
	return code;
}

int checkpoint_export(struct checkpoint_call *call)
{
	struct checkpoint c;
	struct message error;
	int code = EXIT_OK;

	if (!call->to && !call->blob)
		return command_refuse(&checkpoint_command,
			"export: --to FILE is missing: the file that the parameters are "
			"written to (or --blob FILE, for the job's blob)");
	if (checkpoint_open(call->paths[0], &c, &error) < 0)
		return command_refuse(&checkpoint_command, "%s", error.text);
	if (check_targets(call, &c, &error))
		code = command_refuse(&checkpoint_command, "%s", error.text);
	if (code == EXIT_OK && call->blob)
		code = write_blob(call, &c);
	if (code == EXIT_OK && call->to)
		code = export_params(call, &c);
	checkpoint_close(&c);
	return code;
}
