/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of the table of CUDA kernels: the same cases on the simulated driver, where a
 * block runs as a loop on the CPU (on_fake.c), and on a GPU (on_device.c). All results
 * are compared with those of the CPU's table, bit for bit where kernels/cuda/table.h
 * promises that and otherwise within bounds; and with those of a second run.
 */
#ifndef TERN_TESTS_GPU_GPU_H
#define TERN_TESTS_GPU_GPU_H

#include "tests/harness/cmocka.h"

#include <stdbool.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/cuda/table.h"
#include "tests/gpu/shared.h"

struct gpu {
	const struct tern_cuda_api *api;
	CUdevice device;
	CUstream stream;
	enum gpu_scale scale;
	/* Table 0 uses cuBLAS (or the simulated one), if there is one; table 1 uses
	 * Tern's own matrix products. */
	const struct tern_cublas_api *blas[2];
	struct tern_cuda_kernels *tables[2];
	size_t table_count;
};

extern struct gpu gpu;

/* Largest numbers of rows in a call: gpu_open_tables() creates tables of kernels whose
 * workspace suffices for them. */
#define GPU_XENT_ROWS        4096u
#define GPU_EMBED_ROWS       50000u
#define GPU_EMBED_TABLE_ROWS 5000u

/* To be called when api, device, stream and blas are set. Returns 0, or prints the reason
 * and returns -1. */
int gpu_open_tables(void);
void gpu_close_tables(void);

/*
 * Device memory at `dev`, and memory of the same size on the host. The device memory
 * starts `aside` bytes after a multiple of 256 (see twin_new()), so that tests can choose
 * its alignment. Before and after it are margins that no kernel may change, which
 * gpu_down() asserts.
 */
struct twin {
	CUdeviceptr base;
	void *dev, *host;
	size_t bytes;
};
struct twin twin_new(size_t bytes, size_t aside); /* the host's memory is all zeros */
void twin_free(struct twin *twin);
void gpu_up(struct twin *twin);   /* copies the host's bytes to the device, and waits */
void gpu_down(struct twin *twin); /* copies the device's bytes to the host, and waits */

/* `count` random floats, also copied to the device. */
struct twin floats_new(uint64_t count, size_t aside);
/* `count` floats, many of them special values (NaN, infinity, -0, ...), also copied to
 * the device. */
struct twin specials_new(uint64_t count, size_t aside);
/* A new twin with the same host bytes as `of`, also copied to the device. */
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

/* Asserts that each pair of floats has equal bits, or that both are NaN. */
void assert_same_f32(const float *got, const float *wanted, uint64_t count);
void assert_near(double got, double wanted, double most);
/* Asserts that the call has succeeded; prints the table's error line if not. */
void assert_done(const struct tern_cuda_kernels *k, int status);

/* Run the cases of elementwise.c and layers.c; each returns the number of cases that
 * failed. */
/* Sums of squares, compared with the CPU's; in elementwise.c, too. */
int gpu_run_sums(CMFixtureFunction setup, CMFixtureFunction teardown);
int gpu_run_elementwise(CMFixtureFunction setup, CMFixtureFunction teardown);
int gpu_run_layers(CMFixtureFunction setup, CMFixtureFunction teardown);
/* Runs the groups of tests that the program's arguments name; without arguments, all
 * groups. */
int gpu_run(int argc, char **argv, CMFixtureFunction setup, CMFixtureFunction teardown);
bool gpu_asked(int argc, char **argv, const char *group);

#endif
