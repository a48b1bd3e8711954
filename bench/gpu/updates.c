/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a server's update of a chunk (a range of the parameters) on the GPU, for
 * several chunk sizes and numbers of gradients: gradients to the GPU, sum and Adam,
 * parameters back, by the CPU's clock, from and to page-locked memory. Measured in turn
 * with it: the CPU's updater with one thread, and plain copies of as many bytes in each
 * direction. Then one step of a model of MODEL_CHUNKS chunks, by as many threads as a
 * server with a GPU has: compared with one thread, and with parameters and gradients in
 * the GPU's memory (--tensor-memory device) compared with page-locked memory.
 *
 * usage: gpu_updates [--smoke], which prints samples as gpu_rates does.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "bench/gpu/device.h"
#include "ps/updater_cuda.h"

#define ROUNDS_MAX    16
#define GRADIENTS_MAX 4u
#define MODEL_CHUNKS  64u
#define THREADS       16u /* as GPU_THREADS of tools/server.c */

enum side { GPU, CPU, COPIES, SIDES };

struct updates {
	struct bench_gpu gpu;
	struct tern_optimizer adam;
	struct tern_updater *updaters[2]; /* indexed by GPU, CPU */
	struct tern_updater_chunk *chunks[2];
	/* Page-locked memory: GRADIENTS_MAX gradients, then the parameters of the GPU, of
	 * the CPU, and of the copies. */
	float *host;
	/* Device memory: target and source of the plain copies; later a model's parameters
	 * and gradients. */
	float *device;
	uint64_t count, count_max;
	unsigned gradients;
	uint64_t step[2];
	unsigned rounds, times;
};

static float *part(const struct updates *u, unsigned i)
{
	return u->host + i * u->count_max;
}

/* ---- the measured operations ---- */

static void update(struct updates *u, enum side side)
{
	const float *gradients[GRADIENTS_MAX];
	float *w = part(u, GRADIENTS_MAX + side);
	const struct tern_updater_step step = {.step = ++u->step[side],
		.w_in = w,
		.w_out = w,
		.gradients = gradients,
		.gradient_count = u->gradients,
		.scale = 1.0f / (float)u->gradients,
		.clip = 1};

	for (unsigned i = 0; i < u->gradients; i++)
		gradients[i] = part(u, i);
	if (tern_updater_update(u->updaters[side], u->chunks[side], &step) < 0)
		bench_fail(1, "%s", u->chunks[side]->error);
}

static void copy(struct updates *u)
{
	const struct tern_cuda_api *api = u->gpu.api;
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)u->device;
	uint64_t bytes = u->count * sizeof(float);

	for (unsigned i = 0; i < u->gradients; i++)
		bench_gpu_check(&u->gpu,
			api->memcpy_htod_async(at, part(u, i), bytes, u->gpu.stream),
			"a copy");
	bench_gpu_check(&u->gpu,
		api->memcpy_dtoh_async(
			part(u, GRADIENTS_MAX + SIDES - 1), at, bytes, u->gpu.stream),
		"a copy");
	bench_gpu_check(&u->gpu, api->stream_synchronize(u->gpu.stream), "a copy");
}

static double time_us(struct updates *u, enum side side)
{
	uint64_t start_ns = tern_clock_ns();

	for (unsigned i = 0; i < u->times; i++) {
		if (side == COPIES)
			copy(u);
		else
			update(u, side);
	}
	return (double)(tern_clock_ns() - start_ns) / 1000;
}

/* ---- one case: chunk size and number of gradients ---- */

static void open_chunks(struct updates *u)
{
	const struct tern_updater_opts opts = {
		.optimizer = &u->adam, .count = u->count, .gradient_count = u->gradients};

	for (unsigned i = 0; i < 2; i++) {
		if (tern_updater_chunk_new(u->updaters[i], &opts, &u->chunks[i]) < 0)
			bench_fail(1, "%s", u->updaters[i]->error);
		u->step[i] = 0;
		memcpy(part(u, GRADIENTS_MAX + i), part(u, 0), u->count * sizeof(float));
	}
}

static const char *difference(struct updates *u)
{
	for (unsigned i = 0; i < 3; i++) {
		update(u, GPU);
		update(u, CPU);
	}
	return memcmp(part(u, GRADIENTS_MAX + GPU), part(u, GRADIENTS_MAX + CPU),
		       u->count * sizeof(float))
		       ? "the updates differ"
		       : NULL;
}

static void run_case(struct updates *u, uint64_t bytes, unsigned gradients)
{
	static const char *const peers[] = {
		[CPU] = "the CPU, 1 thread", [COPIES] = "copies of as many bytes"};
	static double us[SIDES][2 * ROUNDS_MAX];
	const char *wrong;
	char name[96];

	u->count = bytes / sizeof(float);
	u->gradients = gradients;
	open_chunks(u);
	wrong = difference(u);
	time_us(u, COPIES);
	for (unsigned i = 0; i < 2 * u->rounds; i++)
		for (unsigned j = 0; j < SIDES; j++) {
			/* Every second round has the reverse order. */
			enum side side = i % 2 ? SIDES - 1 - j : j;

			us[side][i] = time_us(u, side);
		}
	snprintf(name, sizeof(name), "update of %llu KiB, %u gradients",
		(unsigned long long)bytes >> 10, gradients);
	for (enum side side = CPU; side < SIDES; side++)
		bench_gpu_row(&(struct bench_gpu_row){.name = name,
			.peer = peers[side],
			.bytes = (gradients + 1) * bytes,
			.goal = side == CPU ? 1 : 0,
			.ours_us = us[GPU],
			.ours_count = 2 * u->rounds,
			.peer_us = us[side],
			.peer_count = 2 * u->rounds,
			.times = u->times,
			.wrong = wrong});
	for (unsigned i = 0; i < 2; i++)
		tern_updater_chunk_free(u->updaters[i], u->chunks[i]);
}

/* ---- models of many chunks ---- */

/* A model of many chunks. The chunks are adjacent in each of its vectors. */
struct model {
	struct updates *u;
	struct tern_updater_chunk *chunks[MODEL_CHUNKS];
	uint64_t count;      /* number of elements of a chunk */
	float *w, *grads[2]; /* vectors, in host memory or in the GPU's */
	uint64_t step;
	atomic_uint next; /* next chunk that a thread may take */
	/* threads meet at the beginning and at the end of a step */
	pthread_barrier_t turn;
};

static void update_chunks(struct model *m)
{
	struct updates *u = m->u;
	unsigned i;

	while ((i = atomic_fetch_add(&m->next, 1)) < MODEL_CHUNKS) {
		float *w = m->w + i * m->count;
		const float *g[] = {
			m->grads[0] + i * m->count, m->grads[1] + i * m->count};
		const struct tern_updater_step step = {.step = m->step,
			.w_in = w,
			.w_out = w,
			.gradients = g,
			.gradient_count = TERN_ARRAY_SIZE(g),
			.scale = 0.5f,
			.clip = 1};

		if (tern_updater_update(u->updaters[GPU], m->chunks[i], &step) < 0)
			bench_fail(1, "%s", m->chunks[i]->error);
	}
}

static void *help(void *arg)
{
	struct model *m = arg;

	for (unsigned i = 0; i < m->u->times; i++) {
		pthread_barrier_wait(&m->turn);
		update_chunks(m);
		pthread_barrier_wait(&m->turn);
	}
	return NULL;
}

static double model_us(struct model *m, unsigned threads)
{
	pthread_t others[THREADS];
	uint64_t start_ns, end_ns;

	pthread_barrier_init(&m->turn, NULL, threads);
	for (unsigned j = 1; j < threads; j++)
		if (pthread_create(&others[j], NULL, help, m))
			bench_fail(1, "no thread");
	start_ns = tern_clock_ns();
	for (unsigned i = 0; i < m->u->times; i++) {
		atomic_store(&m->next, 0);
		m->step++;
		pthread_barrier_wait(&m->turn);
		update_chunks(m);
		pthread_barrier_wait(&m->turn);
	}
	end_ns = tern_clock_ns();
	for (unsigned j = 1; j < threads; j++)
		pthread_join(others[j], NULL);
	pthread_barrier_destroy(&m->turn);
	return (double)(end_ns - start_ns) / 1000;
}

static void model_open(
	struct model *m, struct updates *u, uint64_t chunk_bytes, bool on_device)
{
	const struct tern_updater_opts opts = {.optimizer = &u->adam,
		.count = chunk_bytes / sizeof(float),
		.gradient_count = 2,
		.on_device = on_device};

	*m = (struct model){.u = u, .count = opts.count};
	m->w = on_device ? u->device : part(u, GRADIENTS_MAX);
	for (unsigned i = 0; i < 2; i++)
		m->grads[i] = on_device ? u->device + (1 + i) * u->count_max : part(u, i);
	for (unsigned i = 0; i < MODEL_CHUNKS; i++)
		if (tern_updater_chunk_new(u->updaters[GPU], &opts, &m->chunks[i]) < 0)
			bench_fail(1, "%s", u->updaters[GPU]->error);
}

static void model_close(struct model *m)
{
	for (unsigned i = 0; i < MODEL_CHUNKS; i++)
		tern_updater_chunk_free(m->u->updaters[GPU], m->chunks[i]);
}

static void model_row(struct updates *u, uint64_t chunk_bytes, const char *where,
	const char *peer, const double *ours_us, const double *peer_us)
{
	char name[128];

	snprintf(name, sizeof(name),
		"step of %u chunks of %llu KiB, 2 gradients, %u threads%s", MODEL_CHUNKS,
		(unsigned long long)chunk_bytes >> 10, THREADS, where);
	bench_gpu_row(&(struct bench_gpu_row){.name = name,
		.peer = peer,
		.bytes = MODEL_CHUNKS * 3 * chunk_bytes,
		.ours_us = ours_us,
		.ours_count = 2 * u->rounds,
		.peer_us = peer_us,
		.peer_count = 2 * u->rounds,
		.times = u->times});
}

static void run_model(struct updates *u, uint64_t chunk_bytes)
{
	enum { MANY, ONE, RESIDENT, WAYS };
	static double us[WAYS][2 * ROUNDS_MAX];
	static const unsigned threads[WAYS] = {THREADS, 1, THREADS};
	struct model in_host, on_device;

	model_open(&in_host, u, chunk_bytes, false);
	model_open(&on_device, u, chunk_bytes, true);
	model_us(&in_host, THREADS);
	model_us(&on_device, THREADS);
	for (unsigned i = 0; i < 2 * u->rounds; i++)
		for (unsigned j = 0; j < WAYS; j++) {
			/* Every second round has the reverse order. */
			unsigned way = i % 2 ? WAYS - 1 - j : j;

			us[way][i] = model_us(
				way == RESIDENT ? &on_device : &in_host, threads[way]);
		}
	model_row(u, chunk_bytes, "", "1 thread", us[MANY], us[ONE]);
	model_row(u, chunk_bytes, ", in the GPU's memory", "page-locked memory",
		us[RESIDENT], us[MANY]);
	model_close(&on_device);
	model_close(&in_host);
}

/* ---- preparing ---- */

static void prepare(struct updates *u)
{
	uint64_t parts = GRADIENTS_MAX + SIDES;
	struct tern_rng rng = {.seed = 6};
	void *host;
	char why[400];

	if (tern_updater_cpu_new(tern_kernels_cpu(), &u->updaters[CPU]) < 0)
		bench_fail(1, "out of memory");
	if (tern_updater_cuda_new(u->gpu.api, 0, &u->updaters[GPU], why, sizeof(why)) < 0)
		bench_fail(1, "%s", why);
	tern_optimizer_parse("adam", &u->adam);
	bench_gpu_check(&u->gpu,
		u->gpu.api->mem_host_alloc(&host, parts * u->count_max * sizeof(float),
			CU_MEMHOSTALLOC_PORTABLE),
		"page-locked memory");
	u->host = host;
	u->device = bench_gpu_alloc(&u->gpu, 3 * u->count_max * sizeof(float));
	for (uint64_t i = 0; i < parts * u->count_max; i++)
		u->host[i] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
}

int main(int argc, char **argv)
{
	static const unsigned rounds[] = {1, 3, 5}, times[] = {1, 5, 20};
	/* largest chunk in KiB, by scale */
	static const unsigned most[] = {256, 4096, 65536};
	static struct updates u;
	enum bench_gpu_scale scale = bench_gpu_scale(argc, argv);

	bench_gpu_open(&u.gpu);
	u.rounds = rounds[scale];
	u.times = times[scale];
	u.count_max = most[scale] * 1024ull / sizeof(float);
	prepare(&u);
	for (unsigned kib = 64; kib <= most[scale]; kib *= 4)
		for (unsigned gradients = 1; gradients <= GRADIENTS_MAX; gradients *= 4)
			run_case(&u, kib * 1024ull, gradients);
	for (unsigned kib = 4; kib * MODEL_CHUNKS <= most[scale]; kib *= 4)
		run_model(&u, kib * 1024ull);
	for (unsigned i = 0; i < 2; i++)
		tern_updater_free(u.updaters[i]);
	u.gpu.api->mem_free_host(u.host);
	bench_gpu_close(&u.gpu);
	return 0;
}
