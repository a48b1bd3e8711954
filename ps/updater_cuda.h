/* SPDX-License-Identifier: Apache-2.0 */
/* The updater of a CUDA device. */
#ifndef TERN_PS_UPDATER_CUDA_H
#define TERN_PS_UPDATER_CUDA_H

#include "base/cuda.h"
#include "ps/updater.h"

/* Makes the updater of CUDA device number `ordinal`. On failure `why` (of `bytes` bytes)
 * gets the reason in one line. Errors as of tern_engine_cuda_new(). */
int tern_updater_cuda_new(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_updater **out, char *why, size_t bytes);

#endif
