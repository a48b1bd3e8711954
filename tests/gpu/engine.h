/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The suite of the CUDA engine: the same cases on the simulated driver (engine_on_fake.c)
 * and on a GPU (engine_on_device.c). Gradients are compared with the CPU engine's within
 * bounds, and with each other bit for bit.
 */
#ifndef TERN_TESTS_GPU_ENGINE_H
#define TERN_TESTS_GPU_ENGINE_H

#include "tests/harness/cmocka.h"

#include "client/engine/cuda.h"

struct engine_suite {
	const struct tern_cuda_api *api;
	const struct tern_cublas_api *blas; /* NULL: none */
};

extern struct engine_suite suite;

#define ROWS 24u /* rows of the batches */

/* A model, its data, and two versions of its parameters in memory like a worker's:
 * whole mappings. */
struct world {
	struct tern_dataset *data;
	struct tern_model *model;
	uint64_t count; /* number of parameters */
	size_t bytes;   /* of a mapping */
	float *params[2], *grads[2];
};

void world_open(struct world *w, const char *spec);
void world_close(struct world *w);
void world_fill(
	const struct world *w, struct tern_batch *batch, size_t rows, unsigned at);
void world_pin(const struct world *w, struct tern_engine *e);

struct tern_engine *cuda_engine(const struct world *w, bool no_graphs);
/* Computes the gradient of batch `at` at params[parity] into grads[buffer]. */
struct tern_result gradient(const struct world *w, struct tern_engine *e, unsigned at,
	unsigned parity, unsigned buffer);

/* Returns the number of cases that failed. */
int engine_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
