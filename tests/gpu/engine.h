/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of the CUDA engine (computation of gradients): the same cases on the
 * simulated driver (engine_on_fake.c) and on a GPU (engine_on_device.c). Gradients must
 * be close to those of the CPU engine, and have the same bits in repeated steps.
 */
#ifndef TERN_TESTS_GPU_ENGINE_H
#define TERN_TESTS_GPU_ENGINE_H

#include "tests/harness/cmocka.h"

#include "client/engine/cuda.h"
#include "tests/gpu/shared.h"

struct engine_suite {
	const struct tern_cuda_api *api;
	const struct tern_cublas_api *blas; /* NULL: without cuBLAS */
	/* Size and number of cases; GPU_LARGE unless a program sets it. */
	enum gpu_scale scale;
};

extern struct engine_suite suite;

#define ROWS 24u /* rows (records) of a batch */

/* A model, its data, two versions of its parameters, and two buffers for gradients. Each
 * version and each buffer is a memory mapping of its own, as in a worker, so that the
 * engine can page-lock it. */
struct world {
	struct tern_dataset *data;
	struct tern_model *model;
	uint64_t count; /* number of parameters */
	size_t bytes;   /* size of a mapping */
	float *params[2], *grads[2];
};

void world_open(struct world *w, const char *spec);
void world_close(struct world *w);
void world_fill(
	const struct world *w, struct tern_batch *batch, size_t rows, unsigned at);
void world_pin(const struct world *w, struct tern_engine *e);

struct tern_engine *cuda_engine(const struct world *w, bool no_graphs);
/* Computes the gradient of batch `at` from params[parity] into grads[buffer]. */
struct tern_result gradient(const struct world *w, struct tern_engine *e, unsigned at,
	unsigned parity, unsigned buffer);

/* Runs the cases; returns the number of cases that failed. */
int engine_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
