/* SPDX-License-Identifier: Apache-2.0 */
/* The storm over real fabrics: two contexts in one process, `storm FABRIC [SEEDS
 * [FIRST]]`. */
#include "tests/storm/storm.h"

#include "tern-config.h"
#if TERN_HAVE_VERBS
#include "tests/fake_verbs/fake_verbs.h"
#endif
#if TERN_HAVE_CUDA
#include "tests/storm/gpu.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool, *other; /* other: NULL, or of a GPU if pool is not */
	struct tern_peer *peer;
	struct tern_listener *listener, *second;
};

struct bed {
	const char *name, *address;
	const char *second; /* where the session goes when the first fabric breaks */
	struct tern_domain_opts opts;
};

/* Some of the memory is a GPU's: "-gpu" behind the name of a bed; "-ipc": and the driver
 * has CUDA IPC. */
static bool gpu, ipc;
static struct tern_domain_hooks hooks; /* simulated devices */

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

/* What ALLOC takes is the GPU's at one end, or at both. */
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
	struct tern_peer_opts opts[2] = {
		{.pool = e[0].pool, .name = "zero"}, {.pool = e[1].pool, .name = "one"}};
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
	while (!e[0].peer)
		both(e);
}

/* In the midst of it, the devices of the first fabric lose each other, or one goes. */
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

static void reset_fakes(void)
{
#if TERN_HAVE_VERBS
	struct fake_verbs_opts fake = fake_verbs_defaults();

	fake.delay_steps = 20;
	fake.cm_delay_steps = 20;
	fake.stall_percent = 30;
	fake.retry_steps = 200;
	fake_verbs_reset(&fake);
#endif
}

/* An idle session notices as well. */
static bool moved(struct end e[2], uint64_t limit_ns)
{
	while (strcmp(tern_peer_fabric(e[1].peer), "tcp") != 0) {
		if (tern_clock_ns() >= limit_ns)
			return false;
		both(e);
	}
	return true;
}

static int run(const char *where, const struct bed *bed, uint64_t seed)
{
	struct tern_context_opts opts = {.eager_bytes = 1024,
		.rail_count = seed % 3 == 2 ? 3 : 1,
		.bulk_bytes = seed % 2 ? 20000 : 0,
		.record_count = 64};
	struct storm_opts storm_opts = {.seed = seed,
		.pair_count = 400,
		.triple_count = 12,
		.bytes_max = 60000,
		.eager_bytes = 1024,
		.cancel_permille = seed % 2 ? 100 : 0,
		.small_room_permille = seed % 4 == 3 ? 100 : 0,
		.copy_fail_permille = gpu && seed % 5 == 4 ? 100 : 0};
	const struct storm_memory *memory = NULL;
	struct tern_domain_opts domain_opts = bed->opts;
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct end e[2] = {0};
	struct storm_end ends[2];
	uint64_t steps = 0, break_at = 10 + seed * 7 % 60;
	struct storm *storm;
	int r = 0;

	if (bed->second)
		reset_fakes(); /* what was broken is whole again */
#if TERN_HAVE_CUDA
	if (gpu) {
		memory = storm_gpu_open(seed, ipc);
		hooks.cuda_api = storm_gpu_api();
		hooks.cuda_ipc_self = seed % 3; /* as the driver allows it */
		domain_opts.bounce_bytes = seed % 2 ? 200000 : 0; /* few: they wait */
	}
#endif
	for (unsigned i = 0; i < 2; i++)
		make_end(&e[i], &domain_opts, &opts, gpu && (seed % 3 + 1) & 1u << i);
	join(e, where, bed->second);
	for (int i = 0; i < 2; i++) {
		ends[i].pool = e[i].pool;
		ends[i].other = e[i].other;
		ends[i].memory = memory;
		tern_channel_open(e[i].peer, 7, &ends[i].channel);
	}
	storm = storm_new(&storm_opts, ends);
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
	if (storm_error(storm))
		exit(storm_free(storm) ? 1 : 1);
	r = storm_free(storm);
	free_end(&e[1]);
	free_end(&e[0]);
#if TERN_HAVE_CUDA
	if (gpu)
		storm_gpu_close();
#endif
	return r;
}

/* On real devices, where tests/rdma says: see tests/conformance/instance_verbs.c. */
static char verbs_address[80], verbs_options[80];

static struct bed beds[] = {
	{"verbs", verbs_address, NULL, {.verbs = verbs_options}},
#if TERN_HAVE_VERBS
	{"fake", "verbs://10.7.0.2:0", NULL, {.verbs = "from=10.7.0.1"}},
	{"fake-guard", "verbs://10.7.0.2:0", NULL, {.verbs = "from=10.7.0.1,guard=on"}},
	{"fall-over", "verbs://10.7.0.2:0", "tcp://127.0.0.1:0",
		{.verbs = "from=10.7.0.1"}},
	{"fall-over-guard", "verbs://10.7.0.2:0", "tcp://127.0.0.1:0",
		{.verbs = "from=10.7.0.1,guard=on"}},
#endif
	{"tcp-uring", "tcp://127.0.0.1:0", NULL, {.tcp_engine = TERN_TCP_URING}},
	{"tcp-epoll", "tcp://127.0.0.1:0", NULL, {.tcp_engine = TERN_TCP_EPOLL}},
	{"shm", "shm://storm-%d", NULL, {0}},
	{"shm-no-cma", "shm://storm-%d", NULL, {.no_cma = true}},
};

static void prepare(const char *name)
{
	const char *address = getenv("TERN_RDMA_ADDRESS"),
		   *from = getenv("TERN_RDMA_FROM");

	if (strcmp(name, "verbs") == 0) {
		if (!address || !from) {
			printf("no network of RDMA devices: TERN_RDMA_ADDRESS is not "
			       "set\n");
			exit(77);
		}
		snprintf(verbs_address, sizeof(verbs_address), "verbs://%s:0", address);
		snprintf(verbs_options, sizeof(verbs_options), "from=%s", from);
	}
#if TERN_HAVE_VERBS
	if (strncmp(name, "fa", 2) == 0) {
		reset_fakes();
		hooks.verbs_api = fake_verbs_api();
	}
#endif
}

int main(int argc, char **argv)
{
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
	uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	char *end = argc > 1 ? strstr(argv[1], "-gpu") : NULL;

#if TERN_HAVE_CUDA
	if (!end && argc > 1)
		end = strstr(argv[1], "-ipc");
	gpu = end != NULL;
	ipc = gpu && strcmp(end, "-ipc") == 0;
	if (gpu)
		*end = 0;
#else
	(void)end;
#endif

	for (size_t i = 0; argc > 1 && i < sizeof(beds) / sizeof(beds[0]); i++) {
		char where[100];

		if (strcmp(argv[1], beds[i].name) != 0)
			continue;
		prepare(argv[1]);
		if (strncmp(beds[i].address, "shm", 3) == 0)
			snprintf(where, sizeof(where), "shm://storm-%d", (int)getpid());
		else
			snprintf(where, sizeof(where), "%s", beds[i].address);
		for (uint64_t seed = first; seed < first + count; seed++)
			if (run(where, &beds[i], seed) < 0)
				return 1;
		printf("storm: %s%s: %llu seeds passed\n", argv[1],
			ipc   ? "-ipc"
			: gpu ? "-gpu"
			      : "",
			(unsigned long long)count);
		return 0;
	}
	fprintf(stderr,
		"usage: storm tcp-uring|tcp-epoll|shm|shm-no-cma|verbs|fake|fake-guard|"
		"fall-over|fall-over-guard, with or without -gpu or -ipc [SEEDS "
		"[FIRST]]\n");
	return 2;
}
