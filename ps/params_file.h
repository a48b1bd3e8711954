/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a job's parameters: a safetensors file with the job's tensors, in their
 * order. A worker writes it at the end of a job (client/finish.c), and `tern checkpoint
 * export` writes it from a snapshot. Both files have the same bytes, because both come
 * from this function.
 */
#ifndef TERN_PS_PARAMS_FILE_H
#define TERN_PS_PARAMS_FILE_H

#include "ps/safetensors.h"

/*
 * Makes the parts of the file from the tensors of `job` and the flat vector, which must
 * stay in place as long as the parts. The metadata has "weight_layout" first, and then
 * `more`. Stores job->param_count + 1 parts in *parts, which are freed with
 * tern_params_file_free(). Errors: those of tern_safetensors_build().
 */
int tern_params_file_build(const struct tern_ps_job *job, const float *flat,
	const struct tern_safetensors_metadata *more, size_t more_count,
	struct iovec **parts);

/* `parts` may be NULL. */
void tern_params_file_free(struct iovec *parts);

#endif
