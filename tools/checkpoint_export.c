/* SPDX-License-Identifier: Apache-2.0 */
/* `tern checkpoint export`: writes the parameters of a snapshot as a safetensors file,
 * with the bytes that the job would write if it ended at that step (ps/params_file.h). */
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

int checkpoint_check_target(
	const char *option, const char *path, uint64_t bytes, struct message *error)
{
	const char *slash = strrchr(path, '/');
	struct stat st;
	char *directory;
	int r;

	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return options_refuse(
			error, "%s %.300s: expected the path of a file", option, path);
	directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("./");
	r = directory ? host_file_probe(directory, bytes) : -ENOMEM;
	free(directory);
	return r < 0 ? options_refuse(error, "%s %.300s: %s", option, path, strerror(-r))
		     : 0;
}

/* Tells a wrong --to before the parts are read. */
static int check_to(const struct checkpoint_call *call, const struct checkpoint *c,
	struct message *error)
{
	struct stat st;

	if (stat(call->to, &st) == 0 && S_ISREG(st.st_mode) && !call->overwrite)
		return options_refuse(error,
			"--to %.300s: the file is there already: --overwrite replaces it",
			call->to);
	return checkpoint_check_target(
		"--to", call->to, c->plan.element_count * sizeof(float) + 1, error);
}

static void tell(struct checkpoint_call *call, const struct checkpoint *c, uint64_t bytes)
{
	const struct tern_snapshot *s = &c->snapshot;
	struct tern_snapshot_name name = tern_snapshot_short_name(s->id);

	if (call->out.json)
		output_json(json_pack("{ss sI so sI sI}", "snapshot", name.text, "step",
			(json_int_t)s->id.step, "file", report_text(call->to), "bytes",
			(json_int_t)bytes, "tensors", (json_int_t)s->job.param_count));
	else
		output_line(&call->out,
			"%s: the parameters of %s, after step %llu: %u tensors, %llu "
			"bytes",
			call->to, name.text, (unsigned long long)s->id.step,
			s->job.param_count, (unsigned long long)bytes);
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

int checkpoint_export(struct checkpoint_call *call)
{
	struct checkpoint c;
	struct message error;
	float *flat;
	int code;

	if (!call->to)
		return command_refuse(&checkpoint_command,
			"export: --to FILE is missing: the file that the parameters are "
			"written to");
	if (checkpoint_open(call->paths[0], &c, &error) < 0)
		return command_refuse(&checkpoint_command, "%s", error.text);
	flat = check_to(call, &c, &error) == 0 ? checkpoint_read_params(&c, &error)
					       : NULL;
	code = flat ? write_params(call, &c, flat)
		    : command_refuse(&checkpoint_command, "%s", error.text);
	free(flat);
	checkpoint_close(&c);
	return code;
}
