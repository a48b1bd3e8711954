/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The suite of the CUDA table: the same cases on the simulated driver, where the blocks
 * run as loops on the CPU (on_fake.c), and on a GPU (on_device.c). All results are
 * compared with the CPU's table, bit for bit where the header promises that and else
 * within bounds; and with a second run.
 */
#ifndef TERN_TESTS_GPU_GPU_H
#define TERN_TESTS_GPU_GPU_H

#include "tests/harness/cmocka.h"

#include <stdbool.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/cuda/table.h"

/* Number and size of the cases. */
enum gpu_scale { GPU_FEW, GPU_SOME, GPU_LARGE };

struct gpu {
	const struct tern_cuda_api *api;
	CUdevice device;
	CUstream stream;
	enum gpu_scale scale;
	/* With cuBLAS (or its simulation) if there is one, and with our own products. */
	const struct tern_cublas_api *blas[2];
	struct tern_cuda_kernels *tables[2];
	size_t table_count;
};

extern struct gpu gpu;

/* Sizes for which gpu_open_tables() makes tables. */
#define GPU_XENT_ROWS        4096u
#define GPU_EMBED_ROWS       50000u
#define GPU_EMBED_TABLE_ROWS 5000u

/* Call it when api, device, stream and blas are set. 0, or it has printed the reason. */
int gpu_open_tables(void);
void gpu_close_tables(void);

/*
 * Device memory with a copy on the host, `aside` bytes from an alignment of 256. It has
 * margins that no kernel may change: gpu_down() asserts this.
 */
struct twin {
	CUdeviceptr base;
	void *dev, *host;
	size_t bytes;
};
struct twin twin_new(size_t bytes, size_t aside); /* the host's copy is zero */
void twin_free(struct twin *twin);
void gpu_up(struct twin *twin);   /* copies host to device, and waits */
void gpu_down(struct twin *twin); /* copies device to host, and waits */

/* Random, copied to the device. */
struct twin floats_new(uint64_t count, size_t aside);
struct twin specials_new(uint64_t count, size_t aside); /* NaN, infinity, -0, ... */
/* Of the host's copy, copied to the device. */
struct twin copy_new(const struct twin *of, size_t aside);

static inline float *dev_f32(const struct twin *twin)
{
	return twin->dev;
}
static inline float *host_f32(const struct twin *twin)
{
	return twin->host;
}

extern struct tern_rng gpu_rng;
float gpu_random(void);
uint32_t gpu_bits(float f);

/* Checks that the bits are equal, or both are NaN. */
void assert_same_f32(const float *got, const float *wanted, uint64_t count);
void assert_near(double got, double wanted, double most);
/* Checks that the call has succeeded; prints its line if not. */
void assert_done(const struct tern_cuda_kernels *k, int status);

/* Cases of elementwise.c and layers.c. Each returns the number that failed. */
/* Sums of squares in float64. */
int gpu_run_sums(CMFixtureFunction setup, CMFixtureFunction teardown);
int gpu_run_elementwise(CMFixtureFunction setup, CMFixtureFunction teardown);
int gpu_run_layers(CMFixtureFunction setup, CMFixtureFunction teardown);
/* Runs the groups that the program's arguments name; without arguments, all. */
int gpu_run(int argc, char **argv, CMFixtureFunction setup, CMFixtureFunction teardown);
bool gpu_asked(int argc, char **argv, const char *group);

#endif
