/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a CUDA device. Its results are close to the CPU's, and have the same bits
 * in every run on one device (kernels/cuda/table.h).
 */
#ifndef TERN_CLIENT_ENGINE_CUDA_H
#define TERN_CLIENT_ENGINE_CUDA_H

#include "client/engine/engine.h"
#include "kernels/cuda/cublas.h"

struct tern_engine_cuda_opts {
	const struct tern_cuda_api *api;
	const struct tern_cublas_api *blas; /* NULL: use Tern's own matrix products */
	unsigned ordinal;
	const struct tern_model *model;
	size_t rows;    /* as in tern_engine_cpu_new() */
	bool no_graphs; /* plain launches only: the same bits, more slowly */
};

/*
 * Makes the engine and allocates its device memory, except that of CUDA graphs. On
 * failure `why` (of `bytes` bytes) gets the reason in one line. -ENODEV: no such device;
 * -ENOEXEC: Tern's kernels do not run on it; -ENOMEM: no memory (if device memory lacks,
 * `why` says how much is free); other errors are mostly the driver's.
 */
int tern_engine_cuda_new(const struct tern_engine_cuda_opts *opts,
	struct tern_engine **out, char *why, size_t bytes);

#endif
