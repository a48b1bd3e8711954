/* SPDX-License-Identifier: Apache-2.0 */
/* See ptx.h: runs translated kernels and checks their accesses to memory. */
#include "tests/gpu/ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

/*
 * What happened to two bytes of memory (no kernel accesses a single byte). Time is
 * counted in epochs: a new one begins at each barrier, each block and each launch. So an
 * access was made by the present block if its epoch is not earlier than the block's first
 * one.
 */
#define CELL_BYTES 2u

struct cell {
	uint32_t written, read; /* epoch of the last write and read; 0: never */
	/* The thread that accessed; MANY: several threads in that epoch. */
	uint16_t writer, reader;
	/* Another block of this launch has read these bytes. */
	bool read_elsewhere;
};

#define MANY UINT16_MAX /* several threads; for a write: with atomic operations */
/* Size of shared memory that a kernel gets without asking for more. */
#define SHARED_MAX 49152u

/* Global memory: a hash table (open addressing) of lines of 64 bytes, by address / 64. */
#define LINE_BYTES 64u
#define LINE_CELLS (LINE_BYTES / CELL_BYTES)

struct line {
	uint64_t number; /* address / LINE_BYTES; 0: the entry is empty */
	uint32_t used;   /* epoch of the last access */
	struct cell cells[LINE_CELLS];
};

static struct {
	const struct ptx_kernel *kernel;
	const struct ptx_order *order;
	uint32_t epoch, block_epoch, launch_epoch;
	/* Cells of the present block's shared memory. */
	struct cell cells[SHARED_MAX / CELL_BYTES];
	struct line *lines;
	size_t line_mask, line_count;
	unsigned long long reports;
} now = {.epoch = 1};

unsigned long long ptx_reports(void)
{
	return now.reports;
}

/* Prints only the first ten reports, since one mistake causes thousands. */
static void report(const char *what, const char *space, uint64_t at,
	const struct ptx_thread *thread, unsigned other)
{
	if (now.reports++ < 10)
		fprintf(stderr, "%s: %s at %s %llx, block %u, threads %u and %u\n",
			now.kernel->name, what, space, (unsigned long long)at,
			thread->ctaid, thread->tid, other);
	/* With a barrier left out on purpose, the kernel may do anything from now on:
	 * ends the process. */
	if (now.order->kernel) {
		fflush(NULL);
		_exit(PTX_REPORTED);
	}
}

/* ---- races ---- */

/* True if nothing orders an access of thread `by` in `epoch` before or after an access
 * that `thread` makes now. */
static bool collides(uint32_t epoch, uint16_t by, const struct ptx_thread *thread)
{
	if (epoch < now.launch_epoch)
		return false;
	return epoch < now.block_epoch || (epoch == now.epoch && by != thread->tid);
}

static const char *race(
	const struct cell *cell, const struct ptx_thread *thread, enum ptx_access access)
{
	bool both_atomic = access == PTX_ATOMIC && cell->writer == MANY &&
			   cell->written >= now.block_epoch;

	if (!both_atomic && collides(cell->written, cell->writer, thread))
		return access == PTX_READ ? "read of what another thread writes"
					  : "write of what another thread writes";
	if (access == PTX_READ)
		return NULL;
	if (collides(cell->read, cell->reader, thread) ||
		(cell->read_elsewhere && cell->read >= now.launch_epoch))
		return "write of what another thread reads";
	return NULL;
}

static void set_read(struct cell *cell, uint16_t tid)
{
	if (cell->read < now.launch_epoch)
		cell->read_elsewhere = false;
	else if (cell->read < now.block_epoch)
		cell->read_elsewhere = true;
	cell->reader = cell->read == now.epoch && cell->reader != tid ? MANY : tid;
	cell->read = now.epoch;
}

static void touch(struct cell *cell, const char *space, uint64_t at,
	const struct ptx_thread *thread, enum ptx_access access)
{
	const char *what = race(cell, thread, access);

	if (what)
		report(what, space, at, thread,
			cell->written == now.epoch ? cell->writer : cell->reader);
	if (access == PTX_READ) {
		set_read(cell, (uint16_t)thread->tid);
		return;
	}
	cell->writer = access == PTX_ATOMIC ? MANY : (uint16_t)thread->tid;
	cell->written = now.epoch;
}

static void check_aligned(
	const char *space, uint64_t at, const struct ptx_thread *thread, size_t bytes)
{
	if (at % bytes)
		report("unaligned access", space, at, thread, thread->tid);
}

/* ---- shared memory ---- */

void *ptx_shared(const struct ptx_thread *thread, uint64_t offset, size_t bytes,
	enum ptx_access access)
{
	tern_assert(
		offset + bytes <= now.kernel->shared_bytes && offset + bytes > offset);
	check_aligned("shared", offset, thread, bytes);
	for (uint64_t at = offset; at < offset + bytes; at += CELL_BYTES) {
		struct cell *cell = &now.cells[at / CELL_BYTES];

		if (access != PTX_WRITE && cell->written < now.block_epoch)
			report("read of what nobody wrote", "shared", at, thread,
				thread->tid);
		touch(cell, "shared", at, thread, access);
	}
	return thread->shared + offset;
}

/* ---- global memory ---- */

static struct line *place_of(struct line *lines, size_t mask, uint64_t number)
{
	size_t at = (size_t)(number * 0x9e3779b97f4a7c15ull >> 20) & mask;

	while (lines[at].number != 0 && lines[at].number != number)
		at = (at + 1) & mask;
	return &lines[at];
}

/* Doubles the size of the table, and drops the lines that only earlier launches have
 * used. */
static void grow(void)
{
	size_t mask = now.line_mask ? now.line_mask * 2 + 1 : 4095;
	struct line *lines = calloc(mask + 1, sizeof(*lines));

	tern_assert(lines);
	now.line_count = 0;
	for (size_t i = 0; now.lines && i <= now.line_mask; i++) {
		const struct line *line = &now.lines[i];

		if (line->number == 0 || line->used < now.launch_epoch)
			continue;
		*place_of(lines, mask, line->number) = *line;
		now.line_count++;
	}
	free(now.lines);
	now.lines = lines;
	now.line_mask = mask;
}

static struct line *line_of(uint64_t number)
{
	struct line *line;

	if (now.line_count * 2 >= now.line_mask)
		grow();
	line = place_of(now.lines, now.line_mask, number);
	now.line_count += line->number == 0;
	line->number = number;
	line->used = now.epoch;
	return line;
}

void *ptx_global(const struct ptx_thread *thread, uint64_t address, size_t bytes,
	enum ptx_access access)
{
	/* An aligned access is within one line. */
	struct line *line = line_of(address / LINE_BYTES);

	check_aligned("global", address, thread, bytes);
	for (uint64_t at = address; at < address + bytes; at += CELL_BYTES)
		touch(&line->cells[at % LINE_BYTES / CELL_BYTES], "global", at, thread,
			access);
	return (void *)(uintptr_t)address;
}

/* ---- blocks ---- */

bool ptx_leaves_out(unsigned barrier)
{
	return now.order->kernel && now.order->barrier == barrier &&
	       strcmp(now.order->kernel, now.kernel->name) == 0;
}

static unsigned nth(unsigned i, unsigned count)
{
	return now.order->upwards ? i : count - 1 - i;
}

/* Runs all threads of a block up to their next barrier; returns the barrier's number; 0:
 * the threads have ended, or have arrived at different barriers, which is reported. */
static unsigned run_threads(
	unsigned char *regs, unsigned barrier, struct ptx_thread *thread)
{
	const struct ptx_kernel *kernel = now.kernel;
	unsigned first = 0;

	now.epoch++;
	for (unsigned i = 0; i < kernel->threads; i++) {
		unsigned reached;

		thread->tid = nth(i, kernel->threads);
		reached = kernel->run(
			regs + thread->tid * kernel->regs_bytes, barrier, thread);
		if (i == 0)
			first = reached;
		if (reached != first) {
			report("threads at different barriers", "barriers", first, thread,
				nth(0, kernel->threads));
			return 0;
		}
	}
	return first;
}

/* Memory for the registers of a block's threads. All launches use the same memory, since
 * mapping a megabyte takes longer than most blocks. */
static unsigned char *room_for_regs(size_t bytes)
{
	static unsigned char *regs;
	static size_t most;

	if (bytes > most) {
		free(regs);
		regs = malloc(bytes);
		tern_assert(regs);
		most = bytes;
	}
	return regs;
}

void ptx_launch(const struct ptx_kernel *kernel, const void *args, uint64_t blocks,
	const struct ptx_order *order)
{
	static unsigned char shared[SHARED_MAX] __attribute__((aligned(64)));
	size_t regs_bytes = kernel->threads * kernel->regs_bytes;
	unsigned char *regs = room_for_regs(regs_bytes);

	tern_assert(kernel->shared_bytes <= SHARED_MAX);
	now.kernel = kernel;
	now.order = order;
	now.launch_epoch = now.epoch + 1;
	for (uint64_t i = 0; i < blocks; i++) {
		struct ptx_thread thread = {.args = args,
			.shared = shared,
			.ctaid = (uint32_t)(order->upwards ? i : blocks - 1 - i)};
		unsigned barrier = 0;

		/* Contents that are not zero, so that no test passes because
		 * uninitialised registers or memory are zero. */
		memset(regs, 0xa7, regs_bytes);
		memset(shared, 0xcd, kernel->shared_bytes);
		/* Each block has its own shared memory, so none of it is written yet. */
		memset(now.cells, 0,
			kernel->shared_bytes / CELL_BYTES * sizeof(struct cell));
		now.block_epoch = now.epoch + 1;
		do
			barrier = run_threads(regs, barrier, &thread);
		while (barrier);
	}
}
