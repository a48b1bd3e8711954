/* SPDX-License-Identifier: Apache-2.0 */
/* See params_file.h. */
#include "ps/params_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int build(const struct tern_ps_job *job, const float *flat,
	struct tern_safetensor *tensors, const struct tern_safetensors_metadata *metadata,
	size_t metadata_count, struct iovec *parts)
{
	for (uint32_t i = 0; i < job->param_count; i++) {
		const struct tern_param *p = &job->params[i];

		tensors[i] = (struct tern_safetensor){
			.name = p->name, .shape = p->shape, .data = flat + p->first};
	}
	return tern_safetensors_build(
		tensors, job->param_count, metadata, metadata_count, parts);
}

int tern_params_file_build(const struct tern_ps_job *job, const float *flat,
	const struct tern_safetensors_metadata *more, size_t more_count,
	struct iovec **parts)
{
	struct tern_safetensors_metadata *metadata =
		calloc(more_count + 1, sizeof(*metadata));
	struct tern_safetensor *tensors = calloc(job->param_count, sizeof(*tensors));
	int r = -ENOMEM;

	*parts = calloc(job->param_count + 1u, sizeof(**parts));
	if (metadata && tensors && *parts) {
		metadata[0] = (struct tern_safetensors_metadata){"weight_layout",
			"[in, out], y = x W + b; torch.nn.Linear has [out, in]"};
		if (more_count)
			memcpy(metadata + 1, more, more_count * sizeof(*more));
		r = build(job, flat, tensors, metadata, more_count + 1, *parts);
	}
	free(metadata);
	free(tensors);
	if (r < 0) {
		tern_params_file_free(*parts);
		*parts = NULL;
	}
	return r;
}

void tern_params_file_free(struct iovec *parts)
{
	if (parts)
		free(parts[0].iov_base);
	free(parts);
}
