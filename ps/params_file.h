/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a job's parameters: a safetensors file with the job's tensors, in their
 * order. A worker writes it at the end of a job (client/finish.c), and `tern checkpoint
 * export` writes it from a snapshot. Both files have the same bytes, because both come
 * from tern_params_file_build(). `--init-from` reads such a file.
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

/*
 * Reads all parameters from a parsed file, whoever wrote it, into the flat vector, which has
 * room for all elements of `params`. The file must have exactly these tensors, with these
 * dimensions. f16 and bf16 become float32 without loss, and f64 must be float32 in value.
 * NaN and infinite values are not refused here. -EINVAL: why->text names the tensors that
 * are missing or too many, or the first tensor that is wrong; `flat` is then unspecified.
 */
int tern_params_file_read(const struct tern_safetensors *file,
	const struct tern_param *params, uint32_t count, float *flat,
	struct tern_ps_text *why);

#endif
