/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "tern-config.h"
#include "tests/system/storm/storm.h"
#include "transport/context.h"
#include "transport/sim/sim.h"
#if TERN_HAVE_CUDA
#include "tests/system/storm/gpu.h"
#endif

struct end {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	/* `other`: a second pool, with the other of the two kinds of memory (host,
	 * GPU); or NULL. */
	struct tern_pool *pool, *other;
	struct tern_peer *peer;
	struct tern_listener *listener, *listener_b;
	struct world *world;
	bool down;
	int status; /* status of the DOWN event */
};

struct world {
	struct tern_sim *sim;
	struct end ends[2];
	struct storm *storm;
	uint64_t next_step_ns, last_ns, calm_ns;
	unsigned cut_permille, stall_permille, crash_permille, break_permille;
	bool crashed, broken;
	/* Memory of a simulated GPU; NULL: only host memory. */
	const struct storm_memory *memory;
};

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *e = arg;

	(void)peer;
	if (event != TERN_PEER_DOWN)
		return;
	e->down = true;
	e->status = status;
	if (e->world->storm)
		storm_peer_down(e->world->storm);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;

	e->peer = peer;
	tern_peer_set_opts(peer, &(struct tern_peer_opts){.event = on_event,
					 .arg = e,
					 .pool = e->pool,
					 .name = "listener"});
}

static void make_end(struct world *w, struct end *e, const char *name, uint64_t seed)
{
	bool on_gpu = w->memory && (seed % 3 + 1) & (e == &w->ends[0] ? 1 : 2);
	struct tern_pool_opts pool = {.slab_bytes = 1u << 20,
		.max_bytes = 8u << 20,
		.kind = on_gpu ? TERN_MEM_CUDA : TERN_MEM_HOST};
	struct tern_pool_opts other = pool;
	struct tern_context_opts opts = {.eager_bytes = 512,
		.record_count = 24 + seed % 64,
		.reconnect_ns = (seed % 5 == 4 ? 400 : 50) * TERN_NS_PER_MS,
		/* Time limit, since the listener may crash before its answer arrives. */
		.connect_ns = TERN_NS_PER_S,
		.rail_count = seed % 3 == 2 ? 4 : 1,
		.suspect_ns = 20 * TERN_NS_PER_MS,
		.dead_ns = 200 * TERN_NS_PER_MS};

	e->world = w;
	e->process = tern_sim_process_new(w->sim, name);
	other.kind = on_gpu ? TERN_MEM_HOST : TERN_MEM_CUDA;
	if (tern_pool_new(tern_sim_domain(e->process), &pool, &e->pool) < 0 ||
		(w->memory && tern_pool_new(tern_sim_domain(e->process), &other,
				      &e->other) < 0) ||
		tern_context_new_in(tern_sim_domain(e->process), &opts,
			tern_sim_env(e->process), &e->ctx) < 0)
		tern_never("an end of the storm");
	e->ctx->first_seq = UINT32_MAX - 1;
	tern_sim_drive(e->process, e->ctx);
}

/* The capabilities of the four kinds of fabric, so that every way to transfer a tensor is
 * used. */
static const uint32_t kinds[] = {
	TERN_CAP_PUT,
	TERN_CAP_PUT | TERN_CAP_GET,
	TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND,
	TERN_CAP_PUT | TERN_CAP_GET | TERN_CAP_PEEK,
};

/* The kind of the second fabric: any except one on which a session cannot reconnect. */
static uint32_t kind_b(uint64_t seed)
{
	static const unsigned free_kinds[] = {0, 1, 3};

	return kinds[free_kinds[seed / 4 % 3]];
}

static bool have_met(void *arg)
{
	struct world *w = arg;

	return w->ends[0].peer || w->ends[1].down;
}

static void disturb(struct world *w)
{
	struct tern_rng *rng = tern_sim_rng(w->sim);

	/* After calm_ns nothing is disturbed any more, so that all requests can end. */
	if (tern_sim_now_ns(w->sim) > w->calm_ns) {
		if (w->broken)
			tern_sim_break(w->sim, w->broken = false);
		return;
	}
	if (tern_sim_dice(w->sim, w->cut_permille))
		tern_sim_cut(w->sim);
	if (tern_sim_dice(w->sim, w->break_permille)) {
		w->broken = !w->broken;
		tern_sim_break(w->sim, w->broken);
	}
	if (tern_sim_dice(w->sim, w->stall_permille))
		tern_sim_stall(w->ends[tern_rng_below(rng, 2)].process,
			tern_rng_below(rng, 30 * TERN_NS_PER_MS));
	if (!w->crashed && tern_sim_dice(w->sim, w->crash_permille)) {
		w->crashed = true;
		storm_peer_down(w->storm);
		tern_sim_crash(w->ends[tern_rng_below(rng, 2)].process);
	}
}

/* True when the storm is over. Until then posts more requests and disturbs them, every 20
 * us of virtual time. */
static bool is_over(void *arg)
{
	struct world *w = arg;
	bool gone = w->crashed || w->ends[0].down || w->ends[1].down;

	if (gone && w->last_ns == 0)
		w->last_ns = tern_sim_now_ns(w->sim);
	if (gone)
		return (w->ends[0].down || tern_sim_crashed(w->ends[0].process)) &&
		       (w->ends[1].down || tern_sim_crashed(w->ends[1].process));
	if (tern_sim_now_ns(w->sim) >= w->next_step_ns) {
		w->next_step_ns = tern_sim_now_ns(w->sim) + 20 * TERN_NS_PER_US;
		storm_step(w->storm);
		disturb(w);
		tern_sim_rouse(w->ends[0].process);
		tern_sim_rouse(w->ends[1].process);
	}
	return storm_is_over(w->storm);
}

static bool blow(struct world *w)
{
	uint64_t limit = tern_sim_now_ns(w->sim) + 2 * TERN_NS_PER_S;
	int r;

	w->calm_ns = tern_sim_now_ns(w->sim) + TERN_NS_PER_S / 2;

	/* Runs for short times, since the storm must continue even if no event
	 * happens. */
	do
		r = tern_sim_run(w->sim, is_over, w, 40 * TERN_NS_PER_US);
	while (r == -ETIMEDOUT && tern_sim_now_ns(w->sim) < limit);
	return r == 0;
}

static bool have_parted(void *arg)
{
	struct world *w = arg;
	uint64_t now_ns = tern_sim_now_ns(w->sim);

	if (w->cut_permille && now_ns < w->calm_ns && now_ns >= w->next_step_ns) {
		w->next_step_ns = now_ns + 20 * TERN_NS_PER_US;
		if (tern_sim_dice(w->sim, 100))
			tern_sim_cut(w->sim);
	}
	return w->ends[0].down && w->ends[1].down;
}

/* One end closes the session, or both do, while connections are cut. Both ends must get
 * the status 0. */
static bool part(struct world *w, uint64_t seed)
{
	if (w->broken)
		tern_sim_break(w->sim, w->broken = false);
	w->calm_ns = tern_sim_now_ns(w->sim) + TERN_NS_PER_MS;
	for (unsigned i = 0; i < 2; i++)
		if (seed / 7 % 3 != i)
			tern_peer_close(w->ends[i].peer);
	if (tern_sim_run(w->sim, have_parted, w, 2 * TERN_NS_PER_S) < 0) {
		fprintf(stderr, "storm: the session was closed, but it does not end\n");
		return false;
	}
	for (unsigned i = 0; i < 2; i++)
		if (w->ends[i].status)
			fprintf(stderr,
				"storm: after the session was closed, end %u is down "
				"with %d\n",
				i, w->ends[i].status);
	return !w->ends[0].status && !w->ends[1].status;
}

/* Sets options for many sends with many keys, received in another order. There are more
 * sends than credits (rights to send a message). */
static void crowd(struct storm_opts *opts)
{
	opts->pair_count = 250;
	opts->triple_count = opts->seed % 3 ? 200 : 40;
	opts->bytes_max = 3000;
	opts->lag = (unsigned)(opts->seed / 3 % 3) * opts->pair_count / 2;
	opts->order = STORM_SHUFFLED;
	/* At most 4 receives are posted at a time, unless some of them may never get a
	 * send (after cancels or failed copies). */
	if (opts->seed % 4 && !opts->cancel_permille && !opts->copy_fail_permille)
		opts->open_most = 4;
	if (opts->lag == opts->pair_count && opts->seed % 7 < 4) {
		opts->order = STORM_LAST_FIRST;
		/* So that few sends have the same channel, key and step as another. */
		opts->triple_count = 20 * opts->pair_count;
	}
}

/* False if no receive has asked for its send (WANT), although the last of many sends were
 * received first. Asking may be unnecessary if all receives were posted while a
 * connection was lost or a process was stalled. */
static bool has_asked(const struct world *w, const struct storm_opts *opts)
{
	struct tern_peer_stats stats[2];

	for (int i = 0; i < 2; i++)
		tern_peer_stats(w->ends[i].peer, &stats[i]);
	if (opts->order != STORM_LAST_FIRST || w->stall_permille ||
		stats[0].reconnect_count || stats[0].want_count + stats[1].want_count)
		return true;
	fprintf(stderr, "storm: no receive had to ask for its send (WANT)\n");
	return false;
}

/* Creates both ends, with a second fabric if `two`, and connects them. */
static bool bring_up(struct world *w, uint64_t seed, bool two)
{
	bool good;

	make_end(w, &w->ends[0], "zero", seed);
	make_end(w, &w->ends[1], "one", seed);
	tern_listen(w->ends[0].ctx, "sim://storm", NULL, on_accept, &w->ends[0],
		&w->ends[0].listener);
	if (two)
		tern_listen(w->ends[0].ctx, "sim-b://storm", NULL, on_accept, &w->ends[0],
			&w->ends[0].listener_b);
	tern_connect(w->ends[1].ctx, two ? "sim://storm+sim-b://storm" : "sim://storm",
		&(struct tern_peer_opts){.event = on_event,
			.arg = &w->ends[1],
			.pool = w->ends[1].pool,
			.name = "dialler"},
		&w->ends[1].peer);
	good = tern_sim_run(w->sim, have_met, w, 10 * TERN_NS_PER_S) == 0 &&
	       !w->ends[1].down;
	if (!good)
		fprintf(stderr, "storm: the peers did not meet\n");
	return good;
}

/* Frees both ends. False: the final checks of the storm failed. */
static bool take_down(struct world *w)
{
	bool good = true;

	for (int i = 1; i >= 0; i--) {
		tern_sim_forget(w->ends[i].process, w->ends[i].ctx);
		tern_context_free(w->ends[i].ctx);
	}
	if (w->storm && storm_free(w->storm) < 0)
		good = false;
	for (int i = 1; i >= 0; i--) {
		tern_pool_free(w->ends[i].pool);
		tern_pool_free(w->ends[i].other);
		tern_sim_process_free(w->ends[i].process);
	}
	return good;
}

/* What a seed decides: the options of the simulator, the requests, and the faults. */
struct weather {
	struct tern_sim_opts sim;
	struct storm_opts storm;
	struct world world;
	bool two; /* the session can use two fabrics */
	bool crowded;
};

static struct tern_sim_opts sim_opts(uint64_t seed, bool verbose, const void *cuda_api)
{
	return (struct tern_sim_opts){.seed = seed,
		.caps = kinds[seed % 4],
		.caps_b = kind_b(seed),
		.eagain_permille = seed % 3 ? 100 : 0,
		.refuse_permille = 100,
		.slow_permille = seed % 3 == 2 ? 200 : 0,
		.delay_max_ns = (seed % 5 == 4 ? 400 : 50) * TERN_NS_PER_US,
		.chunk_bytes = 1500,
		.eager_bytes = 512,
		.bulk_bytes = seed % 5 < 2 ? 3000 : 0,
		.cuda_api = cuda_api,
		.log = verbose ? print_line : NULL};
}

static struct weather forecast(uint64_t seed, bool verbose, bool crowded,
	const struct storm_memory *memory, const void *cuda_api)
{
	bool two = !(kinds[seed % 4] & TERN_CAP_BOUND), breaks = two && seed / 12 % 2;
	struct weather f = {.sim = sim_opts(seed, verbose, cuda_api),
		.two = two,
		.crowded = crowded,
		.storm = {.seed = seed,
			.pair_count = breaks ? 200 : 60,
			.triple_count = 8,
			/* If the first fabric breaks, tensors are larger, so that some
			 * are half sent when the session moves to the second fabric. */
			.bytes_max = breaks ? 20000 : 6000,
			.eager_bytes = 512,
			.cancel_permille = seed % 5 == 1 ? 200 : 0,
			.small_room_permille = seed % 7 == 2 ? 100 : 0,
			.copy_fail_permille = memory && seed % 5 == 3 ? 100 : 0},
		.world = {.memory = memory,
			.cut_permille = seed % 2 ? 15 : 0,
			.stall_permille = seed % 11 == 3 ? 20 : 0,
			.crash_permille = seed % 13 == 4 ? 10 : 0,
			.break_permille = breaks ? 10 : 0}};

	/* Copies from the device take time, so on a slow network connections must be cut
	 * less often, or no copy would ever complete. */
	if (f.world.cut_permille && memory && seed % 5 == 4)
		f.world.cut_permille = 5;
	if (crowded)
		crowd(&f.storm);
	return f;
}

/* True if no end has crashed and no peer has gone down. */
static bool is_whole(const struct world *w)
{
	return !w->crashed && !w->ends[0].down && !w->ends[1].down;
}

/* Runs the requests between the two connected ends. */
static bool ride_out(struct weather *f, uint64_t seed)
{
	struct world *w = &f->world;
	struct storm_end ends[2];

	for (int i = 0; i < 2; i++) {
		ends[i].pool = w->ends[i].pool;
		ends[i].other = w->ends[i].other;
		ends[i].memory = w->memory;
		tern_channel_open(w->ends[i].peer, 7, &ends[i].channel);
	}
	w->storm = storm_new(&f->storm, ends);
	if (!blow(w)) {
		fprintf(stderr, "storm: it hangs\n");
		storm_print_left(w->storm);
		return false;
	}
	if (storm_error(w->storm))
		return false;
	if (f->crowded && is_whole(w) && !has_asked(w, &f->storm))
		return false;
	if (!w->crashed && !w->stall_permille && !is_whole(w)) {
		fprintf(stderr, "storm: a peer went down though links were only cut\n");
		return false;
	}
	/* After cancels or failed copies some tensors are never received. An orderly end
	 * would wait for them, so it is not tried. */
	return f->storm.cancel_permille || f->storm.copy_fail_permille || !is_whole(w) ||
	       part(w, seed);
}

static bool scenario(uint64_t seed, bool verbose, uint64_t *hash, bool crowded,
	const struct storm_memory *memory, const void *cuda_api)
{
	struct weather f = forecast(seed, verbose, crowded, memory, cuda_api);
	bool good;

	f.world.sim = tern_sim_new(&f.sim);
	good = bring_up(&f.world, seed, f.two) && ride_out(&f, seed);
	good = take_down(&f.world) && good;
	*hash = tern_sim_hash(f.world.sim);
	tern_sim_free(f.world.sim);
	return good;
}

bool scenario_storm(uint64_t seed, bool verbose, uint64_t *hash)
{
	return scenario(seed, verbose, hash, false, NULL, NULL);
}

bool scenario_crowd(uint64_t seed, bool verbose, uint64_t *hash)
{
	return scenario(seed, verbose, hash, true, NULL, NULL);
}

#if TERN_HAVE_CUDA
bool scenario_gpu_storm(uint64_t seed, bool verbose, uint64_t *hash)
{
	const struct storm_memory *memory = storm_gpu_open(seed, false);
	bool good = scenario(seed, verbose, hash, seed % 4 == 3, memory, storm_gpu_api());

	storm_gpu_close();
	return good;
}
#endif
