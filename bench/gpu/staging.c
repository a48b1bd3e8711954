/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of staging tensors in GPU memory, that is of copying them piece by piece
 * through the stager's page-locked buffers ("slots"), compared with the limit: one copy
 * of the same bytes by the driver. Measured with the device idle, and with kernels that
 * run all the time. Nothing reads the slots, so the cost of a network is not included.
 * Staging and its limit are measured in turn (limit, staging, staging, limit), by the
 * CPU's clock, since half of staging is the CPU's work.
 *
 * The stager's slots have a fixed size. To show what another size would bring, pieces of
 * other sizes are copied through as many slots of the benchmark's own.
 *
 * usage: gpu_staging [--smoke], which prints samples as gpu_rates does.
 */
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"
#include "bench/gpu/device.h"
#include "transport/memory/mem.h"
#include "transport/gpu/stager.h"

#define ROUNDS_MAX 16
#define INPUTS     4u

struct staging;

/* A slot of the benchmark's own. */
struct piece {
	struct tern_copy copy;
	struct staging *staging;
	void *at; /* page-locked memory of piece_bytes bytes */
	uint64_t bytes;
	bool busy;
};

struct staging {
	struct bench_gpu gpu; /* gpu.stream runs the kernels */
	/* runs the limit: the driver's copies */
	CUstream copies;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_mem *mem;
	struct tern_stager *stager;
	struct tern_cuda_kernels *k;
	float *sum, *inputs[INPUTS];
	void *pinned;
	uint64_t bytes;        /* size of the tensor */
	uint64_t given, moved; /* bytes whose copy was started, and whose copy is done */
	/* `launches` kernels are queued before the copies, and together take longer than
	 * the copies. */
	unsigned rounds, launches;
	struct piece pieces[TERN_STAGE_SLOTS];
	uint64_t piece_bytes;
	bool idle;  /* the kernels ended before the copies did */
	bool smoke; /* a smoke run, in which `idle` is no error */
};

static void require(int status, const char *what)
{
	if (status < 0)
		bench_fail(1, "%s: %s", what, tern_status_text(status));
}

/* ---- staging through the stager's slots ---- */

/* A piece was copied: gives its slot back to the stager at once. (In a transfer, a slot with
 * bytes to send is given back only when they have been sent.) */
static void piece_done(struct tern_copy *copy, int status)
{
	struct tern_stage_slot *slot =
		tern_container_of(copy, struct tern_stage_slot, copy);
	struct staging *s = slot->holder;

	require(status, "a copy");
	s->moved += slot->bytes;
	tern_stager_give(slot);
}

static void give_pieces(struct staging *s, enum tern_stage_way way)
{
	struct tern_stage_slot *slot;

	while (s->given < s->bytes && (slot = tern_stager_take(s->stager, way))) {
		slot->holder = s;
		slot->bytes = TERN_MIN(TERN_STAGE_BYTES, s->bytes - s->given);
		slot->copy.done = piece_done;
		tern_stager_copy(s->stager, &slot->copy, way, s->mem, s->given,
			tern_stage_slot_data(slot), slot->bytes);
		s->given += slot->bytes;
	}
}

/* ---- staging through slots of another size ---- */

static void own_piece_done(struct tern_copy *copy, int status)
{
	struct piece *piece = tern_container_of(copy, struct piece, copy);

	require(status, "a copy");
	piece->staging->moved += piece->bytes;
	piece->busy = false;
}

static void give_own_pieces(struct staging *s, enum tern_stage_way way)
{
	for (unsigned i = 0; i < TERN_STAGE_SLOTS && s->given < s->bytes; i++) {
		struct piece *piece = &s->pieces[i];

		if (piece->busy)
			continue;
		piece->busy = true;
		piece->bytes = TERN_MIN(s->piece_bytes, s->bytes - s->given);
		piece->copy.done = own_piece_done;
		tern_stager_copy(s->stager, &piece->copy, way, s->mem, s->given,
			piece->at, piece->bytes);
		s->given += piece->bytes;
	}
}

/* Copies the whole tensor in pieces. give() starts a copy into or from each free slot. */
static void move_all(struct staging *s, enum tern_stage_way way,
	void (*give)(struct staging *s, enum tern_stage_way way))
{
	s->given = s->moved = 0;
	while (s->moved < s->bytes) {
		give(s, way);
		require(tern_progress(s->ctx), "progress");
	}
}

static void stage(struct staging *s, enum tern_stage_way way)
{
	move_all(s, way, give_pieces);
}

static void stage_own(struct staging *s, enum tern_stage_way way)
{
	move_all(s, way, give_own_pieces);
}

static void cut_pieces(struct staging *s, uint64_t piece_bytes)
{
	s->piece_bytes = piece_bytes;
	for (unsigned i = 0; i < TERN_STAGE_SLOTS; i++)
		s->pieces[i] = (struct piece){
			.staging = s, .at = (char *)s->pinned + i * piece_bytes};
}

/* ---- the limit: one copy by the driver ---- */

static void copy(struct staging *s, enum tern_stage_way way)
{
	const struct tern_cuda_api *api = s->gpu.api;
	CUdeviceptr at = tern_mem_cuda_address(s->mem);

	bench_gpu_check(&s->gpu,
		way == TERN_STAGE_DOWN
			? api->memcpy_dtoh_async(s->pinned, at, s->bytes, s->copies)
			: api->memcpy_htod_async(at, s->pinned, s->bytes, s->copies),
		"a copy");
	bench_gpu_check(&s->gpu, api->stream_synchronize(s->copies), "a copy");
}

/* ---- the cases ---- */

static const struct staging_case {
	const char *name;
	enum tern_stage_way way;
	bool kernels;
	void (*stage)(struct staging *s, enum tern_stage_way way);
} cases[] = {
	{"staging from the device", TERN_STAGE_DOWN, false, stage},
	{"staging to the device", TERN_STAGE_UP, false, stage},
	{"staging from the device, while kernels run", TERN_STAGE_DOWN, true, stage},
	{"staging to the device, while kernels run", TERN_STAGE_UP, true, stage},
};

static void launch(struct staging *s)
{
	for (unsigned i = 0; i < s->launches; i++)
		bench_gpu_done(
			s->k, tern_cuda_sum(s->k, s->sum, (const float *const *)s->inputs,
				      INPUTS, 0.25f, s->bytes / sizeof(float)));
}

static double time_us(struct staging *s, const struct staging_case *c,
	void (*move)(struct staging *s, enum tern_stage_way way), bool kernels)
{
	uint64_t start_ns, ns;

	if (kernels)
		launch(s);
	start_ns = tern_clock_ns();
	move(s, c->way);
	ns = tern_clock_ns() - start_ns;
	if (kernels && s->gpu.api->stream_query(s->gpu.stream) == CUDA_SUCCESS)
		s->idle = true;
	bench_gpu_check(
		&s->gpu, s->gpu.api->stream_synchronize(s->gpu.stream), "the kernels");
	return (double)ns / 1000;
}

static void run_case(struct staging *s, const struct staging_case *c)
{
	double ours[2 * ROUNDS_MAX], limit[2 * ROUNDS_MAX];

	s->idle = false;
	time_us(s, c, copy, false); /* warm-up */
	time_us(s, c, c->stage, false);
	for (unsigned i = 0; i < s->rounds; i++) {
		limit[2 * i] = time_us(s, c, copy, false);
		for (unsigned j = 0; j < 2; j++)
			ours[2 * i + j] = time_us(s, c, c->stage, c->kernels);
		limit[2 * i + 1] = time_us(s, c, copy, false);
	}
	bench_gpu_row(&(struct bench_gpu_row){.name = c->name,
		.peer = "one copy, page-locked, the device idle",
		.bytes = s->bytes,
		.goal = 0.9,
		.ours_us = ours,
		.ours_count = 2 * s->rounds,
		.peer_us = limit,
		.peer_count = 2 * s->rounds,
		.times = 1,
		.wrong = s->idle && !s->smoke ? "the kernels ended before the copies"
					      : NULL});
}

static void run_sizes(struct staging *s)
{
	static const unsigned kib[] = {256, 512, 1024, 2048, 4096};
	char name[64];

	for (size_t i = 0; i < TERN_ARRAY_SIZE(kib); i++) {
		if (TERN_STAGE_SLOTS * (kib[i] * 1024ull) > s->bytes)
			continue;
		cut_pieces(s, kib[i] * 1024ull);
		for (int up = 0; up < 2; up++) {
			snprintf(name, sizeof(name),
				"staging %s the device, slots of %u KiB",
				up ? "to" : "from", kib[i]);
			run_case(s, &(struct staging_case){.name = name,
					    .way = up ? TERN_STAGE_UP : TERN_STAGE_DOWN,
					    .stage = stage_own});
		}
	}
}

/* ---- preparing ---- */

static void prepare(struct staging *s)
{
	const struct tern_cuda_sizes sizes = {0};
	void *tensor = bench_gpu_floats(&s->gpu, s->bytes / sizeof(float), -1);

	require(tern_domain_new(NULL, &s->domain), "a domain");
	require(tern_context_new(s->domain, NULL, &s->ctx), "a context");
	require(tern_mem_wrap_cuda(
			s->domain, (uint64_t)(uintptr_t)tensor, s->bytes, &s->mem),
		"the tensor's memory");
	require(tern_context_stager(s->ctx, s->mem->gpu, &s->stager), "a stager");
	bench_gpu_check(&s->gpu, s->gpu.api->mem_host_alloc(&s->pinned, s->bytes, 0),
		"page-locked memory");
	memset(s->pinned, 1, s->bytes);
	bench_gpu_check(&s->gpu,
		s->gpu.api->stream_create_with_priority(
			&s->copies, CU_STREAM_NON_BLOCKING, 0),
		"a stream");
	s->k = bench_gpu_table(&s->gpu, NULL, &sizes);
	s->sum = bench_gpu_floats(&s->gpu, s->bytes / sizeof(float), 0);
	for (unsigned i = 0; i < INPUTS; i++)
		s->inputs[i] = bench_gpu_floats(&s->gpu, s->bytes / sizeof(float), -1);
}

static void finish(struct staging *s)
{
	tern_cuda_kernels_free(s->k);
	s->gpu.api->stream_destroy(s->copies);
	s->gpu.api->mem_free_host(s->pinned);
	tern_context_free(s->ctx);
	tern_mem_put(s->mem);
	tern_domain_free(s->domain);
	bench_gpu_close(&s->gpu);
}

int main(int argc, char **argv)
{
	static const unsigned mib[] = {3, 32, 256}, rounds[] = {2, 3, 9};
	/* The kernels must outlast the copies: each sum takes 0.3 to 1 ms; the copies of
	 * 256 MiB take 5 to 20 ms. */
	static const unsigned launches[] = {4, 200, 200};
	static struct staging s;
	enum bench_gpu_scale scale = bench_gpu_scale(argc, argv);

	s.smoke = scale == BENCH_GPU_FEW;
	bench_gpu_open(&s.gpu);
	s.bytes = (uint64_t)mib[scale] << 20;
	s.rounds = rounds[scale];
	s.launches = launches[scale];
	prepare(&s);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++)
		run_case(&s, &cases[i]);
	run_sizes(&s);
	finish(&s);
	return 0;
}
