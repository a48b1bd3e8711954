/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator as an instance for the conformance lists: no faults, only delays. The
 * simulated world has one process for each side; each turn of the bed lets 20 us of
 * virtual time pass. The bed drives ports and contexts as on the other fabrics.
 */
#include "tests/harness/bed.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/sim/sim.h"

#define TURN_NS (20 * TERN_NS_PER_US)

struct world {
	struct tern_sim *sim;
	struct tern_sim_process *processes[2];
};

static void *world_new(uint32_t caps)
{
	struct world *world = calloc(1, sizeof(*world));
	struct tern_sim_opts opts = {.seed = 1,
		.caps = caps,
		.cuda_api = device_memory ? device_memory->api : NULL};

	assert_non_null(world);
	world->sim = tern_sim_new(&opts);
	assert_non_null(world->sim);
	world->processes[0] = tern_sim_process_new(world->sim, "A");
	world->processes[1] = tern_sim_process_new(world->sim, "B");
	return world;
}

static void *putting_world(void)
{
	return world_new(TERN_CAP_PUT);
}

static void *getting_world(void)
{
	return world_new(TERN_CAP_GET | TERN_CAP_PEEK);
}

static void world_free(void *arg)
{
	struct world *world = arg;

	tern_sim_process_free(world->processes[0]);
	tern_sim_process_free(world->processes[1]);
	tern_sim_free(world->sim);
	free(world);
}

static struct tern_env *world_env(void *arg, unsigned side)
{
	return tern_sim_env(((struct world *)arg)->processes[side]);
}

static struct tern_domain *world_domain(void *arg, unsigned side)
{
	return tern_sim_domain(((struct world *)arg)->processes[side]);
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static void world_step(void *arg)
{
	tern_sim_run(((struct world *)arg)->sim, never, NULL, TURN_NS);
}

/* Addresses need not be unique between tests, since each test has a new world. */
static void sim_address(char *out, unsigned number)
{
	snprintf(out, BED_ADDRESS_MAX, "%u", 100 + number);
}

static void sim_nobody(char *out)
{
	snprintf(out, BED_ADDRESS_MAX, "99");
}

static const char *const sim_malformed[] = {"", NULL};

INSTANCE(sim) = {
	.name = "sim",
	.fabric = "sim",
	.address = sim_address,
	.nobody = sim_nobody,
	.malformed = sim_malformed,
	.world_new = putting_world,
	.world_free = world_free,
	.world_env = world_env,
	.world_domain = world_domain,
	.world_step = world_step,
};

INSTANCE(sim_get) = {
	.name = "sim-get",
	.fabric = "sim",
	.address = sim_address,
	.nobody = sim_nobody,
	.malformed = sim_malformed,
	.world_new = getting_world,
	.world_free = world_free,
	.world_env = world_env,
	.world_domain = world_domain,
	.world_step = world_step,
};
