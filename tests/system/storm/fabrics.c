/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the storm (random requests between two contexts in one process) on the instances
 * of the conformance lists: `storm INSTANCE [SEEDS [FIRST]]`. */
#include "tests/harness/instance.h"
#include "tests/system/storm/storm.h"

#include "tern-config.h"
#if TERN_HAVE_VERBS
#include "tests/fakes/verbs/fake_verbs.h"
#endif
#if TERN_HAVE_CUDA
#include "tests/system/storm/gpu.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"

#define EAGER_BYTES 1024u
/* Time for connecting. A wire that loses packets may lose some of every attempt. */
#define CONNECT_NS (60 * TERN_NS_PER_S)

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* `other`: a second pool, with the other of the two kinds of memory (host,
	 * GPU); or NULL. */
	struct tern_pool *pool, *other;
	struct tern_peer *peer;
	struct tern_listener *listener, *second;
	int down; /* status of the peer's DOWN event; 0: none came */
};

struct bed {
	const struct instance *instance;
	/* The fabric to which the session must move when the first one breaks; NULL: none
	 * breaks. */
	const char *second;
};

/* Instances whose simulated devices break during the storm. */
static const struct fall_over {
	const char *name, *instance;
} falls_over[] = {{"fall-over", "fake"}, {"fall-over-guard", "fake-guard"}};

/* Some of the memory is in a simulated GPU: the instance's name has the suffix "-gpu", or
 * "-ipc" if the driver also has CUDA IPC. */
static bool gpu, ipc;
static struct tern_domain_hooks hooks; /* functions of the simulated devices */

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

/* Sets `*arg`, an int, to the status with which the peer goes DOWN. */
static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer;
	if (event == TERN_PEER_DOWN)
		*(int *)arg = status;
}

/* Creates an end. The end's pool is in GPU memory if `on_gpu`; in runs with a GPU the end
 * has a second pool, in the other kind of memory. */
static void make_end(struct end *e, const struct tern_domain_opts *domain_opts,
	const struct tern_context_opts *opts, bool on_gpu)
{
	struct tern_pool_opts pool = {.slab_bytes = 4u << 20,
		.max_bytes = 64u << 20,
		.kind = on_gpu ? TERN_MEM_CUDA : TERN_MEM_HOST};
	struct tern_pool_opts other = pool;

	other.kind = on_gpu ? TERN_MEM_HOST : TERN_MEM_CUDA;
	if (tern_domain_new_hooked(domain_opts, &hooks, &e->domain) < 0 ||
		tern_pool_new(e->domain, &pool, &e->pool) < 0 ||
		(gpu && tern_pool_new(e->domain, &other, &e->other) < 0) ||
		tern_context_new(e->domain, opts, &e->ctx) < 0) {
		fprintf(stderr, "storm: cannot make an end\n");
		exit(1);
	}
	e->ctx->first_seq = UINT32_MAX - 1;
}

static void free_end(struct end *e)
{
	tern_context_free(e->ctx);
	tern_pool_free(e->pool);
	tern_pool_free(e->other);
	tern_domain_free(e->domain);
}

static void both(struct end e[2])
{
	tern_progress(e[0].ctx);
	tern_progress(e[1].ctx);
}

static void join(struct end e[2], const char *where, const char *second)
{
	struct tern_peer_opts opts[2] = {{.pool = e[0].pool, .name = "zero"},
		{.pool = e[1].pool, .name = "one", .event = on_event, .arg = &e[1].down}};
	char list[300];
	int r = tern_listen(e[0].ctx, where, &opts[0], on_accept, &e[0], &e[0].listener);

	if (r == 0 && second)
		r = tern_listen(
			e[0].ctx, second, &opts[0], on_accept, &e[0], &e[0].second);
	if (r == 0)
		snprintf(list, sizeof(list), "%s%s%s",
			tern_listener_address(e[0].listener), second ? "+" : "",
			second ? tern_listener_address(e[0].second) : "");
	if (r < 0 || tern_connect(e[1].ctx, list, &opts[1], &e[1].peer) < 0) {
		fprintf(stderr, "storm: cannot connect over %s\n", where);
		exit(1);
	}
	while (!e[0].peer && !e[1].down)
		both(e);
	if (!e[0].peer) {
		fprintf(stderr, "storm: connecting over %s: %s\n", list,
			tern_status_text(e[1].down));
		exit(1);
	}
}

/* Cuts the network between the devices of the first fabric, or removes one of them,
 * during the storm. */
static void break_first(uint64_t seed)
{
#if TERN_HAVE_VERBS
	if (seed % 2)
		fake_verbs_remove_device(seed / 2 % 2);
	else
		fake_verbs_cut(0, 1, true);
#else
	(void)seed;
#endif
}

/* Replaces the simulated devices by new ones, with the options of the instance, but slow.
 * Called once at the start, and before each storm in which they break. */
static void reset_fakes(void)
{
#if TERN_HAVE_VERBS
	struct fake_verbs_opts fake = fake_verbs_opts();

	fake.delay_steps = TERN_MAX(fake.delay_steps, 20u);
	fake.cm_delay_steps = TERN_MAX(fake.cm_delay_steps, 20u);
	fake.stall_percent = TERN_MAX(fake.stall_percent, 30u);
	fake.retry_steps = 200;
	fake_verbs_reset(&fake);
#endif
}

/* Waits until the session has moved to tcp, as even an idle session must. */
static bool moved(struct end e[2], uint64_t limit_ns)
{
	while (strcmp(tern_peer_fabric(e[1].peer), "tcp") != 0) {
		if (tern_clock_ns() >= limit_ns)
			return false;
		both(e);
	}
	return true;
}

static struct tern_context_opts context_opts(uint64_t seed)
{
	return (struct tern_context_opts){.eager_bytes = EAGER_BYTES,
		.rail_count = seed % 3 == 2 ? 3 : 1,
		.bulk_bytes = seed % 2 ? 20000 : 0,
		.connect_ns = CONNECT_NS,
		.record_count = 64};
}

static struct storm_opts storm_opts(uint64_t seed)
{
	return (struct storm_opts){.seed = seed,
		.pair_count = 400,
		.triple_count = 12,
		.bytes_max = 60000,
		.eager_bytes = EAGER_BYTES,
		.cancel_permille = seed % 2 ? 100 : 0,
		.small_room_permille = seed % 4 == 3 ? 100 : 0,
		.copy_fail_permille = gpu && seed % 5 == 4 ? 100 : 0};
}

/* Prepares the simulated devices for a seed. Where storms break RDMA devices, these are
 * replaced, so that the faults of an earlier seed have no effect; the simulated GPU is
 * opened anew for each seed. */
static void open_fakes(const struct bed *bed, uint64_t seed,
	struct tern_domain_opts *domain_opts, const struct storm_memory **memory)
{
	if (bed->second)
		reset_fakes();
	*memory = NULL;
#if TERN_HAVE_CUDA
	if (gpu) {
		*memory = storm_gpu_open(seed, ipc);
		hooks.cuda_api = storm_gpu_api();
		/* The same choice as in storm_gpu_open(). */
		hooks.cuda_ipc_self = seed % 3;
		/* In every second seed bounce buffers are few, so that requests wait for
		 * them. */
		domain_opts->bounce_bytes = seed % 2 ? 200000 : 0;
	}
#else
	(void)seed;
	(void)domain_opts;
#endif
}

static void close_fakes(void)
{
#if TERN_HAVE_CUDA
	if (gpu)
		storm_gpu_close();
#endif
}

/* Runs the storm to its end and, if the first fabric breaks, until the session has
 * moved. */
static void blow(
	const struct bed *bed, struct storm *storm, struct end e[2], uint64_t seed)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	uint64_t steps = 0, break_at = 10 + seed * 7 % 60;

	while (!storm_is_over(storm) && tern_clock_ns() < limit) {
		if (bed->second && ++steps == break_at)
			break_first(seed);
		storm_step(storm);
		both(e);
	}
	if (!storm_is_over(storm)) {
		fprintf(stderr, "storm: seed %llu hangs\n", (unsigned long long)seed);
		exit(1);
	}
	if (bed->second && !moved(e, limit)) {
		fprintf(stderr, "storm: seed %llu is still on %s\n",
			(unsigned long long)seed, tern_peer_fabric(e[1].peer));
		exit(1);
	}
}

static int run(const struct bed *bed, uint64_t seed)
{
	struct tern_context_opts ctx_opts = context_opts(seed);
	struct tern_domain_opts domain_opts = bed->instance->opts;
	struct storm_opts opts = storm_opts(seed);
	const struct storm_memory *memory;
	char rest[BED_ADDRESS_MAX], where[BED_ADDRESS_MAX];
	struct storm_end ends[2];
	struct end e[2] = {0};
	struct storm *storm;
	int r;

	bed->instance->address(rest, 0);
	snprintf(where, sizeof(where), "%s://%.100s", bed->instance->fabric, rest);
	open_fakes(bed, seed, &domain_opts, &memory);
	for (unsigned i = 0; i < 2; i++)
		make_end(&e[i], &domain_opts, &ctx_opts, gpu && (seed % 3 + 1) & 1u << i);
	join(e, where, bed->second);
	for (int i = 0; i < 2; i++) {
		ends[i].pool = e[i].pool;
		ends[i].other = e[i].other;
		ends[i].memory = memory;
		tern_channel_open(e[i].peer, 7, &ends[i].channel);
	}
	storm = storm_new(&opts, ends);
	blow(bed, storm, e, seed);
	if (storm_error(storm)) {
		storm_free(storm); /* prints the storm's error */
		exit(1);
	}
	r = storm_free(storm);
	free_end(&e[1]);
	free_end(&e[0]);
	close_fakes();
	return r;
}

static int usage(void)
{
	fprintf(stderr, "usage: storm INSTANCE [SEEDS [FIRST]]\ninstances:");
	for (const struct instance *i = instance_first(); i; i = i->next)
		fprintf(stderr, " %s", i->name);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(falls_over); i++)
		fprintf(stderr, " %s", falls_over[i].name);
	fprintf(stderr, "\nand each of them with -gpu or -ipc behind it\n");
	return 2;
}

static struct bed find_bed(const char *name)
{
	struct bed bed = {0};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(falls_over); i++) {
		if (strcmp(name, falls_over[i].name) != 0)
			continue;
		name = falls_over[i].instance;
		bed.second = "tcp://127.0.0.1:0";
	}
	bed.instance = instance_find(name, strlen(name));
	return bed;
}

/* Removes the suffix "-gpu" or "-ipc" from the name, and sets `gpu` and `ipc`. */
static void read_end(char *name)
{
#if TERN_HAVE_CUDA
	char *end = strstr(name, "-gpu");

	if (!end)
		end = strstr(name, "-ipc");
	gpu = end != NULL;
	ipc = gpu && strcmp(end, "-ipc") == 0;
	if (gpu)
		*end = 0;
#else
	(void)name;
#endif
}

int main(int argc, char **argv)
{
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
	uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	const char *why = NULL;
	struct bed bed;

	if (argc < 2)
		return usage();
	read_end(argv[1]);
	bed = find_bed(argv[1]);
	if (!bed.instance)
		return usage();
	if (bed.instance->unavailable)
		why = bed.instance->unavailable();
	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	hooks = bed.instance->hooks;
	if (hooks.verbs_api)
		reset_fakes();
	for (uint64_t seed = first; seed < first + count; seed++)
		if (run(&bed, seed) < 0)
			return 1;
	printf("storm: %s%s: %llu seeds passed\n", argv[1],
		ipc   ? "-ipc"
		: gpu ? "-gpu"
		      : "",
		(unsigned long long)count);
	return 0;
}
