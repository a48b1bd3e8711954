/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers the CUDA kernels with the simulated driver in the form in which nvcc compiles
 * them (see ptx.h). In the environment, TERN_PTX_UPWARDS=1 runs threads and blocks in
 * ascending order, and TERN_PTX_LEFT_OUT=KERNEL:N leaves out the N-th barrier of a
 * kernel. The process ends with exit status 99 if an error in a kernel was reported.
 */
#include "tests/gpu/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "kernels/cuda/blocks/list.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/gpu/ptx/ptx.h"

const enum gpu_scale gpu_blocks_scale = GPU_SOME;

static struct ptx_order order;
static char left_out[64];

static void read_order(void)
{
	const char *upwards = getenv("TERN_PTX_UPWARDS");
	const char *text = getenv("TERN_PTX_LEFT_OUT");

	order.upwards = upwards && strcmp(upwards, "1") == 0;
	if (!text)
		return;
	tern_assert(sscanf(text, "%63[^:]:%u", left_out, &order.barrier) == 2);
	order.kernel = left_out;
}

static const struct ptx_kernel *find(
	const char *name, size_t args_bytes, unsigned threads)
{
	for (const struct ptx_kernel *k = ptx_kernels; k->name; k++) {
		if (strcmp(k->name, name) != 0)
			continue;
		/* Asserts that the host's compiler and nvcc lay out the arguments
		 * alike. */
		tern_assert(k->args_bytes == args_bytes && k->threads == threads);
		return k;
	}
	fprintf(stderr, "%s: no kernel of this name was compiled by nvcc\n", name);
	abort();
}

#define RUN(name, type, threads)                                                         \
	static void run_##name(const struct fake_cuda_launch *launch)                    \
	{                                                                                \
		tern_assert(launch->block[0] == (threads) && launch->block[1] == 1);     \
		tern_assert(launch->grid[1] == 1 && launch->shared_bytes == 0);          \
		ptx_launch(find("tern_cuda_" #name, sizeof(type), threads),              \
			launch->params[0], launch->grid[0], &order);                     \
	}

TERN_CUDA_KERNELS(RUN)

static void end(void)
{
	if (ptx_reports() == 0)
		return;
	fprintf(stderr, "%llu errors of kernels reported\n", ptx_reports());
	fflush(NULL);
	_exit(PTX_REPORTED);
}

void gpu_register_blocks(void)
{
	static bool registered;

	if (!registered) {
		registered = true;
		read_order();
		atexit(end);
	}
#define REGISTER(name, type, threads)                                                    \
	find("tern_cuda_" #name, sizeof(type), threads);                                 \
	fake_cuda_kernel(                                                                \
		"tern_cuda_" #name, run_##name, 1, (const size_t[]){sizeof(type)});

	TERN_CUDA_KERNELS(REGISTER)
}
