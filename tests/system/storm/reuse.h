/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the owner of windows (reuse.c) and the processes that put into them
 * (reuse_putter.c) share: a board in shared memory.
 *
 * Each putter has cells of its own in each window, with one put at a time in a cell. It
 * counts the puts of a cell on the board: `started` before tern_put(), `landed` when the
 * put has ended with 0. So after the end of a window, each word of a cell must be that of
 * a put from `landed` to `started`, also if the putter was killed meanwhile.
 */
#ifndef TERN_TESTS_SYSTEM_STORM_REUSE_H
#define TERN_TESTS_SYSTEM_STORM_REUSE_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>
#include <tern/window.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"

#define REUSE_PUTTERS 2u
#define REUSE_AREAS   4u
#define REUSE_CELLS   6u
/* Offset of a cell: a cell has less bytes than that. */
#define REUSE_STRIDE     (512u << 10)
#define REUSE_AREA_BYTES ((uint64_t)REUSE_PUTTERS * REUSE_CELLS * REUSE_STRIDE)
#define REUSE_HANG_NS    (60 * TERN_NS_PER_S)
/* A process may have this many more file descriptors than at the start, while connections
 * end and begin. */
#define REUSE_FDS_MAX 8
/* Allowed growth of a process, as in life.c. */
#define REUSE_GROWTH_MAX (4ll << 20)

/* A killed process is given up soon, also on fabrics whose connections can return; a
 * connection may take long on a machine with much load. */
#define REUSE_CONTEXT                                                                    \
	{                                                                                \
		.no_spin = true, .log_level = TERN_LOG_ERROR,                            \
		.connect_ns = REUSE_HANG_NS, .reconnect_ns = TERN_NS_PER_S,              \
		.unreachable_ns = TERN_NS_PER_S                                          \
	}

struct reuse_count {
	_Atomic uint64_t started, landed;
};

struct reuse_putter {
	struct reuse_count cells[REUSE_AREAS][REUSE_CELLS];
	/* The last generation of an area whose end the putter has seen, with no put under
	 * way in it. */
	_Atomic uint32_t left[REUSE_AREAS];
	_Atomic uint32_t session_count;
	_Atomic uint64_t landed_count, stale_count, lost_count;
	_Atomic bool by_kernel; /* the system makes its puts: process_vm_writev */
};

struct reuse_board {
	/* `desc` is written only when both putters have left the area's last window. */
	struct {
		struct tern_window_desc desc;
		_Atomic uint32_t generation; /* 0: there was no window yet */
	} areas[REUSE_AREAS];
	struct reuse_putter putters[REUSE_PUTTERS];
	_Atomic bool over;
	bool no_cma;
	char address[128];
};

/* Both putters use the windows of areas 0 and 1; those of area 2 and 3 have one user each,
 * so that they end as soon as this one has left. */
static inline bool reuse_uses(unsigned putter, unsigned area)
{
	return area < 2 || area - 2 == putter;
}

static inline uint64_t reuse_cell_bytes(unsigned cell)
{
	static const uint64_t bytes[REUSE_CELLS] = {
		64, 4096, 50000, 262144 + 8, 300000, REUSE_STRIDE - 64};

	return bytes[cell];
}

static inline uint64_t reuse_cell_offset(unsigned putter, unsigned cell)
{
	return ((uint64_t)putter * REUSE_CELLS + cell) * REUSE_STRIDE;
}

/* Word i of a put is reuse_word(...) + i. */
static inline uint64_t reuse_word(
	uint32_t generation, unsigned area, unsigned putter, unsigned cell, uint64_t put)
{
	return tern_rng_at(generation, area * REUSE_PUTTERS + putter, cell, put);
}

static inline _Noreturn void reuse_fail(const char *who, const char *what, int status)
{
	fprintf(stderr, "reuse: %s: %s: %s\n", who, what, tern_status_text(status));
	exit(1);
}

/* Checks that this process does not grow. */
struct reuse_growth {
	const char *who;
	int fds;
	long long resident;
};
void reuse_measure(struct reuse_growth *growth, bool first);

/* The main function of a process that puts. */
int reuse_put(struct reuse_board *board, unsigned slot);

#endif
