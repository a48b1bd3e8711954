/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA table's suite: the same cases on the simulated driver, where the blocks run as
 * loops on the CPU (on_fake.c), and on a GPU (on_device.c). Everything is compared with
 * the CPU's table: as bits where the header promises them, else within bounds; and twice,
 * with itself.
 */
#ifndef TERN_TESTS_GPU_GPU_H
#define TERN_TESTS_GPU_GPU_H

#include "tests/cmocka.h"

#include <stdbool.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/cuda/table.h"

/* How many and how large the cases are. */
enum gpu_scale { GPU_FEW, GPU_SOME, GPU_LARGE };

struct gpu {
	const struct tern_cuda_api *api;
	CUdevice device;
	CUstream stream;
	enum gpu_scale scale;
	/* With cuBLAS (or what stands for it) where there is one, and with our products.
	 */
	const struct tern_cublas_api *blas[2];
	struct tern_cuda_kernels *tables[2];
	size_t table_count;
};

extern struct gpu gpu;

/* What gpu_open_tables() makes tables for. */
#define GPU_XENT_ROWS        4096u
#define GPU_EMBED_ROWS       50000u
#define GPU_EMBED_TABLE_ROWS 5000u

/* Once api, device, stream and blas are there; 0, or it has printed why not. */
int gpu_open_tables(void);
void gpu_close_tables(void);

/*
 * Device memory with a twin on the host, `aside` bytes off an alignment of 256. Around it
 * lie bytes that no kernel may change: gpu_down() asserts that none did.
 */
struct twin {
	CUdeviceptr base;
	void *dev, *host;
	size_t bytes;
};
struct twin twin_new(size_t bytes, size_t aside); /* the host's is zero */
void twin_free(struct twin *twin);
void gpu_up(struct twin *twin);   /* host to device, and waits */
void gpu_down(struct twin *twin); /* device to host, and waits */

struct twin floats_new(uint64_t count, size_t aside);      /* random, and up */
struct twin specials_new(uint64_t count, size_t aside);    /* NaN, infinity, -0, ... */
struct twin copy_new(const struct twin *of, size_t aside); /* of the host's, and up */

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

/* Same bits, or both NaN. */
void assert_same_f32(const float *got, const float *wanted, uint64_t count);
void assert_near(double got, double wanted, double most);
/* The call is to have succeeded; its line if it did not. */
void assert_done(const struct tern_cuda_kernels *k, int status);

/* elementwise.c and layers.c: the cases. The number that failed. */
int gpu_run_sums(CMFixtureFunction setup, CMFixtureFunction teardown); /* float64 */
int gpu_run_elementwise(CMFixtureFunction setup, CMFixtureFunction teardown);
int gpu_run_layers(CMFixtureFunction setup, CMFixtureFunction teardown);
/* The groups that the arguments of the program name; all without any. */
int gpu_run(int argc, char **argv, CMFixtureFunction setup, CMFixtureFunction teardown);
bool gpu_asked(int argc, char **argv, const char *group);

#endif
