/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the code that nvcc generates for the CUDA kernels on the CPU. translate.py turns
 * the PTX into C: one function for each kernel, which runs one thread of the GPU up to
 * its next barrier. The threads of a block run one after the other, in ascending or
 * descending order, and so do the blocks of a launch. run.c checks each access to memory,
 * and reports
 *
 *   - a race: two threads access the same bytes, at least one of them writes, and they
 *     are in different blocks of the launch, or no barrier of their block orders the two
 *     accesses (atomic operations of two threads of a block are no race);
 *   - a read of shared memory that no thread of the block has written;
 *   - an address that is not a multiple of the access's size;
 *   - a barrier at which only some threads of a block arrive.
 *
 * Only the first ten reports are printed; ptx_reports() returns the number of all.
 */
#ifndef TERN_TESTS_GPU_PTX_H
#define TERN_TESTS_GPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A thread of the GPU: its arguments and its position in the launch. */
struct ptx_thread {
	const void *args;      /* arguments of the kernel (PTX parameter space) */
	unsigned char *shared; /* shared memory of the thread's block */
	uint32_t tid, ctaid;
};

/* A kernel translated to C. `run` continues a thread, whose registers are `regs`, at
 * barrier number `at` (0: at its start). It returns the number of the next barrier at
 * which the thread waits, or 0 if the thread has ended. */
struct ptx_kernel {
	const char *name;
	size_t args_bytes, regs_bytes, shared_bytes;
	unsigned threads, barriers;
	unsigned (*run)(void *regs, unsigned at, const struct ptx_thread *thread);
};

/* All kernels; the last entry has no name. */
extern const struct ptx_kernel ptx_kernels[];

/* Exit status of a process in which an error in a kernel was reported. */
#define PTX_REPORTED 99

/* In which order a launch runs threads and blocks. */
struct ptx_order {
	bool upwards; /* true: in ascending order; false: in descending order */
	/* A barrier to be left out, to test that its absence is noticed: its kernel
	 * (NULL: none) and its number, from 1. If one is set, the first report ends the
	 * process. */
	const char *kernel;
	unsigned barrier;
};

void ptx_launch(const struct ptx_kernel *kernel, const void *args, uint64_t blocks,
	const struct ptx_order *order);
/* Number of reports so far. */
unsigned long long ptx_reports(void);

/* ---- called by the translated kernels ---- */

/* Checks an access of `bytes` bytes to an address of global memory, or to an offset in
 * the block's shared memory. Returns a pointer to the bytes. */
enum ptx_access { PTX_READ, PTX_WRITE, PTX_ATOMIC };
void *ptx_global(const struct ptx_thread *thread, uint64_t address, size_t bytes,
	enum ptx_access access);
void *ptx_shared(const struct ptx_thread *thread, uint64_t offset, size_t bytes,
	enum ptx_access access);
/* True if this barrier is the one that is to be left out. */
bool ptx_leaves_out(unsigned barrier);

#endif
