/* SPDX-License-Identifier: Apache-2.0 */
/* See init_from.h. */
#include "tools/init_from.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "ps/given.h"
#include "ps/params_file.h"
#include "tools/host_file.h"

static int make_room(const struct tern_model *model, struct init_from *out, size_t *count)
{
	const struct tern_param *params = tern_model_params(model, count);

	out->params = calloc(*count + 1, sizeof(*out->params));
	out->given = calloc(*count + 1, sizeof(*out->given));
	out->flat = calloc(tern_model_size(model) + 1, sizeof(*out->flat));
	if (!out->params || !out->given || !out->flat)
		return -ENOMEM;
	memcpy(out->params, params, *count * sizeof(*params));
	for (size_t i = 0; i < *count; i++) {
		out->params[i].init = TERN_INIT_GIVEN;
		out->params[i].a = out->params[i].b = 0;
		out->given[i] = out->flat + params[i].first;
	}
	return 0;
}

/* Converts the bytes of the file, and sets the digests. */
static int take(const char *path, const void *data, size_t bytes, size_t count,
	struct init_from *out, struct message *error)
{
	struct tern_ps_job job = {.params = out->params, .param_count = (uint32_t)count};
	struct tern_safetensors *file;
	struct tern_ps_text why = {"no memory"};
	int r = tern_safetensors_parse(path, data, bytes, &file, &why);

	if (r < 0) {
		options_refuse(error, "--init-from %.400s", why.text);
		return r;
	}
	r = tern_params_file_read(file, out->params, job.param_count, out->flat, &why);
	if (r == 0)
		r = tern_given_describe(&job, out->given, true, &why);
	if (r < 0)
		options_refuse(error, "--init-from %.120s: %.370s", path, why.text);
	tern_safetensors_free(file);
	return r;
}

int init_from_read(const char *path, const struct tern_model *model,
	bool (*stop)(void *arg), void *arg, struct init_from *out, struct message *error)
{
	size_t count, bytes;
	void *data;
	int r = make_room(model, out, &count);

	if (r == 0)
		r = host_file_read(path, stop, arg, &data, &bytes);
	if (r < 0) {
		if (r != -ECANCELED)
			options_refuse(
				error, "--init-from %.300s: %s", path, strerror(-r));
		return r;
	}
	r = take(path, data, bytes, count, out, error);
	free(data);
	return r;
}

void init_from_apply(const struct init_from *from, struct tern_ps_job *job,
	struct tern_worker_opts *opts)
{
	if (!from->params)
		return;
	job->params = from->params;
	opts->given = from->given;
}

void init_from_free(struct init_from *from)
{
	free(from->params);
	free(from->flat);
	free(from->given);
	*from = (struct init_from){.params = NULL};
}
