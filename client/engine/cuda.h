/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a CUDA device. Its results are close to the CPU's, and the same bits from
 * run to run on one device (kernels/cuda/table.h).
 */
#ifndef TERN_CLIENT_ENGINE_CUDA_H
#define TERN_CLIENT_ENGINE_CUDA_H

#include "client/engine/engine.h"
#include "kernels/cuda/cublas.h"

struct tern_engine_cuda_opts {
	const struct tern_cuda_api *api;
	const struct tern_cublas_api *blas; /* NULL: products of our own */
	unsigned ordinal;
	const struct tern_model *model;
	size_t rows;    /* as for tern_engine_cpu_new */
	bool no_graphs; /* plain launches only: the same bits, more slowly */
};

/*
 * Everything that it will need of the device is allocated here. `why` (of `bytes` bytes)
 * has the line to a failure: -ENODEV, -ENOEXEC: no such device, or none that our kernels
 * run on; -ENOMEM: no room, how much was wanted and is free; else what the driver says.
 */
int tern_engine_cuda_new(const struct tern_engine_cuda_opts *opts,
	struct tern_engine **out, char *why, size_t bytes);

#endif
