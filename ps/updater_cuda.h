/* SPDX-License-Identifier: Apache-2.0 */
/* The updater of a CUDA device. */
#ifndef TERN_PS_UPDATER_CUDA_H
#define TERN_PS_UPDATER_CUDA_H

#include "base/cuda.h"
#include "ps/updater.h"

/* `why` (of `bytes` bytes) has the line to a failure, as tern_engine_cuda_new. */
int tern_updater_cuda_new(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_updater **out, char *why, size_t bytes);

#endif
